//! What a tool is, before a ledger gives it a handler; and what its callers read about it.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use rmcp::{
    handler::server::tool::{schema_for_input, schema_for_output},
    model::Tool,
    schemars::JsonSchema,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{answer::Wire, bounds::Bounds, table::OtherVersions};
use crate::operation::IdempotencyKey;

/// The argument that carries the key, unless a tool has a name of its own for it.
const KEY_ARGUMENT: &str = "idempotency_key";

/// How long a receipt is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// How long an answer is given out after its operation was begun.
    pub answers: Duration,
    /// How long its key is refused after that.
    pub tombstones: Duration,
}

impl Default for Retention {
    /// Answers for 7 days, tombstones for 90 days after that.
    fn default() -> Self {
        let day = Duration::from_secs(24 * 60 * 60);
        Self {
            answers: 7 * day,
            tombstones: 90 * day,
        }
    }
}

/// A tool that takes `A`, which is an object, and answers with `O`.
///
/// The key is an argument that is added to `A`'s: `A` does not have it. A ledger makes a
/// [`ReceiptTool`](super::ReceiptTool) of it.
pub struct Definition<A, O> {
    pub(crate) terms: Terms,
    takes: PhantomData<fn(A) -> O>,
}

/// A definition without its types: what the way of a call has to know.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) name: Arc<str>,
    pub(crate) title: Option<String>,
    pub(crate) description: String,
    pub(crate) version: u32,
    pub(crate) compatible: Vec<u32>,
    pub(crate) other_versions: OtherVersions,
    pub(crate) key_argument: String,
    pub(crate) bounds: Bounds,
    pub(crate) retention: Retention,
    pub(crate) keep_refusals: bool,
    pub(crate) keep_failures: bool,
    pub(crate) wording: Wording,
}

/// Sentences of a tool's generated description and answers that depend on what else its server has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wording {
    /// How to look at an operation whose outcome is unknown, such as "Look at the orders page."
    pub inspect: Option<String>,
    /// What to do while an operation is under way, where that is not the same call again.
    pub while_running: Option<String>,
}

impl<A, O> Definition<A, O> {
    /// A tool, with what it does in a sentence or two. How its key works is added to that.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, description: impl Into<String>) -> Self {
        let terms = Terms {
            name: name.into(),
            title: None,
            description: description.into(),
            version: 1,
            compatible: Vec::new(),
            other_versions: OtherVersions::Answered,
            key_argument: KEY_ARGUMENT.to_owned(),
            bounds: Bounds::default(),
            retention: Retention::default(),
            keep_refusals: true,
            keep_failures: false,
            wording: Wording::default(),
        };
        Self {
            terms,
            takes: PhantomData,
        }
    }

    /// A title for people.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.terms.title = Some(title.into());
        self
    }

    /// The version of what the tool does, from 1 on. One more whenever the same arguments come to mean
    /// something else: a key that was used under another version never runs again.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.terms.version = version;
        self
    }

    /// Earlier versions whose results have the shape of this one's. The result of any other version is
    /// given out as `earlier_result`, beside its version.
    #[must_use]
    pub fn reads_results_of(mut self, versions: impl IntoIterator<Item = u32>) -> Self {
        self.terms.compatible.extend(versions);
        self
    }

    /// What becomes of a key that was used under another version: answered with what it came to then,
    /// or refused. It is answered by default.
    #[must_use]
    pub fn other_versions(mut self, other: OtherVersions) -> Self {
        self.terms.other_versions = other;
        self
    }

    /// The argument that carries the key: `idempotency_key` by default.
    #[must_use]
    pub fn key_argument(mut self, name: impl Into<String>) -> Self {
        self.terms.key_argument = name.into();
        self
    }

    /// How much a call may bring, and how long it may wait.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.terms.bounds = bounds;
        self
    }

    /// How long an answer is given out, from when its operation was begun, and how long its key is
    /// refused after that.
    #[must_use]
    pub fn kept_for(mut self, answers: Duration, tombstones: Duration) -> Self {
        self.terms.retention = Retention {
            answers,
            tombstones,
        };
        self
    }

    /// Whether a [refusal](super::Failure::Refused) is kept under its key. It is by default: asked
    /// again, the tool says the same.
    #[must_use]
    pub fn keep_refusals(mut self, keep: bool) -> Self {
        self.terms.keep_refusals = keep;
        self
    }

    /// Whether a [failure](super::Failure::Failed) is kept under its key. It is not by default:
    /// nothing was changed, so the same call may be made again.
    #[must_use]
    pub fn keep_failures(mut self, keep: bool) -> Self {
        self.terms.keep_failures = keep;
        self
    }

    /// How a caller inspects an operation whose outcome is unknown: a sentence in the description and
    /// in such answers.
    #[must_use]
    pub fn inspect_with(mut self, sentence: impl Into<String>) -> Self {
        self.terms.wording.inspect = Some(sentence.into());
        self
    }

    /// What a caller does while an operation is under way, where that is something else than the same
    /// call again.
    #[must_use]
    pub fn while_running(mut self, sentence: impl Into<String>) -> Self {
        self.terms.wording.while_running = Some(sentence.into());
        self
    }
}

impl<A, O> Definition<A, O>
where
    A: DeserializeOwned + JsonSchema + 'static,
    O: Serialize + JsonSchema + 'static,
{
    /// The tool as clients see it, with schemas and description.
    ///
    /// # Errors
    ///
    /// What of the definition cannot be.
    pub fn tool(&self) -> Result<Tool, DefinitionError> {
        let terms = &self.terms;
        terms.check()?;
        let input = schema_for_input::<A>().map_err(DefinitionError::Arguments)?;
        let input = terms.with_key(&input)?;
        let mut tool = Tool::new(terms.name.to_string(), terms.describe(), input);
        tool.title.clone_from(&terms.title);
        Ok(tool.with_raw_output_schema(schema_for_output::<Wire<O>>()))
    }
}

impl<A, O> Clone for Definition<A, O> {
    fn clone(&self) -> Self {
        Self {
            terms: self.terms.clone(),
            takes: PhantomData,
        }
    }
}

impl<A, O> std::fmt::Debug for Definition<A, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.terms.fmt(f)
    }
}

impl Terms {
    fn check(&self) -> Result<(), DefinitionError> {
        if self.name.is_empty() || self.name.len() > crate::operation::MAX_NAME_BYTES {
            return Err(DefinitionError::Name);
        }
        if self.version == 0 {
            return Err(DefinitionError::Version);
        }
        if self.retention.answers.is_zero() {
            return Err(DefinitionError::Retention);
        }
        Ok(())
    }

    /// An input schema with the key beside what the tool takes.
    fn with_key(&self, input: &Map<String, Value>) -> Result<Map<String, Value>, DefinitionError> {
        let mut schema = input.clone();
        let taken = || DefinitionError::KeyTaken(self.key_argument.clone());
        let properties = schema
            .entry("properties")
            .or_insert_with(|| json!({}))
            .as_object_mut()
            .ok_or_else(taken)?;
        if properties.contains_key(&self.key_argument) {
            return Err(taken());
        }
        let key = json!({
            "type": "string",
            "minLength": 1,
            "maxLength": IdempotencyKey::MAX_BYTES,
            "pattern": "^[!-~]{1,128}$",
            "description": "The identity of this intent: 1 to 128 visible ASCII characters. A new one \
                            for a new intent, the same one for the same intent.",
        });
        properties.insert(self.key_argument.clone(), key);
        let required = schema.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(required) = required {
            required.push(self.key_argument.clone().into());
        }
        Ok(schema)
    }

    /// The description, with how its key works.
    fn describe(&self) -> String {
        let key = &self.key_argument;
        let kept = humantime::format_duration(self.retention.answers);
        let inspect =
            self.wording.inspect.as_deref().unwrap_or(
                "Inspect what the operation would have changed before you use another key.",
            );
        let running = self.running();
        format!(
            "{}\n\nThis tool runs once per `{key}`. Make a new random key for each new intent, before \
             the first call, and remember it. When an answer was lost, or says `in_progress` or \
             `busy`, use the same key with exactly the same arguments: what ran is not run again, and \
             its result comes with `replayed: true`. The same key with other arguments is a `conflict` \
             and changes nothing. A result is kept for {kept}; after that its key is refused as \
             `expired`. {running} For `outcome_unknown`: {inspect}",
            self.description,
        )
    }

    /// What a caller does while it runs.
    pub(crate) fn running(&self) -> String {
        self.wording.while_running.clone().unwrap_or_else(|| {
            format!(
                "While it is `in_progress`, ask again with the same `{}` and the same arguments.",
                self.key_argument
            )
        })
    }

    /// Whether a result of `version` has the shape of this one's.
    pub(crate) fn reads(&self, version: u32) -> bool {
        version == self.version || self.compatible.contains(&version)
    }
}

/// What of a definition cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DefinitionError {
    /// The name.
    #[error("a tool's name has 1 to 512 bytes")]
    Name,
    /// The version.
    #[error("a tool's version is a number from 1 on")]
    Version,
    /// The retention.
    #[error(
        "an answer that is kept for no time is never replayed; keep it for as long as callers may ask again"
    )]
    Retention,
    /// The arguments' type.
    #[error("the arguments cannot be a tool's: {0}; take a struct with named fields")]
    Arguments(String),
    /// The key's name.
    #[error(
        "the arguments have `{0}` themselves, and the key is added under that name; rename one of them"
    )]
    KeyTaken(String),
}
