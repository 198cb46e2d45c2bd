//! What becomes of a call whose key is new, or known. One total function; every ledger asks it with
//! the transaction open, and does what it says.

use crate::operation::Fingerprint;

/// What a ledger has under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The version of the operation that it was run under.
    pub version: u32,
    /// What it was asked.
    pub fingerprint: Fingerprint,
    /// Where it stands.
    pub state: State,
    /// Until when its answer may be given out, in milliseconds since 1970.
    pub answered_until: i64,
}

/// Where an operation stands, as far as the table has to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It was begun, and what it comes to is not known yet.
    Running,
    /// It ended, and its answer is there.
    Settled,
    /// What became of it cannot be established.
    Unknown,
    /// Its answer was kept for the stated time and is gone.
    Tombstone,
}

/// What comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Whether the caller may have this operation now.
    pub access: Access,
    /// The version of the operation that is deployed.
    pub version: u32,
    /// What is asked.
    pub fingerprint: Fingerprint,
    /// What a receipt of another version is good for.
    pub other_versions: OtherVersions,
}

/// Whether the caller may have an operation now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may.
    Granted,
    /// It may not, whatever it once did under this key.
    Denied,
}

/// What becomes of a key that is found under another version. It never runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherVersions {
    /// It is answered with the receipt of that version.
    Answered,
    /// It is refused as a conflict.
    Refused,
}

/// What a ledger does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Says no, and tells nothing of what it has.
    Deny,
    /// Runs the handler and writes the receipt, together.
    Run,
    /// Gives out what it has.
    Replay,
    /// Tells that it is under way, with the id to ask with.
    Wait,
    /// Changes nothing: the key stands for something else.
    Conflict(Conflict),
    /// Tells that the outcome is unknown, and what to inspect.
    Unknown,
    /// Refuses the key: its answer is gone.
    Expired,
}

/// What is not as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The arguments.
    Arguments,
    /// The operation's version.
    Version,
}

/// The row for a call: what is stored under its key, what comes in, and the time, in milliseconds
/// since 1970.
#[must_use]
pub fn row(stored: Option<&Stored>, incoming: &Incoming, now: i64) -> Row {
    if incoming.access == Access::Denied {
        return Row::Deny;
    }
    let Some(stored) = stored else {
        return Row::Run;
    };
    // A tombstone says no before it says why else: what it stood for is over.
    let gone = match stored.state {
        State::Tombstone => true,
        State::Settled => stored.answered_until <= now,
        State::Running | State::Unknown => false,
    };
    if gone {
        return Row::Expired;
    }
    if stored.fingerprint != incoming.fingerprint {
        return Row::Conflict(match stored.version == incoming.version {
            true => Conflict::Arguments,
            false => Conflict::Version,
        });
    }
    if stored.version != incoming.version && incoming.other_versions == OtherVersions::Refused {
        return Row::Conflict(Conflict::Version);
    }
    match stored.state {
        State::Running => Row::Wait,
        State::Settled => Row::Replay,
        State::Unknown => Row::Unknown,
        State::Tombstone => Row::Expired,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn print(what: i64) -> Fingerprint {
        let arguments = Map::from_iter([("n".to_owned(), json!(what))]);
        Fingerprint::of("t", &arguments)
    }

    const STATES: [State; 4] = [
        State::Running,
        State::Settled,
        State::Unknown,
        State::Tombstone,
    ];

    /// Every combination of what the table looks at, against the rules in words.
    #[test]
    fn every_call_has_its_row() {
        let now = 1000;
        for access in [Access::Granted, Access::Denied] {
            for other_versions in [OtherVersions::Answered, OtherVersions::Refused] {
                let incoming = Incoming {
                    access,
                    version: 2,
                    fingerprint: print(1),
                    other_versions,
                };
                let new = row(None, &incoming, now);
                match access {
                    Access::Granted => assert_eq!(new, Row::Run),
                    Access::Denied => assert_eq!(new, Row::Deny),
                }
                for state in STATES {
                    for same_arguments in [true, false] {
                        for same_version in [true, false] {
                            for answered_until in [now - 1, now, now + 1] {
                                let stored = Stored {
                                    version: if same_version { 2 } else { 1 },
                                    fingerprint: print(if same_arguments { 1 } else { 2 }),
                                    state,
                                    answered_until,
                                };
                                let row = row(Some(&stored), &incoming, now);
                                assert_ne!(row, Row::Run, "a known key never runs: {stored:?}");
                                check(row, &stored, &incoming, now);
                            }
                        }
                    }
                }
            }
        }
    }

    fn check(row: Row, stored: &Stored, incoming: &Incoming, now: i64) {
        let same = stored.fingerprint == incoming.fingerprint;
        let same_version = stored.version == incoming.version;
        let over = stored.state == State::Settled && stored.answered_until <= now;
        let expected = if incoming.access == Access::Denied {
            Row::Deny
        } else if over || stored.state == State::Tombstone {
            Row::Expired
        } else if !same && same_version {
            Row::Conflict(Conflict::Arguments)
        } else if !same_version && (!same || incoming.other_versions == OtherVersions::Refused) {
            Row::Conflict(Conflict::Version)
        } else {
            match stored.state {
                State::Running => Row::Wait,
                State::Settled => Row::Replay,
                State::Unknown => Row::Unknown,
                State::Tombstone => Row::Expired,
            }
        };
        assert_eq!(row, expected, "{stored:?} {incoming:?}");
    }
}
