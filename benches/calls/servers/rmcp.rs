//! A whole server, made with rmcp.

use rmcp::{
    ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ServerCapabilities,
        ServerConfig,
    },
    service::{RequestContext, RoleServer},
};
use tokio::io::DuplexStream;

use super::PIPE;

/// The client's end of an in-memory pipe to such a server.
pub(crate) fn in_memory() -> DuplexStream {
    let (client, server) = tokio::io::duplex(PIPE);
    tokio::spawn(async move {
        let service = Charging
            .serve(tokio::io::split(server))
            .await
            .expect("the client greets");
        let _ = service.waiting().await;
    });
    client
}

struct Charging;

impl ServerHandler for Charging {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, rmcp::ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("charged")]).into())
    }
}
