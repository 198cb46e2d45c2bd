//! Asking a person: the URL that is shown, and the answer that comes back.

use std::{fmt, future::Future};

use rmcp::transport::auth::{AuthorizationRequest, AuthorizationSession, InMemoryCredentialStore};

use super::{
    OAuth,
    issuer::{explain, taken, widen, within},
    store::Credentials,
};
use crate::credentials::{AccessToken, BoxFuture, Challenge, CredentialsError};

/// Shows a URL to a person and waits for where they are sent back to.
///
/// Any function from the URL to a future of an [`Answer`] is one. The URL holds what belongs to this
/// one request: it is for the person's browser, and for no log.
pub trait OnAuthorization: Send + Sync {
    /// Asks. It runs in a task of the source's, once for all who wait, within its limit.
    ///
    /// # Cancel safety
    ///
    /// It is dropped when the limit is over; what the person did by then is lost.
    fn ask(&self, url: String) -> BoxFuture<'_, Result<Answer, CredentialsError>>;
}

impl<F, Fut> OnAuthorization for F
where
    F: Fn(String) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Answer, CredentialsError>> + Send + 'static,
{
    fn ask(&self, url: String) -> BoxFuture<'_, Result<Answer, CredentialsError>> {
        Box::pin(self(url))
    }
}

/// What the authorisation server sent the person back with.
#[derive(Clone)]
pub struct Answer {
    code: String,
    state: String,
    issuer: Option<String>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

impl Answer {
    /// The parameters `code` and `state` of the redirection.
    pub fn new(code: impl Into<String>, state: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            state: state.into(),
            issuer: None,
        }
    }

    /// The parameter `iss`, which is compared with the server that was asked (RFC 9207).
    #[must_use]
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    /// Reads the URL to which the person was redirected.
    ///
    /// # Errors
    ///
    /// What the authorisation server says instead of a code, or that the URL holds none.
    pub fn from_redirect(url: &str) -> Result<Self, CredentialsError> {
        let not_given = |why: &str| CredentialsError::NotGiven(why.to_owned());
        let url = reqwest::Url::parse(url).map_err(|_| not_given("the redirection is no URL"))?;
        let parameter = |name: &str| {
            let mut pairs = url.query_pairs();
            pairs
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
        };
        if let Some(error) = parameter("error") {
            // A code of RFC 6749; whatever else stands there is not shown.
            let is_code =
                error.len() < 40 && error.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            return Err(not_given(if is_code { &error } else { "refused" }));
        }
        let (Some(code), Some(state)) = (parameter("code"), parameter("state")) else {
            return Err(not_given("the redirection holds no code and state"));
        };
        Ok(Self {
            code,
            state,
            issuer: parameter("iss"),
        })
    }
}

/// An authorisation that a person has been asked for, or is to be.
pub struct Authorization {
    oauth: OAuth,
    session: AuthorizationSession,
    slot: InMemoryCredentialStore,
    client_secret: Option<String>,
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

impl Authorization {
    /// The URL for the person's browser, and for no log.
    #[must_use]
    pub fn url(&self) -> &str {
        self.session.get_authorization_url()
    }

    /// Exchanges the answer for credentials and keeps them. The next request has a token.
    ///
    /// # Errors
    ///
    /// Why there are none. An answer with another state or another issuer changes nothing, and the
    /// right one can still come.
    ///
    /// # Cancel safety
    ///
    /// The code may be used up.
    pub async fn complete(&self, answer: &Answer) -> Result<(), CredentialsError> {
        self.redeem(answer).await.map(drop)
    }

    async fn redeem(&self, answer: &Answer) -> Result<Option<AccessToken>, CredentialsError> {
        let spec = &self.oauth.0.spec;
        let redeeming = async {
            let issuer = answer.issuer.as_deref();
            let (code, state) = (&answer.code, &answer.state);
            let done = self
                .session
                .handle_callback_with_issuer(code, state, issuer);
            done.await
                .map_err(|e| explain(&e, "the exchange of the code"))?;
            taken(&self.slot).await
        };
        // Had before the code is used up.
        let locking = spec.store.lock();
        let _guard = within(
            spec.limit,
            "the wait for the credential store's lock",
            locking,
        )
        .await?;
        let granted = within(spec.limit, "the exchange of the code", redeeming).await?;
        let new = Credentials {
            granted,
            client_secret: self.client_secret.clone(),
            redirect_uri: Some(spec.redirect_uri.clone()),
            server: spec.resource(),
        };
        let token = self.oauth.save(&new).await;
        let mut state = self.oauth.0.state();
        state.manager = None;
        state.challenge = None;
        Ok(token)
    }
}

impl OAuth {
    pub(super) async fn begin(
        &self,
        wider: Option<String>,
    ) -> Result<Authorization, CredentialsError> {
        let known = self.load().await?;
        let beginning = self.prepare(known, wider);
        within(
            self.0.spec.limit,
            "the begin of the authorisation",
            beginning,
        )
        .await
    }

    async fn prepare(
        &self,
        known: Option<Credentials>,
        wider: Option<String>,
    ) -> Result<Authorization, CredentialsError> {
        let spec = &self.0.spec;
        let header = self.0.state().challenge.clone();
        let challenge = header.as_deref().and_then(Challenge::parse);
        let wider = wider.or_else(|| {
            let challenge = challenge.filter(Challenge::is_insufficient_scope)?;
            challenge.scope
        });
        let (mut manager, slot) = self.manager().await?;
        let resolved = manager
            .resolve_metadata_from_challenge(header.as_deref())
            .await;
        let metadata = resolved.map_err(|e| explain(&e, "discovery"))?.metadata;
        manager.set_metadata(metadata.clone());

        let mut scopes = spec.scopes.clone();
        if wider.is_some() {
            for granted in known.iter().flat_map(|k| k.scopes()) {
                widen(&mut scopes, Some(granted));
            }
            widen(&mut scopes, wider.as_deref());
        } else if scopes.is_empty() {
            scopes = manager.select_initial_scopes(&[]).await;
        }

        let mut request = AuthorizationRequest::new(&spec.redirect_uri);
        let registered = known.filter(|known| {
            known.redirect_uri.as_ref() == Some(&spec.redirect_uri)
                && known.granted.issuer == metadata.issuer
        });
        let supports = metadata
            .additional_fields
            .get("client_id_metadata_document_supported");
        let takes_a_url = supports.and_then(serde_json::Value::as_bool) == Some(true);
        let mut client_secret = None;
        if let Some(id) = &spec.client_id {
            request = request.with_preregistered_client(id);
            client_secret.clone_from(&spec.client_secret);
        } else if let (Some(url), true) = (&spec.client_metadata_url, takes_a_url) {
            request = request.with_client_metadata_url(url);
        } else if let Some(known) = registered {
            request = request.with_preregistered_client(known.granted.client_id);
            client_secret = known.client_secret;
        } else {
            let asked: Vec<&str> = scopes.iter().map(String::as_str).collect();
            let registering =
                manager.register_client(&spec.client_name, &spec.redirect_uri, &asked);
            let client = registering.await.map_err(|e| explain(&e, "registration"))?;
            request = request.with_preregistered_client(client.client_id);
            client_secret = client.client_secret;
        }
        if let Some(secret) = &client_secret {
            request = request.with_client_secret(secret);
        }
        // Without scopes the manager would choose some of its own.
        request = match scopes.is_empty() {
            true => request.with_initial_scope_selection(),
            false => request.with_scopes(scopes),
        };
        let session = AuthorizationSession::new(manager, request).await;
        let session = session.map_err(|(_, error)| explain(&error, "registration"))?;
        Ok(Authorization {
            oauth: self.clone(),
            session,
            slot,
            client_secret: client_secret.filter(|_| spec.client_id.is_none()),
        })
    }

    /// The whole way with a person in it.
    pub(super) async fn ask(
        &self,
        ask: &(dyn super::OnAuthorization + 'static),
        wider: Option<String>,
    ) -> Result<Option<AccessToken>, CredentialsError> {
        let authorization = self.begin(wider).await?;
        let limit = self.0.spec.authorization_limit;
        let asking = ask.ask(authorization.url().to_owned());
        let answer = tokio::time::timeout(limit, asking).await;
        let answer = answer.map_err(|_| CredentialsError::TimedOut {
            what: "the authorisation by a person",
            limit,
        })??;
        authorization.redeem(&answer).await
    }
}
