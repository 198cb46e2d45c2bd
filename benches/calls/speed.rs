//! How long a call takes, and how many there are in a second.
//!
//! The sides take turns in short blocks (rmcp, ours, floor, rmcp, …), so that whatever else the
//! machine does falls on all of them; a ratio is made of two neighbouring blocks.

use std::time::Instant;

use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    clients::{self, Caller, Place},
    floor::Floor,
    options::Options,
    servers::{self, Answer},
    spread::Spread,
    table::{Bar, Sides, Table},
};

/// The threads of the host's runtime.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Flavour {
    /// One. Nothing waits for another thread, so the client's own work is what is measured.
    Current,
    /// As many as there are processors, as most hosts have it.
    Multi,
}

impl Flavour {
    pub(crate) fn runtime(self) -> Runtime {
        let runtime = match self {
            Self::Current => tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build(),
            Self::Multi => Runtime::new(),
        };
        runtime.expect("a runtime")
    }

    fn name(self) -> &'static str {
        match self {
            Self::Current => "one thread",
            Self::Multi => "many threads",
        }
    }
}

/// The bars at a number of callers.
struct Bars {
    callers: usize,
    p50: Bar,
    throughput: Bar,
}

const fn bars(callers: usize, p50: Bar, throughput: Bar) -> Bars {
    Bars {
        callers,
        p50,
        throughput,
    }
}

/// The minimal responder in memory. The bars are held on one thread: on many, both sides mostly
/// wait for the wake-ups of threads, which are the kernel's.
pub(crate) fn memory(table: &mut Table, options: &Options) {
    let place = Place::Memory(Answer::Small);
    let held = [
        bars(1, Bar::AtMost(0.60), Bar::AtLeast(1.6)),
        bars(16, Bar::Told, Bar::AtLeast(1.6)),
        bars(256, Bar::Told, Bar::AtLeast(1.8)),
    ];
    measure(table, options, "memory", &place, Flavour::Current, &held);
    let told = [1, 16, 256].map(|callers| bars(callers, Bar::Told, Bar::Told));
    measure(table, options, "memory", &place, Flavour::Multi, &told);
}

/// A whole server of rmcp's in memory.
pub(crate) fn memory_rmcp(table: &mut Table, options: &Options) {
    let name = "memory, rmcp's server";
    let held = [bars(1, Bar::AtMost(0.75), Bar::Told)];
    measure(
        table,
        options,
        name,
        &Place::MemoryRmcp,
        Flavour::Current,
        &held,
    );
    let told = [bars(1, Bar::Told, Bar::Told)];
    measure(
        table,
        options,
        name,
        &Place::MemoryRmcp,
        Flavour::Multi,
        &told,
    );
}

/// A child process. The bars are held on many threads, which is what a host has that starts
/// processes.
pub(crate) fn stdio(table: &mut Table, options: &Options) {
    let place = Place::Stdio(Answer::Small);
    let held = [
        bars(1, Bar::AtMost(0.95), Bar::Told),
        bars(16, Bar::Told, Bar::AtLeast(1.15)),
        bars(256, Bar::Told, Bar::Told),
    ];
    measure(table, options, "stdio", &place, Flavour::Multi, &held);
    let told = [1, 16].map(|callers| bars(callers, Bar::Told, Bar::Told));
    measure(table, options, "stdio", &place, Flavour::Current, &told);
}

/// A server on the loopback interface, in a thread of its own; rmcp is given a client that keeps its
/// connections, as ours does.
pub(crate) fn http(table: &mut Table, options: &Options) {
    let place = Place::Http(servers::http::serve(Answer::Small));
    let held = [
        bars(1, Bar::AtMost(1.03), Bar::AtLeast(1.0)),
        bars(16, Bar::Told, Bar::AtLeast(1.0)),
        bars(256, Bar::Told, Bar::Told),
    ];
    measure(table, options, "http", &place, Flavour::Multi, &held);
    let told = [1, 16].map(|callers| bars(callers, Bar::Told, Bar::Told));
    measure(table, options, "http", &place, Flavour::Current, &told);
}

/// A result of 1 MiB, by the caller who has looked at its text.
pub(crate) fn large(table: &mut Table, options: &Options) {
    let options = options.with_blocks_of(options.large_calls);
    let held = [bars(1, Bar::AtMost(0.90), Bar::Told)];
    let name = "1 MiB result, memory";
    let place = Place::Memory(Answer::Text(1024));
    measure(table, &options, name, &place, Flavour::Current, &held);
    let name = "1 MiB result, stdio";
    let place = Place::Stdio(Answer::Text(1024));
    measure(table, &options, name, &place, Flavour::Multi, &held);
}

/// How the cost grows with the size of the result.
pub(crate) fn payload(table: &mut Table, options: &Options) {
    let options = options.with_blocks_of(options.large_calls * 5);
    for kib in [1, 16, 128] {
        let name = format!("{kib} KiB result, memory");
        let place = Place::Memory(Answer::Text(kib));
        let told = [bars(1, Bar::Told, Bar::Told)];
        measure(table, &options, &name, &place, Flavour::Current, &told);
    }
}

/// A result with 40 kB of structured content, by a caller who does not look at it: what the call takes
/// over the floor, which is the decoding and one small call.
pub(crate) fn structured(table: &mut Table, options: &Options) {
    let options = options.with_blocks_of(options.large_calls);
    let place = Place::Memory(Answer::Structured);
    let runtime = Flavour::Current.runtime();
    let rounds = runtime.block_on(async {
        let supervisor = clients::supervisor().await;
        let rmcp = clients::rmcp(&place).await.who_does_not_look();
        let ours = clients::ours(&supervisor, "bench", &place)
            .await
            .who_does_not_look();
        let rounds = rounds(
            &options,
            1,
            &rmcp,
            &ours,
            &mut Some(Floor::at(&place).await),
        )
        .await;
        clients::end(supervisor).await;
        rounds
    });
    let ratios = rounds
        .iter()
        .map(|r| (r.rmcp.p50 - r.floor.p50) / (r.ours.p50 - r.floor.p50));
    let name = "40 kB structured result left raw, over the floor, times faster";
    table.row(
        name,
        &Spread::of(ratios),
        Bar::AtLeast(20.0),
        &p50s(&rounds),
    );
}

/// How much of a call in a child process is not the bytes in the pipes.
fn over_the_floor(table: &mut Table, flavour: Flavour, rounds: &[Round]) {
    let over =
        |side: fn(&Round) -> &Block| Spread::of(rounds.iter().map(|r| side(r).p50 / r.floor.p50));
    let sides = Sides {
        rmcp: over(|round| &round.rmcp).to_string(),
        ours: over(|round| &round.ours).to_string(),
        floor: "1".to_owned(),
    };
    let ratio = Spread::of(
        rounds
            .iter()
            .map(|r| (r.ours.p50 - r.floor.p50) / (r.rmcp.p50 - r.floor.p50)),
    );
    let name = format!(
        "p50 as multiples of the floor, stdio, {}, 1 at a time; ratio of what is above it",
        flavour.name()
    );
    table.row(&name, &ratio, Bar::Told, &sides);
}

fn measure(
    table: &mut Table,
    options: &Options,
    name: &str,
    place: &Place,
    flavour: Flavour,
    held: &[Bars],
) {
    let runtime = flavour.runtime();
    runtime.block_on(async {
        let rmcp = clients::rmcp(place).await;
        let supervisor = clients::supervisor().await;
        let ours = clients::ours(&supervisor, "bench", place).await;
        let mut floor = Some(Floor::at(place).await);
        for bars in held {
            let rounds = rounds(options, bars.callers, &rmcp, &ours, &mut floor).await;
            let name = format!("{name}, {}, {} at a time", flavour.name(), bars.callers);
            tell(table, &name, bars, &rounds);
            if matches!(place, Place::Stdio(Answer::Small)) && bars.callers == 1 {
                over_the_floor(table, flavour, &rounds);
            }
        }
        clients::end(supervisor).await;
    });
    runtime.shutdown_background();
}

/// One turn of each side.
struct Round {
    rmcp: Block,
    ours: Block,
    floor: Block,
}

async fn rounds(
    options: &Options,
    callers: usize,
    rmcp: &Caller,
    ours: &Caller,
    floor: &mut Option<Floor>,
) -> Vec<Round> {
    let calls = options.calls.max(callers * 16) / callers * callers;
    let mut rounds = Vec::new();
    for round in 0..=options.rounds {
        let rmcp = block(rmcp, callers, calls).await;
        let ours = block(ours, callers, calls).await;
        let floor = floor_block(floor, callers, calls).await;
        // The first round is to warm up.
        if round > 0 {
            rounds.push(Round { rmcp, ours, floor });
        }
    }
    rounds
}

/// What one block of calls took.
pub(crate) struct Block {
    pub(crate) p50: f64,
    per_second: f64,
}

impl Block {
    fn new(took: Vec<f64>, started: Instant) -> Self {
        Self {
            per_second: took.len() as f64 / started.elapsed().as_secs_f64(),
            p50: Spread::of(took).median,
        }
    }
}

/// So many calls by so many callers, each a task of its own.
pub(crate) async fn block(caller: &Caller, callers: usize, calls: usize) -> Block {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let caller = caller.clone();
        tasks.spawn(async move {
            let mut took = Vec::with_capacity(calls / callers);
            for _ in 0..calls / callers {
                let started = Instant::now();
                caller.call().await;
                took.push(started.elapsed().as_secs_f64());
            }
            took
        });
    }
    Block::new(tasks.join_all().await.concat(), started)
}

/// The same of the floor, in a task as the callers are.
async fn floor_block(place: &mut Option<Floor>, callers: usize, calls: usize) -> Block {
    let mut floor = place.take().expect("nobody else has it");
    let started = Instant::now();
    let task = tokio::spawn(async move { (floor.calls(callers, calls).await, floor) });
    let (took, floor) = task.await.expect("the floor does not panic");
    *place = Some(floor);
    Block::new(took, started)
}

fn tell(table: &mut Table, name: &str, bars: &Bars, rounds: &[Round]) {
    let p50 = Spread::of(rounds.iter().map(|r| r.ours.p50 / r.rmcp.p50));
    table.row(&format!("p50, {name}"), &p50, bars.p50, &p50s(rounds));

    let rate = |side: fn(&Round) -> &Block| {
        let all = rounds.iter().map(|round| side(round).per_second);
        format!("{:.0} /s", Spread::of(all).median)
    };
    let sides = Sides {
        rmcp: rate(|round| &round.rmcp),
        ours: rate(|round| &round.ours),
        floor: rate(|round| &round.floor),
    };
    let ratios = rounds.iter().map(|r| r.ours.per_second / r.rmcp.per_second);
    let name = format!("throughput, {name}");
    table.row(&name, &Spread::of(ratios), bars.throughput, &sides);
}

fn p50s(rounds: &[Round]) -> Sides {
    let time = |side: fn(&Round) -> &Block| {
        let all = rounds.iter().map(|round| side(round).p50 * 1e6);
        format!("{:.1} µs", Spread::of(all).median)
    };
    Sides {
        rmcp: time(|round| &round.rmcp),
        ours: time(|round| &round.ours),
        floor: time(|round| &round.floor),
    }
}
