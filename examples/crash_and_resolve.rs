//! A host is killed after its call had its effect and before it heard of it. Started again, it lists the
//! operation from its journal, resolves it under the same key, and gets the order that was made then.
//!
//! ```text
//! cargo run --example crash_and_resolve
//! ```
//!
//! Three programs in one: the story, which starts and kills the host; the host, with a journal in a file;
//! and its server, whose tool runs once per key.

mod support;

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use mcp_supervisor::{
    ConnectionSpec, OperationId, OwnedConnection, StdioSpec, Supervisor, ToolCall, ToolContract,
    journal::{Journal, JournalSettings, SqliteStore},
    receipts::{
        Call, Definition, Failure, FixedScope, LedgerError, ReceiptTool, SqliteLedger,
        SqliteSettings,
    },
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::tool::{ToolCallContext, ToolRouter},
    model::{
        CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig,
    },
    schemars::JsonSchema,
    service::RequestContext,
};
use rusqlite::Transaction;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use support::{Ending, check, story};

#[tokio::main]
async fn main() -> Ending {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            let directory = tempfile::tempdir()?;
            story(tell(directory.path())).await
        }
        ["host", "call", directory] => call(Path::new(directory)).await,
        ["host", "resume", directory] => resume(Path::new(directory)).await,
        ["server", directory] => serve(Path::new(directory)).await,
        _ => Err("crash_and_resolve has no arguments".into()),
    }
}

// The story.

async fn tell(directory: &Path) -> Ending {
    println!("A host orders a lamp. Its server makes the order, and is slow to answer:");
    let mut first = host("call", directory)?.stdin(Stdio::null()).spawn()?;
    while !committed(directory).exists() {
        if let Some(ended) = first.try_wait()? {
            return Err(format!("the host ended too early: {ended}").into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("The order is made. The host is killed before it hears of it.");
    first.kill()?;
    first.wait()?;
    let made = orders(directory)?;
    check(made.len() == 1, "one order was made")?;

    println!("The host is started again:");
    let Output { status, stdout, .. } = host("resume", directory)?
        .stderr(Stdio::inherit())
        .output()?;
    let said = String::from_utf8(stdout)?;
    print!("{said}");
    check(status.success(), "the host found out what it had to")?;
    check(
        said.contains(&made[0]),
        "it got the number of the order that was made before the crash",
    )?;
    check(
        orders(directory)? == made,
        "there is still that order, and no other",
    )
}

fn host(what: &str, directory: &Path) -> Ending<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["host", what]).arg(directory);
    Ok(command)
}

/// The numbers of the orders that there are.
fn orders(directory: &Path) -> Ending<Vec<String>> {
    let shop = rusqlite::Connection::open(directory.join("shop.db"))?;
    let mut select = shop.prepare("SELECT number FROM orders")?;
    let numbers = select.query_map([], |row| row.get(0))?;
    Ok(numbers.collect::<Result<_, _>>()?)
}

// The host.

/// A supervisor with a journal in a file, and the shop.
async fn open(directory: &Path) -> Ending<(Supervisor, Journal, OwnedConnection)> {
    let store = SqliteStore::open(directory.join("journal.db")).await?;
    // So that what is repeated after a crash has its arguments.
    let settings = JournalSettings {
        keep_arguments: true,
        ..JournalSettings::default()
    };
    let journal = Journal::new(store, settings);
    let builder = Supervisor::builder().journal(journal.clone());
    let supervisor = builder.start().await?;
    let server = StdioSpec::new(env::current_exe()?)
        .arg("server")
        .arg(directory);
    // This host vouches for it: the tool runs once per key.
    let spec = ConnectionSpec::from(server)
        .contract("create_order", ToolContract::keyed("idempotency_key"));
    let shop = supervisor.open("shop", spec).await?;
    Ok((supervisor, journal, shop))
}

async fn call(directory: &Path) -> Ending {
    let (_supervisor, _journal, shop) = open(directory).await?;
    let id = OperationId::mint();
    std::fs::write(directory.join("operation"), id.to_string())?;
    println!("   operation {id}, under the key order-1001");
    let order = ToolCall::new("create_order", json!({ "item": "lamp" }))
        .operation_id(id)
        .idempotency_key("order-1001".parse()?);
    let answer = shop.call_tool(order).await?;
    Err(format!("it was to be killed, and got {}", answer.text()).into())
}

async fn resume(directory: &Path) -> Ending {
    let (supervisor, journal, _shop) = open(directory).await?;
    let unknown = journal.unknown().await?;
    for record in &unknown {
        let intent = &record.intent;
        println!(
            "   {} on {}, operation {}: {}",
            intent.tool, intent.connection, intent.operation, record.state
        );
    }
    check(unknown.len() == 1, "one operation is listed as unknown")?;
    let id = unknown[0].intent.operation;
    let called = std::fs::read_to_string(directory.join("operation"))?;
    check(
        id.to_string() == called,
        "it is the one that was called before the crash",
    )?;

    println!("It is resolved as its contract allows: repeated, under the same key:");
    let resolution = supervisor.resolve(id).await?;
    let answer = resolution.answer().ok_or("it was not answered")?;
    println!("   {}", answer.text());
    let said = answer.structured().unwrap_or(&Value::Null);
    println!("   order {}", said["result"]["order"]);
    check(
        said["replayed"] == true,
        "the server answered from its receipt, and ran nothing",
    )?;
    check(journal.unknown().await?.is_empty(), "nothing is unknown")?;
    let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    journal.close().await?;
    Ok(())
}

// The server.

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Order {
    /// What is ordered.
    item: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ordered {
    /// The order's number, which no other order has.
    order: String,
}

fn create_order(tx: &Transaction<'_>, order: Order, _: &Call) -> Result<Ordered, Failure> {
    let number: String = tx.query_row("SELECT hex(randomblob(6))", [], |row| row.get(0))?;
    let insert = "INSERT INTO orders (number, item) VALUES (?1, ?2)";
    tx.execute(insert, (&number, &order.item))?;
    Ok(Ordered { order: number })
}

/// The file that says that the order is committed and its answer held back.
fn committed(directory: &Path) -> PathBuf {
    directory.join("committed")
}

struct Shop {
    router: ToolRouter<Shop>,
    committed: PathBuf,
}

async fn serve(directory: &Path) -> Ending {
    let ledger = SqliteLedger::open(directory.join("shop.db"), SqliteSettings::default())?;
    ledger
        .transaction(|tx| {
            let table =
                "CREATE TABLE IF NOT EXISTS orders (number TEXT NOT NULL, item TEXT NOT NULL)";
            let made = tx.execute_batch(table);
            made.map_err(|error| LedgerError::Unavailable(error.to_string().into()))
        })
        .await?;
    let definition = Definition::<Order, Ordered>::new("create_order", "Orders an item.");
    let owner = FixedScope("local".parse()?);
    let tool: ReceiptTool = ledger.tool(&definition, owner, create_order)?;
    let shop = Shop {
        router: ToolRouter::new().with_route(tool.route()),
        committed: committed(directory),
    };
    let stdio = rmcp::transport::stdio();
    shop.serve(stdio).await?.waiting().await?;
    Ok(())
}

impl ServerHandler for Shop {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.router.list_all()))
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let context = ToolCallContext::new(self, params, context);
        let answer = self.router.call(context).await;
        if !self.committed.exists() {
            // In the story the first answer never comes.
            let _ = std::fs::write(&self.committed, "");
            std::future::pending::<()>().await;
        }
        answer
    }
}
