//! One operation as its row, and back. What comes back is what was written, or an error.

use std::{path::Path, time::SystemTime};

use rusqlite::Row;
use sha2::{Digest as _, Sha256};

use super::{StoreError, trouble::told};
use crate::{
    journal::{Entry, Holder, Intent, Record, State},
    operation::{ConnectionName, IdempotencyKey, OperationId},
};

/// What of a row makes a record, in this order. `name` is the host's.
pub(super) const COLUMNS: &str = "row, state, settled_at, operations.host, fence, sum, id, key, connection, intent, history, name";
/// Where they come from.
pub(super) const FROM: &str = "operations LEFT JOIN hosts USING (host)";

/// How a state is written. Numbers are not given twice.
pub(super) fn code(state: State) -> i64 {
    match state {
        State::Accepted => 1,
        State::Dispatching => 2,
        State::CancelRequested => 3,
        State::OutcomeUnknown => 4,
        State::Succeeded => 5,
        State::Failed => 6,
        State::Rejected => 7,
        State::NotSent => 8,
        State::Cancelled => 9,
        State::Forgotten => 10,
    }
}

/// A point in time as nanoseconds since 1970, up to the year 2262.
pub(super) fn nanos(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

/// A connection's name and a key on it, as what is compared.
pub(super) type KeyDigest = [u8; 16];

/// 128 bits of a SHA-256: nobody finds two with one digest.
pub(super) fn digest(connection: &ConnectionName, key: &IdempotencyKey) -> KeyDigest {
    let mut sha = Sha256::new();
    sha.update(connection.as_str());
    // No name of a connection has a NUL in it.
    sha.update([0]);
    sha.update(key.as_str());
    let mut digest = [0; 16];
    digest.copy_from_slice(&sha.finalize()[..16]);
    digest
}

pub(super) fn digest_of(intent: &Intent) -> Option<KeyDigest> {
    let key = intent.key.as_ref()?;
    Some(digest(&intent.connection, key))
}

/// The checksum over what was written of an operation, entry by entry: FNV-1a, which no change of one
/// byte gets by. SQLite has none over its pages. It is against damage, not against people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chain(u64);

impl Chain {
    pub(super) fn over_intent(
        row: i64,
        operation: OperationId,
        key: Option<KeyDigest>,
        connection: &str,
        intent: &str,
    ) -> Self {
        Self(0xcbf2_9ce4_8422_2325)
            .over(&row.to_le_bytes())
            .over(operation.as_bytes())
            .over(key.as_ref().map_or(&[][..], |key| key))
            .over(connection.as_bytes())
            .over(intent.as_bytes())
    }

    pub(super) fn over_line(self, line: &str) -> Self {
        self.over(line.as_bytes())
    }

    /// The sum of the whole row.
    pub(super) fn sum(self, state: i64, settled_at: Option<i64>, host: &str, fence: u64) -> i64 {
        self.over(&state.to_le_bytes())
            .over(&settled_at.unwrap_or(-1).to_le_bytes())
            .over(host.as_bytes())
            .over(&fence.to_le_bytes())
            .0
            .cast_signed()
    }

    fn over(self, bytes: &[u8]) -> Self {
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Self(bytes.iter().fold(self.0, step))
    }
}

/// An entry as a line of a history.
pub(super) fn line(entry: &Entry) -> Result<String, StoreError> {
    let mut line = json(entry)?;
    line.push('\n');
    Ok(line)
}

pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Unavailable(format!("it cannot be written: {error}").into()))
}

/// A row of [`COLUMNS`] whose checksum is right.
pub(super) struct Raw {
    pub(super) row: i64,
    pub(super) state: i64,
    pub(super) key: Option<KeyDigest>,
    operation: OperationId,
    fence: u64,
    intent: String,
    history: String,
    host: String,
    chain: Chain,
}

impl Raw {
    pub(super) fn read(path: &Path, row: &Row<'_>) -> Result<Self, StoreError> {
        let id: [u8; 16] = row.get(6).map_err(|error| told(path, &error))?;
        let operation = OperationId::from_bytes(id);
        let other = |_| damaged(path, operation, "a column is not what was written");
        let connection: &str = row
            .get_ref(8)
            .map_err(other)?
            .as_str()
            .map_err(|_| damaged(path, operation, "its connection is not what was written"))?;
        let (settled_at, fence, sum): (Option<i64>, i64, i64) = (
            row.get(2).map_err(other)?,
            row.get(4).map_err(other)?,
            row.get(5).map_err(other)?,
        );
        let name: Option<String> = row.get(11).map_err(other)?;
        let mut raw = Self {
            row: row.get(0).map_err(other)?,
            state: row.get(1).map_err(other)?,
            key: row.get(7).map_err(other)?,
            operation,
            fence: fence.cast_unsigned(),
            intent: row.get(9).map_err(other)?,
            history: row.get(10).map_err(other)?,
            host: name.ok_or_else(|| damaged(path, operation, "its host is unknown"))?,
            chain: Chain(0),
        };
        raw.chain = Chain::over_intent(raw.row, operation, raw.key, connection, &raw.intent)
            .over(raw.history.as_bytes());
        match raw.chain.sum(raw.state, settled_at, &raw.host, raw.fence) == sum {
            true => Ok(raw),
            false => Err(damaged(path, operation, "its checksum is another")),
        }
    }

    pub(super) fn decode(self, path: &Path) -> Result<Read, StoreError> {
        let damaged = |what: &str| damaged(path, self.operation, what);
        let intent: Intent =
            serde_json::from_str(&self.intent).map_err(|_| damaged("its intent cannot be read"))?;
        let entries: Result<Vec<Entry>, _> =
            self.history.lines().map(serde_json::from_str).collect();
        let entries = entries.map_err(|_| damaged("its history cannot be read"))?;
        let mut record =
            Record::replay(intent, entries).map_err(|error| damaged(&error.to_string()))?;
        if record.intent.operation != self.operation || code(record.state) != self.state {
            return Err(damaged("its row says something else than its history"));
        }
        record.owner = Some(Holder {
            host: self.host,
            fence: self.fence,
        });
        Ok(Read {
            row: self.row,
            record,
            fence: self.fence,
            chain: self.chain,
        })
    }
}

fn damaged(path: &Path, operation: OperationId, what: &str) -> StoreError {
    StoreError::Corrupt(format!("{}: operation {operation}: {what}", path.display()).into())
}

/// A record, and what a writer has to know in order to write more of it.
pub(super) struct Read {
    pub(super) row: i64,
    pub(super) record: Record,
    pub(super) fence: u64,
    pub(super) chain: Chain,
}

/// The operation in a row of [`COLUMNS`].
pub(super) fn read(path: &Path, row: &Row<'_>) -> Result<Read, StoreError> {
    Raw::read(path, row)?.decode(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_states_have_one_number() {
        let mut codes: Vec<_> = State::ALL.map(code).into();
        codes.dedup();
        assert_eq!(codes, (1..=10).collect::<Vec<_>>());
    }

    #[test]
    fn no_change_of_one_byte_keeps_the_checksum() {
        let text = b"{\"fact\":\"dispatching\"}\n".to_vec();
        let chain = |bytes: &[u8]| Chain(7).over(bytes);
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut other = text.clone();
                other[at] ^= 1 << bit;
                assert_ne!(chain(&text), chain(&other));
            }
        }
    }
}
