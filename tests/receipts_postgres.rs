//! Receipts in PostgreSQL: one effect per key over many hosts, and nothing in between.
//!
//! Each host of these tests has a pool, a ledger and a server of its own; they share a schema.

#[path = "outbox/desk.rs"]
mod desk;
#[path = "../examples/support/payments.rs"]
mod payments;
#[path = "outbox/pg.rs"]
mod pg;
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use desk::Opened;
use mcp_supervisor::receipts::{
    Bounds, Definition, Failure, FixedScope, Ledger, LedgerError, PostgresLedger, PostgresSettings,
    ReceiptTool, Refusal,
    outbox::{Intent, Limits, Outbox},
    table::OtherVersions,
};
use payments::{Habits, Payments, PaymentsApi, Trick};
use pg::Schema;
use serde_json::{Value, json};
use support::bounded;
use tokio::sync::Notify;

#[derive(Clone, serde::Deserialize, rmcp::schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Order {
    item: String,
}

#[derive(serde::Serialize, rmcp::schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ordered {
    order: i64,
}

fn definition() -> Definition<Order, Ordered> {
    Definition::new("order", "Orders an item.")
}

fn scope(name: &str) -> FixedScope {
    FixedScope(name.parse().expect("a scope"))
}

async fn ledger(schema: &Schema) -> PostgresLedger {
    let opened = PostgresLedger::open(schema.pool(8), PostgresSettings::default()).await;
    opened.expect("the ledger opens")
}

/// The schema with the tool's own table.
async fn shop() -> Option<Schema> {
    let schema = Schema::new().await?;
    let table = "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, item text NOT NULL)";
    schema
        .client()
        .await
        .batch_execute(table)
        .await
        .expect("a table");
    Some(schema)
}

/// A tool that orders, and then does what `after` says.
fn ordering(
    ledger: &PostgresLedger,
    definition: Definition<Order, Ordered>,
    principal: FixedScope,
    after: impl Fn(&str) -> Result<(), Failure> + Send + Sync + 'static,
) -> ReceiptTool {
    let after = Arc::new(after);
    let tool = ledger.tool(
        &definition,
        principal,
        move |transaction, order: Order, _| {
            let after = Arc::clone(&after);
            Box::pin(async move {
                let sql = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
                let row = transaction.query_one(sql, &[&order.item]).await?;
                after(&order.item)?;
                Ok(Ordered { order: row.get(0) })
            })
        },
    );
    tool.expect("a tool")
}

fn plain(ledger: &PostgresLedger) -> ReceiptTool {
    ordering(ledger, definition(), scope("acme"), |_| Ok(()))
}

async fn host(schema: &Schema) -> Opened {
    Opened::open(&[&plain(&ledger(schema).await)]).await
}

const ORDERS: &str = "SELECT count(*) FROM orders";
const RECEIPTS: &str = "SELECT count(*) FROM mcp_receipts";

/// What is the same for all who ask under one key.
fn told(answer: &Value) -> (Value, Value, Value) {
    let part = |name: &str| answer[name].clone();
    (part("status"), part("operation_id"), part("result"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_callers_of_one_key_on_two_hosts_have_one_effect_and_one_result() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let hosts = [Arc::new(host(&schema).await), Arc::new(host(&schema).await)];
        for callers in [8, 64] {
            let key = format!("race-{callers}");
            let before = schema.number(ORDERS).await;
            let calls: Vec<_> = (0..callers)
                .map(|i| {
                    let host = Arc::clone(&hosts[i % 2]);
                    let key = key.clone();
                    tokio::spawn(
                        async move { host.call("order", &key, json!({"item": "tea"})).await },
                    )
                })
                .collect();
            let mut answers = Vec::new();
            for call in calls {
                answers.push(call.await.expect("no panic"));
            }
            assert_eq!(schema.number(ORDERS).await, before + 1);
            assert_eq!(answers[0]["status"], "completed", "{}", answers[0]);
            assert!(
                answers.iter().all(|a| told(a) == told(&answers[0])),
                "{answers:?}"
            );
            let first = answers.iter().filter(|a| a["replayed"] == false).count();
            assert_eq!(first, 1, "one call ran");
        }
    })
    .await;
}

#[tokio::test]
async fn other_arguments_are_a_conflict_and_another_principal_has_other_keys() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let ledger = ledger(&schema).await;
        let acme = Opened::open(&[&plain(&ledger)]).await;
        let other = ordering(&ledger, definition(), scope("globex"), |_| Ok(()));
        let other = Opened::open(&[&other]).await;
        let first = acme.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(first["result"]["order"], 1);
        let conflict = acme.call("order", "k-1", json!({"item": "gin"})).await;
        assert_eq!(conflict["status"], "conflict");
        assert_eq!(conflict["operation_id"], first["operation_id"]);
        assert_eq!(schema.number(ORDERS).await, 1);
        let theirs = other.call("order", "k-1", json!({"item": "gin"})).await;
        assert_eq!(theirs["status"], "completed");
        assert_ne!(theirs["operation_id"], first["operation_id"]);
        assert_eq!(schema.number(ORDERS).await, 2);
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_fails_after_its_effect_leaves_neither() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let ledger = ledger(&schema).await;
        let broken = Arc::new(AtomicBool::new(true));
        let breaks = Arc::clone(&broken);
        let tool = ordering(&ledger, definition(), scope("acme"), move |item| {
            match (item, breaks.load(Ordering::Relaxed)) {
                ("tea", true) => Err(Failure::failed("the kettle is broken")),
                ("gin", _) => Err(Refusal::new("dry", "there is no gin").into()),
                _ => Ok(()),
            }
        });
        let desk = Opened::open(&[&tool]).await;
        let failed = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(failed["status"], "failed");
        assert!(
            !failed.to_string().contains("kettle"),
            "why is not the caller's"
        );
        assert_eq!(schema.number(ORDERS).await, 0);
        assert_eq!(schema.number(RECEIPTS).await, 0);
        // The key is free: nothing happened under it.
        broken.store(false, Ordering::Relaxed);
        let done = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(done["status"], "completed");
        assert_eq!(done["replayed"], false);
        // A refusal is an answer: its effect is gone, and it is kept.
        for replayed in [false, true] {
            let refused = desk.call("order", "k-2", json!({"item": "gin"})).await;
            assert_eq!(refused["status"], "refused");
            assert_eq!(refused["refusal_code"], "dry");
            assert_eq!(refused["replayed"], replayed);
        }
        assert_eq!(schema.number(ORDERS).await, 1);
        assert_eq!(schema.number(RECEIPTS).await, 2);
    })
    .await;
}

#[tokio::test]
async fn a_statement_that_failed_and_was_ignored_commits_nothing() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let ledger = ledger(&schema).await;
        let tool = ledger.tool(
            &definition(),
            scope("acme"),
            |transaction, order: Order, _| {
                Box::pin(async move {
                    let sql = "INSERT INTO orders (item) VALUES ($1)";
                    transaction.execute(sql, &[&order.item]).await?;
                    let _ = transaction.batch_execute("SELECT 1 / 0").await;
                    Ok(Ordered { order: 1 })
                })
            },
        );
        let desk = Opened::open(&[&tool.expect("a tool")]).await;
        let answer = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(answer["status"], "failed");
        assert_eq!(schema.number(ORDERS).await, 0);
        assert_eq!(schema.number(RECEIPTS).await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_competing_transaction_longer_than_the_bound_is_busy() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let mut bounds = Bounds::default();
        bounds.begin = Duration::from_millis(200);
        let ledger = ledger(&schema).await;
        let tool = ordering(&ledger, definition().bounds(bounds), scope("acme"), |_| Ok(()));
        let desk = Opened::open(&[&tool]).await;
        // The tool's own table, locked by somebody else.
        let mut rival = schema.client().await;
        let lock = rival.transaction().await.expect("a transaction");
        lock.batch_execute("LOCK TABLE orders").await.expect("the lock");
        let busy = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(busy["status"], "busy");
        assert_eq!(busy["retryable"], true);
        lock.rollback().await.expect("it lets go");
        // The key itself, claimed by a host that does not get on.
        let claim = rival.transaction().await.expect("a transaction");
        let sql = "INSERT INTO mcp_receipts VALUES (gen_random_uuid(), 'acme', 'order', 'k-1', 1,
                   decode(repeat('00', 32), 'hex'), 'running', '{\"standing\": \"running\"}', 0, 0, 0)";
        claim.batch_execute(sql).await.expect("the claim");
        let busy = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(busy["status"], "busy");
        claim.rollback().await.expect("it lets go");
        let done = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(done["status"], "completed");
        assert_eq!(schema.number(ORDERS).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_key_of_another_version_never_runs_again() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let ledger = ledger(&schema).await;
        let v1 = Opened::open(&[&plain(&ledger)]).await;
        let first = v1.call("order", "k-1", json!({"item": "tea"})).await;
        let v2 = ordering(&ledger, definition().version(2), scope("acme"), |_| Ok(()));
        let v2 = Opened::open(&[&v2]).await;
        let again = v2.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(again["status"], "completed");
        assert_eq!(again["replayed"], true);
        assert_eq!(again["earlier_version"], 1);
        assert_eq!(again["earlier_result"], first["result"]);
        let strict = definition()
            .version(2)
            .other_versions(OtherVersions::Refused);
        let strict = Opened::open(&[&ordering(&ledger, strict, scope("acme"), |_| Ok(()))]).await;
        let refused = strict.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(refused["status"], "conflict");
        assert_eq!(schema.number(ORDERS).await, 1);
    })
    .await;
}

#[tokio::test]
async fn a_backend_killed_between_effect_and_commit_leaves_neither() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let ledger = ledger(&schema).await;
        let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let gates = (Arc::clone(&reached), Arc::clone(&go_on));
        let tool = ledger.tool(
            &definition(),
            scope("acme"),
            move |transaction, order: Order, _| {
                let (reached, go_on) = gates.clone();
                Box::pin(async move {
                    let sql = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
                    let row = transaction.query_one(sql, &[&order.item]).await?;
                    reached.notify_one();
                    go_on.notified().await;
                    Ok(Ordered { order: row.get(0) })
                })
            },
        );
        let desk = Arc::new(Opened::open(&[&tool.expect("a tool")]).await);
        let calling = Arc::clone(&desk);
        let call =
            tokio::spawn(async move { calling.call("order", "k-1", json!({"item": "tea"})).await });
        reached.notified().await;
        let killed = kill_others(&schema).await;
        assert!(killed >= 1, "no backend was there to kill");
        go_on.notify_one();
        let answer = call.await.expect("no panic");
        assert_ne!(answer["status"], "completed", "{answer}");
        assert_eq!(schema.number(ORDERS).await, 0);
        assert_eq!(schema.number(RECEIPTS).await, 0);
        go_on.notify_one();
        let done = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(done["status"], "completed");
        assert_eq!(schema.number(ORDERS).await, 1);
    })
    .await;
}

/// Kills the backends of this test's pools, and waits until they are gone.
async fn kill_others(schema: &Schema) -> i64 {
    let sql = format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
         WHERE application_name = '{}' AND pid <> pg_backend_pid()",
        schema.name
    );
    schema.number(&sql).await
}

#[tokio::test]
async fn answers_become_tombstones_that_refuse_the_key_and_are_removed_in_the_end() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let ledger = ledger(&schema).await;
        let moment = Duration::from_millis(1);
        let short = definition().kept_for(moment, Duration::from_secs(3600));
        let desk = Opened::open(&[&ordering(&ledger, short, scope("acme"), |_| Ok(()))]).await;
        for key in ["k-1", "k-2", "k-3"] {
            desk.call("order", key, json!({"item": "tea"})).await;
        }
        tokio::time::sleep(2 * moment).await;
        // Before any sweep, too.
        let late = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(late["status"], "expired");
        assert_eq!(ledger.sweep(2).await.expect("swept").answers, 2);
        assert_eq!(ledger.sweep(2).await.expect("swept").answers, 1);
        let kept = "SELECT count(*) FROM mcp_receipts WHERE standing LIKE '%order%'";
        assert_eq!(schema.number(kept).await, 0);
        let late = desk.call("order", "k-1", json!({"item": "tea"})).await;
        assert_eq!(late["status"], "expired");
        assert_eq!(late["result"], Value::Null);
        schema
            .client()
            .await
            .batch_execute("UPDATE mcp_receipts SET refused_until = 0")
            .await
            .expect("the time passes");
        assert_eq!(ledger.sweep(10).await.expect("swept").tombstones, 3);
        assert_eq!(schema.number(ORDERS).await, 3);
    })
    .await;
}

/// Nobody calls the sweep, and a full one does not wait for its turn.
#[tokio::test]
async fn the_ledger_sweeps_by_itself_until_nothing_is_left_to_sweep() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let mut settings = PostgresSettings::default();
        settings.sweep_every = Duration::from_secs(2);
        settings.sweep_at_most = 1;
        let ledger = PostgresLedger::open(schema.pool(8), settings).await;
        let ledger = ledger.expect("the ledger opens");
        let short = definition().kept_for(Duration::from_millis(1), Duration::from_secs(3600));
        let desk = Opened::open(&[&ordering(&ledger, short, scope("acme"), |_| Ok(()))]).await;
        for n in 0..30 {
            desk.call("order", &format!("k-{n}"), json!({"item": "tea"}))
                .await;
        }
        let kept = "SELECT count(*) FROM mcp_receipts WHERE state = 'settled'";
        // One each two seconds would take a minute.
        let swept = async {
            while schema.number(kept).await > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let swept = tokio::time::timeout(Duration::from_secs(30), swept).await;
        swept.expect("all answers are swept");
        assert_eq!(schema.number(RECEIPTS).await, 30, "each key is refused");
        assert_eq!(schema.number(ORDERS).await, 30);
    })
    .await;
}

#[tokio::test]
async fn tables_of_a_newer_program_are_refused_and_hosts_that_start_at_once_make_them_once() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        let opening = (0..4).map(|_| {
            let pool = schema.pool(1);
            tokio::spawn(PostgresLedger::open(pool, PostgresSettings::default()))
        });
        for opened in opening.collect::<Vec<_>>() {
            opened.await.expect("no panic").expect("the ledger opens");
        }
        let version = "INSERT INTO mcp_receipts_version VALUES (7)";
        schema
            .client()
            .await
            .batch_execute(version)
            .await
            .expect("a row");
        let refused = PostgresLedger::open(schema.pool(1), PostgresSettings::default()).await;
        assert!(
            matches!(refused, Err(LedgerError::Newer { found: 7, .. })),
            "{refused:?}"
        );
    })
    .await;
}

#[derive(serde::Deserialize, rmcp::schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Charge {
    cents: i64,
}

/// A tool that orders, and charges for it at the service.
fn charging(outbox: &Outbox<PostgresLedger>) -> ReceiptTool {
    let mut bounds = Bounds::default();
    bounds.wait = support::HARD;
    let definition = Definition::<Charge, Value>::new("charge", "Charges the customer's card.");
    let definition = definition.bounds(bounds);
    let tool = outbox.tool(
        &definition,
        scope("acme"),
        |transaction, charge: Charge, _| {
            Box::pin(async move {
                let sql = "INSERT INTO orders (item) VALUES ('a charge')";
                transaction.execute(sql, &[]).await?;
                Ok(Intent::new("payments", json!({ "cents": charge.cents })))
            })
        },
    );
    tool.expect("a tool")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_intent_that_one_host_commits_is_sent_by_another_and_its_lost_answer_has_one_effect() {
    let Some(schema) = shop().await else { return };
    bounded(async {
        for (deduplicates, can_be_asked, status) in [
            (true, false, "completed"),
            (false, true, "completed"),
            (false, false, "outcome_unknown"),
        ] {
            let habits = Habits {
                deduplicates,
                can_be_asked,
            };
            let before = schema.number(ORDERS).await;
            let service = Payments::start(habits).await.expect("the service starts");
            let api = PaymentsApi::new(service.addr(), habits);
            let mut limits = Limits::default();
            limits.backoff.base = Duration::from_millis(20);
            let outbox = ledger(&schema)
                .await
                .outbox()
                .provider(api.clone())
                .limits(limits);
            let commits = outbox.without_dispatcher().start();
            let desk = Arc::new(Opened::open(&[&charging(&commits)]).await);
            service.will([Trick::LoseAnswer]);
            let key = format!("charge-{deduplicates}-{can_be_asked}");
            let (calling, under) = (Arc::clone(&desk), key.clone());
            let call =
                tokio::spawn(
                    async move { calling.call("charge", &under, json!({"cents": 5})).await },
                );
            // Two dispatchers, and each intent is sent by one of them.
            let sends: Vec<_> = [ledger(&schema).await, ledger(&schema).await]
                .iter()
                .map(|ledger| ledger.outbox().provider(api.clone()).limits(limits).start())
                .collect();
            let said = call.await.expect("no panic");
            assert_eq!(said["status"], status, "{said}");
            assert_eq!(service.charges().len(), 1);
            assert_eq!(schema.number(ORDERS).await, before + 1);
            let again = desk.call("charge", &key, json!({"cents": 5})).await;
            assert_eq!(told(&again), told(&said));
            assert_eq!(again["replayed"], true);
            for outbox in sends {
                outbox.stop().await;
            }
        }
    })
    .await;
}
