//! What the author of a long work has while it runs.

use std::{fmt, sync::Arc};

use rusqlite::Transaction;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::rows::Rows;
use crate::{
    operation::{IdempotencyKey, OperationId},
    receipts::{Failure, Identity, Scope},
};

/// A long work that runs: what was asked, and how it tells what it is doing.
pub struct Work<A> {
    /// What was asked.
    pub arguments: A,
    pub(super) id: OperationId,
    pub(super) identity: Identity,
    pub(super) checkpoint: Option<Value>,
    pub(super) cancel: CancellationToken,
    pub(super) rows: Arc<Rows>,
}

/// How a long work ended.
#[non_exhaustive]
pub enum End<O> {
    /// It is done.
    Done(LastWrites<O>),
    /// It stopped before it was done, because it was asked to. It does not count as done, and nothing of
    /// what it has not committed at a checkpoint stays.
    Stopped,
}

/// The last writes of a work, which make its result. They and the receipt's end are one transaction.
pub type LastWrites<O> = Box<dyn FnOnce(&Transaction<'_>) -> Result<O, Failure> + Send>;

impl<O> End<O> {
    /// It is done, when these writes are made. They are made once, on the ledger's writer, and nothing
    /// may be waited for in them.
    pub fn done(
        writes: impl FnOnce(&Transaction<'_>) -> Result<O, Failure> + Send + 'static,
    ) -> Self {
        Self::Done(Box::new(writes))
    }

    /// It is done, and nothing is left to write.
    pub fn with(result: O) -> Self
    where
        O: Send + 'static,
    {
        Self::done(move |_| Ok(result))
    }
}

impl<O> fmt::Debug for End<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done(_) => "Done",
            Self::Stopped => "Stopped",
        })
    }
}

impl<A> Work<A> {
    /// The operation: the id that its callers have as a handle, and its task's id.
    #[must_use]
    pub fn id(&self) -> OperationId {
        self.id
    }

    /// Whose work it is.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.identity.scope
    }

    /// The key of its start.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.identity.key
    }

    /// What the last checkpoint before a crash wrote down, in a work that is resumed.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&Value> {
        self.checkpoint.as_ref()
    }

    /// Whether somebody has asked that it be stopped. A request that came to another process of the
    /// server's is heard of with the next word about progress.
    #[must_use]
    pub fn cancel_requested(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until somebody asks that it be stopped.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Says how far it is, from 0 to 1, and what it does.
    ///
    /// # Errors
    ///
    /// [`Failure`], where the ledger cannot be written, or another host has the work. Nothing that it
    /// does counts any more then.
    ///
    /// # Cancel safety
    ///
    /// It may be written all the same.
    pub async fn progress(
        &self,
        done: f64,
        message: impl Into<String> + Send,
    ) -> Result<(), Failure> {
        let message = message.into();
        self.heard(self.rows.progress(self.id, done, message).await?);
        Ok(())
    }

    /// Commits writes together with what a resumed work needs to go on from here.
    ///
    /// # Errors
    ///
    /// What `writes` say, or [`Failure`] where the ledger cannot be written, or another host has the
    /// work. Nothing is written then.
    ///
    /// # Cancel safety
    ///
    /// It may be written all the same.
    pub async fn commit<T: Send + 'static>(
        &self,
        checkpoint: Value,
        writes: impl FnOnce(&Transaction<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (written, asked) = self.rows.commit(self.id, checkpoint, writes).await?;
        self.heard(asked);
        Ok(written)
    }

    fn heard(&self, cancel_requested: bool) {
        if cancel_requested {
            self.cancel.cancel();
        }
    }
}

impl<A> fmt::Debug for Work<A> {
    /// Shows the operation, and nothing of what was asked.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
