//! The durable half of a call: an operation's identity is on disk before its first byte is sent, so
//! that an outcome which nobody knows can be found out later, after a crash too.
//!
//! [`Journal`] is what a host holds: it lists, shows, waits for, judges and exports operations. What
//! needs a connection (a repeat under the same key, a look-up, a task) is asked of the supervisor or
//! of the connection. [`table`] says what may follow what; [`Record`] is one operation and what happened
//! to it; a [`Store`] makes it last.
//!
//! ```
//! use mcp_supervisor::journal::{Journal, JournalError};
//!
//! # async fn look(journal: &Journal) -> Result<(), JournalError> {
//! for record in journal.unknown().await? {
//!     let intent = &record.intent;
//!     println!("{}: {} on {} may have run", intent.operation, intent.tool, intent.connection);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What is kept
//!
//! Of each operation: its [`Intent`] (connection, tool, key, contract, and a fingerprint of tool and
//! arguments), and its history, one [`Entry`] for each attempt, each loss and each answer. The
//! arguments themselves are kept only where the caller allows it, by
//! [`ToolCall::keep_arguments`](crate::ToolCall::keep_arguments) or for the whole journal by
//! [`JournalSettings::keep_arguments`]. Answers are kept up to
//! [`max_answer_bytes`](JournalSettings::max_answer_bytes), and a server's error message is cut to
//! [`Failure::MAX_MESSAGE_BYTES`]. Neither keys nor arguments nor answers are shown by `Debug` or
//! logged.
//!
//! # The life of an operation
//!
//! | state | means | moved by |
//! |---|---|---|
//! | [`Accepted`](State::Accepted) | the intent is durable, and nothing left | a dispatch; proof that it was not sent |
//! | [`Dispatching`](State::Dispatching) | an attempt may be on its way; this is durable before the attempt is | an answer, a loss, its host's end |
//! | [`CancelRequested`](State::CancelRequested) | the same, and its caller asked that it be stopped | the same |
//! | [`OutcomeUnknown`](State::OutcomeUnknown) | it may have run, and nobody knows | knowledge, and never time |
//! | [`Succeeded`](State::Succeeded), [`Failed`](State::Failed), [`Cancelled`](State::Cancelled) | settled; the key stands for this | retention |
//! | [`Rejected`](State::Rejected), [`NotSent`](State::NotSent) | settled; it did not run, and the key is free | retention, which removes it |
//! | [`Forgotten`](State::Forgotten) | a tombstone: what was said is gone, the key is refused | retention, which removes it |
//!
//! After a crash, what is found accepted was never sent, and what is found dispatching is unknown:
//! it is never simply run again. An unknown outcome becomes known by an answer that comes late, by what
//! the tool's contract allows (a repeat under the same key, a look-up), by the task that the server
//! made of it, or by somebody's word, which [`Journal::verdict`] records with who and why. A repeat that
//! was refused says nothing of the attempts before it, and settles nothing.
//!
//! # Keys
//!
//! A key belongs to one operation of one connection in one journal, from when it is accepted until
//! its tombstone is removed, or until it is established that it did not run. A journal that many hosts
//! share is one journal.
//!
//! # Who writes
//!
//! One at a time has an operation, and every write carries the fencing number with which it has it.
//! Whoever resolves an operation claims it first; a write of somebody who had it before is refused.
//!
//! # Retention
//!
//! Answers are kept for [`answers_kept_for`](JournalSettings::answers_kept_for) after they were
//! recorded, and then a tombstone refuses the key until
//! [`tombstones_kept_for`](JournalSettings::tombstones_kept_for) is over. A task begins with the first
//! use of a journal inside of a tokio runtime, sweeps a bounded number at a time, and ends with the
//! journal's last clone; [`Journal::sweep`] does the same at once. What is not settled is never
//! removed, however old it is.
//!
//! # Clocks
//!
//! Times are those of the hosts that recorded them. They decide about retention and nothing else: the
//! order of a history is the order in which it was written, whatever a clock said.

mod claim;
mod error;
mod export;
mod memory;
mod moment;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod sweeper;
pub mod table;
#[cfg(test)]
mod tests;
mod verdict;

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tokio::sync::broadcast;

pub(crate) use claim::FreeOnPanic;
pub use error::JournalError;
pub use memory::MemoryStore;
pub(crate) use moment::written as moment;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresSettings, PostgresStore};
pub use record::{Entry, Fact, Failure, Holder, Impossible, Intent, Kept, Record, Settler};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteSettings, SqliteStore};
pub use store::{Accepted, By, Claimed, Filter, Held, Store, StoreError, Stored, Swept};
pub use table::State;
pub use verdict::{Ruling, Verdict, VerdictError};

use sweeper::Sweeper;

use crate::operation::{AttemptId, ConnectionName, IdempotencyKey, OperationId};

/// How often one that waits looks, where other hosts write to the same store.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The record of every operation that must not be forgotten. Cheap to clone: clones are one journal.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    store: Box<dyn Store>,
    settings: JournalSettings,
    /// Told of each operation that came to rest here, or was made a task of. One that waits and falls
    /// behind looks again.
    rested: broadcast::Sender<OperationId>,
    sweeper: Sweeper,
    claims: claim::Claims,
    opened: tokio::time::Instant,
}

/// How many operations may come to rest before one that waits has to look at the store to catch up.
const REMEMBERED: usize = 256;

/// How many records are in memory at once where all are asked for.
const PAGE: usize = 256;

/// What a journal keeps, and for how long.
///
/// ```
/// use std::time::Duration;
/// use mcp_supervisor::journal::{Journal, JournalSettings, MemoryStore};
///
/// let settings = JournalSettings {
///     only_keyed: true,
///     answers_kept_for: Duration::from_secs(24 * 60 * 60),
///     ..JournalSettings::default()
/// };
/// let journal = Journal::new(MemoryStore::new(), settings);
/// assert!(journal.settings().only_keyed);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSettings {
    /// Whether only calls are recorded whose caller gave them a key, or whose contract needs one.
    pub only_keyed: bool,
    /// Whether arguments are kept of every call, and not only of those that say so.
    pub keep_arguments: bool,
    /// The largest result that is kept, in bytes of JSON.
    pub max_answer_bytes: usize,
    /// How long an answer is kept after it was settled.
    pub answers_kept_for: Duration,
    /// How long a key is refused after it was settled, without its answer from
    /// [`answers_kept_for`](Self::answers_kept_for) on.
    pub tombstones_kept_for: Duration,
}

impl Default for JournalSettings {
    /// Every tool call, no arguments, results of up to 1 MiB for 7 days, tombstones for 90.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            only_keyed: false,
            keep_arguments: false,
            max_answer_bytes: 1024 * 1024,
            answers_kept_for: 7 * day,
            tombstones_kept_for: 90 * day,
        }
    }
}

impl Journal {
    /// A journal over `store`.
    #[must_use]
    pub fn new(store: impl Store, settings: JournalSettings) -> Self {
        Self(Arc::new(Shared {
            store: Box::new(store),
            settings,
            rested: broadcast::Sender::new(REMEMBERED),
            sweeper: Sweeper::default(),
            claims: claim::Claims::default(),
            opened: tokio::time::Instant::now(),
        }))
    }

    /// A journal that lasts as long as its process: for tests, and for hosts that want one identity
    /// per operation and nothing on disk.
    #[must_use]
    pub fn memory() -> Self {
        Self::new(MemoryStore::new(), JournalSettings::default())
    }

    /// What it keeps.
    #[must_use]
    pub fn settings(&self) -> &JournalSettings {
        &self.0.settings
    }

    /// One operation.
    ///
    /// # Errors
    ///
    /// What keeps the store from being read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn show(&self, operation: OperationId) -> Result<Option<Record>, StoreError> {
        self.store().find(By::Operation(operation)).await
    }

    /// The operation that was accepted last under `key` on `connection`, also when it has freed the
    /// key since.
    ///
    /// # Errors
    ///
    /// What keeps the store from being read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn find_key(
        &self,
        connection: &ConnectionName,
        key: &IdempotencyKey,
    ) -> Result<Option<Record>, StoreError> {
        self.store().find(By::Key(connection, key)).await
    }

    /// The operations that `filter` lets through, in the order of their ids.
    ///
    /// # Errors
    ///
    /// What keeps the store from being read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.store().list(filter).await
    }

    /// Every operation whose outcome is unknown, in the order of their ids: what waits for somebody to
    /// find out. There should be few; [`list`](Self::list) gives them page by page.
    ///
    /// # Errors
    ///
    /// What keeps the store from being read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn unknown(&self) -> Result<Vec<Record>, StoreError> {
        let mut filter = Filter {
            states: Some(vec![State::OutcomeUnknown]),
            limit: PAGE,
            ..Filter::default()
        };
        let mut unknown = Vec::new();
        loop {
            let page = self.list(&filter).await?;
            let Some(last) = page.last() else {
                return Ok(unknown);
            };
            filter.after = Some(last.intent.operation);
            unknown.extend(page);
        }
    }

    /// Waits until an operation is settled or its outcome is unknown, and gives it back as it is then,
    /// or as it is after `within`. `None`: there is no such operation.
    ///
    /// An outcome that is unknown ends the wait at once, also while somebody resolves it: nothing says
    /// that it will ever be known.
    ///
    /// # Errors
    ///
    /// What keeps the store from being read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn wait(
        &self,
        operation: OperationId,
        within: Duration,
    ) -> Result<Option<Record>, StoreError> {
        self.wait_until(operation, within, |record| rests(record.state))
            .await
    }

    /// Waits as [`wait`](Self::wait) does, for what `enough` says. Of what it can say, the journal tells
    /// those who wait that an operation came to rest, or that a task was made of it.
    pub(crate) async fn wait_until(
        &self,
        operation: OperationId,
        within: Duration,
        enough: impl Fn(&Record) -> bool,
    ) -> Result<Option<Record>, StoreError> {
        // Asked for before the first look, so that nothing comes to rest unseen in between.
        let mut rested = self.0.rested.subscribe();
        // A wait that no clock can tell the end of has none.
        let until = tokio::time::Instant::now().checked_add(within);
        loop {
            let record = self.show(operation).await?;
            let over = until.is_some_and(|until| tokio::time::Instant::now() >= until);
            if over || record.as_ref().is_none_or(&enough) {
                return Ok(record);
            }
            let look_again = async {
                match self.0.store.is_shared() {
                    true => tokio::time::sleep(LOOK_EVERY).await,
                    false => std::future::pending().await,
                }
            };
            let end = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = hears_of(&mut rested, operation) => {}
                () = look_again => {}
                () = end => {}
            }
        }
    }

    /// Waits for all that was written and gives up what this host has. Nothing is recorded after it.
    ///
    /// # Errors
    ///
    /// What keeps the store from being written.
    ///
    /// # Cancel safety
    ///
    /// It goes on closing.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.0.store.close().await
    }

    /// Removes what was kept long enough, at most `at_most` answers and as many tombstones. Operations
    /// whose outcome is unknown are never removed.
    ///
    /// # Errors
    ///
    /// What keeps the store from being written.
    ///
    /// # Cancel safety
    ///
    /// What was begun is finished.
    pub async fn sweep(&self, at_most: usize) -> Result<Swept, StoreError> {
        self.0.sweep(at_most).await
    }

    /// The store, which from its first use on is swept.
    fn store(&self) -> &dyn Store {
        Sweeper::begin(&self.0);
        &*self.0.store
    }

    pub(crate) async fn accept(
        &self,
        intent: Intent,
        first: Option<AttemptId>,
    ) -> Result<Accepted, StoreError> {
        self.store().accept(intent, first).await
    }

    pub(crate) async fn find(&self, by: By<'_>) -> Result<Option<Record>, StoreError> {
        self.store().find(by).await
    }

    /// What is kept of a result.
    pub(crate) fn kept(&self, answer: Value) -> Kept {
        let bytes = json_bytes(&answer);
        match bytes <= self.0.settings.max_answer_bytes as u64 {
            true => Kept::Whole(answer),
            false => Kept::TooLarge { bytes },
        }
    }
}

impl Shared {
    async fn sweep(&self, at_most: usize) -> Result<Swept, StoreError> {
        let settings = &self.settings;
        let now = SystemTime::now();
        let before = |kept| now.checked_sub(kept).unwrap_or(SystemTime::UNIX_EPOCH);
        let answers = before(settings.answers_kept_for);
        let tombstones = before(settings.tombstones_kept_for);
        self.store.sweep(answers, tombstones, at_most).await
    }
}

/// Whether nothing is going on with it any more, as far as is known.
fn rests(state: State) -> bool {
    state.is_settled() || state == State::OutcomeUnknown
}

/// Ends when `operation` came to rest, or may have.
async fn hears_of(rested: &mut broadcast::Receiver<OperationId>, operation: OperationId) {
    // `Closed` cannot be: whoever waits holds the journal. `Lagged` is for looking again.
    while rested.recv().await.is_ok_and(|other| other != operation) {}
}

/// How long a value is as JSON, without writing it anywhere.
fn json_bytes(value: &Value) -> u64 {
    struct Counted(u64);
    impl io::Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(0);
    serde_json::to_writer(&mut counted, value).expect("counting cannot fail");
    counted.0
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
