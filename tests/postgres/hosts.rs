//! Hosts as processes of their own on one database: they race, are killed, and are paused.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use mcp_supervisor::{
    OperationId,
    journal::{Accepted, Claimed, Fact, Filter, Held, PostgresStore, State, Store, StoreError},
    operation::AttemptId,
};
use serde_json::{Value, json};

use crate::{
    support::{bounded, postgres::Schema, until},
    written::{answered, happened, intent, settings, show, store},
};

/// Set for the process that is a host: what it is told.
const HOST: &str = "MCP_SUPERVISOR_TEST_POSTGRES_HOST";

/// The program of a host. As a test it does nothing; the tests below start it as a process, which does
/// what it reads and answers each line with one of its own.
#[test]
fn host() {
    let Ok(task) = std::env::var(HOST) else {
        return;
    };
    let task: Value = serde_json::from_str(&task).expect("a task is JSON");
    let text = |name: &str| task[name].as_str().expect("it is told").to_owned();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let schema = std::mem::ManuallyDrop::new(Schema {
            url: text("url"),
            name: text("schema"),
        });
        let mut settings = settings(&schema);
        settings.label = text("label");
        settings.lease = Duration::from_millis(task["lease_ms"].as_u64().expect("it is told"));
        settings.margin = settings.lease / 5;
        let store = PostgresStore::connect_url(&schema.url, settings).await;
        let store = store.expect("it connects");
        println!("> ready");
        let mut held: Option<Held> = None;
        for line in std::io::stdin().lines() {
            let line = line.expect("it can be read");
            let words: Vec<&str> = line.split(' ').collect();
            let said = obey(&store, &mut held, &words).await;
            println!("> {said}");
        }
    });
}

async fn obey(store: &PostgresStore, held: &mut Option<Held>, words: &[&str]) -> String {
    let id = |word: &str| -> OperationId { word.parse().expect("an operation's id") };
    match words {
        ["name"] => store.host().expect("it has one"),
        ["run", operation, key] | ["queue", operation, key] => {
            let first = (words[0] == "run").then(AttemptId::mint);
            match store.accept(intent(id(operation), key), first).await {
                Ok(Accepted::New(new)) => {
                    *held = Some(new);
                    "new".to_owned()
                }
                Ok(Accepted::Found(record)) => format!("found {:?}", record.state),
                Err(error) => wrong(&error),
            }
        }
        ["dispatch"] => {
            let attempt = AttemptId::mint();
            append(store, held.as_ref(), Fact::Dispatching { attempt }).await
        }
        ["answer"] => append(store, held.as_ref(), answered()).await,
        ["claim", operation] => match store.claim(id(operation)).await {
            Ok(Claimed::Yes(claimed, _)) => {
                *held = Some(claimed);
                "yes".to_owned()
            }
            Ok(Claimed::Elsewhere(_)) => "elsewhere".to_owned(),
            Ok(Claimed::Settled(record)) => format!("settled {:?}", record.state),
            Ok(Claimed::Missing) => "missing".to_owned(),
            Err(error) => wrong(&error),
        },
        ["unknown"] => {
            let filter = Filter {
                states: Some(vec![State::OutcomeUnknown]),
                ..Filter::default()
            };
            match store.list(&filter).await {
                Ok(records) => records.len().to_string(),
                Err(error) => wrong(&error),
            }
        }
        other => format!("no such order: {other:?}"),
    }
}

async fn append(store: &PostgresStore, held: Option<&Held>, fact: Fact) -> String {
    match store.append(held.expect("it has one"), fact).await {
        Ok(state) => format!("{state:?}"),
        Err(error) => wrong(&error),
    }
}

fn wrong(error: &StoreError) -> String {
    match error {
        StoreError::Fenced => "fenced".to_owned(),
        other => format!("error: {other}"),
    }
}

struct Host {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Host {
    fn start(schema: &Schema, label: &str, lease: Duration) -> Self {
        let task = json!({
            "url": schema.url, "schema": schema.name, "label": label,
            "lease_ms": u64::try_from(lease.as_millis()).unwrap(),
        });
        let mut child = Command::new(std::env::current_exe().expect("a test has a path"))
            .args(["--exact", "hosts::host", "--nocapture"])
            .env(HOST, task.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let orders = child.stdin.take().expect("it is piped");
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut host = Self {
            child,
            orders,
            answers,
        };
        assert_eq!(host.hear(), "ready");
        host
    }

    fn say(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    /// Its answer, past what the test harness prints.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("it can be read");
            assert_ne!(read, 0, "the host ended without an answer");
            // The harness leaves its own line open.
            if let Some((_, said)) = line.split_once("> ") {
                return said.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, order: &str) -> String {
        self.say(order);
        self.hear()
    }

    /// Asks until the answer is this one: others have to wait for a lease.
    async fn until(&mut self, order: &str, wanted: &str) {
        until(&format!("{order} is answered with {wanted}"), || {
            std::thread::sleep(Duration::from_millis(20));
            self.ask(order) == wanted
        })
        .await;
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal}");
    }

    fn kill(&mut self) {
        self.signal("-KILL");
        self.child.wait().expect("it is this test's child");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(60);
/// One that a test waits for when its host is killed or paused. Shorter, and a loaded machine could
/// stall a host that is to live for as long.
const SHORT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hosts_that_are_told_to_run_one_operation_one_dispatches_it() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let mut hosts = [
            Host::start(&schema, "one", LONG),
            Host::start(&schema, "two", LONG),
        ];
        let one_id = OperationId::mint();
        let rounds = (0..40).map(|round| match round % 2 {
            // The same key under two ids, or the same operation.
            0 => [OperationId::mint(), OperationId::mint()],
            _ => [OperationId::mint(); 2],
        });
        let mut won = [0; 2];
        for (round, ids) in rounds.chain([[one_id; 2]]).enumerate() {
            let order = if round % 3 == 0 { "queue" } else { "run" };
            for (host, id) in hosts.iter_mut().zip(ids) {
                host.say(&format!("{order} {id} order-{round}"));
            }
            let said = [hosts[0].hear(), hosts[1].hear()];
            let winner = said.iter().position(|said| said == "new");
            let winner = winner.unwrap_or_else(|| panic!("nobody: {said:?}"));
            assert!(said[1 - winner].starts_with("found"), "{said:?}");
            won[winner] += 1;
            if order == "queue" {
                assert_eq!(hosts[winner].ask("dispatch"), "Dispatching");
            }
            assert_eq!(hosts[winner].ask("answer"), "Succeeded");
            let said = hosts[1 - winner].ask(&format!("run {} order-{round}", OperationId::mint()));
            assert_eq!(said, "found Succeeded");
        }
        assert_eq!(won[0] + won[1], 41);
        let store = store(&schema).await;
        let filter = Filter {
            limit: 1000,
            ..Filter::default()
        };
        let records = store.list(&filter).await.unwrap();
        assert_eq!(records.len(), 41);
        for record in records {
            assert_eq!(happened(&record), ["dispatching", "answered"]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_host_left_is_found_unknown_and_claimed_by_another() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (sent, queued, told) = (
            OperationId::mint(),
            OperationId::mint(),
            OperationId::mint(),
        );
        let mut first = Host::start(&schema, "first", SHORT);
        let name = first.ask("name");
        assert!(name.starts_with("first "), "{name}");
        assert_eq!(first.ask(&format!("run {told} order-0")), "new");
        assert_eq!(first.ask("answer"), "Succeeded");
        assert_eq!(first.ask(&format!("run {sent} order-1")), "new");
        assert_eq!(first.ask(&format!("queue {queued} order-2")), "new");
        first.kill();

        // The second finds it and dies over it; the third resolves it.
        let mut second = Host::start(&schema, "second", SHORT);
        second.until("unknown", "1").await;
        assert_eq!(second.ask(&format!("claim {sent}")), "yes");
        second.kill();
        let mut third = Host::start(&schema, "third", LONG);
        third.until(&format!("claim {sent}"), "yes").await;
        let store = store(&schema).await;
        let record = show(&store, sent).await;
        assert_eq!(record.state, State::OutcomeUnknown);
        assert_eq!(happened(&record), ["dispatching", "abandoned", "abandoned"]);
        let Fact::Abandoned { host } = &record.history[1].fact else {
            panic!("{record:?}");
        };
        assert_eq!(*host, name);
        assert_eq!(third.ask("answer"), "Succeeded");
        // What was never sent is known not to have been; what was settled stays so.
        assert_eq!(show(&store, queued).await.state, State::NotSent);
        assert_eq!(show(&store, told).await.state, State::Succeeded);
        assert_eq!(
            happened(&show(&store, told).await),
            ["dispatching", "answered"]
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_host_that_comes_back_is_fenced_out() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let operation = OperationId::mint();
        let mut paused = Host::start(&schema, "paused", SHORT);
        let name = paused.ask("name");
        assert_eq!(paused.ask(&format!("run {operation} order-1")), "new");
        paused.signal("-STOP");

        let mut other = Host::start(&schema, "other", LONG);
        other.until(&format!("claim {operation}"), "yes").await;
        paused.signal("-CONT");
        assert_eq!(paused.ask("answer"), "fenced");
        let store = store(&schema).await;
        let record = show(&store, operation).await;
        assert_eq!(record.state, State::OutcomeUnknown);
        assert_eq!(happened(&record), ["dispatching", "abandoned"]);
        assert_eq!(other.ask("answer"), "Succeeded");

        // It works on as another host.
        let fresh = OperationId::mint();
        assert_eq!(paused.ask(&format!("run {fresh} order-2")), "new");
        assert_ne!(paused.ask("name"), name);
        assert_eq!(paused.ask("answer"), "Succeeded");
    })
    .await;
}
