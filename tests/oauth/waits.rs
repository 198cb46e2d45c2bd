//! Every wait for a token has an end, and nothing was sent by then.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use mcp_supervisor::{
    ToolCall,
    auth::{CredentialStore as _, FileStore, MemoryStore},
    credentials::CredentialsError,
    error::{NotSentReason, Wait},
};
use serde_json::json;

use super::{Authority, Ours, authorise, both, bounded, initialize, not_sent, until};

/// A connection whose token was refused, and whose next call needs another one.
async fn refused(
    authority: &Authority,
    source: &mcp_supervisor::auth::OAuth,
    era: &mcp_supervisor::Era,
) -> Ours {
    authorise(source).await;
    let ours = Ours::with(authority, source, era).await;
    ours.call("echo").await.unwrap();
    authority.revoke_access_tokens();
    assert!(ours.call("echo").await.is_err());
    ours
}

#[tokio::test]
async fn a_refresh_that_hangs_ends_with_the_operation_and_with_its_own_limit() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority
                .oauth()
                .limit(Duration::from_secs(3))
                .build()
                .unwrap();
            let ours = refused(&authority, &source, &era).await;
            authority.book().token_delay = Duration::from_secs(600);
            let call = ToolCall::new("echo", json!({})).deadline(Duration::from_millis(300));
            let reason = not_sent(ours.connection.call_tool(call).await);
            assert!(
                matches!(reason, NotSentReason::DeadlinePassed(Wait::Credentials)),
                "{reason:?}"
            );
            assert_eq!(
                ours.connection.status().generation.map(|g| g.number()),
                Some(1)
            );
            let reason = not_sent(ours.call("echo").await);
            assert!(
                matches!(
                    &reason,
                    NotSentReason::Credentials(CredentialsError::TimedOut { .. })
                ),
                "{reason:?}"
            );
            let began = Instant::now();
            ours.close().await;
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{:?}",
                began.elapsed()
            );
            assert_eq!(authority.statuses("tools/call"), [200, 401]);
        })
        .await;
    }
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_token() {
    bounded(async {
        let authority = Authority::start().await;
        let source = authority
            .oauth()
            .limit(Duration::from_secs(40))
            .build()
            .unwrap();
        let ours = refused(&authority, &source, &initialize()).await;
        authority.book().token_delay = Duration::from_secs(600);
        let handle = ours.connection.share();
        let waiting =
            tokio::spawn(async move { handle.call_tool(ToolCall::new("echo", json!({}))).await });
        until("the refresh was asked for", || {
            authority.book().asked_for_tokens > 1
        })
        .await;
        let began = Instant::now();
        ours.close().await;
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            began.elapsed()
        );
        not_sent(waiting.await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn an_authorisation_server_that_fails_is_not_asked_at_every_call() {
    bounded(async {
        let authority = Authority::start().await;
        let source = authority.oauth().build().unwrap();
        let ours = refused(&authority, &source, &initialize()).await;
        authority.book().token_status = Some(500);
        for _ in 0..20 {
            let reason = not_sent(ours.call("echo").await);
            assert!(
                matches!(
                    &reason,
                    NotSentReason::Credentials(CredentialsError::Unavailable(_))
                ),
                "{reason:?}"
            );
        }
        assert!(
            authority.book().refreshes < 5,
            "{}",
            authority.book().refreshes
        );
        authority.book().token_status = None;
        while ours.call("echo").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_refresh_token_that_is_refused_is_used_once_and_the_caller_told_what_to_do() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            let ours = refused(&authority, &source, &era).await;
            authority.revoke_refresh_tokens();
            for _ in 0..3 {
                let error = ours.call("echo").await.unwrap_err();
                assert_eq!(
                    error.challenge().unwrap().scope.as_deref(),
                    Some("mcp:basic")
                );
                let reason = not_sent(Err(error));
                assert!(
                    matches!(
                        &reason,
                        NotSentReason::Credentials(CredentialsError::AuthorizationRequired { .. })
                    ),
                    "{reason:?}"
                );
            }
            assert_eq!(authority.book().refreshes, 1);
            authorise(&source).await;
            ours.call("echo").await.unwrap();
            ours.close().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_lock_that_another_process_keeps_is_not_waited_for_without_end() {
    bounded(async {
        let authority = Authority::start().await;
        let dir = tempfile::tempdir().unwrap();
        let file: &Path = &dir.path().join("credentials.json");
        let source = authority
            .oauth()
            .store(FileStore::new(file))
            .limit(Duration::from_secs(2));
        let source = source.build().unwrap();
        let ours = refused(&authority, &source, &initialize()).await;
        let held = FileStore::new(file).lock().await.unwrap();
        let reason = not_sent(ours.call("echo").await);
        assert!(
            matches!(
                &reason,
                NotSentReason::Credentials(CredentialsError::TimedOut { .. })
            ),
            "{reason:?}"
        );
        drop(held);
        while ours.call("echo").await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(authority.book().refreshes, 1);
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn sources_that_share_credentials_in_memory_take_turns() {
    bounded(async {
        let authority = Authority::start().await;
        let store = MemoryStore::default();
        let source = || authority.oauth().store(store.clone()).build().unwrap();
        authorise(&source()).await;
        let one = Ours::with(&authority, &source(), &initialize()).await;
        let other = Ours::with(&authority, &source(), &initialize()).await;
        one.call("echo").await.unwrap();
        other.call("echo").await.unwrap();
        authority.revoke_access_tokens();
        authority.book().token_delay = Duration::from_millis(300);
        let (a, b) = tokio::join!(one.call("echo"), other.call("echo"));
        assert!(a.is_err() && b.is_err());
        let (a, b) = tokio::join!(one.call("echo"), other.call("echo"));
        a.unwrap();
        b.unwrap();
        assert_eq!(authority.book().refreshes, 1, "a refresh token works once");
        one.close().await;
        other.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_file_that_holds_something_else_is_an_error_that_repeats_none_of_it() {
    bounded(async {
        let authority = Authority::start().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials.json");
        std::fs::write(&file, "{\"granted\": \"a-secret\"").unwrap();
        let source = authority
            .oauth()
            .store(FileStore::new(&file))
            .build()
            .unwrap();
        let ours = Ours::with(&authority, &source, &initialize()).await;
        let error = ours.call("echo").await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(
            text.contains("credential store") && !text.contains("a-secret"),
            "{text}"
        );
        ours.close().await;
        assert!(authority.book().requests.is_empty());
    })
    .await;
}

/// Makes the credentials in a file older than they are, by seconds.
fn age(file: &Path, seconds: u64) {
    let text = std::fs::read_to_string(file).unwrap();
    let mut kept: serde_json::Value = serde_json::from_str(&text).unwrap();
    let received = kept["granted"]["token_received_at"].as_u64().unwrap();
    kept["granted"]["token_received_at"] = json!(received - seconds);
    std::fs::write(file, kept.to_string()).unwrap();
}

#[tokio::test]
async fn in_the_first_half_of_the_margin_nobody_waits_for_the_new_token() {
    bounded(async {
        for (age_now, waits) in [(2_200, false), (3_590, true)] {
            let authority = Authority::start().await;
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("credentials.json");
            // Of an hour, so that half of it is the margin.
            let source = || {
                let oauth = authority.oauth().store(FileStore::new(&file));
                let oauth = oauth.refresh_margin(Duration::from_secs(3_600));
                oauth.limit(Duration::from_secs(4)).build().unwrap()
            };
            authorise(&source()).await;
            age(&file, age_now);
            authority.book().token_delay = Duration::from_secs(600);
            let ours = Ours::with(&authority, &source(), &initialize()).await;
            let began = Instant::now();
            // Where it is waited for it does not come, and the old one is good for a moment yet.
            ours.call("echo").await.unwrap();
            ours.call("echo").await.unwrap();
            assert_eq!(
                began.elapsed() >= Duration::from_secs(4),
                waits,
                "{age_now}"
            );
            until("a new one was asked for", || {
                authority.book().asked_for_tokens > 1
            })
            .await;
            ours.close().await;
        }
    })
    .await;
}
