//! Opening: what a host that died left is read, judged by the table, and taken over.
//!
//! Each operation that is taken over is one line, and a group of them one transaction. A crash in the
//! middle leaves some taken over and some not, which is what the next start finds.

use std::{collections::HashMap, time::Duration};

use rusqlite::Connection;

use super::{
    StoreError,
    book::{Book, Open},
    log,
    place::Place,
    row::{COLUMNS, FROM, Raw, code},
    schema,
    trouble::told,
};
use crate::{journal::State, operation::OperationId};

/// The smallest page that a database can have.
const SHORTEST: u64 = 512;

/// How many operations are taken over in one transaction.
const GROUP: usize = 1000;

/// Opens the journal in `place`, from which on everything that is not settled in it is this host's.
pub(super) fn open(
    place: &Place,
    busy_for: Duration,
    max_pages: Option<u32>,
) -> Result<Book, StoreError> {
    let path = &place.path;
    let failed = |error| told(path, &error);
    refuse_a_stump(place)?;
    log::examine(path)?;
    let mut connection = Connection::open(path).map_err(failed)?;
    prepare(&connection, busy_for, max_pages).map_err(failed)?;
    schema::migrate(path, &mut connection)?;
    place.is_used()?;
    examine(place, &connection)?;
    let mut book = Book {
        path: path.clone(),
        connection,
        host: 0,
        host_name: OperationId::mint().to_string(),
        next_row: 1,
        keys: HashMap::new(),
        open: HashMap::new(),
        undo: Vec::new(),
    };
    let unsettled = scan(&mut book)?;
    take_over(&mut book, &unsettled)?;
    Ok(book)
}

/// A file that is shorter than any database is new to SQLite, which would begin it again.
fn refuse_a_stump(place: &Place) -> Result<(), StoreError> {
    let length = std::fs::metadata(&place.path).map_or(0, |file| file.len());
    if length == 0 && place.was_used() {
        return Err(StoreError::Corrupt(
            format!(
                "{}: it is empty, and the files beside it say that there was a journal; put it back, \
                 or remove {} and -wal to begin a new one",
                place.path.display(),
                place.lock_path().display()
            )
            .into(),
        ));
    }
    match (1..SHORTEST).contains(&length) {
        true => Err(StoreError::Corrupt(
            format!("{}: it is cut to {length} bytes", place.path.display()).into(),
        )),
        false => Ok(()),
    }
}

fn prepare(
    connection: &Connection,
    busy_for: Duration,
    max_pages: Option<u32>,
) -> rusqlite::Result<()> {
    connection.busy_timeout(busy_for)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // What is swept is overwritten, and not only left out.
    connection.pragma_update(None, "secure_delete", "ON")?;
    if let Some(pages) = max_pages {
        connection.pragma_update(None, "max_page_count", pages)?;
    }
    connection.set_prepared_statement_cache_capacity(32);
    Ok(())
}

/// Whether the file is as SQLite leaves it. A page that lost its rows says so nowhere else.
fn examine(place: &Place, connection: &Connection) -> Result<(), StoreError> {
    let found: rusqlite::Result<String> =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match found {
        Ok(found) if found == "ok" => Ok(()),
        Ok(found) => Err(StoreError::Corrupt(
            format!("{}: {found}", place.path.display()).into(),
        )),
        Err(error) => Err(told(&place.path, &error)),
    }
}

/// Reads every row, against its checksum; keeps the keys, and gives back the rows of what is not settled.
fn scan(book: &mut Book) -> Result<Vec<i64>, StoreError> {
    let failed = |error| told(&book.path, &error);
    let (mut unsettled, mut rows) = (Vec::new(), 0_i64);
    let sql = format!("SELECT {COLUMNS} FROM {FROM} ORDER BY row");
    let mut statement = book.connection.prepare(&sql).map_err(failed)?;
    let mut found = statement.query([]).map_err(failed)?;
    while let Some(found) = found.next().map_err(failed)? {
        let raw = Raw::read(&book.path, found)?;
        if raw.state <= code(State::OutcomeUnknown) {
            unsettled.push(raw.row);
        }
        if let Some(key) = raw.key {
            book.keys.insert(key, raw.row);
        }
        book.next_row = raw.row + 1;
        rows += 1;
    }
    let indexed = "SELECT count(*) FROM operations INDEXED BY by_id";
    let indexed: i64 = book
        .connection
        .query_row(indexed, [], |row| row.get(0))
        .map_err(failed)?;
    match indexed == rows {
        true => Ok(unsettled),
        false => Err(StoreError::Corrupt(
            format!(
                "{}: an index has {indexed} of {rows} rows",
                book.path.display()
            )
            .into(),
        )),
    }
}

fn take_over(book: &mut Book, unsettled: &[i64]) -> Result<(), StoreError> {
    book.begin()?;
    let enrolled = book.run("INSERT INTO hosts (name) VALUES (?)", [&book.host_name]);
    let enrolled = enrolled.and_then(|_| {
        book.host = book.connection.last_insert_rowid();
        book.commit()
    });
    enrolled.inspect_err(|_| book.roll_back())?;
    for group in unsettled.chunks(GROUP) {
        book.begin()?;
        let done = group.iter().try_for_each(|row| take_over_one(book, *row));
        done.and_then(|()| book.commit())
            .inspect_err(|_| book.roll_back())?;
    }
    Ok(())
}

fn take_over_one(book: &mut Book, row: i64) -> Result<(), StoreError> {
    let Some(found) = book.by_row(row)? else {
        return Ok(());
    };
    match found.record.state {
        State::OutcomeUnknown => {
            book.open.insert(row, Open::of(&found));
            Ok(())
        }
        _ => book.take_over(&found),
    }
}
