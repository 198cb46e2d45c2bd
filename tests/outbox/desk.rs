//! A server made with rmcp that has tools with receipts, in this process, and a client of it.

#[path = "../support/routed.rs"]
mod routed;

use mcp_supervisor::receipts::ReceiptTool;
use rmcp::{
    RoleClient, RoleServer, ServiceExt as _, model::CallToolRequestParams, service::RunningService,
};
use routed::Routed;
use serde_json::{Value, json};

/// A client and the server that it speaks to.
pub(crate) struct Opened {
    pub(crate) client: RunningService<RoleClient, ()>,
    _server: RunningService<RoleServer, Routed>,
}

impl Opened {
    /// Serves this process's client.
    pub(crate) async fn open(tools: &[&ReceiptTool]) -> Self {
        let (here, there) = tokio::io::duplex(64 * 1024);
        let desk = Routed::of(tools);
        let serving = tokio::spawn(async move { desk.serve(there).await });
        let client = ().serve(here).await.expect("the server greets");
        let server = serving.await.expect("no panic").expect("the client greets");
        Self {
            client,
            _server: server,
        }
    }

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
