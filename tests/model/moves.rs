//! Which steps are worth trying in a moment. The rules have the last word; this only leaves out what they
//! would refuse anyway, or what changes nothing that anybody promised.

use super::{
    machine::{
        Caller, Cell, Contract, Ending, Fact, Fault, Journal, Life, Look, Passage, Phase, Reply,
        Sending, Session, Step, Work,
    },
    world::{Moment, Move, Price, Then, World},
};

/// The numbers of the operations.
pub(crate) fn numbers<const N: usize>() -> impl Iterator<Item = u8> {
    (0..N).map(|op| u8::try_from(op).unwrap_or(u8::MAX))
}

pub(crate) fn of<const N: usize>(world: &World<N>, moment: &Moment<N>, moves: &mut Vec<Move>) {
    let mut moves = Moves(moves);
    if let Some(step) = at_once(world, moment) {
        return moves.free(step);
    }
    let hosts = match world.machine.setting.journal {
        Journal::Shared => 2,
        Journal::Off | Journal::Alone => 1,
    };
    for op in numbers::<N>() {
        call(world, moment, op, &mut moves);
        for host in 0..hosts {
            work(world, moment, op, host, &mut moves);
        }
        for sending in &moment.state.ops[usize::from(op)].sendings {
            wire(world, moment, op, sending, &mut moves);
        }
        record(world, moment, op, hosts, &mut moves);
    }
    for host in 0..hosts {
        connection(moment, host, &mut moves);
    }
}

/// A step that nothing else can be before or after with another end: a caller is told what will not change
/// any more, or what is durable goes into the mailbox.
fn at_once<const N: usize>(world: &World<N>, moment: &Moment<N>) -> Option<Step> {
    numbers::<N>().find_map(|op| {
        let operation = &moment.state.ops[usize::from(op)];
        let home = usize::from(operation.home);
        let waits = operation.caller == Caller::Waits;
        match operation.jobs[home].work {
            Work::Settled(ending) if waits => Some(Step::Told { op, ending }),
            Work::Known(ending)
                if waits
                    && ending != Ending::Unknown
                    && world.machine.setting.journal == Journal::Off =>
            {
                Some(Step::Told { op, ending })
            }
            _ => {
                let ready = |host: &usize| operation.jobs[*host].work == Work::Ready;
                let host = (0..operation.jobs.len()).find(ready)?;
                let host = u8::try_from(host).unwrap_or(u8::MAX);
                Some(Step::Mailed { op, host })
            }
        }
    })
}

struct Moves<'a>(&'a mut Vec<Move>);

impl Moves<'_> {
    fn free(&mut self, step: Step) {
        self.add(step, Price::Free);
    }

    fn add(&mut self, step: Step, price: Price) {
        self.with(step, Then::Nothing, price);
    }

    fn with(&mut self, step: Step, then: Then, price: Price) {
        self.0.push(Move { step, then, price });
    }
}

/// Whether everything that goes wrong is over, and this operation is the one that has to succeed.
fn is_the_next<const N: usize>(world: &World<N>, op: u8) -> bool {
    world.calm_at_last && usize::from(op) == N - 1
}

fn call<const N: usize>(world: &World<N>, moment: &Moment<N>, op: u8, moves: &mut Moves<'_>) {
    let operation = &moment.state.ops[usize::from(op)];
    match operation.caller {
        Caller::NotYet => {
            // In their order, because their numbers mean nothing else.
            let before = usize::from(op).checked_sub(1);
            let first =
                before.is_none_or(|before| moment.state.ops[before].caller != Caller::NotYet);
            if first {
                let host = world.homes[usize::from(op)];
                moves.free(Step::Called { op, host });
            }
        }
        Caller::Waits => {
            if !is_the_next(world, op) {
                moves.add(Step::Left { op }, Price::Leave);
            }
            let job = &operation.jobs[usize::from(operation.home)];
            if let Work::Known(ending) | Work::Settled(ending) = job.work
                && job.look == Look::None
            {
                moves.free(Step::Told { op, ending });
            }
        }
        Caller::Told(_) | Caller::Left | Caller::Gone => {}
    }
}

fn work<const N: usize>(
    world: &World<N>,
    moment: &Moment<N>,
    op: u8,
    host: u8,
    moves: &mut Moves<'_>,
) {
    let state = &moment.state;
    let operation = &state.ops[usize::from(op)];
    let job = &operation.jobs[usize::from(host)];
    let connection = &state.hosts[usize::from(host)];
    let current = Session {
        host,
        generation: connection.generation,
    };
    let journaled = world.machine.setting.journal != Journal::Off;
    let record = |fact| Step::Recorded { op, host, fact };
    let patient = is_the_next(world, op);
    match job.work {
        Work::Nothing | Work::Settled(_) => {}
        Work::Owed(ending) => {
            moves.free(record(Fact::AcceptedWithAttempt));
            moves.free(record(Fact::Ended(ending)));
            if is_nobodys(operation, host) {
                moves.free(Step::RecordFailed { op, host });
            }
        }
        Work::Intended => {
            moves.free(record(Fact::Accepted));
            moves.free(record(Fact::AcceptedWithAttempt));
            moves.add(Step::RecordFailed { op, host }, Price::Unwritten);
            if !patient && operation.caller == Caller::Waits {
                let ending = Ending::NotSent;
                moves.add(Step::Told { op, ending }, Price::Impatience);
            }
        }
        Work::Due => {
            moves.free(record(Fact::Dispatching));
            let price = unwritten(operation, host);
            moves.add(Step::RecordFailed { op, host }, price);
            if !patient && operation.caller == Caller::Waits && operation.home == host {
                let ending = Ending::Unknown;
                moves.add(Step::ToldUnrecorded { op, ending }, Price::Unwritten);
            }
            if world.machine.fault == Some(Fault::RecordAfterHandOver) {
                moves.free(Step::Mailed { op, host });
            }
        }
        Work::Ready => moves.free(Step::Mailed { op, host }),
        Work::Waiting => {
            moves.free(Step::HandedOver {
                op,
                session: current,
            });
            let lent_over = world.machine.setting.lent && !state.lives(current);
            let refused = connection.phase == Phase::Closed || lent_over;
            if refused {
                moves.free(Step::Refused { op, host });
            } else if !patient {
                moves.add(Step::Refused { op, host }, Price::Impatience);
            }
        }
        Work::Handed => {
            let Some(sending) = operation.in_hand(host) else {
                return;
            };
            let lives = state.lives(sending.session);
            let hopeless = sending.request == Passage::Lost || sending.answer == Passage::Lost;
            if !state.in_force(sending.session) {
                moves.free(Step::TakenBack { op, host });
            }
            if !patient {
                moves.add(Step::GivenUp { op, host }, Price::Impatience);
            }
            let lost = Step::LostSight { op, host };
            match lives {
                false => moves.free(lost),
                true if patient => {}
                true => {
                    let price = match hopeless {
                        true => Price::Free,
                        false => Price::Impatience,
                    };
                    moves.with(lost, Then::Suspect { host }, price);
                }
            }
        }
        Work::Known(ending) => {
            match job.look {
                Look::None => {}
                Look::Asked { .. } => {
                    moves.free(Step::LookUpServed { op, host });
                    moves.add(Step::LookUpLost { op, host }, Price::Astray);
                }
                Look::Served { .. } => {
                    moves.free(Step::LookUpHeard { op, host });
                    moves.add(Step::LookUpLost { op, host }, Price::Astray);
                }
            }
            if ending == Ending::Unknown {
                moves.free(Step::Repeated { op, host });
                moves.free(Step::LookUpAsked { op, host });
                moves.free(Step::Released { op, host });
            }
            if journaled {
                if operation.caller == Caller::Waits && operation.home == host {
                    for ending in [ending, Ending::Unknown] {
                        moves.add(Step::ToldUnrecorded { op, ending }, Price::Unwritten);
                    }
                }
                moves.free(record(Fact::Ended(ending)));
                if is_nobodys(operation, host) {
                    moves.free(Step::RecordFailed { op, host });
                }
            }
        }
    }
    let after = world.machine.fault == Some(Fault::RecordAfterHandOver);
    if after && matches!(job.work, Work::Waiting | Work::Handed | Work::Known(_)) {
        moves.free(record(Fact::Dispatching));
    }
}

/// A write that a fence stops fails for nothing.
fn unwritten(operation: &super::machine::Operation, host: u8) -> Price {
    let job = &operation.jobs[usize::from(host)];
    let record = &operation.record;
    match job.held != record.fence || record.orphaned {
        true => Price::Free,
        false => Price::Unwritten,
    }
}

/// Whether a host has nothing to write its end to: there is no record, or a fence is before it. Otherwise
/// the store is asked until it takes it.
fn is_nobodys(operation: &super::machine::Operation, host: u8) -> bool {
    operation.record.state.is_none() || unwritten(operation, host) == Price::Free
}

fn wire<const N: usize>(
    world: &World<N>,
    moment: &Moment<N>,
    op: u8,
    sending: &Sending,
    moves: &mut Moves<'_>,
) {
    let session = sending.session;
    match (sending.cell, sending.request, sending.answer) {
        (Cell::Free, ..) => {}
        (Cell::Queued, ..) => moves.free(Step::Begun { op, session }),
        (Cell::Writing, Passage::UnderWay, _) => {
            let arrived = |reply| Step::Arrived { op, session, reply };
            moves.free(arrived(Reply::Result));
            moves.add(arrived(Reply::Error), Price::Refusal);
            moves.add(arrived(Reply::Refusal), Price::Refusal);
            // With its session's end a request may just vanish.
            let price = match moment.state.lives(session) {
                true => Price::Astray,
                false => Price::Free,
            };
            moves.add(Step::RequestLost { op, session }, price);
        }
        (Cell::Writing, Passage::There, Passage::UnderWay) => {
            moves.free(Step::AnswerRead { op, session });
            moves.free(Step::LateAnswer { op, session });
            let price = match moment.state.lives(session) {
                true => Price::Astray,
                false => Price::Free,
            };
            moves.add(Step::AnswerLost { op, session }, price);
            if world.machine.fault == Some(Fault::AnswerOfAnotherSession) {
                for op in numbers::<N>() {
                    moves.free(Step::AnswerRead { op, session });
                }
            }
        }
        (Cell::Writing, ..) => {}
    }
}

fn record<const N: usize>(
    world: &World<N>,
    moment: &Moment<N>,
    op: u8,
    hosts: u8,
    moves: &mut Moves<'_>,
) {
    let operation = &moment.state.ops[usize::from(op)];
    if world.machine.setting.contracts[usize::from(op)] == Contract::StatusFinal {
        moves.free(Step::AbsenceFinal { op });
    }
    if operation.record.state.is_none() {
        return;
    }
    for host in 0..hosts {
        if operation.record.orphaned {
            moves.free(Step::TakenOver { op, host });
        }
        moves.add(Step::Claimed { op, host }, Price::Resolve);
    }
}

fn connection<const N: usize>(moment: &Moment<N>, host: u8, moves: &mut Moves<'_>) {
    let connection = &moment.state.hosts[usize::from(host)];
    match connection.life {
        Life::Up => {
            moves.add(Step::Crashed { host }, Price::Crash);
            moves.add(Step::LeaseOver { host }, Price::Stall);
        }
        Life::Down | Life::Buried => {
            moves.free(Step::LeaseOver { host });
            moves.free(Step::Restarted { host });
            return;
        }
    }
    let opening = |asked| Step::Opening { host, asked };
    match connection.phase {
        Phase::Idle => {
            moves.free(opening(false));
            moves.add(opening(true), Price::Reconnect);
        }
        Phase::Live => {
            moves.free(opening(false));
            moves.add(opening(true), Price::Reconnect);
            moves.add(Step::Suspected { host }, Price::Reconnect);
        }
        Phase::Starting => {
            moves.free(Step::Opened { host });
            let (failed, then) = (Step::OpenFailed { host }, Then::RefuseAll { host });
            moves.with(failed, then, Price::FailedStart);
        }
        Phase::Closed => {}
    }
    if connection.phase != Phase::Closed {
        moves.add(Step::Closed { host }, Price::Close);
    }
    for generation in 1..=connection.generation {
        let session = Session { host, generation };
        if moment.state.lives(session) {
            moves.add(Step::Ended { session }, Price::End);
        }
    }
}
