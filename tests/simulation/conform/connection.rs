//! Hosts, sessions, and what is handed over to them.

use super::{
    super::{
        machine::{Cell, Phase, Session, Step, Work},
        world::LENT,
    },
    Allowed, Follower, HOST,
};

impl<const N: usize> Follower<'_, N> {
    pub(super) fn host_started(&mut self) -> Allowed {
        self.lives += 1;
        self.generations.clear();
        self.newest = None;
        self.retired = false;
        if self.lives > 1 {
            self.step(Step::Restarted { host: HOST })?;
        }
        // What somebody was resolving is as unknown as it was, which is told nowhere.
        for op in 0..u8::try_from(N).unwrap_or(u8::MAX) {
            let record = self.state.ops[usize::from(op)].record;
            let unknown = mcp_supervisor::journal::State::OutcomeUnknown;
            if record.orphaned && record.state == Some(unknown) {
                self.step(Step::TakenOver { op, host: HOST })?;
            }
        }
        Ok(())
    }

    pub(super) fn host_gone(&mut self) -> Allowed {
        for generation in 1..=self.state.hosts[usize::from(HOST)].generation {
            let session = Session {
                host: HOST,
                generation,
            };
            if self.state.lives(session) {
                self.ends.insert(session, self.now());
            }
        }
        self.step(Step::Crashed { host: HOST })
    }

    /// A pipe is opened, for the session that is being started.
    pub(super) fn opened(&mut self, link: usize) -> Allowed {
        if self.connection == LENT && self.lives > 1 {
            self.step(Step::Lent { host: HOST })?;
        }
        let generation = self.state.hosts[usize::from(HOST)].generation;
        let session = Session {
            host: HOST,
            generation,
        };
        self.links.insert(link, session);
        Ok(())
    }

    pub(super) fn starting(&mut self, generation: u64) -> Allowed {
        let live = self.state.hosts[usize::from(HOST)].phase == Phase::Live;
        let retired = std::mem::take(&mut self.retired);
        // Requests of the runtime's own, which are not followed, ask for sessions too.
        let asked = !live || retired;
        self.step(Step::Opening { host: HOST, asked })?;
        let newest = self.state.hosts[usize::from(HOST)].generation;
        self.generations.insert(generation, newest);
        self.newest = Some(generation);
        Ok(())
    }

    /// A session, by the generation that its host tells. What is lent has only one.
    fn session(&self, generation: Option<u64>) -> Session {
        let newest = self.state.hosts[usize::from(HOST)].generation;
        let known = generation.and_then(|it| self.generations.get(&it));
        Session {
            host: HOST,
            generation: known.copied().unwrap_or(newest),
        }
    }

    pub(super) fn ended(&mut self, generation: Option<u64>) -> Allowed {
        let session = self.session(generation);
        match self.state.lives(session) {
            true => {
                self.ends.insert(session, self.now());
                self.step(Step::Ended { session })
            }
            // Its end was told in another way, or it was never live.
            false => Ok(()),
        }
    }

    pub(super) fn handed_over(&mut self, operation: usize, generation: u64) -> Allowed {
        let Some(op) = self.number(operation) else {
            return Ok(());
        };
        self.calls(op)?;
        let session = self.session(Some(generation));
        self.settle_before(op, session)?;
        self.last.insert(op, session);
        self.step(Step::HandedOver { op, session })
    }

    /// What came before an operation, and comes no more, is over: nobody told when its caller gave it up.
    fn settle_before(&mut self, op: u8, session: Session) -> Allowed {
        let place = match self.state.ops[usize::from(op)].jobs[usize::from(HOST)] {
            job if job.work == Work::Waiting => job.place,
            _ => u16::MAX,
        };
        let mut others: Vec<(u16, usize, u8)> = Vec::new();
        for (operation, other) in &self.numbers {
            let job = self.state.ops[usize::from(*other)].jobs[usize::from(HOST)];
            if *other != op && matches!(job.work, Work::Waiting | Work::Handed) {
                others.push((job.place, *operation, *other));
            }
        }
        others.sort_unstable();
        for (earlier, operation, other) in others {
            let next = self.ahead.next_attempt(self.at, operation);
            let it = self.state.ops[usize::from(other)];
            let waits = it.jobs[usize::from(HOST)].work == Work::Waiting;
            if next == Some(true) {
                // It moves, and has to go first.
                continue;
            }
            let (op, host) = (other, HOST);
            if waits {
                if earlier < place {
                    let misplaced = Step::Misplaced { op, host };
                    let over = match next.map(|_| self.machine.allowed(&self.state, &misplaced)) {
                        Some(Ok(_)) => misplaced,
                        _ => Step::Refused { op, host },
                    };
                    self.just(over)?;
                }
                continue;
            }
            let left = it.in_hand(HOST).copied();
            let left = left.filter(|s| s.cell == Cell::Queued && s.session != session);
            let Some(left) = left else { continue };
            let not_sent = next.is_none() && self.ahead.is_not_sent(self.at, operation);
            if not_sent {
                self.just(Step::GivenUp { op, host })?;
            } else {
                let session = left.session;
                self.just(Step::Begun { op, session })?;
                self.just(Step::LostSight { op, host })?;
            }
        }
        Ok(())
    }
}
