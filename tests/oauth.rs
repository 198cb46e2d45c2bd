//! Authorisation, against a small authorisation server of the tests' own and an MCP server that
//! checks its tokens and counts what it reads. Real sockets, both eras.
#![allow(clippy::unwrap_used, reason = "also the helpers of a test may fail it")]

#[path = "oauth/authority.rs"]
mod authority;
#[path = "oauth/configured.rs"]
mod configured;
#[path = "oauth/people.rs"]
mod people;
#[path = "oauth/resend.rs"]
mod resend;
#[path = "oauth/secrets.rs"]
mod secrets;
mod support;
#[path = "oauth/waits.rs"]
mod waits;

use std::{sync::Arc, time::Duration};

use authority::{Authority, consent};
use mcp_supervisor::{
    CallError, ConnectionSpec, Era, HttpSpec, OwnedConnection, Supervisor, ToolAnswer, ToolCall,
    auth::{FileStore, OAuth},
    credentials::{AccessToken, BoxFuture, CredentialsError, Refusal, TokenSource},
    error::NotSentReason,
};
use serde_json::json;
use support::{bounded, initialize, until};

fn both() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// One connection to the authority's MCP server.
struct Ours {
    supervisor: Supervisor,
    connection: OwnedConnection,
}

impl Ours {
    async fn open(spec: impl Into<ConnectionSpec>) -> Self {
        let supervisor = Supervisor::builder().start().await.unwrap();
        let connection = supervisor.open("server", spec).await.unwrap();
        Self {
            supervisor,
            connection,
        }
    }

    /// With tokens from this source, in this era.
    async fn with(authority: &Authority, source: &OAuth, era: &Era) -> Self {
        let spec = HttpSpec::new(authority.url()).credentials(source.clone());
        Self::open(ConnectionSpec::from(spec).era(era.clone())).await
    }

    async fn call(&self, tool: &str) -> Result<ToolAnswer, CallError> {
        let call = ToolCall::new(tool, json!({})).deadline(Duration::from_secs(30));
        self.connection.call_tool(call).await
    }

    async fn close(self) {
        let _ = self.supervisor.shutdown(Duration::from_secs(2)).await;
    }
}

/// A person authorises the client.
async fn authorise(source: &OAuth) {
    let authorization = source.begin_authorization().await.unwrap();
    let answer = consent(authorization.url().to_owned()).await.unwrap();
    authorization.complete(&answer).await.unwrap();
}

/// Why nothing was sent.
fn not_sent(result: Result<ToolAnswer, CallError>) -> NotSentReason {
    match result {
        Err(CallError::NotSent(e)) => e.reason.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_401_is_a_rejection_with_its_challenge_and_nothing_is_resent() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            authorise(&source).await;
            let ours = Ours::with(&authority, &source, &era).await;
            ours.call("echo").await.unwrap();
            authority.revoke_access_tokens();

            let error = ours.call("echo").await.unwrap_err();
            let CallError::Rejected(rejected) = &error else {
                panic!("{error}")
            };
            assert_eq!((rejected.status, rejected.about.attempts), (Some(401), 1));
            let challenge = error.challenge().unwrap();
            assert_eq!(challenge.error.as_deref(), Some("invalid_token"));
            assert_eq!(challenge.scope.as_deref(), Some("mcp:basic"));
            assert_eq!(authority.book().refreshes, 0, "nobody needs a token now");

            let answer = ours.call("echo").await.unwrap();
            assert_eq!(answer.generation().number(), 1, "the session was kept");
            assert_eq!(authority.statuses("tools/call"), [200, 401, 200]);
            assert_eq!(authority.book().refreshes, 1);
            ours.close().await;
            assert_eq!(authority.statuses("tools/call").len(), 3);
            if era != Era::Discover {
                let book = authority.book();
                let end = book.requests.iter().find(|r| r.verb == "DELETE").unwrap();
                assert_eq!(
                    end.status, 200,
                    "the end of the session has its token: {end:?}"
                );
            }
        })
        .await;
    }
}

#[tokio::test]
async fn one_refresh_serves_fifty_waiting_calls_and_one_that_leaves_breaks_nothing() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            authorise(&source).await;
            let ours = Arc::new(Ours::with(&authority, &source, &era).await);
            ours.call("echo").await.unwrap();
            authority.revoke_access_tokens();
            assert!(ours.call("echo").await.is_err());

            authority.book().token_delay = Duration::from_millis(500);
            let first = Arc::clone(&ours);
            let first = tokio::spawn(async move { first.call("left").await });
            let calls: Vec<_> = (0..50)
                .map(|_| {
                    let ours = Arc::clone(&ours);
                    tokio::spawn(async move { ours.call("echo").await })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(100)).await;
            first.abort();
            for call in calls {
                call.await.unwrap().unwrap();
            }
            assert_eq!(authority.book().refreshes, 1);
            let refused = authority.statuses("tools/call");
            assert_eq!(refused.iter().filter(|s| **s == 401).count(), 1);
            assert_eq!(refused.len(), 52);
            let left = authority.book().requests.iter().any(|r| r.tool == "left");
            assert!(!left, "the one that left was not sent");
        })
        .await;
    }
}

#[tokio::test]
async fn a_token_is_renewed_before_it_expires_and_nobody_is_refused() {
    bounded(async {
        let authority = Authority::start().await;
        authority.book().lifetime = Duration::from_secs(6);
        let source = authority.oauth().build().unwrap();
        authorise(&source).await;
        let ours = Ours::with(&authority, &source, &initialize()).await;
        while authority.book().refreshes < 2 {
            ours.call("echo").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(authority.statuses("tools/call").iter().all(|s| *s == 200));
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn credentials_that_another_process_refreshed_are_adopted() {
    bounded(async {
        let authority = Authority::start().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kept/credentials.json");
        // Each has a file store of its own, as two processes have; the lock is the system's.
        let source = || {
            let store = FileStore::new(&file);
            authority.oauth().store(store).build().unwrap()
        };
        let (one, other) = (source(), source());
        authorise(&one).await;
        let a = Arc::new(Ours::with(&authority, &one, &initialize()).await);
        let b = Arc::new(Ours::with(&authority, &other, &Era::Discover).await);
        a.call("echo").await.unwrap();
        b.call("echo").await.unwrap();
        assert_eq!(
            authority.book().authorizations,
            1,
            "the other read the file"
        );

        authority.revoke_access_tokens();
        assert!(a.call("echo").await.is_err());
        a.call("echo").await.unwrap();
        assert!(b.call("echo").await.is_err());
        b.call("echo").await.unwrap();
        assert_eq!(
            authority.book().refreshes,
            1,
            "the other adopted the first one's"
        );

        // Both at once: a refresh token works once, so one of them has to wait for the other.
        authority.revoke_access_tokens();
        authority.book().token_delay = Duration::from_millis(300);
        assert!(a.call("echo").await.is_err());
        assert!(b.call("echo").await.is_err());
        let (from_a, from_b) = tokio::join!(a.call("echo"), b.call("echo"));
        from_a.unwrap();
        from_b.unwrap();
        assert_eq!(authority.book().refreshes, 2);

        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let beside = std::fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 2, "the file and its lock, and nothing half written");
    })
    .await;
}

#[tokio::test]
async fn a_client_with_a_secret_of_its_own_needs_nobody() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.with_secret().build().unwrap();
            let ours = Ours::with(&authority, &source, &era).await;
            ours.call("echo").await.unwrap();
            authority.revoke_access_tokens();
            assert!(ours.call("echo").await.is_err());
            ours.call("echo").await.unwrap();
            assert_eq!(authority.book().authorizations, 0);
            ours.close().await;
        })
        .await;
    }
}

/// A host's own way to a token.
struct Vault;

impl TokenSource for Vault {
    fn token(&self) -> BoxFuture<'_, Result<Option<AccessToken>, CredentialsError>> {
        Box::pin(async { Err(CredentialsError::Source("the vault is sealed".into())) })
    }
    fn refused(&self, _: &Refusal) {}
}

#[tokio::test]
async fn a_hosts_own_source_is_asked_before_anything_is_sent() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let spec = HttpSpec::new(authority.url()).credentials(Vault);
            let ours = Ours::open(ConnectionSpec::from(spec).era(era)).await;
            let reason = not_sent(ours.call("echo").await);
            assert!(
                reason.to_string().contains("the vault is sealed"),
                "{reason}"
            );
            ours.close().await;
            assert!(authority.book().requests.is_empty());
        })
        .await;
    }
}

#[test]
fn credentials_beside_another_authorization_are_refused_at_once() {
    let error = |spec: HttpSpec| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let supervisor = Supervisor::builder().start().await.unwrap();
            supervisor
                .open("server", spec)
                .await
                .unwrap_err()
                .to_string()
        })
    };
    let url = "http://127.0.0.1:1/mcp";
    let spec = || HttpSpec::new(url).credentials(Vault);
    assert!(error(spec().bearer("b")).contains("bearer token"));
    assert!(error(spec().header("authorization", "x")).contains("header"));
    assert!(error(HttpSpec::new(url).resend_after_401(true)).contains("resend_after_401"));
    assert!(OAuth::for_server("no url").build().is_err());
    let secret_alone = OAuth::for_server(url).client_secret("s");
    assert!(secret_alone.build().is_err());
    assert!(OAuth::for_server(url).client_credentials().build().is_err());
}
