//! The store in a SQLite file.

use std::{path::PathBuf, sync::Arc};

use mcp_supervisor::journal::{SqliteStore, Store};
use tempfile::TempDir;

use crate::place::{Place, Soon};

struct Sqlite(TempDir);

impl Place for Sqlite {
    fn open(&self) -> Soon<Arc<dyn Store>> {
        let path: PathBuf = self.0.path().join("journal.db");
        Box::pin(async move {
            let store = SqliteStore::open(path).await.expect("a file of our own");
            Arc::new(store) as Arc<dyn Store>
        })
    }

    fn lasts(&self) -> bool {
        true
    }
}

pub(super) fn place() -> Soon<Option<Arc<dyn Place>>> {
    Box::pin(async {
        let dir = tempfile::tempdir().expect("a directory of our own");
        Some(Arc::new(Sqlite(dir)) as Arc<dyn Place>)
    })
}
