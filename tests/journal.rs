//! What every store of the journal promises, said once and asked of each of them; and what the journal
//! makes of a store.
//!
//! A store is added by a `Place` in `tests/journal/` and one line of `conforms!` below.

#[path = "journal/child.rs"]
mod child;
#[path = "journal/conformance.rs"]
mod conformance;
#[path = "journal/memory.rs"]
mod memory;
#[path = "journal/model.rs"]
mod model;
#[path = "journal/place.rs"]
mod place;
#[path = "journal/postgres.rs"]
mod postgres;
#[path = "journal/sqlite.rs"]
mod sqlite;
#[path = "journal/sqlite_faults.rs"]
mod sqlite_faults;
#[path = "journal/sqlite_killed.rs"]
mod sqlite_killed;
mod support;

use place::conforms;

conforms!(memory_store, crate::memory::place);
// Runs where `POSTGRES_URL` names a server.
conforms!(postgres_store, crate::postgres::place);
conforms!(sqlite_store, crate::sqlite::place);
