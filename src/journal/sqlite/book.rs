//! What the writer knows and does: one statement for each write of one operation, and beside the
//! file, in memory, the keys and who has what.
//!
//! Memory changes after its statement succeeded, and with a note of how it was before: a group that
//! could not be committed is undone here as SQLite undoes it there.

use std::{collections::HashMap, path::PathBuf, time::SystemTime};

use rusqlite::{Connection, OptionalExtension as _, params};

use super::{
    StoreError,
    row::{COLUMNS, Chain, FROM, KeyDigest, Read, code, digest_of, json, line, nanos, read},
    trouble::told,
};
use crate::{
    journal::{
        Accepted, Claimed, Entry, Fact, Held, Holder, Intent, Record, State, Swept, table::next,
    },
    operation::{AttemptId, OperationId},
};

/// An intent, ready to be written.
pub(super) struct Draft {
    pub(super) operation: OperationId,
    pub(super) connection: String,
    pub(super) key: Option<KeyDigest>,
    pub(super) text: String,
    pub(super) accepted_at: SystemTime,
    pub(super) first: Option<AttemptId>,
}

impl Draft {
    pub(super) fn of(intent: &Intent, first: Option<AttemptId>) -> Result<Self, StoreError> {
        Ok(Self {
            operation: intent.operation,
            connection: intent.connection.as_str().to_owned(),
            key: digest_of(intent),
            text: json(intent)?,
            accepted_at: intent.accepted_at,
            first,
        })
    }

    fn chain(&self, row: i64) -> Chain {
        Chain::over_intent(row, self.operation, self.key, &self.connection, &self.text)
    }
}

pub(super) struct Book {
    pub(super) path: PathBuf,
    pub(super) connection: Connection,
    pub(super) host: i64,
    pub(super) host_name: String,
    pub(super) next_row: i64,
    /// The last row under each key.
    pub(super) keys: HashMap<KeyDigest, i64>,
    /// What is not settled, by row.
    pub(super) open: HashMap<i64, Open>,
    pub(super) undo: Vec<Undo>,
}

/// What the next write of an unsettled operation has to know.
#[derive(Clone, Copy)]
pub(super) struct Open {
    pub(super) operation: OperationId,
    pub(super) state: State,
    pub(super) fence: u64,
    pub(super) chain: Chain,
    /// When the last that is known of it was written.
    pub(super) last: SystemTime,
    /// Whether somebody resolves it.
    pub(super) claimed: bool,
}

pub(super) enum Undo {
    Open(i64, Option<Open>),
    Key(KeyDigest, Option<i64>),
}

impl Book {
    // The transaction of a group.

    pub(super) fn begin(&mut self) -> Result<(), StoreError> {
        self.undo.clear();
        self.run("BEGIN IMMEDIATE", [])?;
        Ok(())
    }

    /// Whether the transaction is still there: some errors of a statement end it.
    pub(super) fn in_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }

    pub(super) fn commit(&mut self) -> Result<(), StoreError> {
        match self.run("COMMIT", []) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    /// Makes memory and file as they were before the group.
    pub(super) fn roll_back(&mut self) {
        if self.in_transaction() {
            // It cannot fail in a way that keeps the transaction.
            let _ = self.run("ROLLBACK", []);
        }
        for undo in std::mem::take(&mut self.undo).into_iter().rev() {
            match undo {
                Undo::Open(row, Some(open)) => drop(self.open.insert(row, open)),
                Undo::Open(row, None) => drop(self.open.remove(&row)),
                Undo::Key(key, Some(row)) => drop(self.keys.insert(key, row)),
                Undo::Key(key, None) => drop(self.keys.remove(&key)),
            }
        }
    }

    // The writes.

    pub(super) fn accept(&mut self, draft: &Draft) -> Result<Accepted, StoreError> {
        if let Some(record) = self.rival(draft)? {
            return Ok(Accepted::Found(Box::new(record)));
        }
        let row = self.next_row;
        let mut open = Open {
            operation: draft.operation,
            state: State::Accepted,
            fence: 1,
            chain: draft.chain(row),
            last: draft.accepted_at,
            claimed: false,
        };
        let mut history = String::new();
        if let Some(attempt) = draft.first {
            history = open.follow(Fact::Dispatching { attempt })?;
        }
        let sum = open.sum(None, &self.host_name);
        let inserted = self
            .connection
            .prepare_cached("INSERT INTO operations VALUES (?, ?, NULL, ?, ?, ?, ?, ?, ?, ?, ?)");
        let inserted = inserted.and_then(|mut insert| {
            insert.execute(params![
                row,
                code(open.state),
                self.host,
                open.fence.cast_signed(),
                sum,
                draft.operation.as_bytes(),
                draft.key,
                draft.connection,
                draft.text,
                history,
            ])
        });
        match inserted {
            Ok(_) => {}
            Err(error) if is_taken(&error) => {
                let found = self.by_id(draft.operation)?;
                let found = found.ok_or_else(|| self.told(&error))?;
                return Ok(Accepted::Found(Box::new(found.record)));
            }
            Err(error) => return Err(self.told(&error)),
        }
        self.next_row += 1;
        self.set_open(row, Some(open));
        if let Some(key) = draft.key {
            self.set_key(key, Some(row));
        }
        Ok(Accepted::New(open.held(row)))
    }

    /// The operation that has the id, or the key and has not freed it. The insert sees to the id where
    /// the key is new, which is the usual case.
    fn rival(&self, draft: &Draft) -> Result<Option<Record>, StoreError> {
        let Some(row) = draft.key.and_then(|key| self.keys.get(&key)) else {
            return Ok(None);
        };
        if let Some(found) = self.by_id(draft.operation)? {
            return Ok(Some(found.record));
        }
        let found = self.by_row(*row)?;
        let found = found.filter(|found| !found.record.state.frees_its_key());
        Ok(found.map(|found| found.record))
    }

    pub(super) fn append(&mut self, held: &Held, fact: &Fact) -> Result<State, StoreError> {
        let Some(mut open) = self.open.get(&held.row).copied() else {
            return self.append_to_settled(held, fact);
        };
        if open.operation != held.operation || open.fence != held.fence {
            return Err(StoreError::Fenced);
        }
        let line = open.follow(fact.clone())?;
        self.add(held.row, open, &line)?;
        Ok(open.state)
    }

    /// The rare case, and mostly one that the table refuses.
    fn append_to_settled(&mut self, held: &Held, fact: &Fact) -> Result<State, StoreError> {
        let found = self.by_id(held.operation)?;
        let mut found = found
            .filter(|found| found.row == held.row && found.fence == held.fence)
            .ok_or(StoreError::Fenced)?;
        found.record.apply(entry(&found.record, fact.clone()))?;
        self.rewrite(&found)?;
        Ok(found.record.state)
    }

    /// Adds a line to an unsettled operation, which is then as in `open`.
    fn add(&mut self, row: i64, open: Open, line: &str) -> Result<(), StoreError> {
        let settled_at = open.state.is_settled().then(|| nanos(open.last));
        let sum = open.sum(settled_at, &self.host_name);
        let changed = self.run(
            "UPDATE operations SET state = ?2, settled_at = ?3, host = ?4, fence = ?5, sum = ?6,
             history = history || ?7 WHERE row = ?1",
            params![
                row,
                code(open.state),
                settled_at,
                self.host,
                open.fence.cast_signed(),
                sum,
                line
            ],
        )?;
        if changed != 1 {
            let text = format!(
                "{}: operation {} is gone",
                self.path.display(),
                open.operation
            );
            return Err(StoreError::Corrupt(text.into()));
        }
        self.set_open(row, (!open.state.is_settled()).then_some(open));
        Ok(())
    }

    pub(super) fn claim(&mut self, operation: OperationId) -> Result<Claimed, StoreError> {
        let Some(Read {
            row, mut record, ..
        }) = self.by_id(operation)?
        else {
            return Ok(Claimed::Missing);
        };
        let Some(mut open) = self.open.get(&row).copied() else {
            return Ok(Claimed::Settled(Box::new(record)));
        };
        if open.state != State::OutcomeUnknown || open.claimed {
            return Ok(Claimed::Elsewhere(Box::new(record)));
        }
        open.claimed = true;
        self.pass_on(row, open)?;
        let held = Held {
            fence: open.fence + 1,
            ..open.held(row)
        };
        record.owner = Some(Holder {
            host: self.host_name.clone(),
            fence: held.fence,
        });
        Ok(Claimed::Yes(held, Box::new(record)))
    }

    pub(super) fn release(&mut self, held: &Held) -> Result<(), StoreError> {
        let Some(mut open) = self.open.get(&held.row).copied() else {
            return Ok(());
        };
        if open.operation != held.operation || open.fence != held.fence {
            return Err(StoreError::Fenced);
        }
        match open.state {
            State::OutcomeUnknown => {
                open.claimed = false;
                self.pass_on(held.row, open)
            }
            _ => Ok(()),
        }
    }

    /// From now on what was held of it is worth nothing.
    fn pass_on(&mut self, row: i64, mut open: Open) -> Result<(), StoreError> {
        open.fence += 1;
        self.add(row, open, "")
    }

    /// What a dead host left: it was not sent, or nobody knows.
    pub(super) fn take_over(&mut self, found: &Read) -> Result<(), StoreError> {
        let host = found.record.owner.as_ref();
        let host = host.map_or_else(String::new, |owner| owner.host.clone());
        let mut open = Open::of(found);
        open.fence += 1;
        let line = open.follow(Fact::Abandoned { host })?;
        self.add(found.row, open, &line)
    }

    pub(super) fn sweep(
        &mut self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Result<Swept, StoreError> {
        let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
        let forget = self.rows(
            "SELECT row FROM operations
             WHERE state IN (5, 6, 9) AND settled_at < ?1 LIMIT ?2",
            params![nanos(answers), at_most],
        )?;
        let remove = self.rows(
            "SELECT row FROM operations
             WHERE state IN (7, 8) AND settled_at < ?1 OR state = 10 AND settled_at < ?2 LIMIT ?3",
            params![nanos(answers), nanos(tombstones), at_most],
        )?;
        for row in &remove {
            let key = "SELECT key FROM operations WHERE row = ?";
            let key: Option<KeyDigest> = self.ask(key, *row)?.flatten();
            self.run("DELETE FROM operations WHERE row = ?", [row])?;
            // Another may have taken the key since.
            if let Some(key) = key.filter(|key| self.keys.get(key) == Some(row)) {
                self.set_key(key, None);
            }
        }
        for row in &forget {
            let Some(mut found) = self.by_row(*row)? else {
                continue;
            };
            found.record.apply(entry(&found.record, Fact::Forgotten))?;
            self.rewrite(&found)?;
        }
        Ok(Swept {
            forgotten: forget.len(),
            removed: remove.len(),
        })
    }

    /// Writes a settled operation anew: what was taken out of its record is gone from the file, too.
    fn rewrite(&mut self, found: &Read) -> Result<(), StoreError> {
        let Read { row, record, .. } = found;
        let mut history = String::new();
        for entry in &record.history {
            history += &line(entry)?;
        }
        let draft = Draft::of(&record.intent, None)?;
        let chain = draft.chain(*row).over_line(&history);
        // The time from which it is kept is that of what settled it.
        let settled_at: Option<i64> = self
            .ask("SELECT settled_at FROM operations WHERE row = ?", *row)?
            .flatten();
        let state = code(record.state);
        let sum = chain.sum(state, settled_at, &self.host_name, found.fence);
        self.run(
            "UPDATE operations SET state = ?2, host = ?3, sum = ?4, intent = ?5, history = ?6
             WHERE row = ?1",
            params![row, state, self.host, sum, draft.text, history],
        )?;
        Ok(())
    }

    // Reading, within the group.

    /// The last operation under a key.
    pub(super) fn by_key(&self, key: KeyDigest) -> Result<Option<Record>, StoreError> {
        let Some(row) = self.keys.get(&key) else {
            return Ok(None);
        };
        Ok(self.by_row(*row)?.map(|found| found.record))
    }

    fn by_id(&self, operation: OperationId) -> Result<Option<Read>, StoreError> {
        self.one("id", operation.as_bytes())
    }

    pub(super) fn by_row(&self, row: i64) -> Result<Option<Read>, StoreError> {
        self.one("row", &row)
    }

    fn one(&self, column: &str, is: &dyn rusqlite::ToSql) -> Result<Option<Read>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM {FROM} WHERE {column} = ?");
        let failed = |error| self.told(&error);
        let mut statement = self.connection.prepare_cached(&sql).map_err(failed)?;
        let mut rows = statement.query([is]).map_err(failed)?;
        let row = rows.next().map_err(failed)?;
        row.map(|row| read(&self.path, row)).transpose()
    }

    fn rows(&self, sql: &str, with: impl rusqlite::Params) -> Result<Vec<i64>, StoreError> {
        let found = self.connection.prepare_cached(sql).and_then(|mut sql| {
            let rows = sql.query_map(with, |row| row.get(0))?;
            rows.collect()
        });
        found.map_err(|error| self.told(&error))
    }

    fn ask<T: rusqlite::types::FromSql>(
        &self,
        sql: &str,
        row: i64,
    ) -> Result<Option<T>, StoreError> {
        let found = self.connection.prepare_cached(sql);
        found
            .and_then(|mut sql| sql.query_row([row], |row| row.get(0)).optional())
            .map_err(|error| self.told(&error))
    }

    pub(super) fn run(&self, sql: &str, with: impl rusqlite::Params) -> Result<usize, StoreError> {
        let done = self.connection.prepare_cached(sql);
        done.and_then(|mut sql| sql.execute(with))
            .map_err(|error| self.told(&error))
    }

    pub(super) fn told(&self, error: &rusqlite::Error) -> StoreError {
        told(&self.path, error)
    }

    // Memory, with a note of how it was.

    fn set_open(&mut self, row: i64, open: Option<Open>) {
        let before = match open {
            Some(open) => self.open.insert(row, open),
            None => self.open.remove(&row),
        };
        self.undo.push(Undo::Open(row, before));
    }

    fn set_key(&mut self, key: KeyDigest, row: Option<i64>) {
        let before = match row {
            Some(row) => self.keys.insert(key, row),
            None => self.keys.remove(&key),
        };
        self.undo.push(Undo::Key(key, before));
    }
}

impl Open {
    pub(super) fn of(found: &Read) -> Self {
        Self {
            operation: found.record.intent.operation,
            state: found.record.state,
            fence: found.fence,
            chain: found.chain,
            last: last(&found.record),
            claimed: false,
        }
    }

    fn sum(&self, settled_at: Option<i64>, host: &str) -> i64 {
        self.chain
            .sum(code(self.state), settled_at, host, self.fence)
    }

    fn held(&self, row: i64) -> Held {
        Held {
            operation: self.operation,
            row,
            fence: self.fence,
        }
    }

    /// Moves on by `fact`, whose line this is. A clock that was set back stands still here.
    fn follow(&mut self, fact: Fact) -> Result<String, StoreError> {
        let state = next(self.state, fact.event())?;
        let at = self.last.max(SystemTime::now());
        let line = line(&Entry { at, fact })?;
        (self.state, self.last, self.chain) = (state, at, self.chain.over_line(&line));
        Ok(line)
    }
}

fn last(record: &Record) -> SystemTime {
    let accepted = record.intent.accepted_at;
    record
        .last()
        .map_or(accepted, |entry| entry.at.max(accepted))
}

fn entry(record: &Record, fact: Fact) -> Entry {
    let at = last(record).max(SystemTime::now());
    Entry { at, fact }
}

/// Whether a row was not inserted because its id is there.
fn is_taken(error: &rusqlite::Error) -> bool {
    let sqlite = error.sqlite_error();
    sqlite.is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE)
}
