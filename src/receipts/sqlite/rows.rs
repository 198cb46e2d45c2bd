//! The ledger's tables, and every statement on them.

use std::time::{Duration, SystemTime};

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior, params};

use super::super::{
    identity::{Identity, Scope},
    ledger::{LedgerError, Settled, Swept},
    receipt::{Receipt, Standing, millis, time},
    table::State,
};
use crate::operation::{Fingerprint, IdempotencyKey, OperationId};

/// The version of the tables that this program writes.
const SCHEMA: i64 = 1;

const TABLES: &str = "
    CREATE TABLE mcp_receipts (
        id INTEGER PRIMARY KEY,
        scope TEXT NOT NULL,
        operation TEXT NOT NULL,
        key TEXT NOT NULL,
        version INTEGER NOT NULL,
        fingerprint BLOB NOT NULL,
        operation_id BLOB NOT NULL,
        state INTEGER NOT NULL,
        standing TEXT NOT NULL,
        at INTEGER NOT NULL,
        answered_until INTEGER NOT NULL,
        refused_until INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX mcp_receipts_identity ON mcp_receipts (scope, operation, key);
    CREATE UNIQUE INDEX mcp_receipts_operation ON mcp_receipts (operation_id);
    CREATE INDEX mcp_receipts_answers ON mcp_receipts (answered_until) WHERE state = 1;
    CREATE INDEX mcp_receipts_tombstones ON mcp_receipts (refused_until) WHERE state = 3;";

const COLUMNS: &str = "scope, operation, key, version, fingerprint, operation_id, standing, at, \
                       answered_until, refused_until";

/// What a state is in its column. Indices name two of the numbers.
fn number(state: State) -> i64 {
    match state {
        State::Running => 0,
        State::Settled => 1,
        State::Unknown => 2,
        State::Tombstone => 3,
    }
}

/// What an error of SQLite's means for a ledger.
pub(in crate::receipts) fn failed(error: rusqlite::Error) -> LedgerError {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked) => LedgerError::Busy,
        _ => LedgerError::Unavailable(error.to_string().into()),
    }
}

/// What a commit that failed means. Where the error does not say that it was refused, its frames may
/// be in the log, and a restart would find them.
pub(in crate::receipts) fn uncommitted(error: rusqlite::Error) -> LedgerError {
    use rusqlite::ErrorCode::{
        ConstraintViolation, DatabaseBusy, DatabaseLocked, DiskFull, ReadOnly,
    };
    match error.sqlite_error_code() {
        Some(ConstraintViolation | DatabaseBusy | DatabaseLocked | DiskFull | ReadOnly) => {
            failed(error)
        }
        _ => LedgerError::Unclear(error.to_string().into()),
    }
}

/// How long a statement waits for somebody else's lock. SQLite counts in milliseconds, in 31 bits.
pub(super) fn wait_for_locks(connection: &Connection, bound: Duration) -> rusqlite::Result<()> {
    connection.busy_timeout(bound.min(Duration::from_millis(i32::MAX.unsigned_abs().into())))
}

/// Makes the tables, or checks that they are known.
pub(super) fn prepare(connection: &mut Connection) -> Result<(), LedgerError> {
    connection
        .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        .map_err(failed)?;
    let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = begun.map_err(failed)?;
    transaction
        .execute_batch("CREATE TABLE IF NOT EXISTS mcp_receipts_schema (version INTEGER NOT NULL)")
        .map_err(failed)?;
    let version = transaction
        .query_row("SELECT max(version) FROM mcp_receipts_schema", [], |row| {
            row.get::<_, Option<i64>>(0)
        })
        .map_err(failed)?;
    match version {
        None => {
            transaction.execute_batch(TABLES).map_err(failed)?;
            transaction
                .execute("INSERT INTO mcp_receipts_schema VALUES (?1)", [SCHEMA])
                .map_err(failed)?;
        }
        Some(found) if found > SCHEMA => {
            return Err(LedgerError::Newer {
                found,
                known: SCHEMA,
            });
        }
        Some(_) => {}
    }
    transaction.commit().map_err(failed)
}

pub(super) fn by_key(
    connection: &Connection,
    identity: &Identity,
) -> Result<Option<Receipt>, LedgerError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM mcp_receipts WHERE scope = ?1 AND operation = ?2 AND key = ?3"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
    let key = params![
        identity.scope.as_str(),
        &*identity.operation,
        identity.key.as_str()
    ];
    let found = statement.query_row(key, |row| Ok(read(row))).optional();
    found.map_err(failed)?.transpose()
}

pub(in crate::receipts) fn by_id(
    connection: &Connection,
    id: OperationId,
) -> Result<Option<Receipt>, LedgerError> {
    let sql = format!("SELECT {COLUMNS} FROM mcp_receipts WHERE operation_id = ?1");
    let mut statement = connection.prepare_cached(&sql).map_err(failed)?;
    let found = statement
        .query_row([id.as_bytes()], |row| Ok(read(row)))
        .optional();
    found.map_err(failed)?.transpose()
}

pub(super) fn insert(connection: &Connection, receipt: &Receipt) -> Result<(), LedgerError> {
    let mut statement = connection
        .prepare_cached(
            "INSERT INTO mcp_receipts (scope, operation, key, version, fingerprint, operation_id, \
             state, standing, at, answered_until, refused_until) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )
        .map_err(failed)?;
    let inserted = statement.execute(params![
        receipt.identity.scope.as_str(),
        &*receipt.identity.operation,
        receipt.identity.key.as_str(),
        receipt.version,
        receipt.fingerprint.as_bytes(),
        receipt.id.as_bytes(),
        number(receipt.standing.state()),
        written(&receipt.standing)?,
        millis(receipt.at),
        millis(receipt.answered_until),
        millis(receipt.refused_until),
    ]);
    inserted.map(drop).map_err(failed)
}

/// Says what an operation came to, and keeps that for as long from now on as it would have been kept
/// from its beginning.
pub(in crate::receipts) fn settle(
    connection: &Connection,
    id: OperationId,
    standing: &Standing,
    now: SystemTime,
) -> Result<Settled, LedgerError> {
    let Some(found) = by_id(connection, id)? else {
        return Ok(Settled::Missing);
    };
    if !found.standing.may_become(standing) {
        return Ok(Settled::Before(found.standing));
    }
    let (at, now) = (millis(found.at), millis(now));
    let from_now = |until: SystemTime| now.saturating_add(millis(until).saturating_sub(at));
    let mut statement = connection
        .prepare_cached(
            "UPDATE mcp_receipts SET state = ?2, standing = ?3, answered_until = ?4, \
             refused_until = ?5 WHERE operation_id = ?1",
        )
        .map_err(failed)?;
    let updated = statement.execute(params![
        id.as_bytes(),
        number(standing.state()),
        written(standing)?,
        from_now(found.answered_until),
        from_now(found.refused_until),
    ]);
    updated.map(|_| Settled::Now).map_err(failed)
}

pub(super) fn sweep(
    transaction: &Transaction<'_>,
    now: SystemTime,
    at_most: usize,
) -> Result<Swept, LedgerError> {
    let (now, at_most) = (millis(now), i64::try_from(at_most).unwrap_or(i64::MAX));
    let answers = transaction.execute(
        "UPDATE mcp_receipts SET state = 3, standing = ?3 WHERE id IN (SELECT id FROM mcp_receipts \
         WHERE state = 1 AND answered_until <= ?1 ORDER BY answered_until LIMIT ?2)",
        params![now, at_most, written(&Standing::Expired)?],
    );
    let answers = answers.map_err(failed)?;
    let tombstones = transaction.execute(
        "DELETE FROM mcp_receipts WHERE id IN (SELECT id FROM mcp_receipts \
         WHERE state = 3 AND refused_until <= ?1 ORDER BY refused_until LIMIT ?2)",
        params![now, at_most],
    );
    let tombstones = tombstones.map_err(failed)?;
    Ok(Swept {
        answers,
        tombstones,
    })
}

fn written(standing: &Standing) -> Result<String, LedgerError> {
    serde_json::to_string(standing).map_err(|error| LedgerError::Corrupt(error.to_string().into()))
}

fn read(row: &Row<'_>) -> Result<Receipt, LedgerError> {
    let corrupt = |what: &str| LedgerError::Corrupt(what.into());
    let text = |at: usize| row.get::<_, String>(at).map_err(failed);
    let moment = |at: usize| row.get::<_, i64>(at).map(time).map_err(failed);
    let scope: Scope = text(0)?.parse().map_err(|_| corrupt("a scope"))?;
    let key: IdempotencyKey = text(2)?.parse().map_err(|_| corrupt("a key"))?;
    let standing = serde_json::from_str(&text(6)?).map_err(|_| corrupt("a standing"))?;
    Ok(Receipt {
        id: OperationId::from_bytes(row.get(5).map_err(failed)?),
        identity: Identity::new(scope, text(1)?, key),
        version: row.get(3).map_err(failed)?,
        fingerprint: Fingerprint::from_bytes(row.get(4).map_err(failed)?),
        standing,
        at: moment(7)?,
        answered_until: moment(8)?,
        refused_until: moment(9)?,
    })
}
