//! What makes two calls the same intent.

use std::{fmt, str::FromStr, sync::Arc, time::SystemTime};

use serde_json::{Map, Value};

use super::definition::Retention;
use crate::operation::{Fingerprint, IdempotencyKey, OperationId};

/// Whose keys these are: a principal, a workspace, or both, as the server authenticated them. Never
/// an argument. It is not logged.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

impl Scope {
    /// The longest scope, in bytes. Subjects of tokens are at most 255 characters by OpenID Connect;
    /// this leaves room for an issuer and a workspace beside one.
    pub const MAX_BYTES: usize = 1024;

    /// The scope as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Scope {
    type Err = ScopeError;
    fn from_str(text: &str) -> Result<Self, ScopeError> {
        match text.len() {
            0 => Err(ScopeError::Empty),
            bytes if bytes > Self::MAX_BYTES => Err(ScopeError::TooLong { bytes }),
            _ => Ok(Self(text.into())),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({} bytes)", self.0.len())
    }
}

/// A text that is no scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// It has no characters: every unauthenticated caller would share it.
    #[error("a scope is not empty; name the principal that the server authenticated")]
    Empty,
    /// It is longer than [`Scope::MAX_BYTES`].
    #[error("a scope has at most 1024 bytes; this one has {bytes}")]
    TooLong {
        /// How long it is.
        bytes: usize,
    },
}

/// Under what a receipt is found: whose key, for which operation, and the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Identity {
    /// Whose.
    pub scope: Scope,
    /// The operation's name: the tool's.
    pub operation: Arc<str>,
    /// The caller's key.
    pub key: IdempotencyKey,
}

impl Identity {
    /// The identity of a call.
    #[must_use]
    pub fn new(scope: Scope, operation: impl Into<Arc<str>>, key: IdempotencyKey) -> Self {
        Self {
            scope,
            operation: operation.into(),
            key,
        }
    }
}

/// A call that has the right shape and may be run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Arrival {
    /// Under what its receipt is found.
    pub identity: Identity,
    /// The operation's version here and now.
    pub version: u32,
    /// The operation's name and the arguments without the key.
    pub fingerprint: Fingerprint,
    /// The id that it gets if its key is new.
    pub id: OperationId,
    /// The arguments without the key.
    pub arguments: Map<String, Value>,
    /// When it came.
    pub at: SystemTime,
    /// How long its receipt is kept.
    pub retention: Retention,
}
