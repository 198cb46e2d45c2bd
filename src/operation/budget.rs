//! How long an operation may take, and what else each of them can be given.

use std::{fmt, time::Duration};

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{OperationId, ProgressSink};

/// How long an operation may take, who may stop it, and what else every operation can be given.
///
/// All of it is optional: what is not set comes from the connection's
/// [`Limits`](crate::spec::Limits), which always has a total.
#[derive(Clone, Default)]
pub struct Budget {
    pub(crate) total: Option<Duration>,
    pub(crate) attempt: Option<Duration>,
    pub(crate) idle: Option<Duration>,
    pub(crate) cancel: Option<CancellationToken>,
    pub(crate) id: Option<OperationId>,
    pub(crate) progress: Option<ProgressSink>,
    pub(crate) meta: Map<String, Value>,
}

impl Budget {
    /// The identity that the caller chose, or a new one.
    pub(crate) fn operation(&self) -> OperationId {
        self.id.unwrap_or_else(OperationId::mint)
    }
}

impl fmt::Debug for Budget {
    /// Shows nothing of the metadata, which may hold anything.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("total", &self.total)
            .field("attempt", &self.attempt)
            .field("idle", &self.idle)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

macro_rules! budget_setters {
    ($name:ident) => {
        impl $name {
            /// The total budget: queueing, connecting, waiting and repeating all spend it.
            /// Zero is refused when the operation starts.
            #[must_use]
            pub fn deadline(mut self, total: Duration) -> Self {
                self.budget.total = Some(total);
                self
            }

            /// A cap for each attempt, counted from its hand-over. It must not exceed the total.
            #[must_use]
            pub fn attempt_limit(mut self, limit: Duration) -> Self {
                self.budget.attempt = Some(limit);
                self
            }

            /// The longest silence: reset by each progress notification of this very call.
            #[must_use]
            pub fn idle_limit(mut self, limit: Duration) -> Self {
                self.budget.idle = Some(limit);
                self
            }

            /// The identity of the operation, instead of a new one: to know it before the answer.
            /// One operation, one identity: it is for the caller not to give it to a second one.
            #[must_use]
            pub fn operation_id(mut self, id: OperationId) -> Self {
                self.budget.id = Some(id);
                self
            }

            /// Adds an entry to the request's `_meta`. What the protocol itself puts there, such as
            /// the progress token, cannot be replaced.
            #[must_use]
            pub fn meta(mut self, key: impl Into<String>, value: Value) -> Self {
                self.budget.meta.insert(key.into(), value);
                self
            }

            /// The progress of this operation, and of no other, as the server tells it.
            ///
            /// On a caller-owned connection the server's notifications go to the caller's own
            /// client service, and the stream ends without any.
            ///
            /// ```
            /// # use mcp_supervisor::{CallError, Connection, ToolAnswer, ToolCall};
            /// # async fn index(connection: &Connection) -> Result<ToolAnswer, CallError> {
            /// let mut call = ToolCall::new("index", serde_json::json!({ "path": "docs" }));
            /// let mut progress = call.progress();
            /// tokio::spawn(async move {
            ///     while let Some(step) = progress.next().await {
            ///         println!("{} of {:?}", step.progress, step.total);
            ///     }
            /// });
            /// connection.call_tool(call).await
            /// # }
            /// ```
            pub fn progress(&mut self) -> ProgressStream {
                let (sink, stream) = progress();
                self.budget.progress = Some(sink);
                stream
            }

            /// Lets `token` cancel the operation: it is recalled if it was not sent yet, and
            /// otherwise the server is told and the outcome is unknown.
            #[must_use]
            pub fn cancelled_by(mut self, token: CancellationToken) -> Self {
                self.budget.cancel = Some(token);
                self
            }
        }
    };
}
pub(super) use budget_setters;
