//! The tables, and how they come to be what this program knows.

use deadpool_postgres::Client;

use super::fault;
use crate::receipts::LedgerError;

/// What each version adds, from version 1 on. A step that was released is never changed.
const STEPS: [&str; 1] = ["
CREATE TABLE mcp_receipts (
    id             uuid PRIMARY KEY,
    scope          text NOT NULL,
    operation      text NOT NULL,
    key            text NOT NULL,
    version        bigint NOT NULL,
    fingerprint    bytea NOT NULL CHECK (length(fingerprint) = 32),
    state          text NOT NULL,
    standing       text NOT NULL,
    begun_at       bigint NOT NULL,
    answered_until bigint NOT NULL,
    refused_until  bigint NOT NULL,
    CONSTRAINT mcp_receipts_one_per_key UNIQUE (scope, operation, key)
);
CREATE INDEX mcp_receipts_answers ON mcp_receipts (answered_until) WHERE state = 'settled';
CREATE INDEX mcp_receipts_tombstones ON mcp_receipts (refused_until) WHERE state = 'tombstone';
CREATE TABLE mcp_receipts_outbox (
    operation  uuid PRIMARY KEY,
    reference  text NOT NULL,
    provider   text NOT NULL,
    body       text NOT NULL,
    state      text NOT NULL,
    progress   text NOT NULL,
    due_at     bigint NOT NULL,
    held_until bigint NOT NULL DEFAULT 0,
    fence      bigint NOT NULL DEFAULT 0,
    closed_at  bigint
);
CREATE INDEX mcp_receipts_outbox_open ON mcp_receipts_outbox (due_at) WHERE closed_at IS NULL;
CREATE INDEX mcp_receipts_outbox_closed ON mcp_receipts_outbox (closed_at) WHERE closed_at IS NOT NULL;
"];

/// The number of an advisory lock: any will do that nobody else has. It is `receipts` in ASCII.
const ONE_AT_A_TIME: i64 = 0x7265_6365_6970_7473;

/// Brings the tables up to date, one process at a time and in one transaction.
pub(super) async fn migrate(client: &mut Client) -> Result<(), LedgerError> {
    let known = i64::try_from(STEPS.len()).unwrap_or(i64::MAX);
    let transaction = client.transaction().await.map_err(fault::of)?;
    let lock = format!(
        "SELECT pg_advisory_xact_lock({ONE_AT_A_TIME});
         CREATE TABLE IF NOT EXISTS mcp_receipts_version (version bigint NOT NULL);"
    );
    transaction.batch_execute(&lock).await.map_err(fault::of)?;
    let select = "SELECT coalesce(max(version), 0) FROM mcp_receipts_version";
    let row = transaction.query_one(select, &[]).await;
    let found: i64 = row.and_then(|row| row.try_get(0)).map_err(fault::of)?;
    if found > known {
        return Err(LedgerError::Newer { found, known });
    }
    let done = usize::try_from(found).unwrap_or(0);
    for (step, version) in STEPS.iter().zip(1_i64..).skip(done) {
        transaction.batch_execute(step).await.map_err(fault::of)?;
        let insert = "INSERT INTO mcp_receipts_version (version) VALUES ($1)";
        let inserted = transaction.execute(insert, &[&version]).await;
        inserted.map_err(fault::of)?;
    }
    transaction.commit().await.map_err(fault::of_commit)
}
