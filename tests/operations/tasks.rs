//! Work that goes on at the server after its answer, and what is left of it for the host.

use std::time::Duration;

use mcp_supervisor::{
    AnswerKind, CallError, Era, Supervisor, TaskAwait, TaskCancel, TaskGet, TaskHandle, ToolCall,
    error::{InvalidRequest, NotSentReason, TaskError},
};
use rmcp::model::TaskStatus;
use serde_json::{Value, json};

use super::requests::params;
use crate::support::{
    bounded,
    lane::{BOTH, Over, Rig, lanes, not_sent, unknown},
};

fn task(status: &str, more: Value) -> Value {
    let mut task = json!({
        "taskId": "t-1", "status": status, "ttlMs": null, "pollIntervalMs": 60,
        "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
    });
    let more = more.as_object().unwrap().clone();
    task.as_object_mut().unwrap().extend(more);
    json!({"result": task})
}

pub(super) fn created() -> Value {
    task("working", json!({"resultType": "task"}))
}

pub(super) fn done() -> Value {
    let result = json!({"content": [{"type": "text", "text": "built"}], "isError": false});
    task(
        "completed",
        json!({"resultType": "complete", "result": result}),
    )
}

pub(super) fn working() -> Value {
    task("working", json!({"resultType": "complete"}))
}

#[tokio::test]
async fn a_task_is_awaited_to_the_answer_of_its_tool() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let rig = Rig::with(
                over,
                era,
                json!({"log_messages": true, "rules": [
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", created()]},
                    {"on": "tasks/get", "nth": [1, 2, 3], "do": [working()]},
                    {"on": "tasks/get", "do": [done()]},
                ]}),
                |spec| spec.tasks(),
            )
            .await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            assert_eq!(answer.kind(), AnswerKind::Task);
            let handle = answer.task().unwrap().clone();
            assert_eq!((handle.id(), handle.tool()), ("t-1", "charge"));
            let state = rig
                .connection
                .get_task(TaskGet::new(&handle))
                .await
                .unwrap();
            assert_eq!(state.status(), TaskStatus::Working);
            let answer = rig
                .connection
                .await_task(TaskAwait::new(&handle))
                .await
                .unwrap();
            assert_eq!(
                (answer.kind(), answer.text()),
                (AnswerKind::Complete, "built".to_owned())
            );
            assert_eq!(params(&rig, "tasks/get").len(), 4);
            assert_eq!(rig.bed.effects().len(), 1);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn waiting_for_a_task_outlives_the_server_and_its_handle_the_host() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let mut rig = Rig::with(
                over,
                era.clone(),
                json!({"http_close": true, "rules": [
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", created()]},
                    {"on": "tasks/get", "generation": 1, "nth": 1, "do": [working()]},
                    {"on": "tasks/get", "generation": 1, "do": [{"touch": "asked"}, "kill"]},
                    {"on": "tasks/get", "do": [done()]},
                ]}),
                |spec| spec.tasks(),
            )
            .await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            let handle = answer.task().unwrap().clone();
            let waiting = rig.connection.await_task(TaskAwait::new(&handle));
            let restarting = async {
                rig.bed.until_file("asked").await;
                // A child is started again by the connection; over HTTP somebody else does it.
                match &rig.server {
                    Some(server) => {
                        let addr = server.addr.clone();
                        Some(rig.bed.http_at(&addr).await)
                    }
                    None => None,
                }
            };
            let (answer, restarted) = tokio::join!(waiting, restarting);
            let answer = answer.unwrap();
            assert_eq!(answer.text(), "built", "{over:?} {era:?}");
            assert!(answer.generation().number() > 1);
            if restarted.is_some() {
                rig.server = restarted;
            }

            // The host goes, and another one has only what was written down.
            let written = serde_json::to_string(&handle).unwrap();
            let _ = rig.supervisor.shutdown(Duration::from_secs(2)).await;
            let spec = match &rig.server {
                Some(server) => server.spec(era.clone()),
                None => rig.bed.stdio_spec(era.clone()),
            };
            let supervisor = Supervisor::builder().start().await.unwrap();
            let connection = supervisor.open("case", spec.tasks()).await.unwrap();
            let handle: TaskHandle = serde_json::from_str(&written).unwrap();
            let answer = connection
                .await_task(TaskAwait::new(&handle))
                .await
                .unwrap();
            assert_eq!(answer.text(), "built");
            assert_eq!(rig.bed.effects().len(), 1, "nobody created it again");
            let _ = supervisor.shutdown(Duration::from_secs(2)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_lost_create_is_unknown_and_its_task_is_never_created_again() {
    bounded(async {
        for (over, era) in lanes(&[Over::Stdio]) {
            let rig = Rig::with(
                over,
                era,
                json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", "kill"]}]}),
                |spec| spec.tasks(),
            )
            .await;
            unknown(rig.call("charge", json!({})).await);
            rig.echo().await;
            let charges = rig.bed.effects().into_iter().filter(|e| e.tool == "charge");
            assert_eq!(charges.count(), 1);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_task_that_fails_or_is_cancelled_or_unknown_ends_the_wait_with_that() {
    bounded(async {
        for (state, expected) in [
            (
                task(
                    "failed",
                    json!({"resultType": "complete",
                "error": {"code": -32000, "message": "broken"}}),
                ),
                "failed",
            ),
            (
                task("cancelled", json!({"resultType": "complete"})),
                "cancelled",
            ),
            (
                json!({"error": {"code": -32602, "message": "no such task"}}),
                "refused",
            ),
        ] {
            let rig = Rig::with(
                Over::Stdio,
                Era::Discover,
                json!({"rules": [
                    {"on": "tools/call", "tool": "charge", "do": [created()]},
                    {"on": "tasks/cancel", "do": [{"result": {"resultType": "complete"}}]},
                    {"on": "tasks/get", "do": [state]},
                ]}),
                |spec| spec.tasks(),
            )
            .await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            let handle = answer.task().unwrap();
            rig.connection
                .cancel_task(TaskCancel::new(handle))
                .await
                .unwrap();
            let ended = rig.connection.await_task(TaskAwait::new(handle)).await;
            let ended = match ended.unwrap_err() {
                TaskError::Failed(error) => {
                    assert_eq!((error.code, &*error.message), (-32000, "broken"));
                    "failed"
                }
                TaskError::Cancelled => "cancelled",
                TaskError::Call(CallError::Rejected(_)) => "refused",
                other => panic!("{other:?}"),
            };
            assert_eq!(ended, expected);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_deadline_ends_the_wait_and_not_the_task() {
    bounded(async {
        let rig = Rig::with(
            Over::Stdio,
            Era::Discover,
            json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": [created()]},
                {"on": "tasks/get", "do": [working()]},
            ]}),
            |spec| spec.tasks(),
        )
        .await;
        let answer = rig.call("charge", json!({})).await.unwrap();
        let wait = TaskAwait::new(answer.task().unwrap()).deadline(Duration::from_millis(700));
        match rig.connection.await_task(wait).await.unwrap_err() {
            TaskError::DeadlinePassed { last } => assert_eq!(last, Some(TaskStatus::Working)),
            other => panic!("{other:?}"),
        }
        let other = TaskHandle::new("other".parse().unwrap(), "charge", "t-1");
        let asked = rig
            .connection
            .get_task(TaskGet::new(&other))
            .await
            .unwrap_err();
        assert!(matches!(
            not_sent(&asked),
            NotSentReason::Invalid(InvalidRequest::OtherConnection { .. })
        ));
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_task_that_asks_gets_its_input_once_from_the_handler_or_tells_the_caller() {
    bounded(async {
        for over in BOTH {
            let asks = task(
                "input_required",
                json!({"resultType": "complete", "inputRequests": {
                "roots": {"method": "roots/list"}}}),
            );
            let script = json!({"log_messages": true, "rules": [
                {"on": "tools/call", "tool": "charge", "do": [created()]},
                {"on": "tasks/update", "do": [{"result": {"resultType": "complete"}}]},
                // The server takes a while to notice.
                {"on": "tasks/get", "nth": [1, 2, 3], "do": [asks]},
                {"on": "tasks/get", "do": [done()]},
            ]});
            let rig = Rig::with(over, Era::Discover, script.clone(), |spec| {
                spec.tasks().handler(rmcp::model::ClientConfig::default())
            })
            .await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            let wait = TaskAwait::new(answer.task().unwrap());
            assert_eq!(
                rig.connection.await_task(wait).await.unwrap().text(),
                "built"
            );
            let updates = params(&rig, "tasks/update");
            assert_eq!(updates.len(), 1);
            assert_eq!(updates[0]["inputResponses"]["roots"], json!({"roots": []}));
            rig.finish().await;

            let rig = Rig::with(over, Era::Discover, script, |spec| spec.tasks()).await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            let wait = TaskAwait::new(answer.task().unwrap());
            match rig.connection.await_task(wait).await.unwrap_err() {
                TaskError::InputRequired(asked) => assert!(asked.contains_key("roots")),
                other => panic!("{other:?}"),
            }
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn only_who_takes_tasks_offers_the_extension() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            for tasks in [true, false] {
                let script = json!({"log_messages": true});
                let rig = Rig::with(over, era.clone(), script, |spec| match tasks {
                    true => spec.tasks(),
                    false => spec,
                })
                .await;
                rig.echo().await;
                let offered = rig
                    .bed
                    .messages()
                    .iter()
                    .any(|m| m.to_string().contains("io.modelcontextprotocol/tasks"));
                assert_eq!(offered, tasks, "{over:?} {era:?}");
                rig.finish().await;
            }
        }
    })
    .await;
}

/// A call that is not a task is not one because tasks are taken.
#[tokio::test]
async fn an_ordinary_answer_has_no_task() {
    bounded(async {
        let rig = Rig::with(Over::Stdio, Era::Discover, json!({}), |spec| spec.tasks()).await;
        let call = ToolCall::new("charge", json!({}));
        let answer = rig.connection.call_tool(call).await.unwrap();
        assert!(answer.task().is_none());
        rig.finish().await;
    })
    .await;
}
