//! Following a trace that does not tell everything.

use super::{
    Cell, Machine, State,
    step::{Refused, Session, Step},
};

/// How many steps that nobody watches can lie before one that is seen. The longest known way: the attempt
/// is given up as unknown, repeated, put into the mailbox.
const UNSEEN: usize = 4;

impl<const N: usize> Machine<N> {
    /// The state after a step that was seen, with the steps before it that nobody watches: a recall, an
    /// answer that is read, a wait that ends, the decision to repeat, an attempt that is put into the
    /// mailbox, a suspicion. The shortest way is taken.
    ///
    /// # Errors
    ///
    /// [`Refused`], why the step itself is not allowed, where no such steps lead to it.
    pub fn follow(&self, state: &State<N>, step: &Step) -> Result<State<N>, Refused> {
        let refused = match self.allowed(state, step) {
            Ok(next) => return Ok(next),
            Err(refused) => refused,
        };
        let state = match *step {
            Step::HandedOver { session, .. } => self.all_taken_back(state, session),
            Step::Opening { host, .. } => {
                let suspected = self.allowed(state, &Step::Suspected { host });
                suspected.unwrap_or(*state)
            }
            _ => *state,
        };
        (0..=UNSEEN)
            .find_map(|most| self.within(&state, step, most))
            .ok_or(refused)
    }

    fn within(&self, state: &State<N>, step: &Step, most: usize) -> Option<State<N>> {
        if most == 0 {
            return self.allowed(state, step).ok();
        }
        let (op, host) = step.about(state)?;
        let unseen = unseen(state, op, host);
        unseen.into_iter().find_map(|before| {
            let state = self.allowed(state, &before).ok()?;
            self.within(&state, step, most - 1)
        })
    }

    /// What earlier sessions had not written waits again.
    fn all_taken_back(&self, state: &State<N>, session: Session) -> State<N> {
        let host = session.host;
        let mut left: Vec<(u16, u8)> = (0..N)
            .filter_map(|op| {
                let sending = state.ops[op].in_hand(host)?;
                let is_left = sending.cell == Cell::Queued && sending.session != session;
                is_left.then_some((sending.place, u8::try_from(op).unwrap_or(u8::MAX)))
            })
            .collect();
        left.sort_unstable();
        left.iter().rev().fold(*state, |state, (_, op)| {
            let taken = self.allowed(&state, &Step::TakenBack { op: *op, host });
            taken.unwrap_or(state)
        })
    }
}

impl Step {
    /// The operation that it is about, and the host in which it is.
    fn about<const N: usize>(&self, state: &State<N>) -> Option<(u8, u8)> {
        match *self {
            Self::Called { op, host }
            | Self::Mailed { op, host }
            | Self::Refused { op, host }
            | Self::Misplaced { op, host }
            | Self::GivenUp { op, host }
            | Self::LostSight { op, host }
            | Self::TakenBack { op, host }
            | Self::Repeated { op, host }
            | Self::LookUpAsked { op, host }
            | Self::LookUpServed { op, host }
            | Self::LookUpHeard { op, host }
            | Self::LookUpLost { op, host }
            | Self::Recorded { op, host, .. }
            | Self::RecordFailed { op, host }
            | Self::TakenOver { op, host }
            | Self::Claimed { op, host }
            | Self::Released { op, host } => Some((op, host)),
            Self::HandedOver { op, session }
            | Self::Begun { op, session }
            | Self::RequestLost { op, session }
            | Self::Arrived { op, session, .. }
            | Self::AnswerLost { op, session }
            | Self::AnswerRead { op, session }
            | Self::LateAnswer { op, session } => Some((op, session.host)),
            Self::Left { op }
            | Self::Told { op, .. }
            | Self::ToldUnrecorded { op, .. }
            | Self::AbsenceFinal { op } => Some((op, state.ops[usize::from(op)].home)),
            Self::Opening { .. }
            | Self::Opened { .. }
            | Self::OpenFailed { .. }
            | Self::Suspected { .. }
            | Self::Ended { .. }
            | Self::Closed { .. }
            | Self::Crashed { .. }
            | Self::LeaseOver { .. }
            | Self::Restarted { .. }
            | Self::Lent { .. } => None,
        }
    }
}

/// What can happen to an operation in a host without anybody seeing it.
fn unseen<const N: usize>(state: &State<N>, op: u8, host: u8) -> Vec<Step> {
    let mut steps = Vec::new();
    for sending in &state.ops[usize::from(op)].sendings {
        let session = sending.session;
        if sending.cell != Cell::Free && session.host == host {
            steps.push(Step::AnswerRead { op, session });
        }
    }
    steps.extend([
        Step::Mailed { op, host },
        Step::TakenBack { op, host },
        Step::GivenUp { op, host },
        Step::Refused { op, host },
        Step::Misplaced { op, host },
        Step::LostSight { op, host },
        Step::Repeated { op, host },
        Step::LookUpServed { op, host },
        Step::LookUpHeard { op, host },
        Step::LookUpLost { op, host },
        Step::RecordFailed { op, host },
    ]);
    for sending in &state.ops[usize::from(op)].sendings {
        let session = sending.session;
        if sending.cell == Cell::Queued && session.host == host {
            // The first byte is taken by nobody where the session ends under it.
            steps.push(Step::Begun { op, session });
        }
    }
    steps
}
