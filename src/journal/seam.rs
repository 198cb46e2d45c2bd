//! The old seam, until calls use [`Journal`](super::Journal).

use std::{error::Error, future::Future, pin::Pin};

use crate::{
    evidence::Outcome,
    operation::{AttemptId, ConnectionName, IdempotencyKey, OperationId, OperationKind},
};

/// What a journal answers with. Every write can fail.
pub type Recorded<'a> =
    Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// What is known about an operation when it is accepted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Intent {
    /// The operation.
    pub operation: OperationId,
    /// What it asks.
    pub kind: OperationKind,
    /// The connection.
    pub connection: ConnectionName,
    /// The caller's key, if it gave one.
    pub key: Option<IdempotencyKey>,
}

/// How an operation ended, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was answered.
    Answered,
    /// It was not.
    Without(Outcome),
}

/// Keeps what must not be forgotten.
pub trait Journal: Send + Sync + 'static {
    /// An operation was accepted. An error keeps it from being sent.
    fn accepted<'a>(&'a self, intent: &'a Intent) -> Recorded<'a>;
    /// An attempt is about to be handed over. An error keeps it from being sent.
    fn dispatching(&self, operation: OperationId, attempt: AttemptId) -> Recorded<'_>;
    /// The outcome is known. An error is logged: the outcome is told to the caller all the same.
    fn settled(&self, operation: OperationId, how: Settled) -> Recorded<'_>;
}

/// Keeps nothing and never fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoJournal;

impl Journal for NoJournal {
    fn accepted<'a>(&'a self, _: &'a Intent) -> Recorded<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn dispatching(&self, _: OperationId, _: AttemptId) -> Recorded<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn settled(&self, _: OperationId, _: Settled) -> Recorded<'_> {
        Box::pin(std::future::ready(Ok(())))
    }
}
