//! Credentials that a configuration file describes.

use mcp_supervisor::{Configuration, Supervisor, ToolCall, supervisor::ServerChange};
use serde_json::{Value, json};

use super::{Authority, authorise, bounded};

fn read(server: &Value) -> Configuration {
    let file = json!({ "mcpServers": { "billing": server } }).to_string();
    Configuration::reader().parse("mcp.json", file).unwrap()
}

#[tokio::test]
async fn a_file_describes_where_its_servers_tokens_come_from() {
    bounded(async {
        let authority = Authority::start().await;
        let dir = tempfile::tempdir().unwrap();
        let described = |scope: &str| {
            read(&json!({ "url": authority.url(), "mcp-supervisor": {
                "era": "2025-11-25",
                "credentials": { "resendAfter401": true },
                "oauth": {
                    "credentialsFile": dir.path().join("billing.json"),
                    "redirectUri": "http://127.0.0.1:1/callback",
                    "scopes": [scope],
                },
            }}))
        };
        let supervisor = Supervisor::builder().start().await.unwrap();
        let first = described("mcp:basic");
        let _ = supervisor.apply(&first).await;
        let billing = supervisor.connection("billing").unwrap();
        let call = || ToolCall::new("echo", json!({}));
        assert!(
            billing
                .call_tool(call())
                .await
                .unwrap_err()
                .challenge()
                .is_some()
        );

        // The file is read again, and says the same: the connection that is there is told by the
        // credentials that are kept.
        let again = described("mcp:basic");
        let report = supervisor.apply(&again).await;
        assert_eq!(report.changes["billing"], ServerChange::Unchanged);
        authorise(again.servers["billing"].as_ref().unwrap().oauth().unwrap()).await;
        billing.call_tool(call()).await.unwrap();
        authority.revoke_access_tokens();
        let answer = billing.call_tool(call()).await.unwrap();
        assert_eq!(answer.attempts(), 2, "the setting of the file holds");

        let report = supervisor.apply(&described("mcp:other")).await;
        assert_eq!(report.changes["billing"], ServerChange::Restarted);
    })
    .await;
}

#[test]
fn what_is_wrong_with_a_files_credentials_is_named_with_its_field() {
    let error = |own: Value| {
        let server = json!({ "url": "http://h.example/mcp", "mcp-supervisor": own });
        let configuration = read(&server);
        configuration.servers["billing"]
            .as_ref()
            .unwrap_err()
            .to_string()
    };
    let nowhere = error(json!({ "oauth": {} }));
    assert!(
        nowhere.contains("/mcp-supervisor/oauth/credentialsFile"),
        "{nowhere}"
    );
    let half = error(json!({ "oauth": { "clientCredentials": true } }));
    assert!(half.contains("/mcp-supervisor/oauth"), "{half}");
    let idle = error(json!({ "credentials": { "resendAfter401": true } }));
    assert!(idle.contains("/mcp-supervisor/credentials"), "{idle}");
    let two = json!({ "credentials": { "owner": "host" }, "oauth": { "credentialsFile": "c" } });
    let two = error(two);
    assert!(two.contains("/mcp-supervisor/credentials"), "{two}");
    let secret = "a-secret-in-a-file";
    let both = error(json!({ "bearerToken": secret, "oauth": { "credentialsFile": "c" } }));
    assert!(
        both.contains("bearerToken") && !both.contains(secret),
        "{both}"
    );
}
