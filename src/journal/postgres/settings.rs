//! What a host says of itself to the others, and for how long it speaks.

use std::time::Duration;

use crate::journal::StoreError;

/// How a host uses a journal in PostgreSQL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresSettings {
    /// The schema that holds the journal. Hosts that name the same one share one journal. It is made if
    /// it is not there.
    pub schema: String,
    /// What people call this host, beside the identity that it gets at each start. May be empty.
    pub label: String,
    /// How long a host is believed to live without a word from it. It speaks three times as often.
    pub lease: Duration,
    /// How much of the lease has to be left, by this host's own clock, for it to write.
    pub margin: Duration,
    /// The longest that a read or write may take, with its waits for a connection and a lease.
    pub within: Duration,
}

impl Default for PostgresSettings {
    /// The schema `mcp_supervisor`, a lease of 15 seconds with a margin of 3, and 10 seconds for each
    /// read or write.
    fn default() -> Self {
        Self {
            schema: "mcp_supervisor".to_owned(),
            label: String::new(),
            lease: Duration::from_secs(15),
            margin: Duration::from_secs(3),
            within: Duration::from_secs(10),
        }
    }
}

/// Shorter, and an ordinary wait for the scheduler or the network would look like a death.
const SHORTEST_LEASE: Duration = Duration::from_millis(300);

/// PostgreSQL cuts longer names off.
const LONGEST_SCHEMA: usize = 63;

/// A label is for people; it stands in the record of each operation.
const LONGEST_LABEL: usize = 128;

impl PostgresSettings {
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let wrong = |what: &str| Err(StoreError::Settings(what.into()));
        let first = self.schema.bytes().next().unwrap_or(b'0');
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        if first.is_ascii_digit()
            || !self.schema.bytes().all(plain)
            || self.schema.len() > LONGEST_SCHEMA
            || self.schema.starts_with("pg_")
        {
            return wrong(
                "the schema's name has 1 to 63 of a-z, 0-9 and _, starts with no digit and not with pg_",
            );
        }
        if self.label.len() > LONGEST_LABEL || self.label.chars().any(char::is_control) {
            return wrong("the host's label has at most 128 bytes and no control characters");
        }
        if self.lease < SHORTEST_LEASE {
            return wrong("a lease lasts 300 ms or longer");
        }
        if self.margin > self.lease / 2 {
            return wrong("the margin is at most half of the lease");
        }
        if self.within.is_zero() {
            return wrong("a read or write needs some time: `within` is zero");
        }
        Ok(())
    }
}
