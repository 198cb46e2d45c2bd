//! Intents in PostgreSQL. Its clock is the one that leases and ages go by, so hosts need not agree on
//! the time.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use deadpool_postgres::{GenericClient, Transaction};
use rmcp::schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio_postgres::Row;

use super::{
    Outbox, OutboxBuilder, Shared,
    letter::{Intent, Letter, Progress},
    letters::{Held, Letters, Taken, Then},
    reference::Reference,
    sending::Sending,
    table::State,
};
use crate::{
    operation::OperationId,
    receipts::{
        Call, Definition, DefinitionError, Failure, LedgerError, LedgerFuture, PostgresHandling,
        PostgresLedger, Principal, ReceiptTool, Standing,
        postgres::{Handles, fault},
        tool::parse,
    },
};

/// The server's time in milliseconds since 1970: now, and not when the transaction began.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const COLUMNS: &str = "operation::text, reference, provider, body, state, progress, fence";

impl PostgresLedger {
    /// An outbox in this ledger's database.
    #[must_use]
    pub fn outbox(&self) -> OutboxBuilder<Self> {
        OutboxBuilder::new(self.clone(), Arc::new(self.clone()), Box::new(self.clone()))
    }
}

impl Outbox<PostgresLedger> {
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
    pub fn tool<A, O, H>(
        &self,
        definition: &Definition<A, O>,
        principal: impl Principal,
        handler: H,
    ) -> Result<ReceiptTool, DefinitionError>
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + JsonSchema + 'static,
        H: for<'a> Fn(&'a Transaction<'_>, A, &'a Call) -> PostgresHandling<'a, Intent>
            + Send
            + Sync
            + 'static,
    {
        let intends = Intends {
            handler,
            shared: Arc::clone(&self.shared),
            takes: PhantomData,
        };
        let sending = Sending {
            commits: self.ledger.runs(Arc::new(intends)),
            shared: Arc::clone(&self.shared),
        };
        ReceiptTool::new(definition, principal, Arc::new(sending))
    }
}

/// A handler that says what is wanted of a provider.
struct Intends<A, H> {
    handler: H,
    shared: Arc<Shared>,
    takes: PhantomData<fn(A)>,
}

impl<A, H> Handles for Intends<A, H>
where
    A: DeserializeOwned + Send + 'static,
    H: for<'a> Fn(&'a Transaction<'_>, A, &'a Call) -> PostgresHandling<'a, Intent>
        + Send
        + Sync
        + 'static,
{
    fn handle<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        call: &'a Call,
        arguments: &'a Map<String, Value>,
    ) -> PostgresHandling<'a, Standing> {
        let intending = parse::<A>(arguments)
            .map_err(Failure::Invalid)
            .map(|arguments| (self.handler)(transaction, arguments, call));
        Box::pin(async move {
            let intent = intending?.await?;
            let reference = self.shared.reference(call.identity(), &intent)?;
            post(transaction, call.id(), &reference, &intent).await?;
            Ok(Standing::Running)
        })
    }
}

/// Commits an intent with whatever else is in the transaction.
async fn post(
    on: &Transaction<'_>,
    operation: OperationId,
    reference: &Reference,
    intent: &Intent,
) -> Result<(), tokio_postgres::Error> {
    let now: i64 = on
        .query_one(&format!("SELECT {NOW}"), &[])
        .await?
        .try_get(0)?;
    let progress = Progress::new(now);
    let sql = "INSERT INTO mcp_receipts_outbox
                   (operation, reference, provider, body, state, progress, due_at)
               VALUES ($1::text::uuid, $2, $3, $4, $5, $6, $7)";
    let statement = on.prepare_cached(sql).await?;
    on.execute(
        &statement,
        &[
            &operation.to_string(),
            &reference.as_str(),
            &intent.provider,
            &intent.body.to_string(),
            &progress.state.word(),
            &json(&progress),
            &progress.due_at,
        ],
    )
    .await?;
    Ok(())
}

impl Letters for PostgresLedger {
    fn take<'a>(
        &'a self,
        providers: &'a [String],
        at_most: usize,
        lease: Duration,
    ) -> LedgerFuture<'a, Taken> {
        Box::pin(async move {
            let client = self.client(self.settings().statement_timeout).await?;
            // What another dispatcher is about to take is not waited for.
            let sql = format!(
                "UPDATE mcp_receipts_outbox
                 SET held_until = {NOW} + $1::bigint, fence = fence + 1
                 WHERE operation IN (
                     SELECT operation FROM mcp_receipts_outbox
                     WHERE closed_at IS NULL AND due_at <= {NOW} AND held_until <= {NOW}
                       AND provider = ANY ($2::text[])
                     ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED)
                 RETURNING {COLUMNS}"
            );
            let statement = client.prepare_cached(&sql).await.map_err(fault::of)?;
            let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
            let taken = client
                .query(&statement, &[&millis(lease), &providers, &at_most])
                .await;
            let letters = taken.map_err(fault::of)?;
            let sql = format!(
                "SELECT {NOW}, min(greatest(due_at, held_until)) FROM mcp_receipts_outbox
                 WHERE closed_at IS NULL AND provider = ANY ($1::text[])"
            );
            let statement = client.prepare_cached(&sql).await.map_err(fault::of)?;
            let row = client.query_one(&statement, &[&providers]).await;
            let row = row.map_err(fault::of)?;
            let now: i64 = row.try_get(0).map_err(fault::of)?;
            let next: Option<i64> = row.try_get(1).map_err(fault::of)?;
            Ok(Taken {
                now,
                letters: letters.iter().map(read).collect::<Result<_, _>>()?,
                next_in: next.map(|next| {
                    Duration::from_millis(u64::try_from(next.saturating_sub(now)).unwrap_or(0))
                }),
            })
        })
    }

    fn write<'a>(
        &'a self,
        held: &'a Held,
        letter: &'a Letter,
        then: Then,
    ) -> LedgerFuture<'a, bool> {
        Box::pin(async move {
            let client = self.client(self.settings().statement_timeout).await?;
            let sql = format!(
                "UPDATE mcp_receipts_outbox
                 SET state = $3, progress = $4, due_at = $5,
                     held_until = CASE WHEN $6 THEN held_until ELSE 0 END,
                     closed_at = CASE WHEN $7 THEN {NOW} END
                 WHERE operation = $1::text::uuid AND fence = $2 AND closed_at IS NULL"
            );
            let statement = client.prepare_cached(&sql).await.map_err(fault::of)?;
            let progress = &letter.progress;
            let changed = client
                .execute(
                    &statement,
                    &[
                        &held.operation.to_string(),
                        &held.fence,
                        &progress.state.word(),
                        &json(progress),
                        &progress.due_at,
                        &(then == Then::Keep),
                        &(then == Then::Close),
                    ],
                )
                .await;
            Ok(changed.map_err(fault::of)? == 1)
        })
    }

    fn sweep(&self, kept_for: Duration, at_most: usize) -> LedgerFuture<'_, usize> {
        Box::pin(async move {
            let client = self.client(self.settings().statement_timeout).await?;
            let sql = format!(
                "DELETE FROM mcp_receipts_outbox WHERE operation IN (
                     SELECT operation FROM mcp_receipts_outbox
                     WHERE closed_at <= {NOW} - $1::bigint AND state <> $2
                     ORDER BY closed_at LIMIT $3 FOR UPDATE SKIP LOCKED)"
            );
            let at_most = i64::try_from(at_most).unwrap_or(i64::MAX);
            let unknown = State::Unknown.word();
            let statement = client.prepare_cached(&sql).await.map_err(fault::of)?;
            let removed = client
                .execute(&statement, &[&millis(kept_for), &unknown, &at_most])
                .await;
            Ok(usize::try_from(removed.map_err(fault::of)?).unwrap_or(usize::MAX))
        })
    }
}

fn read(row: &Row) -> Result<(Held, Letter), LedgerError> {
    parsed(row).map_err(|what| LedgerError::Corrupt(what.to_string().into()))
}

fn parsed(row: &Row) -> Result<(Held, Letter), Box<dyn std::error::Error + Send + Sync>> {
    let text = |column: usize| row.try_get::<_, String>(column);
    let progress: Progress = serde_json::from_str(&text(5)?)?;
    if State::of_word(&text(4)?) != Some(progress.state) {
        return Err("the state and the progress of an intent differ".into());
    }
    let operation = text(0)?.parse()?;
    let held = Held {
        operation,
        fence: row.try_get(6)?,
    };
    let letter = Letter {
        reference: Reference::kept(&text(1)?),
        intent: Intent {
            provider: text(2)?,
            body: serde_json::from_str(&text(3)?)?,
        },
        progress,
    };
    Ok((held, letter))
}

fn json(progress: &Progress) -> String {
    serde_json::to_string(progress).expect("a progress has only names as keys, and writes no error")
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
