//! A server with one tool that has an effect, `create_order`, made with receipts. What the item says
//! decides how the tool behaves. The effects are the rows of `orders`, in the file of the receipts.
#![allow(dead_code, unreachable_pub, reason = "not everybody needs all of it")]

#[path = "../support/routed.rs"]
mod routed;

use std::{
    path::{Path, PathBuf},
    process::abort,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use mcp_supervisor::receipts::{
    Bounds, Call, Definition, Denial, Failure, ReceiptTool, Refusal, Scope, SqliteLedger,
    SqliteSettings,
};
use rmcp::{RoleServer, schemars::JsonSchema, service::RequestContext};
use routed::Routed;
use rusqlite::{
    Connection, Transaction,
    hooks::{Action, Wal},
};
use serde::{Deserialize, Serialize};

/// How a server of orders is set up.
#[derive(Clone, Debug)]
pub struct Setting {
    pub database: PathBuf,
    pub scope: String,
    pub version: u32,
    /// Who calls has no access while this file is there.
    pub revoked: Option<PathBuf>,
    pub kept: Duration,
    pub tombstones: Duration,
    pub begin: Duration,
    pub wait: Duration,
    pub die: Step,
}

impl Setting {
    pub fn new(database: impl Into<PathBuf>) -> Self {
        Self {
            database: database.into(),
            scope: "alice".to_owned(),
            version: 1,
            revoked: None,
            kept: Duration::from_secs(3600),
            tombstones: Duration::from_secs(3600),
            begin: Duration::from_secs(20),
            wait: Duration::from_secs(20),
            die: Step::Never,
        }
    }
}

/// Where the process is killed, between two steps of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Never,
    /// Before the transaction.
    Admitted,
    /// In it, before the effect.
    Handler,
    /// After the effect, before the receipt.
    Effect,
    /// After the receipt, before the commit.
    Receipt,
    /// As the commit begins.
    Commit,
    /// After the commit, before anybody is told.
    Committed,
    /// As the answer is written.
    Answer,
}

impl Step {
    pub const ALL: [Self; 7] = [
        Self::Admitted,
        Self::Handler,
        Self::Effect,
        Self::Receipt,
        Self::Commit,
        Self::Committed,
        Self::Answer,
    ];

    pub fn named(name: &str) -> Self {
        let named = |step: &&Self| format!("{step:?}") == name;
        *Self::ALL.iter().find(named).unwrap_or(&Self::Never)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// What is ordered.
    pub item: String,
    /// How many.
    #[serde(default)]
    pub count: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub struct Placed {
    pub order: i64,
    pub item: String,
}

pub struct Orders {
    pub server: Routed,
    pub ledger: SqliteLedger,
    pub tool: ReceiptTool,
    /// How often the handler was called.
    pub handled: Arc<AtomicU64>,
}

pub fn connect(path: &Path) -> Connection {
    let connection = Connection::open(path).expect("a database");
    connection
        .busy_timeout(Duration::from_secs(10))
        .expect("a bound");
    connection
}

/// The ledger, over a connection that dies where it is told to.
pub fn ledger(setting: &Setting) -> SqliteLedger {
    let mut connection = connect(&setting.database);
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON;
             CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, version INTEGER);
             CREATE TABLE IF NOT EXISTS parts (
                 of INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED
             );
             CREATE TABLE IF NOT EXISTS once (name TEXT PRIMARY KEY ON CONFLICT ROLLBACK);",
        )
        .expect("the server's own tables");
    die_in(&mut connection, setting.die);
    let ledger = SqliteLedger::over(connection, SqliteSettings::default());
    ledger.expect("a ledger")
}

/// Kills the process between the statements of a transaction with a receipt.
fn die_in(connection: &mut Connection, die: Step) {
    let receipt = Arc::new(AtomicBool::new(false));
    let written = Arc::clone(&receipt);
    let inserted = move |action: Action, _: &str, table: &str, _: i64| {
        if action == Action::SQLITE_INSERT && table == "mcp_receipts" {
            if die == Step::Receipt {
                abort();
            }
            written.store(true, Ordering::SeqCst);
        }
    };
    let written = Arc::clone(&receipt);
    let commits = move || {
        if die == Step::Commit && written.load(Ordering::SeqCst) {
            abort();
        }
        false
    };
    let committed = move |_: &mut Wal, _| {
        if die == Step::Committed && receipt.load(Ordering::SeqCst) {
            abort();
        }
        Ok(())
    };
    let hooked = connection.update_hook(Some(inserted));
    let hooked = hooked.and_then(|()| connection.commit_hook(Some(commits)));
    let hooked = hooked.and_then(|()| connection.wal_hook(Some(committed)));
    hooked.expect("hooks");
}

impl Orders {
    pub fn new(setting: &Setting) -> Self {
        Self::over(ledger(setting), setting)
    }

    pub fn over(ledger: SqliteLedger, setting: &Setting) -> Self {
        let scope: Scope = setting.scope.parse().expect("a scope");
        let revoked = setting.revoked.clone();
        let die = setting.die;
        let principal = move |_: &RequestContext<RoleServer>| {
            if die == Step::Admitted {
                abort();
            }
            match revoked.as_ref().is_some_and(|file| file.exists()) {
                true => Err(Denial::new("your access was revoked")),
                false => Ok(scope.clone()),
            }
        };
        let mut bounds = Bounds::default();
        bounds.begin = setting.begin;
        bounds.wait = setting.wait;
        let definition = Definition::<Order, Placed>::new("create_order", "Creates an order.")
            .version(setting.version)
            .reads_results_of([1])
            .kept_for(setting.kept, setting.tombstones)
            .bounds(bounds)
            .inspect_with("Look at the list of orders.");
        let handled = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&handled);
        let tool = ledger
            .tool(&definition, principal, move |transaction, order, call| {
                count.fetch_add(1, Ordering::SeqCst);
                place(transaction, order, call, die)
            })
            .expect("a tool that can be");
        Self {
            server: Routed::of(&[&tool]),
            ledger,
            tool,
            handled,
        }
    }
}

fn place(
    transaction: &Transaction<'_>,
    order: Order,
    call: &Call,
    die: Step,
) -> Result<Placed, Failure> {
    if die == Step::Handler {
        abort();
    }
    let item = order.item;
    let what = item.clone();
    transaction.execute(
        "INSERT INTO orders (item, version) VALUES (?1, ?2)",
        (&item, call.version()),
    )?;
    let placed = Placed {
        order: transaction.last_insert_rowid(),
        item,
    };
    if die == Step::Effect {
        abort();
    }
    match what.split_once(':').unwrap_or((&what, "")) {
        ("refused", _) => return Err(Refusal::new("sold_out", "There is none left.").into()),
        ("invalid", _) => return Err(Failure::Invalid("no such item".to_owned())),
        ("fails", _) => return Err(Failure::failed("the secret reason")),
        ("panics", _) => panic!("the handler panics, as it was told to"),
        ("commits", _) => transaction.execute_batch("COMMIT")?,
        ("orphan", _) => drop(transaction.execute("INSERT INTO parts VALUES (-1)", [])?),
        ("rolls_back", _) => {
            transaction.execute("INSERT INTO once VALUES ('a')", [])?;
            transaction.execute("INSERT INTO once VALUES ('a')", [])?;
        }
        ("waits", path) => {
            std::fs::write(format!("{path}.begun"), "").map_err(Failure::failed)?;
            while !Path::new(path).exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        _ => {}
    }
    Ok(placed)
}
