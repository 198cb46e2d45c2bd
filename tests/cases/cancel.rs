//! L3: whoever stops waiting. One cancel for the right request, none for the greeting, and nobody
//! waits for it.

use std::time::{Duration, Instant};

use mcp_supervisor::{
    CallError, CancellationToken, EventStream, Limits, Received, ToolCall, What,
    error::{NotSentReason, UnknownCause, Wait},
};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{
    Read, bounded, until,
    world::{
        Wire, World, charge, echo, eras, everywhere, lend, not_sent, open, short_graces, shut_down,
        supervisor, unknown,
    },
};

/// How the server is told in this world that nobody waits any more.
fn farewells(world: &World) -> Vec<Read> {
    let method = match world.is_modern_http() {
        true => "disconnect",
        false => "notifications/cancelled",
    };
    let wire = world.bed.wire();
    wire.into_iter().filter(|r| r.method == method).collect()
}

/// A server on which `charge` runs and is never answered.
async fn never_answers(wire: Wire, era: mcp_supervisor::Era) -> World {
    let script = json!({"rules": [
        {"on": "tools/call", "tool": "charge", "do": ["ledger", {"touch": "running"}, "hang"]},
    ]});
    World::new(wire, era, script).await
}

/// The server heard of it exactly once, with the id of the one call that it had read, and of
/// nothing else; the session goes on.
async fn assert_told_once(world: &World, server: &mcp_supervisor::Connection) {
    until("the server is told", || !farewells(world).is_empty()).await;
    let answer = server.call_tool(echo()).await.expect("it is answered");
    assert_eq!(answer.generation().number(), 1, "the session is kept");
    let calls = world
        .bed
        .wire()
        .into_iter()
        .filter(|r| r.method == "tools/call");
    let ids: Vec<_> = calls.map(|r| r.id).collect();
    assert_eq!(ids.len(), 2);
    let farewells = farewells(world);
    assert_eq!(farewells.len(), 1, "{farewells:?}");
    assert_eq!(farewells[0].id, ids[0]);
    if world.is_modern_http() {
        assert_eq!(world.bed.read("notifications/cancelled"), 0);
    }
    assert_eq!(world.bed.ran("charge"), 1);
}

#[tokio::test]
async fn dropping_the_future_of_a_call_cancels_that_request_once() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = never_answers(wire, era).await;
            let (supervisor, server) = open(world.spec()).await;
            let calling = server.share();
            let call = tokio::spawn(async move { calling.call_tool(charge()).await });
            world.bed.until_file("running").await;
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            assert_told_once(&world, &server).await;
            shut_down(supervisor).await;
            assert_eq!(farewells(&world).len(), 1, "also not at the end");
        })
        .await;
    }
}

#[tokio::test]
async fn dropping_the_future_of_a_call_on_what_is_lent_cancels_that_request_once() {
    for (wire, era) in everywhere() {
        for as_peer in [false, true] {
            bounded(async {
                let world = never_answers(wire, era.clone()).await;
                let supervisor = supervisor().await;
                let client = world.client().await;
                let server = lend(&supervisor, &client, as_peer).await;
                let calling = server.clone();
                let call = tokio::spawn(async move { calling.call_tool(charge()).await });
                world.bed.until_file("running").await;
                call.abort();
                assert!(call.await.unwrap_err().is_cancelled());
                assert_told_once(&world, &server).await;
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn cancelling_a_call_tells_the_server_once_and_the_caller_at_once() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = never_answers(wire, era).await;
            let (supervisor, server) = open(world.spec()).await;
            let (token, call) = cancellable(&server, charge());
            world.bed.until_file("running").await;
            let error = cancelled(&token, call).await;
            assert!(
                matches!(unknown(&error), UnknownCause::Cancelled),
                "{error:?}"
            );
            assert_told_once(&world, &server).await;
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_that_runs_out_of_time_is_cancelled_once() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = never_answers(wire, era).await;
            let (supervisor, server) = open(world.spec()).await;
            let call = charge().deadline(Duration::from_millis(500));
            let (calling, beside) = (server.call_tool(call), server.call_tool(echo()));
            let (late, beside) = tokio::join!(calling, async {
                world.bed.until_file("running").await;
                beside.await
            });
            beside.unwrap();
            let error = late.unwrap_err();
            assert!(matches!(
                unknown(&error),
                UnknownCause::DeadlinePassed(Wait::Total)
            ));
            until("the server is told", || !farewells(&world).is_empty()).await;
            server.call_tool(echo()).await.unwrap();
            let calls = world
                .bed
                .wire()
                .into_iter()
                .filter(|r| r.method == "tools/call");
            let farewells = farewells(&world);
            assert_eq!(farewells.len(), 1);
            assert_eq!(Some(&farewells[0].id), calls.map(|r| r.id).next().as_ref());
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_greeting_is_never_cancelled() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": ["initialize", "server/discover"], "do": [{"touch": "greeted"}, {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec().limits(short_graces())).await;
            // Three who stop waiting for the start, each in another way.
            let calling = server.share();
            let dropped = tokio::spawn(async move { calling.call_tool(charge()).await });
            let (token, call) = cancellable(&server, charge());
            world.bed.until_file("greeted").await;
            let late = server.call_tool(charge().deadline(Duration::from_millis(100))).await;
            assert!(matches!(not_sent(&late.unwrap_err()), NotSentReason::DeadlinePassed(_)));
            dropped.abort();
            let error = cancelled(&token, call).await;
            assert!(matches!(not_sent(&error), NotSentReason::Cancelled), "{error:?}");

            world.bed.touch("go");
            server.call_tool(echo()).await.unwrap();
            assert_eq!(world.bed.read(world.opening()), 1);
            assert_eq!(world.bed.read("tools/call"), 1, "nothing of what was given up");
            assert_eq!(world.bed.read("notifications/cancelled"), 0);
            assert_eq!(world.bed.read("disconnect"), 0);
            assert_eq!(world.bed.ran("charge"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn closing_during_the_greeting_cancels_nothing() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": ["initialize", "server/discover"], "do": [{"touch": "greeted"}, "hang"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec().limits(short_graces())).await;
            let (_, call) = cancellable(&server, charge());
            world.bed.until_file("greeted").await;
            server.close().await;
            let error = call.await.unwrap().unwrap_err();
            assert!(
                matches!(not_sent(&error), NotSentReason::Closed),
                "{error:?}"
            );
            shut_down(supervisor).await;
            assert_eq!(world.bed.read("notifications/cancelled"), 0);
            assert_eq!(world.bed.read("tools/call"), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn dropping_a_call_that_still_waits_in_the_queue_sends_nothing_at_all() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "slow", "do": ["ledger", {"touch": "running"}, {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let limits = Limits {
                max_in_flight: 1,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let calling = server.share();
            let first = tokio::spawn(async move {
                calling.call_tool(ToolCall::new("slow", json!({"ms": 0}))).await
            });
            world.bed.until_file("running").await;
            // One is dropped, one cancelled, one late: all behind the one that is in flight.
            let calling = server.share();
            let dropped = tokio::spawn(async move { calling.call_tool(charge()).await });
            let (token, call) = cancellable(&server, charge());
            let late = server.call_tool(charge().deadline(Duration::from_millis(100))).await;
            assert!(matches!(not_sent(&late.unwrap_err()), NotSentReason::DeadlinePassed(_)));
            dropped.abort();
            let error = cancelled(&token, call).await;
            assert!(matches!(not_sent(&error), NotSentReason::Cancelled), "{error:?}");

            world.bed.touch("go");
            first.await.unwrap().unwrap();
            server.call_tool(echo()).await.unwrap();
            assert_eq!(world.bed.read("tools/call"), 2);
            assert_eq!(world.bed.read("notifications/cancelled"), 0);
            assert_eq!(world.bed.read("disconnect"), 0);
            assert_eq!(world.bed.ran("charge"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn nobody_waits_for_a_cancel_that_the_server_does_not_read() {
    for era in eras() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", "stop_reading", {"touch": "running"}]},
            ]});
            let world = World::new(Wire::Stdio, era, script).await;
            let (supervisor, server) = open(world.spec().limits(short_graces())).await;
            server.call_tool(echo()).await.unwrap();
            let mut events = supervisor.events();
            let (first, one) = cancellable(&server, charge());
            world.bed.until_file("running").await;
            // Fills the pipe, so that nothing gets through behind it.
            let big = ToolCall::new("echo", json!({"text": "x".repeat(2_000_000)}));
            let (second, two) = cancellable(&server, big);
            let (third, three) = cancellable(&server, echo());
            // What is measured from here on is the cancel, and not how long a large call takes to encode.
            until_handed_over(&mut events, 3).await;
            for (token, call) in [(first, one), (second, two)] {
                let error = cancelled(&token, call).await;
                assert!(matches!(unknown(&error), UnknownCause::Cancelled), "{error:?}");
            }
            // Behind the full pipe it provably never left.
            let error = cancelled(&third, three).await;
            assert!(matches!(not_sent(&error), NotSentReason::Cancelled), "{error:?}");
            server.close().await;
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// Until so many calls are in the hands of the session's writer.
async fn until_handed_over(events: &mut EventStream, calls: usize) {
    let mut handed_over = 0;
    while handed_over < calls {
        match events.next().await {
            Some(Received::Event(event)) => {
                handed_over += usize::from(matches!(event.what, What::AttemptStarted { .. }));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A call in a task of its own, with what cancels it.
fn cancellable(
    server: &mcp_supervisor::OwnedConnection,
    call: ToolCall,
) -> (
    CancellationToken,
    JoinHandle<Result<mcp_supervisor::ToolAnswer, CallError>>,
) {
    let (server, token) = (server.share(), CancellationToken::new());
    let call = call.cancelled_by(token.clone());
    let task = tokio::spawn(async move { server.call_tool(call).await });
    (token, task)
}

/// Cancels, and sees that the caller hears of it without waiting for anybody.
async fn cancelled(
    token: &CancellationToken,
    call: JoinHandle<Result<mcp_supervisor::ToolAnswer, CallError>>,
) -> CallError {
    let begun = Instant::now();
    token.cancel();
    let called = call.await.expect("it does not panic");
    let error = called.expect_err("it is cancelled");
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    error
}
