//! Requests on the wire, and what servers make of them.

use super::{
    super::{
        machine::{Cell, Look, Passage, Session, Step, Work},
        plan::ABSENCE_FINAL,
        trace::Frame,
        world::LENT,
    },
    Allowed, Follower, HOST,
};

/// In how many milliseconds a session that is over has stopped.
const STOPPED_WITHIN: u64 = 500;

impl<const N: usize> Follower<'_, N> {
    pub(super) fn begun(&mut self, link: usize, frame: &Frame) -> Allowed {
        let session = self.links[&link];
        if let Some(op) = self.asks_about(frame) {
            return self.look_up_asked(op);
        }
        let Some(operation) = frame.operation.or(frame.resolves) else {
            return Ok(());
        };
        let (Some(op), Some(id)) = (self.number(operation), frame.id) else {
            return Ok(());
        };
        // Of what is lent, nobody sees the writing: it may be sent from its hand-over on.
        if self.connection != LENT {
            self.settle_queue(op, link, session)?;
            self.step(Step::Begun { op, session })?;
        }
        let request = (link, id);
        self.under_way.push((operation, session, request));
        if self.ahead.fate(link, frame).is_none() {
            let at = self.on_its_way(op, operation, session, request)?;
            self.state.ops[usize::from(op)].sendings[at].request = Passage::Lost;
            self.state.tidy();
            self.under_way.pop();
        }
        Ok(())
    }

    /// What was handed over before an operation, and never begins, was given up.
    fn settle_queue(&mut self, op: u8, link: usize, session: Session) -> Allowed {
        let queued = |op: u8| {
            let sendings = self.state.ops[usize::from(op)].sendings.iter();
            let mut here = sendings.filter(|s| s.session == session && s.cell == Cell::Queued);
            here.next().map(|s| s.id)
        };
        let Some(id) = queued(op) else { return Ok(()) };
        let before = self.numbers.iter().filter(|(operation, other)| {
            let earlier = queued(**other).is_some_and(|it| it < id);
            earlier && !self.ahead.begins(self.at, **operation, link)
        });
        let before: Vec<u8> = before.map(|(_, other)| *other).collect();
        for op in before {
            self.just(Step::GivenUp { op, host: HOST })?;
        }
        Ok(())
    }

    /// Where the model has a request that is on its way: they begin in their order, so it has as many
    /// before it there as here.
    fn on_its_way(
        &self,
        op: u8,
        operation: usize,
        session: Session,
        request: (usize, i64),
    ) -> Result<usize, String> {
        let mine = self.under_way.iter();
        let mut mine = mine.filter(|(it, where_to, _)| *it == operation && *where_to == session);
        let nth = mine.position(|(_, _, it)| *it == request);
        let sendings = self.state.ops[usize::from(op)].sendings.iter().enumerate();
        let mut sendings = sendings.filter(|(_, s)| {
            s.cell == Cell::Writing && s.session == session && s.request == Passage::UnderWay
        });
        let found = nth.and_then(|nth| sendings.nth(nth));
        found.map(|(at, _)| at).ok_or_else(|| {
            format!(
                "the model has no such request on its way: {}",
                self.shown(op)
            )
        })
    }

    /// A server does something about a request.
    pub(super) fn served(&mut self, link: usize, frame: &Frame) -> Allowed {
        let Some(operation) = frame.operation.or(frame.resolves) else {
            return Ok(());
        };
        let (Some(op), Some(id)) = (self.number(operation), frame.id) else {
            return Ok(());
        };
        let Some(fate) = self.ahead.fate(link, frame).filter(|it| it.at == self.at) else {
            return Ok(());
        };
        let session = self.links[&link];
        let at = self.on_its_way(op, operation, session, (link, id))?;
        // The model takes the first one. Those before it are out of its sight for this step.
        for before in &mut self.state.ops[usize::from(op)].sendings[..at] {
            if before.session == session && before.request == Passage::UnderWay {
                before.request = Passage::Before;
            }
        }
        let reply = fate.reply;
        self.just(Step::Arrived { op, session, reply })?;
        for before in &mut self.state.ops[usize::from(op)].sendings[..at] {
            if before.cell == Cell::Writing && before.request == Passage::Before {
                before.request = Passage::UnderWay;
            }
        }
        self.under_way.retain(|(_, _, it)| *it != (link, id));
        // In a session that is over no answer is on its way, and the request is forgotten.
        if !fate.answers && self.state.lives(session) {
            self.state.ops[usize::from(op)].sendings[at].answer = Passage::Lost;
            self.state.tidy();
        }
        Ok(())
    }

    /// The operation that a request asks about.
    fn asks_about(&self, frame: &Frame) -> Option<u8> {
        let of_key = self.ahead.looked_up(frame).iter();
        let ops = of_key.filter_map(|operation| self.number(*operation));
        let works = |op: &u8| {
            let job = self.state.ops[usize::from(*op)].jobs[usize::from(HOST)];
            matches!(job.work, Work::Handed | Work::Known(_))
        };
        // Of several that share a key, one at a time can be asked about.
        ops.rev().find(works)
    }

    fn look_up_asked(&mut self, op: u8) -> Allowed {
        let host = HOST;
        if self.state.ops[usize::from(op)].jobs[usize::from(host)].look != Look::None {
            self.step(Step::LookUpLost { op, host })?;
        }
        let operation = self.numbers.iter().find(|(_, it)| **it == op);
        let operation = operation.map(|(operation, _)| *operation);
        let is_final = operation.is_some_and(|it| self.ahead.is_final(self.at, it));
        if is_final {
            self.is_late_enough(op)?;
        }
        if is_final && !self.state.ops[usize::from(op)].absence_final {
            // Known to be unknown, first.
            let lost = self
                .machine
                .allowed(&self.state, &Step::LostSight { op, host });
            self.state = lost.unwrap_or(self.state);
            self.step(Step::AbsenceFinal { op })?;
        }
        self.step(Step::LookUpAsked { op, host })
    }

    /// Whether the time is over after which, by the contract, an absence is final. That is no matter of
    /// the model, which knows only what comes after what.
    fn is_late_enough(&self, op: u8) -> Allowed {
        let ended = self.last.get(&op).and_then(|last| self.ends.get(last));
        let Some(ended) = ended else {
            // It never got so far that it was handed over.
            return Ok(());
        };
        let final_at = ended + u64::try_from(ABSENCE_FINAL.as_millis()).expect("a few seconds");
        // An end is told when the session has stopped, which is so much later at most.
        match self.now() + STOPPED_WITHIN >= final_at {
            true => Ok(()),
            false => Err(format!("an absence is not final before {final_at} ms")),
        }
    }

    /// A server looks, and says what it sees.
    pub(super) fn looked(&mut self, _link: usize, frame: &Frame, how: &str) -> Allowed {
        let Some(op) = self.asks_about(frame).filter(|_| how == "answer") else {
            return Ok(());
        };
        let look = self.state.ops[usize::from(op)].jobs[usize::from(HOST)].look;
        match look {
            Look::Asked { .. } => self.step(Step::LookUpServed { op, host: HOST }),
            _ => Ok(()),
        }
    }
}
