//! Every installed server on each of its seats, a few at a time.

use std::{sync::OnceLock, time::Duration};

use tokio::{
    sync::Semaphore,
    task::{JoinError, LocalSet, spawn_local},
};

use crate::{
    facts::Fact,
    rows::{ROWS, Row, Seat},
    seat::{Taken, is_installed},
};

/// So many seats are used side by side, by all tests together: the interpreters take a core each while
/// they start, and wait afterwards.
static TURNS: Semaphore = Semaphore::const_new(6);
/// The outer deadline of one fact on one seat.
const HARD: Duration = Duration::from_secs(120);
const TOO_LONG: &str = "the seat ran into its outer deadline";
static ROWS_IN_PLACE: [Row; ROWS.len()] = ROWS;

/// Each installed server on each of its seats, and a name for it.
fn seats() -> impl Iterator<Item = (&'static Row, Seat, String)> {
    let rows = ROWS_IN_PLACE.iter().filter(|row| is_installed(row));
    rows.flat_map(|row| row.seats.iter().map(move |seat| (row, *seat)))
        .map(|(row, seat)| {
            let what = format!("{}, {:?}, {:?}", row.name, seat.wire, seat.era());
            (row, seat, what)
        })
}

/// Runs `body` for each installed server on each of its seats, and checks afterwards that nothing
/// of the server runs any more.
pub async fn everywhere(body: impl AsyncFn(&'static Row, Seat, Taken) + Clone + 'static) {
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for (row, seat, what) in seats() {
        let body = body.clone();
        let task = local.spawn_local(async move {
            let _turn = TURNS.acquire().await.unwrap();
            let using = async {
                let taken = Taken::new(row, seat).await;
                let left = taken.left();
                body(row, seat, taken).await;
                left.until_gone().await;
            };
            tokio::time::timeout(HARD, using).await.expect(TOO_LONG);
        });
        tasks.push((what, task));
    }
    let all = local.run_until(async {
        let mut failed = Vec::new();
        for (what, task) in tasks {
            if task.await.is_err() {
                failed.push(what);
            }
        }
        failed
    });
    let failed = all.await;
    assert!(failed.is_empty(), "failed on: {failed:#?}");
}

/// Fails when `fact` does not hold for some server on some seat. The first who asks has all facts
/// checked.
pub fn holds(fact: Fact) {
    static FAILED: OnceLock<Vec<(Fact, String)>> = OnceLock::new();
    let failed = FAILED.get_or_init(|| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(check_all_facts())
    });
    let of = failed.iter().filter(|(failed, _)| *failed == fact);
    let why: Vec<&str> = of.map(|(_, why)| &**why).collect();
    assert!(why.is_empty(), "failed on: {why:#?}");
}

/// The facts that do not hold, and why.
async fn check_all_facts() -> Vec<(Fact, String)> {
    let local = LocalSet::new();
    let tasks: Vec<_> = seats()
        .map(|(row, seat, what)| {
            let task = local.spawn_local(async move {
                let _turn = TURNS.acquire().await.unwrap();
                facts_of(row, seat).await
            });
            (what, task)
        })
        .collect();
    let all = local.run_until(async {
        let mut failed = Vec::new();
        for (what, task) in tasks {
            for (fact, why) in task.await.unwrap() {
                failed.push((fact, format!("{what}: {why}")));
            }
        }
        failed
    });
    all.await
}

/// Checks one fact after the other on one server, and goes on with a fresh one after one that fails.
async fn facts_of(row: &'static Row, seat: Seat) -> Vec<(Fact, String)> {
    let (mut failed, mut kept) = (Vec::new(), None);
    for fact in Fact::ALL {
        let before: Option<Taken> = kept.take();
        let is_last = fact == Fact::ALL[Fact::ALL.len() - 1];
        let checking = spawn_local(async move {
            let using = async {
                let taken = match before {
                    Some(taken) => taken,
                    None => Taken::new(row, seat).await,
                };
                fact.check(row, seat, &taken).await;
                if !is_last {
                    return Some(taken);
                }
                let left = taken.left();
                drop(taken);
                left.until_gone().await;
                None
            };
            tokio::time::timeout(HARD, using).await.expect(TOO_LONG)
        });
        match checking.await {
            Ok(taken) => kept = taken,
            Err(error) => failed.push((fact, said(error))),
        }
    }
    failed
}

/// What a task said when it panicked: another test's output has it, which may have passed.
fn said(error: JoinError) -> String {
    let panic = error.into_panic();
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
    }
}
