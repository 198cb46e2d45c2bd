//! What a caller is told: structured content by one schema for every outcome, and a short text.

use std::sync::Arc;

use rmcp::{
    model::{CallToolResult, ContentBlock},
    schemars::JsonSchema,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    definition::Terms,
    failure::Refusal,
    receipt::{Conflict, LATEST, Receipt, Standing, time},
};
use crate::{
    extension::{Open, UNSETTLED},
    operation::OperationId,
};

/// The longest result that the text repeats, in bytes of JSON. It is for clients that read no
/// structured content, and a page is as much as such a text may cost.
const TEXT_BYTES: usize = 2048;

/// What became of a call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// What is kept under its key.
    Kept {
        /// The receipt.
        receipt: Arc<Receipt>,
        /// Whether it was there before this call.
        replayed: bool,
    },
    /// Another call under its key is under way.
    InProgress {
        /// The operation of that call.
        id: OperationId,
    },
    /// Its key stands for something else. Nothing was changed.
    Conflict {
        /// The operation that has the key.
        id: OperationId,
        /// What is not as it was.
        with: Conflict,
    },
    /// It did not begin within the bound. Nothing was changed.
    Busy,
    /// It was not run, or rolled back, and nothing is kept under its key.
    NotKept(NotKept),
    /// Whether it was committed cannot be established.
    Unclear {
        /// The operation.
        id: OperationId,
    },
}

/// Why a call left nothing behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotKept {
    /// It has the wrong shape.
    Invalid(String),
    /// The caller may not.
    Denied(String),
    /// The tool's rules say no, and the tool does not keep that.
    Refused(Refusal),
    /// The tool or its database failed.
    Failed(String),
}

/// What an answer says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(crate = "rmcp::schemars")]
#[non_exhaustive]
pub enum Status {
    /// It is done.
    Completed,
    /// The tool's rules say no. Nothing was changed.
    Refused,
    /// It failed. Nothing was changed.
    Failed,
    /// It was stopped.
    Cancelled,
    /// It is under way.
    InProgress,
    /// It may have been done, and that cannot be established here.
    OutcomeUnknown,
    /// The key stands for something else. Nothing was changed.
    Conflict,
    /// The key was used, and its answer is gone. Nothing was changed.
    Expired,
    /// It could not begin. Nothing was changed.
    Busy,
    /// The caller may not. Nothing was changed.
    Denied,
    /// The arguments are no good. Nothing was changed.
    Invalid,
}

impl Status {
    /// The word that stands in an answer.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::InProgress => "in_progress",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Conflict => "conflict",
            Self::Expired => "expired",
            Self::Busy => "busy",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
        }
    }
}

/// The structured content of every answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
pub(crate) struct Wire<O> {
    /// What became of it.
    pub(crate) status: Status,
    /// The operation that has the key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) operation_id: Option<String>,
    /// Whether this is what an earlier call under the key came to: nothing ran for this one.
    pub(crate) replayed: bool,
    /// What the tool answered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) result: Option<O>,
    /// What the tool answered under another version of it, in that version's shape.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) earlier_result: Option<Value>,
    /// The version of the tool that `earlier_result` is of.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) earlier_version: Option<u32>,
    /// Why the tool's rules say no.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) refusal_code: Option<String>,
    /// What there is to say about it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) message: Option<String>,
    /// Until when the answer is kept (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) kept_until: Option<String>,
    /// Whether the same call under the same key is useful later.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) retryable: Option<bool>,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) next_action: Option<String>,
}

impl Wire<Value> {
    fn new(status: Status) -> Self {
        Self {
            status,
            operation_id: None,
            replayed: false,
            result: None,
            earlier_result: None,
            earlier_version: None,
            refusal_code: None,
            message: None,
            kept_until: None,
            retryable: None,
            next_action: None,
        }
    }

    fn of(mut self, id: OperationId) -> Self {
        self.operation_id = Some(id.to_string());
        self
    }

    fn next(mut self, retryable: bool, action: impl Into<String>) -> Self {
        self.retryable = Some(retryable);
        self.next_action = Some(action.into());
        self
    }

    fn says(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }
}

impl Answer {
    /// What it says first.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Kept { receipt, .. } => match receipt.standing {
                Standing::Running => Status::InProgress,
                Standing::Completed { .. } => Status::Completed,
                Standing::Refused { .. } => Status::Refused,
                Standing::Failed { .. } => Status::Failed,
                Standing::Cancelled => Status::Cancelled,
                Standing::Unknown { .. } => Status::OutcomeUnknown,
                Standing::Expired => Status::Expired,
            },
            Self::InProgress { .. } => Status::InProgress,
            Self::Conflict { .. } => Status::Conflict,
            Self::Busy => Status::Busy,
            Self::NotKept(NotKept::Invalid(_)) => Status::Invalid,
            Self::NotKept(NotKept::Denied(_)) => Status::Denied,
            Self::NotKept(NotKept::Refused(_)) => Status::Refused,
            Self::NotKept(NotKept::Failed(_)) => Status::Failed,
            Self::Unclear { .. } => Status::OutcomeUnknown,
        }
    }

    /// The operation that has the key, where there is one.
    #[must_use]
    pub fn id(&self) -> Option<OperationId> {
        match self {
            Self::Kept { receipt, .. } => Some(receipt.id),
            Self::InProgress { id } | Self::Conflict { id, .. } | Self::Unclear { id } => Some(*id),
            Self::Busy | Self::NotKept(_) => None,
        }
    }

    /// The same, for a call that waited for another one under its key.
    pub(crate) fn replayed(self) -> Self {
        match self {
            Self::Kept { receipt, .. } => Self::Kept {
                receipt,
                replayed: true,
            },
            other => other,
        }
    }

    /// The answer as a tool's result.
    pub(crate) fn into_result(self, terms: &Terms) -> CallToolResult {
        let wire = self.wire(terms);
        let is_error = !matches!(wire.status, Status::Completed | Status::InProgress);
        let text = text(&wire);
        let structured = serde_json::to_value(&wire).unwrap_or(Value::Null);
        let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
        result.structured_content = Some(structured);
        result.is_error = Some(is_error);
        if let Some(open) = open(wire.status) {
            let meta = result.meta.get_or_insert_default();
            meta.insert(UNSETTLED.to_owned(), open.as_str().into());
        }
        result
    }

    fn wire(self, terms: &Terms) -> Wire<Value> {
        let wire = Wire::new(self.status());
        let key = &terms.key_argument;
        let inspect = terms.wording.inspect.as_deref();
        let inspect = inspect.unwrap_or("Inspect what this operation would have changed.");
        match self {
            Self::Kept { receipt, replayed } => kept(wire, &receipt, replayed, terms),
            Self::InProgress { id } => wire.of(id).next(true, terms.running()),
            Self::Conflict { id, with } => wire.of(id).next(
                false,
                match with {
                    Conflict::Arguments => format!(
                        "This `{key}` was used with other arguments. For a new intent use a new key; \
                         for the same intent use the arguments of the first call."
                    ),
                    Conflict::Version => format!(
                        "This `{key}` was used with an earlier version of this tool and does not run \
                         again. {inspect}"
                    ),
                },
            ),
            Self::Busy => wire.next(
                true,
                format!("Nothing was changed. Call later with the same `{key}` and the same arguments."),
            ),
            Self::NotKept(NotKept::Invalid(message)) => wire.says(message).next(
                false,
                format!("Nothing was changed. Correct the arguments; the same `{key}` may be used."),
            ),
            Self::NotKept(NotKept::Denied(message)) => wire.says(message),
            Self::NotKept(NotKept::Refused(refusal)) => {
                let mut wire = wire.says(refusal.message);
                wire.refusal_code = Some(refusal.code);
                wire
            }
            Self::NotKept(NotKept::Failed(message)) => wire.says(message).next(
                false,
                format!("Nothing was changed, and the `{key}` is free: the same intent keeps it."),
            ),
            Self::Unclear { id } => wire.of(id).next(
                true,
                format!(
                    "Call later with the same `{key}` and the same arguments: it answers with what is \
                     kept, or runs if nothing was. {inspect}"
                ),
            ),
        }
    }
}

/// Whether an operation goes on after an answer that says this.
fn open(status: Status) -> Option<Open> {
    match status {
        Status::Busy => Some(Open::Busy),
        Status::InProgress => Some(Open::Working),
        Status::OutcomeUnknown => Some(Open::OutcomeUnknown),
        Status::Completed
        | Status::Refused
        | Status::Failed
        | Status::Cancelled
        | Status::Conflict
        | Status::Expired
        | Status::Denied
        | Status::Invalid => None,
    }
}

fn kept(mut wire: Wire<Value>, receipt: &Receipt, replayed: bool, terms: &Terms) -> Wire<Value> {
    wire = wire.of(receipt.id);
    wire.replayed = replayed;
    // Settled later, it is kept for longer than it was at first.
    let until = receipt.answered_until.min(time(LATEST));
    let until = humantime::format_rfc3339_seconds(until).to_string();
    let key = &terms.key_argument;
    match &receipt.standing {
        Standing::Running => wire.next(true, terms.running()),
        Standing::Completed { result } => {
            match terms.reads(receipt.version) {
                true => wire.result = Some(result.clone()),
                false => {
                    wire.earlier_result = Some(result.clone());
                    wire.earlier_version = Some(receipt.version);
                }
            }
            wire.kept_until = Some(until);
            wire
        }
        Standing::Refused { refusal } => {
            wire = wire.says(refusal.message.clone());
            wire.refusal_code = Some(refusal.code.clone());
            wire.kept_until = Some(until);
            wire
        }
        Standing::Failed { message } => {
            wire = wire.says(message.clone());
            wire.kept_until = Some(until);
            wire
        }
        Standing::Cancelled => {
            wire.kept_until = Some(until);
            wire
        }
        Standing::Unknown { inspect } => wire.next(false, inspect.clone()),
        Standing::Expired => {
            let inspect = terms.wording.inspect.as_deref().unwrap_or(
                "Inspect what that call has changed before you use another key for the same intent.",
            );
            wire.next(
                false,
                format!("This `{key}` was used, and its answer was kept until {until}. {inspect}"),
            )
        }
    }
}

/// A line for people, and for clients that read no structured content.
fn text(wire: &Wire<Value>) -> String {
    let mut text = wire.status.as_str().to_owned();
    if let Some(id) = &wire.operation_id {
        text.push_str(&format!(", operation {id}"));
    }
    if wire.replayed {
        text.push_str(", replayed");
    }
    if let Some(message) = &wire.message {
        text.push_str(&format!(": {message}"));
    }
    if let Some(action) = &wire.next_action {
        text.push_str(&format!(". {action}"));
    }
    if let Some(result) = wire.result.as_ref().or(wire.earlier_result.as_ref()) {
        let json = result.to_string();
        if json.len() <= TEXT_BYTES {
            text.push_str(&format!("\n{json}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use serde_json::{Map, json};

    use super::*;
    use crate::{
        operation::Fingerprint,
        receipts::{definition::Definition, identity::Identity},
    };

    fn terms() -> Terms {
        let definition = Definition::<Value, Value>::new("pay", "Pays.");
        definition.inspect_with("Look at the account.").terms
    }

    fn kept(standing: Standing) -> Answer {
        let at = SystemTime::UNIX_EPOCH;
        let receipt = Receipt {
            id: OperationId::mint(),
            identity: Identity::new("alice".parse().unwrap(), "pay", "k".parse().unwrap()),
            version: 1,
            fingerprint: Fingerprint::of("pay", &Map::new()),
            standing,
            at,
            answered_until: at + Duration::from_secs(60),
            refused_until: at + Duration::from_secs(120),
        };
        Answer::Kept {
            receipt: Arc::new(receipt),
            replayed: false,
        }
    }

    fn text_of(result: &CallToolResult) -> String {
        let ContentBlock::Text(text) = &result.content[0] else {
            panic!("a text");
        };
        text.text.clone()
    }

    fn completed(result: Value) -> Answer {
        kept(Standing::Completed { result })
    }

    fn refusal() -> Refusal {
        Refusal::new("sold_out", "There is none left.")
    }

    /// An answer, what it says first, whether it is an error, whether the same call is useful later, and
    /// what is open about its operation.
    type Row = (Answer, Status, bool, Option<bool>, Option<Open>);

    fn answers() -> Vec<Row> {
        use Status as S;
        let id = OperationId::mint();
        let conflict = |with| Answer::Conflict { id, with };
        let inspect = "Look at the account.".to_owned();
        let message = "no".to_owned();
        vec![
            (completed(json!(1)), S::Completed, false, None, None),
            (
                kept(Standing::Running),
                S::InProgress,
                false,
                Some(true),
                Some(Open::Working),
            ),
            (
                kept(Standing::Refused { refusal: refusal() }),
                S::Refused,
                true,
                None,
                None,
            ),
            (
                kept(Standing::Failed {
                    message: message.clone(),
                }),
                S::Failed,
                true,
                None,
                None,
            ),
            (kept(Standing::Cancelled), S::Cancelled, true, None, None),
            (
                kept(Standing::Unknown { inspect }),
                S::OutcomeUnknown,
                true,
                Some(false),
                Some(Open::OutcomeUnknown),
            ),
            (kept(Standing::Expired), S::Expired, true, Some(false), None),
            (
                Answer::InProgress { id },
                S::InProgress,
                false,
                Some(true),
                Some(Open::Working),
            ),
            (
                conflict(Conflict::Arguments),
                S::Conflict,
                true,
                Some(false),
                None,
            ),
            (
                conflict(Conflict::Version),
                S::Conflict,
                true,
                Some(false),
                None,
            ),
            (Answer::Busy, S::Busy, true, Some(true), Some(Open::Busy)),
            (
                Answer::NotKept(NotKept::Invalid(message.clone())),
                S::Invalid,
                true,
                Some(false),
                None,
            ),
            (
                Answer::NotKept(NotKept::Denied(message.clone())),
                S::Denied,
                true,
                None,
                None,
            ),
            (
                Answer::NotKept(NotKept::Refused(refusal())),
                S::Refused,
                true,
                None,
                None,
            ),
            (
                Answer::NotKept(NotKept::Failed(message)),
                S::Failed,
                true,
                Some(false),
                None,
            ),
            (
                Answer::Unclear { id },
                S::OutcomeUnknown,
                true,
                Some(true),
                Some(Open::OutcomeUnknown),
            ),
        ]
    }

    #[test]
    fn every_answer_says_what_it_is_whether_it_is_an_error_and_what_is_open() {
        for (answer, status, is_error, retryable, open) in answers() {
            let said = format!("{answer:?}");
            assert_eq!(answer.status(), status, "{said}");
            let id = answer.id().map(|id| id.to_string());
            let has_id = !matches!(answer, Answer::Busy | Answer::NotKept(_));
            assert_eq!(id.is_some(), has_id, "{said}");
            let result = answer.into_result(&terms());
            assert_eq!(result.is_error, Some(is_error), "{said}");
            let word = status.as_str();
            let structured = result.structured_content.clone().unwrap();
            assert_eq!(structured["status"], word, "{said}");
            let told = structured.get("operation_id").and_then(Value::as_str);
            assert_eq!(told, id.as_deref(), "{said}");
            let told = structured.get("retryable").and_then(Value::as_bool);
            assert_eq!(told, retryable, "{said}");
            let unsettled = result.meta.as_ref().and_then(|meta| meta.get(UNSETTLED));
            let open = open.map(|open| Value::from(open.as_str()));
            assert_eq!(unsettled, open.as_ref(), "{said}");
            // The same for who reads the text alone.
            let text = text_of(&result);
            assert!(text.starts_with(word), "{text}");
            assert_eq!(text.contains(", operation "), has_id, "{text}");
            if let Some(action) = structured.get("next_action").and_then(Value::as_str) {
                assert!(text.contains(action), "{text}");
            }
        }
    }

    #[test]
    fn what_an_earlier_call_came_to_says_so() {
        let fresh = completed(json!({"paid": 7})).into_result(&terms());
        assert_eq!(
            fresh.structured_content.as_ref().unwrap()["replayed"],
            false
        );
        assert!(!text_of(&fresh).contains("replayed"));
        let again = completed(json!({"paid": 7})).replayed();
        let again = again.into_result(&terms());
        let structured = again.structured_content.as_ref().unwrap();
        assert_eq!(structured["replayed"], true);
        assert_eq!(structured["result"], json!({"paid": 7}));
        assert!(text_of(&again).contains(", replayed"));
        // What waited for another call's end and heard nothing is no replay.
        assert_eq!(Answer::Busy.replayed().status(), Status::Busy);
    }

    #[test]
    fn a_result_of_a_page_is_in_the_text_too_and_a_larger_one_is_not() {
        for (bytes, told) in [(10, true), (TEXT_BYTES, true), (TEXT_BYTES + 1, false)] {
            let result = json!("x".repeat(bytes - 2));
            let text = text_of(&completed(result.clone()).into_result(&terms()));
            assert_eq!(text.contains(&result.to_string()), told, "{bytes}");
        }
    }
}
