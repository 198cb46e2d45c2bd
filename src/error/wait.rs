//! What an operation may wait for.

use std::fmt;

/// Which wait ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wait {
    /// For a place in the connection.
    Admission,
    /// In the mailbox, or for a session to start.
    Session,
    /// For the journal, before anything was handed over.
    Journal,
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
            Self::Journal => "for the journal",
            Self::Credentials => "for an access token",
            Self::Total => "for the answer (total)",
            Self::Attempt => "for the answer (attempt limit)",
            Self::Idle => "for progress (idle limit)",
            Self::Input => "for the host's handler",
        })
    }
}
