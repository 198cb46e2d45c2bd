//! The connection: it starts sessions, hands over in order, and takes back what was not written.

use super::{
    Cell, Fault, Machine, Passage, Phase, Sending, State, Work,
    step::{Refused, Session, rule},
};

impl<const N: usize> Machine<N> {
    pub(super) fn opening(
        &self,
        state: &mut State<N>,
        host: u8,
        asked: bool,
    ) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let reconnects = self.setting.lent && self.broken(Fault::LentReconnected);
        rule(
            !self.setting.lent || reconnects,
            "a caller-owned connection starts nothing",
        )?;
        let wanted = asked || state.waits_at(host).next().is_some();
        rule(wanted, "nobody asks for a session")?;
        let connection = *state.host(host);
        let current = Session {
            host,
            generation: connection.generation,
        };
        match connection.phase {
            Phase::Idle => {}
            Phase::Live if connection.suspect || asked => {}
            Phase::Live if reconnects && !state.lives(current) => {}
            Phase::Live => return Err(Refused("the session in force is good")),
            Phase::Starting => return Err(Refused("one is being started")),
            Phase::Closed => return Err(Refused("the connection is closed")),
        }
        let connection = state.host(host);
        rule(connection.generation < 63, "too many sessions")?;
        connection.phase = Phase::Starting;
        connection.generation += 1;
        connection.suspect = false;
        connection.touched_lent |= self.setting.lent;
        Ok(())
    }

    pub(super) fn opened(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        let connection = state.host(host);
        rule(connection.phase == Phase::Starting, "none is being started")?;
        connection.phase = Phase::Live;
        connection.alive |= 1 << connection.generation;
        connection.handed = 0;
        if !self.setting.ordered {
            connection.begun_up_to = 0;
        }
        Ok(())
    }

    pub(super) fn open_failed(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        let connection = state.host(host);
        rule(connection.phase == Phase::Starting, "none is being started")?;
        connection.phase = Phase::Idle;
        Ok(())
    }

    pub(super) fn suspected(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        let connection = state.host(host);
        rule(connection.phase == Phase::Live, "there is none in force")?;
        connection.suspect = true;
        Ok(())
    }

    pub(super) fn ended(&self, state: &mut State<N>, session: Session) -> Result<(), Refused> {
        rule(state.lives(session), "it is over already")?;
        let stays = self.setting.lent || self.broken(Fault::LossLeftUnseen);
        let connection = state.host(session.host);
        connection.alive &= !(1 << session.generation);
        let current = connection.generation == session.generation;
        if current && connection.phase == Phase::Live && !stays {
            connection.phase = Phase::Idle;
            connection.suspect = false;
        }
        Ok(())
    }

    pub(super) fn closed(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        let connection = state.host(host);
        rule(connection.phase != Phase::Closed, "it is closed already")?;
        connection.phase = Phase::Closed;
        if self.setting.lent && self.broken(Fault::LentClosed) {
            connection.touched_lent = true;
        }
        Ok(())
    }

    pub(super) fn lent(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        rule(self.setting.lent, "the runtime builds its own")?;
        let connection = state.host(host);
        rule(connection.phase == Phase::Idle, "one is lent already")?;
        rule(connection.generation < 63, "too many sessions")?;
        connection.phase = Phase::Live;
        connection.generation += 1;
        connection.alive |= 1 << connection.generation;
        connection.handed = 0;
        connection.begun_up_to = 0;
        Ok(())
    }

    pub(super) fn handed_over(
        &self,
        state: &mut State<N>,
        op: u8,
        session: Session,
    ) -> Result<(), Refused> {
        let host = session.host;
        rule(state.is_up(host), "its host does not run")?;
        let job = *state.job(op, host);
        rule(job.work == Work::Waiting, "it does not wait")?;
        let connection = *state.host(host);
        rule(
            connection.phase == Phase::Live && connection.generation == session.generation,
            "that session is not in force",
        )?;
        let over = !state.lives(session);
        rule(
            !over
                || self.broken(Fault::LossLeftUnseen)
                || self.setting.lent && self.broken(Fault::LentUsedAfterLoss),
            "that session is over",
        )?;
        let older = state.waits_at(host).any(|place| place < job.place);
        rule(
            !older || self.broken(Fault::QueueOutOfOrder),
            "something that came earlier waits",
        )?;
        let left = state.ops.iter().any(|operation| {
            let in_hand = operation.in_hand(host);
            in_hand.is_some_and(|s| s.cell == Cell::Queued && s.session != session)
        });
        rule(
            !left,
            "what an earlier session did not write is taken back first",
        )?;
        let lent = self.setting.lent;
        let repeats = job.attempts > 1;
        state.op(op).push(Sending {
            // On a lent peer nobody sees the writing: from hand-over on, it may have been sent.
            cell: if lent { Cell::Writing } else { Cell::Queued },
            session,
            place: job.place,
            id: connection.handed,
            request: if lent {
                Passage::UnderWay
            } else {
                Passage::Before
            },
            answer: Passage::Before,
            reply: Default::default(),
            another_key: repeats && self.broken(Fault::KeyMintedAnew),
        })?;
        state.job(op, host).work = Work::Handed;
        let connection = state.host(host);
        connection.handed = connection.handed.wrapping_add(1);
        connection.used_lost_lent |= lent && over;
        if !self.setting.ordered {
            connection.in_order(job.place);
        }
        Ok(())
    }

    pub(super) fn taken_back(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        let in_hand = state.op(op).in_hand(host).copied();
        let in_hand = in_hand.ok_or(Refused("it is not handed over"))?;
        rule(
            in_hand.cell == Cell::Queued,
            "writing had begun, so the recall is lost",
        )?;
        rule(
            !state.in_force(in_hand.session),
            "a session keeps what it was given as long as it takes operations",
        )?;
        let younger = state.ops.iter().any(|operation| {
            let other = operation.in_hand(host);
            other.is_some_and(|other| {
                other.cell == Cell::Queued
                    && other.session == in_hand.session
                    && other.place > in_hand.place
            })
        });
        rule(
            !younger || self.broken(Fault::OldestTakenBackFirst),
            "the youngest is taken back first, because the writer goes the other way",
        )?;
        let operation = state.op(op);
        let at = operation.last_of(host).unwrap_or_default();
        if !self.broken(Fault::MovedWithoutRecall) {
            operation.sendings[at].cell = Cell::Free;
        }
        state.job(op, host).work = Work::Waiting;
        Ok(())
    }
}

impl<const N: usize> State<N> {
    /// The places of what waits at a host.
    pub(super) fn waits_at(&self, host: u8) -> impl Iterator<Item = u16> + '_ {
        let jobs = self
            .ops
            .iter()
            .map(move |operation| &operation.jobs[usize::from(host)]);
        jobs.filter(|job| job.work == Work::Waiting)
            .map(|job| job.place)
    }
}

impl super::Host {
    /// Witness: what came earlier goes earlier.
    pub(super) fn in_order(&mut self, place: u16) {
        self.out_of_order |= place < self.begun_up_to;
        self.begun_up_to = self.begun_up_to.max(place);
    }
}
