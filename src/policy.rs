//! Who may widen the rule that a tool call is sent at most once: the client, per tool, in writing.
//!
//! Nothing in this module knows the time or keeps state. [`decide`] takes what happened and what is
//! left of the budget, and says what may be done about it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    evidence::{Outcome, SessionAfter},
    extension::Offer,
    operation::OperationKind,
};

/// What the operator of this client vouches for, for one tool.
///
/// A contract that repeats does so only while the tool stays what it was. So the tool list is read
/// once for each session before such a call, and again before a repeat, within the call's deadline.
///
/// It is set in the client's own configuration. Nothing that a server says (annotations, a
/// description, a `retryable` flag) becomes a contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolContract {
    /// Nothing is vouched for: the call is never repeated.
    #[default]
    AtMostOnce,
    /// Repeating the call changes nothing.
    ReadOnly,
    /// The server deduplicates identical calls.
    Idempotent,
    /// The tool takes an idempotency key: the runtime puts the operation's key into this argument
    /// and repeats only with the same key and the same bytes. Where the tool's schema names its
    /// arguments and this is none of them, it is not repeated.
    Keyed {
        /// The argument that carries the key.
        argument: String,
    },
    /// The tool's outcome can be looked up: the runtime asks instead of repeating.
    Status {
        /// The tool that is asked.
        tool: String,
        /// The argument of that tool that carries the operation's key.
        argument: String,
        /// How long after the end of the old session an absence is final. `None`: never, because a
        /// delayed request could still arrive.
        absence_final_after: Option<Duration>,
    },
    /// The server keeps receipts for the tool, by [the extension](crate::extension): the runtime
    /// sends the operation's key in the request's `_meta`. It asks for the receipt, or repeats with
    /// the same key and the same bytes, only where the sessions of both attempts offered receipts for
    /// the tool and the time for which they are kept is not over.
    Receipts,
}

impl ToolContract {
    /// A [`Keyed`](Self::Keyed) contract with the key in `argument`.
    pub fn keyed(argument: impl Into<String>) -> Self {
        Self::Keyed {
            argument: argument.into(),
        }
    }

    /// A [`Status`](Self::Status) contract whose absences are never final.
    pub fn status(tool: impl Into<String>, argument: impl Into<String>) -> Self {
        Self::Status {
            tool: tool.into(),
            argument: argument.into(),
            absence_final_after: None,
        }
    }

    /// Whether it needs an idempotency key.
    #[must_use]
    pub fn needs_key(&self) -> bool {
        matches!(
            self,
            Self::Keyed { .. } | Self::Status { .. } | Self::Receipts
        )
    }
}

/// The contracts of one connection, by tool name or pattern. The first match wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contracts(Vec<(String, ToolContract)>);

impl Contracts {
    /// No contracts: every tool is at most once.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds `contract` for the tools that `pattern` names: an exact name, or one with `*` for any
    /// run of characters.
    #[must_use]
    pub fn with(mut self, pattern: impl Into<String>, contract: ToolContract) -> Self {
        self.0.push((pattern.into(), contract));
        self
    }

    /// These contracts, and behind them `more`.
    pub(crate) fn then(mut self, more: &Self) -> Self {
        self.0.extend_from_slice(&more.0);
        self
    }

    /// The contract in force for `tool`.
    #[must_use]
    pub fn for_tool(&self, tool: &str) -> &ToolContract {
        self.0
            .iter()
            .find(|(pattern, _)| matches_pattern(pattern, tool))
            .map_or(&ToolContract::AtMostOnce, |(_, contract)| contract)
    }
}

fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(head) else {
        return false;
    };
    let mut rest = rest;
    while let Some((part, after)) = rest.split_once('*') {
        let Some(at) = name.find(part) else {
            return false;
        };
        name = &name[at + part.len()..];
        rest = after;
    }
    name.ends_with(rest)
}

/// Exponential backoff with full jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The upper bound of the first wait.
    pub base: Duration,
    /// The upper bound of every wait.
    pub cap: Duration,
}

impl Default for Backoff {
    /// 100 ms doubling up to 5 s: the first repeat is not noticed by a person, and a server that
    /// stays down is asked at most every few seconds.
    fn default() -> Self {
        Self {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// The wait after `failures` failures in a row (1 or more), where `jitter` is a random number
    /// from 0 to 1. Zero failures wait for nothing.
    #[must_use]
    pub fn wait(&self, failures: u32, jitter: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let bound = self
            .base
            .saturating_mul(2_u32.saturating_pow(doublings.min(31)))
            .min(self.cap);
        bound.mul_f64(jitter.clamp(0.0, 1.0))
    }
}

/// How often and how patiently a contract repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// The most attempts of one operation, the first one included.
    pub max_attempts: u32,
    /// The wait between attempts.
    pub backoff: Backoff,
}

impl Default for Repeats {
    /// Three attempts: one repeat covers a restart, a second one covers a restart that was still
    /// going on.
    fn default() -> Self {
        Self {
            max_attempts: 3,
            backoff: Backoff::default(),
        }
    }
}

/// Everything that a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What was asked.
    pub kind: OperationKind,
    /// The contract in force; for anything but a tool call it plays no part.
    pub contract: &'a ToolContract,
    /// What is known.
    pub outcome: Outcome,
    /// What became of the session.
    pub session: SessionAfter,
    /// Whether the caller owns the connection.
    pub lent: bool,
    /// Whether the operation has an idempotency key.
    pub has_key: bool,
    /// What the session of the last attempt offers by way of receipts for this tool, and how long ago
    /// the first attempt was.
    pub receipts: Receipts<'a>,
    /// How many attempts were made.
    pub attempts: u32,
    /// What is left of the total budget.
    pub remaining: Duration,
    /// What the server said about when to come back.
    pub retry_after: Option<Duration>,
    /// A random number from 0 to 1.
    pub jitter: f64,
}

/// What is known of the receipts that a call under [`ToolContract::Receipts`] relies on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receipts<'a> {
    /// The tool, if it is a call.
    pub tool: &'a str,
    /// The offer of the session of the last attempt.
    pub offer: Option<&'a Offer>,
    /// How long ago the first attempt was.
    pub first_attempt_ago: Duration,
}

impl Receipts<'_> {
    /// Whether a receipt of the first attempt is kept for `longer` from now on.
    #[must_use]
    pub fn cover(&self, longer: Duration) -> bool {
        let then = self.first_attempt_ago.saturating_add(longer);
        self.offer
            .is_some_and(|offer| offer.covers(self.tool, then))
    }
}

/// What may be done about an operation that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Tell the caller what is known.
    Tell,
    /// Send the same request again, after this wait.
    Repeat(Duration),
    /// Ask the contract's status tool, after this wait.
    LookUp(Duration),
}

/// Decides by the client's policy alone.
#[must_use]
pub fn decide(situation: &Situation<'_>, repeats: &Repeats) -> Decision {
    let s = situation;
    if s.outcome != Outcome::Unknown || s.lent {
        return Decision::Tell;
    }
    if s.kind.is_read() {
        let once_more = s.session == SessionAfter::Lost && s.attempts == 1;
        return if once_more && !s.remaining.is_zero() {
            Decision::Repeat(Duration::ZERO)
        } else {
            Decision::Tell
        };
    }
    if s.kind != OperationKind::ToolCall || s.attempts >= repeats.max_attempts {
        return Decision::Tell;
    }
    let wait = repeats
        .backoff
        .wait(s.attempts, s.jitter)
        .max(s.retry_after.unwrap_or_default());
    if wait >= s.remaining {
        return Decision::Tell;
    }
    match s.contract {
        ToolContract::AtMostOnce => Decision::Tell,
        ToolContract::ReadOnly | ToolContract::Idempotent => Decision::Repeat(wait),
        ToolContract::Keyed { .. } if s.has_key => Decision::Repeat(wait),
        ToolContract::Status { .. } if s.has_key => Decision::LookUp(wait),
        ToolContract::Receipts if s.has_key && s.receipts.cover(wait) => Decision::Repeat(wait),
        ToolContract::Keyed { .. } | ToolContract::Status { .. } | ToolContract::Receipts => {
            Decision::Tell
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: Situation<'static> = Situation {
        kind: OperationKind::ToolCall,
        contract: &ToolContract::AtMostOnce,
        outcome: Outcome::Unknown,
        session: SessionAfter::Lost,
        lent: false,
        has_key: true,
        receipts: Receipts {
            tool: "pay",
            offer: None,
            first_attempt_ago: Duration::from_secs(1),
        },
        attempts: 1,
        remaining: Duration::from_secs(10),
        retry_after: None,
        jitter: 0.5,
    };

    fn decided(s: Situation<'_>) -> Decision {
        decide(&s, &Repeats::default())
    }

    #[test]
    fn without_a_contract_a_tool_call_is_never_repeated() {
        for session in [
            SessionAfter::Kept,
            SessionAfter::Suspect,
            SessionAfter::Lost,
        ] {
            for attempts in 0..4 {
                assert_eq!(
                    decided(Situation {
                        session,
                        attempts,
                        ..UNKNOWN
                    }),
                    Decision::Tell
                );
            }
        }
    }

    #[test]
    fn a_contract_repeats_only_what_is_unknown() {
        let contract = &ToolContract::Idempotent;
        assert_eq!(
            decided(Situation {
                contract,
                ..UNKNOWN
            }),
            Decision::Repeat(Duration::from_millis(50))
        );
        for outcome in [Outcome::NotSent, Outcome::Rejected, Outcome::Failed] {
            assert_eq!(
                decided(Situation {
                    contract,
                    outcome,
                    ..UNKNOWN
                }),
                Decision::Tell
            );
        }
    }

    #[test]
    fn nothing_is_repeated_on_what_the_caller_owns() {
        for contract in [&ToolContract::ReadOnly, &ToolContract::Idempotent] {
            for kind in [OperationKind::ToolCall, OperationKind::ListTools] {
                let s = Situation {
                    contract,
                    kind,
                    lent: true,
                    ..UNKNOWN
                };
                assert_eq!(decided(s), Decision::Tell);
            }
        }
    }

    #[test]
    fn a_repeat_obeys_the_cap_the_budget_and_retry_after() {
        let contract = &ToolContract::ReadOnly;
        assert_eq!(
            decided(Situation {
                contract,
                attempts: 3,
                ..UNKNOWN
            }),
            Decision::Tell
        );
        let short = Duration::from_millis(10);
        assert_eq!(
            decided(Situation {
                contract,
                remaining: short,
                ..UNKNOWN
            }),
            Decision::Tell
        );
        let s = Situation {
            contract,
            retry_after: Some(Duration::from_secs(2)),
            ..UNKNOWN
        };
        assert_eq!(decided(s), Decision::Repeat(Duration::from_secs(2)));
        let s = Situation {
            contract,
            retry_after: Some(Duration::from_secs(20)),
            ..UNKNOWN
        };
        assert_eq!(decided(s), Decision::Tell);
    }

    #[test]
    fn keyed_and_status_need_a_key() {
        let keyed = ToolContract::keyed("key");
        let status = ToolContract::status("lookup", "key");
        assert!(matches!(
            decided(Situation {
                contract: &keyed,
                ..UNKNOWN
            }),
            Decision::Repeat(_)
        ));
        assert!(matches!(
            decided(Situation {
                contract: &status,
                ..UNKNOWN
            }),
            Decision::LookUp(_)
        ));
        for contract in [&keyed, &status] {
            let s = Situation {
                contract,
                has_key: false,
                ..UNKNOWN
            };
            assert_eq!(decided(s), Decision::Tell);
        }
    }

    #[test]
    fn receipts_are_relied_on_only_where_they_were_offered_and_are_kept() {
        let repeats = |receipts, has_key| {
            let contract = &ToolContract::Receipts;
            let s = Situation {
                contract,
                receipts,
                has_key,
                ..UNKNOWN
            };
            matches!(decided(s), Decision::Repeat(_))
        };
        let offer = Offer::new(Duration::from_secs(60), ["pay"]);
        let offered = Receipts {
            offer: Some(&offer),
            ..UNKNOWN.receipts
        };
        assert!(repeats(offered, true));
        assert!(!repeats(offered, false), "without a key");
        assert!(!repeats(UNKNOWN.receipts, true), "not offered");
        let tool = "refund";
        assert!(!repeats(Receipts { tool, ..offered }, true), "another tool");
        // The wait before the repeat counts as well.
        let first_attempt_ago = Duration::from_millis(59_960);
        assert!(!repeats(
            Receipts {
                first_attempt_ago,
                ..offered
            },
            true
        ));
    }

    #[test]
    fn a_read_is_asked_once_more_after_a_loss_and_a_custom_request_never() {
        let read = Situation {
            kind: OperationKind::ListTools,
            ..UNKNOWN
        };
        assert_eq!(decided(read), Decision::Repeat(Duration::ZERO));
        assert_eq!(
            decided(Situation {
                attempts: 2,
                ..read
            }),
            Decision::Tell
        );
        assert_eq!(
            decided(Situation {
                session: SessionAfter::Suspect,
                ..read
            }),
            Decision::Tell
        );
        let remaining = Duration::ZERO;
        assert_eq!(decided(Situation { remaining, ..read }), Decision::Tell);
        // A contract is about a tool: under none is a custom request sent again.
        for contract in [&ToolContract::AtMostOnce, &ToolContract::ReadOnly] {
            let custom = Situation {
                kind: OperationKind::Custom,
                contract,
                ..UNKNOWN
            };
            assert_eq!(decided(custom), Decision::Tell);
        }
    }

    #[test]
    fn backoff_doubles_to_its_cap_and_never_overflows() {
        let b = Backoff::default();
        assert_eq!(b.wait(0, 1.0), Duration::ZERO);
        assert_eq!(b.wait(1, 1.0), Duration::from_millis(100));
        assert_eq!(b.wait(3, 1.0), Duration::from_millis(400));
        assert_eq!(b.wait(u32::MAX, 1.0), b.cap);
        assert_eq!(b.wait(5, 0.0), Duration::ZERO);
    }

    #[test]
    fn a_key_is_needed_where_the_server_is_to_know_it() {
        for (contract, needs) in [
            (ToolContract::AtMostOnce, false),
            (ToolContract::ReadOnly, false),
            (ToolContract::Idempotent, false),
            (ToolContract::keyed("key"), true),
            (ToolContract::status("find", "key"), true),
            (ToolContract::Receipts, true),
        ] {
            assert_eq!(contract.needs_key(), needs, "{contract:?}");
        }
    }

    #[test]
    fn the_first_contracts_go_before_those_behind_them() {
        let own = Contracts::none().with("pay", ToolContract::Idempotent);
        let more = Contracts::none()
            .with("pay", ToolContract::ReadOnly)
            .with("find", ToolContract::ReadOnly);
        let both = own.then(&more);
        assert_eq!(both.for_tool("pay"), &ToolContract::Idempotent);
        assert_eq!(both.for_tool("find"), &ToolContract::ReadOnly);
        assert_eq!(both.for_tool("other"), &ToolContract::AtMostOnce);
    }

    #[test]
    fn two_parts_of_a_pattern_do_not_share_what_they_match() {
        let matches = |pattern: &str, name| {
            let contracts = Contracts::none().with(pattern, ToolContract::ReadOnly);
            contracts.for_tool(name) == &ToolContract::ReadOnly
        };
        assert!(matches("*ab*ab", "abab"));
        assert!(!matches("*ab*ab", "ab"));
        assert!(!matches("a*a", "a"));
        assert!(matches("a*bc*d", "a-bc-d"));
        assert!(!matches("a*bcd*d", "abcd"));
    }

    #[test]
    fn patterns_match_whole_names() {
        let c = Contracts::none()
            .with("get_*", ToolContract::ReadOnly)
            .with("*_x_*", ToolContract::Idempotent)
            .with("pay", ToolContract::keyed("key"));
        assert_eq!(c.for_tool("get_user"), &ToolContract::ReadOnly);
        assert_eq!(c.for_tool("a_x_b"), &ToolContract::Idempotent);
        assert_eq!(c.for_tool("pay"), &ToolContract::keyed("key"));
        assert_eq!(c.for_tool("payment"), &ToolContract::AtMostOnce);
        assert_eq!(c.for_tool("forget_"), &ToolContract::AtMostOnce);
        assert!(matches_pattern("*", ""));
        assert!(matches_pattern("a*a", "aa"));
        assert!(!matches_pattern("a*a", "a"));
    }
}
