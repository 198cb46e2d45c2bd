//! What PostgreSQL's errors mean to a ledger.

use deadpool_postgres::PoolError;
use tokio_postgres::{Error, error::SqlState};

use crate::receipts::LedgerError;

/// An error of a transaction that was not committed.
pub(crate) fn of(error: Error) -> LedgerError {
    match is_busy(&error) {
        true => LedgerError::Busy,
        false => LedgerError::Unavailable(told(&error).into()),
    }
}

/// An error of a commit: where the server did not say that it failed, it may have held.
pub(crate) fn of_commit(error: Error) -> LedgerError {
    match says_that_it_failed(&error) {
        true => of(error),
        false => LedgerError::Unclear(told(&error).into()),
    }
}

pub(crate) fn of_pool(error: PoolError) -> LedgerError {
    match error {
        PoolError::Timeout(_) => LedgerError::Busy,
        PoolError::Closed => LedgerError::Closed,
        PoolError::Backend(error) => of(error),
        PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_) => {
            LedgerError::Unavailable("the pool of connections is not set up to be used".into())
        }
    }
}

/// Whether somebody else has what is needed, for now.
pub(crate) fn is_busy(error: &Error) -> bool {
    [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::QUERY_CANCELED,
        SqlState::TOO_MANY_CONNECTIONS,
    ]
    .iter()
    .any(|state| error.code() == Some(state))
}

/// Whether the server itself says that a commit did not hold. A session that was ended, or one that
/// ended without a word, does not.
pub(crate) fn says_that_it_failed(error: &Error) -> bool {
    const SESSION_ENDED: [&str; 2] = ["08", "57"];
    error.code().is_some_and(|state| {
        let ended = SESSION_ENDED
            .iter()
            .any(|class| state.code().starts_with(class));
        !ended && *state != SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN
    })
}

/// What may be logged: PostgreSQL's messages and details can quote what is in a row.
fn told(error: &Error) -> String {
    match error.code() {
        Some(state) => format!("PostgreSQL reports {}", state.code()),
        None if error.is_closed() => "the connection is closed".to_owned(),
        None => "the connection failed".to_owned(),
    }
}
