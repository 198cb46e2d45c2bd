//! What happened, in the past tense. The one place that tells the world about lifecycles.
//!
//! Each fact goes to `tracing`, to the counters of the `metrics` facade, and to whoever subscribed.
//! The subscription is bounded: a subscriber that falls behind is told how many facts it missed, and
//! slows nobody down.

mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod stream;

use std::time::Duration;

pub use stream::{EventStream, Received};
pub(crate) use stream::{Events, Teller};

use crate::{
    evidence::Outcome,
    operation::{
        AttemptId, ConnectionName, Generation, ListKind, OperationId, OperationKind, Ownership,
        SupervisorPath,
    },
    policy::ToolContract,
};

/// A fact about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The supervisor of the connection, which is the one that was subscribed to or one below it.
    pub supervisor: SupervisorPath,
    /// The connection.
    pub connection: ConnectionName,
    /// Who owns it.
    pub ownership: Ownership,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A session is being started.
    SessionStarting {
        /// Its generation.
        generation: Generation,
    },
    /// A session was negotiated. The lists of any earlier generation no longer hold.
    SessionStarted {
        /// Its generation.
        generation: Generation,
        /// The revision that was negotiated.
        revision: String,
    },
    /// A session could not be started.
    StartFailed {
        /// The generation that it would have been.
        generation: Generation,
        /// Why, without secrets.
        why: String,
    },
    /// A session was lost.
    SessionLost {
        /// Its generation.
        generation: Generation,
        /// Why, without secrets.
        why: String,
        /// How many operations were handed over to it and unanswered.
        unanswered: usize,
    },
    /// A session takes no new operations; what is in flight on it goes on.
    SessionRetired {
        /// Its generation.
        generation: Generation,
        /// Why.
        why: &'static str,
    },
    /// The process or transport of a session is gone.
    SessionStopped {
        /// Its generation.
        generation: Generation,
        /// How far the runtime had to go.
        how: Stopped,
    },
    /// The circuit opened: operations are refused until the cool-down is over.
    CircuitOpened {
        /// How long.
        cool_down: Duration,
    },
    /// One start probes whether the server works again.
    CircuitProbed,
    /// The circuit closed: traffic flows.
    CircuitClosed,
    /// The connection's actor failed and was given a new mailbox.
    ActorRestarted,
    /// A caller-owned connection was found to be closed. It was left as it is.
    LentLost,
    /// A request of an operation was handed over to a session.
    AttemptStarted {
        /// The operation.
        operation: OperationId,
        /// What it asks.
        kind: OperationKind,
        /// This attempt of it.
        attempt: AttemptId,
        /// The session.
        generation: Generation,
        /// Which attempt it is, from 1.
        number: u32,
        /// On what ground the request is sent again, where an attempt before this one may have been
        /// sent.
        repeats: Option<Ground>,
        /// It was handed over before, to a session that ended without having sent any of it.
        moved: bool,
        /// How long it had waited: for a place, in the mailbox, and for a session. Of a repeat or a
        /// later round, since it was decided on.
        waited: Duration,
    },
    /// An operation is over: its caller has its answer or its error, or went away.
    OperationFinished {
        /// The operation.
        operation: OperationId,
        /// What it asked.
        kind: OperationKind,
        /// How it ended.
        ended: Ended,
        /// How many attempts were handed over, as far as the caller had heard.
        attempts: u32,
        /// The session of the last of them.
        generation: Option<Generation>,
        /// From the caller's asking to the end.
        elapsed: Duration,
    },
    /// Nobody knows whether an operation ran.
    OutcomeUnknown {
        /// The operation.
        operation: OperationId,
        /// The session of its last attempt.
        generation: Generation,
        /// Why nobody knows, as one of the few words of
        /// [`UnknownCause::as_str`](crate::error::UnknownCause::as_str).
        cause: &'static str,
    },
    /// The answer of a recorded operation came after its caller was told that nobody knows the outcome.
    /// The journal has it now.
    LateAnswer {
        /// The operation.
        operation: OperationId,
        /// The session that answered.
        generation: Generation,
        /// How the operation ended.
        ended: Ended,
    },
    /// A call is made whose contract puts the key into an argument that the tool's schema does not have.
    /// It will not be repeated.
    KeyNotTaken {
        /// The operation.
        operation: OperationId,
        /// The argument that the contract names.
        argument: String,
    },
    /// A contract's status tool was asked what became of an operation.
    LookedUp {
        /// The operation whose outcome was unknown.
        operation: OperationId,
        /// Whether the tool knows it.
        found: bool,
    },
    /// An operation whose outcome was unknown is known now.
    Resolved {
        /// The operation.
        operation: OperationId,
        /// How it became known: `repeat`, `look_up` or `task`.
        by: &'static str,
    },
    /// The server said that one of its lists changed.
    ListChanged {
        /// The session.
        generation: Generation,
        /// Which list.
        list: ListKind,
    },
    /// The server said that a resource changed. Which one is told to those who subscribed to it.
    ResourceUpdated {
        /// The session.
        generation: Generation,
    },
    /// The server sent messages for the log. They go to the connection's handler; this is told at
    /// the first, and then whenever their number has doubled.
    LogReceived {
        /// The session.
        generation: Generation,
        /// How many the session has sent so far.
        total: u64,
    },
    /// The server asked something of the connection's handler.
    HandlerAsked {
        /// The session.
        generation: Generation,
        /// What it asked for.
        what: Asked,
    },
    /// A list was read again and is another one than before.
    CatalogChanged {
        /// The session that it was read from.
        generation: Generation,
        /// Which list.
        list: ListKind,
        /// The names of what is new, at most [`MOST_NAMES`](Self::MOST_NAMES).
        added: Vec<String>,
        /// The names of what is gone, at most as many.
        removed: Vec<String>,
        /// The names of what is there with something else about it, at most as many.
        changed: Vec<String>,
        /// How many more there are that are not named here.
        unnamed: usize,
    },
    /// A list could not be read whole. The last one stays.
    CatalogKept {
        /// Which list.
        list: ListKind,
        /// Why, without secrets.
        why: String,
    },
    /// Frames from the server were dropped.
    FramesDropped {
        /// The session.
        generation: Generation,
        /// Why.
        why: Dropped,
        /// How many of this kind the session has dropped so far.
        total: u64,
    },
}

impl What {
    /// The most names of one sort that [`CatalogChanged`](Self::CatalogChanged) holds.
    pub const MOST_NAMES: usize = 32;
}

/// What a server can ask of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Asked {
    /// To sample a language model.
    Sampling,
    /// To ask a person.
    Elicitation,
    /// For the roots.
    Roots,
    /// Something that the protocol does not name.
    Custom,
}

/// Why a frame from the server was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// It is not JSON-RPC.
    Garbage,
    /// It answers nothing that is waiting: late, a duplicate, or never asked.
    Unmatched,
    /// It is larger than the limit.
    TooLarge,
}

impl Dropped {
    /// The reason as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Garbage => "garbage",
            Self::Unmatched => "unmatched",
            Self::TooLarge => "too_large",
        }
    }
}

/// On what ground a request is sent again that may have been sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ground {
    /// The protocol defines it as a read, and its session was lost.
    Read,
    /// The contract [`ToolContract::ReadOnly`].
    ReadOnly,
    /// The contract [`ToolContract::Idempotent`].
    Idempotent,
    /// The contract [`ToolContract::Keyed`].
    Keyed,
    /// The contract [`ToolContract::Receipts`].
    Receipts,
    /// The server refused the credentials that it went with, there are others now, and the
    /// connection's own setting allows it.
    Credentials,
}

impl Ground {
    /// The ground as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadOnly => "read_only",
            Self::Idempotent => "idempotent",
            Self::Keyed => "keyed",
            Self::Receipts => "receipts",
            Self::Credentials => "credentials",
        }
    }

    /// What allows a repeat under this contract; a request that has none is a read.
    pub(crate) fn of(contract: &ToolContract) -> Self {
        match contract {
            ToolContract::ReadOnly => Self::ReadOnly,
            ToolContract::Idempotent => Self::Idempotent,
            ToolContract::Keyed { .. } => Self::Keyed,
            ToolContract::Receipts => Self::Receipts,
            ToolContract::AtMostOnce | ToolContract::Status { .. } => Self::Read,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// With an answer.
    Answered,
    /// With a tool's answer that says `isError`.
    ToolError,
    /// A notification, which has no answer: the transport has taken it.
    HandedOver,
    /// Without an answer; this is what is known.
    Without(Outcome),
    /// Its caller went away.
    Abandoned {
        /// Whether the request may have reached the server. `false` is proof that it did not.
        perhaps_sent: bool,
    },
}

impl Ended {
    /// The end as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::ToolError => "tool_error",
            Self::HandedOver => "handed_over",
            Self::Without(Outcome::NotSent) => "not_sent",
            Self::Without(Outcome::Rejected) => "rejected",
            Self::Without(Outcome::Failed) => "failed",
            Self::Without(Outcome::Unknown) => "unknown",
            Self::Abandoned { .. } => "abandoned",
        }
    }
}

/// How far the runtime had to go to stop a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stopped {
    /// There was no process of ours, or it had exited by itself.
    ByItself,
    /// It exited when its stdin was closed.
    StdinClosed,
    /// It exited at SIGTERM.
    Terminated,
    /// It was killed.
    Killed,
}
