//! Answers that come when nobody waits any more.

use std::time::Duration;

use mcp_supervisor::{
    CancellationToken, Outcome, ToolAnswer, ToolContract, What,
    event::{Dropped, Ended},
    journal::{Fact, Settler, State},
};
use serde_json::{Value, json};

use super::{answers_on_go, farewells, history, record, state, with_journal};
use crate::support::{
    bounded, initialize, until,
    world::{Wire, World, charge, echo, everywhere, told, until_told},
};

/// How a caller comes to know nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GivesUp {
    ByDeadline,
    ByCancel,
}

/// Calls, gives up, and lets the server answer. What is known then, and whether that was an event.
async fn answered_late(
    world: &World,
    gives_up: GivesUp,
) -> (Vec<What>, mcp_supervisor::journal::Record) {
    let (supervisor, journal) = with_journal().await;
    let mut events = supervisor.events();
    let server = supervisor.open("server", world.spec()).await.unwrap();
    server.call_tool(echo()).await.unwrap();
    let token = CancellationToken::new();
    let mut call = charge()
        .idempotency_key("late".parse().unwrap())
        .cancelled_by(token.clone());
    if gives_up == GivesUp::ByDeadline {
        call = call.deadline(Duration::from_secs(2));
    }
    let (calling, again) = (server.share(), call.clone());
    let calling = tokio::spawn(async move { calling.call_tool(call).await });
    world.bed.until_file("running").await;
    if gives_up == GivesUp::ByCancel {
        token.cancel();
    }
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    until("the server is told", || !farewells(world).is_empty()).await;
    let operation = error.operation();
    assert_eq!(state(&journal, operation).await, State::OutcomeUnknown);
    told(&mut events).await;
    world.bed.touch("go");
    let mut seen = Vec::new();
    if !world.is_modern_http() {
        let late = |what: &What| matches!(what, What::LateAnswer { .. });
        let event = until_told(&mut events, late).await;
        seen.push(event.what.clone());
        let settled = record(&journal, operation).await;
        if settled.state == State::Succeeded {
            let again = again.cancelled_by(CancellationToken::new());
            let replayed: ToolAnswer = server.call_tool(again).await.unwrap();
            assert!(replayed.replayed());
            assert_eq!(replayed.operation(), operation);
        }
    }
    assert_eq!(world.bed.ran("charge"), 1);
    seen.extend(told(&mut events).await);
    (seen, record(&journal, operation).await)
}

fn assert_settled(
    world: &World,
    seen: &[What],
    settled: &mcp_supervisor::journal::Record,
    gives_up: GivesUp,
) {
    let dropped = |what: &What| {
        matches!(
            what,
            What::FramesDropped {
                why: Dropped::Unmatched,
                ..
            }
        )
    };
    assert!(!seen.iter().any(dropped), "{seen:?}");
    let mut words = vec!["dispatching", "without"];
    if gives_up == GivesUp::ByCancel {
        words.insert(1, "cancel requested");
    }
    if world.is_modern_http() {
        // There the end of the stream is the cancel, and nothing can come after it.
        assert_eq!(settled.state, State::OutcomeUnknown);
        assert_eq!(history(settled), words);
        return;
    }
    assert_eq!(settled.state, State::Succeeded, "{settled:?}");
    words.push("answered");
    assert_eq!(history(settled), words);
    let Some(Fact::Answered { by, .. }) = settled.last().map(|entry| &entry.fact) else {
        panic!("{settled:?}");
    };
    assert!(
        matches!(by, Settler::LateAnswer { generation } if generation.number() == 1),
        "{by:?}"
    );
    assert!(matches!(
        seen[0],
        What::LateAnswer { ended: Ended::Answered, operation, .. } if operation == settled.intent.operation
    ));
}

#[tokio::test]
async fn an_answer_after_the_deadline_settles_the_call() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = answers_on_go(wire, era, json!("answer")).await;
            let (seen, settled) = answered_late(&world, GivesUp::ByDeadline).await;
            assert_settled(&world, &seen, &settled, GivesUp::ByDeadline);
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_after_a_cancel_settles_the_call() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = answers_on_go(wire, era, json!("answer")).await;
            let (seen, settled) = answered_late(&world, GivesUp::ByCancel).await;
            assert_settled(&world, &seen, &settled, GivesUp::ByCancel);
        })
        .await;
    }
}

/// Over HTTP an answer may also be an event of a stream that has begun before.
#[tokio::test]
async fn an_answer_at_the_end_of_a_stream_settles_the_call_that_was_given_up() {
    bounded(async {
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "do": ["ledger",
            {"sse": [{"comment": "soon"}, {"touch": "running"}, {"wait_file": "go"}, {"data": "answer"}]}]}]});
        let world = World::new(
            crate::support::world::Wire::Http,
            crate::support::initialize(),
            script,
        )
        .await;
        let (seen, settled) = answered_late(&world, GivesUp::ByCancel).await;
        assert_settled(&world, &seen, &settled, GivesUp::ByCancel);
    })
    .await;
}

#[tokio::test]
async fn a_late_error_settles_the_call_as_what_it_says() {
    let failed: Value = json!({"error": {"code": -32000, "message": "no"}});
    let rejected: Value = json!({"error": {"code": -32602, "message": "no"}});
    for (answer, state) in [(failed, State::Failed), (rejected, State::Rejected)] {
        bounded(async {
            let (wire, era) = everywhere().next().unwrap();
            let world = answers_on_go(wire, era, answer).await;
            let (_, settled) = answered_late(&world, GivesUp::ByCancel).await;
            assert_eq!(settled.state, state);
        })
        .await;
    }
}

#[tokio::test]
async fn without_a_journal_a_late_answer_is_dropped_and_counted() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = answers_on_go(wire, era, json!("answer")).await;
        let (supervisor, server) = crate::support::world::open(world.spec()).await;
        let mut events = supervisor.events();
        let token = CancellationToken::new();
        let (calling, call) = (server.share(), charge().cancelled_by(token.clone()));
        let calling = tokio::spawn(async move { calling.call_tool(call).await });
        world.bed.until_file("running").await;
        token.cancel();
        calling.await.unwrap().unwrap_err();
        until("the server is told", || !farewells(&world).is_empty()).await;
        world.bed.touch("go");
        let dropped = |what: &What| {
            matches!(
                what,
                What::FramesDropped {
                    why: Dropped::Unmatched,
                    ..
                }
            )
        };
        until_told(&mut events, dropped).await;
    })
    .await;
}

/// Of one attempt among several a server can say that it did not run. What the others did it does not say.
#[tokio::test]
async fn a_late_refusal_of_a_repeat_leaves_the_call_unknown() {
    let refused = json!({"error": {"code": -32602, "message": "no such card"}});
    let script = json!({"rules": [
        {"on": "tools/call", "tool": "charge", "generation": 1, "do":
            ["ledger", {"error": {"code": -32001, "message": "Session terminated"}}]},
        {"on": "tools/call", "tool": "charge", "generation": 2, "do":
            [{"touch": "running"}, {"wait_file": "go"}, refused, {"touch": "answered"}]},
    ]});
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), script).await;
        let (supervisor, journal) = with_journal().await;
        let spec = world.spec().contract("charge", ToolContract::Idempotent);
        let server = supervisor.open("server", spec).await.unwrap();
        let token = CancellationToken::new();
        let call = charge().cancelled_by(token.clone());
        let calling = server.share();
        let calling = tokio::spawn(async move { calling.call_tool(call).await });
        world.bed.until_file("running").await;
        token.cancel();
        let error = calling.await.unwrap().unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
        let before = record(&journal, error.operation()).await;
        assert_eq!(before.attempts(), 2);
        world.bed.touch("go");
        world.bed.until_file("answered").await;
        // On the same pipe, so that the refusal was read when they are answered.
        for _ in 0..3 {
            server.call_tool(echo()).await.unwrap();
        }
        let after = record(&journal, error.operation()).await;
        assert_eq!(after.state, State::OutcomeUnknown, "{after:?}");
        assert_eq!(after.history, before.history);
        assert_eq!(world.bed.ran("charge"), 1, "the first attempt ran");
    })
    .await;
}
