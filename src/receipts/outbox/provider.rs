//! The other side: whoever has the effect outside of this server's database.

use std::{fmt, future::Future, pin::Pin, time::Duration};

use serde_json::Value;

use super::{plan::Promises, reference::Reference};

/// What a provider answers with.
pub type Answering<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends intents to one provider, such as a payment service.
///
/// It makes one attempt each time it is asked, and repeats nothing itself: the client below it has its
/// retries and redirects switched off. The dispatcher drops the future at the limit of an attempt,
/// and takes the attempt as [`Sent::Unclear`] then.
pub trait Provider: Send + Sync + 'static {
    /// The name under which intents name it. It stays the same for as long as intents are kept.
    fn name(&self) -> &str;

    /// What it promises. What is not promised here is not relied on.
    fn promises(&self) -> Promises;

    /// Makes one attempt.
    fn send<'a>(&'a self, outgoing: &'a Outgoing) -> Answering<'a, Sent>;

    /// Asks what the provider has under a reference. It is asked only if
    /// [`promises`](Self::promises) says that it can be.
    fn look_up<'a>(&'a self, reference: &'a Reference) -> Answering<'a, Found> {
        let _ = reference;
        Box::pin(async { Found::Unclear(Reason::new("it cannot be looked up")) })
    }

    /// What a person should inspect where nobody knows whether an intent was applied, in one
    /// sentence that names `reference`.
    fn inspect(&self, reference: &Reference) -> String {
        format!(
            "Look for the reference {reference} at the provider {}.",
            self.name()
        )
    }
}

/// One attempt.
#[derive(Clone)]
#[non_exhaustive]
pub struct Outgoing {
    /// The provider's idempotency key, or the client reference: the same for every attempt.
    pub reference: Reference,
    /// What the handler wants of the provider: the same for every attempt.
    pub body: Value,
    /// The number of the attempt, from 1 on.
    pub attempt: u32,
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("reference", &self.reference)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// What came of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Sent {
    /// It is applied, now or by an earlier attempt under the same key, with this result.
    Accepted(Value),
    /// The provider refuses it, by its rules or for want of a permission. It is not asked again.
    Refused(Reason),
    /// The provider has another request under this key. It is not asked again.
    Conflict(Reason),
    /// This attempt provably had no effect, and another one may: it could not connect, or the provider
    /// says that it is busy and did nothing.
    Deferred(Reason),
    /// Nobody knows: the answer was lost, or says nothing about whether it was applied.
    Unclear(Reason),
}

/// What a look-up found.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// It is applied, with this result.
    Applied(Value),
    /// The provider had it and refused it: nothing stands.
    Refused(Reason),
    /// The provider has nothing under this reference now. A delayed request could still arrive.
    Absent,
    /// The provider could not be asked, or still works on it.
    Unclear(Reason),
}

/// Why an attempt or a look-up did not settle an intent. It is kept with the intent and shown to the
/// tool's caller, so there is no secret in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// In a short sentence.
    pub text: String,
    /// After what time the provider wants to be asked again, such as HTTP's `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl Reason {
    /// The longest reason that is kept, in bytes. It is for a person to read, not a document.
    pub const MAX_BYTES: usize = 512;

    /// A reason. What is beyond [`MAX_BYTES`](Self::MAX_BYTES) is cut off.
    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(Self::MAX_BYTES));
        Self {
            text,
            retry_after: None,
        }
    }

    /// The provider wants to be asked again after this time.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}
