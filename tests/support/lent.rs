//! Client services as a host of rmcp builds them, to be lent to a supervisor.

use mcp_supervisor::Era;
use rmcp::{
    ClientServiceExt as _, RoleClient,
    model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion},
    service::{ClientLifecycleMode, RunningService},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};

use super::Bed;

pub type LentService = RunningService<RoleClient, ClientConfig>;

/// A client service of rmcp's over the fault server as a child process.
pub async fn lent_stdio(bed: &Bed, era: &Era) -> LentService {
    let command = tokio::process::Command::from(bed.command("stdio"));
    let child = TokioChildProcess::new(command).expect("the fault server starts");
    let (config, lifecycle) = client(era);
    let serving = config.serve_with_lifecycle(child, lifecycle).await;
    serving.expect("the fault server speaks the era")
}

/// A client service of rmcp's over its own HTTP client.
///
/// It does not start a session anew on its own: the tests count what the runtime sends, and not
/// what the caller's client adds.
pub async fn lent_http(url: &str, era: &Era) -> LentService {
    // The features of this crate take reqwest's own provider away from every client beside it.
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config =
        StreamableHttpClientTransportConfig::with_uri(url).reinit_on_expired_session(false);
    let transport = StreamableHttpClientTransport::from_config(config);
    let (config, lifecycle) = client(era);
    let serving = config.serve_with_lifecycle(transport, lifecycle).await;
    serving.expect("the fault server speaks the era")
}

fn client(era: &Era) -> (ClientConfig, ClientLifecycleMode) {
    let identity = Implementation::new("the-callers-own", "1.0.0");
    let mut config = ClientConfig::new(ClientCapabilities::default(), identity);
    // What it offers by default is a revision that has no `initialize`.
    config.protocol_version = ProtocolVersion::LATEST_WITH_INITIALIZE;
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    let lifecycle = match era {
        Era::Discover => ClientLifecycleMode::Discover { preferred_versions },
        _ => ClientLifecycleMode::Initialize,
    };
    (config, lifecycle)
}
