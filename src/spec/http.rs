//! A server behind streamable HTTP.

use std::{fmt, sync::Arc};

use super::SpecError;
use crate::credentials::TokenSource;

/// Schemes that a URL may have by mistake, and that are told.
const OTHER_SCHEMES: [&str; 8] = ["ws", "wss", "ftp", "file", "unix", "tcp", "sse", "stdio"];

/// A server behind streamable HTTP.
#[derive(Clone)]
pub struct HttpSpec {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) bearer: Option<String>,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) resend_after_401: bool,
    /// What a file says about the source of its tokens, to be compared.
    pub(crate) said_credentials: Option<String>,
    pub(crate) http2_prior_knowledge: bool,
    /// Whether a configuration file says that the host supplies the tokens.
    pub(crate) tokens_of_host: bool,
    /// How a configuration file writes the URL, where it holds variables: that is shown, and not
    /// what the variables hold.
    pub(crate) written_url: Option<String>,
}

/// A source of access tokens, which shows nothing of itself.
#[derive(Clone)]
pub(crate) struct Tokens(pub(crate) Arc<dyn TokenSource>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl HttpSpec {
    /// The endpoint at `url`, `http` or `https`.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: Vec::new(),
            bearer: None,
            tokens: None,
            resend_after_401: false,
            said_credentials: None,
            http2_prior_knowledge: false,
            tokens_of_host: false,
            written_url: None,
        }
    }

    /// Sends a header with every request. Its value is never logged.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends `Authorization: Bearer` with this token. It is never logged.
    #[must_use]
    pub fn bearer(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// Gets the token of each request from this source. A request for which there is none is not
    /// sent; one that is refused is refused, and the next one has another token.
    #[must_use]
    pub fn credentials(mut self, source: impl TokenSource + 'static) -> Self {
        self.tokens = Some(Tokens(Arc::new(source)));
        self
    }

    /// Lets an operation that was answered 401, or 403 for its scope, go out once more after its
    /// source has given another token: on the same session, within its deadline, as an attempt of
    /// its own. Off by default, because it is a second sending: by RFC 9110 the first one was not
    /// applied, but it is the server that says so. Needs [`credentials`](Self::credentials).
    #[must_use]
    pub fn resend_after_401(mut self, resend: bool) -> Self {
        self.resend_after_401 = resend;
        self
    }

    /// Speaks HTTP/2 from the first byte, as servers without TLS need it to be told.
    #[must_use]
    pub fn http2_prior_knowledge(mut self) -> Self {
        self.http2_prior_knowledge = true;
        self
    }
}

impl fmt::Debug for HttpSpec {
    /// Shows nothing of the URL's query, the headers or the token: they hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.written_url.as_ref().unwrap_or(&self.url);
        let url = url.split(['?', '#']).next().unwrap_or_default();
        let url = url.rsplit_once('@').map_or(url, |(_, host)| host);
        f.debug_struct("HttpSpec")
            .field("url", &url)
            .finish_non_exhaustive()
    }
}

impl HttpSpec {
    pub(super) fn check(&self) -> Result<(), SpecError> {
        let objection = |what, why: &str| {
            let why = why.to_owned();
            Err(SpecError::Http { what, why })
        };
        if self.tokens.is_none() && self.resend_after_401 && !self.tokens_of_host {
            return objection("resend_after_401", "there are no credentials to renew");
        }
        if self.tokens.is_some() && self.bearer.is_some() {
            return objection("bearer token", "the credentials are to supply it");
        }
        let is_authorization =
            |(name, _): &(String, String)| name.eq_ignore_ascii_case("authorization");
        if self.tokens.is_some() && self.headers.iter().any(is_authorization) {
            return objection("header", "the credentials are to supply \"Authorization\"");
        }
        let (scheme, _) = self.url.split_once("://").unwrap_or_default();
        let is = |name: &&str| scheme.eq_ignore_ascii_case(name);
        if is(&"http") || is(&"https") {
            return Ok(());
        }
        let scheme = OTHER_SCHEMES.into_iter().find(is).unwrap_or_default();
        Err(SpecError::Scheme {
            scheme: scheme.to_owned(),
        })
    }
}
