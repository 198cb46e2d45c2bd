//! A client of plain rmcp for the conformance suite, to compare with.
//!
//! ```text
//! conformance_raw SERVER_URL
//! ```

mod shared;

use rmcp::{
    ClientLifecycleMode, ClientServiceExt as _, RoleClient,
    model::{CallToolRequestParams, ProtocolVersion},
    transport::{
        AuthClient, IntoTransport as _, StreamableHttpClientTransport, Transport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use shared::{Ending, Person, Scenario};

#[tokio::main]
async fn main() -> Ending {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let scenario = Scenario::of_the_suite()?;
    let config = || StreamableHttpClientTransportConfig::with_uri(scenario.url.as_str());
    if scenario.needs_login() {
        // As often as the tutorial of such a client would: once more with what was asked for.
        for _ in 0..2 {
            let client = AuthClient::new(reqwest::Client::default(), scenario.log_in(None).await?);
            let transport = StreamableHttpClientTransport::with_client(client, config());
            if run(&scenario, transport.into_transport()).await? {
                break;
            }
        }
        return Ok(());
    }
    let transport = StreamableHttpClientTransport::from_config(config());
    run(&scenario, transport.into_transport()).await?;
    Ok(())
}

/// Lists and calls; whether every call was answered.
async fn run(scenario: &Scenario, transport: impl Transport<RoleClient> + 'static) -> Ending<bool> {
    let lifecycle = if scenario.discovers() {
        ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        }
    } else {
        ClientLifecycleMode::Initialize
    };
    let client = Person.serve_with_lifecycle(transport, lifecycle).await?;
    let tools = client.list_all_tools().await?;
    let mut all = true;
    for (name, arguments) in scenario.calls(&tools) {
        let call = CallToolRequestParams::new(name).with_arguments(arguments);
        if let Err(error) = client.call_tool(call).await {
            eprintln!("{error}");
            all = false;
        }
    }
    client.cancel().await?;
    Ok(all)
}
