//! What is sent twice: by rmcp's client always, by ours where its setting says so, and once.

use std::{sync::Arc, time::Duration};

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, HttpSpec, Limits, Received, What, auth::OAuth,
};
use rmcp::{
    ClientServiceExt as _,
    model::{CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation},
    service::ClientLifecycleMode,
    transport::{
        StreamableHttpClientTransport,
        auth::{AuthClient, AuthorizationManager, AuthorizationRequest, AuthorizationSession},
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};

use super::{Authority, Ours, authorise, authority::redirected_from, both, bounded, consent};

async fn resending(authority: &Authority, source: &OAuth, era: &Era) -> Ours {
    let spec = HttpSpec::new(authority.url())
        .credentials(source.clone())
        .resend_after_401(true);
    Ours::open(ConnectionSpec::from(spec).era(era.clone())).await
}

/// The control: without this there would be nothing to switch off.
#[tokio::test]
async fn rmcps_own_client_posts_a_refused_call_again() {
    bounded(async {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = Authority::start().await;
        let mut manager = AuthorizationManager::new(authority.url()).await.unwrap();
        let resolved = manager.resolve_metadata().await.unwrap();
        manager.set_metadata(resolved.metadata);
        let request = AuthorizationRequest::new("http://127.0.0.1:1/callback");
        let session = AuthorizationSession::new(manager, request).await;
        let session = session.map_err(|(_, e)| e).unwrap();
        let redirected = redirected_from(session.auth_url.clone()).await;
        session.handle_callback_url(&redirected).await.unwrap();
        let client = AuthClient::new(reqwest::Client::new(), session.auth_manager);
        let config = StreamableHttpClientTransportConfig::with_uri(authority.url());
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let identity = Implementation::new("default", "0");
        let config = ClientConfig::new(ClientCapabilities::default(), identity);
        let service = config
            .serve_with_lifecycle(transport, ClientLifecycleMode::Initialize)
            .await
            .unwrap();
        authority.revoke_access_tokens();
        let call = CallToolRequestParams::new("echo");
        service.peer().call_tool(call).await.unwrap();
        assert_eq!(authority.statuses("tools/call"), [401, 200]);
        let _ = service.cancel().await;
    })
    .await;
}

#[tokio::test]
async fn with_the_setting_a_refused_call_goes_out_once_more_as_an_attempt_of_its_own() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            authorise(&source).await;
            let ours = resending(&authority, &source, &era).await;
            ours.call("echo").await.unwrap();
            authority.revoke_access_tokens();

            let mut events = ours.supervisor.events();
            let answer = ours.call("echo").await.unwrap();
            assert_eq!((answer.attempts(), answer.generation().number()), (2, 1));
            assert_eq!(authority.statuses("tools/call"), [200, 401, 200]);
            assert_eq!(authority.book().refreshes, 1);
            let mut attempts = Vec::new();
            while attempts.len() < 2 {
                let Some(Received::Event(event)) = events.next().await else {
                    panic!("an event")
                };
                if let What::AttemptStarted {
                    operation,
                    attempt,
                    number,
                    ..
                } = &event.what
                {
                    assert_eq!(*operation, answer.operation());
                    attempts.push((*attempt, *number));
                }
            }
            assert_ne!(attempts[0].0, attempts[1].0);
            assert_eq!((attempts[0].1, attempts[1].1), (1, 2));

            let sent: Vec<_> = {
                let book = authority.book();
                let calls = book.requests.iter().filter(|r| r.method == "tools/call");
                calls
                    .map(|r| (r.session.clone(), r.token.clone()))
                    .collect()
            };
            assert_eq!(sent[1].0, sent[2].0, "on the same session");
            assert_ne!(sent[1].1, sent[2].1, "with another token");

            // Once, and not for ever.
            authority.book().refuses_all = true;
            let error = ours.call("echo").await.unwrap_err();
            assert!(
                matches!(&error, CallError::Rejected(e) if e.about.attempts == 2),
                "{error}"
            );
            assert_eq!(authority.statuses("tools/call"), [200, 401, 200, 401, 401]);
            ours.close().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_refused_call_whose_credentials_cannot_be_renewed_is_a_rejection() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            authorise(&source).await;
            let ours = resending(&authority, &source, &era).await;
            ours.call("echo").await.unwrap();
            authority.revoke_access_tokens();
            authority.revoke_refresh_tokens();
            let error = ours.call("echo").await.unwrap_err();
            assert!(
                matches!(&error, CallError::Rejected(e) if e.about.attempts == 1),
                "{error}"
            );
            assert_eq!(authority.statuses("tools/call"), [200, 401]);
            ours.close().await;
        })
        .await;
    }
}

#[tokio::test]
async fn with_the_setting_and_a_person_at_hand_the_first_call_already_succeeds() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().on_authorization(consent).build().unwrap();
            let ours = Arc::new(resending(&authority, &source, &era).await);
            let answer = ours.call("echo").await.unwrap();
            assert_eq!((answer.attempts(), answer.generation().number()), (1, 1));

            // A scope that is too narrow, for several at once: one person, one question.
            let calls: Vec<_> = (0..10)
                .map(|_| {
                    let ours = Arc::clone(&ours);
                    tokio::spawn(async move { ours.call("admin").await })
                })
                .collect();
            for call in calls {
                call.await.unwrap().unwrap();
            }
            assert_eq!(authority.book().authorizations, 2);
            let admin = authority.statuses("tools/call");
            assert_eq!(admin.iter().filter(|s| **s == 200).count(), 11);
            assert!(admin.iter().filter(|s| **s == 403).count() <= 10);
        })
        .await;
    }
}

/// The refusal was of the `server/discover` before it.
#[tokio::test]
async fn an_initialize_that_was_not_refused_goes_out_once() {
    bounded(async {
        let authority = Authority::start().await;
        let source = authority.oauth().build().unwrap();
        authorise(&source).await;
        authority.revoke_access_tokens();
        authority.book().mute_and_streaming = true;
        let spec = HttpSpec::new(authority.url())
            .credentials(source.clone())
            .resend_after_401(true);
        let limits = Limits {
            discover: Duration::from_millis(300),
            ..Limits::default()
        };
        let spec = ConnectionSpec::from(spec).era(Era::Automatic);
        let ours = Ours::open(spec.limits(limits)).await;
        ours.call("echo").await.unwrap();
        assert_eq!(authority.statuses("server/discover"), [401, 200]);
        assert_eq!(authority.statuses("initialize"), [200]);
        ours.close().await;
    })
    .await;
}
