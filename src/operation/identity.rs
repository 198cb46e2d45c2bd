//! By what operations, attempts, sessions and connections are known.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The longest tool, prompt or method name that is sent, in bytes.
///
/// MCP recommends at most 128 characters for tool names; four times that leaves room for servers
/// that prefix, and still refuses a name that is really a document.
pub const MAX_NAME_BYTES: usize = 512;

/// The identity of one operation, a UUIDv7, so that identities sort by the time they were made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(Uuid);

/// The identity of one attempt of an operation: one dispatch of its request on one session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(Uuid);

macro_rules! uuid_identity {
    ($name:ident) => {
        impl $name {
            /// Mints a new identity.
            #[must_use]
            pub fn mint() -> Self {
                Self(Uuid::now_v7())
            }

            /// The identity as its 16 bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// An identity that was kept as its 16 bytes.
            #[must_use]
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
uuid_identity!(OperationId);

impl FromStr for OperationId {
    type Err = OperationIdError;
    fn from_str(text: &str) -> Result<Self, OperationIdError> {
        text.parse().map(Self).map_err(|_| OperationIdError)
    }
}

/// A text that is no operation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation id is a UUID, as the runtime wrote it")]
pub struct OperationIdError;

uuid_identity!(AttemptId);

/// The number of a session within its connection: 1 for the first, one more for each after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub(crate) u64);

impl Generation {
    /// The number itself.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "generation {}", self.0)
    }
}

/// The name of a connection, unique within its supervisor. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ConnectionName(Arc<str>);

impl ConnectionName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl TryFrom<String> for ConnectionName {
    type Error = NameError;
    fn try_from(name: String) -> Result<Self, NameError> {
        name.parse()
    }
}

impl From<ConnectionName> for String {
    fn from(name: ConnectionName) -> Self {
        name.as_str().to_owned()
    }
}

impl FromStr for ConnectionName {
    type Err = NameError;
    fn from_str(name: &str) -> Result<Self, NameError> {
        check_name("connection", name)?;
        Ok(Self(name.into()))
    }
}

/// A name that cannot be used, and why. The name itself is not repeated: it may be 10 kB of
/// somebody's document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name has no characters.
    #[error("the {what} name is empty; give it at least one character")]
    Empty {
        /// Which name: "tool", "connection", …
        what: &'static str,
    },
    /// The name is longer than [`MAX_NAME_BYTES`].
    #[error("the {what} name has {bytes} bytes; the most that is sent is {MAX_NAME_BYTES}")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// How long it is.
        bytes: usize,
    },
    /// The name holds a control character, such as NUL or a line break.
    #[error("the {what} name holds the control character U+{code:04X} at byte {at}; remove it")]
    ControlCharacter {
        /// Which name.
        what: &'static str,
        /// The character's code point.
        code: u32,
        /// Its byte offset.
        at: usize,
    },
}

pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong {
            what,
            bytes: name.len(),
        });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, c)) => Err(NameError::ControlCharacter {
            what,
            code: u32::from(c),
            at,
        }),
        None => Ok(()),
    }
}

/// A caller's own name for an intended effect: the same key means the same intent.
///
/// 1 to 128 visible ASCII characters. It is data, not a secret, but it is not logged either.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdempotencyKey(Arc<str>);

impl IdempotencyKey {
    /// The longest key.
    pub const MAX_BYTES: usize = 128;

    /// Mints a new key, for one operation and all its attempts.
    #[must_use]
    pub fn mint() -> Self {
        Self(Uuid::now_v7().to_string().into())
    }

    /// The key as it is sent.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for IdempotencyKey {
    type Error = KeyError;
    fn try_from(key: String) -> Result<Self, KeyError> {
        key.parse()
    }
}

impl From<IdempotencyKey> for String {
    fn from(key: IdempotencyKey) -> Self {
        key.as_str().to_owned()
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.0.len())
    }
}

impl FromStr for IdempotencyKey {
    type Err = KeyError;
    fn from_str(key: &str) -> Result<Self, KeyError> {
        if key.is_empty() || key.len() > Self::MAX_BYTES {
            return Err(KeyError::Length { bytes: key.len() });
        }
        match key.bytes().position(|b| !b.is_ascii_graphic()) {
            Some(at) => Err(KeyError::Character { at }),
            None => Ok(Self(key.into())),
        }
    }
}

/// An idempotency key that has the wrong shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Empty, or longer than [`IdempotencyKey::MAX_BYTES`].
    #[error("an idempotency key has 1 to 128 bytes; this one has {bytes}")]
    Length {
        /// How long it is.
        bytes: usize,
    },
    /// Something other than a visible ASCII character.
    #[error("an idempotency key is made of visible ASCII characters; byte {at} of this one is not")]
    Character {
        /// The byte's offset.
        at: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_1_to_128_visible_characters() {
        assert!("order-1001".parse::<IdempotencyKey>().is_ok());
        assert_eq!(
            "".parse::<IdempotencyKey>(),
            Err(KeyError::Length { bytes: 0 })
        );
        let long = "k".repeat(129);
        assert_eq!(
            long.parse::<IdempotencyKey>(),
            Err(KeyError::Length { bytes: 129 })
        );
        assert_eq!(
            "a b".parse::<IdempotencyKey>(),
            Err(KeyError::Character { at: 1 })
        );
        assert_eq!(
            "a\0".parse::<IdempotencyKey>(),
            Err(KeyError::Character { at: 1 })
        );
    }

    #[test]
    fn a_name_with_nul_or_10_kb_is_refused_without_being_repeated() {
        let nul = check_name("tool", "a\0b").unwrap_err();
        assert_eq!(
            nul,
            NameError::ControlCharacter {
                what: "tool",
                code: 0,
                at: 1
            }
        );
        let long = check_name("tool", &"x".repeat(10_240)).unwrap_err();
        assert!(long.to_string().len() < 200);
        assert!(check_name("tool", "").is_err());
        assert!(check_name("tool", "créer_facture").is_ok());
    }

    #[test]
    fn operation_ids_sort_by_the_time_they_were_made() {
        let ids: Vec<_> = (0..100).map(|_| OperationId::mint()).collect();
        assert!(ids.is_sorted());
    }
}
