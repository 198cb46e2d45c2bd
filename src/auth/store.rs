//! Where credentials are kept between two runs, and by several processes at once.

use std::{
    fmt,
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use oauth2::TokenResponse as _;
use rmcp::transport::auth::StoredCredentials;
use serde::{Deserialize, Serialize};

use super::flight::Remaining;
use crate::credentials::{AccessToken, BoxFuture, CredentialsError};

/// How often a lock that another process holds is tried.
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// What a client was granted, with what it needs to renew it. All of it is secret, and only its
/// serialised form, which is for a store, shows it.
#[derive(Clone, Serialize, Deserialize)]
pub struct Credentials {
    pub(super) granted: StoredCredentials,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) redirect_uri: Option<String>,
    /// Whose tokens they are; nobody else is shown them. `None`: it was not written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) server: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// The scopes that were granted.
    #[must_use]
    pub fn scopes(&self) -> &[String] {
        &self.granted.granted_scopes
    }

    /// When the access token expires, as far as its server said.
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        let received = Duration::from_secs(self.granted.token_received_at?);
        let lives = self
            .granted
            .token_response
            .as_ref()
            .and_then(|r| r.expires_in())?;
        Some(UNIX_EPOCH + received + lives)
    }

    pub(super) fn token(&self) -> Option<AccessToken> {
        let response = self.granted.token_response.as_ref()?;
        Some(AccessToken::new(response.access_token().secret().as_str()))
    }

    pub(super) fn refresh_token(&self) -> Option<&str> {
        let response = self.granted.token_response.as_ref()?;
        Some(response.refresh_token()?.secret())
    }

    /// Whether every one of these scopes was granted.
    pub(super) fn covers(&self, scope: &str) -> bool {
        scope
            .split_whitespace()
            .all(|asked| self.scopes().iter().any(|granted| granted == asked))
    }

    pub(super) fn has_expired(&self) -> bool {
        self.expires_at().is_some_and(|at| at <= SystemTime::now())
    }

    pub(super) fn remaining(&self, margin: Duration) -> Remaining {
        let lives = self
            .granted
            .token_response
            .as_ref()
            .and_then(|r| r.expires_in());
        let (Some(at), Some(lives)) = (self.expires_at(), lives) else {
            return Remaining::Enough;
        };
        let left = at.duration_since(SystemTime::now()).unwrap_or_default();
        let margin = margin.min(lives / 2);
        if left > margin {
            Remaining::Enough
        } else if left > margin / 2 {
            Remaining::Little
        } else {
            Remaining::Nothing
        }
    }
}

/// Keeps the store to one process, until it is dropped.
#[must_use = "dropped, it lets the next one in"]
pub struct StoreGuard {
    _held: Box<dyn Send>,
}

impl StoreGuard {
    /// A guard that is whatever it holds.
    pub fn new(held: impl Send + 'static) -> Self {
        Self {
            _held: Box::new(held),
        }
    }
}

impl fmt::Debug for StoreGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreGuard")
    }
}

/// Keeps one server's credentials. A source for another server takes them for none, and replaces
/// them when it has some.
///
/// Refresh tokens are used once, so processes that share a store take turns: a renewal holds the
/// [lock](Self::lock) from its look into the store to its save.
pub trait CredentialStore: Send + Sync {
    /// What is kept.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing.
    fn load(&self) -> BoxFuture<'_, Result<Option<Credentials>, CredentialsError>>;

    /// Keeps these instead. Whoever reads meanwhile sees the old ones or the new ones.
    ///
    /// # Cancel safety
    ///
    /// They may be kept or not.
    fn save<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<(), CredentialsError>>;

    /// Waits until nobody else renews what is kept here. The wait is cut off by the renewal's limit.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it holds nothing.
    fn lock(&self) -> BoxFuture<'_, Result<StoreGuard, CredentialsError>>;
}

/// Keeps credentials for as long as the process lives. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryStore {
    kept: Arc<Mutex<Option<Credentials>>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl CredentialStore for MemoryStore {
    fn load(&self) -> BoxFuture<'_, Result<Option<Credentials>, CredentialsError>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        Box::pin(std::future::ready(Ok(kept.clone())))
    }

    fn save<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<(), CredentialsError>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(credentials.clone());
        Box::pin(std::future::ready(Ok(())))
    }

    fn lock(&self) -> BoxFuture<'_, Result<StoreGuard, CredentialsError>> {
        let turn = Arc::clone(&self.turn);
        Box::pin(async move { Ok(StoreGuard::new(turn.lock_owned().await)) })
    }
}

/// Keeps credentials in a file that only its owner can read, replaced as a whole. Several processes
/// can share it; a lock file stands beside it.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// The file for one server's credentials. It and its directory are made when they are needed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }
}

fn failed(what: &'static str) -> impl Fn(std::io::Error) -> CredentialsError {
    move |error| CredentialsError::Store(format!("{what}: {}", error.kind()))
}

/// Runs what waits for a disk where that delays nobody.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, CredentialsError> + Send + 'static,
) -> Result<T, CredentialsError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(CredentialsError::Store("its task ended".into())))
}

fn read(path: &Path) -> Result<Option<Credentials>, CredentialsError> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.map_err(failed("the file cannot be read"))?,
    };
    // The parser's own words could repeat what it read.
    let parsed = serde_json::from_slice(&text);
    let parsed = parsed.map_err(|_| "the file holds something else than credentials".to_owned());
    parsed.map(Some).map_err(CredentialsError::Store)
}

fn make_directory(path: &Path) -> Result<(), CredentialsError> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(failed("the directory cannot be made")),
        _ => Ok(()),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}

fn replace(path: &Path, text: &[u8]) -> Result<(), CredentialsError> {
    make_directory(path)?;
    let new = beside(path, &format!(".{:016x}", rand::random::<u64>()));
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        file.write_all(text)?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    })();
    if written.is_ok() {
        // The name too has to outlast a loss of power, because what it named before is used up.
        // Where directories cannot be synchronised, the file is there all the same.
        let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
        let _ = File::open(directory.unwrap_or(Path::new("."))).and_then(|d| d.sync_all());
    }
    if written.is_err() {
        // What is left of it is no use to anybody.
        let _ = std::fs::remove_file(&new);
    }
    written.map_err(failed("the file cannot be written"))
}

impl CredentialStore for FileStore {
    fn load(&self) -> BoxFuture<'_, Result<Option<Credentials>, CredentialsError>> {
        let path = self.path.clone();
        Box::pin(on_disk(move || read(&path)))
    }

    fn save<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> BoxFuture<'a, Result<(), CredentialsError>> {
        let path = self.path.clone();
        let text = serde_json::to_vec(credentials);
        Box::pin(on_disk(move || {
            let text =
                text.map_err(|_| CredentialsError::Store("cannot be written down".into()))?;
            replace(&path, &text)
        }))
    }

    fn lock(&self) -> BoxFuture<'_, Result<StoreGuard, CredentialsError>> {
        let path = self.path.clone();
        Box::pin(async move {
            let file = on_disk(move || {
                make_directory(&path)?;
                OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(beside(&path, ".lock"))
                    .map_err(failed("the lock file cannot be opened"))
            })
            .await?;
            while !take(&file)? {
                tokio::time::sleep(LOCK_AGAIN).await;
            }
            Ok(StoreGuard::new(file))
        })
    }
}

/// Whether the lock is ours now. It goes with the file, also when the process dies.
fn take(file: &File) -> Result<bool, CredentialsError> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(failed("the lock cannot be taken")(error)),
    }
}
