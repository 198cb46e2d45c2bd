//! What may follow what, in the life of a few operations, as one pure function over observable steps.
//!
//! [`Machine::allowed`] takes a state and a step and gives the next state, or why the step is
//! [refused](Refused). It knows the rules and no checker: `tests/model.rs` explores every order of the
//! steps with it, and a test of the real code can hold its own trace against it. Where the crate has a
//! pure function for a rule, that function decides here too: [`decide`] on repeats, and the journal's
//! [`next`] on records.
//!
//! A trace need not tell everything. Some steps nobody outside can watch, such as a recall that was won;
//! [`Machine::follow`] puts them in where they are the only way to what was seen.
//!
//! The state also counts what no part of the runtime knows: how often the server ran an operation, and
//! how often the client's policy allowed it to be sent. The promises are about these numbers, so a rule
//! that is broken by a [`Fault`] shows in them and not in the rule.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "each test that includes it takes what it needs"
)]

#[path = "machine/calls.rs"]
mod calls;
#[path = "machine/fault.rs"]
mod fault;
#[path = "machine/follow.rs"]
mod follow;
#[path = "machine/hosts.rs"]
mod hosts;
#[path = "machine/journal.rs"]
mod journal;
#[path = "machine/policy.rs"]
mod policy;
#[path = "machine/sessions.rs"]
mod sessions;
#[path = "machine/state.rs"]
mod state;
#[path = "machine/step.rs"]
mod step;
#[path = "machine/wire.rs"]
mod wire;

pub use fault::Fault;
pub use state::{
    Caller, Cell, Contract, Ending, HOSTS, Host, Job, Journal, Life, Look, Operation, Passage,
    Phase, Record, Reply, Sending, Setting, State, Work,
};
pub use step::{Fact, Refused, Session, Step};

use mcp_supervisor::{journal::table::next, policy::decide};

/// The rules, for one setting of the world.
#[derive(Clone, Debug)]
pub struct Machine<const N: usize> {
    /// The world that the operations live in.
    pub setting: Setting<N>,
    /// The rule that is broken, if one is.
    pub fault: Option<Fault>,
}

impl<const N: usize> Machine<N> {
    /// The rules as they are.
    #[must_use]
    pub fn new(setting: Setting<N>) -> Self {
        Self {
            setting,
            fault: None,
        }
    }

    /// The state after `step` in `state`.
    ///
    /// # Errors
    ///
    /// [`Refused`], where the rules do not let the step happen in that state.
    pub fn allowed(&self, state: &State<N>, step: &Step) -> Result<State<N>, Refused> {
        let mut next = *state;
        self.take(&mut next, step)?;
        next.tidy();
        Ok(next)
    }

    fn take(&self, state: &mut State<N>, step: &Step) -> Result<(), Refused> {
        match *step {
            Step::Called { op, host } => self.called(state, op, host),
            Step::Mailed { op, host } => self.mailed(state, op, host),
            Step::Refused { op, host } => self.refused(state, op, host),
            Step::Misplaced { op, host } => self.misplaced(state, op, host),
            Step::GivenUp { op, host } => self.given_up(state, op, host),
            Step::LostSight { op, host } => self.lost_sight(state, op, host),
            Step::Left { op } => self.left(state, op),
            Step::Told { op, ending } => self.told(state, op, ending),
            Step::ToldUnrecorded { op, ending } => self.told_unrecorded(state, op, ending),

            Step::Opening { host, asked } => self.opening(state, host, asked),
            Step::Opened { host } => self.opened(state, host),
            Step::OpenFailed { host } => self.open_failed(state, host),
            Step::Suspected { host } => self.suspected(state, host),
            Step::Ended { session } => self.ended(state, session),
            Step::Closed { host } => self.closed(state, host),
            Step::HandedOver { op, session } => self.handed_over(state, op, session),
            Step::TakenBack { op, host } => self.taken_back(state, op, host),

            Step::Begun { op, session } => self.begun(state, op, session),
            Step::RequestLost { op, session } => self.request_lost(state, op, session),
            Step::Arrived { op, session, reply } => self.arrived(state, op, session, reply),
            Step::AnswerLost { op, session } => self.answer_lost(state, op, session),
            Step::AnswerRead { op, session } => self.answer_read(state, op, session),
            Step::LateAnswer { op, session } => self.late_answer(state, op, session),

            Step::Repeated { op, host } => self.repeated(state, op, host),
            Step::LookUpAsked { op, host } => self.look_up_asked(state, op, host),
            Step::LookUpServed { op, host } => self.look_up_served(state, op, host),
            Step::LookUpHeard { op, host } => self.look_up_heard(state, op, host),
            Step::LookUpLost { op, host } => self.look_up_lost(state, op, host),
            Step::AbsenceFinal { op } => self.absence_final(state, op),

            Step::Recorded { op, host, fact } => self.recorded(state, op, host, fact),
            Step::RecordFailed { op, host } => self.record_failed(state, op, host),
            Step::TakenOver { op, host } => self.taken_over(state, op, host),
            Step::Claimed { op, host } => self.claimed(state, op, host),
            Step::Released { op, host } => self.released(state, op, host),

            Step::Crashed { host } => self.crashed(state, host),
            Step::LeaseOver { host } => self.lease_over(state, host),
            Step::Restarted { host } => self.restarted(state, host),
            Step::Lent { host } => self.lent(state, host),
        }
    }

    /// Whether this very rule is broken.
    fn broken(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }
}
