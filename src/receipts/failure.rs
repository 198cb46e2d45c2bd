//! How a handler says no. Which of it is kept under the key is the tool's choice, by kind.

use serde::{Deserialize, Serialize};

/// Why a handler has no result. Whatever it wrote is rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The tool's rules say no: an account is short, a room is taken. It is an answer, and kept under
    /// the key unless the tool [says otherwise](super::Definition::keep_refusals).
    #[error("refused: {}", .0.message)]
    Refused(Refusal),
    /// The arguments are no good. Never kept: the key is free for the corrected call.
    #[error("invalid arguments: {0}")]
    Invalid(String),
    /// The caller may not. Never kept.
    #[error("denied: {0}")]
    Denied(String),
    /// Somebody else has what is needed, and nothing was done. Never kept.
    #[error("busy")]
    Busy,
    /// The tool broke. The caller is told that it did, and not why. It is not kept unless the tool
    /// [says so](super::Definition::keep_failures).
    #[error("the tool failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A no that the tool's rules gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Refusal {
    /// The rule as a word, such as `insufficient_funds`.
    pub code: String,
    /// The rule in a sentence, for the caller.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Failure {
    /// The tool broke, for this reason.
    #[must_use]
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

#[cfg(feature = "sqlite")]
impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        match error.sqlite_error_code() {
            Some(DatabaseBusy | DatabaseLocked) => Self::Busy,
            _ => Self::Failed(error.into()),
        }
    }
}

#[cfg(feature = "postgres")]
impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        match super::postgres::fault::is_busy(&error) {
            true => Self::Busy,
            false => Self::Failed(error.into()),
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(error.into())
    }
}
