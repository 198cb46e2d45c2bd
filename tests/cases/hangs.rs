//! Servers that die, stall or go silent, and calls that end all the same.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use mcp_supervisor::{
    ConnectionSpec, Limits, Received, ToolCall, What,
    error::{NotSentReason, StartError, StartFailure, UnknownCause, Wait},
    event::Stopped,
    evidence::{Loss, WireFault},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{
    bounded,
    lane::{BOTH, Over, Rig, lanes, not_sent, unknown},
    until,
};

/// A deadline that no test here may come near to, unless the deadline is what it is about.
const FAR: Duration = Duration::from_secs(50);
/// "At once", on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(15);

fn charge() -> ToolCall {
    ToolCall::new("charge", json!({"cents": 1999})).deadline(FAR)
}

fn short_graces(spec: ConnectionSpec) -> ConnectionSpec {
    spec.limits(Limits {
        stdin_grace: Duration::from_millis(200),
        term_grace: Duration::from_millis(200),
        ..Limits::default()
    })
}

fn on_charge(steps: Value) -> Value {
    json!({"rules": [{"on": "tools/call", "tool": "charge", "nth": 1, "do": steps}]})
}

#[tokio::test]
async fn the_death_of_an_http_server_ends_its_calls_at_once() {
    for (over, era) in lanes(&[Over::Http]) {
        bounded(async {
            let script = on_charge(json!(["ledger", {"touch": "in"}, "hang"]));
            let mut rig = Rig::new(over, era, script).await;
            let mut server = rig.server.take().unwrap();
            let killing = async {
                rig.bed.until_file("in").await;
                server.kill();
                Instant::now()
            };
            let (result, killed) = tokio::join!(rig.connection.call_tool(charge()), killing);
            assert!(killed.elapsed() < SOON);
            assert!(matches!(
                unknown(result),
                UnknownCause::Wire(_) | UnknownCause::SessionEnded(_)
            ));

            let refused = rig.call("echo", json!({})).await.unwrap_err();
            assert!(matches!(
                not_sent(&refused),
                NotSentReason::StartFailed(start)
                    if matches!(start.failure, StartFailure::Unreachable(_))
            ));
            rig.server = Some(rig.bed.http_at(&server.addr).await);
            rig.echo().await;
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_body_cut_short_is_an_unknown_outcome() {
    for (over, era) in lanes(&[Over::Http]) {
        for send in [0, 1, 60, 4_000] {
            bounded(async {
                let short = json!({"short_body": {"declared": 5_000, "send": send}});
                let rig = Rig::new(over, era.clone(), on_charge(json!(["ledger", short]))).await;
                let cause = unknown(rig.connection.call_tool(charge()).await);
                assert!(
                    matches!(cause, UnknownCause::Wire(WireFault::ExchangeBroke(_))),
                    "{cause:?}"
                );
                rig.echo().await;
                assert_eq!(rig.bed.ran("charge"), 1);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_body_that_never_ends_is_an_unknown_outcome_at_the_deadline() {
    for (over, era) in lanes(&[Over::Http]) {
        bounded(async {
            let short = json!({"short_body": {"declared": 5_000, "send": 60}});
            let script = on_charge(json!(["ledger", short, "hang"]));
            let rig = Rig::new(over, era, script).await;
            let call = charge().deadline(Duration::from_millis(400));
            let cause = unknown(rig.connection.call_tool(call).await);
            assert_eq!(cause, UnknownCause::DeadlinePassed(Wait::Total));
            rig.echo().await;
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_accepted_request_without_an_answer_is_unknown_at_the_deadline() {
    for (over, era) in lanes(&[Over::Http]) {
        bounded(async {
            let rig = Rig::new(over, era, on_charge(json!(["ledger", "no_answer_202"]))).await;
            let call = charge().deadline(Duration::from_millis(400));
            let started = Instant::now();
            let cause = unknown(rig.connection.call_tool(call).await);
            assert_eq!(cause, UnknownCause::DeadlinePassed(Wait::Total));
            assert!(started.elapsed() < SOON);
            assert_eq!(
                rig.echo().await,
                2,
                "a server that accepts and says nothing is suspect"
            );
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn resumptions_of_an_answer_are_counted_and_then_given_up() {
    let empty = [
        json!({"http": {"status": 200}}),
        json!({"http": {"status": 200, "content_type": "text/event-stream", "body": "\n"}}),
    ];
    for (over, era) in lanes(&[Over::Http]) {
        for resumed in &empty {
            bounded(async {
                let opened = json!({"sse": [{"id": "e1", "retry": 10, "data": ""}, "close"]});
                let script = json!({"rules": [
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", opened]},
                    {"on": "resume", "do": [resumed]},
                ]});
                let rig = Rig::new(over, era.clone(), script).await;
                let cause = unknown(rig.connection.call_tool(charge()).await);
                // 2026-07-28 has no resumption.
                let resumes = match era {
                    mcp_supervisor::Era::Discover => 0,
                    _ => Limits::default().max_resumes,
                };
                let ended = WireFault::StreamEnded { resumes };
                assert_eq!(cause, UnknownCause::Wire(ended));
                let wire = rig.bed.wire();
                let asked = wire.iter().filter(|r| r.rest.get(2).is_some()).count();
                assert_eq!(asked, resumes as usize);
                rig.echo().await;
                assert_eq!(rig.bed.ran("charge"), 1);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_server_that_leaves_after_its_answer_is_followed_by_another() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "generation": 1, "do": ["default", {"exit": 0}]}
            ]});
            let rig = Rig::new(over, era, script).await;
            assert_eq!(rig.echo().await, 1);
            rig.until_idle().await;
            assert_eq!(rig.echo().await, 2);
            assert_eq!(rig.bed.ran("echo"), 2);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn all_who_wait_for_a_failed_start_get_the_same_typed_failure() {
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let script = json!({"rules": [{
                "on": ["initialize", "server/discover"],
                "do": [{"wait_file": "go"}, {"stderr": "no licence found\n"}, {"exit": 3}],
            }]});
            let rig = Rig::new(over, era, script).await;
            let calls = join_all((0..8).map(|_| rig.connection.call_tool(charge())));
            let dying = async {
                until("the handshake began", || !rig.bed.wire().is_empty()).await;
                rig.bed.touch("go");
            };
            let (results, ()) = tokio::join!(calls, dying);
            let failures: Vec<Arc<StartError>> = results
                .into_iter()
                .map(|result| match not_sent(&result.unwrap_err()) {
                    NotSentReason::StartFailed(start) => Arc::clone(start),
                    other => panic!("{other}"),
                })
                .collect();
            let first = &failures[0];
            assert!(failures.iter().all(|f| Arc::ptr_eq(f, first)));
            match over {
                Over::Stdio => {
                    assert_eq!(first.failure, StartFailure::EndedDuringHandshake);
                    assert!(first.exit.as_deref().unwrap().contains('3'), "{first:?}");
                    assert_eq!(first.stderr, "no licence found");
                }
                Over::Http => assert!(matches!(first.failure, StartFailure::Unreachable(_))),
            }
            let greetings = rig.bed.read("initialize") + rig.bed.read("server/discover");
            assert_eq!(greetings, 1, "a failed start is not looped");
            assert_eq!(rig.bed.read("tools/call"), 0);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_read_holds_nobody_beyond_the_deadline() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "echo", "generation": 1,
                 "do": ["stop_reading", "answer"]}
            ]});
            let rig = Rig::with(over, era, script, short_graces).await;
            rig.echo().await;
            let big = json!({"blob": "x".repeat(2 * 1024 * 1024)});
            let big = ToolCall::new("charge", big).deadline(Duration::from_millis(600));
            let behind = charge().deadline(Duration::from_millis(300));
            let started = Instant::now();
            let (big, behind) = tokio::join!(
                rig.connection.call_tool(big),
                rig.connection.call_tool(behind)
            );
            assert!(started.elapsed() < SOON);
            assert_eq!(
                unknown(big),
                UnknownCause::DeadlinePassed(Wait::Total),
                "a partial write"
            );
            assert!(matches!(
                not_sent(&behind.unwrap_err()),
                NotSentReason::DeadlinePassed(Wait::Total)
            ));
            assert_eq!(rig.bed.ran("charge"), 0);
            assert_eq!(
                rig.call("charge", json!({}))
                    .await
                    .unwrap()
                    .generation()
                    .number(),
                2
            );
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn closing_a_server_that_does_not_read_is_bounded() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"ignore_term": true, "rules": [
                {"on": "tools/call", "tool": "echo", "do": ["stop_reading", "answer"]}
            ]});
            let rig = Rig::with(over, era, script, short_graces).await;
            rig.echo().await;
            let blob = json!({"blob": "x".repeat(2 * 1024 * 1024)});
            let big = ToolCall::new("charge", blob).deadline(Duration::from_millis(100));
            unknown(rig.connection.call_tool(big).await);
            let started = Instant::now();
            rig.connection.close().await;
            assert!(started.elapsed() < SOON);
            rig.bed.until_all_gone().await;
            assert_eq!(rig.bed.ran("charge"), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn a_closed_stdout_is_a_loss_at_once_and_the_process_is_killed() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"ignore_eof": true, "ignore_term": true, "rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", "close_stdout"]}
            ]});
            let mut rig = Rig::with(over, era, script, short_graces).await;
            let started = Instant::now();
            let cause = unknown(rig.connection.call_tool(charge()).await);
            assert!(started.elapsed() < SOON);
            assert!(
                matches!(cause, UnknownCause::SessionEnded(Loss::Closed { .. })),
                "{cause:?}"
            );
            let stopped = loop {
                if let Some(Received::Event(event)) = rig.events.next().await
                    && let What::SessionStopped { generation, how } = &event.what
                {
                    break (generation.number(), *how);
                }
            };
            assert_eq!(stopped, (1, Stopped::Killed));
            rig.bed.until_all_gone().await;
            assert_eq!(rig.echo().await, 2);
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_passing_503_or_504_does_not_stick() {
    for (over, era) in lanes(&[Over::Http]) {
        for status in [503, 504] {
            bounded(async {
                let script = on_charge(json!(["ledger", {"http": {"status": status}}]));
                let rig = Rig::new(over, era.clone(), script).await;
                let cause = unknown(rig.connection.call_tool(charge()).await);
                assert_eq!(cause, UnknownCause::Status(status));
                rig.echo().await;
                rig.connection.call_tool(charge()).await.unwrap();
                assert_eq!(rig.bed.ran("charge"), 2);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn one_slow_call_that_times_out_fails_alone() {
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "echo", "args": {"wait": true},
                 "do": ["ledger", {"wait_file": "go"}, "answer"]},
                {"on": "tools/call", "tool": "charge", "do": ["ledger", "hang"]},
            ]});
            let rig = Rig::new(over, era, script).await;
            assert_eq!(rig.echo().await, 1);
            let others = join_all((0..5).map(|n| rig.call("echo", json!({"wait": true, "n": n}))));
            let slow = async {
                let call = charge().deadline(Duration::from_millis(300));
                let slow = rig.connection.call_tool(call).await;
                rig.bed.touch("go");
                slow
            };
            let (others, slow) = tokio::join!(others, slow);
            assert_eq!(unknown(slow), UnknownCause::DeadlinePassed(Wait::Total));
            for (n, other) in others.into_iter().enumerate() {
                let other = other.unwrap();
                assert_eq!(other.structured().unwrap()["n"], json!(n));
                assert_eq!(other.generation().number(), 1);
            }
            assert_eq!(rig.echo().await, 1, "the session stays");
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}
