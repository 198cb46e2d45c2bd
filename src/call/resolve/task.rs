//! What a task's end says about the operation that made it.

use rmcp::model::TaskPayload;
use serde_json::Value;

use super::settle::without;
use crate::{
    call::{Caller, tasks::server_error},
    error::CallError,
    evidence::Outcome,
    journal::{Fact, Journal, Kept, Settler, State, Taken, table},
    operation::TaskHandle,
};

/// What became of a task, if it has come to an end.
pub(in crate::call) fn end_of(journal: &Journal, payload: &TaskPayload) -> Option<Fact> {
    let by = Settler::Task;
    Some(match payload {
        TaskPayload::Completed { result } => Fact::Answered {
            is_error: result.get("isError") == Some(&Value::Bool(true)),
            answer: journal.kept(Value::Object(result.clone())),
            by,
        },
        TaskPayload::Failed { error } => {
            let error = server_error(error.clone());
            without(Outcome::Failed, "failed", Some(&error), None, by)
        }
        TaskPayload::Cancelled => Fact::Cancelled { by },
        _ => return None,
    })
}

/// What is known of an operation whose task the server does not know any more.
pub(in crate::call) fn gone(error: &CallError) -> Option<Fact> {
    let CallError::Rejected(e) = error else {
        return None;
    };
    let (by, error) = (Settler::Task, e.error.as_ref());
    Some(without(Outcome::Unknown, "task_gone", error, e.status, by))
}

impl Caller<'_> {
    /// Records what a task has told of its operation, unless somebody else is about to.
    pub(in crate::call) async fn note_task(
        &self,
        journal: &Journal,
        task: &TaskHandle,
        fact: Fact,
    ) {
        let Some(operation) = task.operation() else {
            return;
        };
        let claim = match journal.take(operation).await {
            Ok(Taken::Yes(claim)) => claim,
            // Nothing is lost: the server tells it again to whoever asks.
            Ok(_) => return,
            Err(error) => {
                tracing::error!(%operation, %error, "the end of its task could not be recorded");
                return;
            }
        };
        let record = &claim.record;
        // A handle can be put together by hand.
        let is_its = record.intent.connection == self.line.name
            && record.task().is_some_and(|kept| kept.id() == task.id());
        let is_news =
            record.state != State::OutcomeUnknown || fact.event() != table::Event::LoseSight;
        if !is_its || !is_news {
            return claim.release().await;
        }
        if let Err(error) = claim.append(fact).await {
            tracing::error!(%operation, %error, "the end of its task could not be recorded");
        }
    }
}
