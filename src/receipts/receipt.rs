//! A receipt: what was asked under a key, and what it came to.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use super::table::Conflict;
use super::{
    failure::Refusal,
    identity::Identity,
    table::{self, Stored},
};
use crate::operation::{Fingerprint, OperationId};

/// What a ledger keeps under a key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Receipt {
    /// The operation.
    pub id: OperationId,
    /// Under what it is found.
    pub identity: Identity,
    /// The version of the operation that it was run under.
    pub version: u32,
    /// What it was asked.
    pub fingerprint: Fingerprint,
    /// What it came to.
    pub standing: Standing,
    /// When it was begun.
    pub at: SystemTime,
    /// Until when its answer may be given out.
    pub answered_until: SystemTime,
    /// Until when its key is refused after that.
    pub refused_until: SystemTime,
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Standing {
    /// It was begun, durably, and is not over. → every other but expired.
    Running,
    /// It is done. → expired.
    Completed {
        /// The handler's result.
        result: Value,
    },
    /// The tool's rules say no, and nothing was changed. → expired.
    Refused {
        /// Why.
        refusal: Refusal,
    },
    /// It failed, and the tool keeps its failures. → expired.
    Failed {
        /// What may be told about it.
        message: String,
    },
    /// It was stopped, and what it did before was undone or is nothing. → expired.
    Cancelled,
    /// What became of it cannot be established. → completed, refused, failed, cancelled, by knowledge
    /// and never by time.
    Unknown {
        /// Where to look.
        inspect: String,
    },
    /// Its answer was kept for the stated time and is gone. The end.
    Expired,
}

impl Standing {
    /// Where it stands, to the table.
    #[must_use]
    pub fn state(&self) -> table::State {
        match self {
            Self::Running => table::State::Running,
            Self::Completed { .. }
            | Self::Refused { .. }
            | Self::Failed { .. }
            | Self::Cancelled => table::State::Settled,
            Self::Unknown { .. } => table::State::Unknown,
            Self::Expired => table::State::Tombstone,
        }
    }

    /// Whether an operation that stands here may come to stand at `next`.
    #[must_use]
    pub fn may_become(&self, next: &Self) -> bool {
        use table::State::{Running, Settled, Tombstone, Unknown};
        matches!(
            (self.state(), next.state()),
            (Running | Unknown, Settled | Unknown) | (Settled, Tombstone)
        )
    }
}

impl Receipt {
    /// Its answer is gone when its time is over, whether or not it was swept away.
    pub(crate) fn expire(&mut self, now: SystemTime) {
        if self.standing.state() == table::State::Settled && self.answered_until <= now {
            self.standing = Standing::Expired;
        }
    }

    /// What the table has to know of it.
    #[must_use]
    pub fn stored(&self) -> Stored {
        Stored {
            version: self.version,
            fingerprint: self.fingerprint,
            state: self.standing.state(),
            answered_until: millis(self.answered_until),
        }
    }
}

/// The last moment that is kept or told, in milliseconds since 1970: RFC 3339 has no year after 9999.
pub(crate) const LATEST: i64 = 253_402_300_799_000;

/// A moment after another one, and the last one where that is beyond it.
pub(crate) fn later(from: SystemTime, by: Duration) -> SystemTime {
    let last = time(LATEST);
    from.checked_add(by).map_or(last, |moment| moment.min(last))
}

/// Milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// The time that many milliseconds after 1970.
pub(crate) fn time(millis: i64) -> SystemTime {
    let millis = u64::try_from(millis).unwrap_or(0);
    let since = Duration::from_millis(millis);
    SystemTime::UNIX_EPOCH
        .checked_add(since)
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn standings() -> [Standing; 7] {
        [
            Standing::Running,
            Standing::Unknown {
                inspect: "Look at the orders.".into(),
            },
            Standing::Completed {
                result: Value::Null,
            },
            Standing::Refused {
                refusal: Refusal::new("sold_out", "There is none left."),
            },
            Standing::Failed {
                message: "the tool failed".into(),
            },
            Standing::Cancelled,
            Standing::Expired,
        ]
    }

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    fn receipt(standing: Standing) -> Receipt {
        let scope = "alice".parse().unwrap();
        Receipt {
            id: OperationId::mint(),
            identity: Identity::new(scope, "pay", "order-1".parse().unwrap()),
            version: 3,
            fingerprint: Fingerprint::of("pay", &Map::new()),
            standing,
            at: at(0),
            answered_until: at(1_000),
            refused_until: at(2_000),
        }
    }

    #[test]
    fn an_end_stays_until_its_time_is_over_and_only_knowledge_ends_what_is_open() {
        for from in standings() {
            for to in standings() {
                let open = matches!(from, Standing::Running | Standing::Unknown { .. });
                let expected = match to {
                    Standing::Running => false,
                    Standing::Expired => !open && from != Standing::Expired,
                    _ => open,
                };
                assert_eq!(from.may_become(&to), expected, "{from:?} {to:?}");
            }
        }
    }

    #[test]
    fn an_answer_is_gone_when_its_time_is_over_and_what_is_open_is_not() {
        for standing in standings() {
            let settled = standing.state() == table::State::Settled;
            for (now, over) in [(999, false), (1_000, true), (1_001, true)] {
                let mut receipt = receipt(standing.clone());
                receipt.expire(at(now));
                let expected = match settled && over {
                    true => Standing::Expired,
                    false => standing.clone(),
                };
                assert_eq!(receipt.standing, expected, "{standing:?} at {now}");
            }
        }
    }

    #[test]
    fn the_table_is_told_what_is_kept() {
        let receipt = receipt(Standing::Cancelled);
        let stored = Stored {
            version: 3,
            fingerprint: receipt.fingerprint,
            state: table::State::Settled,
            answered_until: 1_000,
        };
        assert_eq!(receipt.stored(), stored);
    }

    #[test]
    fn a_moment_is_kept_in_milliseconds_and_none_is_beyond_the_last() {
        for millis_of in [0, 1, 1_764_460_800_123, LATEST] {
            assert_eq!(millis(time(millis_of)), millis_of);
        }
        assert_eq!(time(1_500), at(1_500));
        assert_eq!(time(-1), at(0));
        assert_eq!(millis(at(0) - Duration::from_secs(1)), 0);
        assert_eq!(later(at(1), Duration::from_millis(2)), at(3));
        let last = time(LATEST);
        assert_eq!(later(last, Duration::from_millis(1)), last);
        assert_eq!(later(at(0), Duration::MAX), last);
    }
}
