//! What does not depend on how busy the machine is, counted by valgrind.
//!
//! This program is started again under valgrind, once with few of a thing and once with many, and the
//! difference is what the things cost: start and end fall out of it. All of it runs on one thread, the
//! responder at the other end of the in-memory pipe included.

mod load;
mod valgrind;

use crate::{
    options::Options,
    side::Side,
    table::{Bar, Sides, Table},
};

pub(crate) use load::carry_out;

/// The argument with which this program does what is counted.
pub(crate) const COUNTED: &str = "--counted";

/// What is counted.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    /// Calls one after another.
    Calls,
    /// Calls whose result has 40 kB of structured content, which nobody looks at.
    Structured,
    /// Connections that have made one call.
    Idle,
    /// Calls that are not answered, whose callers no longer wait. Those of rmcp are made by
    /// `Peer::send_request`, which tells nobody that it was dropped.
    Abandoned,
    /// The same, those of rmcp by `Peer::call_tool`, which does.
    Dropped,
}

impl Load {
    const ALL: [Self; 5] = [
        Self::Calls,
        Self::Structured,
        Self::Idle,
        Self::Abandoned,
        Self::Dropped,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Structured => "structured",
            Self::Idle => "idle",
            Self::Abandoned => "abandoned",
            Self::Dropped => "dropped",
        }
    }

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|load| load.word() == word)
    }
}

/// Enough calls that what happens once in a while, as a table that grows, is a small part.
const CALLS: [u64; 2] = [300, 1_300];
/// Large results take long under valgrind.
const LARGE: [u64; 2] = [10, 60];
const CONNECTIONS: [u64; 2] = [50, 150];
const ABANDONED: [u64; 2] = [100, 500];

/// What holds of instructions. Without optimisation every layer that would be inlined is called, which costs
/// the side with more small layers more: that number is no measure of the crate, but it is as exact, and
/// shows what a change makes worse.
const INSTRUCTIONS: Bar = match cfg!(debug_assertions) {
    false => Bar::AtMost(0.55),
    true => Bar::AtMost(0.80),
};

/// Instructions for one call.
pub(crate) fn instructions(table: &mut Table, _: &Options) {
    let name = "instructions per call";
    let Some([floor, rmcp, ours]) = of_all(|side| instructions_each(Load::Calls, side, CALLS))
    else {
        return table.absent(name, MISSING);
    };
    let sides = counts([floor, rmcp, ours]);
    table.exact(name, ours / rmcp, INSTRUCTIONS, &sides);
}

/// The same for a result with 40 kB of structured content that nobody looks at, less the floor: what is
/// left is the decoding, and one small call.
pub(crate) fn structured(table: &mut Table, _: &Options) {
    let name = "instructions, 40 kB structured result left raw, less the floor, times fewer";
    let Some([floor, rmcp, ours]) = of_all(|side| instructions_each(Load::Structured, side, LARGE))
    else {
        return table.absent(name, MISSING);
    };
    let ratio = (rmcp - floor) / (ours - floor);
    table.exact(name, ratio, Bar::Told, &counts([floor, rmcp, ours]));
}

/// Bytes that stay allocated for a connection that is idle, and for a call that was given up.
pub(crate) fn held(table: &mut Table, _: &Options) {
    let name = "bytes per idle connection, less the pipe and its responder";
    let Some([floor, rmcp, ours]) = of_all(|side| bytes_each(Load::Idle, side, CONNECTIONS)) else {
        return table.absent(name, MISSING);
    };
    let ratio = (ours - floor) / (rmcp - floor);
    table.exact(name, ratio, Bar::AtMost(1.45), &counts([floor, rmcp, ours]));

    let name = "bytes per abandoned call";
    let of_rmcp = |load| bytes_each(load, Side::Rmcp, ABANDONED);
    let (Some(ours), Some(sent), Some(called)) = (
        bytes_each(Load::Abandoned, Side::Ours, ABANDONED),
        of_rmcp(Load::Abandoned),
        of_rmcp(Load::Dropped),
    ) else {
        return table.absent(name, MISSING);
    };
    let sides = Sides {
        rmcp: format!("{sent:.0} by `send_request`, {called:.0} by `call_tool`"),
        ours: format!("{ours:.0}"),
        floor: String::new(),
    };
    table.exact(name, ours / sent, Bar::AtMost(0.3), &sides);
}

const MISSING: &str = "valgrind is not installed";

fn of_all(count: impl Fn(Side) -> Option<f64>) -> Option<[f64; 3]> {
    let [floor, rmcp, ours] = Side::ALL.map(count);
    Some([floor?, rmcp?, ours?])
}

fn counts([floor, rmcp, ours]: [f64; 3]) -> Sides {
    Sides {
        rmcp: format!("{rmcp:.0}"),
        ours: format!("{ours:.0}"),
        floor: format!("{floor:.0}"),
    }
}

fn instructions_each(load: Load, side: Side, numbers: [u64; 2]) -> Option<f64> {
    let [few, many] = numbers.map(|n| valgrind::instructions(&words(load, side, n)));
    Some(each(few?, many?, numbers))
}

fn bytes_each(load: Load, side: Side, numbers: [u64; 2]) -> Option<f64> {
    let [few, many] = numbers.map(|n| valgrind::bytes_at_exit(&words(load, side, n)));
    Some(each(few?, many?, numbers))
}

fn each(with_few: u64, with_many: u64, [few, many]: [u64; 2]) -> f64 {
    (with_many as f64 - with_few as f64) / (many - few) as f64
}

fn words(load: Load, side: Side, number: u64) -> [String; 4] {
    let (load, side) = (load.word(), side.word());
    [COUNTED, load, side, &number.to_string()].map(str::to_owned)
}

/// The functions that a call spends its instructions in.
pub(crate) fn profile(words_given: &[String]) -> String {
    let side = words_given.iter().find_map(|w| Side::of(w));
    let load = words_given.iter().find_map(|w| Load::of(w));
    let load = load.unwrap_or(Load::Calls);
    let number = match load {
        Load::Structured => LARGE[1],
        _ => CALLS[1],
    };
    let words = words(load, side.unwrap_or(Side::Ours), number);
    valgrind::profile(&words).expect("valgrind is installed")
}
