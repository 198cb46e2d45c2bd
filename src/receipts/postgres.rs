//! Receipts in PostgreSQL, in the database that has the tool's own tables.

pub(crate) mod fault;
mod kept;
mod rows;
mod run;
mod schema;

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use deadpool_postgres::{Client, Pool, Transaction};
use rmcp::schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::time::timeout;

use self::run::Tool;
use super::{
    call::Call,
    definition::{Definition, DefinitionError},
    failure::Failure,
    flight::Flights,
    identity::{Identity, Scope},
    ledger::{Ledger, LedgerError, LedgerFuture, Settled, Swept},
    principal::Principal,
    receipt::{Receipt, Standing},
    run::Runs,
    tool::{ReceiptTool, parse},
};
use crate::operation::OperationId;

/// What a handler on PostgreSQL gives back: a future that borrows the open transaction.
pub type PostgresHandling<'a, O> = Pin<Box<dyn Future<Output = Result<O, Failure>> + Send + 'a>>;

/// Keeps receipts in PostgreSQL, for one process or many. Cheap to clone: clones are one ledger.
///
/// A handler gets the open transaction and does its writes in it; they are committed with the receipt
/// or not at all. A unique insert is what rivals under one key meet first, in whatever process they
/// are: one of them runs, and the others wait for it up to
/// [`Bounds::begin`](super::Bounds::begin) and are told that the server is busy after that.
#[derive(Clone)]
pub struct PostgresLedger(Arc<Shared>);

/// When a full sweep is followed by another one. In between, calls have the pool.
const SWEEP_AGAIN: Duration = Duration::from_millis(50);

pub(crate) struct Shared {
    pool: Pool,
    settings: PostgresSettings,
    flights: Arc<Flights>,
}

/// How a ledger uses PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresSettings {
    /// The longest that one statement may take, a handler's too, and the longest that a handler may
    /// leave its transaction idle. PostgreSQL ends the transaction after that, so that a process that
    /// hangs does not keep its key from the others for ever.
    pub statement_timeout: Duration,
    /// How long it is tried to find out whether a commit held whose answer was lost.
    pub settle_within: Duration,
    /// How often what was kept long enough is removed, in the background.
    pub sweep_every: Duration,
    /// How many answers, and how many tombstones, one sweep removes at most. A full one is followed by
    /// another one soon.
    pub sweep_at_most: usize,
}

impl Default for PostgresSettings {
    /// 30 s for a statement, and as long to settle a commit: a fail-over takes some ten seconds. A sweep
    /// of 500 each minute.
    fn default() -> Self {
        Self {
            statement_timeout: Duration::from_secs(30),
            settle_within: Duration::from_secs(30),
            sweep_every: Duration::from_secs(60),
            sweep_at_most: 500,
        }
    }
}

impl PostgresLedger {
    /// A ledger on a pool of connections. Its tables are made, or brought up to date, in the first
    /// schema of the connections' search path.
    ///
    /// A call has one connection of the pool from its begin to its commit. Where the pool is small,
    /// calls wait for it and are told that the server is busy.
    ///
    /// # Errors
    ///
    /// What keeps the tables from being made, and [`LedgerError::Newer`] where a newer program made
    /// them.
    ///
    /// # Cancel safety
    ///
    /// The tables are brought up to date in one transaction, or left as they were.
    pub async fn open(pool: Pool, settings: PostgresSettings) -> Result<Self, LedgerError> {
        let shared = Shared {
            pool,
            settings,
            flights: Arc::default(),
        };
        let mut client = shared.client(shared.settings.settle_within).await?;
        schema::migrate(&mut client).await?;
        drop(client);
        let shared = Arc::new(shared);
        tokio::spawn(sweep_in_turns(Arc::downgrade(&shared)));
        Ok(Self(shared))
    }

    /// A tool whose handler gets the open transaction, behind a savepoint.
    ///
    /// The handler makes no network call but those of the transaction, and ends neither it nor the
    /// savepoint. What it wrote is rolled back where it returns an error. It runs in a task of its own,
    /// which goes on when the caller is gone.
    ///
    /// ```no_run
    /// # use mcp_supervisor::receipts::{*};
    /// # #[derive(serde::Deserialize, rmcp::schemars::JsonSchema)]
    /// # #[schemars(crate = "rmcp::schemars")]
    /// # struct Order { item: String }
    /// # #[derive(serde::Serialize, rmcp::schemars::JsonSchema)]
    /// # #[schemars(crate = "rmcp::schemars")]
    /// # struct Ordered { order: i64 }
    /// # fn tool(ledger: &PostgresLedger, principal: FixedScope) -> Result<ReceiptTool, DefinitionError> {
    /// ledger.tool(
    ///     &Definition::new("order", "Orders an item."),
    ///     principal,
    ///     |transaction, order: Order, _call| {
    ///         Box::pin(async move {
    ///             let sql = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
    ///             let row = transaction.query_one(sql, &[&order.item]).await?;
    ///             Ok(Ordered { order: row.get(0) })
    ///         })
    ///     },
    /// )
    /// # }
    /// ```
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
        H: for<'a> Fn(&'a Transaction<'_>, A, &'a Call) -> PostgresHandling<'a, O>
            + Send
            + Sync
            + 'static,
    {
        let typed = Typed {
            handler,
            takes: PhantomData,
        };
        ReceiptTool::new(definition, principal, self.runs(Arc::new(typed)))
    }

    /// A handler with this ledger.
    pub(crate) fn runs(&self, handler: Arc<dyn Handles>) -> Arc<dyn Runs> {
        Arc::new(Tool::new(self.clone(), handler))
    }

    pub(crate) fn flights(&self) -> &Arc<Flights> {
        &self.0.flights
    }

    pub(crate) fn settings(&self) -> &PostgresSettings {
        &self.0.settings
    }

    /// A connection, within a bound.
    pub(crate) async fn client(&self, within: Duration) -> Result<Client, LedgerError> {
        self.0.client(within).await
    }
}

/// Removes what was kept long enough, until the last ledger is dropped. Between two sweeps it holds
/// nothing of the ledger.
async fn sweep_in_turns(shared: Weak<Shared>) {
    let Some(settings) = shared.upgrade().map(|shared| shared.settings.clone()) else {
        return;
    };
    let mut pause = settings.sweep_every;
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        pause = settings.sweep_every;
        let most = settings.sweep_at_most;
        match PostgresLedger(shared).sweep(most).await {
            Ok(swept) if most > 0 && swept.answers.max(swept.tombstones) >= most => {
                pause = pause.min(SWEEP_AGAIN);
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "expired receipts were not removed"),
        }
    }
}

impl Shared {
    async fn client(&self, within: Duration) -> Result<Client, LedgerError> {
        match timeout(within, self.pool.get()).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) => Err(fault::of_pool(error)),
            Err(_) => Err(LedgerError::Busy),
        }
    }
}

impl Ledger for PostgresLedger {
    fn by_key<'a>(&'a self, identity: &'a Identity) -> LedgerFuture<'a, Option<Receipt>> {
        Box::pin(async move {
            let client = self.client(self.settings().statement_timeout).await?;
            rows::by_key(&client, identity).await
        })
    }

    fn by_id<'a>(&'a self, scope: &'a Scope, id: OperationId) -> LedgerFuture<'a, Option<Receipt>> {
        Box::pin(async move {
            let client = self.client(self.settings().statement_timeout).await?;
            let receipt = rows::by_id(&client, id).await?;
            Ok(receipt.filter(|receipt| receipt.identity.scope == *scope))
        })
    }

    fn settle(&self, id: OperationId, standing: Standing) -> LedgerFuture<'_, Settled> {
        Box::pin(async move {
            let mut client = self.client(self.settings().statement_timeout).await?;
            let transaction = self
                .begin(&mut client, self.settings().statement_timeout)
                .await?;
            let settled = rows::settle(&transaction, id, standing).await?;
            transaction.commit().await.map_err(fault::of_commit)?;
            Ok(settled)
        })
    }

    fn sweep(&self, at_most: usize) -> LedgerFuture<'_, Swept> {
        Box::pin(async move {
            let mut client = self.client(self.settings().statement_timeout).await?;
            let transaction = self
                .begin(&mut client, self.settings().statement_timeout)
                .await?;
            let swept = rows::sweep(&transaction, kept::now(), at_most).await?;
            transaction.commit().await.map_err(fault::of_commit)?;
            Ok(swept)
        })
    }
}

impl PostgresLedger {
    /// A transaction that waits for a lock no longer than `lock`.
    pub(crate) async fn begin<'a>(
        &self,
        client: &'a mut Client,
        lock: Duration,
    ) -> Result<Transaction<'a>, LedgerError> {
        let begun = client
            .build_transaction()
            .isolation_level(tokio_postgres::IsolationLevel::ReadCommitted)
            .start()
            .await;
        let transaction = begun.map_err(fault::of)?;
        // Zero would be no limit at all.
        let millis = |limit: Duration| limit.as_millis().clamp(1, i32::MAX as u128);
        let statement = millis(self.settings().statement_timeout);
        let bounds = format!(
            "SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {statement}; \
             SET LOCAL idle_in_transaction_session_timeout = {statement}",
            millis(lock)
        );
        transaction
            .batch_execute(&bounds)
            .await
            .map_err(fault::of)?;
        Ok(transaction)
    }
}

impl fmt::Debug for PostgresLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLedger")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

/// A handler without the types of its tool.
pub(crate) trait Handles: Send + Sync + 'static {
    /// Has the effect, in the open transaction, and says what the operation came to.
    fn handle<'a>(
        &'a self,
        transaction: &'a Transaction<'_>,
        call: &'a Call,
        arguments: &'a Map<String, Value>,
    ) -> PostgresHandling<'a, Standing>;
}

/// A handler with the types of its tool.
struct Typed<A, O, H> {
    handler: H,
    takes: PhantomData<fn(A) -> O>,
}

impl<A, O, H> Handles for Typed<A, O, H>
where
    A: DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
    H: for<'a> Fn(&'a Transaction<'_>, A, &'a Call) -> PostgresHandling<'a, O>
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
        let handling = parse::<A>(arguments)
            .map_err(Failure::Invalid)
            .map(|arguments| (self.handler)(transaction, arguments, call));
        Box::pin(async move {
            let result = serde_json::to_value(handling?.await?)?;
            Ok(Standing::Completed { result })
        })
    }
}
