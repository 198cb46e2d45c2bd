//! What kept a connection from being opened, a session from starting, or a new one from being had.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{OneLine, Source, challenge_in};
use crate::{
    credentials::{Challenge, CredentialsError},
    evidence::ServerError,
    operation::{ConnectionName, Generation, NameError},
    spec::SpecError,
};

/// A session that could not be started. Everybody who waited for it gets the same one.
#[derive(Debug)]
pub struct StartError {
    /// The connection.
    pub connection: ConnectionName,
    /// The generation that it would have been.
    pub generation: Generation,
    /// What went wrong.
    pub failure: StartFailure,
    /// How the server's process exited, if it is one and did.
    pub exit: Option<String>,
    /// The last lines that the process wrote to stderr.
    pub stderr: String,
    pub(crate) source: Option<Source>,
}

/// What kept a session from starting.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StartFailure {
    /// The command does not exist.
    #[error(
        "the command {command:?} does not exist; check its path and the host's PATH{}",
        if .command.contains(' ') { " (arguments go into `arg`: no shell is involved)" } else { "" }
    )]
    CommandNotFound {
        /// The command.
        command: String,
    },
    /// The command may not be executed.
    #[error("the command {command:?} may not be executed; check its permissions")]
    NotExecutable {
        /// The command.
        command: String,
    },
    /// The working directory does not exist.
    #[error("the working directory {dir:?} does not exist; create it or name another")]
    NoWorkingDirectory {
        /// The directory.
        dir: String,
    },
    /// The process could not be started for another reason.
    #[error(
        "the process could not be started ({0}); check the working directory and the system's limits"
    )]
    NotStarted(std::io::ErrorKind),
    /// The server's process exited, or closed its stdout, during the handshake.
    #[error("the server exited or closed its output during the handshake")]
    EndedDuringHandshake,
    /// It took too long.
    #[error("the handshake took longer than {limit:?}; raise the start limit or repair the server")]
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// The server refused the handshake.
    #[error("the server refused the handshake with {0}")]
    Refused(ServerError),
    /// The server answered with an HTTP status.
    #[error(
        "the server answered the handshake with HTTP status {status}{}",
        if matches!(.status, 401 | 403) { "; authorise this client for it" } else { "" }
    )]
    Status {
        /// The status.
        status: u16,
        /// The `WWW-Authenticate` challenge, as sent.
        challenge: Option<String>,
        /// The `Retry-After` header, as sent.
        retry_after: Option<String>,
    },
    /// There is no access token for the handshake, so it was not sent.
    #[error("there is no access token: {0}")]
    Credentials(CredentialsError),
    /// No connection could be made.
    #[error("the server cannot be reached ({0}); check the address and that it listens")]
    Unreachable(String),
    /// The server does not speak a revision that is allowed.
    #[error(
        "the server speaks {offered:?} and the connection allows {allowed:?}; change the era or the server"
    )]
    Revision {
        /// What the server offered.
        offered: String,
        /// What is allowed.
        allowed: String,
    },
    /// The server answered with something else than a handshake.
    #[error("the server's answer to the handshake cannot be understood; is it an MCP server?")]
    NotUnderstood,
    /// The user's factory returned an error or panicked.
    #[error("the connection's factory {0}")]
    Factory(&'static str),
    /// The host's handler panicked when it was asked what it offers.
    #[error("the connection's handler panicked in `get_info`")]
    HandlerPanicked,
    /// The runtime stopped the start, because it shuts down or was asked to.
    #[error("the start was stopped by the runtime")]
    Stopped,
}

impl StartError {
    /// What a server asks for that refused this client's credentials.
    #[must_use]
    pub fn challenge(&self) -> Option<Challenge> {
        match &self.failure {
            StartFailure::Status {
                status: 401 | 403,
                challenge,
                ..
            } => challenge.as_deref().and_then(Challenge::parse),
            StartFailure::Credentials(error) => challenge_in(error),
            _ => None,
        }
    }

    /// The reason without what it is about.
    pub(crate) fn why(&self) -> impl fmt::Display + '_ {
        Why(self)
    }

    /// Whether somebody has to authorise this client before a session can start.
    #[must_use]
    pub fn wants_authorization(&self) -> bool {
        matches!(
            &self.failure,
            StartFailure::Status {
                status: 401 | 403,
                ..
            } | StartFailure::Credentials(
                CredentialsError::AuthorizationRequired { .. } | CredentialsError::NotGiven(_)
            )
        )
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "connection {:?} could not start its session {}: {}",
            self.connection,
            self.generation.0,
            self.why()
        )
    }
}

/// The reason alone, with what the process left behind.
struct Why<'a>(&'a StartError);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(this) = self;
        write!(f, "{}", this.failure)?;
        if let Some(exit) = &this.exit {
            write!(f, " ({exit})")?;
        }
        if this.stderr.is_empty() && this.exit.is_some() {
            return f.write_str("; it wrote nothing to stderr");
        }
        if !this.stderr.is_empty() {
            write!(
                f,
                "; its stderr ended with: {}",
                OneLine(this.stderr.trim_end())
            )?;
        }
        Ok(())
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|s| &**s as &(dyn Error + 'static))
    }
}

/// A connection that could not be added to a supervisor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Its name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A connection of this name is there already.
    #[error("a connection named {0:?} is there already; close it first or use another name")]
    Duplicate(ConnectionName),
    /// The spec cannot be run.
    #[error("connection {name:?}: {error}")]
    Spec {
        /// The connection.
        name: ConnectionName,
        /// What to change.
        #[source]
        error: SpecError,
    },
    /// What is lent is closed already.
    #[error("connection {0:?} is caller-owned and already closed; lend a running one instead")]
    LentClosed(ConnectionName),
    /// The supervisor is shutting down.
    #[error("the supervisor is shutting down; start another one")]
    ShuttingDown,
}

/// A request to a connection itself that could not be carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReconnectError {
    /// The new session could not be started.
    #[error(transparent)]
    StartFailed(Arc<StartError>),
    /// The circuit is open.
    #[error("the circuit is open for another {retry_in:?} after repeated failures")]
    CircuitOpen {
        /// When a start will probe again.
        retry_in: Duration,
    },
    /// The connection is closed, or its supervisor is.
    #[error("the connection is closed; ask its supervisor for the name again, or open another one")]
    Closed,
}
