//! Receipts as rows. Each function is one statement or two of whatever transaction is open.

use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::Row;

use super::{
    fault,
    kept::{self, kept_until},
};
use crate::{
    operation::{Fingerprint, OperationId},
    receipts::{
        identity::{Arrival, Identity, Scope},
        ledger::{LedgerError, Settled, Swept},
        receipt::{Receipt, Standing, millis, time},
        table,
    },
};

const COLUMNS: &str = "id::text, scope, operation, key, version, fingerprint, standing, begun_at, \
                       answered_until, refused_until";

/// Takes a key, if nobody has it. A rival that has taken it and is not committed yet is waited for.
pub(super) async fn claim(on: &Transaction<'_>, arrival: &Arrival) -> Result<bool, LedgerError> {
    let sql = "INSERT INTO mcp_receipts (id, scope, operation, key, version, fingerprint, state, standing,
                                         begun_at, answered_until, refused_until)
               VALUES ($1::text::uuid, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
               ON CONFLICT (scope, operation, key) DO NOTHING";
    let statement = on.prepare_cached(sql).await.map_err(fault::of)?;
    let identity = &arrival.identity;
    let (state, standing) = columns(&Standing::Running)?;
    let (answered_until, refused_until) = kept_until(arrival);
    let inserted = on
        .execute(
            &statement,
            &[
                &arrival.id.to_string(),
                &identity.scope.as_str(),
                &&*identity.operation,
                &identity.key.as_str(),
                &i64::from(arrival.version),
                &arrival.fingerprint.as_bytes().as_slice(),
                &state,
                &standing,
                &millis(arrival.at),
                &answered_until,
                &refused_until,
            ],
        )
        .await;
    Ok(inserted.map_err(fault::of)? == 1)
}

/// Writes what an operation came to.
pub(super) async fn write(
    on: &Transaction<'_>,
    id: OperationId,
    standing: &Standing,
) -> Result<(), LedgerError> {
    let sql = "UPDATE mcp_receipts SET state = $2, standing = $3 WHERE id = $1::text::uuid";
    let statement = on.prepare_cached(sql).await.map_err(fault::of)?;
    let (state, standing) = columns(standing)?;
    let id = id.to_string();
    let written = on.execute(&statement, &[&id, &state, &standing]).await;
    match written.map_err(fault::of)? {
        1 => Ok(()),
        _ => Err(LedgerError::Corrupt(
            "a receipt is gone while it is written".into(),
        )),
    }
}

pub(super) async fn by_key(
    on: &impl GenericClient,
    identity: &Identity,
) -> Result<Option<Receipt>, LedgerError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM mcp_receipts WHERE scope = $1 AND operation = $2 AND key = $3"
    );
    let statement = on.prepare_cached(&sql).await.map_err(fault::of)?;
    let key = identity.key.as_str();
    let found = on
        .query_opt(
            &statement,
            &[&identity.scope.as_str(), &&*identity.operation, &key],
        )
        .await;
    found.map_err(fault::of)?.as_ref().map(read).transpose()
}

pub(super) async fn by_id(
    on: &impl GenericClient,
    id: OperationId,
) -> Result<Option<Receipt>, LedgerError> {
    let sql = format!("SELECT {COLUMNS} FROM mcp_receipts WHERE id = $1::text::uuid");
    let statement = on.prepare_cached(&sql).await.map_err(fault::of)?;
    let found = on.query_opt(&statement, &[&id.to_string()]).await;
    found.map_err(fault::of)?.as_ref().map(read).transpose()
}

/// Writes what an operation came to, unless somebody did before.
pub(super) async fn settle(
    on: &Transaction<'_>,
    id: OperationId,
    standing: Standing,
) -> Result<Settled, LedgerError> {
    let sql = format!("SELECT {COLUMNS} FROM mcp_receipts WHERE id = $1::text::uuid FOR UPDATE");
    let statement = on.prepare_cached(&sql).await.map_err(fault::of)?;
    let found = on.query_opt(&statement, &[&id.to_string()]).await;
    let Some(row) = found.map_err(fault::of)? else {
        return Ok(Settled::Missing);
    };
    let receipt = read(&row)?;
    if !receipt.standing.may_become(&standing) {
        return Ok(Settled::Before(receipt.standing));
    }
    // It is kept for as long from now on as it would have been kept from its beginning.
    let sql = "UPDATE mcp_receipts
               SET state = $2, standing = $3, answered_until = answered_until + $4 - begun_at,
                   refused_until = refused_until + $4 - begun_at
               WHERE id = $1::text::uuid";
    let statement = on.prepare_cached(sql).await.map_err(fault::of)?;
    let (state, standing) = columns(&standing)?;
    let (id, now) = (id.to_string(), kept::now());
    let written = on
        .execute(&statement, &[&id, &state, &standing, &now])
        .await;
    written.map_err(fault::of)?;
    Ok(Settled::Now)
}

/// Makes tombstones of answers whose time is over, and removes tombstones whose time is. Rows that
/// somebody else has a lock on are left to the next sweep.
pub(super) async fn sweep(
    on: &Transaction<'_>,
    now: i64,
    at_most: usize,
) -> Result<Swept, LedgerError> {
    let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
    let (state, standing) = columns(&Standing::Expired)?;
    let remove = "DELETE FROM mcp_receipts WHERE id IN (
                      SELECT id FROM mcp_receipts WHERE state = 'tombstone' AND refused_until <= $1
                      ORDER BY refused_until LIMIT $2 FOR UPDATE SKIP LOCKED)";
    let removed = on.execute(remove, &[&now, &at_most]).await;
    let removed = removed.map_err(fault::of)?;
    let bury = "UPDATE mcp_receipts SET state = $3, standing = $4 WHERE id IN (
                    SELECT id FROM mcp_receipts WHERE state = 'settled' AND answered_until <= $1
                    ORDER BY answered_until LIMIT $2 FOR UPDATE SKIP LOCKED)";
    let buried = on.execute(bury, &[&now, &at_most, &state, &standing]).await;
    let buried = buried.map_err(fault::of)?;
    Ok(Swept {
        answers: usize::try_from(buried).unwrap_or(usize::MAX),
        tombstones: usize::try_from(removed).unwrap_or(usize::MAX),
    })
}

/// The word for a state, by which the sweep finds its rows, and the standing as JSON.
fn columns(standing: &Standing) -> Result<(&'static str, String), LedgerError> {
    let state = match standing.state() {
        table::State::Running => "running",
        table::State::Settled => "settled",
        table::State::Unknown => "unknown",
        table::State::Tombstone => "tombstone",
    };
    let json = serde_json::to_string(standing)
        .map_err(|_| LedgerError::Corrupt("a result cannot be written as JSON".into()))?;
    Ok((state, json))
}

fn read(row: &Row) -> Result<Receipt, LedgerError> {
    parsed(row).map_err(|what| LedgerError::Corrupt(what.to_string().into()))
}

fn parsed(row: &Row) -> Result<Receipt, Box<dyn std::error::Error + Send + Sync>> {
    let text = |column: usize| row.try_get::<_, String>(column);
    let number = |column: usize| row.try_get::<_, i64>(column);
    let fingerprint: [u8; 32] = row.try_get::<_, &[u8]>(5)?.try_into()?;
    Ok(Receipt {
        id: text(0)?.parse()?,
        identity: Identity::new(text(1)?.parse::<Scope>()?, text(2)?, text(3)?.parse()?),
        version: number(4)?.try_into()?,
        fingerprint: Fingerprint::from_bytes(fingerprint),
        standing: serde_json::from_str(&text(6)?)?,
        at: time(number(7)?),
        answered_until: time(number(8)?),
        refused_until: time(number(9)?),
    })
}
