//! A host with many connections of all kinds, whose servers misbehave by a schedule.
//!
//! Children, HTTP servers, in-memory streams and clients that are lent; with a journal and without, with
//! a key and without. Their servers die, hang, cut their answers, flood, send garbage and take their
//! time. Every operation has a key of its own, and every server writes its effects into a file before it
//! answers. At the end the program prints what became of the operations, and ends with 1 if an effect
//! stands twice, an answer tells of an effect that does not stand, what was not sent has one, a call did
//! not end, or a process, a descriptor or memory is left over.
//!
//! ```text
//! cargo run --example soak
//! cargo run --release --example soak -- --seconds 600 --connections 300 --seed 7
//! ```
//!
//! The program starts itself again, as the servers that are children.

#[path = "soak/calls.rs"]
mod calls;
#[path = "soak/kinds.rs"]
mod kinds;
#[path = "soak/leftovers.rs"]
mod leftovers;
#[path = "soak/server.rs"]
mod server;
#[path = "soak/web.rs"]
mod web;

use std::{
    env,
    error::Error,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_supervisor::{
    Supervisor,
    journal::{Journal, JournalSettings},
};

use crate::{
    calls::{Caller, Tally},
    kinds::{Hosts, Kind},
    leftovers::Held,
};

type Ending<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// What to do, and for how long.
struct Plan {
    seconds: u64,
    connections: usize,
    /// At most so many of them are child processes.
    children: usize,
    seed: u64,
}

impl Plan {
    fn read(arguments: impl Iterator<Item = String>) -> Ending<Self> {
        let mut plan = Self {
            seconds: 10,
            connections: 60,
            children: 60,
            seed: 1,
        };
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = arguments
                .next()
                .ok_or_else(|| format!("{name} wants a value"))?
                .parse::<u64>()
                .map_err(|error| format!("{name}: {error}"))?;
            match name.as_str() {
                "--seconds" => plan.seconds = value,
                "--connections" => plan.connections = usize::try_from(value)?,
                "--children" => plan.children = usize::try_from(value)?,
                "--seed" => plan.seed = value,
                _ => {
                    return Err(format!(
                        "no option {name}; there are --seconds, --connections, --children and --seed"
                    )
                    .into());
                }
            }
        }
        Ok(plan)
    }
}

fn main() -> Ending<ExitCode> {
    let mut arguments = env::args().skip(1).peekable();
    if arguments.next_if(|first| first == "serve").is_some() {
        let ledger = arguments.next().ok_or("a server wants a ledger")?;
        let seed = arguments.next().ok_or("a server wants a seed")?.parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(server::serve(
            tokio::io::stdin(),
            tokio::io::stdout(),
            Path::new(&ledger),
            seed,
        ));
        // Its reading of stdin is a thread that cannot be stopped.
        std::process::exit(0);
    }
    let plan = Plan::read(arguments)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let well = runtime.block_on(soak(&plan))?;
    Ok(match well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn soak(plan: &Plan) -> Ending<bool> {
    println!(
        "{} connections for {} s, seed {}",
        plan.connections, plan.seconds, plan.seed
    );
    let directory = tempfile::tempdir()?;
    let web = web::Web::start(directory.path(), plan.seed).await?;
    let start = Held::now();
    println!("at the start: {start}");

    let journal = Journal::sqlite(
        directory.path().join("journal.db"),
        JournalSettings::default(),
    )
    .await?;
    let hosts = Arc::new(Hosts {
        plain: Supervisor::builder().start().await?,
        journaled: Supervisor::builder()
            .journal(journal.clone())
            .start()
            .await?,
        directory: directory.path().to_owned(),
        web: web.address,
        seed: plan.seed,
    });

    let tally = Arc::new(Tally::default());
    let until = Instant::now() + Duration::from_secs(plan.seconds);
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..plan.connections {
        let caller = Caller {
            number,
            kind: Kind::of(number, plan.children),
            hosts: Arc::clone(&hosts),
            tally: Arc::clone(&tally),
            seed: plan.seed,
        };
        callers.spawn(caller.call_until(until));
    }
    // Everything has been opened once by then, and the memory that it takes is taken.
    tokio::time::sleep(Duration::from_secs(plan.seconds / 4)).await;
    let warm = Held::now();
    println!("after a quarter: {warm}");

    let mut broken = Vec::new();
    let longest = Duration::from_secs(plan.seconds) + calls::LONGEST * 2;
    let all = async {
        while let Some(ended) = callers.join_next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => broken.push(format!("a caller failed: {error}")),
                Err(error) => broken.push(format!("a caller panicked: {error}")),
            }
        }
    };
    if tokio::time::timeout(longest, all).await.is_err() {
        broken.push("a call never ended".to_owned());
    }
    let busiest = Held::now();
    println!("at the end of the calls: {busiest}");

    let hosts = Arc::into_inner(hosts).ok_or("a caller still has its host")?;
    let grace = Duration::from_secs(10);
    for supervisor in [hosts.plain, hosts.journaled] {
        supervisor.shutdown(grace).await;
    }
    let open = journal.unknown().await?.len();
    println!("the journal has {open} operations of unknown outcome");
    journal.close().await?;
    web.stop().await;
    let end = leftovers::settled(&start).await;
    println!("at the end: {end}");

    broken.extend(tally.report(directory.path())?);
    broken.extend(end.left_over(&start, &warm));
    for problem in &broken {
        println!("BROKEN: {problem}");
    }
    println!(
        "{}",
        match broken.is_empty() {
            true => "nothing twice, nothing left over, nothing unresolved",
            false => "the soak found something",
        }
    );
    Ok(broken.is_empty())
}
