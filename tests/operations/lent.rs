//! What is left of rounds and tasks on a connection whose client is somebody else's.

use mcp_supervisor::{
    AnswerKind, Era, PromptGet, TaskAwait, TaskCancel, ToolCall,
    error::{InputMissing, UnknownCause},
};
use serde_json::{Value, json};

use super::{
    rounds::{asks_twice, question},
    tasks::{created, done, working},
};
use crate::support::{
    bounded,
    lane::unknown_cause,
    world::{WIRES, World, lend, shut_down, supervisor},
};

/// The handler of a lent client is its owner's, and so are the answers.
#[tokio::test]
async fn a_lent_connection_gives_the_servers_question_to_the_caller_who_can_answer_it() {
    for wire in WIRES {
        for as_peer in [false, true] {
            bounded(async {
                let mut script = asks_twice();
                let rules = script["rules"].as_array_mut().unwrap();
                rules.push(json!({"on": "prompts/get", "do": [question("one")]}));
                let world = World::new(wire, Era::Discover, script).await;
                let client = world.client().await;
                let supervisor = supervisor().await;
                let lent = lend(&supervisor, &client, as_peer).await;
                let call = ToolCall::new("charge", json!({"cents": 7}));
                let mut answer = lent.call_tool(call.clone()).await.unwrap();
                for _ in 0..2 {
                    let asked = answer.input_required().unwrap();
                    let given = [("who".to_owned(), json!({"action": "decline"}))].into();
                    let next = call.clone().with_input(asked, given);
                    answer = lent.call_tool(next).await.unwrap();
                }
                assert_eq!(answer.kind(), AnswerKind::Complete);
                assert_eq!(world.bed.ran("charge"), 1);
                assert_eq!(world.bed.read("tools/call"), 3, "each round once");

                let error = lent.get_prompt(PromptGet::new("p")).await.unwrap_err();
                let missing = UnknownCause::InputMissing(InputMissing::NoHandler);
                assert_eq!(unknown_cause(&error), missing);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_task_of_a_lent_connection_is_awaited_and_cancelled_as_any_other() {
    for wire in WIRES {
        for as_peer in [false, true] {
            bounded(async {
                let script: Value = json!({"rules": [
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", created()]},
                    {"on": "tasks/get", "nth": [1, 2], "do": [working()]},
                    {"on": "tasks/get", "do": [done()]},
                    {"on": "tasks/cancel", "do": [{"result": {}}]},
                ]});
                let world = World::new(wire, Era::Discover, script).await;
                let client = world.client().await;
                let supervisor = supervisor().await;
                let lent = lend(&supervisor, &client, as_peer).await;
                let call = ToolCall::new("charge", json!({}));
                let answer = lent.call_tool(call).await.unwrap();
                assert_eq!(answer.kind(), AnswerKind::Task);
                let handle = answer.task().unwrap().clone();
                let answer = lent.await_task(TaskAwait::new(&handle)).await.unwrap();
                assert_eq!(answer.text(), "built");
                lent.cancel_task(TaskCancel::new(&handle)).await.unwrap();
                assert_eq!(world.bed.read("tasks/get"), 3);
                assert_eq!(world.bed.read("tasks/cancel"), 1);
                assert_eq!(world.bed.ran("charge"), 1);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}
