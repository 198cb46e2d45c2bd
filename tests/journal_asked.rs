//! When a call asks its journal's store, and what becomes of a call whose store fails.

mod support;

use std::{sync::atomic::Ordering, time::Duration};

use mcp_supervisor::{
    Limits, Outcome, Page, Supervisor, ToolCall, ToolContract, error::NotSentReason,
    journal::State, operation::OperationId,
};
use serde_json::json;
use support::{
    bounded,
    store::{Asked, watched},
    until,
    world::{World, charge, echo, everywhere, not_sent},
};

/// Accepted once, with the first attempt in the same write; dispatched once more for each further
/// attempt; settled once. Always of one operation.
#[track_caller]
fn assert_asked(
    asked: &[Asked],
    attempts: usize,
    last: impl Fn(OperationId) -> Asked,
) -> OperationId {
    let Some(Asked::Accept(operation, Some(first))) = asked.first() else {
        panic!("not accepted with its first attempt: {asked:?}");
    };
    let mut dispatched = vec![*first];
    let mut rest = asked[1..].iter();
    let mut settled = None;
    for asked in &mut rest {
        match asked {
            Asked::Dispatching(of, attempt) if of == operation => {
                assert!(
                    !dispatched.contains(attempt),
                    "each attempt has an id of its own"
                );
                dispatched.push(*attempt);
            }
            other => {
                settled = Some(other.clone());
                break;
            }
        }
    }
    assert_eq!(dispatched.len(), attempts);
    assert_eq!(settled, Some(last(*operation)));
    let released = rest.all(|asked| *asked == Asked::Release(*operation));
    assert!(released, "nothing after the end: {asked:?}");
    *operation
}

fn answered(operation: OperationId) -> Asked {
    Asked::Answered(operation, false)
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
            let (supervisor, _, store) = watched().await;
            // The operator vouches for a repeat of `charge`.
            let spec = world.spec().contract("charge", ToolContract::Idempotent);
            let server = supervisor.open("server", spec).await.unwrap();

            let answer = server.call_tool(charge()).await.unwrap();
            let operation = assert_asked(&store.take(), 1, answered);
            assert_eq!(answer.operation(), operation);

            server.list_tools(Page::first()).await.unwrap();
            assert_eq!(store.take(), [], "a read changes nothing that would have to be remembered");

            let amount = |n| ToolCall::new("charge", json!({"amount": n}));
            let error = server.call_tool(amount(2)).await.unwrap_err();
            let failed = |operation| Asked::Without(operation, Outcome::Failed);
            let operation = assert_asked(&store.take(), 1, failed);
            assert_eq!(error.operation(), operation);

            if world.http.is_none() {
                server.call_tool(amount(3)).await.unwrap();
                assert_asked(&store.take(), 2, answered);
                assert_eq!(world.bed.ran("charge"), 4);
            } else if let Some(http) = &mut world.http {
                http.kill();
                let error = server.call_tool(echo()).await.unwrap_err();
                let outcome = error.outcome();
                assert_asked(&store.take(), 1, |operation| Asked::Without(operation, outcome));
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
            let (supervisor, _, store) = watched().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            store.fails.accept.store(true, Ordering::SeqCst);
            let error = server.call_tool(charge()).await.unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::Journal(_)));
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(source, "there is no room for the journal: the disk is full");
            assert!(matches!(store.take()[..], [Asked::Accept(_, Some(_)), ..]));
            store.fails.accept.store(false, Ordering::SeqCst);
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

/// A call that has to wait for its place is accepted first, and its attempt is a write of its own.
#[tokio::test]
async fn an_attempt_that_cannot_be_recorded_is_not_sent_either() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", {"touch": "running"}, {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, _, store) = watched().await;
            let limits = Limits {
                max_in_flight: 1,
                max_queued: 0,
                overload: mcp_supervisor::spec::Overload::Wait,
                ..Limits::default()
            };
            let server = supervisor.open("server", world.spec().limits(limits)).await.unwrap();
            let (first, second) = (server.share(), server.share());
            let first = tokio::spawn(async move { first.call_tool(charge()).await });
            world.bed.until_file("running").await;
            store.take();
            let second = tokio::spawn(async move { second.call_tool(echo()).await });
            let mut asked = Vec::new();
            until("the second one is accepted", || {
                asked.extend(store.take());
                !asked.is_empty()
            })
            .await;
            let Some(Asked::Accept(waits, None)) = asked.first() else {
                panic!("{asked:?}");
            };
            store.fails.dispatching.store(true, Ordering::SeqCst);
            world.bed.touch("go");
            first.await.unwrap().unwrap();
            let error = second.await.unwrap().unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::Journal(_)), "{error:?}");
            assert_eq!(error.operation(), *waits);
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (1, 0));
            assert_eq!(world.bed.read("tools/call"), 1);
            let told = store.take();
            assert!(told.contains(&Asked::Without(*waits, Outcome::NotSent)), "{told:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_is_told_to_the_caller_all_the_same() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, json!({})).await;
        let (supervisor, journal, store) = watched().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        store.fails.outcome.store(true, Ordering::SeqCst);
        let answer = server.call_tool(charge()).await.unwrap();
        assert_asked(&store.take(), 1, answered);
        let record = journal.show(answer.operation()).await.unwrap().unwrap();
        assert_eq!(
            record.state,
            State::Dispatching,
            "after a crash it would be unknown"
        );
    })
    .await;
}

#[tokio::test]
async fn an_intent_whose_write_failed_and_is_not_there_is_recorded_as_not_sent() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, json!({})).await;
        let (supervisor, journal, store) = watched().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        store.fails.accept.store(true, Ordering::SeqCst);
        let error = server.call_tool(charge()).await.unwrap_err();
        store.fails.accept.store(false, Ordering::SeqCst);
        let operation = error.operation();
        let within = Duration::from_secs(20);
        let settled = async {
            loop {
                if let Some(record) = journal.wait(operation, within).await.unwrap() {
                    return record.state;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(settled.await, State::NotSent);
        assert!(world.bed.wire().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_supervisor_under_another_one_uses_its_journal() {
    for own_journal in [false, true] {
        bounded(async {
            let bed = support::Bed::new(json!({}));
            let (host, _, above) = watched().await;
            let (_, journal, own) = watched().await;
            let mut builder = Supervisor::builder().under(&host, "agent");
            if own_journal {
                builder = builder.journal(journal);
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
            assert_asked(&asked, 1, answered);
            assert_eq!(other, []);
        })
        .await;
    }
}
