//! A server made with rmcp that has tools with receipts, in this process, and a client of it.

use mcp_supervisor::receipts::ReceiptTool;
use rmcp::{
    ErrorData, RoleClient, RoleServer, ServerHandler, ServiceExt as _,
    handler::server::{router::tool::ToolRouter, tool::ToolCallContext},
    model::{
        CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig,
    },
    service::{RequestContext, RunningService},
};
use serde_json::{Value, json};

/// The server.
#[derive(Clone)]
pub(crate) struct Desk(ToolRouter<Desk>);

impl Desk {
    pub(crate) fn of(tools: &[&ReceiptTool]) -> Self {
        let routed =
            |router: ToolRouter<Self>, tool: &&ReceiptTool| router.with_route(tool.route());
        Self(tools.iter().fold(ToolRouter::new(), routed))
    }

    /// Serves this process's client.
    pub(crate) async fn open(tools: &[&ReceiptTool]) -> Opened {
        let (here, there) = tokio::io::duplex(64 * 1024);
        let desk = Self::of(tools);
        let serving = tokio::spawn(async move { desk.serve(there).await });
        let client = ().serve(here).await.expect("the server greets");
        let server = serving.await.expect("no panic").expect("the client greets");
        Opened {
            client,
            _server: server,
        }
    }
}

impl ServerHandler for Desk {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.0.list_all()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.0
            .call(ToolCallContext::new(self, request, context))
            .await
    }
}

/// A client and the server that it speaks to.
pub(crate) struct Opened {
    pub(crate) client: RunningService<RoleClient, ()>,
    _server: RunningService<RoleServer, Desk>,
}

impl Opened {
    /// Calls a tool under a key, and gives back the structured content.
    pub(crate) async fn call(&self, tool: &'static str, key: &str, arguments: Value) -> Value {
        let mut arguments = arguments;
        arguments["idempotency_key"] = json!(key);
        let Value::Object(arguments) = arguments else {
            panic!("arguments are an object");
        };
        let params = CallToolRequestParams::new(tool).with_arguments(arguments);
        let result = self
            .client
            .call_tool(params)
            .await
            .expect("the tool answers");
        result.structured_content.expect("structured content")
    }
}
