//! One at a time resolves an operation: among the tasks of this process here, among hosts in the
//! store.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

use super::{Claimed, Fact, Held, Journal, State, StoreError, rests};
use crate::operation::OperationId;

/// What this process has of the operations that nobody calls any more.
#[derive(Default)]
pub(super) struct Claims(Mutex<Book>);

#[derive(Default)]
struct Book {
    /// Who is being resolved, and where the right to do so goes back to.
    claimed: HashMap<OperationId, Origin>,
    /// The rights to operations of this host that servers work on in tasks.
    in_tasks: HashMap<OperationId, Held>,
}

#[derive(Clone, Copy)]
enum Origin {
    Store,
    Task,
}

/// A claim that may come to nothing.
struct Mark<'a> {
    claims: &'a Claims,
    operation: OperationId,
    stays: bool,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.claims.unmark(self.operation);
        }
    }
}

/// Frees an operation whose resolver panics, so that it can be resolved again.
pub(crate) struct FreeOnPanic(pub(crate) Journal, pub(crate) OperationId);

impl Drop for FreeOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.0.claims.unmark(self.1);
        }
    }
}

impl Claims {
    fn with<T>(&self, act: impl FnOnce(&mut Book) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn mark(&self, operation: OperationId) -> Option<Mark<'_>> {
        let is_free = self.with(|book| {
            let is_free = !book.claimed.contains_key(&operation);
            if is_free {
                let in_task = book.in_tasks.contains_key(&operation);
                let origin = if in_task { Origin::Task } else { Origin::Store };
                book.claimed.insert(operation, origin);
            }
            is_free
        });
        // Made only then: one that is dropped frees the operation.
        is_free.then(|| Mark {
            claims: self,
            operation,
            stays: false,
        })
    }

    /// Its task tells nothing any more: it is unknown, and free for whoever claims it from the store.
    fn end_task(&self, operation: OperationId) {
        self.with(|book| {
            if let Some(Origin::Task) = book.claimed.get(&operation) {
                book.claimed.remove(&operation);
            }
        });
    }

    fn unmark(&self, operation: OperationId) -> Option<Origin> {
        self.with(|book| book.claimed.remove(&operation))
    }
}

impl Journal {
    /// Takes an unsettled operation in order to resolve it, unless somebody has it.
    pub(crate) async fn claim(&self, operation: OperationId) -> Result<Claimed, StoreError> {
        let claims = &self.0.claims;
        let Some(mut mark) = claims.mark(operation) else {
            return Ok(match self.show(operation).await? {
                None => Claimed::Missing,
                Some(record) if record.state.is_settled() => Claimed::Settled(Box::new(record)),
                Some(record) => Claimed::Elsewhere(Box::new(record)),
            });
        };
        if claims.with(|book| book.in_tasks.contains_key(&operation)) {
            let record = self.show(operation).await?;
            let held = claims.with(|book| book.in_tasks.remove(&operation));
            match (record, held) {
                (None, _) => return Ok(Claimed::Missing),
                (Some(record), _) if record.state.is_settled() => {
                    return Ok(Claimed::Settled(Box::new(record)));
                }
                (Some(record), Some(held)) => {
                    mark.stays = true;
                    return Ok(Claimed::Yes(held, Box::new(record)));
                }
                (Some(_), None) => {}
            }
        }
        let claimed = self.store().claim(operation).await?;
        mark.stays = matches!(claimed, Claimed::Yes(..));
        Ok(claimed)
    }

    /// Adds what happened to an operation that this host has.
    pub(crate) async fn append(&self, held: &Held, mut fact: Fact) -> Result<State, StoreError> {
        if let Fact::Without { failure, .. } = &mut fact {
            failure.cut();
        }
        let is_task = matches!(fact, Fact::Task { .. });
        let state = self.store().append(held, fact).await;
        let is_over = match &state {
            Ok(state) => state.is_settled(),
            Err(error) => matches!(error, StoreError::Fenced | StoreError::Closed),
        };
        if is_over {
            self.0.claims.unmark(held.operation);
        }
        if let Ok(State::OutcomeUnknown) = state {
            self.0.claims.end_task(held.operation);
        }
        if state.as_ref().is_ok_and(|state| is_task || rests(*state)) {
            // Nobody listens where nobody waits.
            let _ = self.0.rested.send(held.operation);
        }
        state
    }

    /// Gives up what was claimed and not settled, or what a call left unknown.
    pub(crate) async fn release(&self, held: &Held) -> Result<(), StoreError> {
        match self.0.claims.unmark(held.operation) {
            Some(Origin::Store) => self.store().release(held).await,
            Some(Origin::Task) => {
                self.hold_task(Held { ..*held });
                Ok(())
            }
            // It is not this one's any more.
            None => Ok(()),
        }
    }

    /// The right to write an operation whose server works on it in a task. It waits here for whoever
    /// learns how the task ended.
    pub(crate) fn hold_task(&self, held: Held) {
        let claims = &self.0.claims;
        claims.with(|book| book.in_tasks.insert(held.operation, held));
    }

    /// Whether a task of this host's has the operation, so that whoever asks may resolve it.
    pub(crate) fn is_in_task(&self, operation: OperationId) -> bool {
        let claims = &self.0.claims;
        claims.with(|book| book.in_tasks.contains_key(&operation))
    }

    /// When this process opened the journal, if it is the only one that has it: whoever had it before
    /// was gone by then.
    pub(crate) fn opened_alone(&self) -> Option<Instant> {
        (!self.0.store.is_shared()).then_some(self.0.opened)
    }
}
