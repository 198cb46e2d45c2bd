//! What went wrong, one type for each kind of question and one variant for each next action.
//!
//! From every error a caller can read which operation and connection it is about, who owns the
//! connection, what is known, the original error as [`source`](std::error::Error::source), and
//! what to do next. There is no `is_retryable`: whether a call may be repeated is the client's
//! [policy](crate::policy), and a text that suggests it would be read by models.

mod input;
mod lifecycle;
mod list;
mod not_sent;
mod task;
mod unknown;
mod wait;

use std::{error::Error, fmt, sync::Arc};

use crate::{
    credentials::{Challenge, CredentialsError},
    evidence::{Outcome, ServerError},
    operation::{
        ConnectionName, Generation, IdempotencyKey, OperationId, OperationKind, Ownership,
    },
};

pub use input::InputMissing;
pub use lifecycle::{AddError, ReconnectError, StartError, StartFailure};
pub use list::ListError;
pub use not_sent::{FirstCall, InvalidRequest, NotSent, NotSentReason};
pub use task::TaskError;
pub use unknown::{Unknown, UnknownCause, Unsettled};
pub use wait::Wait;

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
    /// The call's idempotency key, given or minted. It is in no text of the error.
    pub key: Option<IdempotencyKey>,
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

    pub(crate) fn about_mut(&mut self) -> &mut About {
        match self {
            Self::NotSent(e) => &mut e.about,
            Self::Rejected(e) => &mut e.about,
            Self::Failed(e) => &mut e.about,
            Self::Unknown(e) => &mut e.about,
        }
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> OperationId {
        self.about().operation
    }

    /// The call's idempotency key: the caller's, or one that was minted for it because its contract
    /// needs one. Where the outcome is unknown, it is what the call is found by at the server and, with
    /// [`operation`](Self::operation), in the [journal](crate::journal).
    #[must_use]
    pub fn key(&self) -> Option<&IdempotencyKey> {
        self.about().key.as_ref()
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

    /// Why there is no answer, in a few words: the whole text of the error without what it is about
    /// and without what to do next.
    pub fn why(&self) -> impl fmt::Display + '_ {
        Why(self)
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
                R::OtherArguments {
                    first: FirstCall::InDoubt,
                    ..
                } => {
                    "Resolve the operation that has the key before anything else: it may have run, and \
                     under another key the same intent would be done twice; nothing was sent."
                }
                R::OtherArguments {
                    first: FirstCall::Failed,
                    ..
                } => {
                    "The call that has the key was answered with an error: if that says that nothing \
                     was changed, give the corrected call a key of its own; nothing was sent."
                }
                R::OtherArguments { .. } => {
                    "Use a key of its own for each intent, and the same arguments with the same key; \
                     nothing was sent."
                }
                R::IdentityTaken { .. } => {
                    "Give each call an operation id of its own; nothing was sent."
                }
                R::StillRuns { .. } => {
                    "Wait for that operation in the journal; nothing was sent for this one."
                }
                R::AnswerNotKept { .. } => {
                    "Read on the server what it did; it ran once, and nothing was sent now."
                }
                R::SettledByVerdict { .. } => {
                    "Read in its record who gave the verdict, and why (`Journal::show`); nothing was sent."
                }
                R::AnswerForgotten { .. } => {
                    "Use a key of its own for each intent; what was done under this one is settled, and \
                     nothing was sent."
                }
                R::WasStopped { .. } => {
                    "Use a key of its own for a new intent; this one was stopped, and nothing was sent."
                }
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
            Self::Unknown(e)
                if e.journaled && e.unsettled.as_ref().is_some_and(Unsettled::stays) =>
            {
                "Find out on the server whether it ran, and settle it by a verdict (`Journal::verdict`), \
                 before anything else."
            }
            Self::Unknown(e) if e.journaled => {
                "Resolve that operation in the journal; where it has no contract, find out on the server \
                 whether it ran, and give a verdict (`Journal::verdict`)."
            }
            Self::Unknown(_) => "Find out on the server whether it ran before anything else.",
        }
    }
}

/// The reason alone, of [`CallError::why`].
struct Why<'a>(&'a CallError);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CallError::NotSent(e) => write!(f, "{}", OneLine(&e.reason)),
            CallError::Rejected(e) => match (&e.error, e.status) {
                (Some(error), Some(status)) => write!(f, "{error} (HTTP status {status})"),
                (Some(error), None) => write!(f, "{error}"),
                (None, Some(status)) => write!(f, "HTTP status {status}"),
                (None, None) => f.write_str("the server refused it"),
            },
            CallError::Failed(e) => write!(f, "{}", e.error),
            CallError::Unknown(e) => {
                write!(f, "{}", OneLine(&e.cause))?;
                match &e.unsettled {
                    Some(unsettled) => write!(f, "; {unsettled}"),
                    None => Ok(()),
                }
            }
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
        write!(
            f,
            "): {}: {}. {} [operation {}]",
            self.outcome(),
            Why(self),
            self.next_step(),
            about.operation
        )
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
