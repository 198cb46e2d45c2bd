//! The durable half of a call: an operation's identity is on disk before its first byte is sent, so
//! that an outcome which nobody knows can be found out later, after a crash too.
//!
//! [`table`] says what may follow what; [`Record`] is one operation and what happened to it; a
//! [`Store`] makes it last. [`Journal`] is what a host holds: it lists, shows, waits for, judges and
//! exports operations. What needs a connection (a repeat under the same key, a look-up, a task) is
//! asked of the supervisor or of the connection.

mod claim;
mod memory;
mod moment;
mod record;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
pub mod table;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use tokio::{sync::Notify, time::Instant};

pub(crate) use claim::FreeOnPanic;
pub use memory::MemoryStore;
pub use record::{Entry, Fact, Failure, Impossible, Intent, Kept, Owner, Record, Settler};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteSettings, SqliteStore};
pub use store::{Accepted, By, Claimed, Filter, Held, Store, StoreError, Stored, Swept};
pub use table::State;

use crate::operation::{AttemptId, OperationId};

/// How often one that waits looks, where other hosts write to the same store.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The record of every operation that must not be forgotten. Cheap to clone: clones are one journal.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    store: Box<dyn Store>,
    settings: JournalSettings,
    /// Told each time that an operation's state changes here.
    changed: Notify,
    claims: claim::Claims,
    opened: Instant,
}

/// What a journal keeps, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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
            changed: Notify::new(),
            claims: claim::Claims::default(),
            opened: Instant::now(),
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
        self.0.store.find(By::Operation(operation)).await
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
        self.0.store.list(filter).await
    }

    /// Waits until an operation is settled or its outcome is unknown, and gives it back as it is then,
    /// or as it is after `within`.
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
        let until = Instant::now() + within;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let record = self.show(operation).await?;
            let rests = |record: &Record| {
                record.state.is_settled() || record.state == State::OutcomeUnknown
            };
            if record.as_ref().is_none_or(rests) || Instant::now() >= until {
                return Ok(record);
            }
            let look_again = async {
                match self.0.store.is_shared() {
                    true => tokio::time::sleep(LOOK_EVERY).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changed => {}
                () = look_again => {}
                () = tokio::time::sleep_until(until) => {}
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
        let settings = &self.0.settings;
        let now = SystemTime::now();
        let before = |kept| now.checked_sub(kept).unwrap_or(SystemTime::UNIX_EPOCH);
        let answers = before(settings.answers_kept_for);
        let tombstones = before(settings.tombstones_kept_for);
        self.0.store.sweep(answers, tombstones, at_most).await
    }

    pub(crate) async fn accept(
        &self,
        intent: Intent,
        first: Option<AttemptId>,
    ) -> Result<Accepted, StoreError> {
        self.0.store.accept(intent, first).await
    }

    pub(crate) async fn find(&self, by: By<'_>) -> Result<Option<Record>, StoreError> {
        self.0.store.find(by).await
    }

    /// What is kept of a result.
    pub(crate) fn kept(&self, answer: Value) -> Kept {
        let bytes = serde_json::to_string(&answer).map_or(0, |text| text.len());
        match bytes <= self.0.settings.max_answer_bytes {
            true => Kept::Whole(answer),
            false => Kept::TooLarge {
                bytes: bytes as u64,
            },
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
