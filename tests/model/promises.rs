//! What always holds, and what comes at last.

use mcp_supervisor::journal::table;
use stateright::Property;

use super::{
    kept::{authorised, not_sent, once_per_key, one_outcome, own_answer, rejected},
    machine::{Caller, Contract, Ending, Job, Look, Operation, Passage, Sending, Session, Work},
    world::{Moment, World},
};

pub(crate) const AUTHORISED: &str = "no more effects than the client's policy authorised";
pub(crate) const ONCE_PER_KEY: &str = "with a key and receipts, one effect at most";
pub(crate) const NOT_SENT: &str = "not sent means no effect, ever";
pub(crate) const REJECTED: &str = "rejected by an honest server means no effect";
pub(crate) const LENT: &str =
    "what its caller owns is not opened, not closed, and not used once lost";
pub(crate) const ORDER: &str = "what came first goes first";
pub(crate) const ONE_OUTCOME: &str = "no caller is given two outcomes";
pub(crate) const OWN_ANSWER: &str = "an answer is the operation's own";
pub(crate) const ONE_RESOLVES: &str = "one at a time has an operation";
pub(crate) const RESOLVED: &str = "every operation ends, and its record rests";
pub(crate) const NEXT_SUCCEEDS: &str = "with a healthy server, the next operation succeeds";

pub(crate) const THIRD_SESSION: &str = "a third session";
pub(crate) const TWO_CRASHES: &str = "two crashes";
pub(crate) const OTHER_HOST: &str = "a host resolves what another one began";
pub(crate) const EARLY_LOOK_UP: &str = "a look-up finds nothing while the request is on its way";
pub(crate) const RAN_UNKNOWN: &str = "what nobody knows of has run";
pub(crate) const RAN_TWICE: &str = "what may be repeated has run twice";

/// What is seen in some order, so that the promises are not kept for want of anything going wrong.
pub(crate) const SEEN: [&str; 6] = [
    THIRD_SESSION,
    TWO_CRASHES,
    OTHER_HOST,
    EARLY_LOOK_UP,
    RAN_UNKNOWN,
    RAN_TWICE,
];

fn seen<const N: usize>() -> [Property<World<N>>; SEEN.len()] {
    fn some<const N: usize>(now: &Moment<N>, holds: fn(&Operation) -> bool) -> bool {
        now.state.ops.iter().any(holds)
    }
    [
        Property::sometimes(THIRD_SESSION, |_, now: &Moment<N>| {
            now.state.hosts.iter().any(|host| host.generation > 2)
        }),
        Property::sometimes(TWO_CRASHES, |world: &World<N>, now: &Moment<N>| {
            world.bounds.crashes == 2 && now.luck.crashes == 0 && !is_calm(world, now)
        }),
        Property::sometimes(OTHER_HOST, |_, now| {
            some(now, |op| op.home == 0 && op.jobs[1].resolves)
        }),
        Property::sometimes(EARLY_LOOK_UP, |_, now| {
            some(now, |op| {
                let on_its_way = |s: &Sending| s.request == Passage::UnderWay;
                let absent = |job: &Job| matches!(job.look, Look::Served { found: false, .. });
                op.jobs.iter().any(absent) && op.sendings.iter().any(on_its_way)
            })
        }),
        Property::sometimes(RAN_UNKNOWN, |_, now| {
            some(now, |op| {
                op.caller == Caller::Told(Ending::Unknown) && op.effects == 1
            })
        }),
        Property::sometimes(RAN_TWICE, |_, now| some(now, |op| op.effects == 2)),
    ]
}

/// Whether nothing goes wrong any more.
fn is_calm<const N: usize>(world: &World<N>, now: &Moment<N>) -> bool {
    world.calm_at_last && now.state.ops[N - 1].caller != Caller::NotYet
}

/// Every promise, and [what is seen](SEEN).
pub(crate) fn all<const N: usize>() -> Vec<Property<World<N>>> {
    let promises = vec![
        Property::always(AUTHORISED, |world, now| each(world, now, authorised)),
        Property::always(ONCE_PER_KEY, |world: &World<N>, now: &Moment<N>| {
            !world.machine.setting.receipts || each(world, now, once_per_key)
        }),
        Property::always(NOT_SENT, |world, now| each(world, now, not_sent)),
        Property::always(REJECTED, |world, now| each(world, now, rejected)),
        Property::always(LENT, |_, now: &Moment<N>| {
            let mut hosts = now.state.hosts.iter();
            hosts.all(|host| !host.touched_lent && !host.used_lost_lent)
        }),
        Property::always(ORDER, |_, now: &Moment<N>| {
            now.state.hosts.iter().all(|host| !host.out_of_order)
        }),
        Property::always(ONE_OUTCOME, |world, now| each(world, now, one_outcome)),
        Property::always(OWN_ANSWER, |world, now| each(world, now, own_answer)),
        Property::always(ONE_RESOLVES, |_, now: &Moment<N>| {
            let mut ops = now.state.ops.iter();
            ops.all(|op| {
                let holds = |job: &&Job| {
                    job.work != Work::Nothing && job.held != 0 && job.held == op.record.fence
                };
                op.jobs.iter().filter(holds).count() <= 1
            })
        }),
        Property::eventually(RESOLVED, |world: &World<N>, now: &Moment<N>| {
            let claimable = |op: &Operation, contract: &Contract| {
                now.luck.resolves > 0
                    && op.record.state == Some(table::State::OutcomeUnknown)
                    && contract.resolves()
            };
            let mut each = now.state.ops.iter().zip(&world.machine.setting.contracts);
            each.all(|(op, contract)| rests(op) && !claimable(op, contract))
        }),
        Property::eventually(NEXT_SUCCEEDS, |world: &World<N>, now: &Moment<N>| {
            if !world.calm_at_last {
                return true;
            }
            let last = &now.state.ops[N - 1];
            let host = &now.state.hosts[usize::from(world.homes[N - 1])];
            match last.caller {
                Caller::Told(Ending::Answered) => true,
                Caller::Told(Ending::NotSent) => {
                    let generation = host.generation;
                    let host = world.homes[N - 1];
                    // Only its owner can supply another.
                    world.machine.setting.lent && !now.state.lives(Session { host, generation })
                }
                _ => false,
            }
        }),
    ];
    promises.into_iter().chain(seen()).collect()
}

/// Whether something holds for each operation.
fn each<const N: usize>(
    world: &World<N>,
    now: &Moment<N>,
    holds: fn(&Operation, Contract) -> bool,
) -> bool {
    let mut each = now.state.ops.iter().zip(world.machine.setting.contracts);
    each.all(|(op, contract)| holds(op, contract))
}

/// Whether everything about an operation is over, as far as anybody is going to do something about it.
pub(crate) fn rests(op: &Operation) -> bool {
    let caller = matches!(op.caller, Caller::Told(_) | Caller::Left | Caller::Gone);
    let jobs = op.jobs.iter().all(|job| job.work == Work::Nothing);
    let record = match op.record.state {
        None => true,
        Some(table::State::OutcomeUnknown) => op.record.owner.is_none() && !op.record.orphaned,
        Some(state) => state.is_settled(),
    };
    caller && jobs && record
}
