//! Who asks, by what the server authenticated and never by an argument.

use std::{fmt, future::Future, pin::Pin};

use http::{header::AUTHORIZATION, request::Parts};
use rmcp::{RoleServer, service::RequestContext};
use serde_json::{Map, Value};

use super::identity::Scope;

/// What a [`Principal`] answers with.
pub type Authorised<'a> = Pin<Box<dyn Future<Output = Result<Scope, Denial>> + Send + 'a>>;

/// Tells whose call it is, and whether it may be made.
///
/// It is asked for every call, before anything runs and before anything that was kept is given out, so
/// that who lost access gets no answer from before. What an HTTP layer authenticated is in the
/// request's extensions, where rmcp keeps `http::request::Parts`.
///
/// A function from a request's context to a scope is one.
pub trait Principal: Send + Sync + 'static {
    /// The scope of whoever asks, if it may have this operation now.
    fn authorise<'a>(
        &'a self,
        context: &'a RequestContext<RoleServer>,
        asked: Asked<'a>,
    ) -> Authorised<'a>;
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Asked<'a> {
    /// The operation's name: the tool's.
    pub operation: &'a str,
    /// Its arguments, within the tool's bounds and not yet checked otherwise.
    pub arguments: &'a Map<String, Value>,
}

impl<F> Principal for F
where
    F: Fn(&RequestContext<RoleServer>) -> Result<Scope, Denial> + Send + Sync + 'static,
{
    fn authorise<'a>(
        &'a self,
        context: &'a RequestContext<RoleServer>,
        _: Asked<'a>,
    ) -> Authorised<'a> {
        Box::pin(std::future::ready(self(context)))
    }
}

/// One scope for every caller: a server over stdio, which has one, or one for a single tenant.
#[derive(Clone, Debug)]
pub struct FixedScope(pub Scope);

impl Principal for FixedScope {
    fn authorise<'a>(&'a self, _: &'a RequestContext<RoleServer>, _: Asked<'a>) -> Authorised<'a> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }
}

/// Whose call it is, by the head of the HTTP request that brought it: a server over streamable HTTP,
/// where rmcp keeps that head in the request's extensions.
///
/// The function is asked for every call, and so it sees the header of this request and not that of the
/// session's first. It sees as well what a layer in front of rmcp's service put into the head's
/// extensions. A call that came over anything else than HTTP is denied.
///
/// ```
/// use mcp_supervisor::receipts::{Denial, OverHttp, Scope, bearer};
///
/// # fn subject_of(token: &str) -> Option<Scope> { token.parse().ok() }
/// let who = OverHttp(|head: &http::request::Parts| {
///     // Checked here, or by a layer in front: a token that nobody checked says nothing.
///     let subject = bearer(head).and_then(subject_of);
///     subject.ok_or_else(|| Denial::new("the bearer token is missing or not valid"))
/// });
/// # let _: OverHttp<_> = who;
/// ```
#[derive(Clone)]
pub struct OverHttp<F>(pub F);

impl<F> Principal for OverHttp<F>
where
    F: Fn(&Parts) -> Result<Scope, Denial> + Send + Sync + 'static,
{
    fn authorise<'a>(
        &'a self,
        context: &'a RequestContext<RoleServer>,
        _: Asked<'a>,
    ) -> Authorised<'a> {
        let scope = match context.extensions.get::<Parts>() {
            Some(head) => (self.0)(head),
            None => Err(Denial::new("the call did not come over HTTP")),
        };
        Box::pin(std::future::ready(scope))
    }
}

impl<F> fmt::Debug for OverHttp<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverHttp").finish_non_exhaustive()
    }
}

/// The token of a request's one `Authorization: Bearer` header. `None` where there is no such header,
/// more than one, or one of another scheme. It is not checked.
#[must_use]
pub fn bearer(head: &Parts) -> Option<&str> {
    let mut said = head.headers.get_all(AUTHORIZATION).iter();
    let (Some(one), None) = (said.next(), said.next()) else {
        return None;
    };
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Why a caller may not have an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("denied: {message}")]
pub struct Denial {
    /// What the caller is told.
    pub message: String,
}

impl Denial {
    /// A denial, with what the caller is told.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}
