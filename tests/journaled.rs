//! Calls with a journal, at real servers over both transports and in both eras.

mod support;

#[path = "journaled/keys.rs"]
mod keys;
#[path = "journaled/late.rs"]
mod late;
#[path = "journaled/life.rs"]
mod life;
#[path = "journaled/rounds.rs"]
mod rounds;

use mcp_supervisor::{
    Era, Supervisor,
    journal::{Fact, Journal, JournalSettings, Record, State},
    operation::OperationId,
};
use serde_json::{Value, json};
use support::{
    Read,
    world::{Wire, World},
};

async fn with(settings: JournalSettings) -> (Supervisor, Journal) {
    let (supervisor, journal, _) = support::store::watched_with(settings).await;
    (supervisor, journal)
}

async fn with_journal() -> (Supervisor, Journal) {
    with(JournalSettings::default()).await
}

async fn record(journal: &Journal, operation: OperationId) -> Record {
    let found = journal.show(operation).await.expect("it can be read");
    found.expect("it is recorded")
}

async fn state(journal: &Journal, operation: OperationId) -> State {
    record(journal, operation).await.state
}

/// What happened, as words.
fn history(record: &Record) -> Vec<&'static str> {
    let facts = record.history.iter().map(|entry| match &entry.fact {
        Fact::Dispatching { .. } => "dispatching",
        Fact::CancelRequested => "cancel requested",
        Fact::Answered { .. } => "answered",
        Fact::Without { .. } => "without",
        Fact::Task { .. } => "task",
        _ => "something else",
    });
    facts.collect()
}

/// A server on which `charge` runs, and is answered when `go` is there.
async fn answers_on_go(wire: Wire, era: Era, answer: Value) -> World {
    let script = json!({"rules": [
        {"on": "tools/call", "tool": "charge", "do":
            ["ledger", {"touch": "running"}, {"wait_file": "go"}, answer]},
    ]});
    World::new(wire, era, script).await
}

/// How the server is told that nobody waits any more.
fn farewells(world: &World) -> Vec<Read> {
    let method = match world.is_modern_http() {
        true => "disconnect",
        false => "notifications/cancelled",
    };
    let wire = world.bed.wire();
    wire.into_iter().filter(|r| r.method == method).collect()
}
