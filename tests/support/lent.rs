//! Client services as a host of rmcp builds them, to be lent to a supervisor.

use mcp_supervisor::Era;
use rmcp::{
    ClientServiceExt as _, RoleClient,
    model::ProtocolVersion,
    service::{ClientLifecycleMode, RunningService},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};

use super::Bed;

/// A client service of rmcp's over the fault server as a child process.
pub async fn lent_stdio(bed: &Bed, era: &Era) -> RunningService<RoleClient, ()> {
    let command = tokio::process::Command::from(bed.command("stdio"));
    let child = TokioChildProcess::new(command).expect("the fault server starts");
    ().serve_with_lifecycle(child, lifecycle(era))
        .await
        .expect("the fault server speaks the era")
}

/// A client service of rmcp's over its own HTTP client.
///
/// It does not start a session anew on its own: the tests count what the runtime sends, and not
/// what the caller's client adds.
pub async fn lent_http(url: &str, era: &Era) -> RunningService<RoleClient, ()> {
    let config =
        StreamableHttpClientTransportConfig::with_uri(url).reinit_on_expired_session(false);
    let transport = StreamableHttpClientTransport::from_config(config);
    ().serve_with_lifecycle(transport, lifecycle(era))
        .await
        .expect("the fault server speaks the era")
}

fn lifecycle(era: &Era) -> ClientLifecycleMode {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    match era {
        Era::Discover => ClientLifecycleMode::Discover { preferred_versions },
        _ => ClientLifecycleMode::Initialize,
    }
}
