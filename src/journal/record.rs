//! What the journal keeps of an operation: its intent, and what happened to it, in order.

use std::{fmt, time::SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    moment,
    table::{Event, Illegal, State, next},
};
use crate::{
    evidence::Outcome,
    operation::{
        AttemptId, ConnectionName, Fingerprint, Generation, IdempotencyKey, OperationId, TaskHandle,
    },
    policy::ToolContract,
};

mod read;
#[cfg(test)]
mod tests;

/// What is known about an operation before anything of it is sent.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Intent {
    /// The operation.
    pub operation: OperationId,
    /// The connection.
    pub connection: ConnectionName,
    /// The tool.
    pub tool: String,
    /// The key: the caller's, or one minted for this operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<IdempotencyKey>,
    /// The tool and its arguments, as far as they have to be told apart. The argument that a `keyed`
    /// contract fills is not among them.
    pub fingerprint: Fingerprint,
    /// The arguments as the caller gave them, where it allows that they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Map<String, Value>>,
    /// The contract in force.
    pub contract: ToolContract,
    /// The tool's input schema at the time, where the contract may repeat the call: its fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Fingerprint>,
    /// When it was accepted, by the clock of its host.
    #[serde(with = "moment")]
    pub accepted_at: SystemTime,
}

impl Intent {
    /// The intent to call `tool` on `connection`, at most once and without a key, accepted now.
    #[must_use]
    pub fn new(
        operation: OperationId,
        connection: ConnectionName,
        tool: impl Into<String>,
        fingerprint: Fingerprint,
    ) -> Self {
        Self {
            operation,
            connection,
            tool: tool.into(),
            key: None,
            fingerprint,
            arguments: None,
            contract: ToolContract::AtMostOnce,
            schema: None,
            accepted_at: SystemTime::now(),
        }
    }
}

impl fmt::Debug for Intent {
    /// Shows neither key nor arguments.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intent")
            .field("operation", &self.operation)
            .field("connection", &self.connection)
            .field("tool", &self.tool)
            .field("has_key", &self.key.is_some())
            .field("keeps_arguments", &self.arguments.is_some())
            .field("contract", &self.contract)
            .field("accepted_at", &self.accepted_at)
            .finish_non_exhaustive()
    }
}

/// One thing that happened to an operation, with when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When it was recorded, by the clock of the host that recorded it. The order of a history is the
    /// order of its entries, whatever their times say: clocks are set back.
    #[serde(with = "moment")]
    pub at: SystemTime,
    /// What.
    pub fact: Fact,
}

/// One thing that happened to an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// An attempt is about to be handed over.
    Dispatching {
        /// The attempt.
        attempt: AttemptId,
    },
    /// The caller asks that it be stopped.
    CancelRequested,
    /// The server works on it in a task.
    Task {
        /// The task.
        task: TaskHandle,
    },
    /// It was answered with a result, which may say that the tool failed.
    Answered {
        /// Whether the result says that the tool failed.
        is_error: bool,
        /// The result, as the server sent it.
        answer: Kept,
        /// How it became known.
        by: Settler,
    },
    /// It ended without a result: a JSON-RPC error, a refusal, or nothing that was sent.
    Without {
        /// What is known.
        outcome: Outcome,
        /// Why.
        failure: Failure,
        /// How it became known. An unknown outcome has nobody.
        by: Settler,
    },
    /// Its host is gone, or the host's lease ran out.
    Abandoned {
        /// The host that had it.
        host: String,
    },
    /// It is established that it was stopped.
    Cancelled {
        /// How it became known.
        by: Settler,
    },
    /// The answer was kept for the stated time and is gone.
    Forgotten,
}

/// A server's answer, as far as it was kept.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// The whole result.
    Whole(Value),
    /// The result was larger than what the journal keeps.
    TooLarge {
        /// How large it was, as JSON.
        bytes: u64,
    },
    /// There is none: a person or a look-up without content settled it.
    Nothing,
}

impl fmt::Debug for Kept {
    /// Shows nothing of the answer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(_) => f.write_str("Whole(..)"),
            Self::TooLarge { bytes } => write!(f, "TooLarge({bytes} bytes)"),
            Self::Nothing => f.write_str("Nothing"),
        }
    }
}

/// What a journal keeps of an error.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The cause as a word, such as `session_ended`, `deadline`, `journal`.
    pub cause: String,
    /// The JSON-RPC error's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// The JSON-RPC error's message, cut to what a journal keeps. It is the server's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

impl Failure {
    /// The most that is kept of a message, in bytes: enough for what a person needs to read, and no
    /// place to store documents in.
    pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;

    /// A failure with this cause.
    #[must_use]
    pub fn new(cause: impl Into<String>) -> Self {
        Self {
            cause: cause.into(),
            ..Self::default()
        }
    }

    /// With a JSON-RPC error's code and message, which is cut to
    /// [`MAX_MESSAGE_BYTES`](Self::MAX_MESSAGE_BYTES).
    #[must_use]
    pub fn answered(mut self, code: i64, message: &str) -> Self {
        self.code = Some(code);
        self.message = Some(message.to_owned());
        self.cut();
        self
    }

    /// With an HTTP status.
    #[must_use]
    pub fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    pub(super) fn cut(&mut self) {
        if let Some(message) = &mut self.message {
            let most = message.floor_char_boundary(Self::MAX_MESSAGE_BYTES);
            message.truncate(most);
        }
    }
}

impl fmt::Debug for Failure {
    /// Shows nothing of the server's text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("cause", &self.cause)
            .field("code", &self.code)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// How what became of an operation came to be known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Settler {
    /// The call itself.
    Call {
        /// The session of its last attempt.
        generation: Option<Generation>,
        /// How many attempts were made.
        attempts: u32,
    },
    /// An answer that came after its caller was told that the outcome is unknown.
    LateAnswer {
        /// The session.
        generation: Generation,
    },
    /// A repeat under the same key, as the contract allows. A repeat that was refused or never left
    /// says nothing of the attempts before it: the outcome stays unknown.
    Repeat,
    /// A look-up with the contract's status tool.
    LookUp,
    /// The task that the server made of it.
    Task,
    /// A person's or program's word.
    Verdict {
        /// Who.
        who: String,
        /// Why.
        why: String,
    },
}

impl Entry {
    /// `fact`, now.
    #[must_use]
    pub fn now(fact: Fact) -> Self {
        Self {
            at: SystemTime::now(),
            fact,
        }
    }
}

impl Fact {
    /// What this is to the table.
    #[must_use]
    pub fn event(&self) -> Event {
        match self {
            Self::Dispatching { .. } => Event::Dispatch,
            Self::CancelRequested => Event::RequestCancel,
            Self::Task { .. } => Event::KeepTask,
            Self::Answered { is_error, .. } => match is_error {
                true => Event::Fail,
                false => Event::Succeed,
            },
            Self::Without { outcome, by, .. } => match (outcome, by) {
                (Outcome::NotSent | Outcome::Rejected, Settler::Repeat) => Event::LoseSight,
                (Outcome::NotSent, _) => Event::NotSend,
                (Outcome::Rejected, _) => Event::Reject,
                (Outcome::Failed, _) => Event::Fail,
                (Outcome::Unknown, _) => Event::LoseSight,
            },
            Self::Abandoned { .. } => Event::Abandon,
            Self::Cancelled { .. } => Event::Cancel,
            Self::Forgotten => Event::Forget,
        }
    }
}

/// An operation as the journal knows it.
///
/// One that is read, say from an export, is folded from its history again: where that cannot have
/// happened, or comes to another state than stands there, it is no record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "read::Written")]
#[non_exhaustive]
pub struct Record {
    /// What it asks.
    pub intent: Intent,
    /// Where it stands: what the history comes to.
    pub state: State,
    /// What happened to it, in order.
    pub history: Vec<Entry>,
    /// The host that has it, or had it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Holder>,
}

/// Who has an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Holder {
    /// The host, anew at each of its starts.
    pub host: String,
    /// The fencing number: one more each time that the operation changes hands.
    pub fence: u64,
}

impl Holder {
    /// The host that calls itself `host`, with this fencing number.
    #[must_use]
    pub fn new(host: impl Into<String>, fence: u64) -> Self {
        Self {
            host: host.into(),
            fence,
        }
    }
}

/// A history that cannot have happened: what was kept is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {position} of the history of operation {operation} cannot have happened: {illegal}")]
pub struct Impossible {
    /// The operation.
    pub operation: OperationId,
    /// Which entry of its history it is, from 1 on.
    pub position: usize,
    /// What cannot be.
    #[source]
    pub illegal: Illegal,
}

impl Record {
    /// An operation that was accepted and nothing more.
    #[must_use]
    pub fn new(intent: Intent) -> Self {
        Self {
            intent,
            state: State::Accepted,
            history: Vec::new(),
            owner: None,
        }
    }

    /// Adds what happened.
    ///
    /// # Errors
    ///
    /// [`Illegal`], where it cannot have happened; the record is as it was.
    pub fn apply(&mut self, entry: Entry) -> Result<State, Illegal> {
        self.state = next(self.state, entry.fact.event())?;
        if matches!(entry.fact, Fact::Forgotten) {
            self.forget();
        }
        self.history.push(entry);
        Ok(self.state)
    }

    /// An operation from what was kept of it.
    ///
    /// # Errors
    ///
    /// [`Impossible`], where the history cannot have happened: what was kept is not what was written.
    pub fn replay(
        intent: Intent,
        history: impl IntoIterator<Item = Entry>,
    ) -> Result<Self, Impossible> {
        let mut record = Self::new(intent);
        for (before, entry) in history.into_iter().enumerate() {
            record.apply(entry).map_err(|illegal| Impossible {
                operation: record.intent.operation,
                position: before + 1,
                illegal,
            })?;
        }
        Ok(record)
    }

    /// How many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        let dispatched = |entry: &&Entry| matches!(entry.fact, Fact::Dispatching { .. });
        u32::try_from(self.history.iter().filter(dispatched).count()).unwrap_or(u32::MAX)
    }

    /// When what became of it was recorded: what it is kept by. `None` while that is not known.
    #[must_use]
    pub fn settled_at(&self) -> Option<SystemTime> {
        let settled = |entry: &&Entry| !matches!(entry.fact, Fact::Forgotten);
        let entry = self.history.iter().rev().find(settled)?;
        self.state.is_settled().then_some(entry.at)
    }

    /// The task that the server made of it, if it told of one. The last, where there were several.
    #[must_use]
    pub fn task(&self) -> Option<&TaskHandle> {
        self.history
            .iter()
            .rev()
            .find_map(|entry| match &entry.fact {
                Fact::Task { task } => Some(task),
                _ => None,
            })
    }

    /// What settled it, or the last that is known of it.
    #[must_use]
    pub fn last(&self) -> Option<&Entry> {
        self.history.last()
    }

    /// Leaves the shape of what happened, and nothing of what caller and server said. Who gave a
    /// verdict and why is no such thing, and stays as long as the tombstone.
    fn forget(&mut self) {
        self.intent.arguments = None;
        for entry in &mut self.history {
            match &mut entry.fact {
                Fact::Answered { answer, .. } => *answer = Kept::Nothing,
                Fact::Without { failure, .. } => failure.message = None,
                _ => {}
            }
        }
        // What names a server's task may open it.
        self.history
            .retain(|entry| !matches!(entry.fact, Fact::Task { .. }));
    }
}
