//! What receipts cost: calls of 64 distinct keys at once through a ledger, beside one connection and
//! one transaction for each call, in one run.
//!
//! ```text
//! cargo bench --bench receipts               a few rounds, with the ratio
//! cargo bench --bench receipts -- --check    the same; fails where the ratio is below its bar
//! ```
//!
//! Both do the same to the same kind of file with the same pragmas: look a key up, write an effect,
//! write a receipt, commit. The sides take turns, and the ratio is of neighbouring rounds.

#[path = "../tests/receipt_server/orders.rs"]
mod orders;

use std::{
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use orders::{Orders, Setting};
use rmcp::{RoleClient, ServiceExt as _, model::CallToolRequestParams, service::Peer};
use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

const CALLERS: usize = 64;
const ROUNDS: usize = 9;
/// Calls of each caller in a round.
const CALLS: usize = 4;
/// What receipts have to be worth beside a connection for each call.
const BAR: f64 = 10.0;

fn main() -> ExitCode {
    let check = std::env::args().any(|word| word == "--check");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let ratio = runtime.expect("a runtime").block_on(compare());
    println!("receipts at {CALLERS} keys at once: {ratio:.1}x one connection for each call");
    match check && ratio < BAR {
        true => {
            println!("below the bar of {BAR}x");
            ExitCode::FAILURE
        }
        false => ExitCode::SUCCESS,
    }
}

async fn compare() -> f64 {
    let dir = tempfile::tempdir().expect("a directory");
    let setting = Setting::new(dir.path().join("receipts.db"));
    let server = Orders::new(&setting);
    let (here, there) = tokio::io::duplex(1 << 20);
    tokio::spawn(async move {
        let serving = server.server.serve(there).await.expect("a client");
        serving.waiting().await.expect("no panic");
    });
    let client = ().serve(here).await.expect("a server");
    let other = Setting::new(dir.path().join("connections.db"));
    drop(orders::ledger(&other));
    let file: Arc<Path> = other.database.into();

    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let ours = receipts(client.peer(), round).await;
        let theirs = connections(&file, round).await;
        // The first one warms both up.
        if round > 0 {
            let each = |took: Duration| took.as_secs_f64() * 1e6 / (CALLERS * CALLS) as f64;
            println!(
                "{:8.0} us a call, {:8.0} us with a connection",
                each(ours),
                each(theirs)
            );
            ratios.push(theirs.as_secs_f64() / ours.as_secs_f64());
        }
    }
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// The whole way of a call through rmcp and the ledger.
async fn receipts(peer: &Peer<RoleClient>, round: usize) -> Duration {
    let began = Instant::now();
    let mut calling = JoinSet::new();
    for caller in 0..CALLERS {
        let peer = peer.clone();
        calling.spawn(async move {
            for call in 0..CALLS {
                let key = format!("{round}-{caller}-{call}");
                let arguments = json!({"idempotency_key": key, "item": "lamp"});
                let arguments: Map<String, Value> =
                    serde_json::from_value(arguments).expect("a map");
                let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
                let result = peer.call_tool(call).await.expect("an answer");
                assert_eq!(result.is_error, Some(false));
            }
        });
    }
    calling.join_all().await;
    began.elapsed()
}

/// The work of the same calls, without any way to it.
async fn connections(file: &Arc<Path>, round: usize) -> Duration {
    let began = Instant::now();
    let mut calling = JoinSet::new();
    for caller in 0..CALLERS {
        let file = Arc::clone(file);
        calling.spawn_blocking(move || {
            for call in 0..CALLS {
                once(&file, &format!("{round}-{caller}-{call}")).expect("a transaction");
            }
        });
    }
    calling.join_all().await;
    began.elapsed()
}

fn once(file: &Path, key: &str) -> rusqlite::Result<()> {
    let mut connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(60))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found: i64 = transaction.query_row(
        "SELECT count(*) FROM mcp_receipts WHERE scope = ?1 AND operation = ?2 AND key = ?3",
        ["alice", "create_order", key],
        |row| row.get(0),
    )?;
    assert_eq!(found, 0);
    transaction.execute("INSERT INTO orders (item, version) VALUES ('lamp', 1)", [])?;
    transaction.execute(
        "INSERT INTO mcp_receipts (scope, operation, key, version, fingerprint, operation_id, state, \
         standing, at, answered_until, refused_until) \
         VALUES ('alice', 'create_order', ?1, 1, randomblob(32), randomblob(16), 1, ?2, 0, 0, 0)",
        params![key, r#"{"standing":"completed","result":{"order":1,"item":"lamp"}}"#],
    )?;
    transaction.commit()
}
