//! Calls whose server asks for input before it goes on: one key, and one operation, for all rounds.

use mcp_supervisor::{
    AnswerKind, Era, Limits, Outcome, ToolCall,
    journal::{Fact, State},
    spec::Overload,
};
use serde_json::{Value, json};

use super::{history, record, state, with_journal};
use crate::support::{
    bounded,
    world::{WIRES, World},
};

fn question(state: &str) -> Value {
    json!({"result": {
        "resultType": "input_required",
        "requestState": state,
        "inputRequests": {"who": {"method": "elicitation/create", "params": {
            "message": "Who are you?",
            "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
        }}},
    }})
}

fn asks_twice() -> Value {
    json!({"rules": [
        {"on": "tools/call", "params": {"requestState": null}, "do": [question("one")]},
        {"on": "tools/call", "params": {"requestState": "one"}, "do": [question("two")]},
    ]})
}

#[tokio::test]
async fn a_question_is_no_stored_answer_and_whoever_brings_the_input_goes_on_with_the_operation() {
    for wire in WIRES {
        for by_key in [true, false] {
            bounded(async {
                let world = World::new(wire, Era::Discover, asks_twice()).await;
                let (supervisor, journal) = with_journal().await;
                let server = supervisor.open("server", world.spec()).await.unwrap();
                let mut call = ToolCall::new("charge", json!({"cents": 7}));
                if by_key {
                    call = call.idempotency_key("order-1".parse().unwrap());
                }
                let first = server.call_tool_once(call.clone()).await.unwrap();
                assert_eq!(first.kind(), AnswerKind::InputRequired);
                let operation = first.operation();
                if !by_key {
                    call = call.operation_id(operation);
                }
                // Nobody knows what the server has done so far.
                let kept = record(&journal, operation).await;
                assert_eq!(kept.state, State::OutcomeUnknown);
                let Fact::Without { failure, .. } = &kept.last().unwrap().fact else {
                    panic!("{kept:?}");
                };
                assert_eq!(failure.cause, "input_required");

                let mut answer = first;
                for _ in 0..2 {
                    assert_eq!(state(&journal, operation).await, State::OutcomeUnknown);
                    let asked = answer.input_required().expect("it asks");
                    let given = [("who".to_owned(), json!({"action": "decline"}))].into();
                    let next = call.clone().with_input(asked, given);
                    answer = server.call_tool_once(next).await.unwrap();
                    assert_eq!(answer.operation(), operation);
                    assert!(!answer.replayed());
                }
                assert_eq!(answer.kind(), AnswerKind::Complete);
                let kept = record(&journal, operation).await;
                assert_eq!(kept.state, State::Succeeded);
                let round = ["dispatching", "without"];
                let last = ["dispatching", "answered"];
                assert_eq!(history(&kept), [round, round, last].concat());
                assert_eq!(world.bed.ran("charge"), 1);

                let again = server.call_tool_once(call).await.unwrap();
                assert!(again.replayed());
                assert_eq!(again.kind(), AnswerKind::Complete);
                assert_eq!(world.bed.read("tools/call"), 3);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_round_that_finds_no_place_leaves_the_operation_to_the_next_who_brings_the_input() {
    for wire in WIRES {
        bounded(async {
            let mut script = asks_twice();
            let busy = json!({"on": "tools/call", "tool": "echo",
                "do": [{"touch": "running"}, {"wait_file": "go"}, "answer"]});
            script["rules"].as_array_mut().unwrap().insert(0, busy);
            let world = World::new(wire, Era::Discover, script).await;
            let (supervisor, journal) = with_journal().await;
            let limits = Limits {
                max_in_flight: 1,
                max_queued: 0,
                overload: Overload::Refuse,
                ..Limits::default()
            };
            let spec = world.spec().limits(limits);
            let server = supervisor.open("server", spec).await.unwrap();
            let call = ToolCall::new("charge", json!({"cents": 7}));
            let call = call.idempotency_key("order-1".parse().unwrap());
            let first = server.call_tool_once(call.clone()).await.unwrap();
            let operation = first.operation();

            let busy = ToolCall::new("echo", json!({}));
            let calling = server.share();
            let busy = tokio::spawn(async move { calling.call_tool(busy).await });
            world.bed.until_file("running").await;
            let asked = first.input_required().expect("it asks");
            let given = [("who".to_owned(), json!({"action": "decline"}))].into();
            let next = call.with_input(asked, given);
            let error = server.call_tool_once(next.clone()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent);
            world.bed.touch("go");
            busy.await.unwrap().unwrap();
            let answer = server.call_tool_once(next).await.unwrap();
            assert_eq!(answer.operation(), operation);
            assert_eq!(state(&journal, operation).await, State::OutcomeUnknown);
        })
        .await;
    }
}
