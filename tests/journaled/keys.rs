//! The same call once more: by its key, or by its operation id.

use std::time::Duration;

use mcp_supervisor::{
    CallError, IdempotencyKey, Outcome, ToolCall, ToolContract,
    error::{FirstCall, NotSentReason, UnknownCause},
    journal::{Ruling, State, Verdict},
    operation::OperationId,
};
use serde_json::{Value, json};

use super::{answers_on_go, record, state, with_journal};
use crate::support::{
    bounded,
    store::{Asked, watched},
    until,
    world::{World, charge, echo, everywhere, not_sent, unknown},
};

fn key() -> IdempotencyKey {
    "order-1001".parse().unwrap()
}

fn order(arguments: &str) -> ToolCall {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    ToolCall::new("charge", arguments).idempotency_key(key())
}

#[tokio::test]
async fn one_key_is_one_call_whatever_the_order_of_its_members_and_no_other_call() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let (supervisor, journal) = with_journal().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            let first = order(r#"{"amount": 1, "to": {"a": 1, "b": [1, 2]}}"#);
            let first = server.call_tool(first).await.unwrap();
            assert!(!first.replayed());
            assert_eq!(first.key(), Some(&key()));

            let again = order(r#"{"to":{"b":[1,2],"a":1},"amount":1}"#);
            let again = server.call_tool(again).await.unwrap();
            assert!(again.replayed());
            assert_eq!(again.operation(), first.operation());
            assert_eq!(again.generation(), first.generation());
            assert_eq!((again.key(), again.attempts()), (Some(&key()), 1));
            assert_eq!(again.text(), first.text());
            assert_eq!(again.structured(), first.structured());

            let other = order(r#"{"amount": 2, "to": {"a": 1, "b": [1, 2]}}"#);
            let error = server.call_tool(other).await.unwrap_err();
            let operation = first.operation();
            assert!(
                matches!(not_sent(&error), NotSentReason::OtherArguments { operation: of, first: FirstCall::Settled } if *of == operation),
                "{error:?}"
            );
            let text = error.to_string();
            assert!(text.contains(&operation.to_string()), "{text}");
            assert!(!text.contains("order-1001"), "{text}");
            assert!(journal.show(error.operation()).await.unwrap().is_none());
            assert_eq!((world.bed.ran("charge"), world.bed.read("tools/call")), (1, 1));

            // On another connection it is another key.
            let other = supervisor.open("other", world.spec()).await.unwrap();
            let answer = other.call_tool(order(r#"{"amount": 2}"#)).await.unwrap();
            assert!(!answer.replayed());
        })
        .await;
    }
}

#[tokio::test]
async fn a_stored_error_is_the_answer_to_the_same_key_as_well() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "do":
                ["ledger", {"error": {"code": -32050, "message": "card declined"}}]}]});
            let world = World::new(wire, era, script).await;
            let (supervisor, _) = with_journal().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            let first = server.call_tool(order("{}")).await.unwrap_err();
            let again = server.call_tool(order("{}")).await.unwrap_err();
            for error in [&first, &again] {
                assert_eq!(error.outcome(), Outcome::Failed);
                let said = error.server_error().unwrap();
                assert_eq!((said.code, &*said.message), (-32050, "card declined"));
                assert_eq!(error.operation(), first.operation());
                assert_eq!(error.key(), Some(&key()));
            }
            assert_eq!(world.bed.ran("charge"), 1);
        })
        .await;
    }
}

/// Nothing ran, and still the key is that first call's: which was answered, and the answer is kept.
#[tokio::test]
async fn a_call_that_is_corrected_after_a_tool_s_error_is_told_to_take_a_key_of_its_own() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "nth": 1, "do":
            [{"result": {"isError": true, "content": [
                {"type": "text", "text": "nothing was changed: the amount is no number"}]}}]}]});
        let world = World::new(wire, era, script).await;
        let (supervisor, _) = with_journal().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        let wrong = server.call_tool(order(r#"{"amount": "ten"}"#)).await;
        let wrong = wrong.unwrap();
        assert!(wrong.is_error());
        let right = r#"{"amount": 10}"#;
        let error = server.call_tool(order(right)).await.unwrap_err();
        let operation = wrong.operation();
        assert!(
            matches!(not_sent(&error), NotSentReason::OtherArguments { operation: of, first: FirstCall::Failed } if *of == operation),
            "{error:?}"
        );
        assert!(error.next_step().contains("a key of its own"), "{error}");
        let other = order(right).idempotency_key("order-1002".parse().unwrap());
        assert!(!server.call_tool(other).await.unwrap().is_error());
        assert_eq!(world.bed.ran("charge"), 1);
    })
    .await;
}

#[tokio::test]
async fn a_refused_call_frees_its_key() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "nth": 1, "do":
            [{"error": {"code": -32602, "message": "no such customer yet"}}]}]});
        let world = World::new(wire, era, script).await;
        let (supervisor, journal) = with_journal().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        let refused = server.call_tool(order("{}")).await.unwrap_err();
        assert_eq!(refused.outcome(), Outcome::Rejected);
        let answer = server.call_tool(order("{}")).await.unwrap();
        assert!(!answer.replayed());
        assert_ne!(answer.operation(), refused.operation());
        assert_eq!(state(&journal, refused.operation()).await, State::Rejected);
        assert_eq!(world.bed.ran("charge"), 1);
    })
    .await;
}

#[tokio::test]
async fn two_callers_with_one_key_at_once_are_one_request() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = answers_on_go(wire, era, json!("answer")).await;
            let (supervisor, journal, store) = watched().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..2 {
                let calling = server.share();
                callers.spawn(async move { calling.call_tool(order("{}")).await });
            }
            world.bed.until_file("running").await;
            // Each looks once, and whoever comes second is on its way to wait then, or waits.
            let mut finds = 0;
            until("both have looked", || {
                let asked = store.take();
                finds += asked.iter().filter(|asked| **asked == Asked::Find).count();
                finds >= 2
            })
            .await;
            world.bed.touch("go");
            let answers = callers.join_all().await;
            let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
            assert_eq!(answers[0].operation(), answers[1].operation());
            assert_eq!(answers[0].structured(), answers[1].structured());
            let replayed = answers.iter().filter(|answer| answer.replayed()).count();
            assert_eq!(replayed, 1);
            assert_eq!(
                (world.bed.ran("charge"), world.bed.read("tools/call")),
                (1, 1)
            );
            assert_eq!(
                state(&journal, answers[0].operation()).await,
                State::Succeeded
            );
        })
        .await;
    }
}

#[tokio::test]
async fn whoever_cannot_wait_for_the_same_call_is_told_its_operation() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = answers_on_go(wire, era, json!("answer")).await;
        let (supervisor, _) = with_journal().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        let calling = server.share();
        let first = tokio::spawn(async move { calling.call_tool(order("{}")).await });
        world.bed.until_file("running").await;
        let second = order("{}").deadline(Duration::from_millis(200));
        let error = server.call_tool(second).await.unwrap_err();
        world.bed.touch("go");
        let answer = first.await.unwrap().unwrap();
        let operation = answer.operation();
        assert!(
            matches!(not_sent(&error), NotSentReason::StillRuns { operation: of } if *of == operation),
            "{error:?}"
        );
        assert!(error.to_string().contains(&operation.to_string()), "{error}");
        assert_ne!(error.operation(), operation);
        assert_eq!(world.bed.read("tools/call"), 1);
    })
    .await;
}

#[tokio::test]
async fn an_unknown_outcome_stays_one_under_its_key_and_nothing_is_sent() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "do":
                ["ledger", {"error": {"code": -32001, "message": "Session terminated"}}]}]});
            let world = World::new(wire, era, script).await;
            let (supervisor, journal) = with_journal().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            let first = server.call_tool(order("{}")).await.unwrap_err();
            assert_eq!(first.outcome(), Outcome::Unknown);
            let next = first.next_step();
            assert!(next.starts_with("Resolve that operation in the journal"), "{next}");
            let again = server.call_tool(order("{}")).await.unwrap_err();
            assert_eq!(again.operation(), first.operation());
            assert!(
                matches!(unknown(&again), UnknownCause::InJournal { cause } if &**cause == "session_ended"),
                "{again:?}"
            );
            assert_eq!(again.key(), Some(&key()));
            assert_eq!(again.about().generation, first.about().generation);
            let texts = again.to_string();
            assert!(texts.contains("Resolve that operation in the journal"), "{texts}");
            assert_eq!((world.bed.ran("charge"), world.bed.read("tools/call")), (1, 1));
            assert_eq!(state(&journal, first.operation()).await, State::OutcomeUnknown);

            // Nor is another key what is advised to whoever comes with other arguments.
            let other = server.call_tool(order(r#"{"amount": 2}"#)).await.unwrap_err();
            let in_doubt = FirstCall::InDoubt;
            assert!(
                matches!(not_sent(&other), NotSentReason::OtherArguments { first, .. } if *first == in_doubt),
                "{other:?}"
            );
            assert!(other.next_step().contains("it may have run"), "{other}");

            for (outcome, failed) in [(Ruling::Succeeded(None), false), (Ruling::Failed, true)] {
                let key: IdempotencyKey = format!("order-{failed}").parse().unwrap();
                let call = || order("{}").idempotency_key(key.clone());
                let lost = server.call_tool(call()).await.unwrap_err().operation();
                let (who, why) = ("dana@example.com".to_owned(), "it is in the books".to_owned());
                journal.verdict(lost, Verdict { who, why, outcome }).await.unwrap();
                let error = server.call_tool(call()).await.unwrap_err();
                assert!(
                    matches!(not_sent(&error), NotSentReason::SettledByVerdict { operation, failed: so }
                        if *operation == lost && *so == failed),
                    "{error:?}"
                );
                assert!(error.to_string().contains("by somebody's verdict"), "{error}");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_minted_key_is_one_for_all_attempts_and_their_arguments_are_the_same_bytes() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"log_messages": true, "rules": [
                {"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1, "do":
                    ["ledger", {"error": {"code": -32001, "message": "Session terminated"}}]}]});
            let world = World::new(wire, era, script).await;
            let (supervisor, journal) = with_journal().await;
            let spec = world.spec().contract("charge", ToolContract::keyed("key"));
            let server = supervisor.open("server", spec).await.unwrap();
            let call = ToolCall::new("charge", json!({"z": 1.50, "amount": 7, "key": null}));
            let answer = server.call_tool(call).await.unwrap();
            assert_eq!(answer.attempts(), 2);
            let kept = record(&journal, answer.operation()).await;
            assert_eq!(kept.state, State::Succeeded);
            assert_eq!(kept.attempts(), 2);
            assert!(kept.intent.schema.is_some());
            assert_eq!(kept.intent.key.as_ref(), answer.key());
            let key = answer.key().unwrap().as_str();
            let effects = world.bed.effects();
            assert_eq!(effects.len(), 2);
            assert_eq!((&*effects[0].key, &*effects[1].key), (key, key));
            assert_eq!(effects[0].arguments, effects[1].arguments);
            let messages = world.bed.messages();
            let calls = messages.iter().filter(|m| m["method"] == "tools/call");
            let sent: Vec<_> = calls
                .map(|m| m["params"]["arguments"].to_string())
                .collect();
            assert_eq!(sent.len(), 2);
            assert_eq!(sent[0], sent[1]);

            // What the contract fills is no part of what is asked for, nor is the `null` that was there.
            let again = ToolCall::new("charge", json!({"z": 1.50, "amount": 7}));
            let again = again.idempotency_key(answer.key().unwrap().clone());
            let again = server.call_tool(again).await;
            assert!(again.unwrap().replayed());
            assert_eq!(world.bed.ran("charge"), 2);
        })
        .await;
    }
}

#[tokio::test]
async fn one_operation_id_is_one_call_too() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, json!({})).await;
        let (supervisor, _) = with_journal().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        let id = OperationId::mint();
        let first = server.call_tool(charge().operation_id(id)).await.unwrap();
        let again = server.call_tool(charge().operation_id(id)).await.unwrap();
        assert!(!first.replayed() && again.replayed());
        assert_eq!(again.operation(), id);
        for other in [
            echo().operation_id(id),
            ToolCall::new("charge", json!({"amount": 2})).operation_id(id),
            charge().operation_id(id).idempotency_key(key()),
        ] {
            let error: CallError = server.call_tool(other).await.unwrap_err();
            assert!(
                matches!(not_sent(&error), NotSentReason::IdentityTaken { operation } if *operation == id),
                "{error:?}"
            );
        }
        assert_eq!(world.bed.read("tools/call"), 1);
    })
    .await;
}
