//! What makes two requests the same: the tool and its arguments, and nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of a tool's name and its arguments in canonical JSON: members sorted by name, no
/// insignificant space, numbers as given.
///
/// Neither the request's id nor its `_meta` is part of it: a progress token changes with every send.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a call of `tool` with `arguments`.
    #[must_use]
    pub fn of(tool: &str, arguments: &Map<String, Value>) -> Self {
        let mut text = Vec::with_capacity(256);
        write_string(tool, &mut text);
        write_object(arguments, &mut text);
        Self(Sha256::digest(&text).into())
    }

    /// The 32 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// A fingerprint that was kept as its 32 bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a fingerprint has 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

/// `value` in canonical JSON.
#[must_use]
pub fn canonical_json(value: &Value) -> String {
    let mut text = Vec::with_capacity(256);
    write_value(value, &mut text);
    String::from_utf8(text).expect("JSON is written from strings, which are UTF-8")
}

fn write_value(value: &Value, into: &mut Vec<u8>) {
    match value {
        Value::Object(members) => write_object(members, into),
        Value::Array(items) => {
            into.push(b'[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    into.push(b',');
                }
                write_value(item, into);
            }
            into.push(b']');
        }
        Value::String(text) => write_string(text, into),
        Value::Number(number) => into.extend_from_slice(number.to_string().as_bytes()),
        Value::Bool(true) => into.extend_from_slice(b"true"),
        Value::Bool(false) => into.extend_from_slice(b"false"),
        Value::Null => into.extend_from_slice(b"null"),
    }
}

fn write_object(members: &Map<String, Value>, into: &mut Vec<u8>) {
    // Sorted here: whether the map is depends on a feature that any crate of a build may turn on.
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| name.as_str());
    into.push(b'{');
    for (i, (name, value)) in sorted.into_iter().enumerate() {
        if i > 0 {
            into.push(b',');
        }
        write_string(name, into);
        into.push(b':');
        write_value(value, into);
    }
    into.push(b'}');
}

fn write_string(text: &str, into: &mut Vec<u8>) {
    serde_json::to_writer(into, text).expect("writing a string to memory cannot fail");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(tool: &str, arguments: Value) -> Fingerprint {
        match arguments {
            Value::Object(arguments) => Fingerprint::of(tool, &arguments),
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn the_order_of_members_makes_no_difference_and_everything_else_does() {
        let one: Value = serde_json::from_str(r#"{"a": {"y": 1, "x": [1, 2]}, "b": "c"}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":"c","a":{"x":[1,2],"y":1}}"#).unwrap();
        assert_eq!(of("t", one.clone()), of("t", two));
        for other in [
            json!({"a": {"y": 1, "x": [2, 1]}, "b": "c"}),
            json!({"a": {"y": 1.0, "x": [1, 2]}, "b": "c"}),
            json!({"a": {"y": 1, "x": [1, 2]}}),
        ] {
            assert_ne!(of("t", one.clone()), of("t", other));
        }
        assert_ne!(of("t", one.clone()), of("u", one));
    }

    #[test]
    fn canonical_json_is_sorted_and_has_no_space() {
        let value = json!({"b": [true, null, "\u{e9}\n"], "a": {"d": 1.5, "c": -3}});
        assert_eq!(
            canonical_json(&value),
            "{\"a\":{\"c\":-3,\"d\":1.5},\"b\":[true,null,\"\u{e9}\\n\"]}"
        );
    }

    #[test]
    fn a_fingerprint_reads_as_it_was_written() {
        let print = of("t", json!({}));
        let text = serde_json::to_string(&print).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).unwrap(), print);
        assert!(serde_json::from_str::<Fingerprint>("\"00\"").is_err());
    }
}
