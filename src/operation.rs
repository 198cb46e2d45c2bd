//! What a caller asks for: identities, budgets and the requests themselves.
//!
//! Everything here is plain data. An operation can be built, cloned, handed to another task or
//! agent and inspected without a connection existing at all.

mod budget;
mod fingerprint;
mod identity;
mod kind;
mod pages;
mod path;
mod progress;
mod requests;
mod resolve;
mod task;

use std::{fmt, time::Duration};

pub use budget::Budget;
use budget::budget_setters;
pub use fingerprint::{Fingerprint, canonical_json};
pub(crate) use identity::check_name;
pub use identity::{
    AttemptId, ConnectionName, Generation, IdempotencyKey, KeyError, MAX_NAME_BYTES, NameError,
    OperationId, OperationIdError,
};
pub use kind::{ListKind, OperationKind, Ownership};
pub use pages::EndlessList;
pub(crate) use pages::{Turn, Walk};
pub use path::SupervisorPath;
pub use progress::{Progress, ProgressStream};
pub(crate) use progress::{ProgressSink, progress};
pub(crate) use requests::{Completed, rmcp_level};
pub use requests::{Completion, DirectoryRead, LogLevel, Notice, SkillGet};
pub use resolve::Resolve;
use rmcp::model::{InputRequiredResult, InputResponses};
use serde_json::{Map, Value};
pub(crate) use task::interval as task_interval;
pub use task::{TaskAwait, TaskCancel, TaskGet, TaskHandle, TaskUpdate};
use tokio_util::sync::CancellationToken;

/// What a server gets with the next round of a request for which it asked for input.
#[derive(Clone, Default)]
pub(crate) struct Input {
    pub(crate) responses: Option<InputResponses>,
    pub(crate) state: Option<String>,
}

macro_rules! takes_input {
    ($name:ident) => {
        impl $name {
            /// Goes on with a request for which the server asked for input: `asked` is its answer,
            /// and `responses` are the answers to its requests, by the server's names for them. All
            /// else of the request is as it was the first time.
            #[must_use]
            pub fn with_input(
                mut self,
                asked: &InputRequiredResult,
                responses: InputResponses,
            ) -> Self {
                self.input = Input {
                    responses: (!responses.is_empty()).then_some(responses),
                    state: asked.request_state.clone(),
                };
                self
            }
        }
    };
}
takes_input!(ToolCall);
takes_input!(PromptGet);
takes_input!(ResourceRead);

/// A `tools/call`.
///
/// ```
/// use std::time::Duration;
/// use mcp_supervisor::ToolCall;
/// use serde_json::json;
///
/// let call = ToolCall::new("charge", json!({ "customer": "c-42", "cents": 1999 }))
///     .deadline(Duration::from_secs(20))
///     .idempotency_key("order-1001".parse()?);
/// # Ok::<(), mcp_supervisor::KeyError>(())
/// ```
#[derive(Clone)]
pub struct ToolCall {
    pub(crate) name: String,
    pub(crate) arguments: Value,
    pub(crate) key: Option<IdempotencyKey>,
    pub(crate) keep_arguments: bool,
    pub(crate) input: Input,
    pub(crate) budget: Budget,
}
budget_setters!(ToolCall);

impl ToolCall {
    /// A call of `name` with `arguments`, a JSON object, or `null` for none.
    ///
    /// Nothing is checked yet: a name or arguments that cannot be sent are answered as *not sent*
    /// when the call starts.
    #[must_use]
    pub fn new(name: impl Into<String>, arguments: Value) -> Self {
        Self {
            name: name.into(),
            arguments,
            key: None,
            keep_arguments: false,
            input: Input::default(),
            budget: Budget::default(),
        }
    }

    /// The key that names this intent. It is put into the arguments by a
    /// [`keyed`](crate::policy::ToolContract::Keyed) contract and asked for by a
    /// [`status`](crate::policy::ToolContract::Status) contract. Without a contract the server does not
    /// see it; a journal knows the call by it all the same, and answers a second one.
    #[must_use]
    pub fn idempotency_key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Lets a [`journal`](crate::journal) keep the arguments as they are, and not only their
    /// fingerprint: so that the call can be repeated under its key after a restart, where its contract
    /// allows that. They are kept as long as the answer.
    #[must_use]
    pub fn keep_arguments(mut self) -> Self {
        self.keep_arguments = true;
        self
    }

    /// Whether a journal may keep the arguments.
    #[must_use]
    pub fn keeps_arguments(&self) -> bool {
        self.keep_arguments
    }

    /// The tool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for ToolCall {
    /// Shows the tool, never its arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCall")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A page of a list: the first one, or the one behind a cursor.
#[derive(Clone, Default)]
pub struct Page {
    pub(crate) cursor: Option<String>,
    pub(crate) budget: Budget,
}
budget_setters!(Page);

impl fmt::Debug for Page {
    /// Shows nothing of the cursor, which is the server's own.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("is_first", &self.cursor.is_none())
            .finish_non_exhaustive()
    }
}

impl Page {
    /// The first page.
    #[must_use]
    pub fn first() -> Self {
        Self::default()
    }

    /// The page behind `cursor`, as the page before it named it.
    #[must_use]
    pub fn after(cursor: impl Into<String>) -> Self {
        Self {
            cursor: Some(cursor.into()),
            budget: Budget::default(),
        }
    }
}

/// A `prompts/get`.
#[derive(Clone)]
pub struct PromptGet {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) input: Input,
    pub(crate) budget: Budget,
}
budget_setters!(PromptGet);

impl PromptGet {
    /// The prompt called `name`, without arguments.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            arguments: Map::new(),
            input: Input::default(),
            budget: Budget::default(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.arguments
            .insert(name.into(), Value::String(value.into()));
        self
    }
}

/// A `resources/read`.
#[derive(Clone)]
pub struct ResourceRead {
    pub(crate) uri: String,
    pub(crate) input: Input,
    pub(crate) budget: Budget,
}
budget_setters!(ResourceRead);

impl ResourceRead {
    /// The resource at `uri`.
    #[must_use]
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            input: Input::default(),
            budget: Budget::default(),
        }
    }
}

/// A `ping`.
#[derive(Clone, Debug, Default)]
pub struct Ping {
    pub(crate) budget: Budget,
}
budget_setters!(Ping);

/// A request of the caller's own, by method and parameters. It is never repeated.
#[derive(Clone)]
pub struct CustomCall {
    pub(crate) method: String,
    pub(crate) params: Option<Value>,
    pub(crate) budget: Budget,
}
budget_setters!(CustomCall);

impl CustomCall {
    /// The request `method` with `params`.
    ///
    /// The methods that open a session (`initialize`, `server/discover`) belong to the runtime and
    /// are refused as *not sent*.
    #[must_use]
    pub fn new(method: impl Into<String>, params: Option<Value>) -> Self {
        Self {
            method: method.into(),
            params,
            budget: Budget::default(),
        }
    }
}

macro_rules! hides_arguments {
    ($name:ident, $shown:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field(stringify!($shown), &self.$shown)
                    .finish_non_exhaustive()
            }
        }
    };
}
hides_arguments!(PromptGet, name);
hides_arguments!(CustomCall, method);

impl fmt::Debug for ResourceRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourceRead").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_arguments() {
        let call = ToolCall::new("pay", serde_json::json!({ "card": "4242" }));
        assert!(!format!("{call:?}").contains("4242"));
        let prompt = PromptGet::new("p").argument("secret", "hunter2");
        assert!(!format!("{prompt:?}").contains("hunter2"));
    }
}
