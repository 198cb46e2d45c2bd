//! What happens to bytes, and what the server does.

use super::{
    Caller, Cell, Contract, Ending, Fault, Machine, Passage, Reply, Sending, State, Work,
    step::{Refused, Session, rule},
};
use mcp_supervisor::journal::table;

impl<const N: usize> Machine<N> {
    pub(super) fn begun(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
    ) -> Result<(), Refused> {
        let queued = |s: &Sending| s.session == session && s.cell == Cell::Queued;
        let found = state.ops[usize::from(op)].sendings.iter().position(queued);
        let at = found.ok_or(Refused("it is in no queue of that session"))?;
        let (id, place) = {
            let sending = &state.ops[usize::from(op)].sendings[at];
            (sending.id, sending.place)
        };
        let mut others = state.ops.iter().flat_map(|o| &o.sendings);
        let overtakes = others.any(|s| queued(s) && s.id < id);
        rule(
            !self.setting.ordered || !overtakes,
            "an ordered writer goes in the order of hand-over",
        )?;
        let sending = &mut state.op(op).sendings[at];
        sending.cell = Cell::Writing;
        sending.request = Passage::UnderWay;
        if self.setting.ordered {
            state.host(session.host).in_order(place);
        }
        Ok(())
    }

    pub(super) fn request_lost(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
    ) -> Result<(), Refused> {
        sending(state, op, session, is_asking)?.request = Passage::Lost;
        Ok(())
    }

    pub(super) fn arrived(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
        reply: Reply,
    ) -> Result<(), Refused> {
        let answerable = state.lives(session);
        let sending = sending(state, op, session, is_asking)?;
        sending.request = Passage::There;
        sending.reply = reply;
        sending.answer = match answerable {
            true => Passage::UnderWay,
            false => Passage::Lost,
        };
        let keyed = matches!(
            self.setting.contracts[usize::from(op)],
            Contract::Keyed | Contract::Receipts
        );
        let has_receipt = self.setting.receipts && keyed && !sending.another_key;
        let operation = state.op(op);
        let runs = matches!(reply, Reply::Result | Reply::Error);
        if runs && !(has_receipt && operation.effects > 0) {
            operation.effects += 1;
        }
        Ok(())
    }

    pub(super) fn answer_lost(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
    ) -> Result<(), Refused> {
        sending(state, op, session, is_answered)?.answer = Passage::Lost;
        Ok(())
    }

    pub(super) fn answer_read(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
    ) -> Result<(), Refused> {
        let host = session.host;
        rule(state.is_up(host), "its host does not run")?;
        let in_hand = state.op(op).in_hand(host).copied();
        let in_hand = in_hand.ok_or(Refused("nobody waits for an answer to it"))?;
        if in_hand.session == session && is_answered(&in_hand) {
            let at = state.op(op).last_of(host).unwrap_or_default();
            state.op(op).sendings[at].answer = Passage::There;
            self.answered(state, op, host, ending(in_hand.reply));
        } else if self.broken(Fault::AnswerOfAnotherSession) && in_hand.session != session {
            let matches = |s: &Sending| {
                s.cell != Cell::Free && s.session == session && s.id == in_hand.id && is_answered(s)
            };
            let other = (0..N).find(|o| state.ops[*o].sendings.iter().any(matches));
            let other = other.ok_or(Refused("no answer matches"))?;
            for s in &mut state.ops[other].sendings {
                if matches(s) {
                    s.answer = Passage::There;
                }
            }
            state.op(op).foreign_answer |= other != usize::from(op);
            self.answered(state, op, host, Ending::Answered);
        } else {
            return Err(Refused("no answer to it is on its way in that session"));
        }
        if state.in_force(session) {
            state.host(host).suspect = false;
        }
        Ok(())
    }

    pub(super) fn late_answer(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
    ) -> Result<(), Refused> {
        let host = session.host;
        rule(state.is_up(host), "its host does not run")?;
        let record = state.op(op).record;
        let rests = state.job(op, host).work == Work::Nothing;
        rule(rests, "it is not given up")?;
        let told = matches!(state.op(op).caller, Caller::Told(_));
        let second = self.broken(Fault::SecondOutcome) && told;
        if !self.setting.records(op) {
            rule(second, "nobody waits for it any more")?;
        } else {
            rule(
                record.state == Some(table::State::OutcomeUnknown)
                    && record.owner.is_none()
                    && !record.orphaned,
                "it is settled, or somebody resolves it",
            )?;
        }
        let sending = sending(state, op, session, is_answered)?;
        let reply = sending.reply;
        sending.answer = Passage::There;
        if second {
            state.op(op).outcomes += 1;
        }
        if !self.setting.records(op) {
            return Ok(());
        }
        let refusal = reply == Reply::Refusal;
        // Of one attempt among several, a refusal says nothing about the others.
        if refusal && record.attempts > 1 && !self.broken(Fault::LateRefusalSettles) {
            return Ok(());
        }
        let record = &mut state.op(op).record;
        record.fence += 1;
        self.enter(record, super::journal::event(ending(reply)))
    }
}

/// Its request is on its way to the server.
fn is_asking(sending: &Sending) -> bool {
    sending.request == Passage::UnderWay
}

/// Its answer is on its way back.
fn is_answered(sending: &Sending) -> bool {
    sending.answer == Passage::UnderWay
}

/// The first request of an operation in a session of which that holds.
fn sending<const N: usize>(
    state: &mut State<N>,
    op: u8,
    session: Session,
    holds: impl Fn(&Sending) -> bool,
) -> Result<&mut Sending, Refused> {
    let mut sendings = state.op(op).sendings.iter_mut();
    let found = sendings.find(|s| s.cell != Cell::Free && s.session == session && holds(s));
    found.ok_or(Refused("there is no such message in that session"))
}

fn ending(reply: Reply) -> Ending {
    match reply {
        Reply::Result => Ending::Answered,
        Reply::Error | Reply::Failure => Ending::Failed,
        Reply::Refusal => Ending::Rejected,
    }
}
