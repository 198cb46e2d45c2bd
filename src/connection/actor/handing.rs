//! The tickets of a connection: what waits, what is handed over, and what is taken back.

use std::sync::Arc;

use tokio::time::Instant;

use super::{StartPlan, Working};
use crate::{
    connection::{
        step::{Health, Phase, Refusal},
        ticket::{Attempt, Handing, Ticket},
    },
    error::NotSentReason,
    event::What,
    operation::Generation,
};

impl Working {
    /// Hands over what waits, as far as there is room.
    pub(super) fn flush(&mut self) -> Option<StartPlan> {
        while self.state.phase == Phase::Live && !self.waiting.is_empty() {
            let Some(pulse) = self.current.as_ref().map(|c| Arc::clone(&c.pulse)) else {
                break;
            };
            if self.health() == Health::Over && !self.line.ownership.is_lent() {
                return self.lose();
            }
            if !self.has_room() {
                pulse.want_room();
                // One may have left between the look and the asking.
                if !self.has_room() {
                    break;
                }
            }
            if let Some(ticket) = self.waiting.pop_front() {
                let taken = self.hand_over(ticket, Instant::now());
                if !taken && self.health() != Health::Over {
                    // Its writer failed, and what it has still to read is read. Its end is on its way,
                    // and what waits goes with that.
                    break;
                }
            }
        }
        None
    }

    /// `false`: the session takes nothing any more, and the ticket waits in front of all others.
    pub(super) fn hand_over(&mut self, ticket: Arc<Ticket>, now: Instant) -> bool {
        let Some(session) = self.current.as_ref().and_then(|c| c.session.clone()) else {
            self.waiting.push_back(ticket);
            return false;
        };
        let generation = session.pulse.generation;
        let told = |attempt: &Attempt, moved: bool| {
            self.line.tell(What::AttemptStarted {
                operation: attempt.operation,
                kind: attempt.kind,
                attempt: attempt.id,
                generation,
                number: attempt.number,
                repeats: attempt.repeats,
                moved,
                waited: now.saturating_duration_since(attempt.since),
            });
        };
        match ticket.hand_over(&session, now, told) {
            Handing::Done if self.line.ownership.is_lent() => {}
            Handing::Done => {
                while self
                    .outstanding
                    .front()
                    .is_some_and(|t| t.is_out_of_reach())
                {
                    self.outstanding.pop_front();
                }
                // Of one that is written already nothing is kept: it may be large, and the next may be
                // long in coming.
                if !ticket.is_out_of_reach() {
                    self.outstanding.push_back(ticket);
                }
            }
            Handing::Dropped => {}
            Handing::SessionOver if self.line.ownership.is_lent() => {
                let reason = self.reason(Refusal::LentClosed);
                ticket.refuse(reason);
            }
            // It goes first on the next session.
            Handing::SessionOver => {
                self.waiting.push_front(ticket);
                return false;
            }
        }
        true
    }

    /// Whether this very session takes operations.
    pub(super) fn takes(&self, generation: Generation) -> bool {
        let current = self.current.as_ref();
        let is_current = current.is_some_and(|c| c.pulse.generation == generation);
        match self.health() {
            Health::Good => is_current,
            Health::Suspect { .. } => is_current && self.line.ownership.is_lent(),
            Health::Over => false,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.current
            .as_ref()
            .is_none_or(|c| c.pulse.in_flight() < self.line.settings.limits.max_in_flight)
    }

    /// Puts what a session has not sent before everything that waits, in its order.
    ///
    /// The last one is taken back first, because the writer goes the other way: where the two meet,
    /// all that was sent is older than all that was not.
    pub(super) fn take_back(&mut self, session_is_over: bool) {
        for ticket in std::mem::take(&mut self.outstanding).into_iter().rev() {
            if ticket.take_back(session_is_over) {
                self.waiting.push_front(ticket);
            }
        }
    }

    pub(super) fn fail_waiting(&mut self, reason: &NotSentReason) {
        for ticket in self.waiting.drain(..) {
            ticket.refuse(reason.clone());
        }
    }
}
