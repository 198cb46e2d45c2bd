//! What a statement ended in, when it did not end well. Nothing of the server's text is kept: it may
//! hold what was written.

use deadpool_postgres::{PoolError, tokio_postgres};
use tokio_postgres::error::SqlState;

use crate::journal::StoreError;

/// Why a statement has no result.
#[derive(Debug)]
pub(super) enum Fault {
    /// The connection broke or could not be had, or the server gave the work up. It may or may not be
    /// done. → the same again, on another connection.
    Broken,
    /// A row with that identity is there already.
    Twice,
    /// It will not be done.
    Refused(StoreError),
}

impl Fault {
    pub(super) fn of(error: tokio_postgres::Error) -> Self {
        let Some(code) = error.code() else {
            return Self::Broken;
        };
        let refused = |why: &str| {
            let text = format!("{why} (SQLSTATE {})", code.code());
            Self::Refused(StoreError::Unavailable(text.into()))
        };
        match code {
            &SqlState::UNIQUE_VIOLATION => Self::Twice,
            &SqlState::DISK_FULL => Self::Refused(StoreError::Full(
                "the database server has no space left; free some there".into(),
            )),
            &SqlState::READ_ONLY_SQL_TRANSACTION => Self::Refused(StoreError::ReadOnly(
                "the database takes no writes; connect to the primary server".into(),
            )),
            &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => Self::Refused(
                StoreError::Corrupt("the database server found its own files damaged".into()),
            ),
            &SqlState::LOCK_NOT_AVAILABLE => Self::Refused(StoreError::Locked(
                "another host is changing the journal's schema; try again".into(),
            )),
            &SqlState::INSUFFICIENT_PRIVILEGE => refused(
                "the database role lacks a right; it needs SELECT, INSERT, UPDATE and DELETE on the \
                 journal's tables, and CREATE in their schema where they are to be made",
            ),
            &SqlState::UNDEFINED_DATABASE => refused("there is no such database"),
            &SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME => {
                refused("the journal's tables are gone")
            }
            code if gives_way(code) => Self::Broken,
            code if code.code().starts_with("28") => refused("the database refused the login"),
            _ => refused("the database refused a statement"),
        }
    }

    pub(super) fn of_pool(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::of(error),
            PoolError::Timeout(_) => Self::Broken,
            PoolError::Closed => Self::Refused(StoreError::Unavailable(
                "the pool of database connections is closed".into(),
            )),
            PoolError::NoRuntimeSpecified => Self::Refused(StoreError::Unavailable(
                "the pool of database connections has time limits and no runtime".into(),
            )),
            PoolError::PostCreateHook(_) => Self::Refused(StoreError::Unavailable(
                "a hook of the pool refused the connection".into(),
            )),
        }
    }
}

/// Whether the server will do the same on another connection, or a little later: it ended the
/// connection, starts or stops, has too many of them, or chose this statement to end a deadlock.
fn gives_way(code: &SqlState) -> bool {
    const CODES: [&str; 8] = [
        "57P01", "57P02", "57P03", "57P05", "53300", "40001", "40P01", "57014",
    ];
    CODES.contains(&code.code()) || code.code().starts_with("08")
}
