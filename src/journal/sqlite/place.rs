//! The files of a journal: who may read them, and that one process at a time writes them.

use std::{
    fs::{File, Metadata, OpenOptions, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::StoreError;

/// The right to write one journal, for as long as the lock file is open.
pub(super) struct Place {
    /// The database, without symbolic links on the way: two names of one file are one lock.
    pub(super) path: PathBuf,
    lock: File,
}

/// What the lock file holds once there is a journal.
const USED: &[u8] = b"there is a journal\n";

impl Place {
    /// Makes the database file where there is none, and locks it against other processes.
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        // Before SQLite does: it gives its other files the rights of this one.
        for_the_owner_alone(path).map_err(|error| refused(path, &error))?;
        let path = path.canonicalize().map_err(|error| refused(path, &error))?;
        let lock_path = beside(&path, ".lock");
        let lock = for_the_owner_alone(&lock_path).map_err(|error| refused(&lock_path, &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, lock }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Locked(
                format!(
                    "{} is locked; stop the process that has it, or open it read-only",
                    lock_path.display()
                )
                .into(),
            )),
            Err(TryLockError::Error(error)) => Err(refused(&lock_path, &error)),
        }
    }
}

impl Place {
    pub(super) fn lock_path(&self) -> PathBuf {
        beside(&self.path, ".lock")
    }

    /// Whether the files beside the database say that it held a journal.
    pub(super) fn was_used(&self) -> bool {
        let holds = |file: io::Result<Metadata>| file.is_ok_and(|file| file.len() > 0);
        holds(self.lock.metadata()) || holds(std::fs::metadata(beside(&self.path, "-wal")))
    }

    /// Notes that there is a journal: from now on a database that is empty is one that was cut.
    pub(super) fn is_used(&self) -> Result<(), StoreError> {
        let noted = || {
            if self.lock.metadata()?.len() == 0 {
                (&self.lock).write_all(USED)?;
                self.lock.sync_all()?;
            }
            Ok(())
        };
        noted().map_err(|error| refused(&self.lock_path(), &error))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A process that is being made by another thread has the file as well until it runs its own
        // program, and the lock goes with the last that has it, unless it is given back.
        let _ = self.lock.unlock();
    }
}

/// A file that its owner may read and write, and nobody else. One that is there keeps its rights.
fn for_the_owner_alone(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn refused(path: &Path, error: &io::Error) -> StoreError {
    let text = format!("{}: {error}", path.display()).into();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full(text),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreError::ReadOnly(text)
        }
        _ => StoreError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_was_closed_is_free_although_a_process_is_just_being_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal.db");
        let place = Place::take(&path).unwrap();
        assert!(matches!(Place::take(&path), Err(StoreError::Locked(_))));
        let in_the_child = place.lock.try_clone().unwrap();
        drop(place);
        Place::take(&path).unwrap();
        drop(in_the_child);
    }
}
