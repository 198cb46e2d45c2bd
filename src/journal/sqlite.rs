//! A store in one SQLite file, for one process at a time.
//!
//! Write-ahead log with `synchronous=FULL`: what was answered is on the disk. One thread writes, and
//! commits in groups; readers have connections of their own and never wait for it.
//!
//! Every row has a checksum that goes over its history, and opening reads them all; a log that is
//! damaged before its last commit is an error, too. What cannot be told is damage to the very last
//! commit in the log: it looks as if a crash had cut it short, and what it held is as it was before it.

mod book;
mod log;
mod place;
mod reader;
mod recovery;
mod row;
mod schema;
mod trouble;
mod writer;

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use self::{
    book::Draft,
    place::Place,
    reader::{Reader, open_read_only},
    writer::Writer,
};
use super::{
    Accepted, By, Claimed, Fact, Filter, Held, Intent, Journal, JournalSettings, Record, State,
    Store, StoreError, Stored, Swept,
};
use crate::operation::{AttemptId, OperationId};

/// How much of a file is one page.
const PAGE_BYTES: u64 = 4096;

/// Keeps operations in one SQLite file.
///
/// One process at a time may write it: a lock on the file `<path>.lock` says so, which ends with the
/// process, however that ends. Others may [read it](Self::open_read_only) meanwhile. The files are made
/// for their owner alone (mode 0600).
///
/// Dropping the store waits until what was ordered is written; [`close`](Store::close) does that
/// without blocking the thread.
pub struct SqliteStore {
    path: PathBuf,
    // Its connections go first: the last one to close writes the log back into the file.
    reader: Reader,
    /// None: it can be read only.
    writer: Option<Writer>,
}

/// How a SQLite store opens its file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteSettings {
    /// How long a write waits for another program that writes to the file, until it fails as locked.
    pub busy_for: Duration,
    /// The largest size of the file, in bytes. At it, writes fail as [full](StoreError::Full) until a
    /// sweep has made room. The log beside it comes on top, and is usually below 5 MB.
    pub max_bytes: Option<u64>,
}

impl Default for SqliteSettings {
    /// Two seconds, and as large as the disk allows.
    fn default() -> Self {
        Self {
            busy_for: Duration::from_secs(2),
            max_bytes: None,
        }
    }
}

impl SqliteStore {
    /// Opens the journal in the file `path`, and makes it where there is none.
    ///
    /// Every row is read and checked, once. Operations that a host left when it died are taken over:
    /// those that were only accepted as not sent, those that may have been sent as unknown.
    ///
    /// # Errors
    ///
    /// [`Locked`](StoreError::Locked), where another process writes it;
    /// [`Corrupt`](StoreError::Corrupt), where it is damaged or no journal;
    /// [`Newer`](StoreError::Newer), where a newer version of this crate wrote it; and what else keeps
    /// a file from being opened.
    ///
    /// # Cancel safety
    ///
    /// Opening goes on, and the file is closed again at its end. Until then it is locked.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, SqliteSettings::default()).await
    }

    /// As [`open`](Self::open), with settings.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Cancel safety
    ///
    /// As [`open`](Self::open).
    pub async fn open_with(
        path: impl AsRef<Path>,
        settings: SqliteSettings,
    ) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        off_the_tasks(move || {
            let pages = settings
                .max_bytes
                .map(|bytes| u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX));
            let place = Place::take(&path)?;
            let book = recovery::open(&place, settings.busy_for, pages)?;
            let path = place.path.clone();
            let first = open_read_only(&path, settings.busy_for)?;
            Ok(Self {
                reader: Reader::new(path.clone(), settings.busy_for).with(first),
                writer: Some(Writer::start(book, place)?),
                path,
            })
        })
        .await
    }

    /// Opens the journal in the file `path` for reading, also while another process writes it. Every
    /// write answers [`ReadOnly`](StoreError::ReadOnly). Finding an operation by its key looks at all of
    /// them.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](StoreError::Corrupt), where it is no journal; [`Newer`](StoreError::Newer), where a
    /// newer version of this crate wrote it; and what else keeps a file from being read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        off_the_tasks(move || {
            let busy_for = SqliteSettings::default().busy_for;
            let connection = open_read_only(&path, busy_for)?;
            schema::check(&path, &connection)?;
            Ok(Self {
                reader: Reader::new(path.clone(), busy_for).with(connection),
                writer: None,
                path,
            })
        })
        .await
    }

    fn writer(&self) -> Result<&Writer, StoreError> {
        let read_only = || {
            let text = format!("{} was opened for reading", self.path.display());
            StoreError::ReadOnly(text.into())
        };
        self.writer.as_ref().ok_or_else(read_only)
    }

    fn write<T: Send + 'static>(
        &self,
        act: impl FnMut(&mut book::Book) -> Result<T, StoreError> + Send + 'static,
    ) -> Stored<'static, T> {
        match self.writer() {
            Ok(writer) => writer.write(act),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

impl Store for SqliteStore {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        match Draft::of(&intent, first) {
            Ok(draft) => self.write(move |book| book.accept(&draft)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        let held = copy(held);
        self.write(move |book| book.append(&held, &fact))
    }

    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>> {
        match (by, &self.writer) {
            (By::Key(connection, key), Some(writer)) => {
                let key = row::digest(connection, key);
                writer.write(move |book| book.by_key(key))
            }
            (by, _) => self.reader.find(by),
        }
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        self.reader.list(filter)
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.write(move |book| book.claim(operation))
    }

    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()> {
        let held = copy(held);
        self.write(move |book| book.release(&held))
    }

    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept> {
        self.write(move |book| book.sweep(answers, tombstones, at_most))
    }

    fn close(&self) -> Stored<'_, ()> {
        self.reader.close();
        match &self.writer {
            Some(writer) => writer.close(),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn is_shared(&self) -> bool {
        // Who reads only waits for what another process writes.
        self.writer.is_none()
    }
}

impl Journal {
    /// A journal in the SQLite file `path`, for one process at a time: over [`SqliteStore::open`].
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`].
    ///
    /// # Cancel safety
    ///
    /// As [`SqliteStore::open`].
    pub async fn sqlite(
        path: impl AsRef<Path>,
        settings: JournalSettings,
    ) -> Result<Self, StoreError> {
        Ok(Self::new(SqliteStore::open(path).await?, settings))
    }
}

fn copy(held: &Held) -> Held {
    Held {
        operation: held.operation,
        row: held.row,
        fence: held.fence,
    }
}

async fn off_the_tasks<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string().into())))
}
