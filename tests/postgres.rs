//! The journal's store in PostgreSQL: many hosts, leases, and a server that fails.
//!
//! They run where `POSTGRES_URL` names a server: see `tests/support/postgres.rs`. What the store shares
//! with the others is asked in `tests/journal.rs`.

#[path = "postgres/hosts.rs"]
mod hosts;
#[path = "postgres/leases.rs"]
mod leases;
#[path = "postgres/losses.rs"]
mod losses;
#[path = "postgres/proxy.rs"]
mod proxy;
#[path = "postgres/schema.rs"]
mod schema;
mod support;
#[path = "postgres/written.rs"]
mod written;
