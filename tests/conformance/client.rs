//! A client made with this crate for the conformance suite.
//!
//! ```text
//! conformance_client SERVER_URL
//! ```
//!
//! It does what a host does: it opens a connection, lists the tools and calls them. Where a call is
//! not answered it goes on with the next one, and once more with the whole, as an agent might.

mod shared;

use std::time::Duration;

use mcp_supervisor::{
    ConnectionSpec, Era, HttpSpec, Limits, OwnedConnection, Page, Supervisor, ToolCall,
    auth::{Answer, OAuth},
    credentials::CredentialsError,
    spec::Revision,
};
use serde_json::Value;
use shared::{Ending, Person, Scenario, consent};

/// How often the whole is tried: the first time may end with the server's wish for credentials, and
/// the second with its wish for more of them.
const TRIES: usize = 3;

#[tokio::main]
async fn main() -> Ending {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .init();
    }
    let scenario = Scenario::of_the_suite()?;
    let mut http = HttpSpec::new(scenario.url.as_str());
    if scenario.name.starts_with("auth/") {
        http = http.credentials(login(&scenario)?).resend_after_401(true);
    }
    let era = match &scenario.revision {
        Some(_) if scenario.discovers() => Era::Discover,
        // This mock of the suite's 0.1 line answers any offer with this revision, which a client that
        // was pinned to another one refuses.
        None if scenario.name == "sse-retry" => Era::Initialize(Revision::V2025_03_26),
        _ => Era::Initialize(Revision::V2025_11_25),
    };
    let spec = ConnectionSpec::from(http)
        .era(era)
        .handler(Person)
        .limits(Limits {
            total: Duration::from_secs(8),
            ..Limits::default()
        });
    let supervisor = Supervisor::builder().start().await?;
    let server = supervisor.open("server", spec).await?;
    let mut ended = Ok(());
    for _ in 0..TRIES {
        ended = work(&scenario, &server).await;
        match &ended {
            Ok(()) => break,
            Err(error) => eprintln!("{error}"),
        }
    }
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    ended
}

/// Lists and calls.
async fn work(scenario: &Scenario, server: &OwnedConnection) -> Ending {
    let tools = server.list_tools(Page::first()).await?.tools;
    let mut ended = Ok(());
    for (name, arguments) in scenario.calls(&tools) {
        let call = ToolCall::new(name, Value::Object(arguments));
        if let Err(error) = server.call_tool(call).await {
            ended = Err(error.into());
        }
    }
    ended
}

fn login(scenario: &Scenario) -> Ending<OAuth> {
    let mut oauth = OAuth::for_server(scenario.url.as_str())
        .client_metadata_url("https://conformance-test.local/client-metadata.json")
        .redirect_uri("http://localhost:3000/callback")
        .on_authorization(|page: String| async move {
            let back = consent(&page)
                .await
                .map_err(|error| CredentialsError::NotGiven(error.to_string()))?;
            Answer::from_redirect(&back)
        });
    if let Some(id) = scenario.context("client_id") {
        oauth = oauth.client_id(id);
    }
    if let Some(secret) = scenario.context("client_secret") {
        oauth = oauth.client_secret(secret);
    }
    if scenario.name == "auth/client-credentials-basic" {
        oauth = oauth.client_credentials();
    }
    Ok(oauth.build()?)
}
