//! The world as a model checker explores it: the rules of [`machine`](super::machine), and how much may go
//! wrong.

use std::fmt;

use stateright::{Model, Property};

use super::{
    machine::{Machine, State, Step},
    moves, promises,
};

/// A setting with its bounds.
#[derive(Clone)]
pub(crate) struct World<const N: usize> {
    pub(crate) machine: Machine<N>,
    /// Which host each operation is called in.
    pub(crate) homes: [u8; N],
    /// How much may go wrong.
    pub(crate) bounds: Luck,
    /// Whether the last operation is called after everything that goes wrong, by a caller who waits: the
    /// server is healthy, and it has to succeed.
    pub(crate) calm_at_last: bool,
}

/// How much may still go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Luck {
    /// Sessions that end.
    pub(crate) ends: u8,
    /// Sessions that cannot be started.
    pub(crate) failed_starts: u8,
    /// Messages that go astray.
    pub(crate) astray: u8,
    /// Waits that end by their deadline although something may still come.
    pub(crate) impatience: u8,
    /// Sessions that are suspected, or given up for another on their owner's wish.
    pub(crate) reconnects: u8,
    /// Callers who stop waiting.
    pub(crate) leaves: u8,
    /// Answers that are errors or refusals.
    pub(crate) refusals: u8,
    /// Connections that are closed.
    pub(crate) closes: u8,
    /// Hosts that crash.
    pub(crate) crashes: u8,
    /// Hosts that stand still for longer than their lease.
    pub(crate) stalls: u8,
    /// Orders to resolve an operation.
    pub(crate) resolves: u8,
    /// Writes of the journal that fail.
    pub(crate) unwritten: u8,
}

impl fmt::Display for Luck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = [
            (self.ends, "ends"),
            (self.failed_starts, "failed starts"),
            (self.astray, "lost messages"),
            (self.impatience, "early deadlines"),
            (self.reconnects, "reconnects"),
            (self.leaves, "leaving callers"),
            (self.refusals, "errors and refusals"),
            (self.closes, "closes"),
            (self.crashes, "crashes"),
            (self.stalls, "stalls"),
            (self.resolves, "resolves"),
            (self.unwritten, "failed writes"),
        ];
        let some = each.iter().filter(|(many, _)| *many > 0);
        let words: Vec<String> = some.map(|(many, what)| format!("{what} {many}")).collect();
        f.write_str(&words.join(", "))
    }
}

/// What goes wrong with a step, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Price {
    Free,
    End,
    FailedStart,
    Astray,
    Impatience,
    Reconnect,
    Leave,
    Refusal,
    Close,
    Crash,
    Stall,
    Resolve,
    Unwritten,
}

/// One moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Moment<const N: usize> {
    pub(crate) state: State<N>,
    pub(crate) luck: Luck,
}

/// One or two steps that nothing comes between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) step: Step,
    pub(crate) then: Then,
    pub(crate) price: Price,
}

/// What belongs to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    /// Who waited too long suspects the session.
    Suspect {
        host: u8,
    },
    /// All who wait for a start learn that it failed.
    RefuseAll {
        host: u8,
    },
}

impl Luck {
    /// What is left of it after that. `None`: there is no more of it.
    fn pay(mut self, price: Price) -> Option<Self> {
        let left = match price {
            Price::Free => return Some(self),
            Price::End => &mut self.ends,
            Price::FailedStart => &mut self.failed_starts,
            Price::Astray => &mut self.astray,
            Price::Impatience => &mut self.impatience,
            Price::Reconnect => &mut self.reconnects,
            Price::Leave => &mut self.leaves,
            Price::Refusal => &mut self.refusals,
            Price::Close => &mut self.closes,
            Price::Crash => &mut self.crashes,
            Price::Stall => &mut self.stalls,
            Price::Resolve => &mut self.resolves,
            Price::Unwritten => &mut self.unwritten,
        };
        *left = left.checked_sub(1)?;
        Some(self)
    }

    /// All that goes wrong is over.
    fn over(self) -> Self {
        Self {
            resolves: self.resolves,
            ..Self::default()
        }
    }
}

impl<const N: usize> World<N> {
    pub(crate) fn after(&self, moment: &Moment<N>, chosen: &Move) -> Option<Moment<N>> {
        let mut luck = moment.luck.pay(chosen.price)?;
        let mut state = self.machine.allowed(&moment.state, &chosen.step).ok()?;
        match chosen.then {
            Then::Nothing => {}
            Then::Suspect { host } => {
                let suspected = self.machine.allowed(&state, &Step::Suspected { host });
                state = suspected.unwrap_or(state);
            }
            Then::RefuseAll { host } => {
                for op in moves::numbers::<N>() {
                    let refused = self.machine.allowed(&state, &Step::Refused { op, host });
                    state = refused.unwrap_or(state);
                }
            }
        }
        let last = matches!(chosen.step, Step::Called { op, .. } if usize::from(op) == N - 1);
        if last && self.calm_at_last {
            luck = luck.over();
        }
        let mut moment = Moment { state, luck };
        self.forget_what_is_over(&mut moment);
        Some(moment)
    }
}

impl<const N: usize> Model for World<N> {
    type State = Moment<N>;
    type Action = Move;

    fn init_states(&self) -> Vec<Moment<N>> {
        vec![Moment {
            state: self.machine.setting.start(),
            luck: self.bounds,
        }]
    }

    fn actions(&self, moment: &Moment<N>, actions: &mut Vec<Move>) {
        moves::of(self, moment, actions);
    }

    fn next_state(&self, moment: &Moment<N>, action: Move) -> Option<Moment<N>> {
        self.after(moment, &action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}
