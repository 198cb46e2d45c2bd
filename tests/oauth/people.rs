//! A person authorises the client, and a wider scope.

use std::sync::Arc;

use mcp_supervisor::{
    CallError,
    auth::{Answer, FileStore, MemoryStore},
    credentials::CredentialsError,
    error::NotSentReason,
};

use super::{Authority, Ours, authorise, both, bounded, consent, initialize, not_sent};

#[tokio::test]
async fn a_refusal_at_the_handshake_says_that_somebody_has_to_authorise() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            let ours = Ours::with(&authority, &source, &era).await;
            let error = ours.call("echo").await.unwrap_err();
            let challenge = error.challenge().expect("the challenge of the handshake");
            assert_eq!(challenge.scope.as_deref(), Some("mcp:basic"));
            assert!(challenge.resource_metadata.is_some());
            assert!(error.next_step().starts_with("Authorise this client"));
            let NotSentReason::StartFailed(start) = not_sent(Err(error)) else {
                panic!("the start failed")
            };
            assert!(start.wants_authorization());
            assert!(
                start.to_string().contains("authorise this client"),
                "{start}"
            );

            authorise(&source).await;
            ours.call("echo").await.unwrap();
            let resources = authority.book().resources.clone();
            assert_eq!(resources.into_iter().collect::<Vec<_>>(), [authority.url()]);
            assert_eq!(authority.book().registrations, 1);
            ours.close().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_person_who_is_asked_at_the_next_operation_is_asked_once_for_all() {
    bounded(async {
        let authority = Authority::start().await;
        let source = authority.oauth().on_authorization(consent).build().unwrap();
        let ours = Arc::new(Ours::with(&authority, &source, &initialize()).await);
        assert!(ours.call("echo").await.unwrap_err().challenge().is_some());
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let ours = Arc::clone(&ours);
                tokio::spawn(async move { ours.call("echo").await })
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
        assert_eq!(authority.book().authorizations, 1);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_wants_no_token_gets_none() {
    bounded(async {
        let authority = Authority::start().await;
        authority.book().protected = false;
        let source = authority.oauth().on_authorization(consent).build().unwrap();
        let ours = Ours::with(&authority, &source, &initialize()).await;
        ours.call("echo").await.unwrap();
        assert_eq!(authority.book().authorizations, 0);
        assert!(authority.book().requests.iter().all(|r| r.token.is_none()));
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_scope_that_is_too_narrow_is_a_rejection_that_says_which_is_needed() {
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let source = authority.oauth().build().unwrap();
            authorise(&source).await;
            let ours = Ours::with(&authority, &source, &era).await;
            let error = ours.call("admin").await.unwrap_err();
            assert!(matches!(&error, CallError::Rejected(e) if e.status == Some(403)));
            let challenge = error.challenge().unwrap();
            assert!(challenge.is_insufficient_scope());
            assert_eq!(challenge.scope.as_deref(), Some("mcp:admin"));
            // The token is as good as before for everything else.
            ours.call("echo").await.unwrap();
            assert_eq!(authority.book().refreshes, 0);

            authorise(&source).await;
            ours.call("admin").await.unwrap();
            ours.call("echo").await.unwrap();
            let book_registrations = authority.book().registrations;
            assert_eq!(book_registrations, 1, "the client is the one that it was");
            ours.close().await;
        })
        .await;
    }
}

#[tokio::test]
async fn under_another_redirect_uri_the_client_registers_anew_and_what_is_stored_still_works() {
    bounded(async {
        let authority = Authority::start().await;
        let store = MemoryStore::default();
        let at = |uri: &str| {
            let oauth = authority.oauth().redirect_uri(uri).store(store.clone());
            oauth.build().unwrap()
        };
        authorise(&at("http://127.0.0.1:1/callback")).await;
        authorise(&at("http://127.0.0.1:1/callback")).await;
        assert_eq!(authority.book().registrations, 1);

        let moved = at("http://127.0.0.1:2/callback");
        authority.revoke_access_tokens();
        let ours = Ours::with(&authority, &moved, &initialize()).await;
        assert!(ours.call("echo").await.unwrap_err().challenge().is_some());
        ours.call("echo").await.unwrap();
        let (refreshes, registrations) = {
            let book = authority.book();
            (book.refreshes, book.registrations)
        };
        assert_eq!((refreshes, registrations), (1, 1), "renewed as before");
        authorise(&moved).await;
        assert_eq!(authority.book().registrations, 2);
        ours.call("echo").await.unwrap();
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn where_the_server_has_moved_to_another_issuer_a_person_is_asked_again() {
    bounded(async {
        let authority = Authority::start().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("credentials.json");
        let stored = || authority.oauth().store(FileStore::new(&file));
        authorise(&stored().build().unwrap()).await;
        let kept = std::fs::read_to_string(&file).unwrap();
        let mut kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
        kept["granted"]["issuer"] = "https://before.example".into();
        std::fs::write(&file, kept.to_string()).unwrap();
        authority.revoke_access_tokens();

        let alone = stored().build().unwrap();
        let ours = Ours::with(&authority, &alone, &initialize()).await;
        assert!(ours.call("echo").await.is_err(), "it is refused");
        let error = ours.call("echo").await.unwrap_err();
        assert!(error.challenge().is_some(), "{error:?}");
        assert!(matches!(error, CallError::NotSent(_)), "{error:?}");
        ours.close().await;

        let source = stored().on_authorization(consent).build().unwrap();
        let ours = Ours::with(&authority, &source, &initialize()).await;
        assert!(ours.call("echo").await.is_err(), "it is refused");
        ours.call("echo").await.unwrap();
        ours.close().await;
        assert_eq!(authority.book().refreshes, 0, "the new one is not shown it");
    })
    .await;
}

#[tokio::test]
async fn an_answer_with_another_state_or_issuer_is_refused_and_the_right_one_still_counts() {
    bounded(async {
        let authority = Authority::start().await;
        let source = authority.oauth().build().unwrap();
        let authorization = source.begin_authorization().await.unwrap();
        let redirected = super::authority::redirected_from(authorization.url().to_owned()).await;
        let url = reqwest::Url::parse(&redirected).unwrap();
        let of = |name: &str| {
            let mut pairs = url.query_pairs();
            pairs.find(|(k, _)| k == name).unwrap().1.into_owned()
        };
        let stranger = Answer::new(of("code"), "another-state");
        assert!(authorization.complete(&stranger).await.is_err());
        let mixed_up = Answer::new(of("code"), of("state")).issuer("https://elsewhere.example");
        assert!(matches!(
            authorization.complete(&mixed_up).await,
            Err(CredentialsError::Unusable(_))
        ));
        let anonymous = Answer::new(of("code"), of("state"));
        assert!(
            authorization.complete(&anonymous).await.is_err(),
            "it must name its issuer"
        );
        let right = Answer::from_redirect(&redirected).unwrap();
        authorization.complete(&right).await.unwrap();

        let refused = Answer::from_redirect("http://127.0.0.1:1/callback?error=access_denied");
        assert!(matches!(refused, Err(CredentialsError::NotGiven(why)) if why == "access_denied"));
    })
    .await;
}

#[tokio::test]
async fn metadata_that_name_another_issuer_are_not_used() {
    bounded(async {
        let authority = Authority::start().await;
        authority.book().issuer = Some("https://elsewhere.example".into());
        let source = authority.oauth().build().unwrap();
        let error = source.begin_authorization().await.unwrap_err();
        assert!(matches!(error, CredentialsError::Unusable(_)), "{error:?}");
        assert_eq!(authority.book().registrations, 0);
    })
    .await;
}
