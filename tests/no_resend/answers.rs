//! Answers that are not what was asked for, and how large they may be.

use mcp_supervisor::{
    CallError, Era, Limits, Outcome,
    error::{StartFailure, UnknownCause},
    evidence::WireFault,
};
use serde_json::{Value, json};

use super::{
    both,
    clients::Ours,
    support::{Bed, bounded, initialize},
};

/// Calls a tool whose answer is given by these steps, and another one.
async fn called(era: Era, steps: &Value) -> (Result<(), CallError>, u64, Bed) {
    let bed = Bed::new(json!({"rules": [{"on": "tools/call", "tool": "charge", "do": steps}]}));
    let server = bed.http().await;
    let ours = Ours::open(server.spec(era)).await;
    let called = ours.call("charge").await.map(drop);
    let after = ours.generation_of("echo").await;
    ours.close().await;
    assert_eq!(bed.read("tools/call"), 2, "each was sent once");
    (called, after, bed)
}

fn result(id: Value) -> Value {
    let result = json!({"resultType": "complete", "content": [], "isError": false});
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

/// An answer as text in which the server fills in the id.
fn marked_result() -> String {
    result(json!("$id")).to_string().replace("\"$id\"", "${id}")
}

#[tokio::test]
async fn what_is_no_answer_leaves_the_outcome_unknown_and_the_session_suspect() {
    let ok = |kind: &str, body: Value| json!([{"http": {"content_type": kind, "body": body}}]);
    for (what, steps) in [
        (
            "another request's answer",
            ok("application/json", result(json!(4_711))),
        ),
        (
            "a batch",
            ok("application/json", json!([result(json!("$id"))])),
        ),
        ("nothing", json!([{"http": {"status": 200}}])),
        ("nothing, called JSON", ok("application/json", json!(""))),
        ("a page", ok("text/html", json!("<html>Sign in</html>"))),
        (
            "JSON of another type",
            ok("text/plain", result(json!("$id"))),
        ),
        ("half of it", json!([{"truncate_answer": 20}, "close"])),
        (
            "an event stream with another answer",
            json!([{"sse": [{"data": result(json!(4_711))}]}]),
        ),
        (
            "an event stream with a bad error",
            json!([{"sse": [
            {"data": {"jsonrpc": "2.0", "id": "$id", "error": "no"}}]}]),
        ),
    ] {
        for era in both() {
            bounded(async {
                let (called, after, _bed) = called(era, &steps).await;
                let error = called.unwrap_err();
                assert_eq!(error.outcome(), Outcome::Unknown, "{what}: {error}");
                assert_eq!(after, 2, "{what}: {error}");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_answer_is_found_however_its_exchange_is_dressed() {
    let text = |kind: &str| json!([{"http": {"content_type": kind, "body": "$answer"}}]);
    let marked = json!([{"http": {
        "content_type": "application/json", "body": format!("\u{feff}{}", marked_result())}}]);
    for (what, steps) in [
        ("a charset", text("Application/JSON; charset=utf-8")),
        ("a byte order mark", marked),
        (
            "its id as a string",
            json!([{"http": {"body": result(json!("${id}"))}}]),
        ),
        ("a stream of it", json!([{"sse": [{"data": "answer"}]}])),
        (
            "behind what is no message",
            json!([{"sse": [
            {"comment": "hello"}, {"event": "ping", "data": "x"}, {"data": "{not json"},
            {"data": "[DONE]"}, {"data": "answer"}]}]),
        ),
        (
            "behind another answer",
            json!([{"sse": [
            {"data": result(json!(4_711))}, {"data": "answer"}]}]),
        ),
    ] {
        for era in both() {
            bounded(async {
                let (called, after, _bed) = called(era, &steps).await;
                assert!(called.is_ok(), "{what}: {called:?}");
                assert_eq!(after, 1, "{what}");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn what_an_event_stream_holds_beside_the_answer_is_dropped_and_counted() {
    bounded(async {
        let bed = Bed::new(
            json!({"rules": [{"on": "tools/call", "do": ["ledger", {"sse": [
            {"data": "{not json"}, {"data": result(json!(4_711))}, {"data": "answer"}]}]}]}),
        );
        let server = bed.http().await;
        let ours = Ours::open(server.spec(initialize())).await;
        ours.call("charge").await.unwrap();
        let dropped = ours.connection.status().dropped;
        assert_eq!((dropped.garbage, dropped.unmatched), (1, 1));
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn an_error_without_an_id_is_the_error_of_its_exchange() {
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no"}});
    for steps in [
        json!([{"http": {"body": error}}]),
        json!([{"http": {"status": 400, "body": error}}]),
        json!([{"sse": [{"data": error}]}]),
    ] {
        for era in both() {
            bounded(async {
                let (called, after, _bed) = called(era, &steps).await;
                let error = called.unwrap_err();
                assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
                assert_eq!(error.server_error().unwrap().code, -32602);
                assert_eq!(after, 1);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_answer_over_the_limit_is_an_error_that_names_it() {
    for (kind, chunked) in [("json", false), ("json", true), ("sse", false)] {
        for era in both() {
            bounded(async {
                let bed = Bed::new(json!({"http_answer": kind, "http_chunked": chunked}));
                let server = bed.http().await;
                let limits = Limits {
                    max_answer_bytes: 64 * 1024,
                    ..Limits::default()
                };
                let ours = Ours::open(server.spec(era).limits(limits)).await;
                let big = |bytes: usize| {
                    let call = mcp_supervisor::ToolCall::new("big", json!({"bytes": bytes}));
                    ours.connection.call_tool(call)
                };
                let error = big(2 * 1024 * 1024).await.unwrap_err();
                let CallError::Unknown(unknown) = &error else {
                    panic!("{error}")
                };
                let limit = WireFault::AnswerTooLarge { limit: 64 * 1024 };
                assert_eq!(unknown.cause, UnknownCause::Wire(limit), "{kind}");
                let answer = big(60 * 1024).await.unwrap();
                assert_eq!(answer.generation().number(), 1, "the session is kept");
                ours.close().await;
                assert_eq!(bed.ran("big"), 2);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_notification_may_be_answered_in_any_way_that_is_no_refusal() {
    for steps in [
        json!([{"http": {"status": 200}}]),
        json!([{"http": {"status": 204}}]),
        json!([{"http": {"status": 200, "content_type": "text/html", "body": "ok"}}]),
        json!([{"http": {"status": 200, "content_type": "application/json", "body": "{}"}}]),
        json!([{"sse": [{"comment": "open for good"}, {"wait_file": "never"}]}]),
    ] {
        bounded(async {
            let bed = Bed::new(json!({"rules": [
                {"on": "notifications/initialized", "do": steps},
            ]}));
            let server = bed.http().await;
            let limits = Limits {
                start: std::time::Duration::from_secs(10),
                ..Limits::default()
            };
            let ours = Ours::open(server.spec(initialize()).limits(limits)).await;
            assert_eq!(ours.generation_of("echo").await, 1, "{steps}");
            ours.close().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_lacks_get_and_delete_is_used_and_closed_without_complaint() {
    for status in [400, 405, 501] {
        bounded(async {
            let bed = Bed::new(json!({"rules": [
                {"on": ["GET", "DELETE"], "do": [{"http": {"status": status}}]},
            ]}));
            let server = bed.http().await;
            let ours = Ours::open(server.spec(initialize())).await;
            for _ in 0..2 {
                assert_eq!(ours.generation_of("echo").await, 1);
            }
            ours.close().await;
            let deletes = bed.wire().iter().filter(|r| r.rest[0] == "DELETE").count();
            assert_eq!(deletes, 1);
        })
        .await;
    }
}

#[tokio::test]
async fn a_handshake_that_is_refused_for_its_credentials_keeps_the_challenge() {
    let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "who?"}});
    for body in [error, json!({"error": "invalid_token"}), json!("")] {
        for era in both().into_iter().chain([Era::Automatic]) {
            bounded(async {
                let refusal = json!({"status": 401, "body": body, "content_type": "application/json",
                    "headers": {"WWW-Authenticate": "Bearer"}});
                let bed = Bed::new(json!({"rules": [{"on": "POST", "do": [{"http": refusal}]}]}));
                let server = bed.http().await;
                let ours = Ours::open(server.spec(era)).await;
                let error = ours.call("charge").await.unwrap_err();
                let CallError::NotSent(not_sent) = &error else { panic!("{error}") };
                let mcp_supervisor::error::NotSentReason::StartFailed(start) = &not_sent.reason
                else {
                    panic!("{error}")
                };
                let StartFailure::Status { status, challenge, .. } = &start.failure else {
                    panic!("{error}")
                };
                assert_eq!((*status, challenge.as_deref()), (401, Some("Bearer")));
                assert_eq!(bed.wire().len(), 1, "nothing else is tried");
                ours.close().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_probe_whose_answer_stream_stays_silent_falls_back_within_its_limit() {
    bounded(async {
        let bed = Bed::new(json!({"rules": [{"on": "server/discover",
            "do": [{"sse": [{"comment": "wait"}, {"wait_file": "never"}]}]}]}));
        let server = bed.http().await;
        let limits = Limits {
            discover: std::time::Duration::from_millis(300),
            ..Limits::default()
        };
        let ours = Ours::open(server.spec(Era::Automatic).limits(limits)).await;
        assert_eq!(ours.generation_of("echo").await, 1);
        assert_eq!(
            ours.connection.status().revision.as_deref(),
            Some("2025-11-25")
        );
        ours.close().await;
    })
    .await;
}
