//! One at a time resolves an operation: among the tasks of this process here, among hosts in the
//! store.

use std::{collections::HashSet, sync::Mutex, sync::PoisonError};

use tokio::time::Instant;

use super::{Claimed, Fact, Held, Journal, Record, State, StoreError};
use crate::operation::OperationId;

/// The operations that tasks of this process resolve.
#[derive(Default)]
pub(super) struct Claims(Mutex<HashSet<OperationId>>);

/// An operation that is this task's to resolve. Dropped, another task may have it.
pub(crate) struct Claim {
    journal: Journal,
    held: Held,
    /// The operation as it was when it was claimed.
    pub(crate) record: Record,
    _mark: Mark,
}

/// What became of the wish to resolve an operation.
pub(crate) enum Taken {
    Yes(Box<Claim>),
    /// Somebody runs or resolves it.
    Elsewhere(Box<Record>),
    Settled(Box<Record>),
    Missing,
}

struct Mark {
    journal: Journal,
    operation: OperationId,
}

impl Claims {
    fn with<T>(&self, act: impl FnOnce(&mut HashSet<OperationId>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let claims = &self.journal.0.claims;
        claims.with(|claims| claims.remove(&self.operation));
    }
}

impl Journal {
    /// Claims an operation, unless somebody has it.
    pub(crate) async fn take(&self, operation: OperationId) -> Result<Taken, StoreError> {
        if !self.0.claims.with(|claims| claims.insert(operation)) {
            return Ok(match self.show(operation).await? {
                None => Taken::Missing,
                Some(record) if record.state.is_settled() => Taken::Settled(Box::new(record)),
                Some(record) => Taken::Elsewhere(Box::new(record)),
            });
        }
        let mark = Mark {
            journal: self.clone(),
            operation,
        };
        Ok(match self.claim(operation).await? {
            Claimed::Yes(held, record) => Taken::Yes(Box::new(Claim {
                journal: self.clone(),
                held,
                record: *record,
                _mark: mark,
            })),
            Claimed::Elsewhere(record) => Taken::Elsewhere(record),
            Claimed::Settled(record) => Taken::Settled(record),
            Claimed::Missing => Taken::Missing,
        })
    }
}

impl Journal {
    /// When this process opened the journal, if it is the only one that has it: whoever had it before
    /// was gone by then.
    pub(crate) fn opened_alone(&self) -> Option<Instant> {
        (!self.0.store.is_shared()).then_some(self.0.opened)
    }
}

impl Claim {
    /// Adds what happened.
    pub(crate) async fn append(&self, fact: Fact) -> Result<State, StoreError> {
        self.journal.append(&self.held, fact).await
    }

    /// Gives it up unsettled. What cannot be given up is free when this host is gone.
    pub(crate) async fn release(self) {
        if let Err(error) = self.journal.0.store.release(&self.held).await {
            let operation = self.held.operation;
            tracing::warn!(%operation, %error, "an operation could not be given up");
        }
    }
}
