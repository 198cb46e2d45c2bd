//! What a long work's callers see of it: its receipt, and where it runs.

use rmcp::model::{CallToolResult, DetailedTask, JsonObject, Task, TaskPayload};
use rmcp::schemars::JsonSchema;
use serde_json::Value;

use super::super::{
    answer::{Answer, Wire},
    definition::Terms,
    desk::state_of,
    receipt::{Receipt, Standing, millis},
};
use crate::extension::ReceiptState;

/// How long a client may wait between two looks, in milliseconds: a person who watches a bar does not
/// see the difference, and a thousand who do are a thousand reads of one row each second.
const LOOK_EVERY_MS: u64 = 1_000;

/// What is kept of a work that runs, beside its receipt.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// The host that runs it.
    pub(super) host: String,
    /// The arguments of its start.
    pub(super) arguments: JsonObject,
    /// What it last wrote down to go on from.
    pub(super) checkpoint: Option<Value>,
    /// How far it is, from 0 to 1.
    pub(super) done: Option<f64>,
    /// What it says about that.
    pub(super) message: Option<String>,
    /// Whether it was asked to stop.
    pub(super) cancel_requested: bool,
    /// When it last wrote something, in milliseconds since 1970.
    pub(super) updated_at: i64,
}

/// A work as a caller who may see it sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) receipt: Receipt,
    /// It is there while the work runs.
    pub(super) row: Option<Row>,
}

/// The structured content of the tools that read and cancel.
#[derive(JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
#[expect(dead_code, reason = "it is their schema")]
pub(super) struct LongWire<O> {
    #[serde(flatten)]
    wire: Wire<O>,
    /// Whether it was asked to stop while it is under way. That stops nothing by itself.
    cancel_requested: bool,
    /// How far it is, from 0 to 1.
    #[serde(default)]
    done: Option<f64>,
}

impl Seen {
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self.receipt.standing, Standing::Running)
    }

    fn cancel_requested(&self) -> bool {
        let row = self.row.as_ref().filter(|_| !self.is_over());
        row.is_some_and(|row| row.cancel_requested)
    }

    /// Where it stands, for the extension.
    pub(crate) fn state(&self) -> ReceiptState {
        match self.cancel_requested() {
            true => ReceiptState::CancelRequested,
            false => state_of(&self.receipt.standing),
        }
    }

    /// What its start is answered with once more.
    pub(crate) fn result(&self, terms: &Terms) -> CallToolResult {
        self.answer(terms, true)
    }

    fn answer(&self, terms: &Terms, replayed: bool) -> CallToolResult {
        let receipt = std::sync::Arc::new(self.receipt.clone());
        Answer::Kept { receipt, replayed }.into_result(terms)
    }

    /// What the tools that read and cancel answer with: looking at something is no failure, whatever it
    /// looks like.
    pub(super) fn reading(&self, terms: &Terms) -> CallToolResult {
        // Nothing is run or replayed by looking.
        let mut result = self.answer(terms, false);
        result.is_error = Some(false);
        let row = self.row.as_ref().filter(|_| !self.is_over());
        if let Some(Value::Object(said)) = &mut result.structured_content {
            let asked = self.cancel_requested();
            said.insert("cancel_requested".into(), asked.into());
            if let Some(done) = row.and_then(|row| row.done) {
                said.insert("done".into(), done.into());
            }
            if let Some(message) = row.and_then(|row| row.message.clone()) {
                said.insert("message".into(), message.into());
            }
        }
        result
    }

    /// It as a task of MCP's.
    pub(crate) fn task(&self) -> Task {
        let receipt = &self.receipt;
        let at = |at| humantime::format_rfc3339_millis(at).to_string();
        let updated = self.row.as_ref().map(|row| row.updated_at);
        let updated = updated.map_or(receipt.at, super::super::receipt::time);
        let status = rmcp::model::TaskStatus::Working;
        let mut task = Task::new(receipt.id.to_string(), status, at(receipt.at), at(updated))
            .with_poll_interval_ms(LOOK_EVERY_MS);
        let kept = millis(receipt.answered_until).saturating_sub(millis(receipt.at));
        task.ttl_ms = u64::try_from(kept).ok();
        task.status_message = match (self.cancel_requested(), &self.row) {
            (true, _) => Some("It was asked to stop.".to_owned()),
            (false, Some(row)) => row.message.clone(),
            (false, None) => None,
        };
        task
    }

    /// The same with what it came to. A work that is stopped is a cancelled task, and every other end is
    /// the result that its start would have had.
    pub(crate) fn detailed(&self, terms: &Terms) -> DetailedTask {
        let payload = match &self.receipt.standing {
            Standing::Running => TaskPayload::Working,
            Standing::Cancelled => TaskPayload::Cancelled,
            _ => TaskPayload::Completed {
                result: match serde_json::to_value(self.result(terms)) {
                    Ok(Value::Object(result)) => result,
                    // A result of ours is an object.
                    _ => JsonObject::new(),
                },
            },
        };
        DetailedTask::new(self.task(), payload)
    }
}
