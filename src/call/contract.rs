//! What a contract does about an unknown outcome: repeat under an unchanged schema, or look up.

use std::{sync::Arc, time::Duration};

use rmcp::model::Tool;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{
    Caller,
    attempt::{Verdict, Without, cancelled},
    lists::{known, list},
    operation::{Done, Operation, in_words},
    rounds::Rounds,
};
use crate::{
    catalog::{List, Stale},
    error::{CallError, ListError, NotSentReason, Unsettled},
    event::What,
    operation::{Fingerprint, Generation, ToolCall},
    policy::ToolContract,
};

pub(super) type Schema = Arc<Map<String, Value>>;

/// The shortest wait between two look-ups of an outcome whose absence is not final yet.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

fn schema(tools: &[Tool], name: &str) -> Option<Schema> {
    let tool = tools.iter().find(|tool| tool.name == name)?;
    Some(Arc::clone(&tool.input_schema))
}

pub(super) fn repeats(contract: &ToolContract) -> bool {
    matches!(
        contract,
        ToolContract::ReadOnly
            | ToolContract::Idempotent
            | ToolContract::Keyed { .. }
            | ToolContract::Receipts
    )
}

fn not_read_before() -> Unsettled {
    Unsettled::SchemaUnknown {
        why: "it was not to be had before the call was made".into(),
    }
}

fn not_listed(error: &ListError) -> Arc<str> {
    match error {
        ListError::PageFailed { error: page, .. } => format!("{error}: {}", page.why()).into(),
        _ => error.to_string().into(),
    }
}

/// Whether the tool has the argument that the contract puts the key into. A server that has not ignores
/// it, and a repeat runs.
fn takes_key(contract: &ToolContract, schema: &Map<String, Value>) -> Result<(), Unsettled> {
    match contract {
        ToolContract::Keyed { argument } if lacks(schema, argument) => {
            let argument = argument.clone();
            Err(Unsettled::NoSuchArgument { argument })
        }
        _ => Ok(()),
    }
}

/// Whether a schema names its arguments and this one is not among them. One that leaves its arguments
/// open, or puts them together from parts, says nothing.
fn lacks(schema: &Map<String, Value>, argument: &str) -> bool {
    const PLAIN: [&str; 9] = [
        "$schema",
        "$id",
        "$defs",
        "definitions",
        "title",
        "description",
        "type",
        "properties",
        "required",
    ];
    let Some(Value::Object(properties)) = schema.get("properties") else {
        return false;
    };
    let closed = |(name, value): (&String, &Value)| match name.as_str() {
        "additionalProperties" => *value == Value::Bool(false),
        name => PLAIN.contains(&name),
    };
    !properties.contains_key(argument) && schema.iter().all(closed)
}

impl Operation<'_> {
    pub(super) fn caller(&self) -> Caller<'_> {
        Caller {
            line: self.line,
            journal: None,
            admitted: true,
            rounds: Rounds::Callers,
        }
    }

    /// The schema that the call is made against, where a contract may repeat it.
    ///
    /// It is read once for each generation. Where it cannot be read the call is made all the same,
    /// and will not be repeated.
    pub(super) async fn schema_before(&self, contract: &ToolContract) -> Option<Schema> {
        let tool = self.tool.as_deref().filter(|_| repeats(contract))?;
        if self.line.ownership.is_lent() {
            return None;
        }
        let schema = schema(&self.tools(false).await.ok()?, tool)?;
        if let Err(Unsettled::NoSuchArgument { argument }) = takes_key(contract, &schema) {
            self.line.tell(What::KeyNotTaken {
                operation: self.id,
                argument,
            });
        }
        Some(schema)
    }

    /// Whether the tool on the next session is the one that the call was made against, and which
    /// session that is.
    pub(super) async fn schema_holds(
        &self,
        contract: &ToolContract,
        before: Option<&Schema>,
    ) -> Result<Option<Generation>, Unsettled> {
        let Some(tool) = self.tool.as_deref().filter(|_| repeats(contract)) else {
            return Ok(None);
        };
        let before = before.ok_or_else(not_read_before)?;
        let tools = self.tools(true).await?;
        match schema(&tools, tool) {
            Some(now) if **before == *now => takes_key(contract, &now).map(|()| tools.generation()),
            _ => Err(Unsettled::ToolChanged),
        }
        .map(Some)
    }

    /// Whether the tool is the one of which the journal has the schema's fingerprint, and on which
    /// session it was compared.
    pub(super) async fn schema_is(
        &self,
        contract: &ToolContract,
        before: Option<&Fingerprint>,
    ) -> Result<Option<Generation>, Unsettled> {
        let Some(tool) = self.tool.as_deref().filter(|_| repeats(contract)) else {
            return Ok(None);
        };
        let before = before.ok_or_else(not_read_before)?;
        let tools = self.tools(true).await?;
        match schema(&tools, tool) {
            Some(now) if *before == Fingerprint::of(tool, &now) => {
                takes_key(contract, &now).map(|()| tools.generation())
            }
            _ => Err(Unsettled::ToolChanged),
        }
        .map(Some)
    }

    /// The tools of the session in force, read `anew` or as the catalog has them. How long the
    /// server vouched for them is no matter here: a contract asks whether a tool changed.
    async fn tools(&self, anew: bool) -> Result<List<Tool>, Unsettled> {
        let holds = |list: &List<Tool>| matches!(list.stale(), None | Some(Stale::Expired));
        if !anew && let Some(known) = known(self.line).filter(holds) {
            return Ok(known);
        }
        let read = tokio::select! {
            biased;
            () = cancelled(&self.times) => Err("the call was cancelled".into()),
            () = self.line.closing.cancelled() => Err("the connection is closing".into()),
            read = list(self.line, anew) => read.map_err(|error| not_listed(&error)),
            () = self.times.spent() => Err("the call's deadline passed".into()),
        };
        let why = match read {
            Ok(list) if holds(&list) => return Ok(list),
            Ok(list) => match list.stale() {
                Some(Stale::ReadFailed(why)) => not_listed(why),
                stale => stale.map(ToString::to_string).unwrap_or_default().into(),
            },
            Err(why) => why,
        };
        Err(Unsettled::SchemaUnknown { why })
    }

    /// Asks the contract's status tool, until it is found or the absence is final or the time is
    /// spent. `over_since` is since when the session of the last attempt is over, where only the
    /// journal can tell.
    pub(super) async fn look_up(
        &mut self,
        contract: &ToolContract,
        without: Without,
        over_since: Option<Instant>,
    ) -> Result<Done, CallError> {
        let (
            ToolContract::Status {
                tool,
                argument,
                absence_final_after,
            },
            Some(key),
        ) = (contract, self.key.clone())
        else {
            return Err(self.error(without, Some(Unsettled::NoKey)));
        };
        let most = self.line.settings.repeats.max_attempts;
        for _ in 0..most {
            let left = self.times.left();
            if left.is_zero() {
                return Err(self.error(without, Some(Unsettled::Spent)));
            }
            let mut arguments = Map::new();
            arguments.insert(argument.clone(), Value::String(key.as_str().to_owned()));
            let mut call = ToolCall::new(tool.clone(), Value::Object(arguments)).deadline(left);
            call.budget.cancel.clone_from(&self.times.cancel);
            let asked_at = Instant::now();
            let caller = self.caller();
            let answer = match Box::pin(caller.call_tool(call)).await {
                Ok(answer) => answer,
                Err(error) => {
                    let why = in_words(&error);
                    return Err(self.error(without, Some(Unsettled::LookUpFailed { why })));
                }
            };
            let found = is_found(&answer);
            self.line.tell(What::LookedUp {
                operation: self.id,
                found,
            });
            if found {
                let generation = answer.generation();
                let result = answer.into_server_result();
                let attempts = self.attempts;
                return Ok(Done {
                    result: Box::new(result),
                    raw: None,
                    generation,
                    asked: None,
                    attempts,
                    looked_up: true,
                });
            }
            let ended_at = without.pulse.as_ref().and_then(|pulse| pulse.ended_at());
            let ended_at = ended_at.or(over_since);
            let final_at = ended_at
                .zip(*absence_final_after)
                .map(|(at, after)| at + after);
            match final_at {
                // Final only for a look-up that was itself asked after that moment.
                Some(at) if asked_at >= at => {
                    let absent = Verdict::NotSent(NotSentReason::AbsenceIsFinal);
                    return Err(self.error(
                        Without {
                            verdict: absent,
                            ..without
                        },
                        None,
                    ));
                }
                Some(at) if at < Instant::now() + self.times.left() => {
                    let next = at.max(asked_at + LOOK_AGAIN);
                    let wait = next.saturating_duration_since(Instant::now());
                    if !self.pause(wait).await {
                        return Err(self.error(without, Some(Unsettled::Interrupted)));
                    }
                }
                _ => return Err(self.error(without, Some(Unsettled::Absent))),
            }
        }
        Err(self.error(without, Some(Unsettled::Absent)))
    }
}

/// A look-up finds what it names, unless it fails, answers with nothing, or says `found: false`.
fn is_found(answer: &super::ToolAnswer) -> bool {
    if answer.is_error() {
        return false;
    }
    match answer.structured() {
        Some(Value::Null) => false,
        Some(Value::Object(object)) => {
            let says_absent = object.get("found") == Some(&Value::Bool(false))
                || object.get("status").and_then(Value::as_str) == Some("not_found");
            !object.is_empty() && !says_absent
        }
        Some(_) => true,
        None => !answer.content().is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::lacks;

    fn lacks_key(schema: Value) -> bool {
        lacks(schema.as_object().unwrap(), "key")
    }

    #[test]
    fn a_schema_that_names_its_arguments_has_those_and_no_others() {
        let named = json!({"amount": {"type": "integer"}});
        assert!(lacks_key(json!({"type": "object", "properties": named})));
        assert!(lacks_key(json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "title": "charge", "properties": named, "required": ["amount"],
            "additionalProperties": false
        })));
        let with_key = json!({"key": {"type": "string"}});
        assert!(!lacks_key(
            json!({"type": "object", "properties": with_key})
        ));
    }

    #[test]
    fn a_schema_that_leaves_its_arguments_open_says_nothing_of_any() {
        assert!(!lacks_key(json!({"type": "object"})));
        assert!(!lacks_key(json!({"type": "object", "properties": true})));
        for open in [
            json!({"additionalProperties": true}),
            json!({"additionalProperties": {"type": "string"}}),
            json!({"patternProperties": {"^k": {}}}),
            json!({"allOf": [{"properties": {"key": {}}}]}),
            json!({"$ref": "#/$defs/charge"}),
        ] {
            let mut schema = json!({"type": "object", "properties": {"amount": {}}});
            let members = open.as_object().unwrap().clone();
            schema.as_object_mut().unwrap().extend(members);
            assert!(!lacks_key(schema.clone()), "{schema}");
        }
    }
}
