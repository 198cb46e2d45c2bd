//! The order to find out what became of an operation.

use std::{fmt, time::Duration};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Budget, OperationId};

/// The order to find out what became of an operation whose outcome is unknown.
///
/// An [`OperationId`] alone is one, with the connection's own limits.
///
/// ```
/// use std::time::Duration;
/// use mcp_supervisor::{OperationId, Resolve};
/// use serde_json::json;
///
/// fn order(operation: OperationId) -> Resolve {
///     // The journal was not allowed to keep the arguments, and this program still has them.
///     Resolve::new(operation)
///         .with_arguments(json!({ "item": "lamp" }))
///         .deadline(Duration::from_secs(30))
/// }
/// # let _ = order;
/// ```
#[derive(Clone)]
pub struct Resolve {
    pub(crate) operation: OperationId,
    pub(crate) arguments: Option<Value>,
    pub(crate) budget: Budget,
}

impl Resolve {
    /// The order to resolve `operation`.
    #[must_use]
    pub fn new(operation: OperationId) -> Self {
        Self {
            operation,
            arguments: None,
            budget: Budget::default(),
        }
    }

    /// The call's arguments, for an operation whose arguments the journal has not kept: those that the
    /// caller gave, without the key. Others than those are refused, and nothing is sent.
    #[must_use]
    pub fn with_arguments(mut self, arguments: Value) -> Self {
        self.arguments = Some(arguments);
        self
    }

    /// How long all of it may take. Without it, the connection's total is what it has.
    #[must_use]
    pub fn deadline(mut self, total: Duration) -> Self {
        self.budget.total = Some(total);
        self
    }

    /// A cap for each attempt, counted from its hand-over. It must not exceed the deadline.
    #[must_use]
    pub fn attempt_limit(mut self, limit: Duration) -> Self {
        self.budget.attempt = Some(limit);
        self
    }

    /// Lets `token` end the resolving. The operation stays as unknown as it was; a repeat that was
    /// sent may have run.
    #[must_use]
    pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
        self.budget.cancel = Some(token);
        self
    }
}

impl From<OperationId> for Resolve {
    fn from(operation: OperationId) -> Self {
        Self::new(operation)
    }
}

impl fmt::Debug for Resolve {
    /// Shows the operation, never its arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolve")
            .field("operation", &self.operation)
            .finish_non_exhaustive()
    }
}
