//! Holds a game against the model: what happened is put into the model's steps, one connection at a
//! time, and each of them has to be allowed where it comes.
//!
//! A trace does not tell everything. What nobody can see, the model puts in itself, as far as there is
//! only one way to what was seen; and where it takes a look at what comes later to know what became of
//! something, [`ahead`] takes it.

#[path = "conform/ahead.rs"]
mod ahead;
#[path = "conform/connection.rs"]
mod connection;
#[path = "conform/operation.rs"]
mod operation;
#[path = "conform/wire.rs"]
mod wire;
#[path = "conform/wrong.rs"]
pub(super) mod wrong;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ahead::Ahead;

use super::{
    kept::kept,
    machine::{self, Contract, Journal, Machine, Session, Setting, State},
    plan::{Ask, MOST_ATTEMPTS, Plan},
    trace::{End, Fact, Step, What},
    world::{CONNECTIONS, LENT},
};

/// Everything happens in one host at a time, which is the model's first.
const HOST: u8 = 0;

/// How much of a game the model had a say in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Followed {
    pub(super) games: u64,
    /// Operations that were asked for, and followed.
    pub(super) operations: u64,
    /// Operations that were asked for, and left out.
    pub(super) left_out: u64,
    /// Steps that the model allowed, beside those that nobody saw.
    pub(super) steps: u64,
}

/// Follows all connections of a game. `refused`: the operations of which the store refused a write.
pub(super) fn follow(
    trace: &[Step],
    plan: &Plan,
    refused: &BTreeSet<usize>,
) -> Result<Followed, String> {
    let ahead = Ahead::of(trace, plan);
    let mut followed = Followed {
        games: 1,
        ..Followed::default()
    };
    for connection in 0..CONNECTIONS.len() {
        let asked: Vec<usize> = ahead.asked_of(plan, connection);
        let modelled = |it: &usize| is_modelled(&ahead, plan, *it);
        let (operations, left_out): (Vec<_>, Vec<_>) = asked.into_iter().partition(modelled);
        followed.operations += operations.len() as u64;
        followed.left_out += left_out.len() as u64;
        // Fewer operations are followed faster.
        let steps = match operations.len() {
            0..=4 => Follower::<4>::all(&ahead, plan, refused, connection, &operations),
            5..=8 => Follower::<8>::all(&ahead, plan, refused, connection, &operations),
            _ => Follower::<24>::all(&ahead, plan, refused, connection, &operations),
        };
        followed.steps += steps?;
    }
    Ok(followed)
}

/// Whether the model has what an operation lives through.
fn is_modelled(ahead: &Ahead<'_>, plan: &Plan, operation: usize) -> bool {
    let planned = &plan.operations[operation];
    let records = plan.journal && planned.ask.tool().is_some();
    let others = plan.operations.iter();
    let shares = planned.key.is_some() && others.filter(|it| it.key == planned.key).count() > 1;
    match records {
        // Without a record of its own it is told what became of another one.
        true => !shares || ahead.has_record(operation),
        // What is looked up may be what another one did.
        false => !shares || !ahead.was_looked_up(operation),
    }
}

fn contract(ask: Ask) -> Contract {
    match ask {
        Ask::Pay => Contract::AtMostOnce,
        Ask::Peek => Contract::Idempotent,
        Ask::PayKeyed => Contract::Keyed,
        Ask::PayStatus => Contract::StatusFinal,
        Ask::Order => Contract::Receipts,
        Ask::Ping | Ask::ReadResource => Contract::Read,
        Ask::Custom => Contract::Request,
    }
}

/// One connection of a game, as the model has it.
struct Follower<'a, const N: usize> {
    ahead: &'a Ahead<'a>,
    /// The operations of which the store refused a write.
    refused: &'a BTreeSet<usize>,
    connection: usize,
    /// The operations that are followed, and their numbers in the model.
    numbers: BTreeMap<usize, u8>,
    machine: Machine<N>,
    state: State<N>,
    /// The model's generations, by those that this life's host tells.
    generations: BTreeMap<u64, u8>,
    newest: Option<u64>,
    retired: bool,
    lives: usize,
    /// The sessions of pipes.
    links: BTreeMap<usize, Session>,
    /// Requests that were begun, and have not reached the server.
    under_way: Vec<(usize, Session, (usize, i64))>,
    /// When sessions ended, in milliseconds, and which was the last one of an operation.
    ends: BTreeMap<Session, u64>,
    last: BTreeMap<u8, Session>,
    /// Callers of which the model knows what they are told.
    told: BTreeSet<usize>,
    /// Where in the trace this is.
    at: usize,
    steps: u64,
}

/// Why a step cannot be.
type Allowed = Result<(), String>;

impl<'a, const N: usize> Follower<'a, N> {
    fn all(
        ahead: &'a Ahead<'a>,
        plan: &Plan,
        refused: &'a BTreeSet<usize>,
        connection: usize,
        operations: &[usize],
    ) -> Result<u64, String> {
        let mut contracts = [Contract::AtMostOnce; N];
        let mut numbers = BTreeMap::new();
        for (number, operation) in operations.iter().enumerate() {
            contracts[number] = contract(plan.operations[*operation].ask);
            numbers.insert(*operation, u8::try_from(number).expect("they are few"));
        }
        let lent = connection == LENT;
        let setting = Setting {
            lent,
            ordered: !lent,
            journal: match plan.journal {
                true => Journal::Alone,
                false => Journal::Off,
            },
            receipts: true,
            stalls: false,
            max_attempts: u8::try_from(MOST_ATTEMPTS).expect("they are few"),
            contracts,
        };
        let state = setting.start();
        let mut follower = Self {
            ahead,
            refused,
            connection,
            numbers,
            machine: Machine::new(setting),
            state,
            generations: BTreeMap::new(),
            newest: None,
            retired: false,
            lives: 0,
            links: BTreeMap::new(),
            under_way: Vec::new(),
            ends: BTreeMap::new(),
            last: BTreeMap::new(),
            told: BTreeSet::new(),
            at: 0,
            steps: 0,
        };
        for (at, step) in ahead.trace.iter().enumerate() {
            follower.at = at;
            let taken = follower.take(&step.what).and_then(|()| follower.holds());
            taken.map_err(|why| {
                format!("{}, step {at}, {step}\n    {why}", CONNECTIONS[connection])
            })?;
        }
        Ok(follower.steps)
    }

    fn take(&mut self, what: &What) -> Allowed {
        match what {
            What::HostStarted => self.host_started(),
            What::HostGone { .. } => self.host_gone(),
            What::Asked { operation } => self.asked(*operation),
            What::Left { operation } => self.left(*operation),
            What::Told { operation, end } => self.told(*operation, end),
            What::Recorded {
                operation,
                fact,
                by,
                state,
            } => self.recorded(*operation, fact, by, *state),
            What::Claimed { operation } => self.claimed(*operation),
            What::Released { operation } => self.released(*operation),
            What::Event(told) if told.connection == self.connection => self.event(&told.what),
            What::Opened { link, connection } if *connection == self.connection => {
                self.opened(*link)
            }
            What::Begun { link, frame } if self.links.contains_key(link) => {
                self.begun(*link, frame)
            }
            What::Effect { link, frame } if self.links.contains_key(link) => {
                self.served(*link, frame)
            }
            What::Answers { link, frame, how } if self.links.contains_key(link) => {
                self.served(*link, frame)?;
                self.looked(*link, frame, how)
            }
            _ => Ok(()),
        }
    }

    fn event(&mut self, fact: &Fact) -> Allowed {
        match fact {
            Fact::Starting { generation } => self.starting(*generation),
            Fact::Started { .. } => self.step(machine::Step::Opened { host: HOST }),
            Fact::StartFailed { .. } => self.step(machine::Step::OpenFailed { host: HOST }),
            Fact::Retired { .. } => {
                self.retired = true;
                Ok(())
            }
            Fact::Lost { generation, .. } | Fact::Stopped { generation } => {
                self.ended(Some(*generation))
            }
            Fact::LentLost => self.ended(None),
            Fact::Attempt {
                operation: Some(operation),
                generation,
                ..
            } => self.handed_over(*operation, *generation),
            Fact::LookedUp {
                operation: Some(operation),
                found,
            } => self.looked_up(*operation, *found),
            _ => Ok(()),
        }
    }

    /// In milliseconds.
    fn now(&self) -> u64 {
        self.ahead.trace[self.at].at
    }

    /// A step that was seen, with what nobody saw before it.
    fn step(&mut self, step: machine::Step) -> Allowed {
        let next = self.machine.follow(&self.state, &step);
        self.go(step, next)
    }

    /// A step, with nothing before it.
    fn just(&mut self, step: machine::Step) -> Allowed {
        let next = self.machine.allowed(&self.state, &step);
        self.go(step, next)
    }

    fn go(&mut self, step: machine::Step, next: Result<State<N>, machine::Refused>) -> Allowed {
        self.state = next.map_err(|why| {
            let about = self.numbers.iter();
            let about = about.fold(String::new(), |about, (operation, op)| {
                about + &format!("\n    {operation}, {op}: {}", self.shown(*op))
            });
            format!("{step:?}: {why}{about}")
        })?;
        self.steps += 1;
        Ok(())
    }

    /// An operation in the model, without all that is as it was in the beginning.
    fn shown(&self, op: u8) -> String {
        let it = &self.state.ops[usize::from(op)];
        let sendings = it.sendings.iter().filter(|s| s.cell != machine::Cell::Free);
        format!(
            "{:?}, {:?}, {:?}, effects {} of {}, {:?}",
            it.caller,
            it.jobs[usize::from(HOST)],
            it.record,
            it.effects,
            it.authorised,
            sendings.collect::<Vec<_>>(),
        )
    }

    /// Whether the promises are kept, by what only the model's witness knows.
    fn holds(&self) -> Allowed {
        for (operation, op) in &self.numbers {
            let at = usize::from(*op);
            let mut it = self.state.ops[at];
            let rejected = it.caller == machine::Caller::Told(machine::Ending::Rejected);
            if rejected && self.refused.contains(operation) {
                // What the store did not take is in doubt there, and whoever resolves it may send it.
                it.caller = machine::Caller::Gone;
            }
            if !kept(&it, self.machine.setting.contracts[at], true) {
                return Err(format!(
                    "operation {operation} keeps no promise: {}",
                    self.shown(*op)
                ));
            }
        }
        let host = &self.state.hosts[usize::from(HOST)];
        match host.out_of_order || host.touched_lent || host.used_lost_lent {
            true => Err(format!("the connection keeps no promise: {host:?}")),
            false => Ok(()),
        }
    }
}

impl Followed {
    /// Of so many operations in a hundred the model has all that they live through.
    pub(super) fn share(&self) -> f64 {
        let all = self.operations + self.left_out;
        100.0 * self.operations as f64 / all.max(1) as f64
    }
}

impl fmt::Display for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the model allows {} steps of {} operations in {} games; {} operations are left out, \
             {:.1} % are followed",
            self.steps,
            self.operations,
            self.games,
            self.left_out,
            self.share(),
        )
    }
}

impl std::ops::AddAssign for Followed {
    fn add_assign(&mut self, other: Self) {
        self.games += other.games;
        self.operations += other.operations;
        self.left_out += other.left_out;
        self.steps += other.steps;
    }
}

/// What an end is to the model.
fn ending(end: &End) -> machine::Ending {
    use machine::Ending;
    use mcp_supervisor::Outcome;
    match end {
        End::Answered { is_error: true, .. } => Ending::Failed,
        End::Answered { .. } | End::Read => Ending::Answered,
        End::Without { outcome, .. } => match outcome {
            Outcome::NotSent => Ending::NotSent,
            Outcome::Rejected => Ending::Rejected,
            Outcome::Failed => Ending::Failed,
            Outcome::Unknown => Ending::Unknown,
        },
    }
}
