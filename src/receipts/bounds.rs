//! How much a call may bring.

use std::time::Duration;

use serde_json::{Map, Value};

/// What a tool takes from one call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bounds {
    /// The largest arguments, in bytes of their texts, names and numbers.
    pub max_argument_bytes: usize,
    /// How deep they nest.
    pub max_depth: usize,
    /// The largest result that the handler may have, in bytes of JSON: it is kept.
    pub max_result_bytes: usize,
    /// How long a call waits for another one under the same key.
    pub wait: Duration,
    /// How long a call waits until it can begin: behind other calls, and for somebody else's lock.
    pub begin: Duration,
}

impl Default for Bounds {
    /// 64 KiB of arguments, 32 deep; 1 MiB of result; 10 s for a rival, 5 s to begin.
    fn default() -> Self {
        Self {
            max_argument_bytes: 64 * 1024,
            max_depth: 32,
            max_result_bytes: 1024 * 1024,
            wait: Duration::from_secs(10),
            begin: Duration::from_secs(5),
        }
    }
}

/// Arguments that are more than a tool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfBounds {
    /// There is too much of them.
    #[error("the arguments have more than {most} bytes; send less")]
    TooLarge {
        /// The most that is taken.
        most: usize,
    },
    /// They nest too deeply.
    #[error("the arguments nest more than {most} deep; flatten them")]
    TooDeep {
        /// The deepest that is taken.
        most: usize,
    },
}

impl Bounds {
    /// Whether arguments are within the bounds. It looks no further than where they are not.
    ///
    /// # Errors
    ///
    /// Where they are not.
    pub fn check(&self, arguments: &Map<String, Value>) -> Result<(), OutOfBounds> {
        let mut left = self.max_argument_bytes;
        self.members(arguments, 1, &mut left)
    }

    fn members(
        &self,
        members: &Map<String, Value>,
        depth: usize,
        left: &mut usize,
    ) -> Result<(), OutOfBounds> {
        self.spend(2, left)?;
        for (name, value) in members {
            self.spend(name.len() + 4, left)?;
            self.value(value, depth, left)?;
        }
        Ok(())
    }

    fn value(&self, value: &Value, depth: usize, left: &mut usize) -> Result<(), OutOfBounds> {
        if depth > self.max_depth {
            return Err(OutOfBounds::TooDeep {
                most: self.max_depth,
            });
        }
        match value {
            Value::Null | Value::Bool(_) => self.spend(4, left),
            Value::Number(number) => self.spend(number.to_string().len(), left),
            Value::String(text) => self.spend(text.len() + 2, left),
            Value::Array(items) => {
                self.spend(2, left)?;
                items.iter().try_for_each(|item| {
                    self.spend(1, left)?;
                    self.value(item, depth + 1, left)
                })
            }
            Value::Object(members) => self.members(members, depth + 1, left),
        }
    }

    fn spend(&self, bytes: usize, left: &mut usize) -> Result<(), OutOfBounds> {
        *left = left.checked_sub(bytes).ok_or(OutOfBounds::TooLarge {
            most: self.max_argument_bytes,
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(map) => map,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn every_text_name_and_number_counts_and_so_does_what_stands_around_it() {
        for (arguments, bytes) in [
            (json!({}), 2),
            (json!({"a": null}), 11),
            (json!({"a": true, "bc": false}), 21),
            (json!({"n": -12.5}), 12),
            (json!({"text": "four"}), 16),
            (json!({"list": [1, 22]}), 17),
            (json!({"in": {"a": ""}}), 17),
            (json!({"in": [{"a": ["b"]}]}), 24),
        ] {
            let arguments = map(arguments);
            let with = |max_argument_bytes| Bounds {
                max_argument_bytes,
                ..Bounds::default()
            };
            assert_eq!(with(bytes).check(&arguments), Ok(()), "{arguments:?}");
            let most = bytes - 1;
            let refused = Err(OutOfBounds::TooLarge { most });
            assert_eq!(with(most).check(&arguments), refused, "{arguments:?}");
        }
    }

    #[test]
    fn each_array_and_each_object_inside_is_one_deeper() {
        for (arguments, depth) in [
            (json!({"a": 1}), 1),
            (json!({"a": [1]}), 2),
            (json!({"a": {"b": 1}}), 2),
            (json!({"a": [{"b": [1]}], "c": 1}), 4),
        ] {
            let arguments = map(arguments);
            let with = |max_depth| Bounds {
                max_depth,
                ..Bounds::default()
            };
            assert_eq!(with(depth).check(&arguments), Ok(()), "{arguments:?}");
            let most = depth - 1;
            let refused = Err(OutOfBounds::TooDeep { most });
            assert_eq!(with(most).check(&arguments), refused, "{arguments:?}");
        }
    }
}
