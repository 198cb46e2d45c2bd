//! What the ledger keeps of a long work beside its receipt, while it runs.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rusqlite::{OptionalExtension as _, Transaction, params, types::Type};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    LastWrites, LongWorkError,
    drive::failed,
    host::Host,
    state::{Row, Seen},
};
use crate::{
    operation::OperationId,
    receipts::{
        Call, Failure, Identity, LedgerError, Receipt, SqliteLedger, Standing, definition::Terms,
        receipt::millis, sqlite::rows as receipts,
    },
};

/// The first wait before an end is written once more, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

const TABLE: &str = "CREATE TABLE IF NOT EXISTS mcp_receipts_work (
    id TEXT PRIMARY KEY NOT NULL,
    tool TEXT NOT NULL,
    host TEXT NOT NULL,
    arguments TEXT NOT NULL,
    checkpoint TEXT,
    done REAL,
    message TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID";

/// The works of one tool in a ledger.
pub(super) struct Rows {
    ledger: SqliteLedger,
    host: Host,
    tool: Arc<str>,
    inspect: String,
}

/// A work that a process which is gone has left.
pub(super) struct Left {
    pub(super) id: OperationId,
    pub(super) identity: Identity,
    pub(super) row: Row,
}

/// The last writes, without the type of their result.
type Writes = Box<dyn FnOnce(&Transaction<'_>) -> Result<Value, Failure> + Send>;

/// What a work ends with.
pub(super) enum Last {
    /// With writes, whose result it is.
    Writes(Writes),
    /// With nothing to write.
    Standing(Standing),
}

impl Last {
    pub(super) fn writes<O: Serialize + 'static>(writes: LastWrites<O>) -> Self {
        Self::Writes(Box::new(move |tx| Ok(serde_json::to_value(writes(tx)?)?)))
    }
}

impl Rows {
    pub(super) async fn open(ledger: &SqliteLedger, terms: &Terms) -> Result<Self, LongWorkError> {
        let file = ledger
            .transaction(|tx| Ok(tx.path().filter(|it| !it.is_empty()).map(PathBuf::from)))
            .await?;
        let host = Host::of(file.as_deref())?;
        let inspect = terms.wording.inspect.clone();
        let rows = Self {
            ledger: ledger.clone(),
            host,
            tool: Arc::clone(&terms.name),
            inspect: inspect.unwrap_or_else(|| {
                "The process that ran it ended. Inspect what this operation would have changed."
                    .into()
            }),
        };
        rows.write(|tx| Ok(tx.execute_batch(TABLE)?))
            .await
            .map_err(ledger_error)?;
        Ok(rows)
    }

    /// Writes in a transaction of its own, or not at all where `act` fails.
    async fn write<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let said = Arc::new(Mutex::new(None));
        let says = Arc::clone(&said);
        let done = self.ledger.transaction(move |tx| {
            act(tx).map_err(|failure| {
                *says.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                // Whatever it is, it rolls back.
                LedgerError::Busy
            })
        });
        done.await.map_err(|error| {
            let said = said.lock().unwrap_or_else(PoisonError::into_inner).take();
            said.unwrap_or_else(|| match error {
                LedgerError::Busy => Failure::Busy,
                other => Failure::failed(other),
            })
        })
    }

    /// Nobody knows what became of it.
    pub(super) fn unknown(&self) -> Standing {
        Standing::Unknown {
            inspect: self.inspect.clone(),
        }
    }

    /// Writes the row of a work in the transaction of its start.
    pub(super) fn begin(
        &self,
        tx: &Transaction<'_>,
        call: &Call,
        arguments: Map<String, Value>,
    ) -> Result<(), Failure> {
        tx.prepare_cached(
            "INSERT INTO mcp_receipts_work (id, tool, host, arguments, updated_at) \
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            call.id().to_string(),
            &*self.tool,
            self.host.name(),
            Value::Object(arguments).to_string(),
            millis(SystemTime::now())
        ])?;
        Ok(())
    }

    /// Says how far a work is. The answer is whether it was asked to stop.
    pub(super) async fn progress(
        &self,
        id: OperationId,
        done: f64,
        message: String,
    ) -> Result<bool, Failure> {
        let host = self.host.name().to_owned();
        let done = done.clamp(0.0, 1.0);
        self.write(move |tx| {
            tx.prepare_cached(
                "UPDATE mcp_receipts_work SET done = ?3, message = ?4, updated_at = ?5 \
                     WHERE id = ?1 AND host = ?2 RETURNING cancel_requested",
            )?
            .query_row(
                params![
                    id.to_string(),
                    host,
                    done,
                    message,
                    millis(SystemTime::now())
                ],
                |row| row.get(0),
            )
            .optional()?
            .ok_or_else(elsewhere)
        })
        .await
    }

    /// Commits what a work has done so far, with what it goes on from.
    pub(super) async fn commit<T: Send + 'static>(
        &self,
        id: OperationId,
        checkpoint: Value,
        writes: impl FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<(T, bool), Failure> {
        let host = self.host.name().to_owned();
        self.write(move |tx| {
            let asked: bool = tx
                .prepare_cached(
                    "UPDATE mcp_receipts_work SET checkpoint = ?3, updated_at = ?4 \
                         WHERE id = ?1 AND host = ?2 RETURNING cancel_requested",
                )?
                .query_row(
                    params![
                        id.to_string(),
                        host,
                        checkpoint.to_string(),
                        millis(SystemTime::now())
                    ],
                    |row| row.get(0),
                )
                .optional()?
                .ok_or_else(elsewhere)?;
            Ok((writes(tx)?, asked))
        })
        .await
    }

    /// Writes how a work ended, for as long as it takes: in one transaction with its last writes. Where
    /// those say no, or break, they are not made.
    pub(super) async fn end(&self, id: OperationId, last: Last) {
        let last = Arc::new(Mutex::new(Some(last)));
        let mut wait = AGAIN.0;
        loop {
            let (once, host, unknown) = (
                Arc::clone(&last),
                self.host.name().to_owned(),
                self.unknown(),
            );
            let written = self.write(move |tx| {
                if row_of(tx, id)?.is_none_or(|row| row.host != host) {
                    // It is not this host's any more.
                    return Ok(());
                }
                let mut last = once.lock().unwrap_or_else(PoisonError::into_inner);
                let standing = match last.take() {
                    Some(Last::Standing(standing)) => {
                        // It may have to be written once more.
                        *last = Some(Last::Standing(standing.clone()));
                        standing
                    }
                    Some(Last::Writes(writes)) => last_writes(tx, writes)?,
                    // They were made once, and that was not committed.
                    None => unknown,
                };
                settle(tx, id, &standing)?;
                forget(tx, id)
            });
            match written.await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(operation = %id, %error, "the end of a long work could not be written yet");
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }

    /// A work as it is now. One whose process is gone is unknown from here on.
    pub(super) async fn seen(&self, id: OperationId) -> Result<Option<Seen>, LedgerError> {
        let seen = self.read(id).await?;
        match &seen {
            Some(seen) if !seen.is_over() && !self.is_run(seen.row.as_ref()) => {
                self.forsake(id).await?;
                self.read(id).await
            }
            _ => Ok(seen),
        }
    }

    fn is_run(&self, row: Option<&Row>) -> bool {
        row.is_some_and(|row| !self.host.is_gone(&row.host))
    }

    async fn read(&self, id: OperationId) -> Result<Option<Seen>, LedgerError> {
        self.write(move |tx| {
            let receipt = receipt_of(tx, id)?;
            let row = row_of(tx, id)?;
            Ok(receipt.map(|receipt| Seen { receipt, row }))
        })
        .await
        .map_err(ledger_error)
    }

    /// Writes down that a work is asked to stop.
    pub(super) async fn ask_to_stop(&self, id: OperationId) -> Result<(), LedgerError> {
        self.write(move |tx| {
            tx.prepare_cached(
                "UPDATE mcp_receipts_work SET cancel_requested = 1, updated_at = ?2 WHERE id = ?1",
            )?
            .execute(params![id.to_string(), millis(SystemTime::now())])?;
            Ok(())
        })
        .await
        .map_err(ledger_error)
    }

    /// The works of this tool whose process is gone.
    pub(super) async fn left_behind(&self) -> Result<Vec<Left>, LedgerError> {
        let tool = Arc::clone(&self.tool);
        let all = self.write(move |tx| {
            let mut ids =
                tx.prepare("SELECT id FROM mcp_receipts_work WHERE tool = ?1 ORDER BY id")?;
            let ids: Vec<String> = ids
                .query_map([&*tool], |row| row.get(0))?
                .collect::<Result<_, _>>()?;
            let mut all = Vec::new();
            for id in ids.iter().filter_map(|id| id.parse().ok()) {
                if let (Some(row), Some(receipt)) = (row_of(tx, id)?, receipt_of(tx, id)?) {
                    let identity = receipt.identity;
                    all.push(Left { id, identity, row });
                }
            }
            Ok(all)
        });
        let mut all = all.await.map_err(ledger_error)?;
        all.retain(|left| self.host.is_gone(&left.row.host));
        Ok(all)
    }

    /// Takes a work over from a host that is gone. `false`: somebody else has.
    pub(super) async fn take(&self, id: OperationId, from: &str) -> Result<bool, LedgerError> {
        let (from, host) = (from.to_owned(), self.host.name().to_owned());
        self.write(move |tx| {
            let taken = tx.execute(
                "UPDATE mcp_receipts_work SET host = ?3 WHERE id = ?1 AND host = ?2",
                params![id.to_string(), from, host],
            )?;
            Ok(taken == 1)
        })
        .await
        .map_err(ledger_error)
    }

    /// Writes down that nobody knows what became of a work whose host is gone.
    pub(super) async fn forsake(&self, id: OperationId) -> Result<(), LedgerError> {
        let seen = self.read(id).await?;
        let from = seen.and_then(|seen| seen.row).map(|row| row.host);
        let unknown = self.unknown();
        self.write(move |tx| {
            // Whoever took it over in between has it.
            if row_of(tx, id)?.map(|row| row.host) == from {
                settle(tx, id, &unknown)?;
                forget(tx, id)?;
            }
            Ok(())
        })
        .await
        .map_err(ledger_error)
    }
}

/// Makes the last writes, or none of them.
fn last_writes(
    tx: &Transaction<'_>,
    writes: impl FnOnce(&Transaction<'_>) -> Result<Value, Failure>,
) -> Result<Standing, Failure> {
    tx.execute_batch("SAVEPOINT last_writes")?;
    match writes(tx) {
        Ok(result) => {
            tx.execute_batch("RELEASE last_writes")?;
            Ok(Standing::Completed { result })
        }
        Err(failure) => {
            tx.execute_batch("ROLLBACK TO last_writes; RELEASE last_writes")?;
            Ok(failed(failure))
        }
    }
}

fn settle(tx: &Transaction<'_>, id: OperationId, standing: &Standing) -> Result<(), Failure> {
    let settled = receipts::settle(tx, id, standing, SystemTime::now());
    settled.map(drop).map_err(Failure::failed)
}

fn receipt_of(tx: &Transaction<'_>, id: OperationId) -> Result<Option<Receipt>, Failure> {
    receipts::by_id(tx, id).map_err(Failure::failed)
}

fn row_of(tx: &Transaction<'_>, id: OperationId) -> Result<Option<Row>, Failure> {
    let mut found = tx.prepare_cached(
        "SELECT host, arguments, checkpoint, done, message, cancel_requested, updated_at \
         FROM mcp_receipts_work WHERE id = ?1",
    )?;
    let row = found
        .query_row([id.to_string()], |row| {
            let arguments: String = row.get(1)?;
            let checkpoint: Option<String> = row.get(2)?;
            Ok(Row {
                host: row.get(0)?,
                arguments: parsed(1, &arguments)?,
                checkpoint: checkpoint.map(|text| parsed(2, &text)).transpose()?,
                done: row.get(3)?,
                message: row.get(4)?,
                cancel_requested: row.get(5)?,
                updated_at: row.get(6)?,
            })
        })
        .optional()?;
    Ok(row)
}

/// What is damaged is an error: a work is not to go on with other arguments than it was begun with.
fn parsed<T: serde::de::DeserializeOwned>(column: usize, text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
    })
}

fn forget(tx: &Transaction<'_>, id: OperationId) -> Result<(), Failure> {
    tx.prepare_cached("DELETE FROM mcp_receipts_work WHERE id = ?1")?
        .execute([id.to_string()])?;
    Ok(())
}

fn elsewhere() -> Failure {
    Failure::failed("another process has this work, or it is over")
}

fn ledger_error(failure: Failure) -> LedgerError {
    match failure {
        Failure::Busy => LedgerError::Busy,
        other => {
            let why = match other {
                Failure::Failed(source) => source.to_string(),
                other => other.to_string(),
            };
            LedgerError::Unavailable(why.into())
        }
    }
}
