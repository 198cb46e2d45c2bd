//! Why a request was not sent.

use std::{sync::Arc, time::Duration};

use super::{About, Source, StartError, Wait};
use crate::{
    credentials::CredentialsError,
    evidence::WireFault,
    operation::{ConnectionName, NameError, OperationId},
};

/// A request of which no byte left this process.
#[derive(Clone, Debug)]
pub struct NotSent {
    /// What this is about.
    pub about: About,
    /// Why.
    pub reason: NotSentReason,
}

/// Why a request was not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotSentReason {
    /// It cannot be sent as it is.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The negotiated revision has no such request.
    #[error("the negotiated revision {revision} has no {method}")]
    NotInRevision {
        /// The method.
        method: &'static str,
        /// The revision.
        revision: String,
    },
    /// There is no session, and for this none is started.
    #[error("the connection has no session, and a notification starts none")]
    NoSession,
    /// The server has not declared that it has what is asked for.
    #[error("the server does not declare {what}")]
    NotDeclared {
        /// What.
        what: &'static str,
    },
    /// The connection is full.
    #[error("the connection has {in_flight} operations in flight and {queued} waiting")]
    Overloaded {
        /// The limit of operations in flight.
        in_flight: usize,
        /// The limit of operations waiting.
        queued: usize,
    },
    /// The deadline passed first.
    #[error("the deadline passed while it waited {0}")]
    DeadlinePassed(Wait),
    /// The caller cancelled first.
    #[error("it was cancelled before it was sent")]
    Cancelled,
    /// No session could be started.
    #[error(transparent)]
    StartFailed(Arc<StartError>),
    /// The circuit is open.
    #[error("the circuit is open for another {retry_in:?} after repeated failures")]
    CircuitOpen {
        /// When a start will probe again.
        retry_in: Duration,
        /// The failure that opened it.
        last: Option<Arc<StartError>>,
    },
    /// The supervisor no longer runs the connection: it was shut down, or the connection was closed
    /// or detached. Of a lent connection that says nothing about the caller's own client.
    #[error("the supervisor no longer runs this connection")]
    Closed,
    /// The caller-owned connection is closed.
    #[error("the caller-owned connection is closed")]
    CallerOwnedClosed,
    /// The connection's actor failed while the request waited in its mailbox.
    #[error("the connection's actor failed before it was handed over")]
    ActorFailed,
    /// The transport could not send it.
    #[error("the transport could not send it: {0}")]
    Transport(WireFault),
    /// There is no access token for it.
    #[error("there is no access token: {0}")]
    Credentials(CredentialsError),
    /// The journal could not record that it is about to be sent.
    #[error("the journal could not record it: {0}")]
    Journal(Source),
    /// The client's own contract says that its absence is final.
    #[error("it was looked up and is absent, which its contract takes as final")]
    AbsenceIsFinal,
    /// The journal has another call under the same key.
    #[error("operation {operation} has the same key and asks for something else")]
    OtherArguments {
        /// The call that has the key.
        operation: OperationId,
        /// How that call stands.
        first: FirstCall,
    },
    /// The journal has another call under the same operation id, or one that ended without running.
    #[error("the journal has a call with the operation id {operation} already")]
    IdentityTaken {
        /// The call that has the id.
        operation: OperationId,
    },
    /// The call with the same key or operation id goes on still.
    #[error("operation {operation}, which is the same call, goes on still")]
    StillRuns {
        /// The call that goes on.
        operation: OperationId,
    },
    /// The same call was answered, and the journal was not to keep the answer.
    #[error(
        "operation {operation}, which is the same call, was answered, and its answer was not kept"
    )]
    AnswerNotKept {
        /// The call that was answered.
        operation: OperationId,
    },
    /// Nobody knew what became of the same call, and somebody has settled it by a verdict, without an
    /// answer that could be given.
    #[error(
        "operation {operation}, which is the same call, {} by somebody's verdict",
        if *.failed { "failed" } else { "was done" }
    )]
    SettledByVerdict {
        /// The call that was settled.
        operation: OperationId,
        /// Whether the verdict is that it failed.
        failed: bool,
    },
    /// The same call was settled so long ago that its answer is gone.
    #[error(
        "operation {operation}, which is the same call, was settled, and its answer is kept no more"
    )]
    AnswerForgotten {
        /// The call that was settled.
        operation: OperationId,
    },
    /// It is established that the same call was stopped.
    #[error("operation {operation}, which is the same call, was stopped")]
    WasStopped {
        /// The call that was stopped.
        operation: OperationId,
    },
}

/// How a call stands that has the key of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FirstCall {
    /// It goes on still.
    Running,
    /// It may have run, and nobody knows.
    InDoubt,
    /// It was answered with an error.
    Failed,
    /// It is settled otherwise.
    Settled,
}

impl NotSentReason {
    /// The reason as a word for a label.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::NotInRevision { .. } => "not_in_revision",
            Self::NoSession => "no_session",
            Self::NotDeclared { .. } => "not_declared",
            Self::Credentials(_) => "credentials",
            Self::Overloaded { .. } => "overloaded",
            Self::DeadlinePassed(_) => "deadline",
            Self::Cancelled => "cancelled",
            Self::StartFailed(_) => "start_failed",
            Self::CircuitOpen { .. } => "circuit_open",
            Self::Closed => "closed",
            Self::CallerOwnedClosed => "caller_owned_closed",
            Self::ActorFailed => "actor_failed",
            Self::Transport(_) => "transport",
            Self::Journal(_) => "journal",
            Self::AbsenceIsFinal => "absent",
            Self::OtherArguments { .. } => "other_arguments",
            Self::IdentityTaken { .. } => "identity_taken",
            Self::StillRuns { .. } => "still_runs",
            Self::AnswerNotKept { .. } => "answer_not_kept",
            Self::SettledByVerdict { .. } => "settled_by_verdict",
            Self::AnswerForgotten { .. } => "answer_forgotten",
            Self::WasStopped { .. } => "was_stopped",
        }
    }
}

/// A request that cannot be sent as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// Its name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A tool's arguments are not a JSON object.
    #[error("the arguments are {found}, and a tool takes a JSON object")]
    ArgumentsNotAnObject {
        /// What they are instead.
        found: &'static str,
    },
    /// The argument that a `keyed` contract fills is there already, with something else than the
    /// call's key. A key comes from the call, never from its arguments.
    #[error(
        "the argument that its contract fills with the idempotency key is already set to something \
         else; leave it out, or give the call that key"
    )]
    KeyConflict,
    /// A budget of zero.
    #[error("the {what} is zero")]
    ZeroBudget {
        /// Which budget.
        what: &'static str,
    },
    /// The cap of an attempt is longer than the total.
    #[error("the attempt limit {attempt:?} exceeds the total {total:?}")]
    InvertedBudget {
        /// The attempt's cap.
        attempt: Duration,
        /// The total.
        total: Duration,
    },
    /// A task of another connection.
    #[error("the task belongs to the connection {connection:?}")]
    OtherConnection {
        /// The connection that it belongs to.
        connection: ConnectionName,
    },
    /// A method that belongs to the runtime.
    #[error("the method opens or closes a session, which is the runtime's part")]
    ReservedMethod,
}
