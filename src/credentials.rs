//! How a request gets its access token, and what a server's refusal asks for.
//!
//! This is the seam between a connection and whatever hands out tokens. The transport asks for a
//! token before a request is written, and tells of a 401 or 403 after it; it knows no OAuth. The
//! feature `oauth` has a source ready, and a host can bring one of its own.

mod challenge;

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

pub use challenge::Challenge;

/// A future with its type erased, as a trait object needs it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An access token. Neither its `Debug` nor anything else in this crate shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(Arc<str>);

impl AccessToken {
    /// A bearer token as it is sent, without the scheme.
    pub fn new(token: impl Into<Arc<str>>) -> Self {
        Self(token.into())
    }

    /// The token, to be sent and not to be shown.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken")
    }
}

/// What a server said when it refused a request for its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The token that was refused; `None` where the request had none.
    pub token: Option<AccessToken>,
    /// 401 or 403.
    pub status: u16,
    /// The `WWW-Authenticate` header, as sent.
    pub header: Option<String>,
}

impl Refusal {
    /// What the server asks for, where it sent a `Bearer` challenge.
    #[must_use]
    pub fn challenge(&self) -> Option<Challenge> {
        self.header.as_deref().and_then(Challenge::parse)
    }

    /// Whether the token is good, and only its scope too narrow.
    #[must_use]
    pub fn is_scope(&self) -> bool {
        self.status == 403
            && self
                .challenge()
                .is_some_and(|challenge| challenge.is_insufficient_scope())
    }
}

/// Why there is no access token. Nothing in it is secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// Somebody has to authorise this client: there are no credentials, or the server and the
    /// authorisation server take them no longer.
    #[error("this client is not authorised{}", scope_of(.challenge.as_deref()))]
    AuthorizationRequired {
        /// What the server asked for when it last refused a request.
        challenge: Option<Box<Challenge>>,
    },
    /// The person who was asked said no, or the flow was broken off.
    #[error("the authorisation was not given: {0}")]
    NotGiven(String),
    /// The authorisation server cannot be reached, or fails.
    #[error("the authorisation server failed at {0}")]
    Unavailable(&'static str),
    /// It took too long.
    #[error("{what} took longer than {limit:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// What the authorisation server publishes about itself is not what this client may use.
    #[error("the authorisation server cannot be used: {0}")]
    Unusable(&'static str),
    /// The authorisation server does not accept this client.
    #[error("the authorisation server does not accept this client at {0}")]
    ClientRefused(&'static str),
    /// The credentials could not be read or written.
    #[error("the credential store failed: {0}")]
    Store(String),
    /// A source of the host's own failed, or what it asks a person with.
    #[error("{0}")]
    Source(String),
}

/// What fails where a host shows somebody a URL or waits for the answer. Of the error only its kind
/// is told.
impl From<std::io::Error> for CredentialsError {
    fn from(error: std::io::Error) -> Self {
        Self::Source(error.kind().to_string())
    }
}

fn scope_of(challenge: Option<&Challenge>) -> String {
    match challenge.and_then(|c| c.scope.as_deref()) {
        Some(scope) => format!("; the server asks for the scope {scope:?}"),
        None => String::new(),
    }
}

impl CredentialsError {
    /// What to do next, in one sentence for a person.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::AuthorizationRequired { .. } | Self::NotGiven(_) => {
                "Authorise this client for the server; nothing was sent."
            }
            Self::Unavailable(_) | Self::TimedOut { .. } => {
                "Correct what keeps the authorisation server from answering; nothing was sent."
            }
            Self::Unusable(_) | Self::ClientRefused(_) => {
                "Correct the client's registration or the authorisation server; nothing was sent."
            }
            Self::Store(_) => {
                "Correct what keeps the credentials from being kept; nothing was sent."
            }
            Self::Source(_) => "Correct the source of the tokens; nothing was sent.",
        }
    }
}

/// Where a connection gets its access tokens.
///
/// It is asked before each request and before anything of it is written, so a failure here is a
/// request that was provably not sent. It must end: whatever it waits for needs a limit. A caller's
/// own deadline is kept by the connection, which drops the future; work for several callers should
/// go on without any one of them.
pub trait TokenSource: Send + Sync {
    /// The token for the next request. `None`: it is sent without one.
    ///
    /// A token that was [refused](Self::refused) with a 401 is not given again.
    ///
    /// # Cancel safety
    ///
    /// The connection drops the future of a caller that no longer waits. What was begun for all of
    /// them, such as a refresh, is to go on.
    fn token(&self) -> BoxFuture<'_, Result<Option<AccessToken>, CredentialsError>>;

    /// The token that is there without waiting, for a message that is worth no new one.
    fn at_hand(&self) -> Option<AccessToken> {
        None
    }

    /// A server refused a request with 401 or 403. It must not wait.
    fn refused(&self, refusal: &Refusal);

    /// A token that may do what the refused one may not, for sending the refused request once more.
    /// Asked only where the connection's own setting allows that.
    ///
    /// # Cancel safety
    ///
    /// As for [`token`](Self::token).
    fn renewed<'a>(
        &'a self,
        refusal: &'a Refusal,
    ) -> BoxFuture<'a, Result<AccessToken, CredentialsError>> {
        Box::pin(async move {
            match self.token().await? {
                Some(token) if Some(&token) != refusal.token.as_ref() => Ok(token),
                _ => Err(CredentialsError::AuthorizationRequired {
                    challenge: refusal.challenge().map(Box::new),
                }),
            }
        })
    }
}

impl<T: TokenSource + ?Sized> TokenSource for Arc<T> {
    fn token(&self) -> BoxFuture<'_, Result<Option<AccessToken>, CredentialsError>> {
        (**self).token()
    }

    fn at_hand(&self) -> Option<AccessToken> {
        (**self).at_hand()
    }

    fn refused(&self, refusal: &Refusal) {
        (**self).refused(refusal);
    }

    fn renewed<'a>(
        &'a self,
        refusal: &'a Refusal,
    ) -> BoxFuture<'a, Result<AccessToken, CredentialsError>> {
        (**self).renewed(refusal)
    }
}
