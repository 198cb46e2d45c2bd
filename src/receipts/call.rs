//! What a handler knows of the call that it runs.

use tokio_util::sync::CancellationToken;

use super::identity::{Arrival, Identity};
use crate::operation::{IdempotencyKey, OperationId};

/// The call that a handler runs.
#[derive(Clone, Debug)]
pub struct Call {
    identity: Identity,
    id: OperationId,
    version: u32,
    cancel: CancellationToken,
}

impl Call {
    pub(crate) fn new(arrival: &Arrival, cancel: CancellationToken) -> Self {
        Self {
            identity: arrival.identity.clone(),
            id: arrival.id,
            version: arrival.version,
            cancel,
        }
    }

    /// The operation: the id that its receipt will have. It stays the same over every attempt that is
    /// made for it later, so that a name for another system can be derived from it.
    #[must_use]
    pub fn id(&self) -> OperationId {
        self.id
    }

    /// Whose call it is, of what, under which key.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.identity.key
    }

    /// The version of the operation that is deployed.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether the caller asked that it be stopped, or is gone. It stops nothing by itself: a handler
    /// that returns an error because of it is rolled back, and one that goes on is committed.
    #[must_use]
    pub fn cancel_requested(&self) -> &CancellationToken {
        &self.cancel
    }
}
