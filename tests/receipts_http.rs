//! Receipts over streamable HTTP: whose key it is comes from each request's own head.

#[path = "support/over_http.rs"]
mod over_http;
#[path = "support/routed.rs"]
mod routed;
mod support;

use std::net::SocketAddr;

use mcp_supervisor::receipts::{
    Definition, Denial, OverHttp, Scope, SqliteLedger, SqliteSettings, bearer,
};
use over_http::over_http;
use rmcp::{
    RoleClient, ServiceExt as _,
    model::CallToolRequestParams,
    schemars::JsonSchema,
    service::RunningService,
    transport::{
        StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use routed::Routed;
use rusqlite::Transaction;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use support::bounded;
use tempfile::TempDir;

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Order {
    item: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Ordered {
    order: i64,
}

/// Who has which token: what a real server asks its issuer.
fn subject(token: &str) -> Option<Scope> {
    let (name, secret) = token.split_once('.')?;
    (secret == "valid").then(|| name.parse().ok())?
}

/// Serves a shop whose callers are told apart by their bearer tokens.
async fn serve() -> (TempDir, SocketAddr) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("shop.db");
    let ledger = SqliteLedger::open(file, SqliteSettings::default()).expect("a ledger");
    ledger
        .transaction(|tx| {
            let made = tx.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)");
            made.expect("a table");
            Ok(())
        })
        .await
        .expect("a commit");
    let who = OverHttp(|head: &http::request::Parts| {
        let subject = bearer(head).and_then(subject);
        subject.ok_or_else(|| Denial::new("the bearer token is missing or not valid"))
    });
    let definition = Definition::<Order, Ordered>::new("create_order", "Orders one item.");
    let place = |tx: &Transaction<'_>, order: Order, _: &_| {
        tx.execute("INSERT INTO orders (item) VALUES (?1)", [&order.item])?;
        let order = tx.last_insert_rowid();
        Ok(Ordered { order })
    };
    let tool = ledger.tool(&definition, who, place).expect("a tool");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(over_http(Routed::of(&[&tool]), listener));
    (directory, address)
}

async fn client(server: SocketAddr, token: Option<&str>) -> RunningService<RoleClient, ()> {
    // Only the first one is taken, and it is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = StreamableHttpClientTransportConfig::with_uri(format!("http://{server}/mcp"));
    if let Some(token) = token {
        config = config.auth_header(token);
    }
    let transport = StreamableHttpClientTransport::from_config(config);
    ().serve(transport).await.expect("a session")
}

async fn order(client: &RunningService<RoleClient, ()>, item: &str) -> Value {
    let arguments = json!({ "idempotency_key": "k", "item": item });
    let arguments: Map<String, Value> = serde_json::from_value(arguments).expect("a map");
    let call = CallToolRequestParams::new("create_order").with_arguments(arguments);
    let result = client.peer().call_tool(call).await.expect("an answer");
    result.structured_content.expect("structured content")
}

#[tokio::test(flavor = "multi_thread")]
async fn another_bearers_same_key_is_another_key() {
    bounded(async {
        let (_directory, server) = serve().await;
        let alice = client(server, Some("alice.valid")).await;
        let bob = client(server, Some("bob.valid")).await;
        let hers = order(&alice, "lamp").await;
        let his = order(&bob, "chair").await;
        assert_eq!(hers["status"], "completed");
        assert_eq!(his["status"], "completed", "{his}");
        assert_ne!(hers["operation_id"], his["operation_id"]);
        assert_eq!(order(&alice, "lamp").await["replayed"], true);

        // Another session of hers is hers.
        let again = order(&client(server, Some("alice.valid")).await, "lamp").await;
        assert_eq!(again["operation_id"], hers["operation_id"]);
        assert_eq!(again["replayed"], true);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_valid_token_nothing_runs_and_nothing_is_told() {
    bounded(async {
        let (_directory, server) = serve().await;
        let alice = order(&client(server, Some("alice.valid")).await, "lamp").await;
        assert_eq!(alice["status"], "completed");
        for token in [None, Some("alice.expired")] {
            let told = order(&client(server, token).await, "lamp").await;
            assert_eq!(told["status"], "denied", "{told}");
            assert!(told.get("operation_id").is_none());
        }
    })
    .await;
}

#[test]
fn a_bearer_is_the_one_token_of_its_scheme() {
    let head = |said: &[&str]| {
        let mut request = http::Request::builder();
        for header in said {
            request = request.header("authorization", *header);
        }
        request.body(()).expect("a request").into_parts().0
    };
    assert_eq!(bearer(&head(&["Bearer abc"])), Some("abc"));
    assert_eq!(bearer(&head(&["bearer abc"])), Some("abc"));
    for none in [
        &[][..],
        &["Basic abc"],
        &["Bearer"],
        &["Bearer "],
        &["Bearer abc", "Bearer def"],
    ] {
        assert_eq!(bearer(&head(none)), None, "{none:?}");
    }
}
