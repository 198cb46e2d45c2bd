//! Where receipts are kept.

use std::{future::Future, pin::Pin, sync::Arc};

use super::{
    identity::{Identity, Scope},
    receipt::{Receipt, Standing},
};
use crate::operation::OperationId;

/// What a ledger answers with.
pub type LedgerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, LedgerError>> + Send + 'a>>;

/// Keeps receipts. How a tool is run belongs to each ledger, because its handler gets that ledger's
/// transaction; what is here is the same for all.
///
/// Whatever a write's future says, it says when that is durable. A future that is dropped may still
/// write.
pub trait Ledger: Send + Sync + 'static {
    /// What is kept under a key.
    fn by_key<'a>(&'a self, identity: &'a Identity) -> LedgerFuture<'a, Option<Receipt>>;

    /// What is kept of an operation, if it is of this scope.
    fn by_id<'a>(&'a self, scope: &'a Scope, id: OperationId) -> LedgerFuture<'a, Option<Receipt>>;

    /// Says what a running or unknown operation came to. What it came to before, by somebody else's
    /// word, stays.
    fn settle(&self, id: OperationId, standing: Standing) -> LedgerFuture<'_, Settled>;

    /// Removes answers whose time is over, and the tombstones that are left of others, at most
    /// `at_most` of each. What runs or is unknown stays.
    fn sweep(&self, at_most: usize) -> LedgerFuture<'_, Swept>;
}

impl LedgerError {
    /// What a caller of a tool is told. The words of a database can name its places and quote its rows.
    pub(crate) fn for_callers(&self) -> &'static str {
        match self {
            Self::Busy => "the server's ledger is busy; nothing was changed",
            Self::Unclear(_) => "whether the server's ledger was written cannot be established",
            Self::Newer { .. } | Self::Corrupt(_) | Self::Closed | Self::Unavailable(_) => {
                "the server's ledger cannot be used; nothing was changed"
            }
        }
    }
}

/// What became of a word about an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// It stands.
    Now,
    /// The operation was settled before, and this is what stands.
    Before(Standing),
    /// There is no such operation.
    Missing,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Answers, of which a tombstone is left.
    pub answers: usize,
    /// Tombstones.
    pub tombstones: usize,
}

/// What keeps a ledger from being read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// Somebody else has the database for longer than the bound. Nothing was changed.
    #[error("the ledger's database was locked by somebody else for longer than the bound")]
    Busy,
    /// The tables are of a newer version of this crate. Nothing was changed.
    #[error(
        "the ledger's tables are of version {found}, and this program knows {known}; deploy a newer one"
    )]
    Newer {
        /// The version that was found.
        found: i64,
        /// The newest that is known.
        known: i64,
    },
    /// What is in a row is not what a ledger writes.
    #[error("the ledger holds a row that it did not write: {0}")]
    Corrupt(Arc<str>),
    /// The ledger was closed.
    #[error("the ledger is closed")]
    Closed,
    /// Whether a commit held cannot be established.
    #[error("whether the transaction was committed cannot be established: {0}")]
    Unclear(Arc<str>),
    /// The database cannot be reached, or failed in another way. Nothing was changed.
    #[error("the ledger's database failed: {0}")]
    Unavailable(Arc<str>),
}

#[cfg(feature = "sqlite")]
impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        super::sqlite::rows::failed(error)
    }
}
