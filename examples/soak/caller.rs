//! Who calls on one connection: one call or a few at a time, some of which it gives up, cancels, or
//! makes again under the same key.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_supervisor::{
    CallError, CancellationToken, Connection, Outcome, ToolCall, error::NotSentReason,
    operation::Page,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::json;

use crate::{
    Ending,
    shop::{LOOKED_UP, ONCE, ORDER},
    told::{Became, Told},
    town::{Link, Place, TOTAL, Town},
};

/// Whatever takes longer never ends: far beyond the deadline that it has, on a machine that is busy.
pub(crate) const NEVER: Duration = Duration::from_secs(30);
/// How long a connection may take to work again once its server does.
const RECOVERS: Duration = Duration::from_secs(45);
/// How many calls back a caller makes one again.
const REMEMBERS: usize = 6;

#[derive(Clone, Copy, Debug)]
enum Patience {
    Whole,
    GivesUp(Duration),
    Cancels(Duration),
}

/// A call that is to be made.
#[derive(Clone, Debug)]
struct Order {
    mark: String,
    tool: &'static str,
    key: Option<String>,
    patience: Patience,
}

pub(crate) struct Caller {
    pub(crate) place: Place,
    pub(crate) link: Link,
    town: Arc<Town>,
    told: Arc<Told>,
    dice: StdRng,
    pace_ms: u64,
    orders: u64,
    times: u64,
    recent: VecDeque<Order>,
}

/// What an error says in a word.
pub(crate) fn became(error: &CallError) -> Became {
    match error.outcome() {
        Outcome::NotSent => Became::NotSent,
        Outcome::Rejected => Became::Rejected,
        Outcome::Failed => Became::Failed,
        Outcome::Unknown => Became::Unknown,
    }
}

fn is_lost(error: &CallError) -> bool {
    matches!(error, CallError::NotSent(e) if matches!(e.reason, NotSentReason::CallerOwnedClosed))
}

impl Caller {
    pub(crate) fn new(place: Place, town: &Arc<Town>, told: &Arc<Told>, pace_ms: u64) -> Self {
        Self {
            place,
            link: Link::None,
            town: Arc::clone(town),
            told: Arc::clone(told),
            dice: StdRng::seed_from_u64(town.seed ^ ((place.number as u64) << 20)),
            pace_ms,
            orders: 0,
            times: 0,
            recent: VecDeque::new(),
        }
    }

    /// Opens its connection, or lends a new client in the place of the one that is gone.
    pub(crate) async fn open(&mut self) -> Ending {
        std::mem::replace(&mut self.link, Link::None)
            .give_up()
            .await;
        self.times += 1;
        let opening = self.town.open(&self.place, self.times);
        self.link = tokio::time::timeout(NEVER, opening).await??;
        Ok(())
    }

    /// Calls until the time is over.
    pub(crate) async fn call_until(&mut self, until: Instant) {
        while Instant::now() < until {
            let rest = self.dice.random_range(0..=2 * self.pace_ms);
            tokio::time::sleep(Duration::from_millis(rest)).await;
            if self.link.connection().is_none() && self.open().await.is_err() {
                // Its server is away.
                continue;
            }
            match self.dice.random_range(0..100) {
                0 => self.open_anew().await,
                1..4 => self.reconnect().await,
                4..12 => self.list().await,
                _ => self.call().await,
            }
        }
    }

    async fn reconnect(&self) {
        if let Link::Owned(owned) = &self.link {
            let became = match tokio::time::timeout(NEVER, owned.reconnect()).await {
                Ok(Ok(_)) => Became::Answered,
                Ok(Err(_)) => Became::Failed,
                Err(_) => Became::Never,
            };
            self.told.count("reconnects", became);
        }
    }

    /// Closes its connection for everybody, and opens another one of the same name.
    async fn open_anew(&mut self) {
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Owned(owned) => {
                let became = match tokio::time::timeout(NEVER, owned.close()).await {
                    Ok(()) => Became::Answered,
                    Err(_) => Became::Never,
                };
                self.told.count("closes", became);
            }
            other => self.link = other,
        }
    }

    async fn list(&mut self) {
        let Some(connection) = self.link.connection() else {
            return;
        };
        let listing = connection.list_tools(Page::first());
        let became = match tokio::time::timeout(NEVER, listing).await {
            Ok(Ok(_)) => Became::Answered,
            Ok(Err(error)) => {
                let (became, is_lost) = (became(&error), is_lost(&error));
                if is_lost {
                    std::mem::replace(&mut self.link, Link::None)
                        .give_up()
                        .await;
                }
                became
            }
            Err(_) => Became::Never,
        };
        self.told.count("lists", became);
    }

    async fn call(&mut self) {
        let at_once = self.dice.random_range(1..=3);
        let orders: Vec<_> = (0..at_once).map(|_| self.order()).collect();
        let Some(connection) = self.link.connection() else {
            return;
        };
        let calls = orders.iter().map(|order| self.make(connection, order));
        let lost = futures::future::join_all(calls).await;
        if lost.contains(&true) {
            std::mem::replace(&mut self.link, Link::None)
                .give_up()
                .await;
        }
    }

    fn order(&mut self) -> Order {
        let again = self.place.journaled && !self.place.over.is_lent();
        if again && !self.recent.is_empty() && self.dice.random_bool(0.08) {
            let which = self.dice.random_range(0..self.recent.len());
            return Order {
                patience: Patience::Whole,
                ..self.recent[which].clone()
            };
        }
        self.orders += 1;
        let Place { number, over, .. } = self.place;
        let mark = format!("{}.{number}.{}", over.as_str(), self.orders);
        let tool = over.tools().choose(&mut self.dice).expect("there are some");
        // A key is given, or minted where the contract needs one. A look-up is for one that is among the
        // arguments.
        let given = *tool == LOOKED_UP || (*tool != ONCE && self.dice.random_bool(0.5));
        let after = Duration::from_millis(self.dice.random_range(0..60));
        let order = Order {
            key: given.then(|| mark.clone()),
            mark,
            tool,
            patience: match self.dice.random_range(0..100) {
                0..5 => Patience::GivesUp(after),
                5..8 => Patience::Cancels(after),
                _ => Patience::Whole,
            },
        };
        if order.key.is_some() {
            self.recent.push_back(order.clone());
            if self.recent.len() > REMEMBERS {
                self.recent.pop_front();
            }
        }
        order
    }

    /// Makes a call. Gives back whether the client that was lent for it is gone.
    async fn make(&self, connection: &Connection, order: &Order) -> bool {
        let mut call = ToolCall::new(order.tool, json!({ "mark": order.mark }));
        if let Some(key) = &order.key {
            call = call.idempotency_key(key.parse().expect("a mark is a key"));
        }
        let mut patience = NEVER;
        match order.patience {
            Patience::Whole => {}
            Patience::GivesUp(after) => patience = after,
            Patience::Cancels(after) => {
                let token = CancellationToken::new();
                call = call.cancelled_by(token.clone());
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    token.cancel();
                });
            }
        }
        let made = tokio::time::timeout(patience, connection.call_tool(call)).await;
        let became = match &made {
            // The receipts' own refusals are answers that say that they are errors.
            Ok(Ok(answer)) if answer.is_error() && order.tool == ORDER => Became::Failed,
            Ok(Ok(_)) => Became::Answered,
            Ok(Err(error)) => became(error),
            Err(_) if patience < NEVER => Became::GivenUp,
            Err(_) => Became::Never,
        };
        let over = self.place.over.as_str();
        self.told.of(over, &order.mark, order.tool, became);
        matches!(&made, Ok(Err(error)) if is_lost(error))
    }

    /// Sees to it that the connection works, now that its server does.
    pub(crate) async fn works(&mut self) -> Ending {
        let until = Instant::now() + RECOVERS;
        loop {
            let error = match self.link.connection() {
                None => match self.open().await {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Some(connection) => {
                    let listing = connection.list_tools(Page::first());
                    match tokio::time::timeout(NEVER, listing).await {
                        Ok(Ok(_)) => return Ok(()),
                        Ok(Err(error)) => error.into(),
                        Err(_) => "a list never ended".into(),
                    }
                }
            };
            if self.place.over.is_lent() {
                // Replacing it is for whoever lent it.
                std::mem::replace(&mut self.link, Link::None)
                    .give_up()
                    .await;
            }
            if Instant::now() > until {
                let place = self.place;
                return Err(
                    format!("{place:?} works no more though its server does: {error}").into(),
                );
            }
            tokio::time::sleep(TOTAL / 40).await;
        }
    }
}
