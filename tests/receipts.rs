//! A tool with receipts, as a client meets it: over a pipe in memory, and over the standard streams of
//! a process that is killed.

#[path = "receipt_server/orders.rs"]
mod orders;
mod support;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mcp_supervisor::receipts::{Ledger as _, LedgerError, SqliteLedger, SqliteSettings};
use orders::{Orders, Setting, Step, connect};
use rmcp::{
    RoleClient, ServiceExt as _,
    model::CallToolRequestParams,
    service::{RunningService, ServiceError},
    transport::TokioChildProcess,
};
use rusqlite::TransactionBehavior;
use serde_json::{Map, Value, json};
use support::{bounded, example, until};
use tempfile::TempDir;
use tokio::{process::Command, task::JoinSet};

type Client = RunningService<RoleClient, ()>;

struct Shop {
    dir: TempDir,
}

/// A server in this process, and how often its handler was called.
struct Served {
    client: Client,
    ledger: SqliteLedger,
    handled: Arc<AtomicU64>,
}

impl Shop {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn setting(&self) -> Setting {
        Setting::new(self.path("orders.db"))
    }

    fn orders(&self) -> i64 {
        self.count("SELECT count(*) FROM orders")
    }

    fn count(&self, sql: &str) -> i64 {
        let connection = connect(&self.path("orders.db"));
        let count = connection.query_row(sql, [], |row| row.get(0));
        count.expect("a count")
    }
}

async fn serve(setting: &Setting) -> Served {
    over(Orders::new(setting)).await
}

async fn over(server: Orders) -> Served {
    let (ledger, handled) = (server.ledger.clone(), Arc::clone(&server.handled));
    let (here, there) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        let serving = server.server.serve(there).await.expect("a client");
        serving.waiting().await.expect("no panic");
    });
    let client = ().serve(here).await.expect("a server");
    Served {
        client,
        ledger,
        handled,
    }
}

async fn child(database: &Path, version: u32, die: Step) -> Client {
    let mut command = Command::new(example("receipt_server"));
    command.arg(database).arg(version.to_string());
    command.arg(format!("{die:?}"));
    let transport = TokioChildProcess::new(command).expect("a process");
    ().serve(transport).await.expect("a server")
}

async fn raw(client: &Client, arguments: Value) -> Result<Value, ServiceError> {
    let Value::Object(arguments) = arguments else {
        panic!("arguments are an object");
    };
    let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
    let result = client.peer().call_tool(call).await?;
    Ok(result.structured_content.expect("structured content"))
}

async fn call(client: &Client, key: &str, item: &str) -> Value {
    let arguments = json!({"idempotency_key": key, "item": item});
    raw(client, arguments).await.expect("an answer")
}

/// Many callers of one key, spread over servers.
async fn race(servers: &[&Client], callers: usize) -> Vec<Value> {
    let mut racing = JoinSet::new();
    for caller in 0..callers {
        let peer = servers[caller % servers.len()].peer().clone();
        let arguments = json!({"idempotency_key": "k", "item": "lamp"});
        let arguments: Map<String, Value> = serde_json::from_value(arguments).expect("a map");
        racing.spawn(async move {
            let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
            let result = peer.call_tool(call).await.expect("an answer");
            result.structured_content.expect("structured content")
        });
    }
    racing.join_all().await
}

fn one_effect_one_result(answers: &[Value]) {
    let first = answers.iter().filter(|answer| answer["replayed"] == false);
    assert_eq!(first.count(), 1, "one call ran: {answers:?}");
    let told: BTreeSet<String> = answers
        .iter()
        .map(|answer| {
            assert_eq!(answer["status"], "completed");
            format!("{} {}", answer["operation_id"], answer["result"])
        })
        .collect();
    assert_eq!(told.len(), 1, "all are told the same: {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_callers_of_one_key_have_one_effect_and_one_result() {
    bounded(async {
        for callers in [8, 64] {
            let shop = Shop::new();
            let served = serve(&shop.setting()).await;
            let answers = race(&[&served.client], callers).await;
            assert_eq!(answers.len(), callers);
            one_effect_one_result(&answers);
            assert_eq!(shop.orders(), 1);
            assert_eq!(served.handled.load(Ordering::SeqCst), 1);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_callers_of_two_servers_on_one_file_have_one_effect() {
    bounded(async {
        let shop = Shop::new();
        let one = serve(&shop.setting()).await;
        let other = child(&shop.path("orders.db"), 1, Step::Never).await;
        let answers = race(&[&one.client, &other], 64).await;
        one_effect_one_result(&answers);
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_answered_and_not_run() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let first = call(&served.client, "k", "lamp").await;
        let again = call(&served.client, "k", "lamp").await;
        one_effect_one_result(&[first.clone(), again.clone()]);
        assert_eq!(again["replayed"], true);
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_arguments_under_a_key_are_a_conflict_and_change_nothing() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let first = call(&served.client, "k", "lamp").await;
        let other = call(&served.client, "k", "chair").await;
        assert_eq!(other["status"], "conflict");
        assert_eq!(other["operation_id"], first["operation_id"]);
        assert_eq!(other["retryable"], false);
        assert!(other.get("result").is_none());
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_principals_key_is_another_key() {
    bounded(async {
        let shop = Shop::new();
        let alice = serve(&shop.setting()).await;
        let bob = serve(&Setting {
            scope: "bob".to_owned(),
            ..shop.setting()
        })
        .await;
        let hers = call(&alice.client, "k", "lamp").await;
        let his = call(&bob.client, "k", "chair").await;
        assert_eq!(his["status"], "completed");
        assert_eq!(his["replayed"], false);
        assert_ne!(hers["operation_id"], his["operation_id"]);
        assert_eq!(shop.orders(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lost_access_is_given_no_stored_result() {
    bounded(async {
        let shop = Shop::new();
        let revoked = shop.path("revoked");
        let served = serve(&Setting {
            revoked: Some(revoked.clone()),
            ..shop.setting()
        })
        .await;
        call(&served.client, "k", "lamp").await;
        std::fs::write(&revoked, "").expect("a file");
        let denied = call(&served.client, "k", "lamp").await;
        assert_eq!(denied["status"], "denied");
        assert!(denied.get("result").is_none() && denied.get("operation_id").is_none());
        std::fs::remove_file(&revoked).expect("it is there");
        let again = call(&served.client, "k", "lamp").await;
        assert_eq!(again["replayed"], true);
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_key_is_refused_until_its_tombstone_is_swept() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&Setting {
            kept: Duration::from_millis(1),
            tombstones: Duration::from_millis(1),
            ..shop.setting()
        })
        .await;
        let first = call(&served.client, "k", "lamp").await;
        assert_eq!(first["status"], "completed");
        tokio::time::sleep(Duration::from_millis(10)).await;
        let late = call(&served.client, "k", "lamp").await;
        assert_eq!(late["status"], "expired");
        assert!(late.get("result").is_none());

        let swept = served.ledger.sweep(10).await.expect("a sweep");
        assert_eq!((swept.answers, swept.tombstones), (1, 1));
        assert_eq!(call(&served.client, "k", "lamp").await["replayed"], false);
        assert_eq!(shop.orders(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_is_bounded_and_leaves_tombstones_without_the_answer() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&Setting {
            kept: Duration::from_millis(1),
            ..shop.setting()
        })
        .await;
        for key in ["a", "b", "c"] {
            call(&served.client, key, "a secret lamp").await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(served.ledger.sweep(2).await.expect("a sweep").answers, 2);
        assert_eq!(served.ledger.sweep(2).await.expect("a sweep").answers, 1);
        assert_eq!(served.ledger.sweep(2).await.expect("a sweep").answers, 0);
        let told = "SELECT count(*) FROM mcp_receipts WHERE standing LIKE '%secret%'";
        assert_eq!(shop.count(told), 0);
        assert_eq!(call(&served.client, "a", "lamp").await["status"], "expired");
        assert_eq!(shop.orders(), 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_that_cannot_be_written_takes_the_effect_with_it() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let connection = connect(&shop.path("orders.db"));
        let trigger = "CREATE TRIGGER full BEFORE INSERT ON mcp_receipts
                       BEGIN SELECT RAISE(ABORT, 'full'); END";
        connection.execute_batch(trigger).expect("a trigger");
        let failed = call(&served.client, "k", "lamp").await;
        assert_eq!(failed["status"], "failed");
        assert_eq!(shop.orders(), 0);
        connection
            .execute_batch("DROP TRIGGER full")
            .expect("it is there");
        assert_eq!(call(&served.client, "k", "lamp").await["replayed"], false);
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_between_any_two_steps_leaves_both_or_neither() {
    bounded(async {
        for die in Step::ALL {
            let shop = Shop::new();
            let database = shop.path("orders.db");
            let dying = child(&database, 1, die).await;
            let arguments = json!({"idempotency_key": "k", "item": "lamp"});
            let lost = raw(&dying, arguments).await;
            assert!(lost.is_err(), "{die:?}: the answer is lost: {lost:?}");

            let had_committed = matches!(die, Step::Committed | Step::Answer);
            let expected = i64::from(had_committed);
            assert_eq!(shop.orders(), expected, "{die:?}: effects");
            let receipts = shop.count("SELECT count(*) FROM mcp_receipts");
            assert_eq!(receipts, expected, "{die:?}: receipts");

            let next = child(&database, 1, Step::Never).await;
            let answer = call(&next, "k", "lamp").await;
            assert_eq!(answer["status"], "completed", "{die:?}");
            assert_eq!(answer["replayed"], had_committed, "{die:?}");
            assert_eq!(shop.orders(), 1, "{die:?}: one effect in the end");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_version_1_does_not_run_under_version_2() {
    bounded(async {
        let shop = Shop::new();
        let database = shop.path("orders.db");
        let dying = child(&database, 1, Step::Answer).await;
        let arguments = json!({"idempotency_key": "k", "item": "lamp"});
        raw(&dying, arguments)
            .await
            .expect_err("the answer is lost");

        let deployed = child(&database, 2, Step::Never).await;
        let answer = call(&deployed, "k", "lamp").await;
        assert_eq!(answer["replayed"], true);
        assert_eq!(answer["result"]["item"], "lamp");
        let other = call(&deployed, "k", "chair").await;
        assert_eq!(other["status"], "conflict");
        assert_eq!(shop.orders(), 1);
        assert_eq!(shop.count("SELECT max(version) FROM orders"), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_finds_the_result_under_its_key() {
    bounded(async {
        let shop = Shop::new();
        let gate = shop.path("gate");
        let item = format!("waits:{}", gate.display());
        let leaving = serve(&shop.setting()).await;
        let peer = leaving.client.peer().clone();
        let arguments = json!({"idempotency_key": "k", "item": item});
        let arguments: Map<String, Value> = serde_json::from_value(arguments).expect("a map");
        let lost = tokio::spawn(async move {
            let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
            peer.call_tool(call).await
        });
        let begun = shop.path("gate.begun");
        until("the handler runs", || begun.exists()).await;
        leaving.client.cancel().await.expect("a client that ends");
        assert!(lost.await.expect("no panic").is_err());
        std::fs::write(&gate, "").expect("a file");
        until("it is committed", || shop.orders() == 1).await;

        let back = serve(&shop.setting()).await;
        let answer = call(&back.client, "k", &item).await;
        assert_eq!(answer["status"], "completed");
        assert_eq!(answer["replayed"], true);
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rival_that_waited_long_enough_is_told_whom_to_ask_for() {
    bounded(async {
        let shop = Shop::new();
        let gate = shop.path("gate");
        let item = format!("waits:{}", gate.display());
        let served = serve(&Setting {
            wait: Duration::from_millis(20),
            ..shop.setting()
        })
        .await;
        let begun = shop.path("gate.begun");
        let first = async { call(&served.client, "k", &item).await };
        let rival = async {
            until("the handler runs", || begun.exists()).await;
            let told = call(&served.client, "k", &item).await;
            let other = call(&served.client, "k", "chair").await;
            std::fs::write(&gate, "").expect("a file");
            (told, other)
        };
        let (first, (told, other)) = tokio::join!(first, rival);
        assert_eq!(told["status"], "in_progress");
        assert_eq!(told["retryable"], true);
        assert_eq!(told["operation_id"], first["operation_id"]);
        assert_eq!(other["status"], "conflict");
        assert_eq!(shop.orders(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_held_past_the_bound_is_busy_and_never_success() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&Setting {
            begin: Duration::from_millis(50),
            ..shop.setting()
        })
        .await;
        let mut foreign = connect(&shop.path("orders.db"));
        let locked = foreign.transaction_with_behavior(TransactionBehavior::Immediate);
        let locked = locked.expect("a lock");
        let busy = call(&served.client, "k", "lamp").await;
        assert_eq!(busy["status"], "busy");
        assert_eq!(busy["retryable"], true);
        assert!(busy.get("operation_id").is_none());
        drop(locked);
        assert_eq!(served.handled.load(Ordering::SeqCst), 0);
        assert_eq!(shop.orders(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_of_a_failure_depends_on_its_kind() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let kinds = [
            ("refused", "refused", true),
            ("invalid", "invalid", false),
            ("fails", "failed", false),
        ];
        for (item, status, kept) in kinds {
            let first = call(&served.client, item, item).await;
            assert_eq!(first["status"], status);
            assert_eq!(first["replayed"], false);
            assert!(!first.to_string().contains("secret"), "{first}");
            let again = call(&served.client, item, item).await;
            assert_eq!(again["status"], status);
            assert_eq!(again["replayed"], kept, "{item}");
        }
        assert_eq!(served.handled.load(Ordering::SeqCst), 5);
        assert_eq!(shop.orders(), 0, "what failed left no effect");
    })
    .await;
}

/// Panics, ends the transaction, has it rolled back whole, or fails its commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_fault_is_its_own_and_not_its_neighbours() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let mut calling = JoinSet::new();
        let items = ["panics", "commits", "rolls_back", "orphan", "lamp"];
        for n in 0..10 {
            for item in items {
                let peer = served.client.peer().clone();
                let arguments = json!({"idempotency_key": format!("{item}-{n}"), "item": item});
                let arguments: Map<String, Value> =
                    serde_json::from_value(arguments).expect("a map");
                calling.spawn(async move {
                    let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
                    let result = peer.call_tool(call).await.expect("an answer");
                    (item, result.structured_content.expect("content"))
                });
            }
        }
        for (item, answer) in calling.join_all().await {
            let expected = if item == "lamp" {
                "completed"
            } else {
                "failed"
            };
            assert_eq!(answer["status"], expected, "{item}: {answer}");
        }
        assert_eq!(shop.orders(), 10);
        assert_eq!(shop.count("SELECT count(*) FROM mcp_receipts"), 10);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_keys_and_bodies_are_refused_and_leave_nothing() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let mut deep = json!("bottom");
        for _ in 0..100 {
            deep = json!([deep]);
        }
        let long = "k".repeat(129);
        let keys = [
            json!(""),
            json!(long),
            json!("a b"),
            json!("a\0b"),
            json!("\u{202e}evil"),
            json!("ключ"),
            json!(7),
            json!(null),
            json!(["k"]),
            json!({"k": 1}),
        ];
        let mut hostile: Vec<Value> = keys
            .into_iter()
            .map(|key| json!({"idempotency_key": key, "item": "lamp"}))
            .collect();
        hostile.extend([
            json!({"item": "lamp"}),
            json!({"idempotency_key": "k"}),
            json!({"idempotency_key": "k", "item": 7}),
            json!({"idempotency_key": "k", "item": "lamp", "count": -1}),
            json!({"idempotency_key": "k", "item": "lamp", "scope": "bob"}),
            json!({"idempotency_key": "k", "item": deep}),
            json!({"idempotency_key": "k", "item": "x".repeat(10_000_000)}),
            json!({"idempotency_key": "x".repeat(10_000_000), "item": "lamp"}),
            json!({"idempotency_key": "k", "item": "lamp", "x".repeat(100_000): 1}),
        ]);
        for arguments in hostile {
            let answer = raw(&served.client, arguments).await.expect("an answer");
            assert_eq!(answer["status"], "invalid", "{answer}");
            assert!(
                answer.to_string().len() < 2000,
                "it repeats what it was sent"
            );
        }
        assert_eq!(served.handled.load(Ordering::SeqCst), 0);
        assert_eq!(shop.count("SELECT count(*) FROM mcp_receipts"), 0);

        // What is odd and allowed is kept as it is.
        let odd = "l\0amp \u{202e}\u{1f4a1}";
        assert_eq!(call(&served.client, "k", odd).await["result"]["item"], odd);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tool_tells_its_callers_how_its_key_works_and_answers_by_its_schema() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        let tools = served.client.peer().list_all_tools().await.expect("tools");
        let tool = &tools[0];
        let description = tool.description.as_deref().unwrap_or_default();
        for said in [
            "`idempotency_key`",
            "new random key",
            "1h",
            "Look at the list of orders.",
        ] {
            assert!(description.contains(said), "{said}: {description}");
        }
        let input = tool.schema_as_json_value();
        let key = &input["properties"]["idempotency_key"];
        assert_eq!(
            (&key["minLength"], &key["maxLength"]),
            (&json!(1), &json!(128))
        );
        assert_eq!(input["required"], json!(["item", "idempotency_key"]));

        let output = tool.output_schema.as_ref().expect("an output schema");
        let output = jsonschema::validator_for(&Value::Object((**output).clone()));
        let output = output.expect("a schema");
        let items = ["lamp", "lamp", "chair", "refused", "fails", "invalid"];
        for (n, item) in items.into_iter().enumerate() {
            let key = if n < 3 { "k" } else { item };
            let answer = call(&served.client, key, item).await;
            assert!(output.is_valid(&answer), "{answer}");
        }
        assert!(!output.is_valid(&json!({"status": "fine"})));
    })
    .await;
}

/// The thread that writes is held by another call's handler, not by another process.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_behind_a_slow_handler_is_busy_at_its_bound_and_is_never_run() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&Setting {
            begin: Duration::from_millis(300),
            ..shop.setting()
        })
        .await;
        let gate = shop.path("gate");
        let peer = served.client.peer().clone();
        let item = format!("waits:{}", gate.display());
        let slow = tokio::spawn(async move {
            let arguments = json!({"idempotency_key": "slow", "item": item});
            let arguments: Map<String, Value> = serde_json::from_value(arguments).expect("a map");
            let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
            peer.call_tool(call).await.expect("an answer")
        });
        let begun = shop.path("gate.begun");
        until("the slow one has begun", || begun.exists()).await;
        let behind = call(&served.client, "k", "lamp").await;
        assert_eq!(behind["status"], "busy", "{behind}");
        assert_eq!(behind["retryable"], true);
        std::fs::write(&gate, "").expect("the gate opens");
        let slow = slow.await.expect("no panic").structured_content;
        assert_eq!(slow.expect("content")["status"], "completed");
        // The thread has gone on to this, and so past the one that was given up.
        let again = call(&served.client, "k", "lamp").await;
        assert_eq!(again["status"], "completed");
        assert_eq!(again["replayed"], false, "nothing was kept of it");
        assert_eq!(shop.orders(), 2);
        assert_eq!(served.handled.load(Ordering::SeqCst), 2);
    })
    .await;
}

/// The bounds are the caller's to choose; none of them ends the thread that writes.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_without_an_end_are_taken() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&Setting {
            begin: Duration::MAX,
            wait: Duration::MAX,
            kept: Duration::MAX,
            tombstones: Duration::MAX,
            ..shop.setting()
        })
        .await;
        assert_eq!(
            call(&served.client, "k", "lamp").await["status"],
            "completed"
        );
        assert_eq!(call(&served.client, "k", "lamp").await["replayed"], true);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_sweep_is_followed_by_another_one_before_its_time() {
    bounded(async {
        let shop = Shop::new();
        let mut settings = SqliteSettings::default();
        settings.sweep_every = Duration::from_secs(2);
        settings.sweep_at_most = 1;
        let setting = Setting {
            kept: Duration::from_millis(1),
            ..shop.setting()
        };
        drop(orders::ledger(&setting));
        let ledger = SqliteLedger::open(shop.path("orders.db"), settings).expect("a ledger");
        let served = over(Orders::over(ledger, &setting)).await;
        for n in 0..30 {
            call(&served.client, &format!("k{n}"), "lamp").await;
        }
        // One each two seconds would take a minute.
        until("all answers are swept", || {
            shop.count("SELECT count(*) FROM mcp_receipts WHERE state = 1") == 0
        })
        .await;
        let late = call(&served.client, "k0", "lamp").await;
        assert_eq!(late["status"], "expired");
        assert_eq!(shop.orders(), 30);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_keeps_nothing_and_says_so() {
    bounded(async {
        let shop = Shop::new();
        let served = serve(&shop.setting()).await;
        pages(&served.ledger, "page_count() + 30").await;
        let large = "x".repeat(50_000);
        let mut full = None;
        for n in 0..10 {
            let key = format!("k{n}");
            let answer = call(&served.client, &key, &large).await;
            if answer["status"] != "completed" {
                full = Some((key, answer));
                break;
            }
        }
        let (key, answer) = full.expect("thirty pages do not hold ten times 100 kB");
        assert_eq!(answer["status"], "failed", "{answer}");
        let orders = shop.orders();
        let receipts = "SELECT count(*) FROM mcp_receipts";
        assert_eq!(shop.count(receipts), orders, "both stand, or neither");

        pages(&served.ledger, "1000000").await;
        let again = call(&served.client, &key, &large).await;
        assert_eq!(again["status"], "completed", "its key is free");
        assert_eq!(again["replayed"], false);
        assert_eq!(shop.orders(), orders + 1);
    })
    .await;
}

/// Bounds the pages of the database for the ledger's connection.
async fn pages(ledger: &SqliteLedger, most: &str) {
    let sql = match most.strip_prefix("page_count() + ") {
        None => format!("SELECT {most}"),
        Some(more) => format!("SELECT page_count + {more} FROM pragma_page_count"),
    };
    let bounded = ledger.transaction(move |transaction| {
        let most: i64 = transaction
            .query_row(&sql, [], |row| row.get(0))
            .expect("a number");
        let pragma = format!("PRAGMA max_page_count = {most}");
        let set = transaction.query_row(&pragma, [], |row| row.get::<_, i64>(0));
        set.map_err(|error| LedgerError::Unavailable(error.to_string().into()))
    });
    bounded.await.expect("a bound");
}

/// The system refuses to write the commit, with an error that says nothing of what was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_breaks_is_unknown_and_settled_by_the_same_key() {
    bounded(async {
        let shop = Shop::new();
        let database = shop.path("orders.db");
        drop(orders::ledger(&shop.setting()));
        let mut command = Command::new("bash");
        // No file of its may grow beyond 600 blocks of 1024 bytes.
        let limited = r#"trap '' XFSZ; ulimit -f 600; exec "$0" "$@""#;
        command.args(["-c", limited]).arg(example("receipt_server"));
        command.arg(&database).args(["1", "Never"]);
        let client = ().serve(TokioChildProcess::new(command).expect("a process")).await;
        let client = client.expect("a server");
        let large = "x".repeat(50_000);
        let mut broken = None;
        for n in 0..20 {
            let key = format!("k{n}");
            let answer = call(&client, &key, &large).await;
            if answer["status"] != "completed" {
                broken = Some((key, answer));
                break;
            }
        }
        let (key, answer) = broken.expect("600 kB do not hold twenty times 100 kB");
        assert_eq!(answer["status"], "outcome_unknown", "{answer}");
        assert!(answer["next_action"].is_string());
        assert!(answer["operation_id"].is_string());
        let _ = client.cancel().await;

        let restarted = serve(&shop.setting()).await;
        let before = shop.orders();
        let again = call(&restarted.client, &key, &large).await;
        assert_eq!(again["status"], "completed");
        let ran = i64::from(again["replayed"] == false);
        assert_eq!(shop.orders(), before + ran, "it stands once");
        let receipts = "SELECT count(*) FROM mcp_receipts";
        assert_eq!(shop.count(receipts), shop.orders());
    })
    .await;
}

#[test]
fn tables_of_a_newer_program_are_refused() {
    let shop = Shop::new();
    let path = shop.path("orders.db");
    drop(SqliteLedger::open(&path, SqliteSettings::default()).expect("a ledger"));
    let connection = connect(&path);
    let newer = "INSERT INTO mcp_receipts_schema VALUES (99)";
    connection.execute_batch(newer).expect("a row");
    let refused = SqliteLedger::open(&path, SqliteSettings::default());
    let newer = LedgerError::Newer {
        found: 99,
        known: 1,
    };
    assert_eq!(
        refused.expect_err("a newer one").to_string(),
        newer.to_string()
    );
}
