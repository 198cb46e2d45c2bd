//! What comes out of a server that is not one whole answer to one call.

use futures::future::join_all;
use mcp_supervisor::{
    CallError, ConnectionSpec, Limits, Received, ToolCall, What,
    error::UnknownCause,
    event::Dropped,
    evidence::{Loss, WireFault},
};
use serde_json::{Value, json};

use crate::support::{
    bounded,
    lane::{BOTH, Over, Rig, lanes, unknown, unknown_cause},
    until,
};

const MIB: usize = 1024 * 1024;

fn up_to(max_answer_bytes: usize) -> impl Fn(ConnectionSpec) -> ConnectionSpec {
    move |spec| {
        spec.limits(Limits {
            max_answer_bytes,
            ..Limits::default()
        })
    }
}

impl Rig {
    /// Waits until as many frames of a kind were dropped, by the status and by the events.
    async fn until_dropped(&mut self, why: Dropped, expected: u64) {
        let counted = || {
            let dropped = self.connection.status().dropped;
            match why {
                Dropped::Garbage => dropped.garbage,
                Dropped::Unmatched => dropped.unmatched,
                Dropped::TooLarge => dropped.too_large,
            }
        };
        until(&format!("{expected} frames are dropped as {why:?}"), || {
            counted() >= expected
        })
        .await;
        assert_eq!(counted(), expected);
        loop {
            if let Some(Received::Event(event)) = self.events.next().await
                && let What::FramesDropped {
                    why: kind, total, ..
                } = event.what
                && (kind, total) == (why, expected)
            {
                return;
            }
        }
    }

    /// Asks for an answer that is a frame of this size, and says how long its text is.
    async fn frame_of(&self, bytes: usize) -> Result<usize, CallError> {
        let answer = self.call("big", json!({"frame_bytes": bytes})).await?;
        assert_eq!(answer.generation().number(), 1);
        Ok(answer.text().len())
    }
}

#[tokio::test]
async fn what_is_no_message_on_stdout_is_skipped_and_counted() {
    let junk = ["Welcome!\n", "\n", "🦀 ready\n", "{not json\n", "42\n"].map(|t| json!({"raw": t}));
    let mut around = vec![json!("ledger")];
    around.extend(junk.clone());
    around.push(json!("answer"));
    around.extend(junk.clone());
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({
                "at_start": junk,
                "rules": [{"on": "tools/call", "tool": "charge", "do": around}],
            });
            let mut rig = Rig::new(over, era, script).await;
            for _ in 0..2 {
                rig.call("charge", json!({})).await.unwrap();
                assert_eq!(rig.echo().await, 1);
            }
            // Five times four: a blank line is nothing.
            rig.until_dropped(Dropped::Garbage, 20).await;
            assert_eq!(rig.bed.ran("charge"), 2);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn bytes_that_are_no_utf8_spoil_their_own_frame_only() {
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", "bad_utf8_answer"]},
                {"on": "tools/call", "tool": "echo", "args": {"wait": true},
                 "do": ["ledger", {"touch": "in"}, {"wait_file": "go"}, "answer"]},
            ]});
            let rig = Rig::new(over, era, script).await;
            let spoilt = async {
                rig.bed.until_file("in").await;
                let spoilt = rig.call("charge", json!({})).await;
                rig.bed.touch("go");
                spoilt
            };
            let (beside, spoilt) = tokio::join!(rig.call("echo", json!({"wait": true})), spoilt);
            assert!(matches!(
                unknown(spoilt),
                UnknownCause::Wire(WireFault::BadAnswer(_))
            ));
            assert_eq!(beside.unwrap().generation().number(), 1);
            assert_eq!(rig.echo().await, 1, "the reader lives");
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn large_answers_are_delivered_up_to_the_limit() {
    for (over, era) in lanes(&BOTH) {
        for answers in ["json", "sse"] {
            if (over, answers) == (Over::Stdio, "sse") {
                continue;
            }
            bounded(async {
                let rig = Rig::new(over, era.clone(), json!({"http_answer": answers})).await;
                let around_64_kib = [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1];
                for bytes in [&around_64_kib[..], &[129 * 1024, MIB, 10 * MIB]].concat() {
                    let length = rig.frame_of(bytes).await.unwrap();
                    assert!(
                        length < bytes && length + 300 > bytes,
                        "{length} of {bytes}"
                    );
                }
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_a_clear_error_and_costs_no_session() {
    const LIMIT: usize = 128 * 1024;
    let too_large = WireFault::AnswerTooLarge { limit: LIMIT };
    for (over, era) in lanes(&BOTH) {
        for answers in ["json", "sse"] {
            if (over, answers) == (Over::Stdio, "sse") {
                continue;
            }
            bounded(async {
                let script = json!({"http_answer": answers});
                let mut rig = Rig::with(over, era.clone(), script, up_to(LIMIT)).await;
                // An event is its frame and a few bytes around it.
                let at_the_limit = LIMIT - if answers == "sse" { 16 } else { 0 };
                rig.frame_of(at_the_limit).await.unwrap();
                for beyond in [LIMIT + 1, MIB, 10 * MIB] {
                    let error = rig.frame_of(beyond).await.unwrap_err();
                    assert!(error.to_string().contains("131072 bytes"), "{error}");
                    assert_eq!(unknown_cause(&error), UnknownCause::Wire(too_large.clone()));
                    assert_eq!(rig.echo().await, 1);
                }
                if over == Over::Stdio {
                    rig.until_dropped(Dropped::TooLarge, 3).await;
                }
                assert_eq!(rig.bed.ran("big"), 4);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_last_answer_without_its_line_end_is_delivered() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "generation": 1,
                "do": ["ledger", "answer_no_newline", {"exit": 0}]}]});
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
async fn half_an_answer_before_the_end_is_an_unknown_outcome() {
    for (over, era) in lanes(&[Over::Stdio]) {
        for bytes in [1, 30, 60] {
            bounded(async {
                let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                    "do": ["ledger", {"truncate_answer": bytes}, {"exit": 0}]}]});
                let mut rig = Rig::new(over, era.clone(), script).await;
                let cause = unknown(rig.call("charge", json!({})).await);
                assert!(
                    matches!(cause, UnknownCause::SessionEnded(Loss::Exited { .. })),
                    "{cause:?}"
                );
                rig.until_dropped(Dropped::Garbage, 1).await;
                assert_eq!(rig.echo().await, 2);
                assert_eq!(rig.bed.ran("charge"), 1);
                rig.finish().await;
            })
            .await;
        }
    }
}

/// An event is dispatched by the blank line behind it, so without one it is half an answer.
#[tokio::test]
async fn half_an_event_before_the_end_is_an_unknown_outcome() {
    let half = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n\
                data: {\"jsonrpc\":\"2.0\",\"id\":${id},\"resu";
    for (over, era) in lanes(&[Over::Http]) {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                "do": ["ledger", {"raw": half}, "cut"]}]});
            let rig = Rig::new(over, era, script).await;
            let cause = unknown(rig.call("charge", json!({})).await);
            let ended = WireFault::StreamEnded { resumes: 0 };
            assert_eq!(cause, UnknownCause::Wire(ended));
            rig.echo().await;
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn answers_in_reverse_order_reach_their_own_calls() {
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "args": {"held": true}, "do": ["ledger", {"hold": 8}, "answer"]}
            ]});
            let rig = Rig::new(over, era, script).await;
            let calls = (0..8).map(|n| rig.call("echo", json!({"held": true, "n": n})));
            for (n, answer) in join_all(calls).await.into_iter().enumerate() {
                let answer = answer.unwrap();
                assert_eq!(answer.structured(), Some(&json!({"held": true, "n": n})));
            }
            assert_eq!(rig.bed.ran("echo"), 8);
            assert_eq!(rig.connection.status().dropped.unmatched, 0);
            rig.finish().await;
        })
        .await;
    }
}

/// The answers that a rule sends before the right one, none of which may be taken for it.
fn strays() -> [Value; 3] {
    let of = |id: Value| json!({"send": {"jsonrpc": "2.0", "id": id, "result": {"stray": true}}});
    [of(json!(999_999)), of(json!("999999")), of(json!("x"))]
}

#[tokio::test]
async fn a_second_answer_and_answers_to_nothing_are_dropped_and_counted() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let mut steps = vec![json!("ledger")];
            steps.extend(strays());
            steps.push(json!("duplicate_answer"));
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "do": steps}]});
            let mut rig = Rig::new(over, era, script).await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            assert_eq!(answer.text(), "charged");
            rig.until_dropped(Dropped::Unmatched, 4).await;
            assert_eq!(rig.echo().await, 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn answers_to_nothing_in_an_event_stream_are_dropped_and_counted() {
    for (over, era) in lanes(&[Over::Http]) {
        for last in ["answer", "close"] {
            bounded(async {
                let steps = [&[json!("ledger")][..], &strays(), &[json!(last)]].concat();
                let script =
                    json!({"rules": [{"on": "tools/call", "tool": "charge", "do": steps}]});
                let mut rig = Rig::new(over, era.clone(), script).await;
                let result = rig.call("charge", json!({})).await;
                match last {
                    "answer" => assert_eq!(result.unwrap().text(), "charged"),
                    _ => assert_eq!(
                        unknown(result),
                        UnknownCause::Wire(WireFault::StreamEnded { resumes: 0 })
                    ),
                }
                rig.until_dropped(Dropped::Unmatched, 3).await;
                rig.echo().await;
                assert_eq!(rig.bed.ran("charge"), 1);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_body_that_answers_another_request_is_no_answer() {
    for (over, era) in lanes(&[Over::Http]) {
        bounded(async {
            let other = json!({"http": {"status": 200, "body":
                {"jsonrpc": "2.0", "id": 999_999, "result": {"content": []}}}});
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", other]}
            ]});
            let rig = Rig::new(over, era, script).await;
            assert!(matches!(
                unknown(rig.call("charge", json!({})).await),
                UnknownCause::Wire(WireFault::BadAnswer(_))
            ));
            rig.echo().await;
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_to_the_generation_before_is_dropped_and_counted() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "generation": 1, "do": ["ledger", {"exit": 1}]},
                {"on": "tools/call", "generation": 2, "tool": "charge",
                 "do": ["ledger", {"answer_to": "last_gen"}, "answer"]},
            ]});
            let mut rig = Rig::new(over, era, script).await;
            unknown(rig.call("charge", json!({})).await);
            let answer = rig.call("charge", json!({})).await.unwrap();
            assert_eq!(answer.structured().unwrap()["generation"], json!(2));
            rig.until_dropped(Dropped::Unmatched, 1).await;
            assert_eq!(rig.echo().await, 2);
            assert_eq!(rig.bed.ran("charge"), 2);
            rig.finish().await;
        })
        .await;
    }
}

/// An answer that comes when nobody waits for it any more.
#[tokio::test]
async fn a_late_answer_is_dropped_and_counted() {
    for (over, era) in lanes(&[Over::Stdio]) {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                "do": ["ledger", {"wait_file": "late"}, "answer"]}]});
            let mut rig = Rig::new(over, era, script).await;
            assert_eq!(rig.echo().await, 1);
            let late = async {
                let call = ToolCall::new("charge", json!({}));
                let call = call.deadline(std::time::Duration::from_millis(300));
                let late = rig.connection.call_tool(call).await;
                rig.bed.touch("late");
                late
            };
            unknown(late.await);
            rig.until_dropped(Dropped::Unmatched, 1).await;
            assert_eq!(rig.echo().await, 1, "it shows that the server lives");
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}
