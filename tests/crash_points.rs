//! A host is killed with SIGKILL at every named point of a call, over real processes: before the intent
//! and after it, after the hand-over, after the effect, after the answer, after the record, and while it
//! recovers. What its next start says, and what may be done then.

mod support;

#[path = "crash_points/calls.rs"]
mod calls;
#[path = "crash_points/receipts.rs"]
mod receipts;
#[path = "crash_points/recovery.rs"]
mod recovery;

use std::path::Path;

use mcp_supervisor::{
    OperationId,
    journal::{Filter, Record, SqliteStore, Store as _},
};

/// All that a journal has, in the order of the ids, also while a host writes it.
async fn all(journal: &Path) -> Vec<Record> {
    let store = SqliteStore::open_read_only(journal)
        .await
        .expect("the journal can be read");
    let filter = Filter {
        limit: 100_000,
        ..Filter::default()
    };
    let records = store.list(&filter).await.expect("the journal can be read");
    store.close().await.expect("it closes");
    records
}

fn ids(records: &[Record]) -> Vec<OperationId> {
    records
        .iter()
        .map(|record| record.intent.operation)
        .collect()
}
