//! Rows as records, and records as rows.

use deadpool_postgres::tokio_postgres;
use serde::Serialize;
use tokio_postgres::{Row, types::FromSql};

use super::moves;
use crate::journal::{Entry, Holder, Intent, Record, StoreError};

/// A record with what the store knows of it beside.
pub(super) struct Found {
    pub(super) record: Record,
    pub(super) row: i64,
    pub(super) fence: u64,
    /// Which write made it.
    pub(super) accepted: String,
    /// Which write claimed it last.
    pub(super) claimed: Option<String>,
    /// Whether its host is at work on it.
    pub(super) held: bool,
    /// Whether that host lives.
    pub(super) alive: bool,
}

impl Found {
    /// Whether a host had it that is gone.
    pub(super) fn is_orphan(&self) -> bool {
        self.held && !self.alive
    }
}

pub(super) fn odd() -> StoreError {
    StoreError::Corrupt("a table of the journal does not have the columns it should have".into())
}

pub(super) fn column<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, StoreError> {
    row.try_get(name).map_err(|_| odd())
}

/// As it is kept.
pub(super) fn written(what: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(what)
        .map_err(|_| StoreError::Unavailable("an operation that is no JSON".into()))
}

pub(super) fn found(row: &Row) -> Result<Found, StoreError> {
    let number: i64 = column(row, "row")?;
    let damaged =
        |what: &str| StoreError::Corrupt(format!("operation in row {number}: {what}").into());
    let intent: Intent = serde_json::from_str(column(row, "intent")?)
        .map_err(|_| damaged("its intent cannot be read"))?;
    let history: Vec<&str> = column(row, "history")?;
    let entries: i32 = column(row, "entries")?;
    if usize::try_from(entries).ok() != Some(history.len()) {
        return Err(damaged("a part of its history is missing"));
    }
    let history: Vec<Entry> = history
        .into_iter()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(|_| damaged("its history cannot be read"))?;
    let mut record =
        Record::replay(intent, history).map_err(|_| damaged("its history is impossible"))?;
    if moves::state(column(row, "state")?) != Some(record.state) {
        return Err(damaged("its history does not lead to its state"));
    }
    let fence: i64 = column(row, "fence")?;
    let fence = u64::try_from(fence).map_err(|_| damaged("its fencing number is negative"))?;
    record.owner = Some(Holder {
        host: column(row, "host")?,
        fence,
    });
    Ok(Found {
        record,
        row: number,
        fence,
        accepted: column(row, "accepted")?,
        claimed: column(row, "claimed")?,
        held: column(row, "held")?,
        alive: column(row, "alive")?,
    })
}
