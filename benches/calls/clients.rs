//! The two clients that are compared.

use std::{convert::Infallible, sync::Arc, time::Duration};

use mcp_supervisor::{
    ConnectionSpec, Era, HttpSpec, OwnedConnection, StdioSpec, Supervisor, ToolCall, spec::Revision,
};
use rmcp::{
    ClientServiceExt as _, RoleClient,
    model::{CallToolRequest, CallToolRequestParams, ClientConfig, ClientRequest, ProtocolVersion},
    service::{ClientLifecycleMode, RunningService},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Map, Value};

use crate::servers::{self, Answer};

/// Where the server of a client is.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Place {
    /// At the other end of an in-memory pipe, on the same runtime.
    Memory(Answer),
    /// The same with a server made with rmcp.
    MemoryRmcp,
    /// A child process: this program.
    Stdio(Answer),
    /// An address.
    Http(String),
}

pub(crate) type Plain = RunningService<RoleClient, ClientConfig>;

/// A connection of one of the clients, and what its caller does with an answer.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) client: Client,
    /// Whether it looks into it.
    looks: bool,
}

#[derive(Clone)]
pub(crate) enum Client {
    Rmcp(Arc<Plain>),
    Ours(Arc<OwnedConnection>),
}

/// The arguments of every call.
pub(crate) fn arguments() -> Map<String, Value> {
    let mut arguments = Map::new();
    arguments.insert("customer".into(), "c-42".into());
    arguments.insert("cents".into(), 1999.into());
    arguments
}

impl Caller {
    fn new(client: Client) -> Self {
        Self {
            client,
            looks: true,
        }
    }

    /// One who leaves what it is answered as it came.
    pub(crate) fn who_does_not_look(mut self) -> Self {
        self.looks = false;
        self
    }

    /// One call, until its answer.
    pub(crate) async fn call(&self) {
        match &self.client {
            Client::Rmcp(service) => {
                let params = CallToolRequestParams::new("charge").with_arguments(arguments());
                let answer = service.peer().call_tool(params).await.expect("an answer");
                assert!(!self.looks || !answer.content.is_empty());
            }
            Client::Ours(connection) => {
                let call = ToolCall::new("charge", Value::Object(arguments()));
                let answer = connection.call_tool(call).await.expect("an answer");
                assert!(!self.looks || !answer.content().is_empty());
            }
        }
    }
}

impl Caller {
    /// The same as a request, of which rmcp does not know what it means.
    pub(crate) async fn request(&self) {
        match &self.client {
            Client::Rmcp(service) => {
                let params = CallToolRequestParams::new("charge").with_arguments(arguments());
                let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
                service
                    .peer()
                    .send_request(request)
                    .await
                    .expect("an answer");
            }
            Client::Ours(_) => self.call().await,
        }
    }
}

pub(crate) async fn rmcp(place: &Place) -> Caller {
    let config =
        ClientConfig::default().with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
    let mode = ClientLifecycleMode::Initialize;
    let service = match place {
        Place::Memory(answer) => {
            let pipe = tokio::io::split(servers::in_memory(*answer));
            config.serve_with_lifecycle(pipe, mode).await
        }
        Place::MemoryRmcp => {
            let pipe = tokio::io::split(servers::rmcp::in_memory());
            config.serve_with_lifecycle(pipe, mode).await
        }
        Place::Stdio(answer) => {
            let mut command = tokio::process::Command::new(servers::this_program());
            command.arg(servers::SERVE).arg(answer.word());
            let child = TokioChildProcess::new(command).expect("this program starts");
            config.serve_with_lifecycle(child, mode).await
        }
        Place::Http(address) => {
            #[cfg(feature = "tls")]
            let _ = rustls::crypto::ring::default_provider().install_default();
            // As many at a time as ours has by default, not the 16 of rmcp.
            let settings =
                StreamableHttpClientTransportConfig::with_uri(format!("http://{address}/mcp"))
                    .max_concurrent_requests(256);
            // rmcp's own client would open a TCP connection for each request.
            let transport =
                StreamableHttpClientTransport::with_client(reqwest::Client::new(), settings);
            config.serve_with_lifecycle(transport, mode).await
        }
    };
    Caller::new(Client::Rmcp(Arc::new(service.expect("the server greets"))))
}

/// What ours is told of a place.
pub(crate) fn spec(place: &Place) -> ConnectionSpec {
    let spec = match place.clone() {
        Place::Memory(answer) => ConnectionSpec::byte_stream(move || async move {
            Ok::<_, Infallible>(tokio::io::split(servers::in_memory(answer)))
        }),
        Place::MemoryRmcp => ConnectionSpec::byte_stream(move || async move {
            Ok::<_, Infallible>(tokio::io::split(servers::rmcp::in_memory()))
        }),
        Place::Stdio(answer) => StdioSpec::new(servers::this_program())
            .arg(servers::SERVE)
            .arg(answer.word())
            .into(),
        Place::Http(address) => HttpSpec::new(format!("http://{address}/mcp")).into(),
    };
    spec.era(Era::Initialize(Revision::V2025_11_25))
}

pub(crate) async fn supervisor() -> Supervisor {
    Supervisor::builder().start().await.expect("a supervisor")
}

pub(crate) async fn ours(supervisor: &Supervisor, name: &str, place: &Place) -> Caller {
    let connection = supervisor.open(name, spec(place)).await;
    Caller::new(Client::Ours(Arc::new(connection.expect("a connection"))))
}

/// Ends what a measurement has opened, within two seconds.
pub(crate) async fn end(supervisor: Supervisor) {
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
}
