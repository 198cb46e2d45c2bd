//! One call to each of many connections.

use std::time::Instant;

use tokio::task::JoinSet;

use crate::{
    clients::{self, Caller, Place},
    options::Options,
    servers::Answer,
    speed::Flavour,
    spread::Spread,
    table::{Bar, Sides, Table},
};

pub(crate) fn fan_out(table: &mut Table, options: &Options) {
    let most = options.connections;
    for (connections, bar) in [
        (most / 100, Bar::Told),
        (most / 10, Bar::Told),
        (most, Bar::AtMost(1.2)),
    ] {
        one_call_to_each_of(connections, bar, table, options);
    }
}

fn one_call_to_each_of(connections: usize, bar: Bar, table: &mut Table, options: &Options) {
    let place = Place::Memory(Answer::Small);
    let runtime = Flavour::Multi.runtime();
    let (mut ratios, mut plain, mut supervised) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let supervisor = clients::supervisor().await;
        let (mut rmcp, mut ours) = (Vec::new(), Vec::new());
        for number in 0..connections {
            rmcp.push(clients::rmcp(&place).await);
            let name = format!("bench-{number}");
            ours.push(clients::ours(&supervisor, &name, &place).await);
        }
        // The first round is to warm up, and connects.
        for round in 0..=options.repeats * 3 {
            let a = one_to_each(&rmcp).await;
            let b = one_to_each(&ours).await;
            if round > 0 {
                ratios.push(b / a);
                plain.push(a);
                supervised.push(b);
            }
        }
        clients::end(supervisor).await;
    });
    runtime.shutdown_background();
    let shown = |seconds| format!("{:.1} ms", Spread::of(seconds).median * 1e3);
    let sides = Sides {
        rmcp: shown(plain),
        ours: shown(supervised),
        floor: String::new(),
    };
    let name = format!("one call to each of {connections} connections");
    table.row(&name, &Spread::of(ratios), bar, &sides);
}

/// All at once, each by a task of its own, until the last is answered.
async fn one_to_each(callers: &[Caller]) -> f64 {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in callers {
        let caller = caller.clone();
        tasks.spawn(async move { caller.call().await });
    }
    tasks.join_all().await;
    started.elapsed().as_secs_f64()
}
