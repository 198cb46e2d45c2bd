//! What kept a caller from a task's end.

use rmcp::model::{InputRequests, TaskStatus};

use super::CallError;
use crate::evidence::ServerError;

/// Why a task has no result, as far as its handle's holder can tell.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The server could not be asked, or given what the task needs.
    #[error("{0}")]
    Call(#[source] CallError),
    /// The task failed with an error of the server's. An effect may stand.
    #[error("the task failed: {0}")]
    Failed(#[source] ServerError),
    /// The task was cancelled. What it had done until then stays done.
    #[error("the task was cancelled")]
    Cancelled,
    /// The task waits for input, and nobody here can give it. It goes on once a `tasks/update`
    /// brings it.
    #[error("the task waits for input that nobody here can give")]
    InputRequired(InputRequests),
    /// The host's handler answered one of the task's requests with an error. The task still waits.
    #[error("the host's handler answered with JSON-RPC error {code}")]
    HandlerFailed {
        /// The handler's code.
        code: i64,
    },
    /// The deadline passed. The task goes on; its handle is as good as before.
    #[error("the deadline passed while the task went on")]
    DeadlinePassed {
        /// What the server said last, if it said anything.
        last: Option<TaskStatus>,
    },
    /// The caller cancelled the wait. The task goes on.
    #[error("the wait for the task was cancelled")]
    WaitCancelled,
    /// The result is not what a tool answers.
    #[error("the task's result is not the answer of a tool")]
    WrongType,
}
