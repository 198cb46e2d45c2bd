//! The seam for the durable half: when a call asks its journal, and what a journal that fails does.

mod support;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use mcp_supervisor::{
    Outcome, Page, Supervisor, ToolCall, ToolContract,
    error::NotSentReason,
    journal::seam::{Intent, Journal, Recorded, Settled},
    operation::{AttemptId, OperationId},
};
use serde_json::json;
use support::{
    bounded,
    world::{World, charge, echo, everywhere, not_sent},
};

#[derive(Clone, Debug, PartialEq)]
enum Asked {
    Accepted(OperationId),
    Dispatching(OperationId, AttemptId),
    Settled(OperationId, Settled),
}

/// Counts, and fails where it is told to.
#[derive(Default)]
struct Counting {
    asked: Mutex<Vec<Asked>>,
    accepted_fails: AtomicBool,
    dispatching_fails: AtomicBool,
    settled_fails: AtomicBool,
}

impl Counting {
    fn note(&self, asked: Asked, fails: &AtomicBool) -> Recorded<'_> {
        self.asked
            .lock()
            .expect("nobody panics in there")
            .push(asked);
        let fails = fails.load(Ordering::SeqCst);
        Box::pin(async move {
            if fails {
                return Err("the disk is full".into());
            }
            Ok(())
        })
    }

    fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().expect("nobody panics in there"))
    }
}

impl Journal for Counting {
    fn accepted<'a>(&'a self, intent: &'a Intent) -> Recorded<'a> {
        self.note(Asked::Accepted(intent.operation), &self.accepted_fails)
    }
    fn dispatching(&self, operation: OperationId, attempt: AttemptId) -> Recorded<'_> {
        self.note(
            Asked::Dispatching(operation, attempt),
            &self.dispatching_fails,
        )
    }
    fn settled(&self, operation: OperationId, how: Settled) -> Recorded<'_> {
        self.note(Asked::Settled(operation, how), &self.settled_fails)
    }
}

async fn with_journal() -> (Supervisor, Arc<Counting>) {
    let journal = Arc::new(Counting::default());
    let supervisor = Supervisor::builder()
        .journal(Arc::clone(&journal) as Arc<dyn Journal>)
        .start()
        .await
        .expect("it starts");
    (supervisor, journal)
}

/// Accepted once, dispatched as often as given, settled once and so; always of one operation.
#[track_caller]
fn assert_asked(asked: &[Asked], attempts: usize, how: Settled) -> OperationId {
    let Some(Asked::Accepted(operation)) = asked.first() else {
        panic!("not accepted first: {asked:?}");
    };
    assert_eq!(asked.last(), Some(&Asked::Settled(*operation, how)));
    let dispatched: Vec<_> = asked[1..asked.len() - 1]
        .iter()
        .map(|asked| match asked {
            Asked::Dispatching(of, attempt) if of == operation => *attempt,
            other => panic!("{other:?} in between"),
        })
        .collect();
    assert_eq!(dispatched.len(), attempts);
    for (i, attempt) in dispatched.iter().enumerate() {
        assert!(
            !dispatched[..i].contains(attempt),
            "each attempt has an id of its own"
        );
    }
    *operation
}

#[tokio::test]
async fn the_journal_is_asked_once_to_accept_once_for_each_attempt_and_once_to_settle() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "args": {"amount": 2}, "do": ["ledger", {"error": {"code": -32000, "message": "no"}}]},
                {"on": "tools/call", "args": {"amount": 3}, "nth": 1, "generation": 1, "do": ["ledger", "kill"]},
            ]});
            let mut world = World::new(wire, era, script).await;
            let (supervisor, journal) = with_journal().await;
            // The operator vouches for a repeat of `charge`.
            let spec = world.spec().contract("charge", ToolContract::Idempotent);
            let server = supervisor.open("server", spec).await.unwrap();

            let answer = server.call_tool(charge()).await.unwrap();
            let operation = assert_asked(&journal.take(), 1, Settled::Answered);
            assert_eq!(answer.operation(), operation);

            server.list_tools(Page::first()).await.unwrap();
            assert_asked(&journal.take(), 1, Settled::Answered);

            let amount = |n| ToolCall::new("charge", json!({"amount": n}));
            let error = server.call_tool(amount(2)).await.unwrap_err();
            let operation = assert_asked(&journal.take(), 1, Settled::Without(Outcome::Failed));
            assert_eq!(error.operation(), operation);

            if world.http.is_none() {
                server.call_tool(amount(3)).await.unwrap();
                assert_asked(&journal.take(), 2, Settled::Answered);
                assert_eq!(world.bed.ran("charge"), 4);
            } else if let Some(http) = &mut world.http {
                http.kill();
                let error = server.call_tool(echo()).await.unwrap_err();
                let how = Settled::Without(error.outcome());
                assert_asked(&journal.take(), 1, how);
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_the_journal_cannot_record_is_not_sent() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let (supervisor, journal) = with_journal().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            for (fails, attempts) in [
                (&journal.accepted_fails, 0),
                (&journal.dispatching_fails, 1),
            ] {
                fails.store(true, Ordering::SeqCst);
                let error = server.call_tool(charge()).await.unwrap_err();
                assert!(matches!(not_sent(&error), NotSentReason::Journal(_)));
                let source = std::error::Error::source(&error).unwrap().to_string();
                assert_eq!(source, "the disk is full");
                let asked = journal.take();
                let dispatched = asked.iter().filter(|a| matches!(a, Asked::Dispatching(..)));
                assert_eq!(dispatched.count(), attempts);
                fails.store(false, Ordering::SeqCst);
            }
            assert!(
                world.bed.wire().is_empty(),
                "not even a session was started"
            );

            server.call_tool(echo()).await.unwrap();
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (0, 1));
            assert_eq!(world.bed.read("tools/call"), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_is_told_to_the_caller_all_the_same() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, json!({})).await;
        let (supervisor, journal) = with_journal().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        journal.settled_fails.store(true, Ordering::SeqCst);
        server.call_tool(charge()).await.unwrap();
        assert_asked(&journal.take(), 1, Settled::Answered);
    })
    .await;
}

#[tokio::test]
async fn a_supervisor_under_another_one_uses_its_journal() {
    for own_journal in [false, true] {
        bounded(async {
            let bed = support::Bed::new(json!({}));
            let (host, above) = with_journal().await;
            let own = Arc::new(Counting::default());
            let mut builder = Supervisor::builder().under(&host, "agent");
            if own_journal {
                builder = builder.journal(Arc::clone(&own) as Arc<dyn Journal>);
            }
            let agent = builder.start().await.unwrap();
            let spec = bed.stdio_spec(support::initialize());
            let server = agent.open("server", spec).await.unwrap();
            server.call_tool(echo()).await.unwrap();
            let (asked, other) = if own_journal {
                (own.take(), above.take())
            } else {
                (above.take(), own.take())
            };
            assert_asked(&asked, 1, Settled::Answered);
            assert_eq!(other, []);
        })
        .await;
    }
}
