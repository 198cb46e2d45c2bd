//! A host with many connections of all kinds, whose servers misbehave by a schedule, for a given time.
//!
//! Children, children with receipts, HTTP, byte streams, a factory's transports, and clients that are
//! lent; with a journal and without; under every contract. Servers kill themselves, exit, stall, refuse,
//! answer late, twice or garbage, reset sockets and forget sessions; those at sockets are also killed, stopped and started again from
//! outside. Callers give up, cancel, reconnect, and come again with the same key. A clerk resolves what nobody knows.
//!
//! Effects are counted in databases that outlive the servers. At the end the program prints what became of the
//! operations, how often each effect stands, and what the process held at the start and at the end. It exits
//! with 1 where an effect stands twice, an outcome that was told is not so, a call never ended, a record of the
//! journal is neither settled nor says why, a connection works no more, or a process, a descriptor, a task or
//! memory is left over.
//!
//! ```text
//! cargo run --example soak
//! cargo run --example soak -- --seconds 600 --connections 240 --pace-ms 1500 --seed 7
//! ```
//!
//! It needs Linux's `/proc`. The program starts itself again: as the host, which it watches, and as its
//! servers.

#[path = "soak/caller.rs"]
mod caller;
#[path = "soak/clerk.rs"]
mod clerk;
#[path = "soak/desk.rs"]
mod desk;
#[path = "soak/fate.rs"]
mod fate;
#[path = "soak/hall.rs"]
mod hall;
#[path = "soak/held.rs"]
mod held;
#[path = "soak/host.rs"]
mod host;
#[path = "soak/lines.rs"]
mod lines;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/shop.rs"]
mod shop;
#[path = "soak/told.rs"]
mod told;
#[path = "soak/town.rs"]
mod town;
#[path = "soak/verdict.rs"]
mod verdict;
#[path = "soak/web.rs"]
mod web;

use std::{
    env,
    error::Error,
    path::Path,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use plan::Plan;
use shop::Shop;

/// How a part of it ends: well, or with the reason why not.
type Ending<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long processes of a host that is gone may take to go.
const GOES: Duration = Duration::from_secs(10);

fn main() -> Ending<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (role, run) = match words[..] {
        [role, run, ..] if !role.starts_with("--") => (role, Path::new(run)),
        _ => return watch(&Plan::read(&arguments)?),
    };
    if role == "host" {
        let plan = Plan::read(&arguments[2..])?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let well = runtime.block_on(host::soak(&plan, run))?;
        return Ok(if well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let [_, _, name, seed, ports @ ..] = &words[..] else {
        return Err("a server wants a place, a name and a seed".into());
    };
    let shop = Shop::open(run, name, seed.parse()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match (role, ports) {
            ("serve-lines", []) => lines::child(shop).await,
            ("serve-receipts", []) => desk::child(shop, run, name).await,
            ("serve-sockets", [web, plain]) => {
                hall::child(shop, [web.parse()?, plain.parse()?]).await
            }
            _ => Err(format!("there is no role {role}").into()),
        }
    })?;
    // Reading stdin is a thread that cannot be stopped.
    std::process::exit(0);
}

/// Runs the host in a process of its own, so that one that hangs is ended, and sees that nothing is left
/// of it.
fn watch(plan: &Plan) -> Ending<ExitCode> {
    let directory = tempfile::tempdir()?;
    let run = directory.path();
    let hard = plan.hard();
    let mut host = Command::new(env::current_exe()?)
        .args(["host".as_ref(), run.as_os_str()])
        .args(plan.arguments())
        // An arena for each thread would make what a process holds a matter of chance.
        .env("MALLOC_ARENA_MAX", "1")
        .spawn()?;
    let until = Instant::now() + hard;
    let ended = loop {
        match host.try_wait()? {
            Some(ended) => break Some(ended),
            None if Instant::now() > until => break None,
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    if ended.is_none() {
        println!("WRONG: the host did not end within {hard:?}");
        host.kill()?;
        host.wait()?;
    }
    let until = Instant::now() + GOES;
    let mut left = held::processes(run);
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        left = held::processes(run);
    }
    for (id, command) in &left {
        println!("WRONG: a process outlives the host: {id} {command}");
        kill(Pid::from_raw(i32::try_from(*id)?), Signal::SIGKILL)?;
    }
    let well = ended.is_some_and(|ended| ended.success()) && left.is_empty();
    if !well {
        let seed = plan.seed;
        println!(
            "the soak of seed {seed} found something; what it wrote is in {}",
            directory.keep().display()
        );
    }
    Ok(if well {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
