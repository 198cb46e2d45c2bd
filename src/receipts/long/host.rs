//! Whether the host that runs a work is still there. Each host holds a lock on a file of its own, which
//! the system lets go of when the process ends, however it ends.

use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

/// A host of works, for as long as this lives.
#[derive(Debug)]
pub(super) struct Host {
    name: String,
    /// Where the hosts of one ledger have their files. `None`: the ledger is in memory, and so has one
    /// host.
    directory: Option<PathBuf>,
    _lock: Option<File>,
}

impl Host {
    /// A host of the ledger in `file`.
    pub(super) fn of(file: Option<&Path>) -> io::Result<Self> {
        let name = Uuid::now_v7().to_string();
        let Some(file) = file else {
            return Ok(Self {
                name,
                directory: None,
                _lock: None,
            });
        };
        let mut directory = file.as_os_str().to_owned();
        directory.push(".hosts");
        let directory = PathBuf::from(directory);
        std::fs::create_dir_all(&directory)?;
        let lock = File::create(directory.join(&name))?;
        // Nobody else knows the name yet.
        lock.lock()?;
        Ok(Self {
            name,
            directory: Some(directory),
            _lock: Some(lock),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a host is gone for good: its lock is free, or its file is not there any more. What cannot
    /// be told counts as there.
    pub(super) fn is_gone(&self, other: &str) -> bool {
        if other == self.name {
            return false;
        }
        let Some(directory) = &self.directory else {
            return true;
        };
        // What stands in the ledger is no path.
        if Uuid::try_parse(other).is_err() {
            return true;
        }
        match File::open(directory.join(other)) {
            Ok(file) => !matches!(
                file.try_lock(),
                Err(TryLockError::WouldBlock | TryLockError::Error(_))
            ),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            // Left behind it is found free, and says the same.
            let _ = std::fs::remove_file(directory.join(&self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_there_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ledger.db");
        let here = Host::of(Some(&file)).unwrap();
        let other = Host::of(Some(&file)).unwrap();
        let name = other.name().to_owned();
        assert!(!here.is_gone(&name));
        assert!(!here.is_gone(here.name()));
        drop(other);
        assert!(here.is_gone(&name));
        assert!(here.is_gone("../../etc/passwd"), "no path leads out");
    }

    #[test]
    fn a_file_that_nobody_holds_is_of_a_host_that_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ledger.db");
        let here = Host::of(Some(&file)).unwrap();
        let killed = Uuid::now_v7().to_string();
        File::create(directory.path().join("ledger.db.hosts").join(&killed)).unwrap();
        assert!(here.is_gone(&killed));
    }
}
