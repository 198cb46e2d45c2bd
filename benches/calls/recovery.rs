//! How long it takes from the death of a server to the next answer, and how long many servers take to
//! start.

use std::time::{Duration, Instant};

use mcp_supervisor::{Supervisor, ToolCall};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    clients::{self, Caller, Client, Place},
    options::Options,
    servers::Answer,
    speed::Flavour,
    spread::Spread,
    table::{Bar, Sides, Table},
};

/// From SIGKILL to the next answer, over what a start alone takes: rmcp starts the same child,
/// greets it, and calls once.
pub(crate) fn after_kill(table: &mut Table, options: &Options) {
    let place = Place::Stdio(Answer::Process);
    let runtime = Flavour::Multi.runtime();
    let (mut ratios, mut starts, mut recoveries) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let supervisor = clients::supervisor().await;
        let ours = clients::ours(&supervisor, "bench", &place).await;
        let mut process = process_of(&ours).await;
        // The first round is to warm up.
        for round in 0..=options.rounds {
            let started = Instant::now();
            let fresh = clients::rmcp(&place).await;
            fresh.call().await;
            let start = started.elapsed().as_secs_f64();
            drop(fresh);

            let started = Instant::now();
            kill(process, Signal::SIGKILL).expect("the server runs");
            process = process_after(&ours, process).await;
            let recovery = started.elapsed().as_secs_f64();
            if round > 0 {
                ratios.push(recovery / start);
                starts.push(start);
                recoveries.push(recovery);
            }
        }
        clients::end(supervisor).await;
    });
    runtime.shutdown_background();
    let sides = Sides {
        rmcp: milliseconds(starts),
        ours: milliseconds(recoveries),
        floor: String::new(),
    };
    let name = "kill to the next answer, over spawn, handshake and call";
    table.row(name, &Spread::of(ratios), Bar::AtMost(1.3), &sides);
}

fn milliseconds(seconds: Vec<f64>) -> String {
    format!("{:.2} ms", Spread::of(seconds).median * 1e3)
}

/// The server's process, as it tells it.
async fn process_of(caller: &Caller) -> Pid {
    loop {
        if let Some(process) = asked(caller).await {
            return process;
        }
    }
}

/// The first answer of another process. A call that was on its way to the old one has an unknown
/// outcome, and this is a caller who then makes another.
async fn process_after(caller: &Caller, old: Pid) -> Pid {
    loop {
        match asked(caller).await {
            Some(process) if process != old => return process,
            _ => {}
        }
    }
}

async fn asked(caller: &Caller) -> Option<Pid> {
    let Client::Ours(connection) = &caller.client else {
        unreachable!("only ours comes back")
    };
    let answer = connection.call_tool(ToolCall::new("pid", json!({}))).await;
    let text = answer.ok()?.text();
    Some(Pid::from_raw(text.parse().expect("a process")))
}

/// How many servers are started.
const SERVERS: usize = 200;

/// Servers that are started side by side, over the same servers one after another: each is called
/// once.
pub(crate) fn start_up(table: &mut Table, options: &Options) {
    let runtime = Flavour::Multi.runtime();
    let (mut ratios, mut rows, mut abreast) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        for _ in 0..options.repeats {
            let (supervisor, servers) = open_all().await;
            let started = Instant::now();
            for server in servers {
                server.call().await;
            }
            let row = started.elapsed().as_secs_f64();
            end_all(supervisor).await;

            let (supervisor, servers) = open_all().await;
            let started = Instant::now();
            let mut tasks = JoinSet::new();
            for server in servers {
                tasks.spawn(async move { server.call().await });
            }
            tasks.join_all().await;
            let beside = started.elapsed().as_secs_f64();
            end_all(supervisor).await;
            ratios.push(row / beside);
            rows.push(row);
            abreast.push(beside);
        }
    });
    runtime.shutdown_background();
    let sides = Sides {
        rmcp: String::new(),
        ours: format!(
            "{} one after another, {} side by side",
            milliseconds(rows),
            milliseconds(abreast)
        ),
        floor: String::new(),
    };
    let name = format!("{SERVERS} stdio servers, side by side over one after another");
    table.row(&name, &Spread::of(ratios), Bar::AtLeast(1.5), &sides);
}

/// Opens connections, whose servers start with their first call.
async fn open_all() -> (Supervisor, Vec<Caller>) {
    let supervisor = clients::supervisor().await;
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        let (name, place) = (format!("server-{number}"), Place::Stdio(Answer::Small));
        servers.push(clients::ours(&supervisor, &name, &place).await);
    }
    (supervisor, servers)
}

async fn end_all(supervisor: Supervisor) {
    let _ = supervisor.shutdown(Duration::from_secs(30)).await;
}
