//! Work that goes on at the server after it answered: what is left of a call is the task's handle.

use std::{fmt, time::Duration};

use rmcp::model::InputResponses;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Budget, ConnectionName, OperationId, ProgressStream, budget_setters, progress};

/// A task at a server: plain data that can be written down, and read again after a restart of the
/// host.
///
/// ```
/// use mcp_supervisor::TaskHandle;
///
/// let task = TaskHandle::new("builds".parse()?, "compile", "task-17");
/// let written = serde_json::to_string(&task)?;
/// let read: TaskHandle = serde_json::from_str(&written)?;
/// assert_eq!(read, task);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TaskHandle {
    connection: ConnectionName,
    tool: String,
    task: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    operation: Option<OperationId>,
}

impl TaskHandle {
    /// The task that the server behind `connection` calls `task`, made by a call of `tool`.
    #[must_use]
    pub fn new(
        connection: ConnectionName,
        tool: impl Into<String>,
        task: impl Into<String>,
    ) -> Self {
        Self {
            connection,
            tool: tool.into(),
            task: task.into(),
            operation: None,
        }
    }

    /// With the operation whose call made it.
    pub(crate) fn of(mut self, operation: OperationId) -> Self {
        self.operation = Some(operation);
        self
    }

    /// The operation whose call made the task, by which a [journal](crate::journal) knows it. `None`
    /// in a handle that was put together by hand, or written down by an older version.
    #[must_use]
    pub fn operation(&self) -> Option<OperationId> {
        self.operation
    }

    /// The connection on which it was made. It is asked for on a connection of this name and no
    /// other.
    #[must_use]
    pub fn connection(&self) -> &ConnectionName {
        &self.connection
    }

    /// The tool whose call made it.
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// The server's name for it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.task
    }
}

macro_rules! about_a_task {
    ($($name:ident, $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Debug)]
        pub struct $name {
            pub(crate) task: TaskHandle,
            pub(crate) budget: Budget,
        }
        budget_setters!($name);

        impl $name {
            /// About this task.
            #[must_use]
            pub fn new(task: &TaskHandle) -> Self {
                Self {
                    task: task.clone(),
                    budget: Budget::default(),
                }
            }
        }
    )*};
}
about_a_task! {
    TaskGet, "A `tasks/get`: how a task is doing.";
    TaskCancel, "A `tasks/cancel`: asks the server to stop a task. Whether it does is told by the next `tasks/get`.";
    TaskAwait, "The wait for a task's end. Its deadline is for all of it.";
}

/// A `tasks/update`: gives a task the input that it asked for.
#[derive(Clone)]
pub struct TaskUpdate {
    pub(crate) task: TaskHandle,
    pub(crate) responses: InputResponses,
    pub(crate) budget: Budget,
}
budget_setters!(TaskUpdate);

impl TaskUpdate {
    /// The answers, by the server's names for its requests.
    #[must_use]
    pub fn new(task: &TaskHandle, responses: InputResponses) -> Self {
        Self {
            task: task.clone(),
            responses,
            budget: Budget::default(),
        }
    }
}

impl fmt::Debug for TaskUpdate {
    /// Shows the task, never the answers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskUpdate")
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

/// How long a poller waits before it asks again, from what the server suggests.
pub(crate) fn interval(suggested_ms: Option<u64>) -> Duration {
    /// Where a server suggests nothing.
    const USUAL: Duration = Duration::from_secs(1);
    /// So that a suggestion of nothing is no loop.
    const SHORTEST: Duration = Duration::from_millis(50);
    /// So that a task's end is noticed within a minute.
    const LONGEST: Duration = Duration::from_secs(60);
    suggested_ms
        .map_or(USUAL, Duration::from_millis)
        .clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_interval_is_kept_within_bounds() {
        assert_eq!(interval(Some(0)), Duration::from_millis(50));
        assert_eq!(interval(Some(250)), Duration::from_millis(250));
        assert_eq!(interval(Some(u64::MAX)), Duration::from_secs(60));
        assert_eq!(interval(None), Duration::from_secs(1));
    }
}
