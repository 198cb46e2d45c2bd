//! No token, code, verifier's state or secret is in any log, error, event or `Debug`.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
};

use mcp_supervisor::{ConnectionSpec, HttpSpec, auth::FileStore};
use tracing_subscriber::{filter::LevelFilter, fmt::MakeWriter};

use super::{Authority, Ours, authorise, both, bounded, consent, initialize};

/// Everything that was logged so far, by all tests of this file.
#[derive(Clone, Default)]
struct Logs(Arc<Mutex<Vec<u8>>>);

static CAPTURED: LazyLock<Logs> = LazyLock::new(|| {
    let logs = Logs::default();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(logs.clone())
        .init();
    logs
});

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;
    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn a_server_is_not_shown_the_token_of_another_one_that_shares_its_file() {
    bounded(async {
        let (one, other) = (Authority::start().await, Authority::start().await);
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::new(dir.path().join("credentials.json"));
        let of = |authority: &Authority| {
            let oauth = authority.oauth().store(store.clone());
            oauth.build().unwrap()
        };
        authorise(&of(&one)).await;
        let ours = Ours::with(&other, &of(&other), &initialize()).await;
        assert!(ours.call("echo").await.unwrap_err().challenge().is_some());
        assert!(ours.call("echo").await.is_err());
        ours.close().await;
        let book = other.book();
        assert!(!book.requests.is_empty());
        assert!(book.requests.iter().all(|r| r.token.is_none()));
        assert_eq!(book.refreshes, 0);
    })
    .await;
}

#[tokio::test]
async fn no_token_code_state_or_secret_is_in_any_log_error_or_debug_output() {
    let logs = CAPTURED.clone();
    for era in both() {
        bounded(async {
            let authority = Authority::start().await;
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("credentials.json");
            let mut said = String::new();

            let person = authority
                .oauth()
                .store(FileStore::new(&file))
                .on_authorization(consent);
            said += &format!("{person:?}");
            let person = person.build().unwrap();
            let robot = authority.with_secret();
            said += &format!("{robot:?}");
            let robot = robot.build().unwrap();
            let mut urls = Vec::new();
            for source in [person.clone(), robot] {
                let spec = HttpSpec::new(authority.url())
                    .credentials(source.clone())
                    .resend_after_401(true);
                said += &format!("{spec:?} {source:?}");
                let ours = Ours::open(ConnectionSpec::from(spec).era(era.clone())).await;
                ours.call("echo").await.unwrap();
                authority.revoke_access_tokens();
                said += &format!("{:?}", ours.call("echo").await);
                ours.call("admin").await.ok();
                authority.revoke_access_tokens();
                authority.book().token_status = Some(500);
                let error = ours.call("echo").await.unwrap_err();
                said += &format!("{error} {error:?}");
                authority.book().token_status = None;
                ours.close().await;
            }
            let authorization = person.begin_authorization().await.unwrap();
            said += &format!("{authorization:?}");
            urls.push(authorization.url().to_owned());
            authorise(&person).await;

            let logged = String::from_utf8_lossy(&logs.0.lock().unwrap()).into_owned();
            assert!(logged.contains("session started"), "it is listened to");
            let kept = std::fs::read_to_string(&file).unwrap();
            let secrets = authority.book().secrets.clone();
            assert!(secrets.len() > 10);
            assert!(
                secrets.iter().any(|s| kept.contains(s)),
                "they are where they belong"
            );
            for secret in secrets.iter().chain(&urls) {
                assert!(!logged.contains(secret.as_str()), "{secret} was logged");
                assert!(!said.contains(secret.as_str()), "{secret} was told: {said}");
            }
        })
        .await;
    }
}
