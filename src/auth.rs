//! OAuth: access tokens from rmcp's `AuthorizationManager`, under rules of our own.
//!
//! rmcp discovers, registers, and exchanges. When that happens is decided here: one renewal at a
//! time however many wait for it, in a task of its own that no caller's leaving can break; within
//! limits; after a look into the store, where another process may have been first. rmcp's
//! `AuthClient` is not used, because it posts a refused request again by itself.
//!
//! ```no_run
//! use mcp_supervisor::{HttpSpec, Supervisor, auth::{Answer, FileStore, OAuth}};
//!
//! # async fn show(_: &str) -> String { String::new() }
//! # async fn run(supervisor: &Supervisor) -> Result<(), Box<dyn std::error::Error>> {
//! let url = "https://billing.example/mcp";
//! let oauth = OAuth::for_server(url)
//!     .redirect_uri("http://127.0.0.1:7777/callback")
//!     .store(FileStore::new("credentials/billing.json"))
//!     .build()?;
//! let spec = HttpSpec::new(url).credentials(oauth.clone());
//! let billing = supervisor.open("billing", spec).await?;
//!
//! // Where a call says that the client is not authorised, somebody is asked:
//! let authorization = oauth.begin_authorization().await?;
//! let redirected_to = show(authorization.url()).await;
//! authorization.complete(&Answer::from_redirect(&redirected_to)?).await?;
//! // The next call has a token.
//! # let _ = billing;
//! # Ok(())
//! # }
//! ```

mod ask;
mod flight;
mod issuer;
mod store;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use ask::{Answer, Authorization, OnAuthorization};
pub use store::{CredentialStore, Credentials, FileStore, MemoryStore, StoreGuard};

use crate::{
    credentials::{AccessToken, BoxFuture, CredentialsError, Refusal, TokenSource},
    spec::SpecError,
};
use flight::{Goal, Standing, State};

/// How a client gets its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grant {
    /// A person authorises it.
    Code,
    /// It has a secret of its own.
    ClientCredentials,
}

/// What an [`OAuth`] is to be. Built by [`OAuth::for_server`].
#[derive(Clone)]
pub struct OAuthBuilder {
    server: String,
    grant: Grant,
    client_id: Option<String>,
    client_secret: Option<String>,
    client_name: String,
    client_metadata_url: Option<String>,
    redirect_uri: String,
    scopes: Vec<String>,
    margin: Duration,
    limit: Duration,
    authorization_limit: Duration,
    private_addresses: bool,
    store: Arc<dyn CredentialStore>,
    ask: Option<Arc<dyn OnAuthorization>>,
}

impl OAuthBuilder {
    /// The id of a client that is registered already.
    #[must_use]
    pub fn client_id(mut self, id: impl Into<String>) -> Self {
        self.client_id = Some(id.into());
        self
    }

    /// The secret of that client. It is never shown.
    #[must_use]
    pub fn client_secret(mut self, secret: impl Into<String>) -> Self {
        self.client_secret = Some(secret.into());
        self
    }

    /// Gets tokens with the client's own secret; no person is asked.
    #[must_use]
    pub fn client_credentials(mut self) -> Self {
        self.grant = Grant::ClientCredentials;
        self
    }

    /// The name under which the client registers itself where it has no id.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.client_name = name.into();
        self
    }

    /// Where the client's metadata document is published, for servers that take its URL for an id.
    #[must_use]
    pub fn client_metadata_url(mut self, url: impl Into<String>) -> Self {
        self.client_metadata_url = Some(url.into());
        self
    }

    /// Where the authorisation server sends the person back to. By default a loopback address at
    /// which nothing listens: the host reads the code from the browser's address.
    #[must_use]
    pub fn redirect_uri(mut self, uri: impl Into<String>) -> Self {
        self.redirect_uri = uri.into();
        self
    }

    /// The scopes that are asked for. By default those that the server names.
    #[must_use]
    pub fn scopes<S: Into<String>>(mut self, scopes: impl IntoIterator<Item = S>) -> Self {
        self.scopes = scopes.into_iter().map(Into::into).collect();
        self
    }

    /// Where credentials are kept. By default in memory.
    #[must_use]
    pub fn store(mut self, store: impl CredentialStore + 'static) -> Self {
        self.store = Arc::new(store);
        self
    }

    /// Asks a person when a token can be had in no other way. Without this the operation ends as
    /// not sent, and the host begins an authorisation itself.
    #[must_use]
    pub fn on_authorization(mut self, ask: impl OnAuthorization + 'static) -> Self {
        self.ask = Some(Arc::new(ask));
        self
    }

    /// How long before it expires a token is renewed, by the first request that needs it then; at
    /// most half of its life. By default a minute.
    #[must_use]
    pub fn refresh_margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// How long discovery, registration, an exchange, a refresh or the store may take, each with
    /// all that belongs to it. By default 20 seconds.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long a person may take who is asked by [`on_authorization`](Self::on_authorization). By
    /// default five minutes.
    #[must_use]
    pub fn authorization_limit(mut self, limit: Duration) -> Self {
        self.authorization_limit = limit;
        self
    }

    /// Lets what the server publishes name authorisation servers at private addresses.
    #[must_use]
    pub fn allow_private_addresses(mut self) -> Self {
        self.private_addresses = true;
        self
    }

    /// The server without what belongs to single requests or users of it.
    fn resource(&self) -> Option<String> {
        let mut url = reqwest::Url::parse(&self.server).ok()?;
        url.set_query(None);
        url.set_fragment(None);
        // Neither fails where the address is one of HTTP.
        let _ = (url.set_username(""), url.set_password(None));
        Some(url.into())
    }

    /// Checks it. Nothing is sent and nothing is read before the first token is needed.
    ///
    /// # Errors
    ///
    /// What is contradictory or missing.
    pub fn build(self) -> Result<OAuth, SpecError> {
        let objection = |why: &str| {
            let (what, why) = ("oauth", why.to_owned());
            Err(SpecError::Http { what, why })
        };
        if reqwest::Url::parse(&self.server).is_err() {
            return objection("the server's URL cannot be read");
        }
        if self.client_secret.is_some() && self.client_id.is_none() {
            return objection("there is a client secret and no client id");
        }
        if self.grant == Grant::ClientCredentials && self.client_secret.is_none() {
            return objection("client credentials are an id and a secret");
        }
        for (what, limit) in [
            ("oauth.limit", self.limit),
            ("oauth.authorization_limit", self.authorization_limit),
        ] {
            if limit.is_zero() {
                return Err(SpecError::Zero { what });
            }
        }
        Ok(OAuth(Arc::new(Source {
            spec: self,
            state: Mutex::default(),
        })))
    }
}

impl fmt::Debug for OAuthBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OAuthBuilder")
    }
}

/// A source of access tokens for one server. Clones are the same source.
///
/// Given to [`HttpSpec::credentials`](crate::HttpSpec::credentials), it supplies every request of a
/// connection. Until somebody has authorised the client, requests go out without a token, and the
/// server's refusal says what it asks for.
#[derive(Clone)]
pub struct OAuth(Arc<Source>);

struct Source {
    spec: OAuthBuilder,
    state: Mutex<State>,
}

impl Source {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OAuth")
    }
}

impl OAuth {
    /// Begins to describe a source of tokens for the MCP server at `url`.
    pub fn for_server(url: impl Into<String>) -> OAuthBuilder {
        OAuthBuilder {
            server: url.into(),
            grant: Grant::Code,
            client_id: None,
            client_secret: None,
            client_name: env!("CARGO_PKG_NAME").to_owned(),
            client_metadata_url: None,
            redirect_uri: "http://127.0.0.1/callback".to_owned(),
            scopes: Vec::new(),
            margin: Duration::from_secs(60),
            limit: Duration::from_secs(20),
            authorization_limit: Duration::from_secs(300),
            private_addresses: false,
            store: Arc::new(MemoryStore::default()),
            ask: None,
        }
    }

    /// Begins an authorisation by a person: finds the authorisation server, registers the client
    /// where that is needed, and gives the URL to show. The scopes are those that the server asked
    /// for when it last refused a request, beside what was granted before.
    ///
    /// # Errors
    ///
    /// Why it cannot be begun.
    ///
    /// # Cancel safety
    ///
    /// The client may have been registered.
    pub async fn begin_authorization(&self) -> Result<Authorization, CredentialsError> {
        self.begin(None).await
    }

    /// Begins an authorisation for these scopes too, separated by spaces.
    ///
    /// # Errors
    ///
    /// Why it cannot be begun.
    ///
    /// # Cancel safety
    ///
    /// The client may have been registered.
    pub async fn begin_authorization_for(
        &self,
        scope: &str,
    ) -> Result<Authorization, CredentialsError> {
        self.begin(Some(scope.to_owned())).await
    }
}

impl TokenSource for OAuth {
    fn token(&self) -> BoxFuture<'_, Result<Option<AccessToken>, CredentialsError>> {
        let standing = self.0.state().standing(self.0.spec.margin);
        match standing {
            Standing::Good(token) => Box::pin(std::future::ready(Ok(Some(token)))),
            Standing::Early(token) => {
                // It is good for a while yet: nobody has to wait.
                self.begin_flight(&Goal::Token);
                Box::pin(std::future::ready(Ok(Some(token))))
            }
            Standing::Failed(error) => Box::pin(std::future::ready(Err(error))),
            Standing::None => Box::pin(self.fly(Goal::Token)),
        }
    }

    fn at_hand(&self) -> Option<AccessToken> {
        match self.0.state().standing(self.0.spec.margin) {
            Standing::Good(token) | Standing::Early(token) => Some(token),
            Standing::Failed(_) | Standing::None => None,
        }
    }

    fn refused(&self, refusal: &Refusal) {
        self.0.state().refused(refusal);
    }

    fn renewed<'a>(
        &'a self,
        refusal: &'a Refusal,
    ) -> BoxFuture<'a, Result<AccessToken, CredentialsError>> {
        Box::pin(async move {
            let newer = self.at_hand().filter(|t| Some(t) != refusal.token.as_ref());
            if let Some(newer) = newer {
                // Somebody else was refused first.
                return Ok(newer);
            }
            let token = match refusal.is_scope() {
                false => self.token().await?,
                true => {
                    let challenge = refusal.challenge().unwrap_or_default();
                    let scope = challenge.scope.unwrap_or_default();
                    let refused = refusal.token.clone();
                    self.fly(Goal::Scope { scope, refused }).await?
                }
            };
            token
                .filter(|token| Some(token) != refusal.token.as_ref())
                .ok_or_else(|| CredentialsError::AuthorizationRequired {
                    challenge: refusal.challenge().map(Box::new),
                })
        })
    }
}
