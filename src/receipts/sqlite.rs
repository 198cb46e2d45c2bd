//! Receipts in SQLite, in the file that has the tool's own tables: one thread writes, and what waits
//! together is committed together.

mod effect;
pub(super) mod rows;
mod writer;

use std::{
    fmt,
    path::Path,
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
    time::{Duration, Instant, SystemTime},
};

use rmcp::schemars::JsonSchema;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use self::{
    effect::{Done, Handler},
    writer::{Begun, Job, Turn},
};
use super::{
    answer::{Answer, NotKept},
    call::Call,
    definition::{Definition, DefinitionError, Terms},
    failure::Failure,
    flight::Flights,
    identity::{Arrival, Identity, Scope},
    ledger::{Ledger, LedgerError, LedgerFuture, Settled, Swept},
    principal::Principal,
    receipt::{Receipt, Standing},
    run::{Running, Runs},
    tool::{ReceiptTool, parse},
};
use crate::operation::OperationId;

/// How many calls wait at most. Beyond it a call is busy at once: at the slowest commits that are
/// usual, the last of these would have waited for its bound anyway.
const QUEUE: usize = 1024;

/// The longest that a call waits to begin, whatever its tool says: longer than any client does, and
/// short enough to be added to any point in time.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Receipts in SQLite. Cheap to clone: clones are one ledger, with one thread that writes.
#[derive(Clone)]
pub struct SqliteLedger {
    jobs: SyncSender<Job>,
    flights: Arc<Flights>,
}

/// How a ledger uses SQLite.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteSettings {
    /// How many calls are committed together at most.
    pub max_group: usize,
    /// How long calls are added to a transaction before it is committed.
    pub max_group_time: Duration,
    /// How long a look-up, a settlement or a sweep waits for somebody else's lock. A call has a bound
    /// of its own.
    pub lock: Duration,
    /// How often what was kept long enough is removed, in the background.
    pub sweep_every: Duration,
    /// How many answers, and how many tombstones, one sweep removes at most.
    pub sweep_at_most: usize,
}

impl Default for SqliteSettings {
    /// Groups of up to 64 or 20 ms, 5 s for a lock, a sweep of 500 each minute.
    fn default() -> Self {
        Self {
            max_group: 64,
            max_group_time: Duration::from_millis(20),
            lock: Duration::from_secs(5),
            sweep_every: Duration::from_secs(60),
            sweep_at_most: 500,
        }
    }
}

impl SqliteLedger {
    /// Opens a file, makes it if it is missing, and starts the thread that writes. It reads and writes
    /// the file before it returns.
    ///
    /// The file is put into WAL mode with `synchronous=FULL`. The ledger's tables begin with
    /// `mcp_receipts`; all others are the server's.
    ///
    /// # Errors
    ///
    /// What keeps the file from being used.
    pub fn open(path: impl AsRef<Path>, settings: SqliteSettings) -> Result<Self, LedgerError> {
        let connection = Connection::open(path).map_err(rows::failed)?;
        Self::over(connection, settings)
    }

    /// The same over a connection that is open already, with the server's own functions, hooks and
    /// pragmas. Its authorizer becomes the ledger's, which keeps a handler from ending the transaction.
    ///
    /// # Errors
    ///
    /// What keeps the database from being used.
    pub fn over(mut connection: Connection, settings: SqliteSettings) -> Result<Self, LedgerError> {
        rows::wait_for_locks(&connection, settings.lock).map_err(rows::failed)?;
        rows::prepare(&mut connection)?;
        let jobs = writer::start(connection, settings)?;
        Ok(Self {
            jobs,
            flights: Arc::default(),
        })
    }

    /// A tool whose handler does its writes in the open transaction that it is given. Its receipt is
    /// committed with them, or neither is.
    ///
    /// The handler talks to nobody else: the whole ledger waits for it. It is called again for the same
    /// call where its transaction was lost to another call's fault and rolled back.
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
        F: Fn(&Transaction<'_>, A, &Call) -> Result<O, Failure> + Send + Sync + 'static,
    {
        let handler: Handler = Arc::new(move |transaction, arguments, call| {
            let arguments = parse::<A>(arguments).map_err(Failure::Invalid)?;
            let result = handler(transaction, arguments, call)?;
            Ok(Done::Complete(serde_json::to_value(result)?))
        });
        self.with(definition, principal, handler)
    }

    /// A tool whose handler begins something that goes on after the transaction. Its receipt says
    /// `running` until somebody [settles](Ledger::settle) it; the result has the shape of `O`.
    ///
    /// # Errors
    ///
    /// What of the definition cannot be.
    pub fn tool_that_starts<A, O, F>(
        &self,
        definition: &Definition<A, O>,
        principal: impl Principal,
        handler: F,
    ) -> Result<ReceiptTool, DefinitionError>
    where
        A: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema + 'static,
        F: Fn(&Transaction<'_>, A, &Call) -> Result<(), Failure> + Send + Sync + 'static,
    {
        let handler: Handler = Arc::new(move |transaction, arguments, call| {
            let arguments = parse::<A>(arguments).map_err(Failure::Invalid)?;
            handler(transaction, arguments, call)?;
            Ok(Done::Begun)
        });
        self.with(definition, principal, handler)
    }

    /// The same, whose handler sees the arguments as they came. They fit `A`.
    pub(super) fn tool_that_begins<A, O, F>(
        &self,
        definition: &Definition<A, O>,
        principal: impl Principal,
        handler: F,
    ) -> Result<ReceiptTool, DefinitionError>
    where
        A: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema + 'static,
        F: Fn(&Transaction<'_>, Map<String, Value>, &Call) -> Result<(), Failure>
            + Send
            + Sync
            + 'static,
    {
        let handler: Handler = Arc::new(move |transaction, arguments, call| {
            handler(transaction, arguments.clone(), call)?;
            Ok(Done::Begun)
        });
        self.with(definition, principal, handler)
    }

    /// Does something with the ledger's database, in a transaction of its own on the thread that
    /// writes. It is committed where `act` has a result, and rolled back otherwise.
    ///
    /// # Errors
    ///
    /// What `act` fails with, and what keeps the database from being written.
    ///
    /// # Cancel safety
    ///
    /// What was begun is finished.
    pub async fn transaction<T, F>(&self, act: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, LedgerError> + Send + 'static,
    {
        self.ask(move |connection| {
            let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let transaction = begun.map_err(rows::failed)?;
            let done = act(&transaction)?;
            transaction.commit().map_err(rows::uncommitted)?;
            Ok(done)
        })
        .await
    }

    fn with<A, O>(
        &self,
        definition: &Definition<A, O>,
        principal: impl Principal,
        handler: Handler,
    ) -> Result<ReceiptTool, DefinitionError>
    where
        A: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema + 'static,
    {
        let runs = Arc::new(Handled {
            ledger: self.clone(),
            handler,
        });
        ReceiptTool::new(definition, principal, runs)
    }

    async fn ask<T, F>(&self, act: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, LedgerError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Job::Ask(Box::new(move |connection| {
            // Who asked may be gone by now.
            let _ = reply.send(act(connection));
        }));
        match self.jobs.try_send(job) {
            Ok(()) => answer.await.map_err(|_| LedgerError::Closed)?,
            Err(TrySendError::Full(_)) => Err(LedgerError::Busy),
            Err(TrySendError::Disconnected(_)) => Err(LedgerError::Closed),
        }
    }
}

impl Ledger for SqliteLedger {
    fn by_key<'a>(&'a self, identity: &'a Identity) -> LedgerFuture<'a, Option<Receipt>> {
        let identity = identity.clone();
        Box::pin(self.ask(move |connection| rows::by_key(connection, &identity)))
    }

    fn by_id<'a>(&'a self, scope: &'a Scope, id: OperationId) -> LedgerFuture<'a, Option<Receipt>> {
        let scope = scope.clone();
        Box::pin(self.ask(move |connection| {
            let found = rows::by_id(connection, id)?;
            Ok(found.filter(|receipt| receipt.identity.scope == scope))
        }))
    }

    fn settle(&self, id: OperationId, standing: Standing) -> LedgerFuture<'_, Settled> {
        Box::pin(self.transaction(move |transaction| {
            rows::settle(transaction, id, &standing, SystemTime::now())
        }))
    }

    fn sweep(&self, at_most: usize) -> LedgerFuture<'_, Swept> {
        Box::pin(
            self.transaction(move |transaction| {
                rows::sweep(transaction, SystemTime::now(), at_most)
            }),
        )
    }
}

impl fmt::Debug for SqliteLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLedger").finish_non_exhaustive()
    }
}

/// Waits for the answer of the thread that writes, and for its turn no longer than until then.
async fn answered(
    mut answer: oneshot::Receiver<Answer>,
    turn: Turn,
    until: Instant,
    id: OperationId,
) -> Answer {
    let answered = match tokio::time::timeout_at(until.into(), &mut answer).await {
        Ok(answered) => answered,
        // The thread finds that out when it comes to it, and goes on to the next.
        Err(_) if turn.take() => return Answer::Busy,
        Err(_) => answer.await,
    };
    // The thread ends without a word only where the process does.
    answered.unwrap_or(Answer::Unclear { id })
}

/// A handler and where its receipts go.
struct Handled {
    ledger: SqliteLedger,
    handler: Handler,
}

impl Runs for Handled {
    fn flights(&self) -> &Arc<Flights> {
        &self.ledger.flights
    }

    fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::new(self.ledger.clone())
    }

    fn run(&self, arrival: Arrival, call: Call, terms: Arc<Terms>) -> Running {
        let (reply, answer) = oneshot::channel();
        let id = arrival.id;
        let until = Instant::now() + terms.bounds.begin.min(LONGEST);
        let turn = Turn::default();
        let begun = Begun {
            until,
            turn: turn.clone(),
            arrival,
            call,
            terms,
            handler: Arc::clone(&self.handler),
            reply,
        };
        let sent = self.ledger.jobs.try_send(Job::Call(Box::new(begun)));
        Box::pin(async move {
            match sent {
                Ok(()) => answered(answer, turn, until, id).await,
                Err(TrySendError::Full(_)) => Answer::Busy,
                Err(TrySendError::Disconnected(_)) => {
                    Answer::NotKept(NotKept::Failed(LedgerError::Closed.to_string()))
                }
            }
        })
    }
}
