//! What a connection does next, as a pure function of its state, what happened, and the time.
//!
//! ```text
//! Idle ──operation, reconnect──▶ Starting ──started──▶ Live
//!  ▲                                │ failed             │ ended
//!  └────────────────────────────────┴────────────────────┘      close, from anywhere ▶ Closed
//! ```
//!
//! A lent connection is `Live` from the first and never starts anything.

use std::time::{Duration, Instant};

/// Whether a session may be started, and when. Held by whoever counts failures.
pub(crate) trait Gate: Send + Sync {
    /// Asks to start a session now.
    fn may_start(&self, now: Instant) -> Admission;
    /// For how long an open circuit still refuses, if it is open.
    fn open_for(&self, now: Instant) -> Option<Duration>;
    /// A start failed, or a session ended before it had answered anything.
    fn failed(&self, now: Instant);
    /// A session answered something.
    fn proved(&self, now: Instant);
}

/// What a [`Gate`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Start after this wait. `probe`: the server must answer something first.
    Start { after: Duration, probe: bool },
    /// The circuit is open.
    Open { retry_in: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No session. The next operation or a `reconnect` leads to `Starting`.
    Idle,
    /// A session is being started. Leads to `Live` or back to `Idle`.
    Starting,
    /// A session takes operations. Leads to `Idle` when it ends, to `Starting` when the next
    /// operation finds it suspect or a `reconnect` comes.
    Live,
    /// The owner closed it. Leads nowhere.
    Closed,
}

/// How the live session looks to an operation that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    /// It may be dead. `answered`: it had answered something before.
    Suspect {
        answered: bool,
    },
    Over,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Input {
    /// An operation arrived. `others`: some wait already; `room`: the session may take one more.
    Operation {
        health: Health,
        others: bool,
        room: bool,
    },
    /// The owner asked for a new session.
    Reconnect,
    /// The session that was being started is live.
    Started,
    /// It could not be started.
    StartFailed,
    /// The live session ended. `answered`: it had answered something; `waiting`: operations wait.
    Ended { answered: bool, waiting: bool },
    /// The owner closed the connection.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Rest,
    /// Hand the operation over.
    HandOver,
    /// Let it wait behind the others.
    Wait,
    /// Refuse it.
    Refuse(Refusal),
    /// Start a session; the operation waits. What is live is retired for this reason.
    Start {
        after: Duration,
        probe: bool,
        retire: Option<Retire>,
    },
    /// Hand over what waits.
    Flush,
    /// Refuse all that waits, for the reason that the input brought.
    FailWaiting,
}

/// Why a session is retired while it may still work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retire {
    Suspect,
    Requested,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Closed,
    LentClosed,
    CircuitOpen { retry_in: Duration },
}

pub(crate) struct State {
    pub(crate) phase: Phase,
    lent: bool,
    /// Whether the session being started must answer something first.
    probing: bool,
}

impl State {
    pub(crate) fn owned() -> Self {
        Self {
            phase: Phase::Idle,
            lent: false,
            probing: false,
        }
    }

    pub(crate) fn lent() -> Self {
        Self {
            phase: Phase::Live,
            lent: true,
            probing: false,
        }
    }

    /// The one function that moves the state.
    pub(crate) fn step(&mut self, input: Input, now: Instant, gate: &dyn Gate) -> Step {
        match (self.phase, input) {
            (Phase::Closed, Input::Operation { .. } | Input::Reconnect) => {
                Step::Refuse(Refusal::Closed)
            }
            (Phase::Closed, _) => Step::Rest,
            (_, Input::Close) => {
                self.phase = Phase::Closed;
                Step::FailWaiting
            }
            (Phase::Starting, Input::Operation { .. } | Input::Reconnect) => Step::Wait,
            (Phase::Starting, Input::Started) => {
                self.phase = Phase::Live;
                if self.probing {
                    gate.proved(now);
                }
                Step::Flush
            }
            (Phase::Starting, Input::StartFailed) => {
                self.phase = Phase::Idle;
                gate.failed(now);
                Step::FailWaiting
            }
            (
                Phase::Live,
                Input::Operation {
                    health: Health::Good,
                    others,
                    room,
                },
            ) => {
                if room && !others {
                    Step::HandOver
                } else {
                    Step::Wait
                }
            }
            (
                Phase::Live,
                Input::Operation {
                    health: Health::Over,
                    ..
                },
            ) if self.lent => Step::Refuse(Refusal::LentClosed),
            // Suspicion never condemns what the caller owns: its next call is tried.
            (Phase::Live, Input::Operation { room, .. }) if self.lent => {
                if room {
                    Step::HandOver
                } else {
                    Step::Wait
                }
            }
            (
                Phase::Live,
                Input::Operation {
                    health: Health::Suspect { answered },
                    ..
                },
            ) => {
                account(answered, now, gate);
                self.start(now, gate, Some(Retire::Suspect))
            }
            (Phase::Idle | Phase::Live, Input::Operation { .. }) => self.start(now, gate, None),
            (Phase::Live, Input::Reconnect) => self.start(now, gate, Some(Retire::Requested)),
            (Phase::Idle, Input::Reconnect) => self.start(now, gate, None),
            (Phase::Live, Input::Ended { answered, waiting }) if !self.lent => {
                self.phase = Phase::Idle;
                account(answered, now, gate);
                // What waits was provably not sent, so it may have the next session.
                if waiting {
                    self.start(now, gate, None)
                } else {
                    Step::Rest
                }
            }
            // Late news of a session that is no longer the current one.
            (_, Input::Started | Input::StartFailed | Input::Ended { .. }) => Step::Rest,
        }
    }

    fn start(&mut self, now: Instant, gate: &dyn Gate, retire: Option<Retire>) -> Step {
        match gate.may_start(now) {
            Admission::Start { after, probe } => {
                self.phase = Phase::Starting;
                self.probing = probe;
                Step::Start {
                    after,
                    probe,
                    retire,
                }
            }
            Admission::Open { retry_in } => Step::Refuse(Refusal::CircuitOpen { retry_in }),
        }
    }
}

/// A session is over, or given up: what it is to the restart intensity.
fn account(answered: bool, now: Instant, gate: &dyn Gate) {
    if answered {
        gate.proved(now);
    } else {
        gate.failed(now);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Default)]
    struct Counting {
        open: Cell<bool>,
        probes: Cell<bool>,
        failed: Cell<u32>,
        proved: Cell<u32>,
    }
    // The tests use it on one thread.
    struct TestGate(std::sync::Mutex<Counting>);
    impl TestGate {
        fn new() -> Self {
            Self(std::sync::Mutex::new(Counting::default()))
        }
        fn open(&self) {
            self.0.lock().unwrap().open.set(true);
        }
        fn probe(&self) {
            self.0.lock().unwrap().probes.set(true);
        }
        fn counts(&self) -> (u32, u32) {
            let c = self.0.lock().unwrap();
            (c.failed.get(), c.proved.get())
        }
    }
    impl Gate for TestGate {
        fn may_start(&self, _: Instant) -> Admission {
            if self.0.lock().unwrap().open.get() {
                Admission::Open {
                    retry_in: Duration::from_secs(1),
                }
            } else {
                Admission::Start {
                    after: Duration::ZERO,
                    probe: self.0.lock().unwrap().probes.get(),
                }
            }
        }
        fn open_for(&self, _: Instant) -> Option<Duration> {
            None
        }
        fn failed(&self, _: Instant) {
            let c = self.0.lock().unwrap();
            c.failed.set(c.failed.get() + 1);
        }
        fn proved(&self, _: Instant) {
            let c = self.0.lock().unwrap();
            c.proved.set(c.proved.get() + 1);
        }
    }

    const GOOD: Input = Input::Operation {
        health: Health::Good,
        others: false,
        room: true,
    };
    const START: Step = Step::Start {
        after: Duration::ZERO,
        probe: false,
        retire: None,
    };

    fn operation(health: Health) -> Input {
        Input::Operation {
            health,
            others: false,
            room: true,
        }
    }

    #[test]
    fn the_next_operation_starts_a_session_and_a_loss_does_not() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        assert_eq!(state.step(GOOD, now, &gate), START);
        assert_eq!(state.step(GOOD, now, &gate), Step::Wait);
        assert_eq!(state.step(Input::Started, now, &gate), Step::Flush);
        assert_eq!(state.step(GOOD, now, &gate), Step::HandOver);
        let ended = Input::Ended {
            answered: true,
            waiting: false,
        };
        assert_eq!(state.step(ended, now, &gate), Step::Rest);
        assert_eq!(state.phase, Phase::Idle);
        assert_eq!(state.step(GOOD, now, &gate), START);
        assert_eq!(gate.counts(), (0, 1));
    }

    #[test]
    fn an_operation_is_handed_over_where_there_is_room_and_nobody_waits_before_it() {
        let (gate, now) = (TestGate::new(), Instant::now());
        for mut state in [State::owned(), State::lent()] {
            if state.phase == Phase::Idle {
                state.step(GOOD, now, &gate);
                state.step(Input::Started, now, &gate);
            }
            for (others, room, step) in [
                (false, true, Step::HandOver),
                (false, false, Step::Wait),
                (true, true, Step::Wait),
                (true, false, Step::Wait),
            ] {
                let health = Health::Good;
                let input = Input::Operation {
                    health,
                    others,
                    room,
                };
                assert_eq!(state.step(input, now, &gate), step, "{others} {room}");
            }
        }
    }

    #[test]
    fn a_session_that_is_over_is_replaced_where_the_runtime_owns_it() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        state.step(GOOD, now, &gate);
        state.step(Input::Started, now, &gate);
        assert_eq!(state.step(operation(Health::Over), now, &gate), START);
    }

    #[test]
    fn a_failed_start_is_told_to_all_who_wait_and_is_not_looped() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        state.step(GOOD, now, &gate);
        assert_eq!(
            state.step(Input::StartFailed, now, &gate),
            Step::FailWaiting
        );
        assert_eq!(state.phase, Phase::Idle);
        assert_eq!(gate.counts(), (1, 0));
    }

    #[test]
    fn a_session_that_never_answered_counts_against_the_intensity() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        state.step(GOOD, now, &gate);
        state.step(Input::Started, now, &gate);
        state.step(
            Input::Ended {
                answered: false,
                waiting: false,
            },
            now,
            &gate,
        );
        assert_eq!(gate.counts(), (1, 0));
    }

    #[test]
    fn an_open_circuit_refuses_without_starting() {
        let (gate, now) = (TestGate::new(), Instant::now());
        gate.open();
        let mut state = State::owned();
        let refused = Step::Refuse(Refusal::CircuitOpen {
            retry_in: Duration::from_secs(1),
        });
        assert_eq!(state.step(GOOD, now, &gate), refused);
        assert_eq!(state.phase, Phase::Idle);
    }

    #[test]
    fn a_start_that_probed_closes_the_circuit_once_it_is_live_and_another_start_proves_nothing() {
        let now = Instant::now();
        for (probe, counts) in [(false, (0, 0)), (true, (0, 1))] {
            let gate = TestGate::new();
            if probe {
                gate.probe();
            }
            let mut state = State::owned();
            let after = Duration::ZERO;
            let retire = None;
            let start = Step::Start {
                after,
                probe,
                retire,
            };
            assert_eq!(state.step(GOOD, now, &gate), start);
            assert_eq!(gate.counts(), (0, 0));
            assert_eq!(state.step(Input::Started, now, &gate), Step::Flush);
            assert_eq!(gate.counts(), counts);
        }
    }

    #[test]
    fn a_reconnect_retires_what_is_live_and_waits_for_what_is_being_started() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        assert_eq!(state.step(Input::Reconnect, now, &gate), START);
        assert_eq!(state.step(Input::Reconnect, now, &gate), Step::Wait);
        state.step(Input::Started, now, &gate);
        let requested = Step::Start {
            after: Duration::ZERO,
            probe: false,
            retire: Some(Retire::Requested),
        };
        assert_eq!(state.step(Input::Reconnect, now, &gate), requested);
    }

    #[test]
    fn late_news_of_an_earlier_session_moves_nothing() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let ended = Input::Ended {
            answered: false,
            waiting: true,
        };
        let mut state = State::owned();
        for input in [Input::Started, Input::StartFailed, ended] {
            assert_eq!(state.step(input, now, &gate), Step::Rest);
            assert_eq!(state.phase, Phase::Idle);
        }
        state.step(GOOD, now, &gate);
        assert_eq!(state.step(ended, now, &gate), Step::Rest);
        assert_eq!(state.phase, Phase::Starting);
        state.step(Input::Started, now, &gate);
        for input in [Input::Started, Input::StartFailed] {
            assert_eq!(state.step(input, now, &gate), Step::Rest);
            assert_eq!(state.phase, Phase::Live);
        }
        assert_eq!(gate.counts(), (0, 0));
    }

    #[test]
    fn a_suspect_session_is_retired_by_the_next_operation() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        state.step(GOOD, now, &gate);
        state.step(Input::Started, now, &gate);
        let step = state.step(operation(Health::Suspect { answered: true }), now, &gate);
        assert!(matches!(
            step,
            Step::Start {
                retire: Some(Retire::Suspect),
                ..
            }
        ));
    }

    #[test]
    fn a_session_that_is_given_up_before_it_answered_counts_against_the_intensity() {
        let (gate, now) = (TestGate::new(), Instant::now());
        for (answered, counts) in [(false, (1, 0)), (true, (1, 1))] {
            let mut state = State::owned();
            state.step(GOOD, now, &gate);
            state.step(Input::Started, now, &gate);
            state.step(operation(Health::Suspect { answered }), now, &gate);
            assert_eq!(gate.counts(), counts);
        }
    }

    #[test]
    fn what_was_not_sent_starts_the_next_session() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        state.step(GOOD, now, &gate);
        state.step(Input::Started, now, &gate);
        let ended = Input::Ended {
            answered: true,
            waiting: true,
        };
        assert_eq!(state.step(ended, now, &gate), START);
    }

    #[test]
    fn a_lent_connection_never_starts_anything() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let inputs = [
            GOOD,
            operation(Health::Suspect { answered: true }),
            operation(Health::Over),
            Input::Ended {
                answered: false,
                waiting: true,
            },
            Input::Started,
            Input::StartFailed,
            Input::Close,
            GOOD,
        ];
        for first in inputs {
            for second in inputs {
                let mut state = State::lent();
                for input in [first, second] {
                    let step = state.step(input, now, &gate);
                    assert!(!matches!(step, Step::Start { .. }), "{first:?} {second:?}");
                }
            }
        }
        assert_eq!(gate.counts(), (0, 0));
        let mut state = State::lent();
        assert_eq!(
            state.step(operation(Health::Suspect { answered: true }), now, &gate),
            Step::HandOver
        );
        let over = state.step(operation(Health::Over), now, &gate);
        assert_eq!(over, Step::Refuse(Refusal::LentClosed));
    }

    #[test]
    fn nothing_leaves_closed() {
        let (gate, now) = (TestGate::new(), Instant::now());
        let mut state = State::owned();
        assert_eq!(state.step(Input::Close, now, &gate), Step::FailWaiting);
        assert_eq!(state.step(GOOD, now, &gate), Step::Refuse(Refusal::Closed));
        assert_eq!(
            state.step(Input::Reconnect, now, &gate),
            Step::Refuse(Refusal::Closed)
        );
        assert_eq!(state.step(Input::Started, now, &gate), Step::Rest);
        assert_eq!(state.phase, Phase::Closed);
    }
}
