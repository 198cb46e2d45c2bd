//! A server whose tools run once per key: an orders shop on SQLite, for any MCP client.
//!
//! ```text
//! cargo run --example idempotent_server                     the story, told by a client of its own
//! cargo run --example idempotent_server -- serve shop.db    the server, on stdin and stdout
//! ```
//!
//! Without arguments it also serves, in a file of the system's temporary directory, if somebody
//! speaks to it on stdin. To give it to an MCP client, name the built program as its command.

mod support;

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use mcp_supervisor::{
    ConnectionSpec, OwnedConnection, StdioSpec, Supervisor, ToolAnswer, ToolCall, ToolContract,
    receipts::{
        Call, Definition, Desk, End, Failure, FixedScope, LedgerError, LongWork, Refusal,
        SqliteLedger, SqliteSettings, Work,
    },
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::tool::{ToolCallContext, ToolRouter},
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CustomRequest, CustomResult,
        GetTaskParams, GetTaskResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
        ServerConfig,
    },
    schemars::JsonSchema,
    service::RequestContext,
};
use rusqlite::{OptionalExtension as _, Transaction};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use support::{Ending, check, story};
use tokio::io::AsyncBufReadExt as _;

// The tools: what they take, what they answer, and what they do.

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Order {
    /// What is ordered.
    item: String,
    /// For how much, in cents.
    cents: u32,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ordered {
    /// The order's number.
    order: i64,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Refund {
    /// The order's number.
    order: i64,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Refunded {
    /// How much goes back, in cents.
    cents: u32,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Stocktaking {
    /// How many shelves there are.
    shelves: u32,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Stock {
    /// How many shelves were counted.
    counted: u32,
}

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS refunds (number INTEGER PRIMARY KEY, order_id INTEGER NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS stocktakings (id INTEGER PRIMARY KEY, shelves INTEGER NOT NULL);";

/// The handler has the open transaction. What it writes and the receipt are committed together.
fn create_order(tx: &Transaction<'_>, order: Order, _: &Call) -> Result<Ordered, Failure> {
    let insert = "INSERT INTO orders (item, cents) VALUES (?1, ?2)";
    tx.execute(insert, (&order.item, order.cents))?;
    Ok(Ordered {
        order: tx.last_insert_rowid(),
    })
}

fn refund(tx: &Transaction<'_>, refund: Refund, _: &Call) -> Result<Refunded, Failure> {
    let select = "SELECT cents FROM orders WHERE id = ?1";
    let cents = tx
        .query_row(select, [refund.order], |row| row.get(0))
        .optional()?;
    let cents = cents.ok_or_else(|| Refusal::new("no_such_order", "there is no such order"))?;
    tx.execute("INSERT INTO refunds (order_id) VALUES (?1)", [refund.order])?;
    Ok(Refunded { cents })
}

/// Work that takes longer than a call should. Its last write is committed with its end.
async fn take_stock(work: Work<Stocktaking>) -> Result<End<Stock>, Failure> {
    let shelves = work.arguments.shelves;
    for shelf in 1..=shelves {
        tokio::select! {
            () = work.cancelled() => return Ok(End::Stopped),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
        let done = f64::from(shelf) / f64::from(shelves);
        work.progress(done, format!("shelf {shelf} of {shelves}"))
            .await?;
    }
    Ok(End::done(move |tx| {
        tx.execute("INSERT INTO stocktakings (shelves) VALUES (?1)", [shelves])?;
        Ok(Stock { counted: shelves })
    }))
}

// The server.

#[derive(Clone)]
struct Shop {
    desk: Desk,
    router: std::sync::Arc<ToolRouter<Shop>>,
    /// In the story it dies once, when a refund is committed and not yet answered.
    dies_once: Option<PathBuf>,
}

impl Shop {
    async fn open(file: &Path, dies_once: Option<PathBuf>) -> Ending<Self> {
        let ledger = SqliteLedger::open(file, SqliteSettings::default())?;
        ledger
            .transaction(|tx| {
                let made = tx.execute_batch(TABLES);
                made.map_err(|error| LedgerError::Unavailable(error.to_string().into()))
            })
            .await?;
        // A server on stdio has one principal: whoever started it.
        let owner = FixedScope("local".parse()?);
        let order = Definition::<Order, Ordered>::new("create_order", "Orders an item.");
        let back = Definition::<Refund, Refunded>::new("refund", "Refunds an order.");
        let stock =
            Definition::<Stocktaking, Stock>::new("take_stock", "Counts what is on the shelves.");
        let desk = Desk::new()
            .tool(ledger.tool(&order, owner.clone(), create_order)?)
            .tool(ledger.tool(&back, owner.clone(), refund)?)
            .work(LongWork::new(stock).on(&ledger, owner, take_stock).await?);
        let router = desk.router().into();
        Ok(Self {
            desk,
            router,
            dies_once,
        })
    }
}

impl ServerHandler for Shop {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder().enable_tools().build();
        self.desk.declare(&mut capabilities);
        ServerConfig::new(capabilities)
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
        let is_refund = params.name == "refund";
        let answer = self
            .router
            .call(ToolCallContext::new(self, params, context))
            .await;
        if let Some(mark) = self
            .dies_once
            .as_ref()
            .filter(|mark| is_refund && !mark.exists())
        {
            let _ = std::fs::write(mark, "");
            std::process::exit(1);
        }
        answer
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.desk.on_custom_request(request, &context).await
    }

    async fn get_task(
        &self,
        params: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.desk.get_task(params, &context).await
    }

    async fn cancel_task(
        &self,
        params: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.desk.cancel_task(params, &context).await
    }
}

#[tokio::main]
async fn main() -> Ending {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut stdin = tokio::io::BufReader::new(tokio::io::stdin());
    let (file, mark) = match arguments[..] {
        ["--demo"] => return demo().await,
        ["serve", file] => (file.into(), None),
        ["serve", file, "--die-once", mark] => (file.into(), Some(mark.into())),
        [] => {
            use std::io::IsTerminal as _;
            if std::io::stdin().is_terminal() || stdin.fill_buf().await?.is_empty() {
                return demo().await;
            }
            (env::temp_dir().join("idempotent_server.db"), None)
        }
        _ => return Err("idempotent_server [--demo | serve FILE]".into()),
    };
    // stdout is for MCP and nothing else.
    eprintln!("the shop is in {}", PathBuf::from(&file).display());
    let shop = Shop::open(&file, mark).await?;
    shop.serve((stdin, tokio::io::stdout()))
        .await?
        .waiting()
        .await?;
    Ok(())
}

// The story.

async fn demo() -> Ending {
    let directory = tempfile::tempdir()?;
    story(tell(directory.path())).await
}

fn spec(directory: &Path) -> Ending<ConnectionSpec> {
    let server = StdioSpec::new(env::current_exe()?)
        .arg("serve")
        .arg(directory.join("shop.db"))
        .arg("--die-once")
        .arg(directory.join("died"));
    Ok(ConnectionSpec::from(server).contract("refund", ToolContract::Receipts))
}

async fn tell(directory: &Path) -> Ending {
    let supervisor = Supervisor::builder().start().await?;
    let shop = supervisor.open("shop", spec(directory)?).await?;

    println!("An order, under a key that its caller made for it:");
    let order = json!({ "item": "lamp", "cents": 4900, "idempotency_key": "order-1001" });
    let first = call(&shop, "create_order", order.clone()).await?;
    check(said(&first, "status") == "completed", "the order is made")?;

    println!("The same call again, as after a lost answer:");
    let again = call(&shop, "create_order", order).await?;
    check(
        said(&again, "replayed") == true,
        "it is answered and not run",
    )?;
    check(
        said(&again, "result") == said(&first, "result"),
        "the order has the same number",
    )?;

    println!("The same key for something else:");
    let other = json!({ "item": "lamp", "cents": 1, "idempotency_key": "order-1001" });
    let conflict = call(&shop, "create_order", other).await?;
    check(
        said(&conflict, "status") == "conflict",
        "nothing is changed",
    )?;

    println!("A refund whose server dies between the commit and the answer. The client's contract");
    println!("relies on the server's receipts, so it asks the next process for the receipt:");
    let refund = ToolCall::new(
        "refund",
        json!({ "order": said(&first, "result")["order"] }),
    )
    .idempotency_key("refund-1001".parse()?);
    let refunded = shop.call_tool(refund).await?;
    println!("   {}", refunded.text());
    check(
        refunded.was_looked_up(),
        "the call was not sent a second time",
    )?;
    check(
        said(&refunded, "replayed") == true,
        "it is the refund that was made",
    )?;

    println!("Stocktaking, which is answered with a handle:");
    let stock = json!({ "shelves": 20, "idempotency_key": "stock-1" });
    let started = call(&shop, "take_stock", stock).await?;
    let handle = json!({ "operation_id": said(&started, "operation_id") });
    let mut read = call(&shop, "take_stock_status", handle.clone()).await?;
    while said(&read, "status") == "in_progress" {
        tokio::time::sleep(Duration::from_millis(100)).await;
        read = shop
            .call_tool(ToolCall::new("take_stock_status", handle.clone()))
            .await?;
    }
    println!("   {}", read.text());
    check(
        said(&read, "result")["counted"] == 20,
        "all shelves are counted",
    )?;

    let _ = supervisor.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn call(shop: &OwnedConnection, tool: &str, arguments: Value) -> Ending<ToolAnswer> {
    let answer = shop.call_tool(ToolCall::new(tool, arguments)).await?;
    println!("   {}", answer.text());
    Ok(answer)
}

fn said<'a>(answer: &'a ToolAnswer, member: &str) -> &'a Value {
    answer
        .structured()
        .map_or(&Value::Null, |said| &said[member])
}
