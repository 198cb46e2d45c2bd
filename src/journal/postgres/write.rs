//! The writes: each is one statement, repeated on another connection until the database has told what
//! became of it.

use std::{sync::Arc, time::Duration, time::SystemTime};

use uuid::Uuid;

use super::{
    database::{Database, Given},
    doubt::Doubts,
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
    pub(super) doubts: Doubts,
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

/// What is written of an intent.
struct Accepting {
    operation: String,
    intent: String,
    state: String,
    entry: Option<String>,
    token: String,
}

impl Accepting {
    fn of(intent: &Intent, first: Option<AttemptId>) -> Result<Self, StoreError> {
        let entry = first.map(|attempt| Entry {
            at: SystemTime::now(),
            fact: Fact::Dispatching { attempt },
        });
        Ok(Self {
            operation: intent.operation.to_string(),
            intent: written(intent)?,
            state: word(match first {
                Some(_) => State::Dispatching,
                None => State::Accepted,
            }),
            entry: entry.as_ref().map(written).transpose()?,
            token: Uuid::now_v7().to_string(),
        })
    }
}

impl Desk {
    pub(super) async fn accept(
        &self,
        intent: Intent,
        first: Option<AttemptId>,
    ) -> Result<Accepted, StoreError> {
        let given = Accepting::of(&intent, first)?;
        loop {
            let tenure = self.lease.tenure().await?;
            let in_doubt = self
                .doubts
                .dispatch(intent.operation, &tenure.host, &given.token);
            let accepted = self.accept_once(&tenure, &intent, &given).await?;
            in_doubt.answered();
            if let Some(accepted) = accepted {
                return Ok(accepted);
            }
        }
    }

    /// `None` where what stood in the way is gone since, or the lease ended: to be done again.
    async fn accept_once(
        &self,
        tenure: &Tenure,
        intent: &Intent,
        given: &Accepting,
    ) -> Result<Option<Accepted>, StoreError> {
        let Accepting {
            operation,
            intent: text,
            state,
            entry,
            token,
        } = given;
        let host = &*tenure.host;
        let connection = intent.connection.as_str();
        let key = intent.key.as_ref().map(|key| key.as_str());
        let new = |row| {
            still(tenure)?;
            Ok(Some(Accepted::New(Held {
                operation: intent.operation,
                row,
                fence: 1,
            })))
        };
        let columns: Given<'_> = &[
            operation,
            &connection,
            &key,
            text,
            state,
            &host,
            entry,
            token,
        ];
        let rows = self.database.ask(&self.sql.accept, columns).await?;
        let row = rows.first().ok_or_else(odd)?;
        if let Some(row) = column::<Option<i64>>(row, "row")? {
            return new(row);
        }
        let alive: bool = column(row, "alive")?;
        let columns: Given<'_> = &[operation, &connection, &key];
        let rows = self.database.ask(&self.sql.rival, columns).await?;
        let Some(rival) = rows.first().map(found).transpose()? else {
            // The lease ended in the database, or the rival is gone since.
            if !alive {
                self.lease.lost(tenure);
            }
            return Ok(None);
        };
        if rival.accepted == *token {
            let ours = rival.record.owner.as_ref().is_some_and(|o| o.host == host);
            return match ours && rival.fence == 1 && !rival.is_orphan() {
                true => new(rival.row),
                false => Err(StoreError::Fenced),
            };
        }
        if rival.is_orphan() {
            self.take_over().await?;
            return Ok(None);
        }
        Ok(Some(Accepted::Found(Box::new(rival.record))))
    }

    pub(super) async fn append(&self, held: &Held, fact: Fact) -> Result<State, StoreError> {
        let event = fact.event();
        let at = SystemTime::now();
        let entry = written(&Entry { at, fact })?;
        let token = Uuid::now_v7().to_string();
        let tenure = self.lease.tenure().await?;
        if event != Event::Dispatch {
            return self
                .append_under(&tenure, held, (event, at), &entry, &token)
                .await;
        }
        let in_doubt = self.doubts.dispatch(held.operation, &tenure.host, &token);
        let state = self
            .append_under(&tenure, held, (event, at), &entry, &token)
            .await?;
        still(&tenure)?;
        in_doubt.answered();
        Ok(state)
    }

    async fn append_under(
        &self,
        tenure: &Tenure,
        held: &Held,
        (event, at): (Event, SystemTime),
        entry: &String,
        token: &String,
    ) -> Result<State, StoreError> {
        let moves = Moves::of(event);
        let fence = i64::try_from(held.fence).map_err(|_| StoreError::Fenced)?;
        let operation = held.operation.to_string();
        let host = &*tenure.host;
        let columns: Given<'_> = &[
            &held.row,
            &fence,
            &host,
            token,
            entry,
            &moves.from,
            &moves.to,
            &moves.frees,
            &moves.lets_go,
            &moves.settles,
            &at,
            &operation,
        ];
        let mut tries = self.database.tries();
        loop {
            let lent = tries.connection().await?;
            let moved = match lent.query(&self.sql.append, columns).await {
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
                return moves::state(column(row, "state")?).ok_or_else(odd);
            }
            let asked: Given<'_> = &[&held.row, &host, token, &operation];
            let rows = self.database.ask(&self.sql.standing, asked).await?;
            let row = rows.first().ok_or(StoreError::Fenced)?;
            let now = moves::state(column(row, "state")?).ok_or_else(odd)?;
            if column(row, "written")? {
                return Ok(now);
            }
            let alive: bool = column(row, "alive")?;
            if !alive {
                self.lease.lost(tenure);
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
