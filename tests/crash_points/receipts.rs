//! The same against a server that keeps receipts: its own record is what resolves an operation.

use mcp_supervisor::{Era, OperationId, ToolContract, journal::State};
use serde_json::{Value, json};

use super::all;
use crate::support::{bounded, host::HostProcess, initialize, rig::Wire, shop::Shop};

/// Where the host is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    /// Its attempt is recorded, and never made.
    Intent,
    /// The effect and its receipt are committed, and the answer is held back.
    Effect,
    /// The answer is there, and not recorded.
    Answer,
    /// It is recorded, and the caller was not told.
    Record,
}

impl At {
    fn stop(self) -> Option<&'static str> {
        match self {
            Self::Intent => Some("after_intent"),
            Self::Effect => None,
            Self::Answer => Some("before_record"),
            Self::Record => Some("after_record"),
        }
    }
}

fn order(id: OperationId) -> Value {
    json!({"do": "call", "tool": "create_order", "arguments": {"item": "lamp"},
        "key": "order-1001", "id": id})
}

async fn killed(at: At, wire: Wire, era: Era, contract: ToolContract) {
    println!("{at:?}, {wire:?}, {era:?}, {contract:?}");
    let shop = Shop::open(wire, &era, &[]).await;
    let journal = shop.path().join("journal.sqlite");
    let mut options = json!({
        "journal": journal,
        "era": match era { Era::Discover => "discover", _ => "initialize" },
        "contracts": {"create_order": contract},
        "keep_arguments": true,
    });
    match shop.place() {
        Value::String(url) => options["url"] = json!(url),
        program => options["server"] = program,
    }
    let id = OperationId::mint();
    let mut stopping = options.clone();
    if let Some(point) = at.stop() {
        stopping["stop_at"] = json!(point);
    }
    let mut host = HostProcess::start(&stopping);
    if at == At::Effect {
        shop.pull("stall-after");
    }
    host.order(&order(id));
    match at {
        At::Effect => shop.until_taken("stall-after").await,
        _ => drop(host.until(|line| line["event"] == "stopped")),
    }
    host.kill();

    let orders = || shop.number("SELECT count(*) FROM orders");
    let mut host = HostProcess::start(&options);
    let found = all(&journal).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].intent.operation, id);
    assert_eq!(orders(), i64::from(at != At::Intent));
    if at == At::Record {
        assert_eq!(found[0].state, State::Succeeded);
    } else {
        assert_eq!(found[0].state, State::OutcomeUnknown);
        let done = host.ask(json!({"do": "resolve", "operation": id}));
        let said = &done["structured"];
        assert_eq!(said["result"]["order"], json!(1), "{done}");
        assert_eq!(said["replayed"], json!(at != At::Intent), "{done}");
        assert!(host.listed().is_empty());
    }
    // Whoever asks once more gets the same order.
    let calls = shop.received("call create_order");
    let again = host.ask(order(OperationId::mint()));
    assert_eq!(again["operation"], json!(id), "{again}");
    assert_eq!(again["structured"]["result"]["order"], json!(1), "{again}");
    assert_eq!(shop.received("call create_order"), calls);
    assert_eq!(orders(), 1, "one effect under one key");
    host.close();
}

async fn with(contract: ToolContract) {
    for at in [At::Intent, At::Effect, At::Answer, At::Record] {
        for (wire, era) in [(Wire::Stdio, initialize()), (Wire::Http, Era::Discover)] {
            bounded(killed(at, wire, era, contract.clone())).await;
        }
    }
}

#[tokio::test]
async fn a_repeat_under_the_key_gets_the_receipt_of_what_a_killed_host_did() {
    with(ToolContract::keyed("idempotency_key")).await;
}

#[tokio::test]
async fn the_receipt_of_what_a_killed_host_did_is_found_by_its_key() {
    with(ToolContract::Receipts).await;
}
