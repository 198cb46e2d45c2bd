//! Why the journal did not do what it was asked. One variant for each next action.

use std::{io, sync::Arc};

use super::{State, StoreError, VerdictError};

/// Why the journal did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It knows no such operation: the id is another journal's, or the operation was kept long enough
    /// and removed. Look it up where it was accepted.
    #[error("the journal has no such operation: it is another journal's, or it was removed")]
    OperationMissing,
    /// The operation runs, or somebody is resolving it. [Wait](super::Journal::wait) for it.
    #[error("the operation is running or being resolved on {host}; wait for it")]
    StillRunning {
        /// The host that has it.
        host: String,
    },
    /// What became of it is known already, and stays. [Show](super::Journal::show) it.
    #[error("the operation is settled already: {0}")]
    AlreadySettled(State),
    /// The verdict says too little or too much. Correct it.
    #[error("the verdict cannot be recorded: {0}")]
    Verdict(#[from] VerdictError),
    /// What is exported could not be written. The journal is as it was; export it to another place.
    #[error("the export could not be written: {0}")]
    Export(#[source] Arc<io::Error>),
    /// The store failed. Correct what keeps it from being read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}
