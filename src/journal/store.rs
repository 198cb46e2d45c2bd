//! Where a journal keeps its records. What may be recorded is the table's matter; a store makes it
//! last, lets one at a time have an operation, and finds it again.

use std::{future::Future, pin::Pin, sync::Arc, time::SystemTime};

use super::{
    record::{Fact, Impossible, Intent, Record},
    table::{Illegal, State},
};
use crate::operation::{AttemptId, ConnectionName, IdempotencyKey, OperationId};

/// What a store answers with.
pub type Stored<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps what must not be forgotten.
///
/// Whatever a write's future says, it says when that is durable. A future that is dropped may still
/// write, and leaves the store as usable as it was. A write that is refused changes nothing.
///
/// The suite in `tests/journal.rs` says the same as a program, for every store.
pub trait Store: Send + Sync + 'static {
    /// Records an intent, and with it, in the same write, the first attempt where there is one. An
    /// operation whose id is there already, or whose key another operation of the same connection has
    /// and [has not freed](State::frees_its_key), is found instead. Of many that come with one key at
    /// the same time, one is new.
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted>;

    /// Adds what happened to an operation that one has, and says where it stands now.
    /// [`Fenced`](StoreError::Fenced), where somebody else has it;
    /// [`Illegal`](StoreError::Illegal), where the table does not allow it; either, where the operation
    /// is settled.
    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State>;

    /// Finds one operation. By key: the last that was accepted under it, also when it has freed it.
    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>>;

    /// The operations that `filter` lets through, in the order of their ids, from `after` on.
    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>>;

    /// Takes an operation whose outcome is unknown in order to resolve it. Whoever ran it is fenced
    /// out. One at a time has it: another claim finds it elsewhere until it is released or its host is
    /// gone. An operation that is running is elsewhere, too.
    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed>;

    /// Gives up what was claimed, so that another may claim it at once: `held` is worth nothing from
    /// then on. For what is settled, and for what runs, it does nothing.
    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()>;

    /// Takes away what was kept long enough, by [when it was settled](Record::settled_at).
    ///
    /// What was settled before `answers` becomes a tombstone, as [`Fact::Forgotten`] does it; where its
    /// [key is free](State::frees_its_key), it is removed whole. Tombstones of what was settled before
    /// `tombstones` are removed. At most `at_most` become tombstones and at most `at_most` are removed.
    /// What is not settled stays.
    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept>;

    /// Waits for all that was written, and gives up what this host has. From then on the store answers
    /// [`Closed`](StoreError::Closed), except to another close.
    fn close(&self) -> Stored<'_, ()>;

    /// Whether other hosts write here too, so that one that waits has to look now and then.
    fn is_shared(&self) -> bool;
}

/// The right to write to one operation. Whoever claims it after makes this one worthless.
#[derive(Debug, PartialEq, Eq)]
pub struct Held {
    /// The operation.
    pub operation: OperationId,
    /// Where the store has it.
    pub row: i64,
    /// The fencing number.
    pub fence: u64,
}

/// What became of an intent.
#[derive(Debug)]
pub enum Accepted {
    /// It is recorded.
    New(Held),
    /// There is one already, under the same id or key.
    Found(Box<Record>),
}

/// What became of a claim.
#[derive(Debug)]
pub enum Claimed {
    /// It is this host's now.
    Yes(Held, Box<Record>),
    /// Another host, or another task of this one, has it.
    Elsewhere(Box<Record>),
    /// There is nothing left to resolve.
    Settled(Box<Record>),
    /// The store does not know it.
    Missing,
}

/// How to find an operation.
#[derive(Clone, Copy, Debug)]
pub enum By<'a> {
    /// By its id.
    Operation(OperationId),
    /// By the key that its caller gave it, on one connection.
    Key(&'a ConnectionName, &'a IdempotencyKey),
}

/// Which operations to list.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Only those in one of these states. `None`: in any.
    pub states: Option<Vec<State>>,
    /// Only those of this connection.
    pub connection: Option<ConnectionName>,
    /// Only those after this one.
    pub after: Option<OperationId>,
    /// At most so many.
    pub limit: usize,
}

impl Default for Filter {
    /// All, a hundred at a time.
    fn default() -> Self {
        Self {
            states: None,
            connection: None,
            after: None,
            limit: 100,
        }
    }
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Answers that became tombstones.
    pub forgotten: usize,
    /// Tombstones that were removed, and operations with a free key.
    pub removed: usize,
}

/// What keeps a store from doing what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no room.
    #[error("there is no room for the journal: {0}")]
    Full(Arc<str>),
    /// It can be read only.
    #[error("the journal can be read only: {0}")]
    ReadOnly(Arc<str>),
    /// Another process has it.
    #[error("another process has the journal: {0}")]
    Locked(Arc<str>),
    /// What is there is not what was written.
    #[error("the journal is damaged: {0}")]
    Corrupt(Arc<str>),
    /// A newer version of this crate wrote it.
    #[error(
        "the journal has schema version {found}, and this program knows versions up to {known}"
    )]
    Newer {
        /// The version that is there.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// What it was told cannot be, or the database is not as it has to be.
    #[error("the journal cannot be used so: {0}")]
    Settings(Arc<str>),
    /// Somebody else has the operation now.
    #[error("the operation changed hands: this host's lease ran out, or another host claimed it")]
    Fenced,
    /// It cannot have happened.
    #[error(transparent)]
    Illegal(#[from] Illegal),
    /// The store was closed.
    #[error("the journal is closed")]
    Closed,
    /// The store cannot be reached, or failed in another way.
    #[error("the journal's store failed: {0}")]
    Unavailable(Arc<str>),
}

impl From<Impossible> for StoreError {
    fn from(impossible: Impossible) -> Self {
        Self::Corrupt(impossible.to_string().into())
    }
}
