//! The writes: each is one statement, repeated on another connection until the database has told what
//! became of it.

use std::{sync::Arc, time::Duration, time::SystemTime};

use uuid::Uuid;

use super::{
    database::{Database, Given},
    fault::Fault,
    lease::{Lease, Tenure},
    moves::{self, Moves, word},
    read::{Found, column, found, odd, written},
    sql::Sql,
    take_over,
};
use crate::{
    journal::{
        Accepted, Claimed, Entry, Fact, Held, Intent, StoreError,
        table::{Event, State},
    },
    operation::{AttemptId, OperationId},
};

/// What a write needs.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) database: Database,
    pub(super) sql: Arc<Sql>,
    pub(super) lease: Arc<Lease>,
}

/// A moment for another host's transaction to end.
const MOMENT: Duration = Duration::from_millis(10);

/// A write that lets something be sent counts only while the lease lasts: one that took too long is
/// recorded, and whoever finds it treats it as unknown.
fn still(tenure: &Tenure) -> Result<(), StoreError> {
    match tenure.lasts(Duration::ZERO) {
        true => Ok(()),
        false => Err(StoreError::Fenced),
    }
}

impl Desk {
    pub(super) async fn accept(
        &self,
        intent: Intent,
        first: Option<AttemptId>,
    ) -> Result<Accepted, StoreError> {
        let operation = intent.operation.to_string();
        let connection = intent.connection.as_str();
        let key = intent.key.as_ref().map(|key| key.as_str());
        let text = written(&intent)?;
        let state = word(match first {
            Some(_) => State::Dispatching,
            None => State::Accepted,
        });
        let entry = first.map(|attempt| Entry {
            at: SystemTime::now(),
            fact: Fact::Dispatching { attempt },
        });
        let entry = entry.as_ref().map(written).transpose()?;
        let token = Uuid::now_v7().to_string();
        loop {
            let tenure = self.lease.tenure().await?;
            let host = &*tenure.host;
            let rows = self
                .database
                .ask(
                    &self.sql.accept,
                    &[
                        &operation,
                        &connection,
                        &key,
                        &text,
                        &state,
                        &host,
                        &entry,
                        &token,
                    ],
                )
                .await?;
            let row = rows.first().ok_or_else(odd)?;
            if let Some(row) = column::<Option<i64>>(row, "row")? {
                still(&tenure)?;
                return Ok(Accepted::New(Held {
                    operation: intent.operation,
                    row,
                    fence: 1,
                }));
            }
            let alive: bool = column(row, "alive")?;
            let rows = self
                .database
                .ask(&self.sql.rival, &[&operation, &connection, &key])
                .await?;
            let Some(rival) = rows.first().map(found).transpose()? else {
                // The lease ended in the database, or the rival is gone since.
                if !alive {
                    self.lease.lost(&tenure);
                }
                continue;
            };
            if rival.accepted == token {
                let ours = rival.record.owner.as_ref().is_some_and(|o| o.host == host);
                if !ours || rival.fence != 1 || rival.is_orphan() {
                    return Err(StoreError::Fenced);
                }
                still(&tenure)?;
                return Ok(Accepted::New(Held {
                    operation: intent.operation,
                    row: rival.row,
                    fence: 1,
                }));
            }
            if rival.is_orphan() {
                self.take_over().await?;
                continue;
            }
            return Ok(Accepted::Found(Box::new(rival.record)));
        }
    }

    pub(super) async fn append(&self, held: &Held, fact: Fact) -> Result<State, StoreError> {
        let event = fact.event();
        let at = SystemTime::now();
        let entry = written(&Entry { at, fact })?;
        let token = Uuid::now_v7().to_string();
        let moves = Moves::of(event);
        let fence = i64::try_from(held.fence).map_err(|_| StoreError::Fenced)?;
        let operation = held.operation.to_string();
        let tenure = self.lease.tenure().await?;
        let host = &*tenure.host;
        let mut tries = self.database.tries();
        loop {
            let lent = tries.connection().await?;
            let moved = lent
                .query(
                    &self.sql.append,
                    &[
                        &held.row,
                        &fence,
                        &host,
                        &token,
                        &entry,
                        &moves.from,
                        &moves.to,
                        &moves.frees,
                        &moves.lets_go,
                        &moves.settles,
                        &at,
                        &operation,
                    ],
                )
                .await;
            let moved = match moved {
                Ok(rows) => {
                    lent.give_back();
                    rows
                }
                // The statement that was taken for lost was not.
                Err(Fault::Twice) => Vec::new(),
                Err(fault) => {
                    tries.after(fault)?;
                    continue;
                }
            };
            if let Some(row) = moved.first() {
                if event == Event::Dispatch {
                    still(&tenure)?;
                }
                return moves::state(column(row, "state")?).ok_or_else(odd);
            }
            let rows = self
                .database
                .ask(&self.sql.standing, &[&held.row, &host, &token, &operation])
                .await?;
            let row = rows.first().ok_or(StoreError::Fenced)?;
            let now = moves::state(column(row, "state")?).ok_or_else(odd)?;
            let alive: bool = column(row, "alive")?;
            if column(row, "written")? {
                if event == Event::Dispatch {
                    still(&tenure)?;
                }
                return Ok(now);
            }
            if !alive {
                self.lease.lost(&tenure);
            }
            let ours: bool = column(row, "ours")?;
            if !alive || !ours || column::<i64>(row, "fence")? != fence {
                return Err(StoreError::Fenced);
            }
            moves::judge(now, event)?;
        }
    }

    pub(super) async fn claim(&self, operation: OperationId) -> Result<Claimed, StoreError> {
        let id = operation.to_string();
        let token = Uuid::now_v7().to_string();
        loop {
            let tenure = self.lease.tenure().await?;
            let host = &*tenure.host;
            let rows = self
                .database
                .ask(&self.sql.claim, &[&id, &host, &token])
                .await?;
            let row = rows.first().ok_or_else(odd)?;
            let alive: bool = column(row, "alive")?;
            let rows = self.database.ask(&self.sql.by_operation, &[&id]).await?;
            let Some(there) = rows.first().map(found).transpose()? else {
                return Ok(Claimed::Missing);
            };
            if there.record.state.is_settled() {
                return Ok(Claimed::Settled(Box::new(there.record)));
            }
            if there.is_orphan() {
                self.take_over().await?;
                continue;
            }
            if there.held {
                let ours = there.record.owner.as_ref().is_some_and(|o| o.host == host);
                if !ours || there.claimed.as_ref() != Some(&token) {
                    return Ok(Claimed::Elsewhere(Box::new(there.record)));
                }
                let held = Held {
                    operation,
                    row: there.row,
                    fence: there.fence,
                };
                return Ok(Claimed::Yes(held, Box::new(there.record)));
            }
            // Free, and yet not taken: the lease ended in the database, or it was freed since.
            if !alive {
                self.lease.lost(&tenure);
            }
        }
    }

    pub(super) async fn release(&self, held: &Held) -> Result<(), StoreError> {
        let fence = i64::try_from(held.fence).map_err(|_| StoreError::Fenced)?;
        let operation = held.operation.to_string();
        let tenure = self.lease.tenure().await?;
        let host = &*tenure.host;
        let mut tries = self.database.tries();
        let mut again = false;
        let released = loop {
            let lent = tries.connection().await?;
            let given: Given<'_> = &[&held.row, &operation, &fence, &host];
            match lent.query(&self.sql.release, given).await {
                Ok(rows) => {
                    lent.give_back();
                    break !rows.is_empty();
                }
                Err(fault) => tries.after(fault)?,
            }
            again = true;
        };
        if released {
            return Ok(());
        }
        let no_token: Option<&str> = None;
        let given: Given<'_> = &[&held.row, &host, &no_token, &operation];
        let rows = self.database.ask(&self.sql.standing, given).await?;
        let row = rows.first().ok_or(StoreError::Fenced)?;
        let now: i64 = column(row, "fence")?;
        let state = moves::state(column(row, "state")?).ok_or_else(odd)?;
        // Nothing to give up, or given up by the statement whose answer was lost.
        let nothing = now == fence && state != State::OutcomeUnknown;
        let before = again && now == fence + 1 && !column::<bool>(row, "held")?;
        match column(row, "ours")? && (nothing || before) {
            true => Ok(()),
            false => Err(StoreError::Fenced),
        }
    }

    /// Takes over what dead hosts left, and lets a moment pass: another host may be at it.
    async fn take_over(&self) -> Result<(), StoreError> {
        take_over::all(&self.database, &self.sql).await?;
        tokio::time::sleep(MOMENT).await;
        Ok(())
    }

    /// What a question finds, once what dead hosts left is taken over.
    pub(super) async fn look(&self, sql: &str, given: Given<'_>) -> Result<Vec<Found>, StoreError> {
        loop {
            let rows = self.database.ask(sql, given).await?;
            let there = rows.iter().map(found).collect::<Result<Vec<_>, _>>()?;
            if !there.iter().any(Found::is_orphan) {
                return Ok(there);
            }
            self.take_over().await?;
        }
    }
}
