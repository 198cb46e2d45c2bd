//! The two clients that are compared: rmcp's with its defaults, and ours.

use std::time::Duration;

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, OwnedConnection, Supervisor, ToolAnswer, ToolCall,
};
use rmcp::{
    ClientServiceExt as _, RoleClient,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation, ProtocolVersion,
    },
    service::{ClientLifecycleMode, RunningService, ServiceError},
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::json;

/// rmcp's client over its own HTTP transport, as it comes.
pub(crate) struct DefaultClient(RunningService<RoleClient, ClientConfig>);

impl DefaultClient {
    pub(crate) async fn open(url: &str, era: &Era) -> Self {
        provide_cryptography();
        Self::serve(StreamableHttpClientTransport::from_uri(url), era).await
    }

    /// Over reqwest's default client, which is told to speak HTTP/2.
    pub(crate) async fn over_http2(url: &str, era: &Era) -> Self {
        provide_cryptography();
        let http = reqwest::Client::builder()
            .http2_prior_knowledge()
            .build()
            .unwrap();
        let config = StreamableHttpClientTransportConfig::with_uri(url);
        Self::serve(
            StreamableHttpClientTransport::with_client(http, config),
            era,
        )
        .await
    }

    async fn serve(transport: StreamableHttpClientTransport<reqwest::Client>, era: &Era) -> Self {
        let identity = Implementation::new("default", "0");
        let mut config = ClientConfig::new(ClientCapabilities::default(), identity);
        config.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
        let lifecycle = match era {
            Era::Discover => ClientLifecycleMode::Discover {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            },
            _ => ClientLifecycleMode::Initialize,
        };
        Self(
            config
                .serve_with_lifecycle(transport, lifecycle)
                .await
                .expect("it starts"),
        )
    }

    /// Calls a tool, and gives up waiting after a while.
    pub(crate) async fn call(&self, tool: &'static str) -> Option<Result<(), ServiceError>> {
        let calling = self.0.peer().call_tool(CallToolRequestParams::new(tool));
        let called = tokio::time::timeout(Duration::from_secs(10), calling).await;
        called.ok().map(|answer| answer.map(drop))
    }

    pub(crate) async fn close(self) {
        let _ = self.0.cancel().await;
    }
}

/// What reqwest needs in this build, also where nothing is encrypted.
fn provide_cryptography() {
    // An error means that another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// One connection of ours under a supervisor of its own.
pub(crate) struct Ours {
    pub(crate) supervisor: Supervisor,
    pub(crate) connection: OwnedConnection,
}

impl Ours {
    pub(crate) async fn open(spec: impl Into<ConnectionSpec>) -> Self {
        let supervisor = Supervisor::builder().start().await.unwrap();
        let connection = supervisor.open("server", spec).await.unwrap();
        Self {
            supervisor,
            connection,
        }
    }

    pub(crate) async fn call(&self, tool: &str) -> Result<ToolAnswer, CallError> {
        self.connection
            .call_tool(ToolCall::new(tool, json!({})))
            .await
    }

    /// Calls a tool that is answered, and says on which generation.
    pub(crate) async fn generation_of(&self, tool: &str) -> u64 {
        self.call(tool).await.unwrap().generation().number()
    }

    pub(crate) async fn close(self) {
        let _ = self.supervisor.shutdown(Duration::from_secs(2)).await;
    }
}
