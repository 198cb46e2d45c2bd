//! When a connection is given up for a while: restart intensity and circuit, as pure functions.
//!
//! ```text
//! Closed ──too many failures in the period──▶ Open ──cool-down over──▶ HalfOpen
//!   ▲                                          ▲                          │
//!   │                                          └─────────failed───────────┤
//!   └──────────────────────────────────────────────────proved─────────────┘
//! ```
//!
//! A circuit is closed when traffic flows.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::spec::Recovery;

#[derive(Debug)]
pub(super) struct Circuit {
    recovery: Recovery,
    state: State,
    failures: VecDeque<Instant>,
    /// Failures since something was last proved, for the backoff.
    in_a_row: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Traffic flows. Leads to `Open`.
    Closed,
    /// Everything is refused until then. Leads to `HalfOpen`.
    Open { until: Instant },
    /// One start probes. Leads to `Open` or `Closed`.
    HalfOpen,
}

/// What the circuit says about a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    Start { after: Duration, probe: bool },
    Refused { retry_in: Duration },
}

/// A change that others may want to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    Probed,
    Closed,
}

impl Circuit {
    pub(super) fn new(recovery: Recovery) -> Self {
        Self {
            recovery,
            state: State::Closed,
            failures: VecDeque::new(),
            in_a_row: 0,
        }
    }

    /// Asks to start at `now`; `jitter` is a random number from 0 to 1.
    pub(super) fn may_start(&mut self, now: Instant, jitter: f64) -> (Permission, Option<Change>) {
        match self.state {
            State::Open { until } if now < until => (
                Permission::Refused {
                    retry_in: until - now,
                },
                None,
            ),
            State::Open { .. } => {
                self.state = State::HalfOpen;
                let probe = Permission::Start {
                    after: Duration::ZERO,
                    probe: true,
                };
                (probe, Some(Change::Probed))
            }
            State::HalfOpen => (
                Permission::Start {
                    after: Duration::ZERO,
                    probe: true,
                },
                None,
            ),
            State::Closed => {
                let failed_at = self.failures.back().copied();
                let wait = self.recovery.backoff.wait(self.in_a_row, jitter);
                // The wait is counted from the failure, so a caller that comes late waits less.
                let passed =
                    failed_at.map_or(Duration::MAX, |at| now.saturating_duration_since(at));
                let after = wait.saturating_sub(passed);
                (
                    Permission::Start {
                        after,
                        probe: false,
                    },
                    None,
                )
            }
        }
    }

    /// For how long it still refuses, if it is open.
    pub(super) fn open_for(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Open { until } if now < until => Some(until - now),
            State::Open { .. } | State::HalfOpen | State::Closed => None,
        }
    }

    /// A start failed, or a session ended before it had answered anything.
    pub(super) fn failed(&mut self, now: Instant) -> Option<Change> {
        if matches!(self.state, State::Open { .. }) {
            // Nothing was tried: this is the failure that is known already.
            return None;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.failures.push_back(now);
        let period = self.recovery.period;
        while self
            .failures
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) > period)
        {
            self.failures.pop_front();
        }
        let count = u32::try_from(self.failures.len()).unwrap_or(u32::MAX);
        let opens = match self.state {
            State::Closed => count > self.recovery.max_restarts,
            State::HalfOpen | State::Open { .. } => true,
        };
        if !opens {
            return None;
        }
        self.state = State::Open {
            until: now + self.recovery.cool_down,
        };
        self.failures.clear();
        Some(Change::Opened)
    }

    /// A session answered something.
    pub(super) fn proved(&mut self) -> Option<Change> {
        self.in_a_row = 0;
        match self.state {
            State::HalfOpen => {
                self.state = State::Closed;
                self.failures.clear();
                Some(Change::Closed)
            }
            State::Open { .. } | State::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circuit() -> (Circuit, Instant) {
        let recovery = Recovery {
            max_restarts: 2,
            ..Recovery::default()
        };
        (Circuit::new(recovery), Instant::now())
    }

    #[test]
    fn it_opens_past_the_intensity_and_says_when_to_come_back() {
        let (mut c, now) = circuit();
        assert_eq!(c.failed(now), None);
        assert_eq!(c.failed(now), None);
        assert_eq!(c.failed(now), Some(Change::Opened));
        let later = now + Duration::from_secs(4);
        let refused = Permission::Refused {
            retry_in: Duration::from_secs(6),
        };
        assert_eq!(c.may_start(later, 1.0), (refused, None));
        assert_eq!(c.open_for(later), Some(Duration::from_secs(6)));
        assert_eq!(c.open_for(now + Duration::from_secs(10)), None);
    }

    #[test]
    fn failures_that_are_told_to_an_open_circuit_change_nothing() {
        let (mut c, now) = circuit();
        for _ in 0..3 {
            c.failed(now);
        }
        let later = now + Duration::from_secs(4);
        let refused = c.may_start(later, 1.0);
        assert_eq!(c.failed(later), None);
        assert_eq!(c.may_start(later, 1.0), refused);
        assert!(c.failures.is_empty());
    }

    #[test]
    fn failures_outside_the_period_do_not_count() {
        let (mut c, now) = circuit();
        for i in 0..10 {
            assert_eq!(c.failed(now + Duration::from_secs(31) * i), None);
        }
    }

    #[test]
    fn a_failure_counts_until_more_than_the_period_has_passed() {
        let (mut c, now) = circuit();
        let period = Recovery::default().period;
        assert_eq!(c.failed(now), None);
        assert_eq!(c.failed(now + period / 2), None);
        assert_eq!(c.failed(now + period), Some(Change::Opened));
    }

    #[test]
    fn a_circuit_that_was_closed_by_a_probe_has_forgotten_what_opened_it() {
        let (mut c, now) = circuit();
        for _ in 0..3 {
            c.failed(now);
        }
        let later = now + Duration::from_secs(10);
        c.may_start(later, 1.0);
        assert_eq!(c.open_for(later), None, "one probes");
        assert_eq!(c.proved(), Some(Change::Closed));
        assert_eq!(c.proved(), None, "it is closed already");
        assert_eq!(c.failed(later), None);
        assert_eq!(c.failed(later), None);
        assert_eq!(c.failed(later), Some(Change::Opened));
        assert_eq!(c.proved(), None, "what is late proves nothing");
        assert!(c.open_for(later).is_some());
    }

    #[test]
    fn after_the_cool_down_one_start_probes_and_decides() {
        let probe = Permission::Start {
            after: Duration::ZERO,
            probe: true,
        };
        let (mut c, now) = circuit();
        for _ in 0..3 {
            c.failed(now);
        }
        let later = now + Duration::from_secs(10);
        assert_eq!(c.may_start(later, 1.0), (probe, Some(Change::Probed)));
        assert_eq!(c.failed(later), Some(Change::Opened));
        assert!(matches!(
            c.may_start(later, 1.0).0,
            Permission::Refused { .. }
        ));
        let again = later + Duration::from_secs(10);
        assert_eq!(c.may_start(again, 1.0), (probe, Some(Change::Probed)));
        assert_eq!(c.proved(), Some(Change::Closed));
        let plain = Permission::Start {
            after: Duration::ZERO,
            probe: false,
        };
        assert_eq!(c.may_start(again, 1.0), (plain, None));
    }

    #[test]
    fn a_start_after_a_failure_waits_from_the_failure_on() {
        let (mut c, now) = circuit();
        c.failed(now);
        let wait = |c: &mut Circuit, at| match c.may_start(at, 1.0).0 {
            Permission::Start { after, .. } => after,
            Permission::Refused { .. } => panic!("the circuit is closed"),
        };
        assert_eq!(wait(&mut c, now), Duration::from_millis(100));
        assert_eq!(
            wait(&mut c, now + Duration::from_millis(60)),
            Duration::from_millis(40)
        );
        assert_eq!(wait(&mut c, now + Duration::from_secs(1)), Duration::ZERO);
        c.proved();
        assert_eq!(wait(&mut c, now), Duration::ZERO);
    }
}
