//! `docs/servers.md`, from the rows.

pub fn check() {}
