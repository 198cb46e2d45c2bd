//! Which promise each broken rule breaks, and the smallest world in which that shows.

use super::{
    machine::{Contract, Fault, Journal, Machine, Setting},
    promises::{
        AUTHORISED, LENT, NEXT_SUCCEEDS, NOT_SENT, ONCE_PER_KEY, ONE_OUTCOME, ONE_RESOLVES, ORDER,
        OWN_ANSWER, REJECTED, RESOLVED,
    },
    world::{Luck, World},
};

const OWNED: Setting<2> = Setting {
    lent: false,
    ordered: true,
    journal: Journal::Off,
    receipts: false,
    stalls: false,
    max_attempts: 3,
    contracts: [Contract::AtMostOnce; 2],
};

const LENT_ONE: Setting<2> = Setting {
    lent: true,
    ordered: false,
    ..OWNED
};

const JOURNALED: Setting<2> = Setting {
    journal: Journal::Alone,
    ..OWNED
};

const SHARED: Setting<2> = Setting {
    journal: Journal::Shared,
    ..OWNED
};

const STALLS: Setting<2> = Setting {
    stalls: true,
    ..SHARED
};

/// The setting with this contract for the first operation.
fn under(contract: Contract, setting: Setting<2>) -> Setting<2> {
    Setting {
        contracts: [contract, Contract::AtMostOnce],
        ..setting
    }
}

/// The promise that a broken rule breaks, and a world in which it does; the rule is not broken there yet.
pub(crate) fn shown(fault: Fault) -> (&'static str, World<2>) {
    let none = Luck::default();
    let end = Luck { ends: 1, ..none };
    let impatience = Luck {
        impatience: 1,
        ..none
    };
    let crash = Luck { crashes: 1, ..none };
    let (breaks, setting, bounds) = match fault {
        Fault::ReplayOnLoss => (AUTHORISED, OWNED, end),
        Fault::HintTakenForContract => (AUTHORISED, OWNED, impatience),
        Fault::ReadAskedAThirdTime => {
            let two = Luck { ends: 2, ..none };
            (AUTHORISED, under(Contract::Read, OWNED), two)
        }
        Fault::CellReadForRecall | Fault::RecallAfterBegun => (NOT_SENT, OWNED, impatience),
        Fault::MovedWithoutRecall => (AUTHORISED, OWNED, end),
        Fault::OldestTakenBackFirst => (ORDER, OWNED, end),
        Fault::QueueOutOfOrder => (ORDER, OWNED, none),
        Fault::LentReconnected | Fault::LentUsedAfterLoss => (LENT, LENT_ONE, end),
        Fault::LentClosed => (LENT, LENT_ONE, Luck { closes: 1, ..none }),
        Fault::RecordAfterHandOver => (NOT_SENT, JOURNALED, crash),
        Fault::DispatchingRunAgain => (AUTHORISED, JOURNALED, crash),
        Fault::AbandonedTakenForNotSent => (NOT_SENT, JOURNALED, crash),
        Fault::KeyMintedAnew => {
            let keyed = Setting {
                receipts: true,
                ..under(Contract::Keyed, OWNED)
            };
            (ONCE_PER_KEY, keyed, end)
        }
        Fault::AbsenceTakenForNotSent => (NOT_SENT, under(Contract::Status, OWNED), end),
        Fault::AbsenceAskedTooEarly => (NOT_SENT, under(Contract::StatusFinal, OWNED), end),
        Fault::NoFencing => (NOT_SENT, STALLS, Luck { stalls: 1, ..none }),
        Fault::NotSentByAFencedHost => {
            let luck = Luck {
                stalls: 1,
                resolves: 1,
                ..impatience
            };
            (NOT_SENT, under(Contract::Keyed, STALLS), luck)
        }
        Fault::NotSentUnrecorded => {
            let luck = Luck {
                crashes: 1,
                resolves: 1,
                unwritten: 1,
                ..impatience
            };
            (NOT_SENT, under(Contract::Keyed, JOURNALED), luck)
        }
        Fault::AnswerOfAnotherSession => (OWN_ANSWER, OWNED, end),
        Fault::SecondOutcome => (ONE_OUTCOME, OWNED, impatience),
        Fault::RefusedRepeatSettles => {
            let luck = Luck { refusals: 1, ..end };
            (REJECTED, under(Contract::Idempotent, OWNED), luck)
        }
        Fault::UnsentRepeatSettles => {
            let luck = Luck {
                impatience: 1,
                ..end
            };
            (NOT_SENT, under(Contract::Idempotent, OWNED), luck)
        }
        Fault::LateRefusalSettles => {
            let luck = Luck {
                impatience: 2,
                refusals: 1,
                ..none
            };
            (REJECTED, under(Contract::Idempotent, JOURNALED), luck)
        }
        Fault::ClaimedTwice => {
            let luck = Luck {
                resolves: 2,
                ..impatience
            };
            (ONE_RESOLVES, under(Contract::Keyed, SHARED), luck)
        }
        Fault::LossLeftUnseen => (NEXT_SUCCEEDS, OWNED, end),
        Fault::DeadlineForgotten => (RESOLVED, OWNED, Luck { astray: 1, ..none }),
    };
    let world = World {
        machine: Machine::new(setting),
        homes: [0, 0],
        bounds,
        // Where the second operation has to succeed, or plays no part, nothing goes wrong once it is called.
        calm_at_last: breaks == NEXT_SUCCEEDS
            || matches!(
                fault,
                Fault::LateRefusalSettles | Fault::NotSentByAFencedHost | Fault::NotSentUnrecorded
            ),
    };
    (breaks, world)
}
