//! What a caller asks for: identities, budgets and the requests themselves.
//!
//! Everything here is plain data. An operation can be built, cloned, handed to another task or
//! agent and inspected without a connection existing at all.

mod pages;
mod path;
mod progress;

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use rmcp::model::{InputRequiredResult, InputResponses};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use pages::EndlessList;
pub(crate) use pages::{Turn, Walk};
pub use path::SupervisorPath;
pub use progress::{Progress, ProgressStream};
pub(crate) use progress::{ProgressSink, progress};

/// The longest tool, prompt or method name that is sent, in bytes.
///
/// MCP recommends at most 128 characters for tool names; four times that leaves room for servers
/// that prefix, and still refuses a name that is really a document.
pub const MAX_NAME_BYTES: usize = 512;

/// The identity of one operation, a UUIDv7, so that identities sort by the time they were made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(Uuid);

/// The identity of one attempt of an operation: one dispatch of its request on one session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(Uuid);

macro_rules! uuid_identity {
    ($name:ident) => {
        impl $name {
            /// Mints a new identity.
            #[must_use]
            pub fn mint() -> Self {
                Self(Uuid::now_v7())
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
uuid_identity!(OperationId);
uuid_identity!(AttemptId);

/// The number of a session within its connection: 1 for the first, one more for each after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub(crate) u64);

impl Generation {
    /// The number itself.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// The name of a connection, unique within its supervisor. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ConnectionName(Arc<str>);

impl ConnectionName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl TryFrom<String> for ConnectionName {
    type Error = NameError;
    fn try_from(name: String) -> Result<Self, NameError> {
        name.parse()
    }
}

impl From<ConnectionName> for String {
    fn from(name: ConnectionName) -> Self {
        name.as_str().to_owned()
    }
}

impl FromStr for ConnectionName {
    type Err = NameError;
    fn from_str(name: &str) -> Result<Self, NameError> {
        check_name("connection", name)?;
        Ok(Self(name.into()))
    }
}

/// A name that cannot be used, and why. The name itself is not repeated: it may be 10 kB of
/// somebody's document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("the {what} name is empty; give it at least one character")]
    Empty {
        /// Which name: "tool", "connection", …
        what: &'static str,
    },
    /// The name is longer than [`MAX_NAME_BYTES`].
    #[error("the {what} name has {bytes} bytes; the most that is sent is {MAX_NAME_BYTES}")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// How long it is.
        bytes: usize,
    },
    /// The name holds a control character, such as NUL or a line break.
    #[error("the {what} name holds the control character U+{code:04X} at byte {at}; remove it")]
    ControlCharacter {
        /// Which name.
        what: &'static str,
        /// The character's code point.
        code: u32,
        /// Its byte offset.
        at: usize,
    },
}

pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong {
            what,
            bytes: name.len(),
        });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, c)) => Err(NameError::ControlCharacter {
            what,
            code: u32::from(c),
            at,
        }),
        None => Ok(()),
    }
}

/// A caller's own name for an intended effect: the same key means the same intent.
///
/// 1 to 128 visible ASCII characters. It is data, not a secret, but it is not logged either.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The longest key.
    pub const MAX_BYTES: usize = 128;

    /// The key as it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

impl FromStr for IdempotencyKey {
    type Err = KeyError;
    fn from_str(key: &str) -> Result<Self, KeyError> {
        if key.is_empty() || key.len() > Self::MAX_BYTES {
            return Err(KeyError::Length { bytes: key.len() });
        }
        match key.bytes().position(|b| !b.is_ascii_graphic()) {
            Some(at) => Err(KeyError::Character { at }),
            None => Ok(Self(key.into())),
        }
    }
}

/// An idempotency key that has the wrong shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Empty, or longer than [`IdempotencyKey::MAX_BYTES`].
    #[error("an idempotency key has 1 to 128 bytes; this one has {bytes}")]
    Length {
        /// How long it is.
        bytes: usize,
    },
    /// Something other than a visible ASCII character.
    #[error("an idempotency key is made of visible ASCII characters; byte {at} of this one is not")]
    Character {
        /// The byte's offset.
        at: usize,
    },
}

/// Who built a connection's transport, and so who may close it and build another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// The runtime built it from a spec or a factory.
    Framework,
    /// The caller built a client service and lends it.
    LentService,
    /// The caller lends a bare peer of a client service that it keeps.
    LentPeer,
}

impl Ownership {
    /// Whether the caller owns the connection.
    #[must_use]
    pub fn is_lent(self) -> bool {
        !matches!(self, Self::Framework)
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Framework => "framework-owned",
            Self::LentService => "caller-owned (client service)",
            Self::LentPeer => "caller-owned (peer)",
        })
    }
}

/// What sort of question an operation asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// `tools/call`: may have an effect, is sent at most once unless a contract says otherwise.
    ToolCall,
    /// `tools/list`.
    ListTools,
    /// `prompts/list`.
    ListPrompts,
    /// `prompts/get`.
    GetPrompt,
    /// `resources/list`.
    ListResources,
    /// `resources/read`.
    ReadResource,
    /// `ping`, which the revisions before 2026-07-28 have.
    Ping,
    /// A request of the caller's own; treated like a tool call, because nobody here knows better.
    Custom,
    /// `resources/templates/list`.
    ListResourceTemplates,
    /// `completion/complete`.
    Complete,
    /// `logging/setLevel`, which the revisions before 2026-07-28 have.
    SetLogLevel,
    /// `skills/list`.
    ListSkills,
    /// `skills/get`.
    GetSkill,
    /// `resources/directory/read`.
    ReadResourceDirectory,
    /// `tasks/get`.
    GetTask,
    /// `tasks/update`: gives a task the input that it asked for.
    UpdateTask,
    /// `tasks/cancel`.
    CancelTask,
    /// A notification of the caller's own.
    Notification,
}

impl OperationKind {
    /// Whether the protocol itself defines the request as one that changes nothing.
    ///
    /// Such a read may be asked once more on a fresh session after its session was lost.
    #[must_use]
    pub fn is_read(self) -> bool {
        !matches!(
            self,
            Self::ToolCall
                | Self::Custom
                | Self::SetLogLevel
                | Self::UpdateTask
                | Self::CancelTask
                | Self::Notification
        )
    }

    /// The method as the protocol names it; `custom` for the caller's own.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::ToolCall => "tools/call",
            Self::ListTools => "tools/list",
            Self::ListPrompts => "prompts/list",
            Self::GetPrompt => "prompts/get",
            Self::ListResources => "resources/list",
            Self::ReadResource => "resources/read",
            Self::Ping => "ping",
            Self::Custom => "custom",
            Self::ListResourceTemplates => "resources/templates/list",
            Self::Complete => "completion/complete",
            Self::SetLogLevel => "logging/setLevel",
            Self::ListSkills => "skills/list",
            Self::GetSkill => "skills/get",
            Self::ReadResourceDirectory => "resources/directory/read",
            Self::GetTask => "tasks/get",
            Self::UpdateTask => "tasks/update",
            Self::CancelTask => "tasks/cancel",
            Self::Notification => "notification",
        }
    }
}

/// One of the lists that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ListKind {
    /// Its tools.
    Tools,
    /// Its prompts.
    Prompts,
    /// Its resources.
    Resources,
    /// The templates of its resources.
    ResourceTemplates,
    /// Its skills. No server tells of changes of this list.
    Skills,
}

impl ListKind {
    /// How many there are.
    pub(crate) const COUNT: usize = 5;

    /// The list as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::ResourceTemplates => "resource_templates",
            Self::Skills => "skills",
        }
    }
}

impl fmt::Display for ListKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tools => "the list of tools",
            Self::Prompts => "the list of prompts",
            Self::Resources => "the list of resources",
            Self::ResourceTemplates => "the list of resource templates",
            Self::Skills => "the list of skills",
        })
    }
}

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

mod requests;
mod task;

pub(crate) use requests::{Completed, rmcp_level};
pub use requests::{Completion, DirectoryRead, LogLevel, Notice, SkillGet};
pub(crate) use task::interval as task_interval;
pub use task::{TaskAwait, TaskCancel, TaskGet, TaskHandle, TaskUpdate};

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
            input: Input::default(),
            budget: Budget::default(),
        }
    }

    /// The key that names this intent. It is put into the arguments by a
    /// [`keyed`](crate::policy::ToolContract::Keyed) contract and asked for by a
    /// [`status`](crate::policy::ToolContract::Status) contract; without a contract it changes
    /// nothing.
    #[must_use]
    pub fn idempotency_key(mut self, key: IdempotencyKey) -> Self {
        self.key = Some(key);
        self
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
    fn a_key_is_1_to_128_visible_characters() {
        assert!("order-1001".parse::<IdempotencyKey>().is_ok());
        assert_eq!(
            "".parse::<IdempotencyKey>(),
            Err(KeyError::Length { bytes: 0 })
        );
        let long = "k".repeat(129);
        assert_eq!(
            long.parse::<IdempotencyKey>(),
            Err(KeyError::Length { bytes: 129 })
        );
        assert_eq!(
            "a b".parse::<IdempotencyKey>(),
            Err(KeyError::Character { at: 1 })
        );
        assert_eq!(
            "a\0".parse::<IdempotencyKey>(),
            Err(KeyError::Character { at: 1 })
        );
    }

    #[test]
    fn a_name_with_nul_or_10_kb_is_refused_without_being_repeated() {
        let nul = check_name("tool", "a\0b").unwrap_err();
        assert_eq!(
            nul,
            NameError::ControlCharacter {
                what: "tool",
                code: 0,
                at: 1
            }
        );
        let long = check_name("tool", &"x".repeat(10_240)).unwrap_err();
        assert!(long.to_string().len() < 200);
        assert!(check_name("tool", "").is_err());
        assert!(check_name("tool", "créer_facture").is_ok());
    }

    #[test]
    fn debug_output_shows_no_arguments() {
        let call = ToolCall::new("pay", serde_json::json!({ "card": "4242" }));
        assert!(!format!("{call:?}").contains("4242"));
        let prompt = PromptGet::new("p").argument("secret", "hunter2");
        assert!(!format!("{prompt:?}").contains("hunter2"));
    }

    #[test]
    fn only_what_changes_nothing_by_definition_is_a_read() {
        use OperationKind as K;
        for kind in [
            K::ListTools,
            K::GetPrompt,
            K::Complete,
            K::GetSkill,
            K::GetTask,
            K::Ping,
        ] {
            assert!(kind.is_read(), "{kind:?}");
        }
        for kind in [
            K::ToolCall,
            K::Custom,
            K::SetLogLevel,
            K::UpdateTask,
            K::CancelTask,
            K::Notification,
        ] {
            assert!(!kind.is_read(), "{kind:?}");
        }
    }

    #[test]
    fn operation_ids_sort_by_the_time_they_were_made() {
        let ids: Vec<_> = (0..100).map(|_| OperationId::mint()).collect();
        assert!(ids.is_sorted());
    }
}
