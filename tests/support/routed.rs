//! A server on rmcp that has tools with receipts and nothing else.

use mcp_supervisor::receipts::ReceiptTool;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    handler::server::tool::{ToolCallContext, ToolRouter},
    model::{
        CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
};

#[derive(Clone)]
pub(crate) struct Routed(ToolRouter<Routed>);

impl Routed {
    pub(crate) fn of(tools: &[&ReceiptTool]) -> Self {
        let routed =
            |router: ToolRouter<Self>, tool: &&ReceiptTool| router.with_route(tool.route());
        Self(tools.iter().fold(ToolRouter::new(), routed))
    }
}

impl ServerHandler for Routed {
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
