//! What a tool answered.

use std::sync::{Arc, OnceLock};

use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, CreateTaskResult, InputRequiredResult,
    ServerResult,
};
use serde_json::Value;

use crate::{
    evidence::RawResult,
    operation::{Generation, IdempotencyKey, OperationId, TaskHandle},
    transport::read,
};

/// The answer to a `tools/call`.
///
/// A tool's own error ([`is_error`](Self::is_error)) is an answer like any other: the tool ran and
/// said so. The type is the crate's own, so that what is decoded when can change without breaking
/// anybody; [`into_rmcp`](Self::into_rmcp) gives rmcp's.
#[derive(Clone)]
pub struct ToolAnswer {
    pub(super) body: Body,
    pub(super) operation: OperationId,
    pub(super) generation: Generation,
    pub(super) attempts: u32,
    pub(super) looked_up: bool,
    pub(super) replayed: bool,
    pub(super) key: Option<IdempotencyKey>,
    /// The connection and the tool, where a task is what is left of the call.
    pub(super) task: Option<TaskHandle>,
}

#[derive(Clone)]
pub(super) enum Body {
    Complete(CallToolResult),
    /// A large result, as it came.
    Raw(Arc<RawBody>),
    InputRequired(InputRequiredResult),
    Task(CreateTaskResult),
}

/// A large result, as it came.
pub(super) struct RawBody {
    raw: Arc<RawResult>,
    is_error: bool,
    read: OnceLock<CallToolResult>,
}

impl RawBody {
    pub(super) fn new(raw: Arc<RawResult>, is_error: bool) -> Self {
        Self {
            raw,
            is_error,
            read: OnceLock::new(),
        }
    }

    /// The result, read at the first call.
    fn result(&self) -> &CallToolResult {
        self.read.get_or_init(|| read(&self.raw))
    }

    /// The result, with a copy of it only where another answer has it too.
    fn whole(this: Arc<Self>) -> CallToolResult {
        let (raw, had) = match Arc::try_unwrap(this) {
            Ok(mine) => (mine.raw, mine.read.into_inner()),
            Err(shared) => (Arc::clone(&shared.raw), shared.read.get().cloned()),
        };
        had.unwrap_or_else(|| read(&raw))
    }
}

impl std::fmt::Debug for ToolAnswer {
    /// Shows where the answer comes from, and nothing of what the tool said.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToolAnswer")
            .field("kind", &self.kind())
            .field("operation", &self.operation)
            .field("generation", &self.generation)
            .field("attempts", &self.attempts)
            .field("replayed", &self.replayed)
            .finish_non_exhaustive()
    }
}

/// What kind of answer a tool gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerKind {
    /// The tool's result.
    Complete,
    /// The tool asks for input before it goes on.
    InputRequired,
    /// A handle of a task that goes on at the server.
    Task,
}

impl ToolAnswer {
    /// What kind of answer it is.
    #[must_use]
    pub fn kind(&self) -> AnswerKind {
        match self.body {
            Body::Complete(_) | Body::Raw(_) => AnswerKind::Complete,
            Body::InputRequired(_) => AnswerKind::InputRequired,
            Body::Task(_) => AnswerKind::Task,
        }
    }

    /// Whether the tool itself says that it failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        match &self.body {
            Body::Complete(result) => result.is_error == Some(true),
            Body::Raw(raw) => raw.is_error,
            Body::InputRequired(_) | Body::Task(_) => false,
        }
    }

    /// The content blocks of a complete answer.
    #[must_use]
    pub fn content(&self) -> &[ContentBlock] {
        self.result().map_or(&[], |result| &result.content)
    }

    /// The text blocks of a complete answer, one after another on lines of their own.
    #[must_use]
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .content()
            .iter()
            .filter_map(|c| c.as_text())
            .map(|t| t.text.as_str())
            .collect();
        texts.join("\n")
    }

    /// The structured content of a complete answer.
    #[must_use]
    pub fn structured(&self) -> Option<&Value> {
        self.result()?.structured_content.as_ref()
    }

    fn result(&self) -> Option<&CallToolResult> {
        match &self.body {
            Body::Complete(result) => Some(result),
            Body::Raw(raw) => Some(raw.result()),
            Body::InputRequired(_) | Body::Task(_) => None,
        }
    }

    /// The JSON of the result, as the server wrote it, where it was kept so.
    ///
    /// A complete answer of 16 KiB and more that came over a byte stream, or as the JSON body of an HTTP
    /// answer, is kept as it came, and read when [`content`](Self::content), [`text`](Self::text),
    /// [`structured`](Self::structured) or [`into_rmcp`](Self::into_rmcp) are first asked for. Whoever only
    /// passes it on has it here without that. That it can be read was found out when it came. The
    /// answers of journaled calls and of lent connections are read at once.
    #[must_use]
    pub fn raw(&self) -> Option<&str> {
        match &self.body {
            Body::Raw(body) => Some(body.raw.text()),
            _ => None,
        }
    }

    /// The JSON of the structured content, as the server wrote it, where [it was kept so](Self::raw).
    #[must_use]
    pub fn raw_structured(&self) -> Option<&str> {
        match &self.body {
            Body::Raw(body) => body.raw.structured_text(),
            _ => None,
        }
    }

    /// The id of the task that the tool created, if it did.
    #[must_use]
    pub fn task_id(&self) -> Option<&str> {
        match &self.body {
            Body::Task(created) => Some(&created.task.task_id),
            Body::Complete(_) | Body::Raw(_) | Body::InputRequired(_) => None,
        }
    }

    /// The handle of the task that the tool created, if it did. It outlives the session, and can
    /// outlive the host: [`Connection::await_task`](crate::Connection::await_task) leads to the
    /// tool's own answer.
    #[must_use]
    pub fn task(&self) -> Option<&TaskHandle> {
        self.task.as_ref()
    }

    /// What the tool asks for before it goes on, if that is its answer.
    /// [`ToolCall::with_input`](crate::ToolCall::with_input) goes on.
    #[must_use]
    pub fn input_required(&self) -> Option<&InputRequiredResult> {
        match &self.body {
            Body::InputRequired(asked) => Some(asked),
            Body::Complete(_) | Body::Raw(_) | Body::Task(_) => None,
        }
    }

    /// The operation that was answered.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        self.operation
    }

    /// The session that answered. Of an answer out of the journal whose session is not known, number 0.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// How many times the request was sent, look-ups not counted. More than one only where the
    /// client's own contract allowed it.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether this is the answer of the contract's status tool instead of the tool's own.
    #[must_use]
    pub fn was_looked_up(&self) -> bool {
        self.looked_up
    }

    /// Whether this is the answer that an earlier call with the same key or operation id was given, as
    /// the journal kept it. Nothing was sent for it now.
    #[must_use]
    pub fn replayed(&self) -> bool {
        self.replayed
    }

    /// The idempotency key of the call: the caller's, or one that was minted for it because its contract
    /// needs one.
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.key.as_ref()
    }

    pub(super) fn into_server_result(self) -> ServerResult {
        self.into_rmcp().into()
    }

    /// The answer in rmcp's types.
    #[must_use]
    pub fn into_rmcp(self) -> CallToolResponse {
        match self.body {
            Body::Complete(result) => CallToolResponse::Complete(result),
            Body::Raw(raw) => CallToolResponse::Complete(RawBody::whole(raw)),
            Body::InputRequired(result) => CallToolResponse::InputRequired(result),
            Body::Task(result) => CallToolResponse::Task(result),
        }
    }
}
