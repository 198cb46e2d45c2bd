//! Which ways there are to find out what became of an operation.

use std::sync::Arc;

use rmcp::model::ClientRequest;
use serde_json::{Map, Value};

use super::ResolveError;
use crate::{
    call::tool_request,
    connection::Line,
    error::{InvalidRequest, Unsettled},
    journal::Record,
    operation::{Fingerprint, TaskHandle},
    policy::ToolContract,
};

/// The ways to find out, the one that asks least of the server first.
pub(super) struct Way {
    /// The task that the server made of it is asked, which is a read.
    pub(super) task: Option<TaskHandle>,
    /// Then, what the contract allows.
    pub(super) contract: Option<ByContract>,
}

/// What a contract allows.
pub(super) enum ByContract {
    /// The same request once more.
    Repeat(Arc<ClientRequest>),
    /// The status tool.
    LookUp,
}

impl Way {
    /// The ways for this operation; none is an error.
    ///
    /// On a caller-owned connection a task is asked, on the order of the one who holds the handle,
    /// and nothing else is done.
    pub(super) fn of(
        record: &Record,
        line: &Line,
        given: Option<&Value>,
    ) -> Result<Self, ResolveError> {
        let given = given.map(|given| checked(record, given)).transpose()?;
        let task = record.task().cloned();
        let contract = by_contract(record, line, given);
        match (&task, contract) {
            (_, Ok(contract)) => Ok(Self {
                task,
                contract: Some(contract),
            }),
            (Some(_), Err(_)) => Ok(Self {
                task,
                contract: None,
            }),
            (None, Err(error)) => Err(error),
        }
    }
}

fn by_contract(
    record: &Record,
    line: &Line,
    given: Option<Map<String, Value>>,
) -> Result<ByContract, ResolveError> {
    let intent = &record.intent;
    let barred = |why| {
        let record = Box::new(record.clone());
        Err(ResolveError::NothingAllowed { record, why })
    };
    let now = line.settings.contracts.for_tool(&intent.tool);
    if intent.contract == ToolContract::AtMostOnce {
        return barred(None);
    }
    if line.ownership.is_lent() {
        return barred(Some(Unsettled::CallerOwned));
    }
    if !promises_the_same(&intent.contract, now) {
        return barred(Some(Unsettled::ContractChanged));
    }
    let needs_key = matches!(
        now,
        ToolContract::Keyed { .. } | ToolContract::Status { .. }
    );
    if needs_key && intent.key.is_none() {
        return barred(Some(Unsettled::NoKey));
    }
    if matches!(now, ToolContract::Status { .. }) {
        return Ok(ByContract::LookUp);
    }
    let Some(arguments) = given.or_else(|| intent.arguments.clone()) else {
        return Err(ResolveError::ArgumentsNotKept(Box::new(record.clone())));
    };
    let arguments = Value::Object(arguments);
    let request = tool_request(&intent.tool, arguments, now, intent.key.as_ref())?;
    Ok(ByContract::Repeat(request))
}

/// Whether the contract in force is the one that the call was made under. One that was taken back
/// allows nothing any more, and one that was added later says nothing about a call without it: its
/// key may never have reached the tool. Where absences became final at another time, that holds.
fn promises_the_same(then: &ToolContract, now: &ToolContract) -> bool {
    match (then, now) {
        (
            ToolContract::Status { tool, argument, .. },
            ToolContract::Status {
                tool: tool_now,
                argument: argument_now,
                ..
            },
        ) => tool == tool_now && argument == argument_now,
        (then, now) => then == now,
    }
}

/// The arguments that were given, if they are the operation's.
fn checked(record: &Record, given: &Value) -> Result<Map<String, Value>, ResolveError> {
    let given = match given {
        Value::Object(given) => given.clone(),
        Value::Null => Map::new(),
        other => {
            let found = match other {
                Value::Bool(_) => "a boolean",
                Value::Number(_) => "a number",
                Value::String(_) => "a string",
                _ => "an array",
            };
            return Err(InvalidRequest::ArgumentsNotAnObject { found }.into());
        }
    };
    let intent = &record.intent;
    let mut compared = given.clone();
    if let ToolContract::Keyed { argument } = &intent.contract {
        compared.remove(argument);
    }
    match Fingerprint::of(&intent.tool, &compared) == intent.fingerprint {
        true => Ok(given),
        false => Err(ResolveError::OtherArguments(Box::new(record.clone()))),
    }
}
