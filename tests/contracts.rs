//! What a client's own contract allows after an answer was lost, and what it does not.

mod support;

use std::time::{Duration, Instant};

use mcp_supervisor::{
    CallError, CancellationToken, Connection, ConnectionSpec, Era, IdempotencyKey, LentSpec,
    Outcome, Received, ToolCall, ToolContract, What,
    error::{InvalidRequest, NotSentReason, Unsettled},
    event::Ground,
    policy::{Backoff, Repeats},
};
use serde_json::{Value, json};
use support::{
    Bed, bounded, initialize,
    lent::lent_stdio,
    rig::{Rig, SECRET, WIRES, Wire, assert_discreet, echo, eras},
    until,
};

fn key() -> IdempotencyKey {
    "order-1001".parse().unwrap()
}

fn charge() -> ToolCall {
    let arguments = json!({"amount": 1999, "card": SECRET});
    ToolCall::new("charge", arguments).idempotency_key(key())
}

/// Three attempts with hardly a wait between them.
fn quick() -> Repeats {
    Repeats {
        max_attempts: 3,
        backoff: Backoff {
            base: Duration::from_millis(1),
            cap: Duration::from_millis(10),
        },
    }
}

fn keyed() -> ToolContract {
    ToolContract::keyed("key")
}

fn spec(rig: &Rig, contract: ToolContract) -> ConnectionSpec {
    rig.spec().contract("charge", contract).repeats(quick())
}

fn session_over() -> Value {
    json!({"error": {"code": -32001, "message": "Session terminated"}})
}

fn status(status: u16, retry_after: &str) -> Value {
    json!({"http": {"status": status, "headers": {"Retry-After": retry_after}}})
}

/// A script that loses the first charge after its effect, and no other.
fn losing_the_first() -> Value {
    json!({"rules": [{"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1,
        "do": ["ledger", session_over()]}]})
}

/// Calls under a contract and gets no answer. The effects are the attempts, and no text shows the
/// arguments.
async fn unsettled(connection: &Connection, call: ToolCall) -> (CallError, Option<Unsettled>) {
    let error = connection.call_tool(call).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert!(std::error::Error::source(&error).is_some(), "{error}");
    assert_discreet(&error);
    let CallError::Unknown(unknown) = &error else {
        panic!("{error}")
    };
    let unsettled = unknown.unsettled.clone();
    (error, unsettled)
}

#[tokio::test]
async fn keyed_repeats_with_the_same_key_and_the_same_arguments() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let rig = Rig::new(wire, &era, losing_the_first()).await;
                let billing = rig.open_with(spec(&rig, keyed())).await;
                let answer = billing.call_tool(charge()).await.unwrap();
                assert_eq!(answer.attempts(), 2);
                assert!(!answer.was_looked_up());
                assert_eq!(answer.generation().number(), 2);
                let effects = rig.bed.effects();
                assert_eq!(effects.len(), 2);
                assert_eq!(effects[0].key, "order-1001", "the runtime filled it in");
                assert_eq!(effects[1].key, effects[0].key);
                assert_eq!(effects[1].arguments, effects[0].arguments);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn keyed_without_a_key_mints_one_for_all_attempts_and_tells_it() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), losing_the_first()).await;
        let billing = rig.open_with(spec(&rig, keyed())).await;
        let call = ToolCall::new("charge", json!({"amount": 1}));
        let answer = billing.call_tool(call).await.unwrap();
        assert_eq!(answer.attempts(), 2);
        let effects = rig.bed.effects();
        assert_eq!(effects.len(), 2);
        assert_eq!(effects[1].arguments, effects[0].arguments);
        let minted = answer.key().expect("it was minted").as_str();
        assert_eq!((&*effects[0].key, &*effects[1].key), (minted, minted));
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_call_tells_the_key_that_was_minted_for_it_and_shows_it_nowhere() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), losing_the_first()).await;
        let spec = spec(&rig, keyed()).repeats(Repeats {
            max_attempts: 1,
            ..quick()
        });
        let billing = rig.open_with(spec).await;
        let call = ToolCall::new("charge", json!({"amount": 1}));
        let (error, why) = unsettled(&billing, call).await;
        assert_eq!(why, Some(Unsettled::Spent));
        let key = error.key().expect("it was minted").as_str();
        assert_eq!(rig.bed.effects()[0].key, key, "it is what the server knows");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains(key), "{text}");
        }
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn keyed_sends_nothing_when_the_caller_set_another_key_itself() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), json!({})).await;
        let billing = rig.open_with(spec(&rig, keyed())).await;
        let call = ToolCall::new("charge", json!({"key": "another"})).idempotency_key(key());
        let error = billing.call_tool(call).await.unwrap_err();
        let CallError::NotSent(not_sent) = &error else {
            panic!("{error}")
        };
        let conflict = NotSentReason::Invalid(InvalidRequest::KeyConflict);
        assert_eq!(not_sent.reason.to_string(), conflict.to_string());
        assert_eq!(rig.bed.read("tools/call"), 0);
        // Nor does a key come from the arguments, which a model may have written.
        let call = ToolCall::new("charge", json!({"key": "another"}));
        let error = billing.call_tool(call).await.unwrap_err();
        assert!(
            error.to_string().contains("already set to something else"),
            "{error}"
        );
        assert_eq!(rig.bed.read("tools/call"), 0);
        let call = ToolCall::new("charge", json!({"key": "order-1001"})).idempotency_key(key());
        billing.call_tool(call).await.unwrap();
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn what_the_client_vouches_for_as_read_only_or_idempotent_is_repeated() {
    for contract in [ToolContract::ReadOnly, ToolContract::Idempotent] {
        for wire in WIRES {
            bounded(async {
                let rig = Rig::new(wire, &Era::Discover, losing_the_first()).await;
                let spec = rig
                    .spec()
                    .contract("char*", contract.clone())
                    .repeats(quick());
                let billing = rig.open_with(spec).await;
                let answer = billing.call_tool(charge()).await.unwrap();
                assert_eq!(answer.attempts(), 2);
                let effects = rig.bed.effects();
                assert_eq!(effects.len(), 2);
                assert_eq!(effects[0].arguments, effects[1].arguments);
                assert_eq!(effects[0].key, "-", "the key is for keyed tools only");
                rig.finish().await;
            })
            .await;
        }
    }
}

/// The contract of another tool is no contract.
#[tokio::test]
async fn a_contract_holds_for_the_tools_that_it_names() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), losing_the_first()).await;
        let spec = rig.spec().contract("refund", ToolContract::Idempotent);
        let billing = rig.open_with(spec).await;
        let (_, why) = unsettled(&billing, charge()).await;
        assert_eq!(why, None);
        assert_eq!(rig.bed.ran("charge"), 1);
        rig.finish().await;
    })
    .await;
}

/// Where a session has a tool list of its own: each stdio process, and each HTTP session.
fn sessions_with_lists() -> [(Wire, Era); 3] {
    [
        (Wire::Stdio, initialize()),
        (Wire::Stdio, Era::Discover),
        (Wire::Http, initialize()),
    ]
}

#[tokio::test]
async fn a_tool_that_changed_or_vanished_stops_the_repeat() {
    let changed = json!({"name": "charge", "generation": [2, 3], "inputSchema": {
        "type": "object", "properties": {"key": {"type": "integer"}}}});
    let vanished = json!({"name": "charge", "generation": [2, 3], "remove": true});
    for (wire, era) in sessions_with_lists() {
        for tool in [&changed, &vanished] {
            for contract in [keyed(), ToolContract::Idempotent, ToolContract::ReadOnly] {
                bounded(async {
                    let mut script = losing_the_first();
                    script["tools"] = json!([tool]);
                    let rig = Rig::new(wire, &era, script).await;
                    let billing = rig.open_with(spec(&rig, contract)).await;
                    let (error, why) = unsettled(&billing, charge()).await;
                    assert_eq!(why, Some(Unsettled::ToolChanged), "{error}");
                    assert!(error.to_string().contains("changed or vanished"), "{error}");
                    assert_eq!(rig.bed.ran("charge"), 1);
                    assert_eq!(rig.bed.read("tools/call"), 1);
                    rig.finish().await;
                })
                .await;
            }
        }
    }
}

/// The session on which the tool was compared dies at once. The next one has another tool.
#[tokio::test]
async fn a_repeat_does_not_move_to_a_session_whose_tool_was_not_compared() {
    for era in eras() {
        bounded(async {
            let mut script = losing_the_first();
            let rules = script["rules"].as_array_mut().unwrap();
            rules.push(json!({"on": "tools/list", "generation": 2, "do": ["answer", {"exit": 0}]}));
            script["tools"] = json!([{"name": "charge", "generation": [3, 4, 5, 6], "inputSchema": {
                "type": "object", "properties": {"key": {"type": "integer"}}}}]);
            let rig = Rig::new(Wire::Stdio, &era, script).await;
            let spec = spec(&rig, keyed()).repeats(Repeats {
                max_attempts: 5,
                ..quick()
            });
            let billing = rig.open_with(spec).await;
            let (_, why) = unsettled(&billing, charge()).await;
            assert_eq!(why, Some(Unsettled::ToolChanged));
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

/// A server that does not come back cannot be compared, which is another thing than a change.
#[tokio::test]
async fn a_schema_that_cannot_be_read_stops_the_repeat_and_is_not_called_a_change() {
    for era in eras() {
        bounded(async {
            let mut script = losing_the_first();
            let rules = script["rules"].as_array_mut().unwrap();
            rules.push(json!({"on": "start", "generation": [2, 3, 4], "do": [{"exit": 3}]}));
            let rig = Rig::new(Wire::Stdio, &era, script).await;
            let billing = rig.open_with(spec(&rig, keyed())).await;
            let (error, why) = unsettled(&billing, charge()).await;
            let Some(Unsettled::SchemaUnknown { why }) = why else {
                panic!("{error}")
            };
            assert!(why.contains("exit status: 3"), "{why}");
            assert!(error.to_string().contains(&*why), "{error}");
            assert_eq!(error.about().attempts, 1);
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

/// A server ignores what it does not know, and would run the repeat as a call of its own.
#[tokio::test]
async fn a_key_for_which_the_tool_has_no_argument_is_no_ground_for_a_repeat() {
    for wire in WIRES {
        bounded(async {
            let mut script = losing_the_first();
            script["tools"] = json!([{"name": "charge", "inputSchema": {
                "type": "object", "properties": {"amount": {"type": "integer"}}}}]);
            let rig = Rig::new(wire, &initialize(), script).await;
            let mut events = rig.supervisor.events();
            let billing = rig.open_with(spec(&rig, keyed())).await;
            let (error, why) = unsettled(&billing, charge()).await;
            let argument = "key".to_owned();
            assert_eq!(why, Some(Unsettled::NoSuchArgument { argument }), "{error}");
            assert_eq!((rig.bed.ran("charge"), error.about().attempts), (1, 1));
            // Whoever made the mistake is told before anything is lost.
            let lost = error.operation();
            let mut told = Vec::new();
            loop {
                let Some(Received::Event(event)) = events.next().await else {
                    panic!("an event was missed")
                };
                match &event.what {
                    What::KeyNotTaken {
                        operation,
                        argument,
                    } if *operation == lost => told.push(argument.clone()),
                    What::OutcomeUnknown { operation, .. } if *operation == lost => break,
                    _ => {}
                }
            }
            assert_eq!(told, ["key"]);
            rig.finish().await;
        })
        .await;
    }
}

/// The first attempt may have run, whatever the server says about the second.
#[tokio::test]
async fn a_repeat_that_is_refused_leaves_the_outcome_unknown() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let mut script = losing_the_first();
                let rules = script["rules"].as_array_mut().unwrap();
                rules.push(json!({"on": "tools/call", "tool": "charge",
                    "do": [{"error": {"code": -32602, "message": "duplicate"}}]}));
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open_with(spec(&rig, keyed())).await;
                let (error, why) = unsettled(&billing, charge()).await;
                assert_eq!(why, Some(Unsettled::RepeatRejected), "{error}");
                assert_eq!(rig.bed.ran("charge"), 1);
                assert_eq!(rig.bed.read("tools/call"), 2);
                rig.finish().await;
            })
            .await;
        }
    }
}

/// The script of a tool whose outcome can be looked up: the answer to the first charge is lost,
/// after its effect or without one.
fn losing_with_effect(effect: bool) -> Value {
    let mut steps = vec![session_over()];
    if effect {
        steps.insert(0, json!("ledger"));
    }
    json!({"rules": [{"on": "tools/call", "tool": "charge", "do": steps}]})
}

fn looked_up_for(absence_final_after: Option<Duration>) -> ToolContract {
    ToolContract::Status {
        tool: "lookup".into(),
        argument: "key".into(),
        absence_final_after,
    }
}

/// The charge carries its key itself: the contract gives it to the look-up only.
fn charge_with_key() -> ToolCall {
    ToolCall::new("charge", json!({"key": "order-1001"})).idempotency_key(key())
}

#[tokio::test]
async fn status_asks_instead_of_repeating_and_what_is_found_is_the_answer() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let rig = Rig::new(wire, &era, losing_with_effect(true)).await;
                let billing = rig.open_with(spec(&rig, looked_up_for(None))).await;
                let answer = billing.call_tool(charge_with_key()).await.unwrap();
                assert!(answer.was_looked_up());
                assert_eq!(answer.attempts(), 1);
                assert_eq!(answer.generation().number(), 2);
                assert_eq!(answer.structured().unwrap()["found"], json!(true));
                assert_eq!(rig.bed.ran("charge"), 1);
                assert_eq!(rig.bed.ran("lookup"), 1);
                assert_eq!(rig.bed.read("tools/call"), 2);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn what_a_status_tool_does_not_know_stays_unknown() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let rig = Rig::new(wire, &era, losing_with_effect(false)).await;
                let billing = rig.open_with(spec(&rig, looked_up_for(None))).await;
                let (_, why) = unsettled(&billing, charge_with_key()).await;
                assert_eq!(why, Some(Unsettled::Absent));
                assert_eq!(rig.bed.ran("charge"), 0);
                assert_eq!(rig.bed.read("tools/call"), 2);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn absence_is_final_only_after_the_time_that_the_client_states() {
    const FINAL: Duration = Duration::from_millis(800);
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let rig = Rig::new(wire, &era, losing_with_effect(false)).await;
                let billing = rig.open_with(spec(&rig, looked_up_for(Some(FINAL)))).await;
                echo(&billing).await.unwrap();
                let began = Instant::now();
                let error = billing.call_tool(charge_with_key()).await.unwrap_err();
                assert!(began.elapsed() >= FINAL, "{:?}", began.elapsed());
                let CallError::NotSent(not_sent) = &error else {
                    panic!("{error}")
                };
                assert!(matches!(not_sent.reason, NotSentReason::AbsenceIsFinal));
                assert!(rig.bed.ran("lookup") >= 1);
                let charges = rig.bed.read("tools/call") - rig.bed.ran("lookup") - 1;
                assert_eq!(charges, 1, "beside the look-ups and the echo");
                rig.finish().await;
            })
            .await;
        }
    }
}

/// There is not enough time to wait until the absence would be final.
#[tokio::test]
async fn absence_that_is_not_final_within_the_deadline_stays_unknown() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), losing_with_effect(false)).await;
        let contract = looked_up_for(Some(Duration::from_secs(3_600)));
        let billing = rig.open_with(spec(&rig, contract)).await;
        let (_, why) = unsettled(&billing, charge_with_key()).await;
        assert_eq!(why, Some(Unsettled::Absent));
        assert_eq!(rig.bed.ran("lookup"), 1);
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_status_tool_that_cannot_be_asked_settles_nothing() {
    for wire in WIRES {
        bounded(async {
            let mut script = losing_with_effect(true);
            let rules = script["rules"].as_array_mut().unwrap();
            rules.push(json!({"on": "tools/call", "tool": "lookup",
                "do": [{"error": {"code": -32603, "message": "no database"}}]}));
            let rig = Rig::new(wire, &initialize(), script).await;
            let billing = rig.open_with(spec(&rig, looked_up_for(None))).await;
            let (_, why) = unsettled(&billing, charge_with_key()).await;
            assert!(
                matches!(&why, Some(Unsettled::LookUpFailed { why }) if why.contains("-32603")),
                "{why:?}"
            );
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_status_contract_without_a_key_has_nothing_to_ask_for() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), losing_with_effect(true)).await;
        let billing = rig.open_with(spec(&rig, looked_up_for(None))).await;
        let (_, why) = unsettled(&billing, ToolCall::new("charge", json!({}))).await;
        assert_eq!(why, Some(Unsettled::NoKey));
        assert_eq!(rig.bed.read("tools/call"), 1);
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn retry_after_is_honoured_when_it_fits() {
    for era in eras() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "nth": 1,
                "do": ["ledger", status(503, "1")]}]});
            let rig = Rig::new(Wire::Http, &era, script).await;
            let billing = rig.open_with(spec(&rig, keyed())).await;
            let began = Instant::now();
            let answer = billing.call_tool(charge()).await.unwrap();
            assert!(began.elapsed() >= Duration::from_secs(1));
            assert_eq!(answer.attempts(), 2);
            assert_eq!(rig.bed.ran("charge"), 2);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn retry_after_beyond_the_deadline_stops_the_repeat_at_once() {
    for era in eras() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                "do": ["ledger", status(503, "3600")]}]});
            let rig = Rig::new(Wire::Http, &era, script).await;
            let billing = rig.open_with(spec(&rig, keyed())).await;
            let began = Instant::now();
            let (error, why) = unsettled(&billing, charge()).await;
            assert!(began.elapsed() < Duration::from_secs(20), "of sixty");
            assert_eq!(why, Some(Unsettled::Spent));
            assert_eq!(error.retry_after(), Some("3600"));
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

/// A permission, a limit, invalid arguments, and a failure of the tool's own.
#[tokio::test]
async fn what_the_server_rejected_or_failed_is_never_repeated() {
    let error = |code: i64| json!({"error": {"code": code, "message": "no"}});
    let refusals = [
        (status(401, "0"), Outcome::Rejected),
        (status(403, "0"), Outcome::Rejected),
        (status(429, "0"), Outcome::Rejected),
        (error(-32602), Outcome::Rejected),
        (error(-32603), Outcome::Failed),
        (error(-32000), Outcome::Failed),
    ];
    for era in eras() {
        for contract in [keyed(), ToolContract::Idempotent, looked_up_for(None)] {
            for (steps, outcome) in &refusals {
                bounded(async {
                    let script = json!({"rules": [
                        {"on": "tools/call", "tool": "charge", "do": [steps]}]});
                    let rig = Rig::new(Wire::Http, &era, script).await;
                    let billing = rig.open_with(spec(&rig, contract.clone())).await;
                    let error = billing.call_tool(charge()).await.unwrap_err();
                    assert_eq!(error.outcome(), *outcome, "{error}");
                    assert_eq!(rig.bed.read("tools/call"), 1, "{steps}");
                    rig.finish().await;
                })
                .await;
            }
        }
    }
}

#[tokio::test]
async fn the_attempts_of_a_contract_are_capped() {
    for wire in WIRES {
        for era in eras() {
            bounded(async {
                let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                    "do": ["ledger", session_over()]}]});
                let rig = Rig::new(wire, &era, script).await;
                let billing = rig.open_with(spec(&rig, keyed())).await;
                let (error, why) = unsettled(&billing, charge()).await;
                assert_eq!(why, Some(Unsettled::Spent));
                assert_eq!(error.about().attempts, 3);
                assert_eq!(rig.bed.ran("charge"), 3);
                assert_eq!(rig.bed.read("tools/call"), 3);
                rig.finish().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn repeats_end_with_the_total_deadline() {
    const TOTAL: Duration = Duration::from_millis(2_500);
    for era in eras() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                "do": ["ledger", status(503, "1")]}]});
            let rig = Rig::new(Wire::Http, &era, script).await;
            let many = Repeats {
                max_attempts: 1_000,
                ..quick()
            };
            let billing = rig.open_with(spec(&rig, keyed()).repeats(many)).await;
            echo(&billing).await.unwrap();
            let (error, _) = unsettled(&billing, charge().deadline(TOTAL)).await;
            let attempts = error.about().attempts as usize;
            assert!((1..=3).contains(&attempts), "one a second: {attempts}");
            assert_eq!(rig.bed.ran("charge"), attempts);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_caller_that_cancels_does_not_wait_for_the_repeat() {
    for era in eras() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
                "do": ["ledger", status(503, "30")]}]});
            let rig = Rig::new(Wire::Http, &era, script).await;
            let billing = rig.open_with(spec(&rig, keyed())).await;
            let token = CancellationToken::new();
            let began = Instant::now();
            let call = unsettled(&billing, charge().cancelled_by(token.clone()));
            let cancel = async {
                until("it ran", || rig.bed.ran("charge") == 1).await;
                until("it was answered", || billing.status().in_flight == 0).await;
                token.cancel();
            };
            let ((error, why), ()) = tokio::join!(call, cancel);
            assert!(began.elapsed() < Duration::from_secs(25), "of thirty");
            assert_eq!(why, Some(Unsettled::Interrupted), "{error}");
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn each_attempt_is_an_event_with_an_identity_of_its_own() {
    bounded(async {
        let rig = Rig::new(Wire::Stdio, &initialize(), losing_the_first()).await;
        let billing = rig.open_with(spec(&rig, keyed())).await;
        let mut events = rig.supervisor.events();
        let answer = billing.call_tool(charge()).await.unwrap();
        let (mut attempts, mut grounds) = (Vec::new(), Vec::new());
        while attempts.len() < 2 {
            let Some(Received::Event(event)) = events.next().await else {
                panic!("an event was missed")
            };
            if let What::AttemptStarted {
                operation,
                attempt,
                generation,
                number,
                repeats,
                ..
            } = event.what
                && operation == answer.operation()
            {
                attempts.push((attempt, generation.number(), number));
                grounds.push(repeats);
            }
        }
        assert_eq!(grounds, [None, Some(Ground::Keyed)]);
        assert_ne!(attempts[0].0, attempts[1].0);
        assert_eq!((attempts[0].1, attempts[0].2), (1, 1));
        assert_eq!((attempts[1].1, attempts[1].2), (2, 2));
        rig.finish().await;
    })
    .await;
}

/// A contract widens what the runtime may send again, and not whose connection it is.
#[tokio::test]
async fn a_contract_repeats_nothing_on_a_lent_connection() {
    for era in eras() {
        for contract in [keyed(), ToolContract::Idempotent, looked_up_for(None)] {
            bounded(async {
                let bed = Bed::new(losing_the_first());
                let service = lent_stdio(&bed, era.clone()).await;
                let supervisor = mcp_supervisor::Supervisor::builder().start().await.unwrap();
                let rules = LentSpec::new()
                    .contract("charge", contract)
                    .repeats(quick());
                let lent = supervisor.lend_service("billing", &service, rules).await;
                let lent = lent.unwrap();
                let (error, why) = unsettled(&lent, charge()).await;
                assert_eq!(why, Some(Unsettled::CallerOwned));
                assert_eq!(error.about().attempts, 1);
                assert_eq!(bed.ran("charge"), 1);
                assert_eq!(bed.read("tools/call"), 1);
                assert_eq!(bed.pids().len(), 1);
                let _ = supervisor.shutdown(Duration::from_secs(1)).await;
                drop(service);
                bed.until_all_gone().await;
            })
            .await;
        }
    }
}
