//! Reading, beside the writer and off the threads that run tasks.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, ToSql};

use super::{
    StoreError,
    place::beside,
    row::{COLUMNS, FROM, code, digest, read},
    trouble::told,
};
use crate::journal::{By, Filter, Record, State, store::Stored};

/// How many connections wait for the next reader. More are opened when they are needed.
const IDLE: usize = 4;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Reader(Arc<Shared>);

struct Shared {
    path: PathBuf,
    busy_for: Duration,
    idle: Mutex<Vec<Connection>>,
    closed: AtomicBool,
}

impl Reader {
    pub(super) fn new(path: PathBuf, busy_for: Duration) -> Self {
        Self(Arc::new(Shared {
            path,
            busy_for,
            idle: Mutex::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// With a connection that was opened already.
    pub(super) fn with(self, connection: Connection) -> Self {
        self.0.put_back(connection);
        self
    }

    pub(super) fn find(&self, by: By<'_>) -> Stored<'static, Option<Record>> {
        let (column, is) = match by {
            By::Operation(id) => ("id", *id.as_bytes()),
            By::Key(connection, key) => ("key", digest(connection, key)),
        };
        // By key there may be several. The last has it.
        let sql =
            format!("SELECT {COLUMNS} FROM {FROM} WHERE {column} = ? ORDER BY row DESC LIMIT 1");
        self.read(move |shared, connection| {
            let found = shared.select(connection, &sql, &[&is])?;
            Ok(found.into_iter().next())
        })
    }

    pub(super) fn list(&self, filter: &Filter) -> Stored<'static, Vec<Record>> {
        let mut conditions = vec!["TRUE".to_owned()];
        let mut with: Vec<Box<dyn ToSql + Send>> = Vec::new();
        if let Some(after) = &filter.after {
            conditions.push("id > ?".to_owned());
            with.push(Box::new(*after.as_bytes()));
        }
        if let Some(connection) = &filter.connection {
            conditions.push("connection = ?".to_owned());
            with.push(Box::new(connection.as_str().to_owned()));
        }
        if let Some(states) = &filter.states {
            conditions.push(in_one_of(states));
        }
        with.push(Box::new(i64::try_from(filter.limit).unwrap_or(i64::MAX)));
        let sql = format!(
            "SELECT {COLUMNS} FROM {FROM} WHERE {} ORDER BY id LIMIT ?",
            conditions.join(" AND ")
        );
        self.read(move |shared, connection| {
            let with: Vec<&dyn ToSql> = with.iter().map(|value| &**value as &dyn ToSql).collect();
            shared.select(connection, &sql, &with)
        })
    }

    /// Reads no more, and gives up the connections.
    pub(super) fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.idle().clear();
    }

    fn read<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Shared, &Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Stored<'static, T> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let reading = tokio::task::spawn_blocking(move || {
                let connection = shared.connection()?;
                let done = act(&shared, &connection);
                shared.put_back(connection);
                done
            });
            reading
                .await
                .unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string().into())))
        })
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Result<Connection, StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        let idle = self.idle().pop();
        idle.map_or_else(|| open_read_only(&self.path, self.busy_for), Ok)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < IDLE && !self.closed.load(Ordering::SeqCst) {
            idle.push(connection);
        }
    }

    fn select(
        &self,
        connection: &Connection,
        sql: &str,
        with: &[&dyn ToSql],
    ) -> Result<Vec<Record>, StoreError> {
        let failed = |error| told(&self.path, &error);
        let mut statement = connection.prepare_cached(sql).map_err(failed)?;
        let mut rows = statement.query(with).map_err(failed)?;
        let mut records = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            records.push(read(&self.path, row)?.record);
        }
        Ok(records)
    }
}

/// In literals, so that SQLite sees that the index of the unknown ones is enough.
fn in_one_of(states: &[State]) -> String {
    let codes: Vec<_> = states
        .iter()
        .map(|state| code(*state).to_string())
        .collect();
    match &codes[..] {
        [one] => format!("state = {one}"),
        _ => format!("state IN ({})", codes.join(", ")),
    }
}

/// Opens a file for reading, also where nothing can be written beside it: SQLite wants to make the
/// log's index there. Where there is no log, and so no writer that did not close, it can do without.
pub(super) fn open_read_only(path: &Path, busy_for: Duration) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |name: &Path, flags| {
        let connection = Connection::open_with_flags(name, flags)?;
        connection.busy_timeout(busy_for)?;
        // The first that looks into the file.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(connection)
    };
    let opened = open(path, flags).or_else(|error: rusqlite::Error| {
        let cannot = [ErrorCode::CannotOpen, ErrorCode::ReadOnly];
        let still = path.exists() && !beside(path, "-wal").exists();
        match error
            .sqlite_error_code()
            .filter(|code| cannot.contains(code))
        {
            Some(_) if still => open(&unchanging(path), flags | OpenFlags::SQLITE_OPEN_URI),
            _ => Err(error),
        }
    });
    opened.map_err(|error| told(path, &error))
}

/// The URI of a file that nobody changes.
fn unchanging(path: &Path) -> PathBuf {
    let mut uri = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri += &format!("%{byte:02x}"),
        }
    }
    (uri + "?immutable=1").into()
}
