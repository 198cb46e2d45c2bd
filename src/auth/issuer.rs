//! What is had from the authorisation server, through rmcp's manager.
//!
//! The manager logs codes and what servers answer, at levels that hosts do turn on. So nothing of it
//! is heard, and its errors are told by their kind alone.

use std::{future::Future, time::Duration};

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, ClientCredentialsConfig, CredentialStore as _,
    InMemoryCredentialStore, OAuthClientConfig, StoredCredentials,
};
use tracing::{instrument::WithSubscriber as _, subscriber::NoSubscriber};

use super::{Grant, OAuth, flight::Goal, store::Credentials};
use crate::credentials::{AccessToken, CredentialsError};

/// rmcp's manager, and the place through which credentials go into it and come out.
pub(super) struct Manager {
    pub(super) rmcp: AuthorizationManager,
    pub(super) slot: InMemoryCredentialStore,
    /// Whose credentials it is set up for, and from whom.
    client_id: String,
    issuer: Option<String>,
}

/// Waits for rmcp without a word of it, and not for ever.
pub(super) async fn within<T>(
    limit: Duration,
    what: &'static str,
    work: impl Future<Output = Result<T, CredentialsError>>,
) -> Result<T, CredentialsError> {
    let quiet = work.with_subscriber(NoSubscriber::default());
    match tokio::time::timeout(limit, quiet).await {
        Ok(done) => done,
        Err(_) => Err(CredentialsError::TimedOut { what, limit }),
    }
}

/// rmcp's errors, by what is to be done about them. Their texts repeat what a server wrote.
pub(super) fn explain(error: &AuthError, at: &'static str) -> CredentialsError {
    use AuthError as E;
    match error {
        E::AuthorizationRequired | E::TokenRefreshRejected(_) => {
            CredentialsError::AuthorizationRequired { challenge: None }
        }
        E::PkceUnsupported => CredentialsError::Unusable("it has no PKCE with S256"),
        E::AuthorizationServerMismatch { .. } | E::AuthorizationServerMissingIssuer { .. } => {
            CredentialsError::Unusable("the answer came from another issuer")
        }
        E::ProtectedResourceMetadataInvalid { .. } => {
            CredentialsError::Unusable("the server's metadata describe another resource")
        }
        E::MetadataError(_) => CredentialsError::Unusable("its metadata are not acceptable"),
        E::NoAuthorizationSupport => CredentialsError::Unusable("it publishes no metadata"),
        E::RegistrationFailed(_)
        | E::TokenExchangeFailed(_)
        | E::ClientCredentialsError(_)
        | E::InvalidScope(_) => CredentialsError::ClientRefused(at),
        E::AuthorizationFailed(_) => {
            CredentialsError::NotGiven("the answer does not belong to the request".into())
        }
        _ => CredentialsError::Unavailable(at),
    }
}

impl OAuth {
    /// A manager that knows nothing yet.
    pub(super) async fn manager(
        &self,
    ) -> Result<(AuthorizationManager, InMemoryCredentialStore), CredentialsError> {
        #[cfg(feature = "tls")]
        crate::transport::http::provide_cryptography();
        let spec = &self.0.spec;
        let server = spec.server.as_str();
        let made = match spec.private_addresses {
            true => AuthorizationManager::new_allowing_private_addresses(server).await,
            false => AuthorizationManager::new(server).await,
        };
        let mut manager = made.map_err(|e| explain(&e, "discovery"))?;
        let slot = InMemoryCredentialStore::new();
        manager.set_credential_store(slot.clone());
        Ok((manager, slot))
    }

    /// A manager that can refresh these credentials: the one kept, or a new one after discovery.
    async fn manager_for(&self, stored: &Credentials) -> Result<Box<Manager>, CredentialsError> {
        let (client_id, issuer) = (&stored.granted.client_id, &stored.granted.issuer);
        let kept = self.0.state().manager.take();
        // Another process may have been authorised somewhere else since.
        let fits = |kept: &Manager| kept.client_id == *client_id && kept.issuer == *issuer;
        if let Some(kept) = kept.filter(|kept| fits(kept)) {
            put(&kept.slot, &stored.granted).await?;
            return Ok(kept);
        }
        let (mut rmcp, slot) = self.manager().await?;
        put(&slot, &stored.granted).await?;
        let set_up = rmcp.initialize_from_store().await;
        if !set_up.map_err(|e| explain(&e, "discovery"))? {
            // They come from another issuer. Nobody renews them here, and somebody can be asked.
            return Err(CredentialsError::AuthorizationRequired { challenge: None });
        }
        let secret = self.0.spec.client_secret.as_ref();
        if let Some(secret) = secret.or(stored.client_secret.as_ref()) {
            let redirect = stored.redirect_uri.as_ref().unwrap_or(&self.0.spec.server);
            let config = OAuthClientConfig::new(client_id, redirect).with_client_secret(secret);
            rmcp.configure_client(config)
                .map_err(|e| explain(&e, "refresh"))?;
        }
        Ok(Box::new(Manager {
            rmcp,
            slot,
            client_id: client_id.clone(),
            issuer: issuer.clone(),
        }))
    }

    /// What is kept, or what the store would not take when it was new.
    pub(super) async fn load(&self) -> Result<Option<Credentials>, CredentialsError> {
        let source = &self.0;
        let unsaved = {
            let state = source.state();
            state.held.clone().filter(|_| state.unsaved)
        };
        let limit = source.spec.limit;
        if let Some(unsaved) = unsaved {
            self.save(&unsaved).await;
            return Ok(Some(unsaved));
        }
        let stored = within(limit, "the credential store", source.spec.store.load()).await?;
        let ours = source.spec.resource();
        let is_ours = |stored: &Credentials| match &stored.server {
            Some(server) => Some(server) == ours.as_ref(),
            None => true,
        };
        Ok(stored.filter(is_ours))
    }

    /// Keeps new credentials; where the store does not take them, they are held here and offered
    /// again, because the ones before them are used up.
    pub(super) async fn save(&self, new: &Credentials) -> Option<AccessToken> {
        let source = &self.0;
        let saving = source.spec.store.save(new);
        let saved = within(source.spec.limit, "the credential store", saving).await;
        if let Err(error) = &saved {
            tracing::error!(%error, "new credentials could not be kept; they are held in memory");
        }
        let mut state = source.state();
        state.unsaved = saved.is_err();
        state.hold(new)
    }

    /// Renews by the refresh token. `None`: there is none that is still good.
    pub(super) async fn refresh(
        &self,
        stored: &Credentials,
    ) -> Result<Option<AccessToken>, CredentialsError> {
        if stored.refresh_token().is_none() {
            return Ok(None);
        }
        let source = &self.0;
        let limit = source.spec.limit;
        let locking = source.spec.store.lock();
        let _guard = within(limit, "the wait for the credential store's lock", locking).await?;
        // Another process may have been first, while this one waited.
        let Some(stored) = self.load().await? else {
            return Ok(None);
        };
        if self.brings(&stored, &Goal::Token) {
            return Ok(source.state().hold(&stored));
        }
        let used = stored.refresh_token().map(str::to_owned);
        if used.is_none() || used == source.state().dead {
            return Ok(None);
        }
        let refreshing = async {
            let manager = self.manager_for(&stored).await?;
            let done = manager.rmcp.refresh_token().await;
            done.map_err(|e| explain(&e, "refresh"))?;
            let granted = taken(&manager.slot).await?;
            source.state().manager = Some(manager);
            Ok(granted)
        };
        match within(limit, "the refresh of the access token", refreshing).await {
            Ok(granted) => {
                let new = Credentials { granted, ..stored };
                Ok(self.save(&new).await)
            }
            Err(CredentialsError::AuthorizationRequired { .. }) => {
                // A process that takes no lock may have used it up.
                let now = self.load().await?;
                if let Some(now) = now
                    && self.brings(&now, &Goal::Token)
                {
                    return Ok(source.state().hold(&now));
                }
                source.state().dead = used;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A token for the client itself.
    pub(super) async fn exchange_secret(
        &self,
        step_up: Option<String>,
    ) -> Result<Option<AccessToken>, CredentialsError> {
        let spec = &self.0.spec;
        debug_assert_eq!(spec.grant, Grant::ClientCredentials);
        let header = self.0.state().challenge.clone();
        let exchanging = async {
            let at = "the exchange of the client's secret";
            let (mut manager, slot) = self.manager().await?;
            let resolved = manager
                .resolve_metadata_from_challenge(header.as_deref())
                .await;
            manager.set_metadata(resolved.map_err(|e| explain(&e, "discovery"))?.metadata);
            let mut scopes = spec.scopes.clone();
            if scopes.is_empty() {
                scopes = manager.select_initial_scopes(&[]).await;
            }
            widen(&mut scopes, step_up.as_deref());
            let config = ClientCredentialsConfig::ClientSecret {
                client_id: spec.client_id.clone().unwrap_or_default(),
                client_secret: spec.client_secret.clone().unwrap_or_default(),
                scopes,
                resource: Some(spec.server.clone()),
            };
            let supported = manager.validate_client_credentials_metadata(&config);
            supported.map_err(|e| explain(&e, at))?;
            manager
                .configure_client_credentials(&config)
                .map_err(|e| explain(&e, at))?;
            let done = manager.exchange_client_credentials(&config).await;
            done.map_err(|e| explain(&e, at))?;
            taken(&slot).await
        };
        let granted = within(
            spec.limit,
            "the exchange of the client's secret",
            exchanging,
        )
        .await?;
        let new = Credentials {
            granted,
            client_secret: None,
            redirect_uri: None,
            server: spec.resource(),
        };
        Ok(self.save(&new).await)
    }
}

/// Adds the scopes that are not there yet.
pub(super) fn widen(scopes: &mut Vec<String>, wider: Option<&str>) {
    for scope in wider.into_iter().flat_map(str::split_whitespace) {
        if !scopes.iter().any(|have| have == scope) {
            scopes.push(scope.to_owned());
        }
    }
}

async fn put(
    slot: &InMemoryCredentialStore,
    granted: &StoredCredentials,
) -> Result<(), CredentialsError> {
    let put = slot.save(granted.clone()).await;
    put.map_err(|e| explain(&e, "refresh"))
}

/// What the manager left in its place.
pub(super) async fn taken(
    slot: &InMemoryCredentialStore,
) -> Result<StoredCredentials, CredentialsError> {
    let taken = slot.load().await.map_err(|e| explain(&e, "refresh"))?;
    taken.ok_or(CredentialsError::Unavailable("the exchange"))
}
