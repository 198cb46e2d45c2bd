//! Callers, and the journal.

use mcp_supervisor::journal::State as Stands;

use super::{
    super::{
        machine::{Caller, Cell, Ending, Fact, Look, Passage, Sending, Step, Work},
        trace::End,
    },
    Allowed, Follower, HOST,
    ahead::Claim,
    ending,
};

impl<const N: usize> Follower<'_, N> {
    /// The model's number of an operation that is followed, here.
    pub(super) fn number(&self, operation: usize) -> Option<u8> {
        self.numbers.get(&operation).copied()
    }

    /// Without a record an operation is asked for when it gets into the mailbox, and nobody sees when
    /// that is before it leaves it. Until then it is as if nobody had asked.
    pub(super) fn calls(&mut self, op: u8) -> Allowed {
        match self.state.ops[usize::from(op)].caller {
            Caller::NotYet => self.step(Step::Called { op, host: HOST }),
            _ => Ok(()),
        }
    }

    pub(super) fn asked(&mut self, operation: usize) -> Allowed {
        match self.number(operation) {
            Some(op) if self.machine.setting.records(op) => self.calls(op),
            _ => Ok(()),
        }
    }

    pub(super) fn left(&mut self, operation: usize) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        self.calls(op)?;
        self.step(Step::Left { op })
    }

    pub(super) fn told(&mut self, operation: usize, end: &End) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        self.calls(op)?;
        let ending = ending(end);
        if self.told.remove(&operation) {
            let known = self.state.ops[usize::from(op)].caller;
            return match known == Caller::Told(ending) {
                true => Ok(()),
                false => Err(format!("told {ending:?}, and recorded was {known:?}")),
            };
        }
        let refused = self.refused.contains(&operation);
        let later = self
            .ahead
            .settled_as(self.at, operation)
            .filter(|_| refused);
        if later == Some(Stands::OutcomeUnknown) {
            self.may_be_begun(op)?;
        }
        let unrecorded = Step::ToldUnrecorded { op, ending };
        match self.machine.follow(&self.state, &unrecorded) {
            told @ Ok(_) if later.is_some() => self.go(unrecorded, told),
            _ => self.step(Step::Told { op, ending }),
        }
    }

    /// What is recorded as unknown, and was never seen to begin, was begun in a pipe that was broken.
    fn may_be_begun(&mut self, op: u8) -> Allowed {
        let in_hand = self.state.ops[usize::from(op)].in_hand(HOST).copied();
        match in_hand.filter(|it| it.cell == Cell::Queued) {
            Some(Sending { session, .. }) => self.step(Step::Begun { op, session }),
            None => Ok(()),
        }
    }

    pub(super) fn recorded(
        &mut self,
        operation: usize,
        fact: &str,
        by: &str,
        stands: Stands,
    ) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        let host = HOST;
        let record = self.state.ops[usize::from(op)].record.state;
        let fact = match fact {
            "accepted" => Fact::Accepted,
            "dispatching" if record.is_none() => Fact::AcceptedWithAttempt,
            "dispatching" => Fact::Dispatching,
            "abandoned" => {
                self.step(Step::TakenOver { op, host })?;
                return self.stands(op, stands);
            }
            // It changes nothing that anybody may conclude.
            "cancel requested" => return Ok(()),
            "answered" | "without" if by == "late answer" => return self.late(op, stands),
            "answered" | "without" => {
                let resolves = self.state.ops[usize::from(op)].jobs[usize::from(host)].resolves;
                match (stands, resolves) {
                    // Nothing is known of it that was not known before.
                    (Stands::OutcomeUnknown, true) => return self.stands(op, stands),
                    _ => Fact::Ended(ended(stands)?),
                }
            }
            other => return Err(format!("the model has no {other:?}")),
        };
        self.step(Step::Recorded { op, host, fact })?;
        self.stands(op, stands)?;
        let waits = self.state.ops[usize::from(op)].caller == Caller::Waits;
        if let (Fact::Ended(_), true, Some(end)) =
            (fact, waits, self.ahead.told(self.at, operation))
        {
            // Whoever looks into the journal may be faster than its caller.
            let ending = ending(end);
            self.step(Step::Told { op, ending })?;
            self.told.insert(operation);
        }
        Ok(())
    }

    /// Whether the model's record stands where the journal's does.
    fn stands(&self, op: u8, stands: Stands) -> Allowed {
        let stands = match stands {
            Stands::CancelRequested => Stands::Dispatching,
            stands => stands,
        };
        let here = self.state.ops[usize::from(op)].record.state;
        match here == Some(stands) {
            true => Ok(()),
            false => Err(format!(
                "the journal has {stands:?}, and the model {here:?}"
            )),
        }
    }

    /// An answer that nobody waited for any more is recorded: one of those that are on their way.
    fn late(&mut self, op: u8, stands: Stands) -> Allowed {
        let mut why = "no answer is on its way".to_owned();
        for at in 0..self.state.ops[usize::from(op)].sendings.len() {
            let mut state = self.state;
            let sendings = &mut state.ops[usize::from(op)].sendings;
            let here = sendings[at];
            if here.cell == Cell::Free || here.answer != Passage::UnderWay {
                continue;
            }
            // Those before it said nothing that could be recorded.
            for before in &mut sendings[..at] {
                if before.session == here.session && before.answer == Passage::UnderWay {
                    before.answer = Passage::Lost;
                }
            }
            let session = here.session;
            match self
                .machine
                .allowed(&state, &Step::LateAnswer { op, session })
            {
                Ok(next) if next.ops[usize::from(op)].record.state == Some(stands) => {
                    self.state = next;
                    self.steps += 1;
                    return Ok(());
                }
                Ok(_) => why = format!("an answer says something else than {stands:?}"),
                Err(refused) => why = refused.to_string(),
            }
        }
        Err(format!("a late answer: {why}; {}", self.shown(op)))
    }

    pub(super) fn claimed(&mut self, operation: usize) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        match self.ahead.claim(self.at, operation) {
            Claim::Resolver => self.step(Step::Claimed { op, host: HOST }),
            Claim::LateAnswer | Claim::Nothing => Ok(()),
        }
    }

    pub(super) fn released(&mut self, operation: usize) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        let job = self.state.ops[usize::from(op)].jobs[usize::from(HOST)];
        match job.work != Work::Nothing && job.resolves {
            true => self.step(Step::Released { op, host: HOST }),
            false => Ok(()),
        }
    }

    /// What a look-up was answered with is concluded from.
    pub(super) fn looked_up(&mut self, operation: usize, found: bool) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        let mut look = self.state.ops[usize::from(op)].jobs[usize::from(HOST)].look;
        if look == Look::None {
            // Of a key that was minted for what never went out, no request tells whose it is.
            self.step(Step::LookUpAsked { op, host: HOST })?;
            self.step(Step::LookUpServed { op, host: HOST })?;
            look = self.state.ops[usize::from(op)].jobs[usize::from(HOST)].look;
        }
        match look {
            Look::Served { found: there, .. } if there == found => {}
            look => {
                let it = self.shown(op);
                return Err(format!("found: {found}, and the model has {look:?}; {it}"));
            }
        }
        self.step(Step::LookUpHeard { op, host: HOST })
    }
}

fn ended(stands: Stands) -> Result<Ending, String> {
    Ok(match stands {
        Stands::Succeeded => Ending::Answered,
        Stands::Failed => Ending::Failed,
        Stands::Rejected => Ending::Rejected,
        Stands::NotSent => Ending::NotSent,
        Stands::OutcomeUnknown => Ending::Unknown,
        other => return Err(format!("the model has no {other:?}")),
    })
}
