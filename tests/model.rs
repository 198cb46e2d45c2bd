//! A model of callers, connections, sessions, wire, server, hosts and journal, explored in every order in
//! which things can happen to three operations.
//!
//! [`machine`] has the rules as one pure function over steps. [`world`] bounds how much may go wrong, and
//! [`scenes`] lists the settings, because all of it at once is too much: transports with and without order,
//! contracts that repeat, keys with receipts, look-ups, a caller-owned connection, and journals of one host
//! and of two. Each is explored whole within its bounds, which the test prints with the number of states.
//! Over all of them there are three operations, three sessions and more, two crashes, two hosts, requests
//! and answers that are late or lost, callers who leave, and a host that stands still for too long.
//!
//! [`promises`] has what always holds, and what comes at last where the server is healthy. Nothing goes
//! round in circles here, because all that can go wrong is used up, so "at last" is what holds where nothing
//! is left to do. [`faults`] breaks one rule at a time, and each break has to show.
//!
//! `cargo test --test model -- --nocapture` explores as much as a few seconds allow;
//! `MODEL_BOUND=whole` explores all of it, in a minute or two.

#[path = "model/faults.rs"]
mod faults;
#[path = "model/kept.rs"]
mod kept;
#[path = "model/machine.rs"]
mod machine;
#[path = "model/moves.rs"]
mod moves;
#[path = "model/promises.rs"]
mod promises;
#[path = "model/sameness.rs"]
mod sameness;
#[path = "model/scenes.rs"]
mod scenes;
#[path = "model/traces.rs"]
mod traces;
#[path = "model/world.rs"]
mod world;

use std::{
    collections::{BTreeSet, HashMap},
    time::Instant,
};

use machine::Fault;
use promises::SEEN;
use scenes::Bound;
use stateright::{Checker, HasDiscoveries, Model as _, Path};
use world::{Moment, Move};

/// So many threads explore; the machine that the bounds are made for has as many cores.
const THREADS: usize = 2;

/// Fewer states than this would be a model that is too small to find anything in.
const FEWEST_STATES: usize = 100_000;

type Found<const N: usize> = HashMap<&'static str, Path<Moment<N>, Move>>;

#[test]
fn in_every_order_the_promises_hold() {
    let bound = Bound::asked_for();
    let (began, mut total, mut seen) = (Instant::now(), 0, BTreeSet::new());
    println!("bound: {bound:?}");
    for scene in scenes::all(bound) {
        let began = Instant::now();
        let bounds = scene.world.bounds;
        let checker = scene.world.checker().threads(THREADS).spawn_bfs().join();
        let states = checker.unique_state_count();
        println!(
            "{states:>8} states, {:>8} steps, at most {:>2} in a row, {:>5.1?}: {}; {bounds}",
            checker.state_count(),
            checker.max_depth(),
            began.elapsed(),
            scene.name,
        );
        let found = checker.discoveries();
        assert_kept(scene.name, &found);
        seen.extend(found.into_keys());
        total += states;
    }
    println!("{total:>8} states in all, {:.1?}", began.elapsed());
    if bound == Bound::Whole {
        assert_eq!(seen, BTreeSet::from(SEEN), "not everything was seen");
        assert!(total >= FEWEST_STATES, "{total} states");
    }
}

#[test]
fn every_broken_rule_breaks_a_promise() {
    for fault in Fault::ALL {
        let (breaks, mut world) = faults::shown(fault);
        let sound = world.clone().checker().threads(THREADS);
        let sound = sound.spawn_bfs().join();
        assert_kept(&format!("without {fault:?}"), &sound.discoveries());

        world.machine.fault = Some(fault);
        let checker = world.checker().threads(THREADS);
        let wanted = HasDiscoveries::AnyOf(BTreeSet::from([breaks]));
        let broken = checker.finish_when(wanted).spawn_bfs().join();
        let states = broken.unique_state_count();
        let Some(path) = broken.discovery(breaks) else {
            panic!("{fault:?} does not break {breaks:?} in {states} states");
        };
        println!(
            "{fault:?} breaks {breaks:?} in {} steps, found among {states} states; without it all \
             promises hold in {}",
            path.into_actions().len(),
            sound.unique_state_count(),
        );
    }
}

/// Fails with the way to the state in which a promise is broken.
fn assert_kept<const N: usize>(what: &str, found: &Found<N>) {
    for (promise, path) in found {
        if SEEN.contains(promise) {
            continue;
        }
        let mut way = String::new();
        for step in path.clone().into_actions() {
            way += &format!("    {:?}\n", step.step);
        }
        let end = path.last_state().state;
        panic!("{what}: not kept: {promise}\n{way}    {end:?}");
    }
}
