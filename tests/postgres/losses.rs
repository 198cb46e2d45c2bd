//! A connection that breaks in the middle of a commit, a server that is away, a server that starts
//! again.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_supervisor::{
    OperationId,
    journal::{Claimed, Fact, Filter, PostgresStore, State, Store, StoreError},
    operation::AttemptId,
};

use crate::{
    proxy::Proxy,
    support::{
        bounded,
        postgres::{Schema, client},
    },
    written::{answered, dispatch, happened, intent, new, settings, show, store, yes},
};

/// A store whose connections go through a proxy, and whose host says nothing meanwhile.
async fn through(proxy: &Proxy, schema: &Schema) -> PostgresStore {
    let mut settings = settings(schema);
    settings.lease = Duration::from_secs(600);
    let store = PostgresStore::connect_url(&proxy.url, settings).await;
    store.expect("it connects")
}

#[tokio::test]
async fn a_write_whose_commit_was_not_answered_is_known_to_be_done_and_is_done_once() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let proxy = Proxy::to(&schema.url).await;
        let store = through(&proxy, &schema).await;
        for round in 0..5 {
            let cut = proxy.swallowed();
            proxy.swallow("SELECT 1");
            let held = dispatch(&store, &format!("order-{round}")).await;
            assert_eq!(proxy.swallowed(), cut + 1, "accepting");

            proxy.swallow("SELECT 1");
            let lost = Fact::Without {
                outcome: mcp_supervisor::Outcome::Unknown,
                failure: Default::default(),
                by: mcp_supervisor::journal::Settler::Call {
                    generation: None,
                    attempts: 1,
                },
            };
            let state = store.append(&held, lost).await.unwrap();
            assert_eq!(state, State::OutcomeUnknown);
            assert_eq!(proxy.swallowed(), cut + 2, "appending");

            proxy.swallow("SELECT 1");
            let (claim, _) = yes(store.claim(held.operation).await);
            assert_eq!(proxy.swallowed(), cut + 3, "claiming");
            assert_eq!(claim.fence, held.fence + 1, "claimed twice");

            proxy.swallow("UPDATE 1");
            store.release(&claim).await.expect("it is released");
            assert_eq!(proxy.swallowed(), cut + 4, "releasing");
            let (again, _) = yes(store.claim(held.operation).await);
            assert_eq!(again.fence, claim.fence + 2);

            proxy.swallow("SELECT 1");
            let attempt = AttemptId::mint();
            let repeat = store.append(&again, Fact::Dispatching { attempt }).await;
            assert_eq!(repeat.unwrap(), State::OutcomeUnknown);
            assert_eq!(proxy.swallowed(), cut + 5, "dispatching again");

            let record = show(&store, held.operation).await;
            assert_eq!(happened(&record), ["dispatching", "without", "dispatching"]);
        }
    })
    .await;
}

/// So many ended connections, beside 200 operations, say something.
const ENOUGH: usize = 20;

#[tokio::test(flavor = "multi_thread")]
async fn with_connections_ended_in_the_middle_what_was_acknowledged_is_there_once() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let url = schema.marked_url();
        let mut settings = settings(&schema);
        // Its renewals break as often as all else.
        settings.lease = Duration::from_secs(600);
        let store = PostgresStore::connect_url(&url, settings).await;
        let store = Arc::new(store.expect("it connects"));
        let killer = schema.client().await;
        let done = Arc::new(AtomicBool::new(false));
        let (written, killed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let killing = tokio::spawn({
            let (done, written, killed) = (done.clone(), written.clone(), killed.clone());
            let name = schema.name.clone();
            async move {
                let mut seen = 0;
                while !done.load(Ordering::SeqCst) {
                    // No faster than the writes go on: under a heavy load none would get through.
                    let now = written.load(Ordering::SeqCst);
                    if now < seen + 3 {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    seen = now;
                    // Any of them, in the middle of what the others do.
                    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                         WHERE application_name = $1 ORDER BY random() LIMIT 1";
                    let ended = killer.query(sql, &[&name]).await.expect("it can be read");
                    killed.fetch_add(ended.len(), Ordering::SeqCst);
                }
            }
        });
        let mut workers = tokio::task::JoinSet::new();
        for worker in 0..8 {
            let (store, written, killed) = (store.clone(), written.clone(), killed.clone());
            workers.spawn(async move {
                let mut settled = Vec::new();
                // On a fast machine more than that, until enough of them were ended.
                for i in 0.. {
                    if i >= 25 && killed.load(Ordering::SeqCst) >= ENOUGH {
                        break;
                    }
                    let held = dispatch(&store, &format!("order-{worker}-{i}")).await;
                    written.fetch_add(1, Ordering::SeqCst);
                    let state = store.append(&held, answered()).await;
                    assert_eq!(state.expect("it is settled"), State::Succeeded);
                    written.fetch_add(1, Ordering::SeqCst);
                    settled.push(held.operation);
                }
                settled
            });
        }
        let mut settled: Vec<OperationId> = workers.join_all().await.concat();
        done.store(true, Ordering::SeqCst);
        killing.await.unwrap();
        let killed = killed.load(Ordering::SeqCst);
        assert!(killed >= ENOUGH && settled.len() >= 200);

        let filter = Filter {
            limit: 100_000,
            ..Filter::default()
        };
        let records = store.list(&filter).await.unwrap();
        settled.sort();
        let there: Vec<_> = records.iter().map(|r| r.intent.operation).collect();
        assert_eq!(there, settled);
        for record in &records {
            assert_eq!(
                happened(record),
                ["dispatching", "answered"],
                "{killed} ended"
            );
        }
        let operations = settled.len();
        eprintln!("{operations} operations, {killed} connections ended");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_away_is_a_clear_error_and_back_again_it_works() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let proxy = Proxy::to(&schema.url).await;
        let mut settings = settings(&schema);
        settings.lease = Duration::from_secs(600);
        settings.within = Duration::from_secs(5);
        let host = PostgresStore::connect_url(&proxy.url, settings.clone()).await;
        let host = host.expect("it connects");
        let held = dispatch(&host, "order-1").await;
        proxy.set_up(false);
        let operation = OperationId::mint();
        let refused = host
            .accept(intent(operation, "order-2"), Some(AttemptId::mint()))
            .await;
        let Err(error @ StoreError::Unavailable(_)) = refused else {
            panic!("{refused:?}");
        };
        assert!(error.to_string().contains("within 5s"), "{error}");
        let refused = PostgresStore::connect_url(&proxy.url, settings).await;
        assert!(matches!(refused.err(), Some(StoreError::Unavailable(_))));

        proxy.set_up(true);
        let state = host.append(&held, answered()).await;
        assert_eq!(state.expect("the server is back"), State::Succeeded);
        // What was refused was not written.
        let accepted = host.accept(intent(operation, "order-2"), None).await;
        new(accepted);
    })
    .await;
}

#[tokio::test]
async fn what_was_written_though_nobody_could_be_told_is_recorded_as_not_sent() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let proxy = Proxy::to(&schema.url).await;
        let mut settings = settings(&schema);
        settings.lease = Duration::from_secs(12);
        settings.margin = Duration::from_secs(1);
        settings.within = Duration::from_secs(4);
        let host = PostgresStore::connect_url(&proxy.url, settings).await;
        let host = host.expect("it connects");
        let looking = store(&schema).await;

        let waiting = intent(OperationId::mint(), "order-1");
        let waiting = new(host.accept(waiting, None).await);
        let accepted = OperationId::mint();
        for step in ["accepting", "dispatching"] {
            proxy.swallow_and_fall("SELECT 1");
            let attempt = AttemptId::mint();
            let (operation, error) = match step {
                "accepting" => {
                    let intent = intent(accepted, "order-2");
                    let refused = host.accept(intent, Some(attempt)).await;
                    (accepted, refused.map(|_| ()))
                }
                _ => {
                    let refused = host.append(&waiting, Fact::Dispatching { attempt }).await;
                    (waiting.operation, refused.map(|_| ()))
                }
            };
            assert!(
                matches!(error, Err(StoreError::Unavailable(_))),
                "{step}: {error:?}"
            );
            let record = show(&looking, operation).await;
            assert_eq!(
                happened(&record)[..1],
                ["dispatching"],
                "{step}: it was written"
            );

            proxy.set_up(true);
            let record = loop {
                let record = show(&looking, operation).await;
                if record.state.is_settled() {
                    break record;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            assert_eq!(record.state, State::NotSent, "{step}");
            assert_eq!(happened(&record), ["dispatching", "without"], "{step}");
        }
        // And the key is free for the next try.
        dispatch(&host, "order-2").await;
    })
    .await;
}

/// `.ci/postgres`, where this checkout has it and it finds a server to start.
fn own_server(arguments: &[&str]) -> Option<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/postgres");
    let output = Command::new("bash").arg(script).args(arguments).output();
    let output = output.expect("bash runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.success() {
        true => Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let required = std::env::var("POSTGRES_REQUIRED").is_ok_and(|r| r == "1");
            assert!(!required, "{told}");
            eprintln!("skipped, since no server can be started here: {told}");
            None
        }
    }
}

/// Stops its server whatever the test does.
struct Server(tempfile::TempDir);

impl Server {
    fn path(&self) -> &str {
        self.0.path().to_str().expect("a path is text")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        own_server(&["stop", self.path()]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_and_starts_again_has_what_was_acknowledged() {
    if crate::support::postgres::url().is_none() {
        return;
    }
    let server = Server(tempfile::tempdir().expect("a directory"));
    let Some(url) = own_server(&["start", server.path()]) else {
        std::mem::forget(server);
        return;
    };
    bounded(async {
        let schema = Schema::at(url);
        let host = Arc::new(store(&schema).await);
        let done = Arc::new(AtomicBool::new(false));
        let working = tokio::spawn({
            let (host, done) = (Arc::clone(&host), Arc::clone(&done));
            async move {
                let mut settled = Vec::new();
                while !done.load(Ordering::SeqCst) {
                    let held = dispatch(&host, &format!("order-{}", settled.len())).await;
                    let state = host.append(&held, answered()).await;
                    assert_eq!(state.expect("it is settled"), State::Succeeded);
                    settled.push(held.operation);
                }
                settled
            }
        });
        for _ in 0..3 {
            let path = server.path().to_owned();
            let restarting =
                tokio::task::spawn_blocking(move || own_server(&["restart", &path]).is_some());
            assert!(restarting.await.unwrap(), "it starts again");
            // Something is written between one crash and the next.
            let alone = client(&schema.url).await;
            alone.query_one("SELECT 1", &[]).await.expect("it answers");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        done.store(true, Ordering::SeqCst);
        let settled = working.await.unwrap();
        assert!(!settled.is_empty());
        for operation in settled {
            let record = show(&host, operation).await;
            assert_eq!(happened(&record), ["dispatching", "answered"]);
            let claimed = host.claim(operation).await;
            assert!(matches!(claimed, Ok(Claimed::Settled(_))), "{claimed:?}");
        }
    })
    .await;
}
