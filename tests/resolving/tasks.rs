//! Operations that a server works on in a task.

use mcp_supervisor::{
    AnswerKind, Known, OperationId, ResolveError, TaskAwait, TaskGet, TaskHandle, ToolContract,
    error::{TaskError, Unsettled},
    journal::{Fact, Settler, State},
};
use serde_json::{Value, json};

use super::{charge, journal, open};
use crate::support::{
    bounded,
    world::{World, everywhere, lend, shut_down},
};

fn task(status: &str, more: &Value) -> Value {
    let mut task = json!({
        "taskId": "t-1", "status": status, "ttlMs": null, "pollIntervalMs": 60,
        "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
    });
    let more = more.as_object().expect("members").clone();
    task.as_object_mut().expect("members").extend(more);
    json!({"result": task})
}

pub(super) fn created() -> Value {
    task("working", &json!({"resultType": "task"}))
}

pub(super) fn done() -> Value {
    let result = json!({"content": [{"type": "text", "text": "built"}], "isError": false});
    task(
        "completed",
        &json!({"resultType": "complete", "result": result}),
    )
}

fn ended(status: &str, more: &Value) -> Value {
    let mut all = json!({"resultType": "complete"});
    let more = more.as_object().expect("members").clone();
    all.as_object_mut().expect("members").extend(more);
    task(status, &all)
}

fn script(state: &Value) -> Value {
    json!({"rules": [
        {"on": "tools/call", "tool": "charge", "do": ["ledger", created()]},
        {"on": "tasks/get", "nth": 1, "do": [ended("working", &json!({}))]},
        {"on": "tasks/get", "do": [state]},
    ]})
}

#[tokio::test]
async fn whoever_learns_how_a_task_ended_settles_its_operation() {
    for (wire, era) in everywhere() {
        for by_resolving in [true, false] {
            bounded(async {
                let world = World::new(wire, era.clone(), script(&done())).await;
                let journal = journal(false);
                let (supervisor, connection) =
                    open(&world, &journal, ToolContract::AtMostOnce).await;
                let answer = connection.call_tool(charge()).await.unwrap();
                let (id, task) = (answer.operation(), answer.task().unwrap());
                assert_eq!(task.operation(), Some(id));
                let record = journal.show(id).await.unwrap().unwrap();
                assert_eq!(record.state, State::Dispatching, "it goes on");
                assert_eq!(record.task(), Some(task));
                // The handle may have been written down meanwhile.
                let written = serde_json::to_string(task).unwrap();
                let task: TaskHandle = serde_json::from_str(&written).unwrap();
                connection.get_task(TaskGet::new(&task)).await.unwrap();
                let record = journal.show(id).await.unwrap().unwrap();
                assert_eq!(record.state, State::Dispatching, "it goes on still");
                let answer = if by_resolving {
                    let done = connection.resolve(id).await.unwrap();
                    assert_eq!(done.by, Settler::Task);
                    done.answer().unwrap().clone()
                } else {
                    let wait = TaskAwait::new(&task);
                    connection.await_task(wait).await.unwrap()
                };
                assert_eq!(answer.text(), "built");
                let record = journal.show(id).await.unwrap().unwrap();
                assert_eq!(record.state, State::Succeeded);
                assert!(matches!(
                    &record.last().unwrap().fact,
                    Fact::Answered {
                        by: Settler::Task,
                        ..
                    }
                ));
                let error = connection.resolve(id).await.unwrap_err();
                assert!(matches!(error, ResolveError::Settled(_)), "{error}");
                assert_eq!(world.bed.ran("charge"), 1);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_task_that_failed_or_was_stopped_says_so_of_its_operation() {
    for (wire, era) in everywhere() {
        bounded(async {
            let error = json!({"error": {"code": -32000, "message": "broken"}});
            for (state, expected) in [
                (ended("failed", &error), State::Failed),
                (ended("cancelled", &json!({})), State::Cancelled),
            ] {
                for by_resolving in [true, false] {
                    let world = World::new(wire, era.clone(), script(&state)).await;
                    let journal = journal(false);
                    let (supervisor, connection) =
                        open(&world, &journal, ToolContract::AtMostOnce).await;
                    let answer = connection.call_tool(charge()).await.unwrap();
                    let id = answer.operation();
                    if by_resolving {
                        let known = connection.resolve(id).await.unwrap().known;
                        match known {
                            Known::Failed(e) => assert_eq!(e.error.code, -32000),
                            Known::Cancelled => assert_eq!(expected, State::Cancelled),
                            other => panic!("{other:?}"),
                        }
                    } else {
                        let wait = TaskAwait::new(answer.task().unwrap());
                        connection.await_task(wait).await.unwrap_err();
                    }
                    let record = journal.show(id).await.unwrap().unwrap();
                    assert_eq!(record.state, expected);
                    shut_down(supervisor).await;
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_task_that_the_server_forgot_leaves_its_operation_unknown_and_listed() {
    for (wire, era) in everywhere() {
        bounded(async {
            let gone = json!({"error": {"code": -32602, "message": "no such task"}});
            let world = World::new(wire, era, script(&gone)).await;
            let journal = journal(false);
            let (supervisor, connection) = open(&world, &journal, ToolContract::AtMostOnce).await;
            let answer = connection.call_tool(charge()).await.unwrap();
            let (id, task) = (answer.operation(), answer.task().unwrap());
            let error = connection
                .await_task(TaskAwait::new(task))
                .await
                .unwrap_err();
            assert!(matches!(error, TaskError::Call(_)), "{error}");
            let record = journal.show(id).await.unwrap().unwrap();
            assert_eq!(record.state, State::OutcomeUnknown);
            match connection.resolve(id).await.unwrap_err() {
                ResolveError::StillUnknown(e) => {
                    assert_eq!(e.unsettled, Some(Unsettled::TaskGone));
                }
                other => panic!("{other}"),
            }
            assert_eq!(world.bed.ran("charge"), 1, "nothing is created again");
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// A handle that was put together by hand, or of an operation of another task.
#[tokio::test]
async fn a_handle_settles_no_operation_that_is_not_its_own() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, script(&done())).await;
        let journal = journal(false);
        let (supervisor, connection) = open(&world, &journal, ToolContract::AtMostOnce).await;
        let answer = connection.call_tool(charge()).await.unwrap();
        let id = answer.operation();
        let by_hand = TaskHandle::new("server".parse().unwrap(), "charge", "t-1");
        assert_eq!(by_hand.operation(), None::<OperationId>);
        let mut written = serde_json::to_value(answer.task().unwrap()).unwrap();
        written["task"] = json!("t-2");
        let forged: TaskHandle = serde_json::from_value(written).unwrap();
        for handle in [by_hand, forged] {
            connection
                .await_task(TaskAwait::new(&handle))
                .await
                .unwrap();
            let record = journal.show(id).await.unwrap().unwrap();
            assert_eq!(record.state, State::Dispatching);
        }
        let done = connection.resolve(id).await.unwrap();
        assert_eq!(done.answer().unwrap().text(), "built");
        shut_down(supervisor).await;
    })
    .await;
}

/// It is a read, on the order of the one who has the handle.
#[tokio::test]
async fn on_a_lent_connection_a_task_is_asked_for() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, script(&done())).await;
        let journal = journal(false);
        let (supervisor, connection) = open(&world, &journal, ToolContract::AtMostOnce).await;
        let id = connection.call_tool(charge()).await.unwrap().operation();
        connection.close().await;
        let client = world.client().await;
        let lent = lend(&supervisor, &client, false).await;
        let done = lent.resolve(id).await.unwrap();
        assert_eq!(done.answer().unwrap().text(), "built");
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn the_same_key_leads_to_the_same_task_and_then_to_its_answer() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut script = script(&done());
            script["rules"][0]["do"] =
                json!(["ledger", {"touch": "running"}, {"wait_file": "go"}, created()]);
            let world = World::new(wire, era, script).await;
            let journal = journal(false);
            let (supervisor, connection) = open(&world, &journal, ToolContract::AtMostOnce).await;
            let calling = connection.share();
            let first = tokio::spawn(async move { calling.call_tool(charge()).await });
            world.bed.until_file("running").await;
            // One comes before there is a task, one after.
            let calling = connection.share();
            let waiting = tokio::spawn(async move { calling.call_tool(charge()).await });
            world.bed.touch("go");
            let first = first.await.unwrap().unwrap();
            let again = connection.call_tool(charge()).await.unwrap();
            for again in [again, waiting.await.unwrap().unwrap()] {
                assert!(again.replayed());
                assert_eq!(again.operation(), first.operation());
                assert_eq!(again.task(), first.task());
                assert_eq!(again.kind(), AnswerKind::Task);
            }
            let wait = TaskAwait::new(first.task().unwrap());
            assert_eq!(connection.await_task(wait).await.unwrap().text(), "built");
            let last = connection.call_tool(charge()).await.unwrap();
            assert!(last.replayed());
            assert_eq!((last.text(), last.task()), ("built".to_owned(), None));
            assert_eq!(world.bed.read("tools/call"), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}
