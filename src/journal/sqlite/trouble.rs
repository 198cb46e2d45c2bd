//! What SQLite says, as what a journal's host can do about it.

use std::path::Path;

use rusqlite::ErrorCode;

use super::StoreError;

/// What an error of SQLite means for the journal at `path`.
pub(super) fn told(path: &Path, error: &rusqlite::Error) -> StoreError {
    let text = format!("{}: {error}", path.display()).into();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreError::Full(text),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => StoreError::ReadOnly(text),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked(text),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt(text),
        // A value of another type than the one that was written.
        None => StoreError::Corrupt(text),
        Some(_) => StoreError::Unavailable(text),
    }
}
