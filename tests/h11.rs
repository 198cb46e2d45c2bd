//! Case H11: calls issued in the exact window of the server's death.
//!
//! A real child process is killed by SIGKILL at a random moment around a handful of calls, again
//! and again. `H11_CALLS` says how many calls are made in all; `H11_SEED` repeats a run.

mod support;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use mcp_supervisor::{
    CallError, ConnectionSpec, Era, Outcome, OwnedConnection, Supervisor, ToolAnswer, ToolCall,
    spec::{Limits, Recovery},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::json;
use support::{Bed, initialize};

/// Calls in flight around each death.
const TOGETHER: usize = 6;
/// How far from the calls the death may be, in microseconds: around a server that answers, and
/// around one that starts.
const WHILE_LIVE: u64 = 1_200;
const WHILE_STARTING: u64 = 12_000;
/// The deadline of each call; its outcome must be there by then and a little.
const DEADLINE: Duration = Duration::from_secs(20);
const SLACK: Duration = Duration::from_secs(10);

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")),
    )
}

/// What became of the calls, for the eyes of whoever runs it.
#[derive(Debug, Default)]
struct Tally {
    answered: usize,
    unknown: usize,
    not_sent: usize,
    deaths: u64,
    slowest: Duration,
}

/// One server directory and one connection, whose server dies at every round.
struct Deathbed {
    bed: Bed,
    connection: OwnedConnection,
    supervisor: Supervisor,
    random: StdRng,
    outcomes: HashMap<String, Option<Outcome>>,
    tally: Tally,
}

impl Deathbed {
    async fn new(era: Era, seed: u64) -> Self {
        // No hint and no contract: at most once is what holds.
        let bed = Bed::new(json!({}));
        let grace = Duration::from_millis(200);
        let limits = Limits {
            stdin_grace: grace,
            term_grace: grace,
            ..Limits::default()
        };
        // A session that dies before it has answered anything counts, and here most do.
        let recovery = Recovery {
            max_restarts: u32::MAX,
            backoff: mcp_supervisor::policy::Backoff {
                base: Duration::ZERO,
                cap: Duration::ZERO,
            },
            ..Recovery::default()
        };
        let spec: ConnectionSpec = bed.stdio_spec(era).limits(limits).recovery(recovery);
        let supervisor = Supervisor::builder().start().await.unwrap();
        let connection = supervisor.open("mortal", spec).await.unwrap();
        Self {
            bed,
            connection,
            supervisor,
            random: StdRng::seed_from_u64(seed),
            outcomes: HashMap::new(),
            tally: Tally::default(),
        }
    }

    async fn call(&self, key: &str) -> (Result<ToolAnswer, CallError>, Duration) {
        let call = ToolCall::new("charge", json!({"key": key})).deadline(DEADLINE);
        let started = Instant::now();
        let result = self.connection.call_tool(call).await;
        (result, started.elapsed())
    }

    /// The process of the newest generation.
    fn newest(&self) -> Option<i32> {
        let of = |generation: u64| {
            let file = self.bed.file(&format!("generations/{generation}"));
            std::fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        of(self.connection.status().generation?.number())
    }

    /// A handful of calls, with a death at some moment around them.
    async fn round(&mut self, number: usize) {
        // Every other round finds a server that has just answered; the rest find what the round
        // before has left, which is often none.
        let window = if number.is_multiple_of(2) {
            let key = format!("warm-{number}");
            let (warm, took) = self.call(&key).await;
            self.note(key, &warm, took);
            WHILE_LIVE
        } else {
            WHILE_STARTING
        };
        let keys: Vec<String> = (0..TOGETHER)
            .map(|n| format!("call-{number}-{n}"))
            .collect();
        let distance = self.random.random_range(0..window);
        let [before, after] = match self.random.random_range(0..3) {
            0 => [distance, 0],
            _ => [0, distance],
        };
        let victim = self.newest();
        let killing = async {
            pause(after).await;
            // The one that starts in the meantime is as good.
            if let Some(pid) = self.newest().or(victim)
                && support::is_running(pid)
            {
                nix::sys::signal::kill(
                    nix::unistd::Pid::from_raw(pid),
                    nix::sys::signal::Signal::SIGKILL,
                )
                .is_ok()
            } else {
                false
            }
        };
        let calling = async {
            pause(before).await;
            join_all(keys.iter().map(|key| self.call(key))).await
        };
        let (killed, results) = tokio::join!(killing, calling);
        self.tally.deaths += u64::from(killed);
        for (key, (result, took)) in keys.into_iter().zip(results) {
            self.note(key, &result, took);
        }
    }

    fn note(&mut self, key: String, result: &Result<ToolAnswer, CallError>, took: Duration) {
        assert!(took < DEADLINE + SLACK, "{key} took {took:?}");
        self.tally.slowest = self.tally.slowest.max(took);
        let outcome = result.as_ref().err().map(CallError::outcome);
        match outcome {
            None => self.tally.answered += 1,
            Some(Outcome::Unknown) => self.tally.unknown += 1,
            Some(Outcome::NotSent) => self.tally.not_sent += 1,
            Some(other) => panic!("{key}: a dead server says nothing, and yet: {other}"),
        }
        assert!(self.outcomes.insert(key, outcome).is_none());
    }

    /// Compares what the callers were told with what the servers did.
    async fn reckon(self) {
        let Self {
            bed,
            supervisor,
            outcomes,
            tally,
            ..
        } = self;
        let _ = supervisor.shutdown(Duration::from_secs(2)).await;
        bed.until_all_gone().await;
        let mut effects: HashMap<String, usize> = HashMap::new();
        for effect in bed.effects() {
            *effects.entry(effect.key).or_default() += 1;
        }
        for (key, outcome) in &outcomes {
            let ran = effects.remove(key).unwrap_or(0);
            match outcome {
                None => assert_eq!(ran, 1, "{key} was answered"),
                Some(Outcome::NotSent) => assert_eq!(ran, 0, "{key} was not sent"),
                Some(_) => assert!(ran <= 1, "{key} ran {ran} times"),
            }
        }
        assert!(effects.is_empty(), "nobody asked for {effects:?}");
        assert!(tally.deaths > 0 && tally.answered > 0, "{tally:?}");
        println!("{tally:?}");
    }
}

/// Short and exact: the timer's grain of a millisecond would make every moment the same.
async fn pause(micros: u64) {
    let until = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < until {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_the_moment_of_death_every_call_resolves_and_runs_at_most_once() {
    let calls = number("H11_CALLS").unwrap_or(60);
    let seed = number("H11_SEED").unwrap_or_else(rand::random);
    println!("H11_SEED={seed} H11_CALLS={calls}");
    let calls = usize::try_from(calls).unwrap();
    let per_era = calls.div_ceil(2).div_ceil(TOGETHER);
    // Hangs are what this is about: the outer deadline grows with the work, not without bound.
    let hard = support::HARD + Duration::from_millis(120) * u32::try_from(calls).unwrap();
    let body = async {
        for era in [initialize(), Era::Discover] {
            let mut deathbed = Deathbed::new(era, seed).await;
            for number in 0..per_era {
                deathbed.round(number).await;
            }
            deathbed.reckon().await;
        }
    };
    tokio::time::timeout(hard, body)
        .await
        .expect("a call did not resolve");
}
