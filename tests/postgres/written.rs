//! What the tests write, and how they read it.

use std::time::Duration;

use mcp_supervisor::{
    OperationId,
    journal::{
        Accepted, By, Claimed, Fact, Held, Intent, Kept, PostgresSettings, PostgresStore, Record,
        Settler, Store, StoreError,
    },
    operation::{AttemptId, Fingerprint},
};
use serde_json::json;

use crate::support::postgres::Schema;

pub(crate) fn settings(schema: &Schema) -> PostgresSettings {
    let mut settings = PostgresSettings::default();
    settings.schema = schema.name.clone();
    // A loaded machine is no dead host and no dead server.
    settings.lease = Duration::from_secs(120);
    settings.within = Duration::from_secs(30);
    settings
}

pub(crate) async fn store(schema: &Schema) -> PostgresStore {
    PostgresStore::connect_url(&schema.url, settings(schema))
        .await
        .expect("it connects")
}

pub(crate) fn intent(operation: OperationId, key: &str) -> Intent {
    let arguments = json!({"amount": 1});
    let fingerprint = Fingerprint::of("charge", arguments.as_object().expect("an object"));
    let connection = "billing".parse().expect("a name");
    let mut intent = Intent::new(operation, connection, "charge", fingerprint);
    intent.key = Some(key.parse().expect("a key"));
    intent
}

pub(crate) fn answered() -> Fact {
    Fact::Answered {
        is_error: false,
        answer: Kept::Whole(json!({"content": [{"type": "text", "text": "done"}]})),
        by: Settler::Call {
            generation: None,
            attempts: 1,
        },
    }
}

pub(crate) async fn dispatch(store: &PostgresStore, key: &str) -> Held {
    let intent = intent(OperationId::mint(), key);
    new(store.accept(intent, Some(AttemptId::mint())).await)
}

#[track_caller]
pub(crate) fn new(accepted: Result<Accepted, StoreError>) -> Held {
    match accepted {
        Ok(Accepted::New(held)) => held,
        other => panic!("not new: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn yes(claimed: Result<Claimed, StoreError>) -> (Held, Record) {
    match claimed {
        Ok(Claimed::Yes(held, record)) => (held, *record),
        other => panic!("not to be had: {other:?}"),
    }
}

pub(crate) async fn show(store: &PostgresStore, operation: OperationId) -> Record {
    let found = store.find(By::Operation(operation)).await;
    found.expect("it can be read").expect("it is there")
}

/// What happened to it, as words.
pub(crate) fn happened(record: &Record) -> Vec<&'static str> {
    let word = |fact: &Fact| match fact {
        Fact::Dispatching { .. } => "dispatching",
        Fact::CancelRequested => "cancel requested",
        Fact::Answered { .. } => "answered",
        Fact::Without { .. } => "without",
        Fact::Abandoned { .. } => "abandoned",
        Fact::Forgotten => "forgotten",
        _ => "other",
    };
    record
        .history
        .iter()
        .map(|entry| word(&entry.fact))
        .collect()
}
