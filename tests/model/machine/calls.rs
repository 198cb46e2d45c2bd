//! The caller's side: from asking to being told.

use super::{
    Caller, Cell, Contract, Ending, Fault, Look, Machine, State, Work,
    step::{Refused, rule},
};

impl<const N: usize> Machine<N> {
    pub(super) fn called(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        rule(
            state.op(op).caller == Caller::NotYet,
            "it was asked for already",
        )?;
        let operation = state.op(op);
        operation.caller = Caller::Waits;
        operation.home = host;
        operation.authorised = 1;
        state.job(op, host).attempts = 1;
        match self.setting.records(op) {
            false => state.queue(op, host),
            true => state.job(op, host).work = Work::Intended,
        }
        Ok(())
    }

    pub(super) fn mailed(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let work = state.job(op, host).work;
        let early = self.broken(Fault::RecordAfterHandOver) && work == Work::Due;
        rule(
            work == Work::Ready || early,
            "an attempt is durable before it is put into the mailbox",
        )?;
        state.queue(op, host);
        Ok(())
    }

    pub(super) fn refused(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let waits = state.job(op, host).work == Work::Waiting;
        rule(waits, "only what waits can be refused")?;
        self.not_sent(state, op, host);
        Ok(())
    }

    pub(super) fn given_up(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let operation = state.op(op);
        let in_hand = operation.in_hand(host).copied();
        let in_hand = in_hand.ok_or(Refused("it is not handed over"))?;
        let at = operation.last_of(host).unwrap_or_default();
        match in_hand.cell {
            Cell::Queued if self.broken(Fault::CellReadForRecall) => {}
            Cell::Queued => operation.sendings[at].cell = Cell::Free,
            _ if self.broken(Fault::RecallAfterBegun) => {}
            _ => return Err(Refused("writing had begun, so the recall is lost")),
        }
        self.not_sent(state, op, host);
        Ok(())
    }

    pub(super) fn lost_sight(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let in_hand = state.op(op).in_hand(host).copied();
        let in_hand = in_hand.ok_or(Refused("it is not handed over"))?;
        rule(
            in_hand.cell == Cell::Writing,
            "what was not begun is recalled, and known not to have been sent",
        )?;
        let lives = state.lives(in_hand.session);
        let forgotten = self.broken(Fault::DeadlineForgotten) && lives;
        rule(!forgotten, "no deadline ends the wait")?;
        let job = state.job(op, host);
        job.work = Work::Known(Ending::Unknown);
        job.session_lost = !lives;
        Ok(())
    }

    pub(super) fn left(&self, state: &mut State<N>, op: u8) -> Result<(), Refused> {
        let operation = state.op(op);
        let home = operation.home;
        rule(operation.caller == Caller::Waits, "nobody waits for it")?;
        operation.caller = Caller::Left;
        let work = operation.jobs[usize::from(home)].work;
        if self.setting.records(op) {
            // The call goes on, and records what comes.
            if matches!(work, Work::Settled(_)) {
                *state.job(op, home) = Default::default();
            }
            return Ok(());
        }
        if let Some(at) = operation.last_of(home)
            && work == Work::Handed
            && operation.sendings[at].cell == Cell::Queued
        {
            operation.sendings[at].cell = Cell::Free;
        }
        *state.job(op, home) = Default::default();
        Ok(())
    }

    pub(super) fn told(&self, state: &mut State<N>, op: u8, ending: Ending) -> Result<(), Refused> {
        let operation = state.op(op);
        let home = operation.home;
        rule(operation.caller == Caller::Waits, "nobody waits for it")?;
        let known = match self.setting.records(op) {
            false => Work::Known(ending),
            // It is durable before its caller hears of it.
            true => Work::Settled(ending),
        };
        let job = operation.jobs[usize::from(home)];
        let unsent = matches!(job.work, Work::Intended | Work::Due | Work::Ready);
        // With an attempt in its record, whoever takes it over may send it.
        let resent = self.setting.resends(op) && job.work == Work::Ready;
        let may = !resent || self.broken(Fault::NotSentUnrecorded);
        let withdraws = ending == Ending::NotSent && unsent && job.attempts == 1 && may;
        rule(
            job.work == known || withdraws,
            "that is not what is known of it",
        )?;
        operation.caller = Caller::Told(ending);
        operation.outcomes += 1;
        let job = state.job(op, home);
        match withdraws {
            true => job.work = Work::Owed(ending),
            false => *job = Default::default(),
        }
        Ok(())
    }

    pub(super) fn misplaced(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let job = state.job(op, host);
        rule(
            job.work == Work::Waiting && job.before,
            "only a repeat waits for one session and no other",
        )?;
        job.work = Work::Known(Ending::Unknown);
        job.attempts = job.attempts.saturating_sub(1);
        state.op(op).authorised -= 1;
        Ok(())
    }

    pub(super) fn told_unrecorded(
        &self,
        state: &mut State<N>,
        op: u8,
        ending: Ending,
    ) -> Result<(), Refused> {
        let home = state.op(op).home;
        rule(state.op(op).caller == Caller::Waits, "nobody waits for it")?;
        rule(self.setting.records(op), "there is nothing to record")?;
        let resends = self.setting.resends(op);
        let job = *state.job(op, home);
        let (known, unsaid) = match job.work {
            Work::Known(known) => (known, resends && state.op(op).record.attempts > 0),
            // The write of its attempt is not waited for any longer, and may be there all the same.
            Work::Due if resends && !job.before => (Ending::NotSent, true),
            _ => return Err(Refused("nothing is known of it")),
        };
        let told = match known {
            // If its host ends before that is recorded, whoever takes it over may send it.
            Ending::NotSent if unsaid && !self.broken(Fault::NotSentUnrecorded) => Ending::Unknown,
            known => known,
        };
        rule(
            told == ending && job.look == Look::None,
            "that is not what is known of it",
        )?;
        state.job(op, home).work = Work::Owed(known);
        let operation = state.op(op);
        operation.caller = Caller::Told(ending);
        operation.outcomes += 1;
        Ok(())
    }

    /// The attempt in hand was not sent. One before it may have run.
    pub(super) fn not_sent(&self, state: &mut State<N>, op: u8, host: u8) {
        let settles = self.broken(Fault::UnsentRepeatSettles);
        let job = state.job(op, host);
        job.work = Work::Known(match job.before && !settles {
            true => Ending::Unknown,
            false => Ending::NotSent,
        });
        job.spent = true;
    }

    /// The attempt in hand was answered.
    pub(super) fn answered(&self, state: &mut State<N>, op: u8, host: u8, ending: Ending) {
        let settles = self.broken(Fault::RefusedRepeatSettles);
        let is_read = self.setting.contracts[usize::from(op)] == Contract::Read;
        let job = state.job(op, host);
        let forgets = job.before && ending == Ending::Rejected && !is_read && !settles;
        job.work = Work::Known(match forgets {
            // An attempt before it may have run, whatever the server says of this one.
            true => Ending::Unknown,
            false => ending,
        });
        job.spent = true;
    }
}

impl<const N: usize> State<N> {
    /// Puts an operation at the end of the mailbox.
    pub(super) fn queue(&mut self, op: u8, host: u8) {
        let connection = self.host(host);
        let place = connection.next_place;
        connection.next_place += 1;
        let job = self.job(op, host);
        job.place = place;
        job.work = Work::Waiting;
    }
}
