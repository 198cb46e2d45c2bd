//! The one message of an operation's attempt, shared by its caller and its connection.
//!
//! The caller puts it into the mailbox and waits on it. The connection hands it over, refuses it,
//! or takes it back from a session that ended before it was written and hands it over again. Each
//! hand-over has a dispatch cell of its own, so a session that is gone can never write it late.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use rmcp::model::{ClientNotification, ClientRequest};
use tokio::time::Instant;

use crate::{
    error::NotSentReason,
    event::Ground,
    evidence::{
        DispatchCell,
        sync::{Mutex, MutexGuard},
    },
    operation::{AttemptId, Generation, OperationId, OperationKind},
    session::{Along, NotTaken, Pending, Session, Told},
    telemetry::Seen,
};

pub(crate) struct Ticket {
    pub(crate) attempt: Attempt,
    load: Load,
    waits: Waits,
    along: Along,
    slot: Mutex<Slot>,
}

/// What a ticket has to hand over.
enum Load {
    Request(Arc<ClientRequest>),
    Notification(Box<ClientNotification>),
}

/// Which attempt of which operation a ticket is.
pub(crate) struct Attempt {
    pub(crate) operation: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) id: AttemptId,
    pub(crate) number: u32,
    /// The one session that it may run on, where its contract has looked at that session.
    pub(crate) only_in: Option<Generation>,
    /// On what ground it is sent again, if an attempt before it may have been sent.
    pub(crate) repeats: Option<Ground>,
    /// Since when it waits.
    pub(crate) since: Instant,
}

impl Attempt {
    /// The first one, on whatever session.
    pub(crate) fn first(operation: OperationId, kind: OperationKind, id: AttemptId) -> Self {
        Self {
            operation,
            kind,
            id,
            number: 1,
            only_in: None,
            repeats: None,
            since: Instant::now(),
        }
    }
}

/// The limits of a ticket that are counted from its hand-over.
#[derive(Clone, Copy)]
struct Waits {
    attempt: Option<Duration>,
    idle: Option<Duration>,
}

impl Waits {
    /// Whether the caller has anything to begin at the hand-over.
    fn has_any(self) -> bool {
        self.attempt.is_some() || self.idle.is_some()
    }
}

struct Slot {
    cell: Arc<DispatchCell>,
    /// It was handed over before, and taken back unsent.
    moved: bool,
    phase: Phase,
    caller: Option<Waker>,
}

impl Slot {
    /// Waits for the next change of the phase.
    fn wait(&mut self, context: &Context<'_>) {
        match &mut self.caller {
            Some(caller) => caller.clone_from(context.waker()),
            None => self.caller = Some(context.waker().clone()),
        }
    }

    fn take_progress(&mut self) -> Option<Progress> {
        match std::mem::replace(&mut self.phase, Phase::Taken) {
            Phase::Handed(pending) => Some(Progress::Handed(pending)),
            Phase::Told(told) => Some(Progress::Told(told)),
            Phase::Refused(reason) => Some(Progress::Refused(reason)),
            Phase::Misplaced => Some(Progress::Misplaced),
            Phase::Lost => Some(Progress::Lost),
            other @ (Phase::Waiting | Phase::Taken | Phase::GivenUp) => {
                self.phase = other;
                None
            }
        }
    }
}

/// Wakes the caller, with the slot open for it.
fn wake(mut slot: MutexGuard<'_, Slot>) {
    let caller = slot.caller.take();
    drop(slot);
    if let Some(caller) = caller {
        caller.wake();
    }
}

enum Phase {
    /// In the mailbox or the queue.
    Waiting,
    /// Handed over; the pending answer is not picked up yet.
    Handed(Pending),
    /// The caller has the pending answer.
    Taken,
    /// Not sent, with the reason.
    Refused(NotSentReason),
    /// Not sent, because the one session that it may go to is not the one in force.
    Misplaced,
    /// A notification, handed over.
    Told(Told),
    /// Its session ended after writing had begun.
    Lost,
    /// The caller gave it up before it was handed over.
    GivenUp,
}

/// What the connection has done with a ticket.
pub(crate) enum Progress {
    Handed(Pending),
    Told(Told),
    Refused(NotSentReason),
    Misplaced,
    Lost,
}

/// What became of a ticket that was to be handed over.
pub(crate) enum Handing {
    /// It was handed over.
    Done,
    /// Its caller gave it up, or it was refused.
    Dropped,
    /// The session is over; the ticket still waits.
    SessionOver,
}

impl Ticket {
    pub(crate) fn new(
        attempt: Attempt,
        request: Arc<ClientRequest>,
        attempt_limit: Option<Duration>,
        along: Along,
    ) -> Self {
        let waits = Waits {
            attempt: attempt_limit,
            idle: along.idle,
        };
        Self::with(attempt, Load::Request(request), waits, along)
    }

    pub(crate) fn of_notification(attempt: Attempt, notification: ClientNotification) -> Self {
        let waits = Waits {
            attempt: None,
            idle: None,
        };
        let load = Load::Notification(Box::new(notification));
        Self::with(attempt, load, waits, Along::default())
    }

    fn with(attempt: Attempt, load: Load, waits: Waits, along: Along) -> Self {
        let slot = Slot {
            cell: Arc::new(DispatchCell::new()),
            moved: false,
            phase: Phase::Waiting,
            caller: None,
        };
        Self {
            attempt,
            load,
            waits,
            along,
            slot: Mutex::new(slot),
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The connection's side.

    /// `told` is called when it was handed over, before its caller can learn that.
    pub(crate) fn hand_over(
        &self,
        session: &Session,
        now: Instant,
        told: impl FnOnce(&Attempt, bool),
    ) -> Handing {
        let mut slot = self.slot();
        if !matches!(slot.phase, Phase::Waiting) {
            return Handing::Dropped;
        }
        let only_in = self.attempt.only_in;
        if only_in.is_some_and(|only| only != session.pulse.generation) {
            slot.phase = Phase::Misplaced;
            wake(slot);
            return Handing::Dropped;
        }
        let request = match &self.load {
            Load::Request(request) => request,
            Load::Notification(notification) => {
                return match session.tell(ClientNotification::clone(notification)) {
                    Ok(taken) => {
                        told(&self.attempt, slot.moved);
                        slot.phase = Phase::Told(taken);
                        wake(slot);
                        Handing::Dropped
                    }
                    Err(_) => Handing::SessionOver,
                };
            }
        };
        let handing = match session.hand_over(request, &slot.cell, &self.along, now) {
            Ok(mut pending) => {
                told(&self.attempt, slot.moved);
                // A caller that has nothing to do until the answer comes sleeps on until then:
                // being woken twice is a good part of what a call costs.
                let caller = slot.caller.as_ref().filter(|_| !self.waits.has_any());
                let sleeps_on = caller.is_some_and(|caller| pending.will_wake(caller));
                slot.phase = Phase::Handed(pending);
                if sleeps_on {
                    return Handing::Done;
                }
                Handing::Done
            }
            Err(NotTaken::Ended) => return Handing::SessionOver,
            Err(NotTaken::Recalled) => return Handing::Dropped,
            Err(NotTaken::NotInRevision(method)) => {
                slot.phase = Phase::Refused(NotSentReason::NotInRevision {
                    method,
                    revision: session.revision.as_str().to_owned(),
                });
                Handing::Dropped
            }
            Err(NotTaken::NotDeclared(what)) => {
                slot.phase = Phase::Refused(NotSentReason::NotDeclared { what });
                Handing::Dropped
            }
            Err(NotTaken::Full) => {
                slot.phase = Phase::Refused(NotSentReason::Overloaded {
                    in_flight: 0,
                    queued: 0,
                });
                Handing::Dropped
            }
        };
        wake(slot);
        handing
    }

    pub(crate) fn is_notification(&self) -> bool {
        matches!(self.load, Load::Notification(_))
    }

    pub(crate) fn refuse(&self, reason: NotSentReason) {
        let mut slot = self.slot();
        if matches!(slot.phase, Phase::Waiting) {
            slot.phase = Phase::Refused(reason);
            wake(slot);
        }
    }

    /// The one session that it may go to is not the one in force.
    pub(crate) fn misplace(&self) {
        let mut slot = self.slot();
        if matches!(slot.phase, Phase::Waiting) {
            slot.phase = Phase::Misplaced;
            wake(slot);
        }
    }

    /// Whether it can never be taken back: writing began, or nobody waits for it.
    ///
    /// One that was recalled because its session ended is not: its caller waits for the next.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        let slot = self.slot();
        match slot.phase {
            Phase::Handed(_) | Phase::Taken => slot.cell.was_begun(),
            Phase::Waiting => false,
            Phase::Refused(_)
            | Phase::Misplaced
            | Phase::Told(_)
            | Phase::Lost
            | Phase::GivenUp => true,
        }
    }

    /// Takes it back from a session that takes nothing any more. `true`: it was not sent, and
    /// waits again.
    pub(crate) fn take_back(&self, session_is_over: bool) -> bool {
        let mut slot = self.slot();
        if !matches!(slot.phase, Phase::Handed(_) | Phase::Taken) {
            return false;
        }
        let won = slot.cell.recall();
        if won {
            slot.cell = Arc::new(DispatchCell::new());
            slot.moved = true;
            slot.phase = Phase::Waiting;
        } else if session_is_over && matches!(slot.phase, Phase::Taken) {
            slot.phase = Phase::Lost;
        }
        wake(slot);
        won
    }

    // The caller's side.

    /// Waits until the connection has done something with it. Can be dropped and called again.
    ///
    /// A caller that only waits for an answer learns of the hand-over with the answer, or when it
    /// asks again.
    pub(crate) fn progress(&self) -> impl Future<Output = Progress> + '_ {
        poll_fn(|context| {
            let mut slot = self.slot();
            match slot.take_progress() {
                Some(progress) => Poll::Ready(progress),
                None => {
                    slot.wait(context);
                    Poll::Pending
                }
            }
        })
    }

    /// Waits until it was taken back from the session whose pending answer the caller has.
    pub(crate) fn moved(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|context| {
            let mut slot = self.slot();
            if !matches!(slot.phase, Phase::Taken) {
                return Poll::Ready(());
            }
            slot.wait(context);
            Poll::Pending
        })
    }

    /// Gives it up. `true` is proof that it was not and will not be sent.
    pub(crate) fn give_up(&self) -> bool {
        let mut slot = self.slot();
        match slot.phase {
            Phase::Waiting | Phase::Refused(_) | Phase::Misplaced | Phase::GivenUp => {
                slot.phase = Phase::GivenUp;
                true
            }
            Phase::Told(_) => false,
            Phase::Handed(_) | Phase::Taken | Phase::Lost => {
                let won = slot.cell.recall();
                if won {
                    // Also from a session that ends: the connection must not hand it over again.
                    slot.phase = Phase::GivenUp;
                }
                won
            }
        }
    }
}

/// Dropped by a caller that no longer waits, it keeps the request from being sent if it still can,
/// and notes whether it could.
pub(crate) struct GiveUpOnDrop<'a> {
    pub(crate) ticket: &'a Ticket,
    pub(crate) seen: &'a mut Seen,
}

impl Drop for GiveUpOnDrop<'_> {
    fn drop(&mut self) {
        // A pending answer that nobody picked up is dropped with the phase: that recalls the
        // request, or tells the server that nobody waits for it.
        let left = std::mem::replace(&mut self.ticket.slot().phase, Phase::GivenUp);
        if matches!(left, Phase::Taken | Phase::Lost) {
            // The caller's own pending answer does the same.
            let _ = self.ticket.slot().cell.recall();
        }
        if let Phase::Handed(pending) = &left {
            pending.seen(self.seen);
        }
        if let Phase::Told(told) = &left {
            self.seen.generation = Some(told.pulse.generation);
            self.seen.perhaps_sent = true;
        }
        drop(left);
        self.seen.perhaps_sent |= self.ticket.slot().cell.was_begun();
    }
}
