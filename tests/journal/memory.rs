//! The store in memory.

use std::sync::Arc;

use mcp_supervisor::journal::{MemoryStore, Store};

use crate::place::{Place, Soon};

struct Memory;

impl Place for Memory {
    fn open(&self) -> Soon<Arc<dyn Store>> {
        Box::pin(async { Arc::new(MemoryStore::new()) as Arc<dyn Store> })
    }

    fn lasts(&self) -> bool {
        false
    }
}

pub(crate) fn place() -> Soon<Option<Arc<dyn Place>>> {
    Box::pin(async { Some(Arc::new(Memory) as Arc<dyn Place>) })
}
