//! Cases O: what the caller is told, how often the tool ran, and what becomes of the session.

use std::error::Error as _;

use mcp_supervisor::{
    CallError, Era, HttpSpec, Outcome, Page,
    connection::ConnectionState,
    error::{NotSentReason, StartError, StartFailure, UnknownCause},
    evidence::{Loss, ServerError, WireFault},
};
use serde_json::{Value, json};

use crate::support::{
    bounded, initialize, kill,
    rig::{Rig, SECRET, WIRES, Wire, assert_discreet, cause, charge, echo, eras},
    until,
};

/// A script that does `steps` to a charge of the first session.
fn at_charge(steps: Value) -> Value {
    json!({"rules": [{"on": "tools/call", "tool": "charge", "do": steps}]})
}

fn cause_of(error: &CallError) -> &UnknownCause {
    match error {
        CallError::Unknown(unknown) => &unknown.cause,
        other => panic!("{:?} is known: {other}", other.outcome()),
    }
}

/// Charges once, and sees that it ran once, was sent once, and that nobody knows.
async fn lose_a_charge(rig: &Rig, connection: &mcp_supervisor::Connection) -> CallError {
    let error = connection.call_tool(charge()).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert!(error.source().is_some(), "{error} has no source");
    assert_discreet(&error);
    assert_ran_once(rig);
    error
}

fn assert_ran_once(rig: &Rig) {
    assert_eq!(rig.bed.ran("charge"), 1, "effects");
    assert_eq!(rig.bed.read("tools/call"), 1 + rig.bed.ran("echo"), "sent");
}

/// The next call works by itself, in this generation, and the charge still ran once.
async fn assert_next_runs_in(rig: &Rig, connection: &mcp_supervisor::Connection, generation: u64) {
    let answer = echo(connection).await.unwrap();
    assert_eq!(answer.generation().number(), generation);
    assert_ran_once(rig);
}

#[tokio::test]
async fn o1_a_process_that_dies_before_it_answers_leaves_the_outcome_unknown() {
    for era in eras() {
        bounded(async {
            let rig = Rig::new(Wire::Stdio, &era, at_charge(json!(["ledger", {"exit": 1}]))).await;
            let billing = rig.open().await;
            let error = lose_a_charge(&rig, &billing).await;
            assert!(matches!(
                cause_of(&error),
                UnknownCause::SessionEnded(Loss::Closed { .. } | Loss::Exited { .. })
            ));
            assert!(cause::<Loss>(&error).is_some(), "the closed transport");
            assert_eq!(error.about().generation.unwrap().number(), 1);
            assert_eq!(error.about().attempts, 1);
            assert_next_runs_in(&rig, &billing, 2).await;
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn o2_a_process_killed_while_idle_costs_the_next_call_nothing() {
    for era in eras() {
        bounded(async {
            let rig = Rig::new(Wire::Stdio, &era, json!({})).await;
            let billing = rig.open().await;
            echo(&billing).await.unwrap();
            for pid in rig.bed.running() {
                kill(pid);
            }
            let idle = billing.status_when(|s| s.state == ConnectionState::Idle);
            assert_eq!(idle.await.state, ConnectionState::Idle);
            let answer = billing.call_tool(charge()).await.unwrap();
            assert_eq!(answer.generation().number(), 2);
            assert_eq!(answer.attempts(), 1);
            assert_ran_once(&rig);
            rig.finish().await;
        })
        .await;
    }
}

/// As O2, without waiting for the runtime to notice: the call may fall into the moment of the
/// death, and is then either run once on the next session or of unknown outcome, never run twice.
#[tokio::test]
async fn o2_a_call_right_behind_the_kill_runs_at_most_once() {
    for era in eras() {
        bounded(async {
            let rig = Rig::new(Wire::Stdio, &era, json!({})).await;
            let billing = rig.open().await;
            echo(&billing).await.unwrap();
            for pid in rig.bed.running() {
                kill(pid);
            }
            match billing.call_tool(charge()).await {
                Ok(answer) => {
                    assert_eq!(answer.generation().number(), 2);
                    assert_eq!(rig.bed.ran("charge"), 1);
                }
                Err(error) => {
                    assert_eq!(error.outcome(), Outcome::Unknown);
                    assert_eq!(rig.bed.ran("charge"), 0);
                }
            }
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn o3_a_reset_before_any_header_is_not_taken_for_not_sent() {
    for era in eras() {
        bounded(async {
            let rig = Rig::new(Wire::Http, &era, at_charge(json!(["ledger", "reset"]))).await;
            let billing = rig.open().await;
            let error = lose_a_charge(&rig, &billing).await;
            assert!(matches!(
                cause_of(&error),
                UnknownCause::Wire(WireFault::ExchangeBroke(_))
            ));
            assert!(cause::<WireFault>(&error).is_some());
            assert_next_runs_in(&rig, &billing, 2).await;
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn o4_where_nothing_listens_nothing_is_sent() {
    for era in eras() {
        bounded(async {
            let mut rig = Rig::new(Wire::Http, &era, json!({})).await;
            rig.http.as_mut().unwrap().kill();
            let billing = rig.open().await;
            let error = billing.call_tool(charge()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
            let CallError::NotSent(not_sent) = &error else {
                panic!("{error}")
            };
            assert!(matches!(not_sent.reason, NotSentReason::StartFailed(_)));
            let start = cause::<StartError>(&error).unwrap();
            assert!(matches!(start.failure, StartFailure::Unreachable(_)));
            assert_discreet(&error);
            assert_eq!(error.about().attempts, 0);
            assert_eq!(rig.bed.ran("charge"), 0);
            rig.finish().await;
        })
        .await;
    }
}

/// The same in a session that was live. The server keeps no connection open, so that each request
/// makes its own: a dead one out of the pool would leave the outcome unknown.
#[tokio::test]
async fn o4_a_live_session_whose_server_went_sends_nothing() {
    let answer = |extra: Value| {
        let mut answer = json!({"status": 200, "body": "$answer", "close": true,
            "content_type": "application/json"});
        answer["session"] = extra;
        json!([{"http": answer}])
    };
    let script = json!({"rules": [
        {"on": "initialize", "do": answer(json!(true))},
        {"on": "server/discover", "do": answer(json!(false))},
        {"on": "tools/call", "tool": "echo", "do": answer(json!(false))},
        {"on": "notifications/initialized", "do": [{"http": {"status": 202, "close": true}}]},
        {"on": "GET", "do": [{"http": {"status": 405, "close": true}}]}
    ]});
    for era in eras() {
        bounded(async {
            let mut rig = Rig::new(Wire::Http, &era, script.clone()).await;
            let billing = rig.open().await;
            echo(&billing).await.unwrap();
            rig.http.as_mut().unwrap().kill();
            let error = billing.call_tool(charge()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
            assert!(error.source().is_some(), "{error}");
            assert_discreet(&error);
            assert_eq!(rig.bed.ran("charge"), 0);
            let address = rig.http.as_ref().unwrap().addr.clone();
            rig.http = Some(rig.bed.http_at(&address).await);
            let answer = billing.call_tool(charge()).await.unwrap();
            assert!(answer.generation().number() >= 2);
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn o5_a_404_to_a_live_session_is_not_sent_again_by_any_layer() {
    bounded(async {
        let steps = json!(["ledger", {"expire_session": true}, {"http": {"status": 404}}]);
        let rig = Rig::new(Wire::Http, &initialize(), at_charge(steps)).await;
        let billing = rig.open().await;
        let error = lose_a_charge(&rig, &billing).await;
        let lost = Loss::Terminated { status: Some(404) };
        assert_eq!(*cause_of(&error), UnknownCause::SessionEnded(lost));
        assert_eq!(error.http_status(), Some(404));
        assert_eq!(
            rig.bed.read("initialize"),
            1,
            "nothing reconnects by itself"
        );
        assert_next_runs_in(&rig, &billing, 2).await;
        rig.finish().await;
    })
    .await;
}

/// In 2026-07-28 there is no session that a 404 could be about: the server refuses the request.
#[tokio::test]
async fn o5_a_404_without_a_session_is_a_refusal() {
    bounded(async {
        let script = at_charge(json!([{"http": {"status": 404}}]));
        let rig = Rig::new(Wire::Http, &Era::Discover, script).await;
        let billing = rig.open().await;
        let error = billing.call_tool(charge()).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
        assert_eq!(error.http_status(), Some(404));
        assert_discreet(&error);
        assert_eq!(rig.bed.ran("charge"), 0);
        assert_eq!(rig.bed.read("tools/call"), 1);
        assert_eq!(echo(&billing).await.unwrap().generation().number(), 1);
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn o6_a_status_that_says_nothing_leaves_the_outcome_unknown() {
    for era in eras() {
        for status in [408_u16, 500, 502, 503, 504] {
            bounded(async {
                let answer = json!({"status": status, "headers": {"Retry-After": "7"}});
                let script = at_charge(json!(["ledger", {"http": answer}]));
                let rig = Rig::new(Wire::Http, &era, script).await;
                let billing = rig.open().await;
                let error = lose_a_charge(&rig, &billing).await;
                assert_eq!(*cause_of(&error), UnknownCause::Status(status));
                assert_eq!(error.http_status(), Some(status));
                assert_eq!(error.retry_after(), Some("7"));
                assert_next_runs_in(&rig, &billing, 2).await;
                rig.finish().await;
            })
            .await;
        }
    }
}

/// Over HTTP in 2026-07-28 the error travels with a status of 400, elsewhere with 200.
#[tokio::test]
async fn o7_a_servers_own_error_passes_through_whole_and_keeps_the_session() {
    let error = json!({"code": -32602, "message": "no such customer", "data": {"field": "to"}});
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let steps = match (wire, &era) {
                    (Wire::Http, Era::Discover) => {
                        let body = json!({"jsonrpc": "2.0", "id": "$id", "error": error});
                        json!([{"http": {"status": 400, "body": body,
                            "content_type": "application/json"}}])
                    }
                    _ => json!([{"error": error}]),
                };
                let rig = Rig::new(wire, &era, at_charge(steps)).await;
                let billing = rig.open().await;
                let rejected = billing.call_tool(charge()).await.unwrap_err();
                assert_eq!(rejected.outcome(), Outcome::Rejected, "{rejected}");
                let whole = ServerError {
                    code: -32602,
                    message: "no such customer".into(),
                    data: Some(json!({"field": "to"})),
                };
                assert_eq!(rejected.server_error(), Some(&whole));
                assert_eq!(cause::<ServerError>(&rejected), Some(&whole));
                assert_discreet(&rejected);
                assert_eq!(rig.bed.read("tools/call"), 1);
                assert_eq!(echo(&billing).await.unwrap().generation().number(), 1);
                rig.finish().await;
            })
            .await;
        }
    }
}

/// An error that is no refusal is the server's answer: what it did before stands.
#[tokio::test]
async fn o7_another_error_of_the_servers_is_a_failure_whose_effect_may_stand() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let failure = json!({"code": -32603, "message": format!("card {SECRET}")});
                let script = at_charge(json!(["ledger", {"error": failure}]));
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open().await;
                let failed = billing.call_tool(charge()).await.unwrap_err();
                assert_eq!(failed.outcome(), Outcome::Failed, "{failed}");
                assert_eq!(failed.server_error().unwrap().code, -32603);
                assert!(!failed.to_string().contains(SECRET), "{failed}");
                assert_ran_once(&rig);
                assert_next_runs_in(&rig, &billing, 1).await;
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn o8_hints_that_claim_idempotence_authorise_nothing() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let steps = match wire {
                    Wire::Stdio => json!(["ledger", {"exit": 1}]),
                    Wire::Http => json!(["ledger", "reset"]),
                };
                let mut script = at_charge(steps);
                script["tools"] = json!([{"name": "charge", "annotations": {
                    "readOnlyHint": true, "idempotentHint": true, "destructiveHint": false}}]);
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open().await;
                let tools = billing.list_tools(Page::first()).await.unwrap().tools;
                let hints = tools.iter().find(|t| t.name == "charge");
                let hints = hints.and_then(|t| t.annotations.clone()).unwrap();
                assert_eq!(hints.read_only_hint, Some(true));
                assert_eq!(hints.idempotent_hint, Some(true));
                lose_a_charge(&rig, &billing).await;
                assert_next_runs_in(&rig, &billing, 2).await;
                rig.finish().await;
            })
            .await;
        }
    }
}

/// A task may have been created. Whether it was is for the caller to find out.
#[tokio::test]
async fn o10_a_lost_task_creating_call_creates_no_second_task() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let steps = match wire {
                    Wire::Stdio => json!(["ledger", {"exit": 1}]),
                    Wire::Http => json!(["ledger", "reset"]),
                };
                let mut script = at_charge(steps);
                script["tools"] = json!([{"name": "charge",
                    "execution": {"taskSupport": "required"}}]);
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open().await;
                lose_a_charge(&rig, &billing).await;
                assert_next_runs_in(&rig, &billing, 2).await;
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn o13_an_error_that_says_the_session_is_over_ends_the_session() {
    let over = json!({"code": -32001, "message": "Session terminated"});
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let script = at_charge(json!(["ledger", {"error": over}]));
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open().await;
                let error = lose_a_charge(&rig, &billing).await;
                assert!(matches!(
                    cause_of(&error),
                    UnknownCause::SessionEndedByServer(_)
                ));
                let server = cause::<ServerError>(&error).unwrap();
                assert_eq!(server.code, -32001);
                assert_eq!(server.message, "Session terminated");
                assert_next_runs_in(&rig, &billing, 2).await;
                rig.finish().await;
            })
            .await;
        }
    }
}

/// Several servers send it with a status of 400.
#[tokio::test]
async fn o13_the_same_inside_a_400_ends_the_session_too() {
    for era in eras() {
        bounded(async {
            let body = json!({"jsonrpc": "2.0", "id": "$id",
                "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}});
            let answer = json!({"status": 400, "body": body, "content_type": "application/json"});
            let script = at_charge(json!(["ledger", {"http": answer}]));
            let rig = Rig::new(Wire::Http, &era, script).await;
            let billing = rig.open().await;
            let error = lose_a_charge(&rig, &billing).await;
            assert!(matches!(
                cause_of(&error),
                UnknownCause::SessionEndedByServer(_)
            ));
            assert_eq!(error.http_status(), Some(400));
            assert_next_runs_in(&rig, &billing, 2).await;
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn o14_a_401_is_a_refusal_with_its_challenge_and_nothing_is_sent_again() {
    let challenge = r#"Bearer realm="billing", error="invalid_token""#;
    for era in eras() {
        bounded(async {
            let headers = json!({"WWW-Authenticate": challenge, "Retry-After": "3"});
            let script = at_charge(json!([{"http": {"status": 401, "headers": headers}}]));
            let rig = Rig::new(Wire::Http, &era, script).await;
            let spec = HttpSpec::new(rig.http.as_ref().unwrap().url()).bearer("old-token");
            let spec = mcp_supervisor::ConnectionSpec::from(spec).era(era.clone());
            let billing = rig.open_with(spec).await;
            let error = billing.call_tool(charge()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Rejected, "{error}");
            let CallError::Rejected(rejected) = &error else {
                panic!("{error}")
            };
            assert_eq!(rejected.challenge.as_deref(), Some(challenge));
            assert_eq!(error.http_status(), Some(401));
            assert_eq!(error.retry_after(), Some("3"));
            assert!(error.source().is_some(), "{error}");
            assert_discreet(&error);
            assert!(!format!("{error:?}").contains("old-token"));
            assert_eq!(rig.bed.ran("charge"), 0);
            assert_eq!(rig.bed.read("tools/call"), 1);
            assert_eq!(echo(&billing).await.unwrap().generation().number(), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn o15_a_stream_that_ends_or_breaks_without_the_answer_leaves_the_outcome_unknown() {
    for era in eras() {
        for end in ["close", "cut", "reset"] {
            bounded(async {
                let script = at_charge(json!(["ledger", {"sse": [{"comment": "open"}, end]}]));
                let rig = Rig::new(Wire::Http, &era, script).await;
                let billing = rig.open().await;
                let error = lose_a_charge(&rig, &billing).await;
                assert!(
                    matches!(cause_of(&error), UnknownCause::Wire(_)),
                    "{end}: {error}"
                );
                assert!(cause::<WireFault>(&error).is_some());
                assert_next_runs_in(&rig, &billing, 2).await;
                rig.finish().await;
            })
            .await;
        }
    }
}

/// A stream that can be resumed is resumed, a bounded number of times, by GETs and never by
/// sending the call again.
#[tokio::test]
async fn o15_resuming_a_stream_does_not_send_the_call_again() {
    bounded(async {
        let script = at_charge(json!(["ledger", {"sse": [
            {"id": "e1", "retry": 10, "data": ""}, "close"]}]));
        let rig = Rig::new(Wire::Http, &initialize(), script).await;
        let billing = rig.open().await;
        lose_a_charge(&rig, &billing).await;
        let resumed = |rig: &Rig| {
            let wire = rig.bed.wire();
            wire.iter().filter(|read| read.rest.len() > 2).count()
        };
        until("it was resumed", || resumed(&rig) > 0).await;
        assert!(resumed(&rig) <= 3, "the default limit");
        assert_next_runs_in(&rig, &billing, 2).await;
        rig.finish().await;
    })
    .await;
}
