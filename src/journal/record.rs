//! What the journal keeps of an operation: its intent, and what happened to it, in order.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::table::{Event, Illegal, State, next};
use crate::{
    evidence::Outcome,
    operation::{
        AttemptId, ConnectionName, Fingerprint, Generation, IdempotencyKey, OperationId, TaskHandle,
    },
    policy::ToolContract,
};

/// What is known about an operation before anything of it is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Intent {
    /// The operation.
    pub operation: OperationId,
    /// The connection.
    pub connection: ConnectionName,
    /// The tool.
    pub tool: String,
    /// The key: the caller's, or one minted for this operation.
    pub key: Option<IdempotencyKey>,
    /// The tool and its arguments, as far as they have to be told apart. The argument that a `keyed`
    /// contract fills is not among them.
    pub fingerprint: Fingerprint,
    /// The arguments as the caller gave them, where it allows that they are kept.
    pub arguments: Option<Map<String, Value>>,
    /// The contract in force.
    pub contract: ToolContract,
    /// The tool's input schema at the time, where the contract may repeat the call: its fingerprint.
    pub schema: Option<Fingerprint>,
    /// When it was accepted.
    pub accepted_at: SystemTime,
}

/// One thing that happened to an operation, with when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When it was recorded, by the clock of the host that recorded it.
    pub at: SystemTime,
    /// What.
    pub fact: Fact,
}

/// One thing that happened to an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// What a journal keeps of an error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// How what became of an operation came to be known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
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
    /// A repeat under the same key, as the contract allows.
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
            Self::Without { outcome, .. } => match outcome {
                Outcome::NotSent => Event::NotSend,
                Outcome::Rejected => Event::Reject,
                Outcome::Failed => Event::Fail,
                Outcome::Unknown => Event::LoseSight,
            },
            Self::Abandoned { .. } => Event::Abandon,
            Self::Cancelled { .. } => Event::Cancel,
            Self::Forgotten => Event::Forget,
        }
    }
}

/// An operation as the journal knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Record {
    /// What it asks.
    pub intent: Intent,
    /// Where it stands: what the history comes to.
    pub state: State,
    /// What happened to it, in order.
    pub history: Vec<Entry>,
    /// The host that has it, and its lease.
    pub owner: Option<Owner>,
}

/// Who has an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Owner {
    /// The host, anew at each of its starts.
    pub host: String,
    /// The fencing number: one more each time that the operation changes hands.
    pub fence: u64,
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
    /// [`Illegal`], where the history is impossible: what was kept is not what was written.
    pub fn replay(
        intent: Intent,
        history: impl IntoIterator<Item = Entry>,
    ) -> Result<Self, Illegal> {
        let mut record = Self::new(intent);
        for entry in history {
            record.apply(entry)?;
        }
        Ok(record)
    }

    /// How many attempts were made.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        let dispatched = |entry: &&Entry| matches!(entry.fact, Fact::Dispatching { .. });
        u32::try_from(self.history.iter().filter(dispatched).count()).unwrap_or(u32::MAX)
    }

    /// The task that the server made of it, if it told of one.
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

    /// Leaves the shape of what happened, and nothing of what was said.
    fn forget(&mut self) {
        self.intent.arguments = None;
        for entry in &mut self.history {
            match &mut entry.fact {
                Fact::Answered { answer, .. } => *answer = Kept::Nothing,
                Fact::Without { failure, .. } => failure.message = None,
                _ => {}
            }
        }
    }
}
