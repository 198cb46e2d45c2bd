//! What a game has in store, drawn before it begins: how many hosts live one after the other, what is
//! asked of them and when, and what is done to them.

use std::time::Duration;

use mcp_supervisor::{
    ConnectionSpec, Era, LentSpec, Limits, ToolContract,
    policy::{Backoff, Repeats},
    spec::{KeepAlive, Overload, Recovery, Revision},
};

use super::{
    dice::Dice,
    server::SLOWEST,
    trace::Mark,
    world::{CONNECTIONS, LENT},
};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ask {
    /// A tool without a contract.
    Pay,
    /// A tool that its client vouches for as harmless.
    Peek,
    PayKeyed,
    PayStatus,
    Order,
    Ping,
    ReadResource,
    Custom,
}

impl Ask {
    pub(super) fn tool(self) -> Option<&'static str> {
        match self {
            Self::Pay => Some("pay"),
            Self::Peek => Some("peek"),
            Self::PayKeyed => Some("pay_keyed"),
            Self::PayStatus => Some("pay_status"),
            Self::Order => Some("order"),
            Self::Ping | Self::ReadResource | Self::Custom => None,
        }
    }
}

/// The most attempts that a contract may make of one call.
pub(super) const MOST_ATTEMPTS: u32 = 3;

/// One operation of a caller's.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// In which life it is asked for.
    pub(super) life: usize,
    /// When, from the beginning of that life on.
    pub(super) at: u64,
    pub(super) connection: usize,
    pub(super) ask: Ask,
    pub(super) mark: Mark,
    pub(super) key: Option<String>,
    pub(super) deadline: Duration,
    pub(super) attempt: Option<Duration>,
    pub(super) idle: Option<Duration>,
    pub(super) keeps_arguments: bool,
    /// So long after it was asked for.
    pub(super) cancel: Option<u64>,
    pub(super) leave: Option<u64>,
}

/// One life of a host.
#[derive(Clone, Debug)]
pub(super) struct Life {
    /// When it is killed, if it is not stopped as it should be.
    pub(super) crash: Option<u64>,
    /// When a new session is asked for, and of which connection.
    pub(super) reconnects: Vec<(u64, usize)>,
    /// When a server is killed.
    pub(super) kills: Vec<(u64, usize)>,
    /// When what became of an operation is to be found out.
    pub(super) resolves: Vec<(u64, usize)>,
    /// How long after it the next one begins.
    pub(super) pause: u64,
}

pub(super) struct Plan {
    pub(super) lives: Vec<Life>,
    pub(super) operations: Vec<Planned>,
    pub(super) journal: bool,
    /// In how many of a hundred writes the store refuses, and how long it takes.
    pub(super) store: (u64, u64),
    limits: Vec<Limits>,
    eras: Vec<u64>,
    keep_alive: bool,
}

fn millis(many: u64) -> Duration {
    Duration::from_millis(many)
}

/// A limit: an odd number of milliseconds.
fn odd(many: u64) -> Duration {
    millis(many | 1)
}

impl Plan {
    pub(super) fn of(dice: &mut Dice) -> Self {
        let many = dice.pick(&[1, 1, 1, 2, 2, 3]);
        let mut lives: Vec<Life> = (0..many).map(|_| Life::of(dice)).collect();
        // The last one is there for the end of all troubles.
        lives[many - 1].crash = None;
        let mut operations: Vec<Planned> = Vec::new();
        for life in 0..many {
            for _ in 0..dice.range(2, 7) {
                let planned = operation(dice, life, &operations);
                operations.push(planned);
            }
        }
        let mut plan = Self {
            lives,
            operations,
            journal: dice.percent(55),
            store: (dice.pick(&[0, 0, 0, 5, 20]), dice.pick(&[0, 0, 3, 40])),
            limits: (0..CONNECTIONS.len()).map(|_| limits(dice)).collect(),
            eras: (0..CONNECTIONS.len()).map(|_| dice.range(0, 99)).collect(),
            keep_alive: dice.percent(15),
        };
        plan.resolve(dice);
        plan
    }

    /// In a later life somebody asks what became of the operations before it.
    fn resolve(&mut self, dice: &mut Dice) {
        for operation in 0..self.operations.len() {
            let asked_in = self.operations[operation].life;
            let later = asked_in + dice.range(0, 1) as usize;
            if self.journal && dice.percent(40) && later < self.lives.len() {
                let at = dice.range(10, 4_000);
                self.lives[later].resolves.push((at, operation));
            }
        }
    }

    pub(super) fn owned(&self, connection: usize, spec: ConnectionSpec) -> ConnectionSpec {
        let era = match (connection, self.eras[connection]) {
            (1, _) | (_, 0..40) => Era::Initialize(Revision::V2025_11_25),
            (_, 40..75) => Era::Discover,
            _ => Era::Automatic,
        };
        let mut spec = contracts(spec)
            .era(era)
            .limits(self.limits[connection].clone())
            .repeats(repeats())
            .recovery(Recovery {
                max_restarts: 4,
                period: odd(5_000),
                cool_down: odd(700),
                backoff: AT_ONCE,
            });
        if self.keep_alive {
            spec = spec.keep_alive(KeepAlive {
                every: odd(500),
                timeout: odd(200),
            });
        }
        spec
    }

    pub(super) fn lent(&self) -> LentSpec {
        let spec = LentSpec::new()
            .limits(self.limits[LENT].clone())
            .repeats(repeats())
            .contract("peek", ToolContract::ReadOnly)
            .contract("pay_keyed", ToolContract::keyed("key"));
        spec.contract("order", ToolContract::Receipts)
    }
}

/// Without a wait, because its jitter is chance that no seed reproduces.
const AT_ONCE: Backoff = Backoff {
    base: Duration::ZERO,
    cap: Duration::ZERO,
};

fn repeats() -> Repeats {
    Repeats {
        max_attempts: MOST_ATTEMPTS,
        backoff: AT_ONCE,
    }
}

/// After what time absence is final: a request that is late by more than that has been lost.
pub(super) const ABSENCE_FINAL: Duration = Duration::from_millis(SLOWEST + 2_001);

fn contracts(spec: ConnectionSpec) -> ConnectionSpec {
    spec.contract("peek", ToolContract::ReadOnly)
        .contract("pay_keyed", ToolContract::keyed("key"))
        .contract("order", ToolContract::Receipts)
        .contract(
            "pay_status",
            ToolContract::Status {
                tool: "lookup".to_owned(),
                argument: "key".to_owned(),
                absence_final_after: Some(ABSENCE_FINAL),
            },
        )
}

fn limits(dice: &mut Dice) -> Limits {
    Limits {
        total: odd(8_000),
        start: odd(1_500),
        discover: odd(400),
        max_in_flight: dice.pick(&[1, 2, 64]),
        max_queued: dice.pick(&[1, 64]),
        overload: match dice.percent(50) {
            true => Overload::Wait,
            false => Overload::Refuse,
        },
        stdin_grace: odd(100),
        term_grace: odd(100),
        reconnect_grace: odd(300),
        ..Limits::default()
    }
}

fn operation(dice: &mut Dice, life: usize, before: &[Planned]) -> Planned {
    let number = before.len();
    let latest = dice.pick(&[60, 2_500]);
    let at = dice.range(5, latest);
    // The same call again, as a caller makes it that has lost its answer.
    let again: Vec<&Planned> = before.iter().filter(|it| it.key.is_some()).collect();
    if !again.is_empty() && dice.percent(20) {
        let again = again[dice.index(again.len())].clone();
        return Planned {
            life,
            at,
            deadline: odd(dice.range(200, 8_000)),
            cancel: None,
            leave: None,
            ..again
        };
    }
    let connection = dice.pick(&[0, 0, 0, 1, 1, LENT]);
    let mut ask = dice.pick(&[
        Ask::Pay,
        Ask::Pay,
        Ask::Pay,
        Ask::Peek,
        Ask::PayKeyed,
        Ask::PayKeyed,
        Ask::PayStatus,
        Ask::Order,
        Ask::Ping,
        Ask::ReadResource,
        Ask::Custom,
    ]);
    if ask == Ask::PayStatus && connection == LENT {
        ask = Ask::Pay;
    }
    let given = ask == Ask::PayStatus || dice.percent(60);
    let keyed = matches!(ask, Ask::PayKeyed | Ask::PayStatus | Ask::Order);
    let deadline = odd(match dice.percent(40) {
        true => dice.range(20, 700),
        false => dice.range(700, 9_000),
    });
    Planned {
        life,
        at,
        connection,
        ask,
        mark: number,
        key: (keyed && given).then(|| format!("key-{number}")),
        deadline,
        attempt: dice
            .percent(15)
            .then(|| odd(dice.range(10, 600)).min(deadline)),
        idle: dice.percent(10).then(|| odd(dice.range(50, 900))),
        keeps_arguments: dice.percent(70),
        cancel: dice.percent(12).then(|| dice.range(0, 900)),
        leave: dice.percent(12).then(|| dice.range(0, 900)),
    }
}

impl Life {
    fn of(dice: &mut Dice) -> Self {
        let mut several = |percent, most, many| {
            let mut of = Vec::new();
            while of.len() < 3 && dice.percent(percent) {
                of.push((dice.range(1, most), dice.index(many)));
            }
            of
        };
        let reconnects = several(15, 2_500, LENT);
        let kills = several(35, 3_000, CONNECTIONS.len());
        Self {
            crash: dice.percent(45).then(|| dice.range(1, 3_000)),
            reconnects,
            kills,
            resolves: Vec::new(),
            pause: dice.range(1, 900),
        }
    }
}
