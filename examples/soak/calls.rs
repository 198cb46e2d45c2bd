//! Callers, and what became of their calls.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mcp_supervisor::{Outcome, ToolCall};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;

use crate::{
    Ending,
    kinds::{Hosts, Kind},
};

/// The whole time of a call.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// A call that takes longer did not end: its deadline, and room for a machine that is busy.
pub(crate) const LONGEST: Duration = Duration::from_secs(20);

/// So often a caller closes its connection and opens another.
const CALLS_EACH: u32 = 60;

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Became {
    Answered,
    Said(&'static str),
    /// Its caller stopped waiting.
    Dropped,
    Unresolved,
}

#[derive(Default)]
pub(crate) struct Tally(Mutex<BTreeMap<(usize, Kind), HashMap<String, Became>>>);

impl Tally {
    fn note(&self, number: usize, kind: Kind, order: String, became: Became) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((number, kind)).or_default().insert(order, became);
    }

    /// Prints what became of the operations, and says what must not be.
    pub(crate) fn report(&self, directory: &Path) -> Ending<Vec<String>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut broken = Vec::new();
        let mut outcomes: BTreeMap<(String, String), u64> = BTreeMap::new();
        let mut effects: BTreeMap<u64, u64> = BTreeMap::new();
        for ((number, kind), orders) in all.iter() {
            let ledger = directory.join(format!("{number}.ledger"));
            let done = fs::read_to_string(ledger).unwrap_or_default();
            let mut stands: HashMap<&str, u64> = HashMap::new();
            for line in done.lines() {
                let order = line.split(' ').next().unwrap_or_default();
                *stands.entry(order).or_default() += 1;
                if !orders.contains_key(order) {
                    broken.push(format!("{kind:?}: an effect of nobody's order {order}"));
                }
            }
            for (order, became) in orders {
                let times = stands.get(order.as_str()).copied().unwrap_or_default();
                *effects.entry(times).or_default() += 1;
                let said = match became {
                    Became::Said(outcome) => (*outcome).to_owned(),
                    other => format!("{other:?}").to_lowercase(),
                };
                *outcomes
                    .entry((format!("{:?}", kind.over), said))
                    .or_default() += 1;
                let wrong = match became {
                    _ if times > 1 => true,
                    Became::Answered => times != 1,
                    Became::Said("not sent" | "rejected") => times != 0,
                    Became::Unresolved => true,
                    Became::Said(_) | Became::Dropped => false,
                };
                if wrong {
                    broken.push(format!(
                        "{kind:?}: order {order} is {became:?}, and its effect stands {times} times"
                    ));
                }
            }
        }
        println!("operations by connection and outcome:");
        for ((over, said), count) in &outcomes {
            println!("  {over:<12} {said:<16} {count}");
        }
        println!("operations by how often their effect stands: {effects:?}");
        let answered = outcomes
            .iter()
            .filter(|((_, said), _)| said == "answered")
            .map(|(_, count)| count)
            .sum::<u64>();
        if answered == 0 {
            broken.push("no call was ever answered".to_owned());
        }
        Ok(broken)
    }
}

/// Who calls on one connection, one call after another or a few at a time.
pub(crate) struct Caller {
    pub(crate) number: usize,
    pub(crate) kind: Kind,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) seed: u64,
}

impl Caller {
    pub(crate) async fn call_until(self, until: Instant) -> Ending {
        let mut dice = StdRng::seed_from_u64(self.seed ^ (self.number as u64) << 16);
        let (mut time, mut order) = (0, 0_u64);
        while Instant::now() < until {
            let open = match self.hosts.open(self.number, self.kind, time).await {
                Ok(open) => open,
                // A client that is to be lent may meet a server that is gone already.
                Err(_) if time > 0 => continue,
                Err(error) => return Err(error),
            };
            time += 1;
            let mut calls = 0;
            while calls < CALLS_EACH && Instant::now() < until {
                let at_once = dice.random_range(1..4);
                let drops = dice.random_range(0..12) == 0;
                let batch = (0..at_once).map(|_| {
                    order += 1;
                    self.call(&open, format!("{}-{order}", self.number), drops)
                });
                let all = futures::future::join_all(batch.collect::<Vec<_>>()).await;
                calls += at_once;
                if open.is_lent() && all.iter().any(|became| *became != Became::Answered) {
                    break;
                }
                let pause = Duration::from_millis(dice.random_range(20..200));
                tokio::time::sleep(pause).await;
            }
            open.close().await?;
        }
        Ok(())
    }

    async fn call(&self, open: &crate::kinds::Open, order: String, drops: bool) -> Became {
        let call = ToolCall::new("order", json!({ "order": order }));
        let calling = open.connection().call_tool(call);
        let patience = match drops {
            true => Duration::from_millis(5),
            false => LONGEST,
        };
        let became = match tokio::time::timeout(patience, calling).await {
            Ok(Ok(_)) => Became::Answered,
            Ok(Err(error)) => Became::Said(match error.outcome() {
                Outcome::NotSent => "not sent",
                Outcome::Rejected => "rejected",
                Outcome::Failed => "failed",
                Outcome::Unknown => "unknown",
            }),
            Err(_) if drops => Became::Dropped,
            Err(_) => Became::Unresolved,
        };
        self.tally.note(self.number, self.kind, order, became);
        became
    }
}
