//! What went wrong, one type for each kind of question and one variant for each next action.
//!
//! From every error a caller can read which operation and connection it is about, who owns the
//! connection, what is known, the original error as [`source`](std::error::Error::source), and
//! what to do next. There is no `is_retryable`: whether a call may be repeated is the client's
//! [policy](crate::policy), and a text that suggests it would be read by models.

mod input;
mod lifecycle;
mod list;
mod task;

use std::{error::Error, fmt, sync::Arc, time::Duration};

use crate::{
    credentials::{Challenge, CredentialsError},
    evidence::{Loss, Outcome, ServerError, WireFault},
    operation::{ConnectionName, Generation, NameError, OperationId, OperationKind, Ownership},
};

pub use input::InputMissing;
pub use lifecycle::{AddError, ReconnectError, StartError, StartFailure};
pub use list::ListError;
pub use task::TaskError;

/// An error somebody else made, shared so that errors stay cheap to clone.
pub type Source = Arc<dyn Error + Send + Sync>;

/// What an error is about.
#[derive(Clone, Debug)]
pub struct About {
    /// The operation.
    pub operation: OperationId,
    /// What it asked.
    pub kind: OperationKind,
    /// The connection.
    pub connection: ConnectionName,
    /// Who owns the connection.
    pub ownership: Ownership,
    /// The session of the last attempt, if there was one.
    pub generation: Option<Generation>,
    /// How many attempts were made.
    pub attempts: u32,
}

/// An operation that has no answer. The variants are the four things that can be known.
#[derive(Clone, Debug)]
pub enum CallError {
    /// Provably not sent.
    NotSent(Box<NotSent>),
    /// The server says that it did not run the request.
    Rejected(Box<Rejected>),
    /// The server answered with an error; an effect may stand.
    Failed(Box<Failed>),
    /// The request may have reached the server, and no answer came.
    Unknown(Box<Unknown>),
}

/// A request of which no byte left this process.
#[derive(Clone, Debug)]
pub struct NotSent {
    /// What this is about.
    pub about: About,
    /// Why.
    pub reason: NotSentReason,
}

/// A request that the server says it did not run.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// What this is about.
    pub about: About,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// The `WWW-Authenticate` challenge, as sent.
    pub challenge: Option<String>,
    /// The `Retry-After` header, as sent.
    pub retry_after: Option<String>,
    /// The server's error, whole, where it sent one.
    pub error: Option<ServerError>,
    pub(crate) source: Option<Source>,
}

/// A request that the server answered with an error.
#[derive(Clone, Debug)]
pub struct Failed {
    /// What this is about.
    pub about: About,
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// The `Retry-After` header, as sent.
    pub retry_after: Option<String>,
    /// The server's error, whole.
    pub error: ServerError,
}

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
    pub(crate) source: Option<Source>,
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
    /// The key's argument is already there, with another value.
    #[error("the argument that carries the idempotency key is already set to something else")]
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

/// Which wait ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// For a place in the connection.
    Admission,
    /// In the mailbox, or for a session to start.
    Session,
    /// For an access token, before anything was written.
    Credentials,
    /// In the writer's queue, or for the answer: the total.
    Total,
    /// For the answer: the attempt's cap.
    Attempt,
    /// For the next sign of progress.
    Idle,
    /// For the input that the server asked the host's handler for.
    Input,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Admission => "for a place in the connection",
            Self::Session => "for a session",
            Self::Credentials => "for an access token",
            Self::Total => "for the answer (total)",
            Self::Attempt => "for the answer (attempt limit)",
            Self::Idle => "for progress (idle limit)",
            Self::Input => "for the host's handler",
        })
    }
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
    /// The server asked for input before it goes on, and did not get it: it stopped half-way.
    #[error("the server asked for input, and {0}")]
    InputMissing(InputMissing),
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
            Self::InputMissing(_) => "input_missing",
        }
    }
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
        }
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
    /// The attempts or the time that the contract may spend were spent.
    #[error("its contract's attempts or time are spent")]
    Spent,
    /// The status tool does not know it, and its absence is not final.
    #[error("its status tool does not know it yet")]
    Absent,
    /// The status tool could not be asked.
    #[error("its status tool could not be asked")]
    LookUpFailed,
    /// The tool's schema on the new session is not the one the call was made against.
    #[error("the tool changed or vanished on the new session")]
    ToolChanged,
    /// The tool's schema could not be read, so that nobody knows whether it is the same.
    #[error("the tool's schema could not be read to compare it")]
    SchemaUnknown,
    /// The repeat was not sent. The attempt before it may have run.
    #[error("the repeat that its contract allows could not be sent")]
    RepeatNotSent,
    /// The server refused the repeat. The attempt before it may have run.
    #[error("the server refused the repeat that its contract allows")]
    RepeatRejected,
    /// The caller cancelled, or the connection was closed, before the contract was done.
    #[error("it was stopped before its contract was done")]
    Interrupted,
}

fn challenge_in(error: &CredentialsError) -> Option<Challenge> {
    match error {
        CredentialsError::AuthorizationRequired { challenge } => challenge.as_deref().cloned(),
        _ => None,
    }
}

impl CallError {
    /// What the error is about.
    #[must_use]
    pub fn about(&self) -> &About {
        match self {
            Self::NotSent(e) => &e.about,
            Self::Rejected(e) => &e.about,
            Self::Failed(e) => &e.about,
            Self::Unknown(e) => &e.about,
        }
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        self.about().operation
    }

    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &ConnectionName {
        &self.about().connection
    }

    /// Who owns the connection.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.about().ownership
    }

    /// What is known.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::NotSent(_) => Outcome::NotSent,
            Self::Rejected(_) => Outcome::Rejected,
            Self::Failed(_) => Outcome::Failed,
            Self::Unknown(_) => Outcome::Unknown,
        }
    }

    /// The server's own error, where it sent one.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Rejected(e) => e.error.as_ref(),
            Self::Failed(e) => Some(&e.error),
            Self::Unknown(e) => match &e.cause {
                UnknownCause::SessionEndedByServer(error) => Some(error),
                _ => None,
            },
            Self::NotSent(_) => None,
        }
    }

    /// The HTTP status, where there was one.
    #[must_use]
    pub fn http_status(&self) -> Option<u16> {
        match self {
            Self::NotSent(_) => None,
            Self::Rejected(e) => e.status,
            Self::Failed(e) => e.status,
            Self::Unknown(e) => e.status,
        }
    }

    /// What a server asks for that refused this client's credentials, also at the handshake.
    #[must_use]
    pub fn challenge(&self) -> Option<Challenge> {
        match self {
            Self::Rejected(e) if matches!(e.status, Some(401 | 403)) => {
                e.challenge.as_deref().and_then(Challenge::parse)
            }
            Self::NotSent(e) => match &e.reason {
                NotSentReason::StartFailed(start) => start.challenge(),
                NotSentReason::CircuitOpen { last, .. } => last.as_ref()?.challenge(),
                NotSentReason::Credentials(error) => challenge_in(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// The `Retry-After` header, as sent.
    #[must_use]
    pub fn retry_after(&self) -> Option<&str> {
        match self {
            Self::NotSent(_) => None,
            Self::Rejected(e) => e.retry_after.as_deref(),
            Self::Failed(e) => e.retry_after.as_deref(),
            Self::Unknown(e) => e.retry_after.as_deref(),
        }
    }

    /// What to do next, in one sentence for a person.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        use NotSentReason as R;
        if self.ownership().is_lent()
            && matches!(self, Self::NotSent(e) if matches!(e.reason, R::CallerOwnedClosed))
        {
            return "The connection is caller-owned and closed: its owner must supply a \
                    replacement, as a new lent handle.";
        }
        match self {
            Self::NotSent(e) => match &e.reason {
                R::Invalid(_) => "Correct the request; nothing was sent.",
                R::NotInRevision { .. } => "Use a request that the negotiated revision has.",
                R::NoSession => {
                    "Nothing: a session that is started later finds the host as it is then."
                }
                R::NotDeclared { .. } => "Use what the server declares; nothing was sent.",
                R::Overloaded { .. } => {
                    "Raise the connection's limits, or spread the load; nothing was sent."
                }
                R::DeadlinePassed(_) => "Give the operation a longer deadline; nothing was sent.",
                R::Cancelled => "Nothing: it was cancelled, and nothing was sent.",
                R::StartFailed(start) if start.wants_authorization() => {
                    "Authorise this client for the server; nothing was sent."
                }
                R::StartFailed(_) => "Correct what keeps the server from starting.",
                R::CircuitOpen { .. } => {
                    "Correct what keeps the server from starting, or wait for the cool-down."
                }
                R::Closed if self.ownership().is_lent() => {
                    "Lend the client to a running supervisor; the client itself is untouched, and \
                     nothing was sent."
                }
                R::Closed => {
                    "Ask its supervisor for the connection of that name, which may be a new one, or \
                     open it on a running supervisor; nothing was sent."
                }
                R::CallerOwnedClosed => {
                    "The connection's owner must supply a replacement, as a new lent handle."
                }
                R::ActorFailed => "Report the fault in the log; nothing was sent.",
                R::Credentials(error) => error.next_step(),
                R::Transport(_) => "Correct what keeps the server from being reached.",
                R::Journal(_) => "Correct what keeps the journal from being written.",
                R::AbsenceIsFinal => "Nothing: by its contract it did not run.",
            },
            Self::Rejected(e) if matches!(e.status, Some(401 | 403)) => {
                "Supply credentials that satisfy the challenge; the server says it did not run."
            }
            Self::Rejected(e) if e.error.is_some() => {
                "Read the server's message in `server_error()`, which is kept out of this text, and \
                 correct the request; the server says that it did not run."
            }
            Self::Rejected(_) => "Correct the request; the server says that it did not run.",
            Self::Failed(_) => {
                "Read the server's message in `server_error()`, which is kept out of this text: an \
                 effect may stand."
            }
            Self::Unknown(_) if self.ownership().is_lent() => {
                "Find out on the server whether it ran; the connection is caller-owned, and if it \
                 is closed its owner must supply a replacement."
            }
            Self::Unknown(_) => "Find out on the server whether it ran before anything else.",
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = self.about();
        write!(
            f,
            "{} on connection {:?} ({}",
            about.kind.method(),
            about.connection,
            about.ownership
        )?;
        if let Some(generation) = about.generation {
            write!(f, ", {generation}")?;
        }
        write!(f, "): {}: ", self.outcome())?;
        match self {
            Self::NotSent(e) => write!(f, "{}", OneLine(&e.reason))?,
            Self::Rejected(e) => match (&e.error, e.status) {
                (Some(error), Some(status)) => write!(f, "{error} (HTTP status {status})")?,
                (Some(error), None) => write!(f, "{error}")?,
                (None, Some(status)) => write!(f, "HTTP status {status}")?,
                (None, None) => f.write_str("the server refused it")?,
            },
            Self::Failed(e) => write!(f, "{}", e.error)?,
            Self::Unknown(e) => {
                write!(f, "{}", OneLine(&e.cause))?;
                if let Some(unsettled) = &e.unsettled {
                    write!(f, "; {unsettled}")?;
                }
            }
        }
        write!(f, ". {} [operation {}]", self.next_step(), about.operation)
    }
}

impl Error for CallError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        fn shared(source: &Source) -> &(dyn Error + 'static) {
            &**source
        }
        match self {
            Self::NotSent(e) => match &e.reason {
                NotSentReason::StartFailed(start) => Some(&**start),
                NotSentReason::CircuitOpen {
                    last: Some(start), ..
                } => Some(&**start),
                NotSentReason::Journal(source) => Some(shared(source)),
                NotSentReason::Invalid(invalid) => Some(invalid),
                NotSentReason::Transport(fault) => Some(fault),
                NotSentReason::Credentials(error) => Some(error),
                _ => None,
            },
            Self::Rejected(e) => e
                .error
                .as_ref()
                .map(|e| e as &dyn Error)
                .or(e.source.as_ref().map(shared)),
            Self::Failed(e) => Some(&e.error),
            Self::Unknown(e) => match &e.cause {
                UnknownCause::SessionEnded(loss) => Some(loss),
                UnknownCause::SessionEndedByServer(error) => Some(error),
                UnknownCause::Wire(fault) => Some(e.source.as_ref().map_or(fault, shared)),
                // Where nobody else's error is behind it, it is the origin itself.
                cause => Some(e.source.as_ref().map_or(cause, shared)),
            },
        }
    }
}

/// Shows a multi-line text (a stderr tail) as one log line.
struct OneLine<T>(T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        struct Folding<'a, 'b>(&'a mut fmt::Formatter<'b>);
        impl fmt::Write for Folding<'_, '_> {
            fn write_str(&mut self, s: &str) -> fmt::Result {
                for (i, line) in s.split(['\n', '\r']).enumerate() {
                    if i > 0 {
                        self.0.write_str(" | ")?;
                    }
                    self.0.write_str(line)?;
                }
                Ok(())
            }
        }
        write!(Folding(f), "{}", self.0)
    }
}
