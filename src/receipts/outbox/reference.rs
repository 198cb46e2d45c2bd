//! By what a provider knows an intent.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The idempotency key, or client reference, under which a provider gets an intent.
///
/// It is derived from the operation's identity alone: its scope, its name and its key. So it is the
/// same for every attempt, after a restart, and on another host. 32 hexadecimal digits, which fits
/// what providers allow for both; nothing of the identity can be read from it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reference(Arc<str>);

impl Reference {
    /// The reference of an operation.
    #[must_use]
    pub fn of(scope: &str, operation: &str, key: &str) -> Self {
        let mut hash = Sha256::new();
        // Each part behind its length: no two identities come to the same bytes.
        for part in ["outbox reference 1", scope, operation, key] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        // 128 bits: what a random UUID has.
        let digits = hash.finalize()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        Self(digits.into())
    }

    /// A reference as it was kept.
    pub(crate) fn kept(text: &str) -> Self {
        Self(text.into())
    }

    /// The reference as it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reference({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_depends_on_the_whole_identity_and_on_nothing_else() {
        let one = Reference::of("acme", "charge", "order-1");
        // Kept intents and providers hold it: a change of this value would be a second effect.
        assert_eq!(one.as_str(), "7bb9fcb7e70e91b0aa7d6c73b8d1f503");
        assert_eq!(one, Reference::of("acme", "charge", "order-1"));
        // Kept, sent and shown, it is the same text.
        let text = "7bb9fcb7e70e91b0aa7d6c73b8d1f503";
        assert_eq!(Reference::kept(text), one);
        assert_eq!(one.to_string(), text);
        assert_eq!(format!("{one:?}"), format!("Reference({text})"));
        for other in [
            Reference::of("acmf", "charge", "order-1"),
            Reference::of("acme", "refund", "order-1"),
            Reference::of("acme", "charge", "order-2"),
            Reference::of("acmec", "harge", "order-1"),
            Reference::of("acme", "chargeo", "rder-1"),
        ] {
            assert_ne!(one, other);
        }
    }
}
