//! The settings that are explored, each with its bounds.

use super::{
    machine::{Contract, Journal, Machine, Setting},
    world::{Luck, World},
};

/// How far the exploration goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    /// As far as a few seconds go.
    Quick,
    /// As far as it is meant to go.
    Whole,
}

impl Bound {
    /// `MODEL_BOUND=whole` asks for all of it.
    pub(crate) fn asked_for() -> Self {
        match std::env::var("MODEL_BOUND").as_deref() {
            Ok("whole") => Self::Whole,
            Ok(other) => panic!("MODEL_BOUND is {other:?}; it can be \"whole\", or not be set"),
            Err(_) => Self::Quick,
        }
    }
}

/// One setting.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) world: World<3>,
}

const OWNED: Setting<3> = Setting {
    lent: false,
    ordered: true,
    journal: Journal::Off,
    receipts: false,
    stalls: false,
    max_attempts: 2,
    contracts: [Contract::AtMostOnce; 3],
};

const NONE: Luck = Luck {
    ends: 0,
    failed_starts: 0,
    astray: 0,
    impatience: 0,
    reconnects: 0,
    leaves: 0,
    refusals: 0,
    closes: 0,
    crashes: 0,
    stalls: 0,
    resolves: 0,
    unwritten: 0,
};

/// Every scene.
pub(crate) fn all(bound: Bound) -> Vec<Scene> {
    use Contract::{AtMostOnce, Idempotent, Keyed, Read, Status, StatusFinal};
    // Whole, or as much less.
    let more = |whole: u8, quick: u8| match bound {
        Bound::Whole => whole,
        Bound::Quick => quick,
    };
    let scene = |name, setting: Setting<3>, homes, bounds, calm_at_last| Scene {
        name,
        world: World {
            machine: Machine::new(setting),
            homes,
            bounds,
            calm_at_last,
        },
    };
    let here = [0; 3];
    let whole = bound == Bound::Whole;
    vec![
        scene(
            "an ordered transport",
            OWNED,
            here,
            Luck {
                ends: more(2, 1),
                impatience: more(1, 0),
                closes: 1,
                ..NONE
            },
            false,
        ),
        scene(
            "an ordered transport, and a healthy server at last",
            OWNED,
            here,
            Luck {
                ends: 2,
                failed_starts: 1,
                astray: more(1, 0),
                reconnects: more(1, 0),
                leaves: 1,
                ..NONE
            },
            true,
        ),
        scene(
            "a transport without order",
            Setting {
                ordered: false,
                ..OWNED
            },
            here,
            Luck {
                ends: more(1, 0),
                reconnects: 1,
                ..NONE
            },
            false,
        ),
        scene(
            "contracts that repeat",
            Setting {
                contracts: [Read, Idempotent, AtMostOnce],
                max_attempts: 3,
                ..OWNED
            },
            here,
            Luck {
                ends: more(2, 1),
                ..NONE
            },
            true,
        ),
        scene(
            "keys and receipts",
            Setting {
                contracts: [Keyed, AtMostOnce, Keyed],
                receipts: true,
                ..OWNED
            },
            here,
            Luck {
                ends: more(2, 1),
                astray: more(1, 0),
                ..NONE
            },
            true,
        ),
        scene(
            "look-ups",
            Setting {
                contracts: [
                    StatusFinal,
                    if whole { Status } else { AtMostOnce },
                    AtMostOnce,
                ],
                ..OWNED
            },
            here,
            Luck {
                ends: 1,
                astray: more(1, 0),
                ..NONE
            },
            true,
        ),
        scene(
            "a caller-owned connection",
            Setting {
                lent: true,
                ordered: false,
                ..OWNED
            },
            here,
            Luck {
                ends: 1,
                astray: more(1, 0),
                impatience: more(1, 0),
                leaves: more(1, 0),
                closes: 1,
                ..NONE
            },
            false,
        ),
        scene(
            "a caller-owned connection, and a healthy server at last",
            Setting {
                lent: true,
                ordered: false,
                ..OWNED
            },
            here,
            Luck {
                ends: 1,
                astray: 1,
                impatience: 1,
                ..NONE
            },
            true,
        ),
        scene(
            "a journal of one host that crashes",
            Setting {
                journal: Journal::Alone,
                contracts: [Keyed, StatusFinal, AtMostOnce],
                receipts: true,
                ..OWNED
            },
            here,
            Luck {
                crashes: more(2, 1),
                resolves: more(1, 0),
                ..NONE
            },
            true,
        ),
        scene(
            "a journal of two hosts that crash",
            Setting {
                journal: Journal::Shared,
                contracts: [Keyed, AtMostOnce, Keyed],
                receipts: true,
                ..OWNED
            },
            [0, 1, 0],
            Luck {
                crashes: more(2, 1),
                resolves: more(1, 0),
                ..NONE
            },
            true,
        ),
        scene(
            "a journal of two hosts, one of which stands still",
            Setting {
                journal: Journal::Shared,
                stalls: true,
                contracts: [Keyed, AtMostOnce, AtMostOnce],
                ..OWNED
            },
            [0, 1, 0],
            Luck {
                stalls: 1,
                resolves: more(1, 0),
                crashes: more(1, 0),
                ..NONE
            },
            true,
        ),
        scene(
            "late answers of several attempts",
            Setting {
                journal: Journal::Alone,
                contracts: [Idempotent, AtMostOnce, AtMostOnce],
                ..OWNED
            },
            here,
            Luck {
                impatience: more(2, 0),
                refusals: 1,
                ..NONE
            },
            true,
        ),
    ]
}
