//! The journal: what is durable, who may write it, and what is made of what a host left.

use mcp_supervisor::journal::table::{self, Event, next};

use super::{
    Caller, Ending, Fault, Job, Journal, Machine, Record, State, Work,
    step::{Fact, Refused, rule},
};

impl<const N: usize> Machine<N> {
    pub(super) fn recorded(
        &self,
        state: &mut State<N>,
        op: u8,
        host: u8,
        fact: Fact,
    ) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let job = *state.job(op, host);
        match fact {
            Fact::Accepted | Fact::AcceptedWithAttempt => {
                let withdrawn = job.work == Work::Owed(Ending::NotSent);
                rule(
                    job.work == Work::Intended || withdrawn,
                    "no intent is to be recorded",
                )?;
                rule(state.op(op).record.state.is_none(), "it is there already")?;
                let at_once = fact == Fact::AcceptedWithAttempt;
                let resent = withdrawn && at_once && self.setting.resends(op);
                rule(
                    !resent || self.broken(Fault::NotSentUnrecorded),
                    "its caller waits for a record that may be taken for one of what was sent",
                )?;
                state.op(op).record = Record {
                    state: Some(table::State::Accepted),
                    fence: 1,
                    owner: Some(host),
                    ..Record::default()
                };
                let job = state.job(op, host);
                job.held = 1;
                job.work = Work::Due;
                if at_once {
                    self.dispatching(state, op, host)?;
                }
                if withdrawn {
                    state.job(op, host).work = Work::Owed(Ending::NotSent);
                }
                Ok(())
            }
            Fact::Dispatching => self.dispatching(state, op, host),
            Fact::Ended(ending) => self.over(state, op, host, ending),
        }
    }

    /// An attempt is durable.
    fn dispatching(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let job = *state.job(op, host);
        let after = self.broken(Fault::RecordAfterHandOver)
            && matches!(job.work, Work::Waiting | Work::Handed | Work::Known(_))
            && state.op(op).record.state == Some(table::State::Accepted);
        rule(
            job.work == Work::Due || after,
            "no attempt is to be recorded",
        )?;
        rule(self.may_write(state, op, &job), "somebody else has it")?;
        let record = &mut state.op(op).record;
        self.enter(record, Event::Dispatch)?;
        record.attempts += 1;
        record.abandoned = false;
        if !after {
            state.job(op, host).work = Work::Ready;
        }
        Ok(())
    }

    /// How it ended is durable.
    fn over(&self, state: &mut State<N>, op: u8, host: u8, ending: Ending) -> Result<(), Refused> {
        let job = *state.job(op, host);
        rule(
            job.work == Work::Owed(ending)
                || job.work == Work::Known(ending) && job.look == super::Look::None,
            "that is not what is known of it",
        )?;
        rule(
            !(job.resolves && ending == Ending::Unknown),
            "what stays unknown is given up",
        )?;
        rule(self.may_write(state, op, &job), "somebody else has it")?;
        self.enter(&mut state.op(op).record, event(ending))?;
        self.tell_or_rest(state, op, host, ending);
        Ok(())
    }

    /// After the last write of a job.
    fn tell_or_rest(&self, state: &mut State<N>, op: u8, host: u8, ending: Ending) {
        let waits = state.op(op).caller == Caller::Waits && state.op(op).home == host;
        let job = state.job(op, host);
        match waits && !job.resolves {
            true => job.work = Work::Settled(ending),
            false => *job = Job::default(),
        }
    }

    pub(super) fn record_failed(
        &self,
        state: &mut State<N>,
        op: u8,
        host: u8,
    ) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let job = *state.job(op, host);
        let fenced = job.held != 0 && !self.may_write(state, op, &job);
        // Who took it over has to take it for sent.
        let taken_for_sent = state.op(op).record.attempts > 0;
        let by_its_holder = fenced && !self.broken(Fault::NotSentByAFencedHost);
        let resends = self.setting.resends(op) && !fenced;
        let by_a_resolver = resends && !self.broken(Fault::NotSentUnrecorded);
        let may_be_sent = taken_for_sent && (by_its_holder || by_a_resolver);
        match job.work {
            // Nobody else knows of it, and nothing was handed over.
            Work::Intended => self.tell_or_rest(state, op, host, Ending::NotSent),
            Work::Due => self.not_sent(state, op, host),
            Work::Known(ending) if job.look == super::Look::None => {
                let ending = match ending {
                    // Whoever has it now, or takes it when this host is gone, may send it.
                    Ending::NotSent if may_be_sent => Ending::Unknown,
                    ending => ending,
                };
                self.tell_or_rest(state, op, host, ending);
            }
            Work::Owed(_) => *state.job(op, host) = Job::default(),
            _ => return Err(Refused("nothing is to be recorded")),
        }
        Ok(())
    }

    pub(super) fn taken_over(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let record = &mut state.op(op).record;
        rule(record.orphaned, "its host lives")?;
        let was = record.state;
        record.orphaned = false;
        record.owner = None;
        record.fence += 1;
        record.abandoned = true;
        if was == Some(table::State::Dispatching) && self.broken(Fault::DispatchingRunAgain) {
            record.owner = Some(host);
            let held = record.fence;
            *state.job(op, host) = Job {
                work: Work::Ready,
                attempts: 1,
                resolves: true,
                held,
                ..Job::default()
            };
            return Ok(());
        }
        if self.broken(Fault::AbandonedTakenForNotSent) {
            record.state = Some(table::State::NotSent);
            record.said_not_sent = true;
            return Ok(());
        }
        self.enter(record, Event::Abandon)?;
        // When the sessions of its host ended, nobody knows any more: the time counts anew.
        state.op(op).absence_final = false;
        Ok(())
    }

    pub(super) fn claimed(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let contract = self.setting.contracts[usize::from(op)];
        let may = contract.resolves() && !self.setting.lent;
        rule(may, "nothing may be sent to resolve it")?;
        let rests = state.job(op, host).work == Work::Nothing;
        rule(rests, "this host works on it")?;
        let record = &mut state.op(op).record;
        rule(
            record.state == Some(table::State::OutcomeUnknown),
            "its outcome is not unknown",
        )?;
        let twice = record.owner.is_some() && self.broken(Fault::ClaimedTwice);
        rule(
            record.owner.is_none() && !record.orphaned || twice,
            "somebody resolves it",
        )?;
        record.owner = Some(host);
        record.fence += u8::from(!twice);
        let held = record.fence;
        *state.job(op, host) = Job {
            work: Work::Known(Ending::Unknown),
            before: true,
            resolves: true,
            held,
            ..Job::default()
        };
        Ok(())
    }

    pub(super) fn released(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let job = *state.job(op, host);
        rule(
            job.resolves
                && job.work == Work::Known(Ending::Unknown)
                && job.look == super::Look::None,
            "it is not given up",
        )?;
        if self.may_write(state, op, &job) {
            let record = &mut state.op(op).record;
            record.owner = None;
            record.fence += 1;
        }
        *state.job(op, host) = Job::default();
        Ok(())
    }

    /// Whether a job may write the record.
    fn may_write(&self, state: &State<N>, op: u8, job: &Job) -> bool {
        let record = &state.ops[usize::from(op)].record;
        let holds = job.held == record.fence && !record.orphaned;
        holds || job.held != 0 && self.broken(Fault::NoFencing)
    }

    /// Moves a record as the crate's table does.
    pub(super) fn enter(&self, record: &mut Record, event: Event) -> Result<(), Refused> {
        let was = record.state.ok_or(Refused("there is no record"))?;
        let now = match next(was, event) {
            Ok(now) => now,
            // Whoever does not look at the fence writes what it takes for the next state.
            Err(_) if self.broken(Fault::NoFencing) && event == Event::Dispatch => {
                table::State::Dispatching
            }
            Err(_) => return Err(Refused("the journal's table does not allow it")),
        };
        record.state = Some(now);
        record.said_not_sent |= now == table::State::NotSent;
        let lost_sight = now == table::State::OutcomeUnknown && was != table::State::OutcomeUnknown;
        if now.is_settled() || lost_sight {
            record.owner = None;
            record.orphaned = false;
        }
        Ok(())
    }

    /// Its host is gone, or taken for dead: what it has is left.
    pub(super) fn orphan(&self, state: &mut State<N>, host: u8) {
        if self.setting.journal == Journal::Off {
            return;
        }
        for operation in &mut state.ops {
            let record = &mut operation.record;
            record.orphaned |= record.owner == Some(host);
        }
    }
}

/// What an ending is to the table.
pub(super) fn event(ending: Ending) -> Event {
    match ending {
        Ending::Answered => Event::Succeed,
        Ending::Failed => Event::Fail,
        Ending::Rejected => Event::Reject,
        Ending::NotSent => Event::NotSend,
        Ending::Unknown => Event::LoseSight,
    }
}
