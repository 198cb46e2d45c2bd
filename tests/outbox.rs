//! Effects at a provider: a real HTTP service that resets connections, and servers that are killed.

#[path = "outbox/desk.rs"]
mod desk;
#[path = "../examples/support/payments.rs"]
mod payments;
mod support;

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use desk::Opened;
use mcp_supervisor::receipts::{
    Bounds, Definition, FixedScope, Ledger as _, SqliteLedger, SqliteSettings,
    outbox::{Intent, Limits, Outbox, Promises, Reference},
};
use payments::{Habits, Payments, PaymentsApi, Trick};
use rmcp::{ServiceExt as _, model::CallToolRequestParams};
use serde_json::{Value, json};
use support::{bounded, until};
use tempfile::TempDir;

#[derive(serde::Deserialize, rmcp::schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Charge {
    cents: u64,
}

const KEYS: Habits = Habits {
    deduplicates: true,
    can_be_asked: false,
};
const LOOK_UPS: Habits = Habits {
    deduplicates: false,
    can_be_asked: true,
};
const NOTHING: Habits = Habits {
    deduplicates: false,
    can_be_asked: false,
};

/// A service, and a server with a tool that charges there.
struct Shop {
    service: Payments,
    directory: TempDir,
    ledger: SqliteLedger,
    outbox: Outbox<SqliteLedger>,
    desk: Opened,
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.backoff.base = Duration::from_millis(20);
    limits
}

/// On a busy machine, too, a call waits until the provider has answered.
fn patient() -> Bounds {
    let mut bounds = Bounds::default();
    bounds.wait = support::HARD;
    bounds
}

impl Shop {
    async fn new(habits: Habits) -> Self {
        Self::with(habits, |promises| promises, limits(), patient()).await
    }

    async fn with(
        habits: Habits,
        promises: impl FnOnce(Promises) -> Promises,
        limits: Limits,
        bounds: Bounds,
    ) -> Self {
        let service = Payments::start(habits).await.expect("the service starts");
        let mut api = PaymentsApi::new(service.addr(), habits);
        api.promises = promises(api.promises);
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("shop.db");
        let ledger = SqliteLedger::open(file, SqliteSettings::default()).expect("a ledger");
        let outbox = ledger.outbox().await.expect("an outbox");
        let outbox = outbox.provider(api).limits(limits).start();
        let tool = outbox.tool(
            &definition().bounds(bounds),
            acme(),
            |_, charge: Charge, _| Ok(Intent::new("payments", json!({ "cents": charge.cents }))),
        );
        let desk = Opened::open(&[&tool.expect("a tool")]).await;
        Self {
            service,
            directory,
            ledger,
            outbox,
            desk,
        }
    }

    async fn charge(&self) -> Value {
        self.desk.call("charge", "k-1", json!({ "cents": 5 })).await
    }

    fn database(&self) -> rusqlite::Connection {
        let database = rusqlite::Connection::open(self.directory.path().join("shop.db"));
        let database = database.expect("the file opens");
        database
            .busy_timeout(Duration::from_secs(10))
            .expect("a bound");
        database
    }
}

fn definition() -> Definition<Charge, Value> {
    Definition::new("charge", "Charges the customer's card.")
}

fn acme() -> FixedScope {
    FixedScope("acme".parse().expect("a scope"))
}

fn reference() -> Reference {
    Reference::of("acme", "charge", "k-1")
}

/// The one charge, and what the tool said of it.
fn charged_once(shop: &Shop, said: &Value) {
    assert_eq!(said["status"], "completed", "{said}");
    assert_eq!(said["result"], json!({ "charge": "ch-1", "cents": 5 }));
    let charges = shop.service.charges();
    assert_eq!(charges.len(), 1, "{charges:?}");
    assert_eq!(charges[0].reference, reference().as_str());
}

#[tokio::test]
async fn a_lost_answer_or_request_is_sent_again_under_the_same_key_and_has_one_effect() {
    bounded(async {
        for trick in [Trick::LoseAnswer, Trick::LoseRequest, Trick::Break] {
            let shop = Shop::new(KEYS).await;
            shop.service.will([trick, trick]);
            let said = shop.charge().await;
            charged_once(&shop, &said);
            let sent = format!("POST {}", reference());
            assert_eq!(shop.service.requests(), vec![sent; 3], "{trick:?}");
            let again = shop.charge().await;
            assert_eq!(again["replayed"], true);
            assert_eq!(again["result"], said["result"]);
            assert_eq!(shop.service.requests().len(), 3);
        }
    })
    .await;
}

#[tokio::test]
async fn a_provider_without_keys_is_asked_and_sent_to_again_only_where_absence_is_final() {
    bounded(async {
        for (trick, methods) in [
            (Trick::LoseAnswer, &["POST", "GET"][..]),
            (Trick::LoseRequest, &["POST", "GET", "POST"][..]),
        ] {
            let shop = Shop::new(LOOK_UPS).await;
            shop.service.will([trick]);
            let said = shop.charge().await;
            charged_once(&shop, &said);
            let requests = shop.service.requests();
            let mut asked: Vec<_> = requests.iter().map(|r| &r[..r.len() - 33]).collect();
            // How often it was absent before that was final is a matter of time.
            asked.dedup();
            assert_eq!(asked, methods);
        }
    })
    .await;
}

#[tokio::test]
async fn an_absence_that_is_never_final_leaves_the_outcome_unknown() {
    bounded(async {
        let mut limits = limits();
        limits.max_look_ups = 3;
        let never = |_| Promises::none().looked_up(None);
        let shop = Shop::with(LOOK_UPS, never, limits, patient()).await;
        shop.service.will([Trick::LoseRequest]);
        let said = shop.charge().await;
        assert_eq!(said["status"], "outcome_unknown", "{said}");
        assert_eq!(shop.service.requests().len(), 1 + 3);
    })
    .await;
}

#[tokio::test]
async fn without_keys_and_look_ups_the_outcome_is_unknown_and_says_what_to_inspect() {
    bounded(async {
        let shop = Shop::new(NOTHING).await;
        shop.service.will([Trick::LoseAnswer]);
        for _ in 0..2 {
            let said = shop.charge().await;
            assert_eq!(said["status"], "outcome_unknown", "{said}");
            assert_eq!(said["retryable"], false);
            let next = said["next_action"].as_str().expect("what to do");
            assert!(next.contains(reference().as_str()), "{next}");
        }
        assert_eq!(shop.service.requests().len(), 1, "it was sent once");
        // An unknown outcome is never removed.
        let swept = shop.outbox.sweep(Duration::ZERO, 10).await;
        assert_eq!(swept.expect("swept"), 0);
    })
    .await;
}

#[tokio::test]
async fn a_denial_and_a_conflict_are_final() {
    bounded(async {
        let shop = Shop::new(KEYS).await;
        shop.service.will([Trick::Deny]);
        for replayed in [false, true] {
            let said = shop.charge().await;
            assert_eq!(said["status"], "refused", "{said}");
            assert_eq!(said["refusal_code"], "provider_refused");
            assert_eq!(said["replayed"], replayed);
        }
        assert_eq!(shop.service.requests().len(), 1);

        // Somebody else's request came under this key.
        let shop = Shop::new(KEYS).await;
        shop.service
            .has(reference().as_str(), json!({ "cents": 7 }));
        for _ in 0..2 {
            let said = shop.charge().await;
            assert_eq!(said["refusal_code"], "provider_conflict", "{said}");
        }
        assert_eq!(shop.service.requests().len(), 1);
        assert_eq!(shop.service.charges().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_denial_of_a_repeat_says_nothing_of_the_first_attempt() {
    bounded(async {
        let shop = Shop::new(KEYS).await;
        shop.service.will([Trick::LoseAnswer, Trick::Deny]);
        let said = shop.charge().await;
        assert_eq!(said["status"], "outcome_unknown", "{said}");
        assert_eq!(shop.service.requests().len(), 2);
        assert_eq!(shop.service.charges().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_retry_hint_is_honoured_where_it_fits_and_ends_it_where_it_does_not() {
    bounded(async {
        let shop = Shop::new(KEYS).await;
        shop.service.will([Trick::Busy(1)]);
        let began = Instant::now();
        let said = shop.charge().await;
        charged_once(&shop, &said);
        assert!(began.elapsed() >= Duration::from_secs(1), "it did not wait");

        let mut limits = limits();
        limits.max_age = Duration::from_secs(30);
        let shop = Shop::with(KEYS, |p| p, limits, patient()).await;
        shop.service.will([Trick::Busy(60)]);
        let said = shop.charge().await;
        assert_eq!(said["status"], "failed", "{said}");
        assert_eq!(shop.service.requests().len(), 1);
        assert!(shop.service.charges().is_empty());
    })
    .await;
}

#[tokio::test]
async fn an_intent_is_not_sent_again_when_its_key_may_be_forgotten() {
    bounded(async {
        let mut limits = limits();
        limits.retention_margin = Duration::from_millis(999);
        // One millisecond of the key's second is left for use, and the first wait is longer.
        limits.backoff.base = Duration::from_secs(3600);
        limits.backoff.cap = Duration::from_secs(3600);
        let second = |_| Promises::none().keys_kept_for(Duration::from_secs(1));
        let shop = Shop::with(KEYS, second, limits, patient()).await;
        shop.service.will([Trick::LoseAnswer]);
        let said = shop.charge().await;
        assert_eq!(said["status"], "outcome_unknown", "{said}");
        assert_eq!(shop.service.requests().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_call_waits_within_its_bound_and_the_outcome_is_there_for_the_next_one() {
    bounded(async {
        let mut bounds = Bounds::default();
        bounds.wait = Duration::from_millis(50);
        let shop = Shop::with(KEYS, |p| p, limits(), bounds).await;
        shop.service.will([Trick::HoldAnswer]);
        let said = shop.charge().await;
        assert_eq!(said["status"], "in_progress", "{said}");
        assert!(said["operation_id"].is_string() && said["next_action"].is_string());
        shop.service.let_go();
        let scope = acme().0;
        let id = said["operation_id"].as_str().expect("an id").parse();
        let id = id.expect("an operation's id");
        loop {
            let receipt = shop.ledger.by_id(&scope, id).await.expect("a look");
            let receipt = receipt.expect("a receipt");
            if receipt.standing.state() == mcp_supervisor::receipts::table::State::Settled {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let again = shop.charge().await;
        charged_once(&shop, &again);
        assert_eq!(again["replayed"], true);
        assert_eq!(again["operation_id"], said["operation_id"]);
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_cannot_be_written_down_at_once_is_not_lost() {
    bounded(async {
        for table in ["mcp_receipts_outbox", "mcp_receipts"] {
            // This provider knows no keys: what is forgotten here is unknown.
            let shop = Arc::new(Shop::new(NOTHING).await);
            let condition = match table {
                "mcp_receipts" => "NEW.state = 1",
                _ => "NEW.state = 'answered'",
            };
            let broken = format!(
                "CREATE TRIGGER broken BEFORE UPDATE ON {table} WHEN {condition}
                 BEGIN SELECT RAISE(ABORT, 'no room'); END"
            );
            shop.database().execute_batch(&broken).expect("a trigger");
            let charging = Arc::clone(&shop);
            let call = tokio::spawn(async move { charging.charge().await });
            shop.service.until_asked(1).await;
            // The service has answered, and nothing of that can be written now.
            tokio::time::sleep(Duration::from_millis(300)).await;
            let mended = shop.database().execute_batch("DROP TRIGGER broken");
            mended.expect("no trigger");
            let said = call.await.expect("no panic");
            charged_once(&shop, &said);
            assert_eq!(shop.service.requests().len(), 1, "{table}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_intent_for_nobody_commits_nothing() {
    bounded(async {
        let shop = Shop::new(KEYS).await;
        let tool = shop.outbox.tool(&definition(), acme(), |_, _: Charge, _| {
            Ok(Intent::new("bank", json!({})))
        });
        let desk = Opened::open(&[&tool.expect("a tool")]).await;
        let said = desk.call("charge", "k-1", json!({ "cents": 5 })).await;
        assert_eq!(said["status"], "failed", "{said}");
        let said = shop.charge().await;
        charged_once(&shop, &said);
        assert_eq!(said["replayed"], false, "the key was free");
    })
    .await;
}

/// The server of the example as a process of its own, which can be killed.
struct Server {
    process: tokio::process::Child,
    client: rmcp::service::RunningService<rmcp::RoleClient, ()>,
}

impl Server {
    async fn start(file: &std::path::Path, service: &Payments, habits: usize, dies: &str) -> Self {
        let mut process = tokio::process::Command::new(support::example("outbox_provider"))
            .arg(file)
            .arg(service.addr().to_string())
            .arg(habits.to_string())
            .arg(dies)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the server starts");
        let stdin = process.stdin.take().expect("a pipe");
        let stdout = process.stdout.take().expect("a pipe");
        let client = ().serve((stdout, stdin)).await.expect("the server greets");
        Self { process, client }
    }

    async fn charge(&self) -> Option<Value> {
        let arguments = json!({ "cents": 5, "idempotency_key": "k-1" });
        let Value::Object(arguments) = arguments else {
            return None;
        };
        let params = CallToolRequestParams::new("charge").with_arguments(arguments);
        self.client.call_tool(params).await.ok()?.structured_content
    }
}

/// A first server that dies, and a second one that is called under the same key.
async fn killed(habits: Habits, place: usize, dies: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("shop.db");
    let service = Payments::start(habits).await.expect("the service starts");
    let mut first = Server::start(&file, &service, place, dies).await;
    if dies == "never" {
        service.will([Trick::HoldAnswer]);
        tokio::select! {
            said = first.charge() => panic!("nobody lets the answer go: {said:?}"),
            () = service.until_asked(1) => {}
        }
        first.process.kill().await.expect("SIGKILL");
    } else {
        assert_eq!(first.charge().await, None);
        first.process.wait().await.expect("it died");
    }
    let second = Server::start(&file, &service, place, "never").await;
    let said = second.charge().await.expect("an answer");
    assert_eq!(said["status"], "completed", "{dies} {said}");
    assert_eq!(
        said["replayed"], true,
        "the first call's intent was committed"
    );
    assert_eq!(service.charges().len(), 1, "{dies}");
}

#[tokio::test]
async fn a_server_that_dies_before_the_dispatch_loses_no_intent() {
    for (habits, place) in [(KEYS, 0), (LOOK_UPS, 1)] {
        bounded(killed(habits, place, "before-dispatch")).await;
    }
}

#[tokio::test]
async fn a_server_killed_during_the_dispatch_leaves_one_effect() {
    for (habits, place) in [(KEYS, 0), (LOOK_UPS, 1)] {
        bounded(killed(habits, place, "never")).await;
    }
}

#[tokio::test]
async fn a_server_that_dies_with_an_answer_not_written_down_leaves_one_effect() {
    for (habits, place) in [(KEYS, 0), (LOOK_UPS, 1)] {
        bounded(killed(habits, place, "after-answer")).await;
    }
}

#[tokio::test]
async fn what_was_committed_is_sent_after_a_restart_without_anybody_asking() {
    bounded(async {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("shop.db");
        let service = Payments::start(KEYS).await.expect("the service starts");
        let mut first = Server::start(&file, &service, 0, "before-dispatch").await;
        assert_eq!(first.charge().await, None);
        first.process.wait().await.expect("it died");
        assert!(service.requests().is_empty());
        let _second = Server::start(&file, &service, 0, "never").await;
        until("it is charged", || service.charges().len() == 1).await;
    })
    .await;
}
