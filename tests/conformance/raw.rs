//! A client of plain rmcp for the conformance suite, to compare with.
//!
//! ```text
//! conformance_raw SERVER_URL
//! ```

mod shared;

use std::error::Error;

use rmcp::{
    ClientLifecycleMode, ClientServiceExt as _, RoleClient, ServiceError,
    model::{CallToolRequestParams, ProtocolVersion},
    service::ClientInitializeError,
    transport::{
        AuthClient, AuthorizationManager, AuthorizationRequest, IntoTransport as _,
        StreamableHttpClientTransport, Transport,
        auth::OAuthState,
        streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError},
    },
};
use shared::{Ending, Person, Scenario, consent};

/// How often it logs in: with each refusal for what the server asked for.
const LOGINS: usize = 3;

#[tokio::main]
async fn main() -> Ending {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let scenario = Scenario::of_the_suite()?;
    let config = || StreamableHttpClientTransportConfig::with_uri(scenario.url.as_str());
    let transport = StreamableHttpClientTransport::from_config(config());
    let mut ended = run(&scenario, transport.into_transport()).await;
    let mut scopes = Vec::new();
    for _ in 0..LOGINS {
        let Some(challenge) = ended.as_ref().err().and_then(|error| wish(&**error)) else {
            break;
        };
        let login = log_in(&scenario, &challenge, &mut scopes).await?;
        let client = AuthClient::new(reqwest::Client::default(), login);
        let transport = StreamableHttpClientTransport::with_client(client, config());
        ended = run(&scenario, transport.into_transport()).await;
    }
    ended
}

/// A login in the browser, without one: the mock authorisation server consents at once. It asks for
/// what the MCP server's `challenge` names, beside the `scopes` of the logins before.
async fn log_in(
    scenario: &Scenario,
    challenge: &str,
    scopes: &mut Vec<String>,
) -> Ending<AuthorizationManager> {
    let named = challenge
        .split("scope=\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    for scope in named.unwrap_or_default().split_whitespace() {
        if !scopes.iter().any(|there| there == scope) {
            scopes.push(scope.to_owned());
        }
    }
    let mut login = OAuthState::new(scenario.url.as_str(), None).await?;
    let mut request = AuthorizationRequest::new("http://localhost:3000/callback")
        .with_client_metadata_url("https://conformance-test.local/client-metadata.json")
        .with_initial_scope_selection()
        .with_scopes(scopes.iter())
        .with_challenge(challenge);
    if let Some(id) = scenario.context("client_id") {
        request = request.with_preregistered_client(id);
    }
    if let Some(secret) = scenario.context("client_secret") {
        request = request.with_client_secret(secret);
    }
    login.start_authorization(request).await?;
    let page = login.get_authorization_url().await?;
    login.handle_callback_url(&consent(&page).await?).await?;
    let manager = login.into_authorization_manager();
    Ok(manager.ok_or("not authorised after the callback")?)
}

/// The challenge that a server sent with its refusal.
fn wish(error: &(dyn Error + 'static)) -> Option<String> {
    let transport = match error.downcast_ref() {
        Some(ServiceError::TransportSend(error)) => error,
        _ => match error.downcast_ref()? {
            ClientInitializeError::TransportError { error, .. } => error,
            _ => return None,
        },
    };
    match transport.error.downcast_ref()? {
        StreamableHttpError::<reqwest::Error>::AuthRequired(e) => {
            Some(e.www_authenticate_header.clone())
        }
        StreamableHttpError::InsufficientScope(e) => Some(e.www_authenticate_header.clone()),
        _ => None,
    }
}

/// Lists and calls.
async fn run(scenario: &Scenario, transport: impl Transport<RoleClient> + 'static) -> Ending {
    let lifecycle = if scenario.discovers() {
        ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        }
    } else {
        ClientLifecycleMode::Initialize
    };
    let client = Person.serve_with_lifecycle(transport, lifecycle).await?;
    let tools = client.list_all_tools().await?;
    let mut ended = Ok(());
    for (name, arguments) in scenario.calls(&tools) {
        let call = CallToolRequestParams::new(name).with_arguments(arguments);
        if let Err(error) = client.call_tool(call).await {
            ended = Err(error.into());
        }
    }
    client.cancel().await?;
    ended
}
