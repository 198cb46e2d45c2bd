//! Intents in SQLite, in the file of the receipts and by the thread that writes them.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use rmcp::schemars::JsonSchema;
use rusqlite::{Connection, ErrorCode, Row, Transaction, named_params};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Outbox, OutboxBuilder,
    letter::{Intent, Letter, Progress},
    letters::{Held, Letters, Taken, Then},
    reference::Reference,
    sending::Sending,
    table::State,
};
use crate::{
    operation::OperationId,
    receipts::{
        Call, Definition, DefinitionError, Failure, LedgerError, LedgerFuture, Principal,
        ReceiptTool, SqliteLedger, receipt::millis,
    },
};

/// The table. What a person wants to see is in columns; the rest of the progress is one JSON text.
const TABLE: &str = "
CREATE TABLE IF NOT EXISTS mcp_receipts_outbox (
    operation  BLOB PRIMARY KEY CHECK (length(operation) = 16),
    reference  TEXT NOT NULL,
    provider   TEXT NOT NULL,
    body       TEXT NOT NULL,
    state      TEXT NOT NULL,
    progress   TEXT NOT NULL,
    due_at     INTEGER NOT NULL,
    held_until INTEGER NOT NULL DEFAULT 0,
    fence      INTEGER NOT NULL DEFAULT 0,
    closed_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS mcp_receipts_outbox_open ON mcp_receipts_outbox (due_at) WHERE closed_at IS NULL;
CREATE INDEX IF NOT EXISTS mcp_receipts_outbox_closed ON mcp_receipts_outbox (closed_at) WHERE closed_at IS NOT NULL;
";

impl SqliteLedger {
    /// An outbox in this ledger's file.
    ///
    /// # Errors
    ///
    /// What keeps its table from being made.
    ///
    /// # Cancel safety
    ///
    /// The table is made or not.
    pub async fn outbox(&self) -> Result<OutboxBuilder<Self>, LedgerError> {
        self.transaction(|on| on.execute_batch(TABLE).map_err(failed))
            .await?;
        Ok(OutboxBuilder::new(
            self.clone(),
            Arc::new(self.clone()),
            Box::new(self.clone()),
        ))
    }
}

impl Outbox<SqliteLedger> {
    /// A tool whose effect is a provider's. Its handler gets the open transaction, does in it what
    /// belongs into the database, and says what is wanted of the provider; that is committed with the
    /// receipt, and sent afterwards. The tool's result is the provider's, and has the shape of `O`.
    ///
    /// A call waits for the provider up to [`Bounds::wait`](crate::receipts::Bounds::wait). After that
    /// it is told that the operation is in progress, and how to ask for it.
    ///
    /// # Errors
    ///
    /// What of the definition cannot be.
    pub fn tool<A, O, F>(
        &self,
        definition: &Definition<A, O>,
        principal: impl Principal,
        handler: F,
    ) -> Result<ReceiptTool, DefinitionError>
    where
        A: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema + 'static,
        F: Fn(&Transaction<'_>, A, &Call) -> Result<Intent, Failure> + Send + Sync + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let starts = move |transaction: &Transaction<'_>, arguments: A, call: &Call| {
            let intent = handler(transaction, arguments, call)?;
            let reference = shared.reference(call.identity(), &intent)?;
            let letter = Letter {
                reference,
                intent,
                progress: Progress::new(now()),
            };
            Ok(post(transaction, call.id(), &letter)?)
        };
        let tool = self
            .ledger
            .tool_that_starts(definition, principal, starts)?;
        Ok(tool.around(|commits| {
            Arc::new(Sending {
                commits,
                shared: Arc::clone(&self.shared),
            })
        }))
    }
}

impl Letters for SqliteLedger {
    fn take<'a>(
        &'a self,
        providers: &'a [String],
        at_most: usize,
        lease: Duration,
    ) -> LedgerFuture<'a, Taken> {
        // One list as one parameter; a name is any text.
        let names = serde_json::Value::from(providers.to_vec()).to_string();
        Box::pin(
            self.transaction(move |on| take(on, &names, at_most, lease, now()).map_err(failed)),
        )
    }

    fn write<'a>(
        &'a self,
        held: &'a Held,
        letter: &'a Letter,
        then: Then,
    ) -> LedgerFuture<'a, bool> {
        let (held, progress) = (*held, letter.progress.clone());
        Box::pin(
            self.transaction(move |on| write(on, &held, &progress, then, now()).map_err(failed)),
        )
    }

    fn sweep(&self, kept_for: Duration, at_most: usize) -> LedgerFuture<'_, usize> {
        Box::pin(self.transaction(move |on| sweep(on, kept_for, at_most, now()).map_err(failed)))
    }
}

/// The time by which intents in a file go: that of its one machine.
fn now() -> i64 {
    millis(SystemTime::now())
}

fn failed(error: rusqlite::Error) -> LedgerError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => LedgerError::Busy,
        Some(code) => LedgerError::Unavailable(format!("SQLite reports {code:?}").into()),
        None => LedgerError::Corrupt(error.to_string().into()),
    }
}

/// Commits an intent with whatever else is in the transaction.
fn post(on: &Connection, operation: OperationId, letter: &Letter) -> rusqlite::Result<()> {
    on.prepare_cached(
        "INSERT INTO mcp_receipts_outbox (operation, reference, provider, body, state, progress, due_at)
         VALUES (:operation, :reference, :provider, :body, :state, :progress, :due_at)",
    )?
    .execute(named_params! {
        ":operation": operation.as_bytes(),
        ":reference": letter.reference.as_str(),
        ":provider": letter.intent.provider,
        ":body": letter.intent.body.to_string(),
        ":state": letter.progress.state.word(),
        ":progress": json(&letter.progress)?,
        ":due_at": letter.progress.due_at,
    })?;
    Ok(())
}

fn take(
    on: &Connection,
    names: &str,
    at_most: usize,
    lease: Duration,
    now: i64,
) -> rusqlite::Result<Taken> {
    let letters = on
        .prepare_cached(
            "UPDATE mcp_receipts_outbox SET held_until = :until, fence = fence + 1
             WHERE operation IN (
                 SELECT operation FROM mcp_receipts_outbox
                 WHERE closed_at IS NULL AND due_at <= :now AND held_until <= :now
                   AND provider IN (SELECT value FROM json_each(:names))
                 ORDER BY due_at LIMIT :at_most)
             RETURNING operation, reference, provider, body, state, progress, fence",
        )?
        .query_map(
            named_params! {
                ":now": now,
                ":until": now.saturating_add(length(lease)),
                ":names": names,
                ":at_most": i64::try_from(at_most).unwrap_or(i64::MAX),
            },
            |row| {
                let held = Held {
                    operation: OperationId::from_bytes(row.get(0)?),
                    fence: row.get(6)?,
                };
                Ok((held, read(row)?))
            },
        )?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let next: Option<i64> = on
        .prepare_cached(
            "SELECT min(max(due_at, held_until)) FROM mcp_receipts_outbox
             WHERE closed_at IS NULL AND provider IN (SELECT value FROM json_each(:names))",
        )?
        .query_row(named_params! { ":names": names }, |row| row.get(0))?;
    Ok(Taken {
        now,
        letters,
        next_in: next.map(|next| {
            Duration::from_millis(u64::try_from(next.saturating_sub(now)).unwrap_or(0))
        }),
    })
}

fn write(
    on: &Connection,
    held: &Held,
    progress: &Progress,
    then: Then,
    now: i64,
) -> rusqlite::Result<bool> {
    let changed = on
        .prepare_cached(
            "UPDATE mcp_receipts_outbox
             SET state = :state, progress = :progress, due_at = :due_at,
                 held_until = iif(:keep, held_until, 0), closed_at = iif(:close, :now, NULL)
             WHERE operation = :operation AND fence = :fence AND closed_at IS NULL",
        )?
        .execute(named_params! {
            ":operation": held.operation.as_bytes(),
            ":fence": held.fence,
            ":state": progress.state.word(),
            ":progress": json(progress)?,
            ":due_at": progress.due_at,
            ":keep": then == Then::Keep,
            ":close": then == Then::Close,
            ":now": now,
        })?;
    Ok(changed == 1)
}

fn sweep(on: &Connection, kept_for: Duration, at_most: usize, now: i64) -> rusqlite::Result<usize> {
    on.prepare_cached(
        "DELETE FROM mcp_receipts_outbox WHERE operation IN (
             SELECT operation FROM mcp_receipts_outbox
             WHERE closed_at <= :before AND state <> :unknown ORDER BY closed_at LIMIT :at_most)",
    )?
    .execute(named_params! {
        ":before": now.saturating_sub(length(kept_for)),
        ":unknown": State::Unknown.word(),
        ":at_most": i64::try_from(at_most).unwrap_or(i64::MAX),
    })
}

fn read(row: &Row<'_>) -> rusqlite::Result<Letter> {
    let state: String = row.get(4)?;
    let progress: Progress = parse(5, &row.get::<_, String>(5)?)?;
    if State::of_word(&state) != Some(progress.state) {
        return Err(damaged(4, "the state and the progress differ"));
    }
    Ok(Letter {
        reference: Reference::kept(&row.get::<_, String>(1)?),
        intent: Intent {
            provider: row.get(2)?,
            body: parse(3, &row.get::<_, String>(3)?)?,
        },
        progress,
    })
}

fn parse<T: serde::de::DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| damaged(column, error))
}

fn damaged(
    column: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
}

fn json(progress: &Progress) -> rusqlite::Result<String> {
    serde_json::to_string(progress)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn length(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
