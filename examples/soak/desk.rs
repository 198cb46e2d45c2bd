//! A child with receipts: what it does and the receipt for it are one transaction.

use std::{path::Path, sync::Arc};

use mcp_supervisor::receipts::{
    Call, Definition, Desk, Failure, FixedScope, SqliteLedger, SqliteSettings,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::tool::{ToolCallContext, ToolRouter},
    model::{
        CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig,
    },
    schemars::JsonSchema,
    service::RequestContext,
};
use rusqlite::Transaction;
use serde::{Deserialize, Serialize};

use crate::{
    Ending,
    fate::{Fate, Start},
    lines::{LATE, SLOW, begin, die},
    shop::{self, ORDER, Shop},
};

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Order {
    /// What its effect is recognised by.
    mark: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ordered {
    number: i64,
}

fn order(tx: &Transaction<'_>, order: Order, _: &Call) -> Result<Ordered, Failure> {
    let insert = "INSERT INTO log (mark, tool, seen) VALUES (?1, ?2, 2)";
    tx.execute(insert, (&order.mark, ORDER))?;
    Ok(Ordered {
        number: tx.last_insert_rowid(),
    })
}

#[derive(Clone)]
struct Counter {
    desk: Desk,
    router: Arc<ToolRouter<Counter>>,
    shop: Arc<Shop>,
}

pub(crate) async fn child(shop: Shop, run: &Path, name: &str) -> Ending {
    match shop.begins() {
        // rmcp's server has no word to say before the first, and goes when it is told to.
        Start::Noise | Start::Stubborn => {}
        other => begin(other).await?,
    }
    let effects = shop::open(&shop::effects(run, name))?;
    let ledger = SqliteLedger::over(effects, SqliteSettings::default())?;
    let definition = Definition::<Order, Ordered>::new(ORDER, "Orders one thing.");
    let owner = FixedScope("local".parse()?);
    let desk = Desk::new().tool(ledger.tool(&definition, owner, order)?);
    let router = Arc::new(desk.router());
    let counter = Counter {
        desk,
        router,
        shop: Arc::new(shop),
    };
    let serving = counter.serve(rmcp::transport::stdio()).await?;
    serving.waiting().await?;
    Ok(())
}

impl ServerHandler for Counter {
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
        let fate = self.shop.fate();
        match fate {
            Fate::Refuse => return Err(ErrorData::invalid_params("not like this", None)),
            Fate::DieBefore => die(),
            Fate::StallBefore => std::future::pending().await,
            _ => {}
        }
        let context = ToolCallContext::new(self, params, context);
        let answer = self.router.call(context).await;
        match fate {
            Fate::DieAfter | Fate::Half => die(),
            Fate::Exit => std::process::exit(1),
            Fate::StallAfter | Fate::HangUp => std::future::pending().await,
            Fate::Garbage => {
                println!("Segmentation fault (core dumped)");
                std::future::pending().await
            }
            Fate::Slow => tokio::time::sleep(SLOW).await,
            Fate::Late => tokio::time::sleep(LATE).await,
            Fate::Fail => return Err(ErrorData::internal_error("something broke", None)),
            _ => {}
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
}
