//! A server of receipts on rmcp and SQLite, which tests start as a real process:
//! `desk_server stdio DIR` or `desk_server http DIR`, which writes its port into `DIR/port`.
//!
//! What it received is in `DIR/received`, a line for each call and look-up; what it did is in the
//! database `DIR/shop.db`. Files in the directory are its levers: it looks for them where it acts.

#[path = "../support/over_http.rs"]
mod over_http;

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use mcp_supervisor::receipts::{
    Asked, Authorised, Definition, Denial, Desk, End, LedgerError, LongWork, Principal, Scope,
    SqliteLedger, SqliteSettings,
};
use over_http::over_http;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::tool::{ToolCallContext, ToolRouter},
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, CustomRequest, CustomResult,
        ErrorCode, GetTaskParams, GetTaskResult, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig,
    },
    schemars::JsonSchema,
    service::RequestContext,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Order {
    item: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ordered {
    order: i64,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Count {
    to: u32,
    /// How long each step takes.
    #[serde(default)]
    step_ms: u64,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Counted {
    counted: u32,
}

/// Files that say what the server is to do.
#[derive(Clone)]
struct Levers(Arc<PathBuf>);

impl Levers {
    fn is_set(&self, name: &str) -> bool {
        self.0.join(name).exists()
    }

    /// Whether it was set; it is not any more.
    fn take(&self, name: &str) -> bool {
        std::fs::remove_file(self.0.join(name)).is_ok()
    }

    fn note(&self, line: &str) {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.0.join("received"));
        let line = format!("{line}\n");
        // One write of a short line to a file opened for appending is not torn.
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the notes can be written");
    }
}

/// Who asks: over HTTP by a header that stands for what a layer in front authenticated, over stdio
/// always the same.
#[derive(Clone)]
struct Who(Levers);

impl Principal for Who {
    fn authorise<'a>(
        &'a self,
        context: &'a RequestContext<RoleServer>,
        _: Asked<'a>,
    ) -> Authorised<'a> {
        let parts = context.extensions.get::<http::request::Parts>();
        let header = parts.and_then(|parts| parts.headers.get("x-principal"));
        let name = header
            .and_then(|name| name.to_str().ok())
            .unwrap_or("local");
        let scope = match self.0.is_set(&format!("deny-{name}")) {
            true => Err(Denial::new("the caller has no access")),
            false => Ok(name.parse::<Scope>().expect("the name is a scope")),
        };
        Box::pin(std::future::ready(scope))
    }
}

#[derive(Clone)]
struct Shop {
    desk: Desk,
    router: Arc<ToolRouter<Shop>>,
    levers: Levers,
}

impl Shop {
    async fn open(levers: Levers) -> Result<Self, Box<dyn std::error::Error>> {
        let ledger = SqliteLedger::open(levers.0.join("shop.db"), SqliteSettings::default())?;
        ledger
            .transaction(|tx| {
                let made = tx.execute_batch(
                    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL);
                     CREATE TABLE IF NOT EXISTS counted (work TEXT NOT NULL, number INTEGER NOT NULL);
                     CREATE TABLE IF NOT EXISTS begun (work TEXT NOT NULL);",
                );
                made.map_err(|error| LedgerError::Unavailable(error.to_string().into()))
            })
            .await?;
        let who = Who(levers.clone());
        let kept = std::fs::read_to_string(levers.0.join("kept-ms")).ok();
        let kept = kept.map_or(Duration::from_secs(3600), |ms| {
            Duration::from_millis(ms.trim().parse().expect("a number"))
        });
        let order = Definition::<Order, Ordered>::new("create_order", "Orders one item.")
            .kept_for(kept, Duration::from_secs(3600));
        let order = ledger.tool(&order, who.clone(), |tx, order: Order, _| {
            tx.execute("INSERT INTO orders (item) VALUES (?1)", [&order.item])?;
            Ok(Ordered {
                order: tx.last_insert_rowid(),
            })
        })?;
        let mut desk = Desk::new().tool(order);
        for (name, resumes) in [("count", false), ("count_on", true)] {
            let definition = Definition::<Count, Counted>::new(name, "Counts.");
            let mut work = LongWork::new(definition).begins_with(|tx, _, call| {
                tx.execute(
                    "INSERT INTO begun (work) VALUES (?1)",
                    [call.id().to_string()],
                )?;
                Ok(())
            });
            if resumes {
                work = work.resumes();
            }
            desk = desk.work(work.on(&ledger, who.clone(), count).await?);
        }
        let router = Arc::new(desk.router());
        Ok(Self {
            desk,
            router,
            levers,
        })
    }
}

/// Counts, a checkpoint for each number, and writes the last one with its end.
async fn count(
    work: mcp_supervisor::receipts::Work<Count>,
) -> Result<End<Counted>, mcp_supervisor::receipts::Failure> {
    let Count { to, step_ms } = work.arguments;
    let from = work.checkpoint().and_then(|it| it.as_u64()).unwrap_or(0);
    let from = u32::try_from(from).expect("a number that it wrote itself");
    let id = work.id().to_string();
    for number in from + 1..to {
        let step = tokio::time::sleep(Duration::from_millis(step_ms));
        tokio::select! {
            biased;
            () = work.cancelled() => return Ok(End::Stopped),
            () = step => {}
        }
        let id = id.clone();
        work.commit(json!(number), move |tx| {
            tx.execute(
                "INSERT INTO counted (work, number) VALUES (?1, ?2)",
                (id, number),
            )?;
            Ok(())
        })
        .await?;
        work.progress(
            f64::from(number) / f64::from(to),
            format!("{number} of {to}"),
        )
        .await?;
    }
    if work.cancel_requested() {
        return Ok(End::Stopped);
    }
    Ok(End::done(move |tx| {
        tx.execute(
            "INSERT INTO counted (work, number) VALUES (?1, ?2)",
            (id, to),
        )?;
        Ok(Counted { counted: to })
    }))
}

impl ServerHandler for Shop {
    fn get_info(&self) -> ServerConfig {
        let mut capabilities = ServerCapabilities::builder().enable_tools().build();
        if !self.levers.is_set("no-offer") {
            self.desk.declare(&mut capabilities);
        }
        if self.levers.is_set("no-look-up") {
            for place in [&mut capabilities.extensions, &mut capabilities.experimental] {
                let offer = place.iter_mut().flat_map(|all| all.values_mut());
                offer.for_each(|offer| drop(offer.insert("lookUp".into(), false.into())));
            }
        }
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
        let name = params.name.clone();
        let key = context.meta.get(mcp_supervisor::extension::IDEMPOTENCY_KEY);
        let key = key.and_then(|key| key.as_str()).unwrap_or("-");
        self.levers.note(&format!("call {name} {key}"));
        if self.levers.take("die-before") {
            std::process::exit(1);
        }
        let answer = self
            .router
            .call(ToolCallContext::new(self, params, context))
            .await;
        if self.levers.take("die-late") {
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            std::process::exit(1);
        }
        if self.levers.take("die-after") {
            std::process::exit(1);
        }
        if self.levers.take("stall-after") {
            std::future::pending::<()>().await;
        }
        answer
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        self.levers.note(&format!("request {}", request.method));
        if self.levers.is_set("no-look-up") {
            return Err(ErrorData::new(
                ErrorCode::METHOD_NOT_FOUND,
                request.method,
                None,
            ));
        }
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
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [wire, directory] = &arguments[..] else {
        return Err("desk_server stdio|http DIR".into());
    };
    std::fs::write(
        Path::new(directory).join("pid"),
        std::process::id().to_string(),
    )?;
    let levers = Levers(Arc::new(Path::new(directory).to_owned()));
    let shop = Shop::open(levers).await?;
    if wire == "stdio" {
        shop.serve(rmcp::transport::stdio())
            .await?
            .waiting()
            .await?;
        return Ok(());
    }
    let directory = shop.levers.0.as_ref().clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let written = directory.join("port.new");
    std::fs::write(&written, listener.local_addr()?.port().to_string())?;
    std::fs::rename(written, directory.join("port"))?;
    over_http(shop, listener).await;
    Ok(())
}
