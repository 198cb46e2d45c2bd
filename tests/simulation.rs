//! The real crate in a simulated world: a paused clock, pipes in memory, and an adversary between
//! host and server who splits, delays, repeats, truncates and cuts at every byte, and kills servers,
//! sessions and hosts. Everything is drawn from a seed, and a seed reproduces its game exactly.
//!
//! `SIM_SEEDS` says how many games are played, from seed `SIM_FROM` on; with `SIM_SECONDS`, more of them
//! for so long. `SIM_SEED` plays one and prints its trace. Seeds that ever broke a promise are in
//! `simulation/corpus.txt` and are always played.
//!
//! Each game is held against the model of `tests/model.rs`, step by step: see [`conform`].

#[path = "simulation/conform.rs"]
mod conform;
#[path = "simulation/dice.rs"]
mod dice;
#[path = "simulation/host.rs"]
mod host;
#[path = "model/kept.rs"]
mod kept;
#[path = "model/machine.rs"]
mod machine;
#[path = "simulation/plan.rs"]
mod plan;
#[path = "simulation/server.rs"]
mod server;
#[path = "simulation/store.rs"]
mod store;
#[path = "simulation/trace.rs"]
mod trace;
#[path = "simulation/verdict.rs"]
mod verdict;
#[path = "simulation/wire.rs"]
mod wire;
#[path = "simulation/world.rs"]
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use conform::{
    Followed,
    wrong::{self, Game},
};
use dice::Dice;
use plan::Plan;
use trace::Step;
use world::Shared;

/// Games in a plain run of the tests: a few seconds.
const GAMES: u64 = 150;

/// What became of a game.
struct Played {
    plan: Arc<Plan>,
    trace: Vec<Step>,
    /// The operations of which the journal's store refused a write.
    refused: BTreeSet<usize>,
    verdict: Result<(), String>,
    /// How far the model went along, or which step it does not allow.
    followed: Result<Followed, String>,
    tally: BTreeMap<String, u64>,
}

fn play(seed: u64) -> Played {
    let mut dice = Dice::new(seed);
    let plan = Arc::new(Plan::of(&mut dice));
    let world = Shared::new(dice);
    world.with(|world| {
        world.marks = plan.operations.iter().map(|it| it.mark).collect();
        world.book.begin(plan.journal, plan.store.0, plan.store.1);
    });
    for life in 0..plan.lives.len() {
        host::live(&world, &plan, life);
    }
    world.with(|world| {
        // What is still to be recorded, the next host would find as the last one left it.
        world.open_book();
        let mut tally = BTreeMap::new();
        verdict::tally(world, &mut tally);
        let verdict = verdict::judge(world, &plan);
        let trace = std::mem::take(&mut world.trace);
        let refused = world.book.refused.iter().copied();
        let refused = refused.filter_map(world::number_of).collect();
        let followed = conform::follow(&trace, &plan, &refused);
        Played {
            plan: Arc::clone(&plan),
            trace,
            refused,
            verdict,
            followed,
            tally,
        }
    })
}

fn written(trace: &[Step]) -> String {
    trace.iter().fold(String::new(), |mut text, step| {
        let _ = writeln!(text, "{step}");
        text
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")))
}

/// What many games came to.
#[derive(Default)]
struct Sum {
    games: u64,
    tally: BTreeMap<String, u64>,
    followed: Followed,
    /// The seeds of those that broke a promise, or did what the model does not allow.
    broken: Vec<(u64, String)>,
}

impl Sum {
    fn add(&mut self, seed: u64, played: Played) {
        self.games += 1;
        for (what, many) in played.tally {
            *self.tally.entry(what).or_default() += many;
        }
        match played.verdict.and(played.followed) {
            Ok(followed) => self.followed += followed,
            Err(why) => self.broken.push((seed, why)),
        }
    }

    fn and(mut self, other: Self) -> Self {
        self.games += other.games;
        for (what, many) in other.tally {
            *self.tally.entry(what).or_default() += many;
        }
        self.followed += other.followed;
        self.broken.extend(other.broken);
        self.broken.sort();
        self
    }
}

/// What a panic says.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a word"))
}

/// Plays these games on all cores, and more of them as long as there is time. Each has a runtime of its
/// own, on one thread.
fn play_all(seeds: std::ops::Range<u64>, at_least: Duration) -> Sum {
    let began = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(seeds.start);
    std::thread::scope(|scope| {
        let players: Vec<_> = (0..cores)
            .map(|_| {
                scope.spawn(|| {
                    let mut sum = Sum::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= seeds.end && began.elapsed() >= at_least {
                            return sum;
                        }
                        // One that panics has a seed, too.
                        match std::panic::catch_unwind(|| play(seed)) {
                            Ok(played) => sum.add(seed, played),
                            Err(panic) => sum.broken.push((seed, said(&*panic))),
                        }
                    }
                })
            })
            .collect();
        let sums = players.into_iter().map(|player| player.join());
        sums.fold(Sum::default(), |all, sum| {
            all.and(sum.expect("whoever plays does not panic"))
        })
    })
}

fn told(broken: &[(u64, String)]) -> String {
    broken
        .iter()
        .take(20)
        .fold(String::new(), |mut text, (seed, why)| {
            let _ = writeln!(text, "SIM_SEED={seed}: {why}");
            text
        })
}

#[test]
fn every_game_keeps_every_promise() {
    if let Some(seed) = number("SIM_SEED") {
        let played = play(seed);
        print!("{}", written(&played.trace));
        if let Err(why) = played.verdict.and(played.followed.map(drop)) {
            panic!("seed {seed}: {why}");
        }
        return;
    }
    let from = number("SIM_FROM").unwrap_or_default();
    let many = number("SIM_SEEDS").unwrap_or(GAMES);
    let began = Instant::now();
    let at_least = Duration::from_secs(number("SIM_SECONDS").unwrap_or_default());
    let Sum {
        games,
        tally,
        followed,
        broken,
    } = play_all(from..from + many, at_least);
    let took = began.elapsed();
    for (what, times) in &tally {
        println!("{times:>10}  {what}");
    }
    println!("{followed}");
    println!(
        "{games} games from seed {from} on in {:.1} s, {:.0} a second; {} broke a promise",
        took.as_secs_f64(),
        games as f64 / took.as_secs_f64(),
        broken.len()
    );
    assert!(
        broken.is_empty(),
        "{} games:\n{}",
        broken.len(),
        told(&broken)
    );
    assert!(followed.share() > LEAST_FOLLOWED, "only {followed}");
}

/// Of so many operations in a hundred, at least, the model has all that they live through.
const LEAST_FOLLOWED: f64 = 90.0;

#[test]
fn a_game_with_one_wrong_step_is_refused_by_the_model() {
    let mut refused: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in MOVING.into_iter().chain(0..WRONG_GAMES) {
        if wrong::ALL
            .iter()
            .all(|(what, _)| refused.contains_key(what))
        {
            break;
        }
        let played = play(seed);
        let game = Game {
            trace: &played.trace,
            plan: &played.plan,
        };
        for (what, make) in wrong::ALL {
            if refused.get(what).is_some_and(|many| *many >= ENOUGH) {
                continue;
            }
            let Some(trace) = make(&game) else { continue };
            let followed = conform::follow(&trace, &played.plan, &played.refused);
            let Err(why) = followed else {
                panic!("seed {seed}: the model allows {what}");
            };
            if refused
                .insert(what, refused.get(what).map_or(1, |many| many + 1))
                .is_none()
            {
                println!("{what}: {}", why.lines().nth(1).unwrap_or_default().trim());
            }
        }
    }
    println!("{refused:?}");
    for (what, _) in wrong::ALL {
        assert!(refused.contains_key(what), "no game lends itself to {what}");
    }
}

/// So many games lend themselves to each wrong thing at least once.
const WRONG_GAMES: u64 = 300;

/// In these, much moves to the next session, which is rare.
const MOVING: [u64; 2] = [526, 634];

/// So many games with one wrong thing in them are enough.
const ENOUGH: u64 = 3;

#[test]
fn a_seed_reproduces_its_game_exactly() {
    for seed in 0..number("SIM_TWICE").unwrap_or(12) {
        let (first, second) = (play(seed).trace, play(seed).trace);
        let differ = first.iter().zip(&second).position(|(a, b)| a != b);
        if let Some(at) = differ {
            panic!("seed {seed}, step {at}:\n  {}\n  {}", first[at], second[at]);
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

/// The seeds that ever broke a promise, with what they found.
const CORPUS: &str = include_str!("simulation/corpus.txt");

#[test]
fn every_seed_that_ever_broke_a_promise_keeps_it() {
    let lines = CORPUS
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in lines {
        let seed = line
            .split_whitespace()
            .next()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("the corpus has no seed in {line:?}"));
        let played = play(seed);
        if let Err(why) = played.verdict.and(played.followed) {
            panic!("SIM_SEED={seed}: {why}\n(once: {line})");
        }
    }
}
