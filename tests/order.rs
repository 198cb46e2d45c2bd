//! Order: a real child process receives calls in the order in which they were put into the mailbox.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, Outcome, SharedConnection, Supervisor, ToolAnswer, ToolCall,
    spec::{Limits, Overload},
};
use serde_json::json;
use support::{Bed, Effect, bounded, initialize, until};
use tokio::task::JoinSet;

const CALLS: u64 = 20_000;
const TASKS: usize = 8;
/// How many calls each task has under way.
const ABREAST: usize = 16;
const RECONNECTS: u64 = 100;

const IN_FLIGHT: usize = 64;

type Calling = Pin<Box<dyn Future<Output = Result<ToolAnswer, CallError>> + Send>>;

/// Numbers calls in the order in which they are put into the mailbox.
struct Turnstile {
    connection: SharedConnection,
    next: Mutex<u64>,
    answered: AtomicU64,
}

impl Turnstile {
    /// The next call, already in the mailbox. A call gets there when it is first polled, so the
    /// number is taken and that poll made with no other call in between.
    fn enter(&self, context: &mut Context<'_>) -> Option<Calling> {
        let mut next = self.next.lock().expect("nobody panics here");
        if *next == CALLS {
            return None;
        }
        let connection = self.connection.clone();
        let call = ToolCall::new("echo", json!({ "key": *next }));
        *next += 1;
        let mut calling: Calling = Box::pin(async move { connection.call_tool(call).await });
        let first = tokio::task::coop::unconstrained(&mut calling);
        match std::pin::pin!(first).poll(context) {
            Poll::Pending => Some(calling),
            Poll::Ready(done) => panic!("answered before it was sent: {done:?}"),
        }
    }

    /// Calls until all numbers are used, with several calls under way.
    async fn work(self: Arc<Self>) {
        let mut under_way = JoinSet::new();
        loop {
            while under_way.len() < ABREAST {
                let entered = poll_fn(|context| Poll::Ready(self.enter(context))).await;
                let Some(calling) = entered else { break };
                under_way.spawn(calling);
            }
            let Some(done) = under_way.join_next().await else {
                return;
            };
            match done.expect("no call panics") {
                Ok(_) => {}
                // It was in flight when its session gave way, and past the grace.
                Err(error) => assert_eq!(error.outcome(), Outcome::Unknown, "{error}"),
            }
            self.answered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn number(effect: &Effect) -> u64 {
    effect.key.parse().expect("the key is the call's number")
}

/// The calls that arrived before one that was put into the mailbox earlier, each behind that one.
fn inversions(effects: &[Effect]) -> Vec<&[Effect]> {
    effects
        .windows(2)
        .filter(|two| number(&two[0]) >= number(&two[1]))
        .collect()
}

/// Makes all calls, with so many reconnects in between, and returns what arrived.
async fn arrivals(era: Era, reconnects: u64) -> Vec<Effect> {
    let bed = Bed::new(json!({}));
    let supervisor = Supervisor::builder().start().await.unwrap();
    let limits = Limits {
        max_in_flight: IN_FLIGHT,
        overload: Overload::Wait,
        reconnect_grace: Duration::from_secs(20),
        ..Limits::default()
    };
    let spec: ConnectionSpec = bed.stdio_spec(era).limits(limits);
    let owned = supervisor.open("ordered", spec).await.unwrap();
    let turnstile = Arc::new(Turnstile {
        connection: owned.share(),
        next: Mutex::default(),
        answered: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(Arc::clone(&turnstile).work());
    }
    let mut before = 0;
    for round in 1..=reconnects {
        // More than can have been in flight on the session before, so that this one has had some.
        let on_this_session = before + IN_FLIGHT as u64 + 1;
        let enough = on_this_session.max(round * CALLS / (reconnects + 1));
        let turnstile = &turnstile;
        until("the calls go on", || {
            turnstile.answered.load(Ordering::SeqCst) >= enough
        })
        .await;
        let generation = owned
            .reconnect()
            .await
            .expect("the server can be started again");
        assert_eq!(generation.number(), round + 1);
        before = turnstile.answered.load(Ordering::SeqCst);
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no task panics");
    }
    let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    bed.until_all_gone().await;
    assert_eq!(bed.pids().len() as u64, reconnects + 1);
    bed.effects()
}

async fn assert_in_order(reconnects: u64) {
    for era in [initialize(), Era::Discover] {
        bounded(async {
            let effects = arrivals(era, reconnects).await;
            assert_eq!(effects.len() as u64, CALLS, "each call arrives once");
            assert_eq!(inversions(&effects), [&[]; 0]);
            assert!(
                effects.is_sorted_by_key(|e| e.generation),
                "no session is used after its end"
            );
            let mut generations: Vec<_> = effects.iter().map(|e| e.generation).collect();
            generations.dedup();
            assert_eq!(generations, (1..=reconnects + 1).collect::<Vec<_>>());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_of_many_tasks_arrive_in_mailbox_order() {
    assert_in_order(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn mailbox_order_holds_across_a_hundred_reconnects() {
    assert_in_order(RECONNECTS).await;
}
