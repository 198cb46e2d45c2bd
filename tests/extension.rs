//! The extension for receipts between the two sides of this crate: real servers, and answers that
//! are really lost.

mod support;

use std::time::Duration;

use mcp_supervisor::journal::{Journal, JournalSettings, MemoryStore, State};
use mcp_supervisor::{
    CallError, Connection, ConnectionSpec, CustomCall, Era, Outcome, OwnedConnection, Page,
    ResolveError, Supervisor, TaskAwait, ToolAnswer, ToolCall, ToolContract, What,
    error::{InvalidRequest, NotSentReason, Unsettled},
    event::Ground,
    extension::{IDEMPOTENCY_KEY, LOOK_UP, Receipt, ReceiptState},
};
use serde_json::{Value, json};
use support::{
    bounded, initialize,
    rig::{WIRES, Wire, eras, side_by_side},
    shop::{Shop, key},
    until,
};

const LOOK_UPS: &str = "request dev.mcp-supervisor/receipts/get";

fn order() -> ToolCall {
    ToolCall::new("create_order", json!({ "item": "lamp" })).idempotency_key(key("order-1001"))
}

async fn open(spec: ConnectionSpec) -> (Supervisor, OwnedConnection) {
    let supervisor = Supervisor::builder().start().await.unwrap();
    let connection = supervisor.open("shop", spec).await.unwrap();
    (supervisor, connection)
}

fn trusting(shop: &Shop) -> ConnectionSpec {
    shop.spec().contract("create_order", ToolContract::Receipts)
}

fn said<'a>(answer: &'a ToolAnswer, member: &str) -> &'a Value {
    &answer.structured().expect("it has structured content")[member]
}

async fn look_up(connection: &Connection, tool: &str, key: &str) -> Result<Receipt, CallError> {
    let asked = CustomCall::new(LOOK_UP, Some(json!({ "tool": tool, "key": key })));
    let receipt = connection.request(asked).await?;
    Ok(serde_json::from_value(receipt).expect("it is a receipt"))
}

async fn unsettled(connection: &Connection, call: ToolCall) -> Option<Unsettled> {
    match connection.call_tool(call).await {
        Err(CallError::Unknown(unknown)) => unknown.unsettled,
        other => panic!("the outcome is known: {other:?}"),
    }
}

fn cases() -> Vec<(Wire, Era)> {
    WIRES
        .into_iter()
        .flat_map(|wire| eras().map(|era| (wire, era)))
        .collect()
}

#[tokio::test]
async fn an_offer_alone_changes_nothing() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &["die-after"]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        // The key goes by the argument that the tool documents.
        let arguments = json!({ "item": "lamp", "idempotency_key": "order-1001" });
        let call = ToolCall::new("create_order", arguments).idempotency_key(key("order-1001"));
        assert_eq!(
            unsettled(&connection, call).await,
            None,
            "there is no contract"
        );
        assert_eq!(
            shop.received("call create_order -"),
            1,
            "nothing is in its metadata"
        );
        assert_eq!(shop.received(LOOK_UPS), 0);
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_answer_is_found_by_the_look_up() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &["die-after"]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let answer = connection.call_tool(order()).await.unwrap();
        assert!(answer.was_looked_up());
        assert_eq!(said(&answer, "status"), "completed");
        assert_eq!(said(&answer, "replayed"), true);
        assert_eq!(said(&answer, "result")["order"], 1);
        assert_eq!(
            shop.received("call create_order order-1001"),
            1,
            "it was sent once"
        );
        assert_eq!(shop.received(LOOK_UPS), 1);
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

/// The server works on, and only the answer does not come: also over HTTP.
#[tokio::test]
async fn an_answer_that_does_not_come_is_found_without_a_second_effect() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &["stall-after"]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let call = order().attempt_limit(Duration::from_secs(1));
        let answer = connection.call_tool(call).await.unwrap();
        assert_eq!(said(&answer, "result")["order"], 1, "{wire:?}");
        assert_eq!(said(&answer, "replayed"), true);
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn where_there_is_no_look_up_the_call_is_repeated_under_its_key() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &["die-after", "no-look-up"]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let mut events = supervisor.events();
        let answer = connection.call_tool(order()).await.unwrap();
        assert_eq!(answer.attempts(), 2);
        assert_eq!(said(&answer, "replayed"), true);
        assert_eq!(said(&answer, "result")["order"], 1);
        assert_eq!(shop.received("call create_order order-1001"), 2);
        assert_eq!(
            shop.received(LOOK_UPS),
            0,
            "what is not offered is not asked for"
        );
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let ground = async {
            loop {
                if let Some(mcp_supervisor::Received::Event(event)) = events.next().await
                    && let What::AttemptStarted {
                        repeats: Some(ground),
                        ..
                    } = event.what
                {
                    return ground;
                }
            }
        };
        assert_eq!(bounded(ground).await, Ground::Receipts);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_request_that_did_not_run_is_repeated_and_runs_once() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &["die-before"]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let answer = connection.call_tool(order()).await.unwrap();
        assert_eq!(
            said(&answer, "replayed"),
            false,
            "the repeat is the first that ran"
        );
        assert_eq!(
            shop.received(LOOK_UPS),
            1,
            "it was asked for first, and is absent"
        );
        assert_eq!(shop.received("call create_order order-1001"), 2);
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn without_the_capability_nothing_is_repeated() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &["die-after", "no-offer"]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let why = unsettled(&connection, order()).await;
        assert_eq!(why, Some(Unsettled::NoReceipts));
        assert_eq!(shop.received("call create_order"), 1);
        assert_eq!(shop.received(LOOK_UPS), 0);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_offers_it_no_more_is_sent_no_repeat() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &[]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        connection.list_tools(Page::first()).await.unwrap();
        shop.pull("no-offer");
        shop.pull("die-after");
        let why = unsettled(&connection, order()).await;
        assert_eq!(why, Some(Unsettled::NoReceipts));
        assert_eq!(shop.received("call create_order"), 1);
        assert_eq!(shop.received(LOOK_UPS), 0);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

/// The offer of the session that a repeat would go to decides, also where another host made the call.
#[tokio::test]
async fn what_a_host_before_left_is_not_repeated_at_a_server_that_offers_it_no_more() {
    side_by_side(eras(), async |era| {
        let settings = JournalSettings {
            keep_arguments: true,
            ..JournalSettings::default()
        };
        for (lever, why) in [
            ("no-offer", Unsettled::NoReceipts),
            ("kept-ms=1", Unsettled::ReceiptExpired),
        ] {
            let shop = Shop::open(Wire::Stdio, &era, &["die-after", "no-offer"]).await;
            let journal = Journal::new(MemoryStore::new(), settings.clone());
            let builder = Supervisor::builder().journal(journal.clone());
            let supervisor = builder.start().await.unwrap();
            let connection = supervisor.open("shop", trusting(&shop)).await.unwrap();
            let lost = unsettled(&connection, order()).await;
            assert_eq!(lost, Some(Unsettled::NoReceipts));
            let _ = supervisor.shutdown(Duration::from_secs(5)).await;

            std::fs::remove_file(shop.path().join("no-offer")).unwrap();
            shop.pull(lever);
            let builder = Supervisor::builder().journal(journal.clone());
            let supervisor = builder.start().await.unwrap();
            let _connection = supervisor.open("shop", trusting(&shop)).await.unwrap();
            let unknown = journal.unknown().await.unwrap();
            assert_eq!(unknown.len(), 1);
            match supervisor.resolve(unknown[0].intent.operation).await {
                Err(ResolveError::StillUnknown(unknown)) => {
                    assert_eq!(unknown.unsettled, Some(why))
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(shop.received("call create_order"), 1);
            let _ = supervisor.shutdown(Duration::from_secs(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_tool_that_is_not_in_the_offer_is_never_repeated() {
    bounded(async {
        let shop = Shop::open(Wire::Stdio, &initialize(), &["die-after"]).await;
        let spec = shop.spec().contract("count_status", ToolContract::Receipts);
        let (supervisor, connection) = open(spec).await;
        let call = ToolCall::new("count_status", json!({ "idempotency_key": "k" }));
        let why = unsettled(&connection, call.idempotency_key(key("k"))).await;
        assert_eq!(why, Some(Unsettled::NoReceipts));
        assert_eq!(shop.received("call count_status"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn after_the_retention_nothing_is_repeated() {
    bounded(async {
        // It dies a second and a bit after the commit, and keeps answers for one second.
        let levers = ["die-late", "kept-ms=1000"];
        let shop = Shop::open(Wire::Stdio, &initialize(), &levers).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let why = unsettled(&connection, order()).await;
        assert_eq!(why, Some(Unsettled::ReceiptExpired));
        assert_eq!(shop.received("call create_order"), 1);
        assert_eq!(shop.received(LOOK_UPS), 0);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_key_that_nobody_gave_is_minted_once_for_all_attempts() {
    bounded(async {
        let shop = Shop::open(Wire::Stdio, &initialize(), &["die-before"]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let call = ToolCall::new("create_order", json!({ "item": "lamp" }));
        let answer = connection.call_tool(call).await.unwrap();
        let key = answer.key().expect("its contract needs one").as_str();
        assert_eq!(shop.received(&format!("call create_order {key}")), 2);
        assert_eq!(shop.received("call create_order"), 2);
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_key_comes_by_meta_or_by_argument_and_two_different_ones_are_refused() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(shop.spec()).await;
        let by = |argument: Option<&str>, meta: Option<Value>| {
            let mut arguments = json!({ "item": "lamp" });
            if let Some(key) = argument {
                arguments["idempotency_key"] = key.into();
            }
            let call = ToolCall::new("create_order", arguments);
            match meta {
                Some(key) => call.meta(IDEMPOTENCY_KEY, key),
                None => call,
            }
        };
        let first = connection
            .call_tool(by(None, Some("k1".into())))
            .await
            .unwrap();
        assert_eq!(said(&first, "replayed"), false);
        for call in [by(Some("k1"), None), by(Some("k1"), Some("k1".into()))] {
            let again = connection.call_tool(call).await.unwrap();
            assert_eq!(said(&again, "replayed"), true);
            assert_eq!(said(&again, "operation_id"), said(&first, "operation_id"));
        }
        for wrong in [
            by(Some("k1"), Some("k2".into())),
            by(None, Some(7.into())),
            by(None, Some("".into())),
            by(None, Some("two words".into())),
            by(None, None),
        ] {
            let refused = connection.call_tool(wrong).await.unwrap();
            assert!(refused.is_error());
            assert_eq!(said(&refused, "status"), "invalid");
        }
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_key_by_hand_that_is_not_the_operations_is_a_mistake() {
    bounded(async {
        let shop = Shop::open(Wire::Stdio, &initialize(), &[]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let call = order().meta(IDEMPOTENCY_KEY, "another".into());
        match connection.call_tool(call).await {
            Err(CallError::NotSent(e)) => {
                assert!(matches!(
                    e.reason,
                    NotSentReason::Invalid(InvalidRequest::KeyConflict)
                ));
            }
            other => panic!("{other:?}"),
        }
        let same = order().meta(IDEMPOTENCY_KEY, "order-1001".into());
        assert_eq!(
            said(&connection.call_tool(same).await.unwrap(), "status"),
            "completed"
        );
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_receipt_is_found_by_tool_and_key() {
    side_by_side(cases(), async |(wire, era)| {
        let shop = Shop::open(wire, &era, &[]).await;
        let (supervisor, connection) = open(trusting(&shop)).await;
        let absent = look_up(&connection, "create_order", "order-1001")
            .await
            .unwrap();
        assert_eq!(absent.state, ReceiptState::Absent);
        let answer = connection.call_tool(order()).await.unwrap();
        let found = look_up(&connection, "create_order", "order-1001")
            .await
            .unwrap();
        assert_eq!(found.state, ReceiptState::Succeeded);
        assert_eq!(
            found.operation_id.as_deref(),
            said(&answer, "operation_id").as_str()
        );
        let result = &found.result.unwrap()["structuredContent"];
        assert_eq!(result["replayed"], true);
        assert_eq!(&result["result"], said(&answer, "result"));
        for (tool, key) in [
            ("no_such_tool", "k"),
            ("create_order", ""),
            ("create_order", "a b"),
        ] {
            let error = look_up(&connection, tool, key).await.unwrap_err();
            assert_eq!(error.server_error().unwrap().code, -32602, "{tool} {key}");
        }
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn another_principal_finds_nothing_under_the_same_key() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Http, &era, &[]).await;
        let supervisor = Supervisor::builder().start().await.unwrap();
        let alice = supervisor
            .open("alice", shop.spec_of("alice"))
            .await
            .unwrap();
        let bob = supervisor.open("bob", shop.spec_of("bob")).await.unwrap();
        let call = || order().meta(IDEMPOTENCY_KEY, "order-1001".into());
        let first = alice.call_tool(call()).await.unwrap();
        let found = look_up(&bob, "create_order", "order-1001").await.unwrap();
        assert_eq!(found, Receipt::of(ReceiptState::Absent));
        let other = bob.call_tool(call()).await.unwrap();
        assert_eq!(
            said(&other, "replayed"),
            false,
            "another principal's key is another key"
        );
        assert_ne!(said(&other, "operation_id"), said(&first, "operation_id"));
        // Who has lost access learns nothing of what is kept.
        shop.pull("deny-alice");
        let error = look_up(&alice, "create_order", "order-1001")
            .await
            .unwrap_err();
        assert_eq!(error.outcome(), Outcome::Rejected);
        let denied = alice.call_tool(call()).await.unwrap();
        assert_eq!(said(&denied, "status"), "denied");
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_task_handle_is_found_by_the_look_up() {
    side_by_side(cases(), async |(wire, era)| {
        // Over stdio the server dies, and the next one resumes the work.
        let lever = match wire {
            Wire::Stdio => "die-after",
            Wire::Http => "stall-after",
        };
        let shop = Shop::open(wire, &era, &[lever]).await;
        let spec = shop
            .spec()
            .tasks()
            .contract("count_on", ToolContract::Receipts);
        let (supervisor, connection) = open(spec).await;
        let call = ToolCall::new("count_on", json!({ "to": 40, "step_ms": 50 }))
            .idempotency_key(key("count-1"))
            .attempt_limit(Duration::from_secs(1));
        let answer = connection.call_tool(call).await.unwrap();
        assert!(answer.was_looked_up() || answer.attempts() == 2);
        let done = match answer.task() {
            Some(task) => connection.await_task(TaskAwait::new(task)).await.unwrap(),
            // A machine that is busy enough finds it done already.
            None => answer,
        };
        assert_eq!(said(&done, "result")["counted"], 40);
        assert_eq!(shop.number("SELECT count(*) FROM begun"), 1);
        assert_eq!(shop.number("SELECT count(*) FROM counted"), 40);
        assert_eq!(
            shop.number("SELECT count(DISTINCT number) FROM counted"),
            40
        );
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}

/// A connection whose calls are recorded.
async fn recorded(spec: ConnectionSpec) -> (Supervisor, OwnedConnection, Journal) {
    let journal = Journal::new(MemoryStore::new(), JournalSettings::default());
    let builder = Supervisor::builder().journal(journal.clone());
    let supervisor = builder.start().await.unwrap();
    let connection = supervisor.open("shop", spec).await.unwrap();
    (supervisor, connection, journal)
}

async fn state(journal: &Journal, answer: &ToolAnswer) -> State {
    let record = journal.show(answer.operation()).await.unwrap();
    record.expect("it is recorded").state
}

#[tokio::test]
async fn a_result_that_settles_nothing_is_not_kept_as_the_answer() {
    side_by_side(eras(), async |era| {
        let shop = Shop::open(Wire::Stdio, &era, &[]).await;
        let spec = trusting(&shop).contract("count", ToolContract::Receipts);
        let (supervisor, connection, journal) = recorded(spec).await;

        // The server has started, and somebody else has its database for longer than its bound.
        connection.list_tools(Page::first()).await.unwrap();
        let lock = shop.lock();
        let busy = connection.call_tool(order()).await.unwrap();
        assert_eq!(said(&busy, "status"), "busy");
        assert_eq!(state(&journal, &busy).await, State::Rejected);
        drop(lock);
        let done = connection.call_tool(order()).await.unwrap();
        assert_eq!(said(&done, "status"), "completed", "its key was free");
        assert_eq!(state(&journal, &done).await, State::Succeeded);
        assert_eq!(shop.number("SELECT count(*) FROM orders"), 1);

        // Long work on a session without tasks is answered with its handle.
        let count = || {
            let call = ToolCall::new("count", json!({ "to": 3 }));
            call.idempotency_key(key("count-1"))
        };
        let begun = connection.call_tool(count()).await.unwrap();
        assert_eq!(said(&begun, "status"), "in_progress");
        assert_eq!(state(&journal, &begun).await, State::OutcomeUnknown);
        until("it has counted", || {
            shop.number("SELECT count(*) FROM mcp_receipts_work") == 0
        })
        .await;
        let end = connection.call_tool(count()).await.unwrap();
        assert_eq!(said(&end, "status"), "completed");
        assert_eq!(state(&journal, &begun).await, State::Succeeded);
        assert_eq!(shop.number("SELECT count(*) FROM begun"), 1);
        let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}
