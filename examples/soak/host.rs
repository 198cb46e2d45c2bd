//! The run: a warm-up, a quiet moment, the storm, a quiet moment, and the end.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_supervisor::{
    Supervisor,
    journal::{Journal, JournalSettings},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Ending,
    caller::Caller,
    clerk::Clerk,
    hall::Hall,
    held::Held,
    plan::Plan,
    shop,
    told::{Became, Told},
    town::{Place, Town},
    verdict::{self, Wrong},
};

/// How long what was told to go may take.
const GOES: Duration = Duration::from_secs(30);
/// How many more descriptors and tasks may be held at the end than after the warm-up: one, and one for
/// every fourth connection. Over HTTP a socket is kept for the next call, with a task that looks after it,
/// and up to three calls are made at a time.
const MORE: usize = 16;
/// How much more memory, in KiB: one, and one for each connection. It is what the allocator keeps of what is
/// free, and grows for some minutes.
const MORE_MEMORY: (u64, u64) = (8 * 1024, 40);
/// How often it tells how far it is.
const TELLS: Duration = Duration::from_secs(60);

pub(crate) async fn soak(plan: &Plan, run: &Path) -> Ending<bool> {
    let Plan {
        seconds,
        connections,
        pace_ms,
        seed,
    } = plan;
    println!(
        "{connections} connections for {seconds} s, a call in {pace_ms} ms on each, seed {seed}"
    );
    let before = Held::now(run)?;
    println!("{:14}{before}", "at the start");
    let mut wrong = Wrong::default();
    let mut halls = Vec::new();
    for number in 0..(connections / 40).max(2) {
        halls.push(Hall::open(run, 10_000 + number, *seed).await?);
    }
    // Answers are kept for so short a time that retention is part of it.
    let settings = JournalSettings {
        keep_arguments: true,
        answers_kept_for: Duration::from_secs(20),
        tombstones_kept_for: Duration::from_secs(40),
        ..JournalSettings::default()
    };
    let journal = Journal::sqlite(run.join("journal.db"), settings).await?;
    let journaled = Supervisor::builder()
        .journal(journal.clone())
        .start()
        .await?;
    let plain = Supervisor::builder().start().await?;
    let town = Arc::new(Town {
        run: run.to_owned(),
        seed: *seed,
        halls: halls
            .iter()
            .map(|hall| (hall.name().to_owned(), hall.ports()))
            .collect(),
        journaled: with_one_below(journaled).await?,
        plain: with_one_below(plain).await?,
        shared: std::sync::Mutex::default(),
    });
    let told = Arc::new(Told::open(run)?);
    let clerk = Arc::new(Clerk {
        town: Arc::clone(&town),
        journal: journal.clone(),
        told: Arc::clone(&told),
    });
    let mut callers = Vec::new();
    for number in 0..*connections {
        let mut caller = Caller::new(Place::of(number), &town, &told, *pace_ms);
        caller.open().await?;
        callers.push(caller);
    }
    let mut days = Days {
        run,
        clerk: &clerk,
        halls,
        callers,
        told: &told,
    };
    days.storm(plan.warm_up(), &mut wrong).await?;
    days.quiet(&mut wrong).await?;
    let warm = days.held().await?;
    println!("{:14}{warm}", "after warm-up");
    days.storm(plan.storm(), &mut wrong).await?;
    days.quiet(&mut wrong).await?;
    days.resolve(&mut wrong).await?;
    let end = days.held().await?;
    println!("{:14}{end}", "at the end");

    let Days { halls, callers, .. } = days;
    drop(clerk);
    for caller in callers {
        caller.link.give_up().await;
    }
    verdict::journal(&journal, &town, &mut wrong).await?;
    verdict::print(&told.counts());
    let town = Arc::into_inner(town).ok_or("somebody still has the connections")?;
    let never: u64 = told
        .counts()
        .iter()
        .filter(|((_, became), _)| *became == Became::Never)
        .map(|(_, many)| many)
        .sum();
    wrong.check(never == 0, || format!("{never} operations never ended"));
    verdict::effects(&town, &told, &mut wrong)?;
    drop(told);
    close(town, journal, halls, &mut wrong).await?;

    let after = leftover(run, &before).await?;
    println!("{:14}{after}", "after closing");
    judge(plan, [&before, &warm, &end, &after], &mut wrong);
    let well = wrong.print();
    if well {
        println!("nothing twice, nothing left over, nothing without an end");
    }
    Ok(well)
}

/// A supervisor, behind the one of an agent below it.
async fn with_one_below(above: Supervisor) -> Ending<[Supervisor; 2]> {
    let below = Supervisor::builder().under(&above, "agent");
    Ok([below.start().await?, above])
}

/// Stops everything.
async fn close(town: Town, journal: Journal, halls: Vec<Hall>, wrong: &mut Wrong) -> Ending {
    let Town {
        journaled,
        plain,
        shared,
        ..
    } = town;
    drop(shared);
    // Those below go with those above.
    for [_below, above] in [journaled, plain] {
        let down = above.shutdown(Duration::from_secs(5));
        match tokio::time::timeout(GOES, down).await {
            Ok(report) => {
                let busy = report.connections.iter().filter(|c| !c.drained).count();
                wrong.check(busy == 0, || {
                    format!("{busy} connections were busy at the end")
                });
            }
            Err(_) => wrong.add(format!("a shutdown did not end within {GOES:?}")),
        }
    }
    journal.close().await?;
    for hall in halls {
        hall.close().await;
    }
    Ok(())
}

/// Waits for what goes in the background.
async fn leftover(run: &Path, before: &Held) -> Ending<Held> {
    let until = Instant::now() + GOES;
    loop {
        let held = Held::now(run)?;
        // The guardian of the children goes with this process.
        let gone = held.processes.len() <= before.processes.len() + 1
            && held.descriptors <= before.descriptors + 1
            && held.tasks <= before.tasks;
        if gone || Instant::now() > until {
            return Ok(held);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn judge(plan: &Plan, held: [&Held; 4], wrong: &mut Wrong) {
    let [before, warm, end, after] = held;
    wrong.check(end.processes.len() == warm.processes.len(), || {
        format!("processes are left over, or missing: {:#?}", end.processes)
    });
    let more = MORE + plan.connections / 4;
    wrong.check(end.descriptors <= warm.descriptors + more, || {
        format!(
            "{} descriptors, and after the warm-up {}",
            end.descriptors, warm.descriptors
        )
    });
    wrong.check(end.tasks <= warm.tasks + more, || {
        format!("{} tasks, and after the warm-up {}", end.tasks, warm.tasks)
    });
    let more = MORE_MEMORY.0 + MORE_MEMORY.1 * plan.connections as u64;
    wrong.check(end.memory <= warm.memory + more, || {
        format!(
            "{} KiB more memory than after the warm-up, and {more} may be",
            end.memory - warm.memory
        )
    });
    wrong.check(after.processes.len() <= before.processes.len() + 1, || {
        format!("processes are left over: {:#?}", after.processes)
    });
    // The guardian's pipe.
    wrong.check(after.descriptors <= before.descriptors + 1, || {
        format!(
            "{} descriptors, and at the start {}",
            after.descriptors, before.descriptors
        )
    });
    wrong.check(after.tasks <= before.tasks, || {
        format!("{} tasks are left over", after.tasks)
    });
}

/// What goes on from day to day.
struct Days<'a> {
    run: &'a Path,
    clerk: &'a Arc<Clerk>,
    halls: Vec<Hall>,
    callers: Vec<Caller>,
    told: &'a Arc<Told>,
}

impl Days<'_> {
    /// Servers misbehave, and callers call.
    async fn storm(&mut self, lasts: Duration, wrong: &mut Wrong) -> Ending {
        let calm = shop::calm(self.run);
        if calm.exists() {
            std::fs::remove_file(&calm)?;
        }
        let until = Instant::now() + lasts;
        let quiet = CancellationToken::new();
        let mut halls = JoinSet::new();
        for (number, mut hall) in std::mem::take(&mut self.halls).into_iter().enumerate() {
            let quiet = quiet.clone();
            halls.spawn(async move { hall.misbehave(quiet, number as u64).await.map(|()| hall) });
        }
        let mut callers = JoinSet::new();
        for mut caller in std::mem::take(&mut self.callers) {
            callers.spawn(async move {
                caller.call_until(until).await;
                caller
            });
        }
        let (clerk, over) = (Arc::clone(self.clerk), quiet.clone());
        let clerk = tokio::spawn(async move { clerk.work_until(over).await });
        let mut tells = tokio::time::interval_at(tokio::time::Instant::now() + TELLS, TELLS);
        loop {
            tokio::select! {
                caller = callers.join_next() => match caller {
                    Some(Ok(caller)) => self.callers.push(caller),
                    Some(Err(error)) => wrong.add(format!("a caller failed: {error}")),
                    None => break,
                },
                _ = tells.tick() => {
                    let many: u64 = self.told.counts().values().sum();
                    println!("{:14}{} {many:8} operations", "on the way", Held::now(self.run)?);
                }
            }
        }
        std::fs::write(&calm, "")?;
        quiet.cancel();
        for hall in halls.join_all().await {
            self.halls.push(hall?);
        }
        clerk.await??;
        self.callers.sort_by_key(|caller| caller.place.number);
        Ok(())
    }

    /// Servers behave, and each connection is seen to work.
    async fn quiet(&mut self, wrong: &mut Wrong) -> Ending {
        let mut working = JoinSet::new();
        for mut caller in std::mem::take(&mut self.callers) {
            working.spawn(async move {
                let works = caller.works().await;
                (caller, works)
            });
        }
        for (caller, works) in working.join_all().await {
            if let Err(error) = works {
                wrong.add(error.to_string());
            }
            self.callers.push(caller);
        }
        self.callers.sort_by_key(|caller| caller.place.number);
        Ok(())
    }

    /// What contracts can find out is found out.
    async fn resolve(&mut self, wrong: &mut Wrong) -> Ending {
        let until = Instant::now() + GOES;
        let mut idle = 0;
        // What was given up is not at rest before its deadline.
        while idle < 3 && Instant::now() < until {
            match tokio::time::timeout(GOES * 2, self.clerk.round()).await {
                Ok(found) => idle = if found? == 0 { idle + 1 } else { 0 },
                Err(_) => {
                    wrong.add("a round over what is unknown did not end");
                    break;
                }
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        Ok(())
    }

    /// What is held once all that was told to go has gone: a process for each child and each server of
    /// sockets, and the guardian.
    async fn held(&self) -> Ending<Held> {
        let children = self
            .callers
            .iter()
            .filter(|caller| caller.place.over.is_child());
        let expected = children.count() + self.halls.len() + 1;
        let until = Instant::now() + GOES;
        loop {
            let held = Held::now(self.run)?;
            if held.processes.len() == expected || Instant::now() > until {
                return Ok(held);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
