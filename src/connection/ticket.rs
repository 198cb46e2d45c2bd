//! The one message of an operation's attempt, shared by its caller and its connection.
//!
//! The caller puts it into the mailbox and waits on it. The connection hands it over, refuses it,
//! or takes it back from a session that ended before it was written and hands it over again. Each
//! hand-over has a dispatch cell of its own, so a session that is gone can never write it late.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rmcp::model::ClientRequest;
use tokio::sync::Notify;

use crate::{
    error::NotSentReason,
    evidence::DispatchCell,
    operation::{Generation, OperationKind},
    session::{NotTaken, Pending, Session},
};

pub(crate) struct Ticket {
    request: ClientRequest,
    idle: Option<Duration>,
    only_in: Option<Generation>,
    slot: Mutex<Slot>,
    wake: Notify,
}

struct Slot {
    cell: Arc<DispatchCell>,
    phase: Phase,
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
    /// Its session ended after writing had begun.
    Lost,
    /// The caller gave it up before it was handed over.
    GivenUp,
}

/// What the connection has done with a ticket.
pub(crate) enum Progress {
    Handed(Pending),
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
    pub(crate) fn new(request: ClientRequest, idle: Option<Duration>) -> Self {
        let slot = Slot {
            cell: Arc::new(DispatchCell::new()),
            phase: Phase::Waiting,
        };
        Self {
            request,
            idle,
            only_in: None,
            slot: Mutex::new(slot),
            wake: Notify::new(),
        }
    }

    /// It may be handed over to this session alone, if to one.
    pub(crate) fn only_in(mut self, generation: Option<Generation>) -> Self {
        self.only_in = generation;
        self
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The connection's side.

    pub(crate) fn hand_over(&self, session: &Session) -> Handing {
        let mut slot = self.slot();
        if !matches!(slot.phase, Phase::Waiting) {
            return Handing::Dropped;
        }
        if self
            .only_in
            .is_some_and(|only| only != session.pulse.generation)
        {
            slot.phase = Phase::Misplaced;
            drop(slot);
            self.wake.notify_one();
            return Handing::Dropped;
        }
        // The request is kept, because it may be taken back and handed over again.
        let handing = match session.hand_over(self.request.clone(), &slot.cell, self.idle) {
            Ok(pending) => {
                slot.phase = Phase::Handed(pending);
                Handing::Done
            }
            Err(NotTaken::Ended) => return Handing::SessionOver,
            Err(NotTaken::Recalled) => return Handing::Dropped,
            Err(NotTaken::NoPing) => {
                slot.phase = Phase::Refused(NotSentReason::NotInRevision {
                    method: OperationKind::Ping.method(),
                    revision: session.revision.as_str().to_owned(),
                });
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
        drop(slot);
        self.wake.notify_one();
        handing
    }

    pub(crate) fn refuse(&self, reason: NotSentReason) {
        let mut slot = self.slot();
        if matches!(slot.phase, Phase::Waiting) {
            slot.phase = Phase::Refused(reason);
            drop(slot);
            self.wake.notify_one();
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
            Phase::Refused(_) | Phase::Misplaced | Phase::Lost | Phase::GivenUp => true,
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
            slot.phase = Phase::Waiting;
        } else if session_is_over && matches!(slot.phase, Phase::Taken) {
            slot.phase = Phase::Lost;
        }
        drop(slot);
        self.wake.notify_one();
        won
    }

    // The caller's side.

    /// Waits until the connection has done something with it. Can be dropped and called again.
    pub(crate) async fn progress(&self) -> Progress {
        loop {
            let woken = self.wake.notified();
            if let Some(progress) = self.take_progress() {
                return progress;
            }
            woken.await;
        }
    }

    fn take_progress(&self) -> Option<Progress> {
        let mut slot = self.slot();
        match std::mem::replace(&mut slot.phase, Phase::Taken) {
            Phase::Handed(pending) => Some(Progress::Handed(pending)),
            Phase::Refused(reason) => Some(Progress::Refused(reason)),
            Phase::Misplaced => Some(Progress::Misplaced),
            Phase::Lost => Some(Progress::Lost),
            other @ (Phase::Waiting | Phase::Taken | Phase::GivenUp) => {
                slot.phase = other;
                None
            }
        }
    }

    /// Waits until it was taken back from the session whose pending answer the caller has.
    pub(crate) async fn moved(&self) {
        loop {
            let woken = self.wake.notified();
            if !matches!(self.slot().phase, Phase::Taken) {
                return;
            }
            woken.await;
        }
    }

    /// Gives it up. `true` is proof that it was not and will not be sent.
    pub(crate) fn give_up(&self) -> bool {
        let mut slot = self.slot();
        match slot.phase {
            Phase::Waiting | Phase::Refused(_) | Phase::Misplaced | Phase::GivenUp => {
                slot.phase = Phase::GivenUp;
                true
            }
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

/// Dropped by a caller that no longer waits, it keeps the request from being sent if it still can.
pub(crate) struct GiveUpOnDrop<'a>(pub(crate) &'a Ticket);

impl Drop for GiveUpOnDrop<'_> {
    fn drop(&mut self) {
        // A pending answer that nobody picked up is dropped with the phase: that recalls the
        // request, or tells the server that nobody waits for it.
        let left = std::mem::replace(&mut self.0.slot().phase, Phase::GivenUp);
        if matches!(left, Phase::Taken | Phase::Lost) {
            // The caller's own pending answer does the same.
            let _ = self.0.slot().cell.recall();
        }
    }
}
