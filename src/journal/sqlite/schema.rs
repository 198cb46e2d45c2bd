//! The tables, and the way from each version of them to the next.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::{StoreError, trouble::told};

/// What is written at the head of the file: "mcpj".
const APPLICATION: i64 = 0x6d63_706a;

/// One step for each version: the first makes version 1 of an empty file.
///
/// An operation is one row, its history lines of JSON at the row's end, so that each write of one
/// operation is one statement: it happens whole or not at all, and the others of its group go on.
///
/// The key has no index. Callers' keys are random, so each insert would touch a page of the index that
/// no other one of its group does: tried once on one disk with 200,000 operations and groups of 256, an
/// operation cost several times as much. The other indexes grow at their end. So the keys are a map in
/// memory, built at the start: `cargo bench --bench journal` says what that costs.
const STEPS: &[&str] = &["
    CREATE TABLE hosts (host INTEGER PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE operations (
        row INTEGER PRIMARY KEY,
        state INTEGER NOT NULL,
        settled_at INTEGER,
        host INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        sum INTEGER NOT NULL,
        id BLOB NOT NULL,
        key BLOB,
        connection TEXT NOT NULL,
        intent TEXT NOT NULL,
        history TEXT NOT NULL
    );
    CREATE UNIQUE INDEX by_id ON operations (id);
    CREATE INDEX unknown ON operations (id) WHERE state = 4;
    CREATE INDEX settled ON operations (state, settled_at) WHERE settled_at IS NOT NULL;
"];

/// Brings the tables to the newest version, each step whole or not at all.
pub(super) fn migrate(path: &Path, connection: &mut Connection) -> Result<(), StoreError> {
    migrate_by(STEPS, path, connection)
}

fn migrate_by(steps: &[&str], path: &Path, connection: &mut Connection) -> Result<(), StoreError> {
    let failed = |error| told(path, &error);
    let found = version(steps, path, connection)?;
    for (step, version) in steps.iter().zip(1_i64..).skip(found) {
        let change = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failed)?;
        change.execute_batch(step).map_err(failed)?;
        change
            .pragma_update(None, "application_id", APPLICATION)
            .map_err(failed)?;
        change
            .pragma_update(None, "user_version", version)
            .map_err(failed)?;
        change.commit().map_err(failed)?;
    }
    Ok(())
}

/// Checks that there is a journal of this version.
pub(super) fn check(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    match version(STEPS, path, connection)? == STEPS.len() {
        true => Ok(()),
        false => Err(StoreError::Unavailable(
            format!(
                "{}: it is empty, or of an older version; open it once for writing",
                path.display()
            )
            .into(),
        )),
    }
}

fn version(steps: &[&str], path: &Path, connection: &Connection) -> Result<usize, StoreError> {
    let ask = |name| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|error| told(path, &error))
    };
    let known = i64::try_from(steps.len()).unwrap_or(i64::MAX);
    let (application, found) = (ask("application_id")?, ask("user_version")?);
    let empty = "SELECT count(*) = 0 FROM sqlite_schema";
    let is_ours = application == APPLICATION
        || application == 0
            && found == 0
            && connection
                .query_row(empty, [], |row| row.get(0))
                .map_err(|error| told(path, &error))?;
    if !is_ours {
        let text = format!("{}: it is a database, and no journal", path.display());
        return Err(StoreError::Corrupt(text.into()));
    }
    usize::try_from(found)
        .ok()
        .filter(|_| found <= known)
        .ok_or(StoreError::Newer { found, known })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(connection: &Connection) -> Vec<String> {
        let mut statement = connection
            .prepare("SELECT name FROM pragma_table_info('t')")
            .unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap();
        names.map(Result::unwrap).collect()
    }

    #[test]
    fn each_step_is_taken_once_and_one_that_fails_leaves_the_version_before_it() {
        let path = Path::new("memory");
        let mut file = Connection::open_in_memory().unwrap();
        let (first, second) = ("CREATE TABLE t (a)", "ALTER TABLE t ADD COLUMN b");
        migrate_by(&[first], path, &mut file).unwrap();

        let torn = "ALTER TABLE t ADD COLUMN b; SELECT no_such_function()";
        migrate_by(&[first, torn], path, &mut file).unwrap_err();
        assert_eq!(columns(&file), ["a"]);

        for _ in 0..2 {
            migrate_by(&[first, second], path, &mut file).unwrap();
            assert_eq!(columns(&file), ["a", "b"]);
        }
        assert!(matches!(
            migrate_by(&[first], path, &mut file),
            Err(StoreError::Newer { found: 2, known: 1 })
        ));
    }
}
