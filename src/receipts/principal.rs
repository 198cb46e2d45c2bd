//! Who asks, by what the server authenticated and never by an argument.

use std::{future::Future, pin::Pin};

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
