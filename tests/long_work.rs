//! Work that takes longer than a call: started once per key, read and cancelled by its own principal,
//! and true about its end whatever happens to its process. As tasks where the client has them, as
//! ordinary tools elsewhere.

mod support;

use std::time::Duration;

use futures::future::join_all;
use mcp_supervisor::{
    Connection, ConnectionSpec, Era, IdempotencyKey, Outcome, OwnedConnection, Supervisor,
    TaskAwait, TaskCancel, TaskGet, TaskHandle, ToolAnswer, ToolCall, error::TaskError,
};
use rmcp::model::TaskStatus;
use serde_json::{Value, json};
use support::{
    bounded, initialize,
    rig::{WIRES, Wire, eras, side_by_side},
    shop::{Shop, key},
};

fn cases() -> Vec<(Wire, Era)> {
    WIRES
        .into_iter()
        .flat_map(|wire| eras().map(|era| (wire, era)))
        .collect()
}

async fn open(spec: ConnectionSpec) -> (Supervisor, OwnedConnection) {
    let supervisor = Supervisor::builder().start().await.unwrap();
    let connection = supervisor.open("shop", spec).await.unwrap();
    (supervisor, connection)
}

fn count(tool: &str, to: u32, step_ms: u64, key: &IdempotencyKey) -> ToolCall {
    let key = key.as_str();
    let arguments = json!({ "to": to, "step_ms": step_ms, "idempotency_key": key });
    ToolCall::new(tool, arguments)
}

fn said<'a>(answer: &'a ToolAnswer, member: &str) -> &'a Value {
    &answer.structured().expect("it has structured content")[member]
}

/// Starts it without tasks, and gives back its handle.
async fn start(connection: &Connection, call: ToolCall) -> String {
    let answer = connection.call_tool(call).await.unwrap();
    assert!(!answer.is_error(), "{}", answer.text());
    assert_eq!(said(&answer, "status"), "in_progress", "{}", answer.text());
    said(&answer, "operation_id").as_str().unwrap().to_owned()
}

async fn ask(connection: &Connection, tool: &str, id: &str) -> ToolAnswer {
    let call = ToolCall::new(tool, json!({ "operation_id": id }));
    connection.call_tool(call).await.unwrap()
}

/// Reads it until it is over.
async fn over(connection: &Connection, tool: &str, id: &str) -> ToolAnswer {
    let over = async {
        loop {
            let answer = ask(connection, tool, id).await;
            if said(&answer, "status") != "in_progress" {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    bounded(over).await
}

#[tokio::test]
async fn without_tasks_three_tools_start_read_and_cancel() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let id = start(&connection, count("count", 1_000_000, 20, &key("k1"))).await;
        let read = ask(&connection, "count_status", &id).await;
        assert!(!read.is_error());
        assert_eq!(said(&read, "status"), "in_progress");
        assert_eq!(said(&read, "cancel_requested"), false);
        // A lost id is found by the key.
        let by_key = ToolCall::new("count_status", json!({ "idempotency_key": "k1" }));
        let by_key = connection.call_tool(by_key).await.unwrap();
        assert_eq!(said(&by_key, "operation_id"), id.as_str());
        let asked = ask(&connection, "count_cancel", &id).await;
        assert!(!asked.is_error());
        let end = over(&connection, "count_status", &id).await;
        assert_eq!(said(&end, "status"), "cancelled");
        assert_eq!(
            shop.number("SELECT count(*) FROM counted WHERE number = 1000000"),
            0
        );

        let id = start(&connection, count("count", 3, 1, &key("k2"))).await;
        let end = over(&connection, "count_status", &id).await;
        assert_eq!(said(&end, "status"), "completed");
        assert_eq!(said(&end, "result")["counted"], 3);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn where_tasks_are_negotiated_the_start_is_a_task() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec().tasks()).await;
        let answer = connection
            .call_tool(count("count", 20, 20, &key("k1")))
            .await
            .unwrap();
        let task = answer.task().expect("it is a task").clone();
        let state = connection.get_task(TaskGet::new(&task)).await.unwrap();
        assert!(matches!(
            state.status(),
            TaskStatus::Working | TaskStatus::Completed
        ));
        let done = connection.await_task(TaskAwait::new(&task)).await.unwrap();
        assert_eq!(said(&done, "result")["counted"], 20);
        // The same key, once it is over, is answered with the result itself.
        let again = connection
            .call_tool(count("count", 20, 20, &key("k1")))
            .await
            .unwrap();
        assert!(again.task().is_none());
        assert_eq!(said(&again, "replayed"), true);
        assert_eq!(shop.number("SELECT count(*) FROM begun"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_cancelled_task_is_a_cancelled_work() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec().tasks()).await;
        let call = count("count", 1_000_000, 20, &key("k1"));
        let answer = connection.call_tool(call).await.unwrap();
        let task = answer.task().expect("it is a task").clone();
        connection
            .cancel_task(TaskCancel::new(&task))
            .await
            .unwrap();
        let end = connection.await_task(TaskAwait::new(&task)).await;
        assert!(matches!(end, Err(TaskError::Cancelled)), "{end:?}");
        let read = ask(&connection, "count_status", task.id()).await;
        assert_eq!(
            said(&read, "status"),
            "cancelled",
            "the tool and the task say the same"
        );
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn racing_starts_of_one_key_begin_one_work() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let starts = (0..8).map(|_| start(&connection, count("count", 1_000_000, 50, &key("k1"))));
        let mut ids = join_all(starts).await;
        ids.dedup();
        assert_eq!(ids.len(), 1, "{ids:?}");
        assert_eq!(shop.number("SELECT count(*) FROM begun"), 1);
        let other = count("count", 5, 50, &key("k1"));
        let conflict = connection.call_tool(other).await.unwrap();
        assert_eq!(said(&conflict, "status"), "conflict");
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

/// Whichever wins, what the read tool says is what the tables say.
#[tokio::test]
async fn a_cancel_that_races_success_is_told_what_really_happened() {
    bounded(async {
        let shop = Shop::open(Wire::Stdio, &initialize(), &[]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let (mut done, mut cancelled) = (0, 0);
        let races = (0_u64..64).map(|seed| {
            let connection = &connection;
            async move {
                let id = start(connection, count("count", 3, 4, &key(&format!("k{seed}")))).await;
                tokio::time::sleep(Duration::from_micros(seed * 37 % 64 * 400)).await;
                let asked = ask(connection, "count_cancel", &id).await;
                assert!(!asked.is_error());
                let end = over(connection, "count_status", &id).await;
                (id, said(&end, "status").as_str().unwrap().to_owned())
            }
        });
        for (id, status) in join_all(races).await {
            let last = format!("SELECT count(*) FROM counted WHERE work = '{id}' AND number = 3");
            match (status.as_str(), shop.number(&last)) {
                ("completed", 1) => done += 1,
                ("cancelled", 0) => cancelled += 1,
                (status, last) => panic!("{id} is {status} with {last} last writes"),
            }
        }
        println!("{done} were done first, {cancelled} were stopped");
        assert_eq!(done + cancelled, 64);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_work_whose_process_was_killed_is_unknown_and_never_runs_again() {
    side_by_side(cases(), async |(wire, era)| {
        let mut shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let id = start(&connection, count("count", 1_000_000, 5, &key("k1"))).await;
        support::until("it works", || {
            shop.number("SELECT count(*) FROM counted") > 2
        })
        .await;
        shop.kill_and_start().await;
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let counted = shop.number("SELECT count(*) FROM counted");
        let read = ask(&connection, "count_status", &id).await;
        assert_eq!(said(&read, "status"), "outcome_unknown", "{}", read.text());
        assert!(
            said(&read, "next_action")
                .as_str()
                .unwrap()
                .contains("nspect")
        );
        let again = connection
            .call_tool(count("count", 1_000_000, 5, &key("k1")))
            .await
            .unwrap();
        assert!(again.is_error());
        assert_eq!(said(&again, "status"), "outcome_unknown");
        assert_eq!(said(&again, "operation_id"), id.as_str());
        assert_eq!(shop.number("SELECT count(*) FROM begun"), 1);
        assert_eq!(shop.number("SELECT count(*) FROM counted"), counted);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_work_that_says_so_is_resumed_from_its_checkpoint() {
    side_by_side(cases(), async |(wire, era)| {
        let mut shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec().tasks()).await;
        let call = count("count_on", 60, 20, &key("k1"));
        let answer = connection.call_tool(call).await.unwrap();
        let task = answer.task().expect("it is a task").clone();
        support::until("it works", || {
            shop.number("SELECT count(*) FROM counted") > 2
        })
        .await;
        shop.kill_and_start().await;
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
        // The handle is data, and good for another host of the same name for the connection.
        let (supervisor, connection) = open(shop.spec().tasks()).await;
        let done = connection.await_task(TaskAwait::new(&task)).await.unwrap();
        assert_eq!(said(&done, "result")["counted"], 60);
        assert_eq!(shop.number("SELECT count(*) FROM begun"), 1);
        assert_eq!(
            shop.number("SELECT count(*) FROM counted"),
            60,
            "no step is made twice"
        );
        assert_eq!(
            shop.number("SELECT count(DISTINCT number) FROM counted"),
            60
        );
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn another_principal_can_neither_read_nor_cancel_it() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Http, &era, &[]).await;
        let supervisor = Supervisor::builder().start().await.unwrap();
        let alice = shop.spec_of("alice").tasks();
        let alice = supervisor.open("alice", alice).await.unwrap();
        let bob = supervisor
            .open("bob", shop.spec_of("bob").tasks())
            .await
            .unwrap();
        let call = count("count", 1_000_000, 20, &key("k1"));
        let answer = alice.call_tool(call).await.unwrap();
        let task = answer.task().expect("it is a task").clone();
        let stolen = TaskHandle::new("bob".parse().unwrap(), "count", task.id());
        let read = bob.get_task(TaskGet::new(&stolen)).await.unwrap_err();
        let missing = TaskHandle::new("bob".parse().unwrap(), "count", "no-such-task");
        let nothing = bob.get_task(TaskGet::new(&missing)).await.unwrap_err();
        assert_eq!(read.outcome(), Outcome::Rejected);
        assert_eq!(
            read.server_error().unwrap().message,
            nothing.server_error().unwrap().message,
            "it does not even learn that there is one"
        );
        bob.cancel_task(TaskCancel::new(&stolen)).await.unwrap_err();
        for tool in ["count_status", "count_cancel"] {
            let refused = ask(&bob, tool, task.id()).await;
            assert!(refused.is_error());
            assert_eq!(said(&refused, "status"), "invalid");
        }
        let state = alice.get_task(TaskGet::new(&task)).await.unwrap();
        assert_eq!(state.status(), TaskStatus::Working);
        let read = ask(&alice, "count_status", task.id()).await;
        assert_eq!(said(&read, "cancel_requested"), false);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_work_goes_on_when_the_client_that_started_it_has_gone() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Http, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let id = start(&connection, count("count", 30, 20, &key("k1"))).await;
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let end = over(&connection, "count_status", &id).await;
        assert_eq!(said(&end, "status"), "completed");
        assert_eq!(shop.number("SELECT count(*) FROM counted"), 30);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}
