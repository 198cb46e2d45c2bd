//! Why nobody knows whether a request ran.

use std::sync::Arc;

use super::{About, InputMissing, Source, Wait};
use crate::evidence::{Loss, ServerError, WireFault};

/// A request that may have reached the server.
#[derive(Clone, Debug)]
pub struct Unknown {
    /// What this is about.
    pub about: About,
    /// Why nobody knows.
    pub cause: UnknownCause,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// The `Retry-After` header, as sent.
    pub retry_after: Option<String>,
    /// Why a contract of the client's did not settle it, where there is a contract.
    pub unsettled: Option<Unsettled>,
    /// Whether the call was made with a journal, in which it can be resolved.
    pub journaled: bool,
    pub(crate) source: Option<Source>,
}

/// Why nobody knows whether a request ran.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownCause {
    /// The session ended.
    #[error("{0}")]
    SessionEnded(Loss),
    /// The server says that the session is over.
    #[error("the server says that the session is over (JSON-RPC error {})", .0.code)]
    SessionEndedByServer(ServerError),
    /// A deadline passed.
    #[error("the deadline passed while it waited {0}")]
    DeadlinePassed(Wait),
    /// The caller cancelled.
    #[error("it was cancelled after it may have been sent")]
    Cancelled,
    /// The exchange broke below JSON-RPC.
    #[error("{0}")]
    Wire(WireFault),
    /// An HTTP status that says nothing about the request.
    #[error("the server answered with HTTP status {0}")]
    Status(u16),
    /// The layer below ended the call although the session goes on.
    #[error("the call ended without an answer while the session went on")]
    CallEnded,
    /// The answer is of another type than the request asks for.
    #[error("the answer is not of the type that {0} has")]
    WrongType(&'static str),
    /// The connection's actor failed after the hand-over.
    #[error("the connection's actor failed after the hand-over")]
    ActorFailed,
    /// This host did not send it, but was taken for dead meanwhile: whoever resolves the operation may
    /// have sent it since, as its contract allows.
    #[error("this host was taken for dead, and whoever took the operation over may have sent it")]
    ChangedHands,
    /// This host did not send it, and could not record that in time. If the host ends before it can,
    /// whoever resolves the operation may send it, as its contract allows.
    #[error(
        "this host did not send it and could not record that, so whoever resolves it may send it"
    )]
    Unrecorded,
    /// The server asked for input before it goes on, and did not get it: it stopped half-way.
    #[error("the server asked for input, and {0}")]
    InputMissing(InputMissing),
    /// The same call was made before, and the journal has its outcome as unknown.
    #[error("the same call was made before, and the journal has its outcome as unknown ({cause})")]
    InJournal {
        /// Why nobody knew then, as a word.
        cause: Arc<str>,
    },
}

impl UnknownCause {
    /// The cause as a word for a label.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::SessionEnded(_) | Self::SessionEndedByServer(_) => "session_ended",
            Self::DeadlinePassed(_) => "deadline",
            Self::Cancelled => "cancelled",
            Self::Wire(_) => "wire",
            Self::Status(_) => "status",
            Self::CallEnded => "call_ended",
            Self::WrongType(_) => "wrong_type",
            Self::ActorFailed => "actor_failed",
            Self::ChangedHands => "changed_hands",
            Self::Unrecorded => "unrecorded",
            Self::InputMissing(_) => "input_missing",
            Self::InJournal { .. } => "in_journal",
        }
    }
}

impl Unsettled {
    /// Whether its contract can do nothing more about it, now or later.
    pub(super) fn stays(&self) -> bool {
        matches!(
            self,
            Self::CallerOwned
                | Self::NoKey
                | Self::ReceiptExpired
                | Self::ReceiptUnknown
                | Self::NoSuchArgument { .. }
                | Self::ContractChanged
                | Self::TaskGone
        )
    }
}

/// Why a contract did not settle an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsettled {
    /// The caller owns the connection, and nothing is repeated or looked up on what is lent.
    #[error("its contract allows nothing on a caller-owned connection")]
    CallerOwned,
    /// The contract needs an idempotency key, and the operation has none.
    #[error("its contract needs an idempotency key")]
    NoKey,
    /// The server of one of the sessions offers no receipts for the tool.
    #[error(
        "its contract relies on receipts, and the server offers none for the tool on this session"
    )]
    NoReceipts,
    /// The time for which the server keeps a receipt is over, counted from the first attempt.
    #[error("the time for which the server keeps its receipt is over")]
    ReceiptExpired,
    /// The server keeps a receipt, and cannot itself establish what became of the operation.
    #[error("the server's receipt says that the outcome is not known there either")]
    ReceiptUnknown,
    /// The attempts or the time that the contract may spend were spent.
    #[error("its contract's attempts or time are spent")]
    Spent,
    /// The status tool does not know it, and its absence is not final.
    #[error("its status tool does not know it yet")]
    Absent,
    /// The status tool could not be asked.
    #[error("its status tool could not be asked: {why}")]
    LookUpFailed {
        /// What kept it from being asked, in a few words.
        why: Arc<str>,
    },
    /// The tool's schema on the new session is not the one the call was made against.
    #[error("the tool changed or vanished on the new session")]
    ToolChanged,
    /// The tool's schema could not be read, so that nobody knows whether it is the same.
    #[error("the tool's schema could not be read to compare it: {why}")]
    SchemaUnknown {
        /// What kept it from being read, in a few words.
        why: Arc<str>,
    },
    /// The contract puts the key into an argument that the tool's schema does not have, so that the
    /// server would most likely ignore it and run the repeat as a call of its own.
    #[error(
        "its contract puts the key into {argument:?}, which is no argument by the tool's schema"
    )]
    NoSuchArgument {
        /// The argument that the contract names.
        argument: String,
    },
    /// The repeat was not sent. The attempt before it may have run.
    #[error("the repeat that its contract allows could not be sent: {why}")]
    RepeatNotSent {
        /// What kept it from being sent, in a few words.
        why: Arc<str>,
    },
    /// The server refused the repeat. The attempt before it may have run.
    #[error("the server refused the repeat that its contract allows")]
    RepeatRejected,
    /// The caller cancelled, or the connection was closed, before the contract was done.
    #[error("it was stopped before its contract was done")]
    Interrupted,
    /// The contract in force is not the one that the call was made under.
    #[error("its contract was changed or taken back since the call was made")]
    ContractChanged,
    /// The server has a task for it, which is not known to have ended.
    #[error("its task is not known to have ended")]
    TaskGoesOn,
    /// The server made a task of it and does not know that task any more.
    #[error("the server does not know its task any more")]
    TaskGone,
}
