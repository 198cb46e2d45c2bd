//! What a task's end says about the operation that made it.

use std::time::Duration;

use rmcp::model::TaskPayload;
use serde_json::Value;

use crate::{
    call::{Caller, lasting::LAST_WRITE, recorded::failure, tasks::server_error},
    error::CallError,
    evidence::Outcome,
    journal::{Claimed, Fact, Journal, Settler, State},
    operation::{ConnectionName, TaskHandle},
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
        TaskPayload::Failed { error } => Fact::Without {
            outcome: Outcome::Failed,
            failure: failure("server", Some(&server_error(error.clone())), None),
            by,
        },
        TaskPayload::Cancelled => Fact::Cancelled { by },
        _ => return None,
    })
}

/// What is known of an operation whose task the server does not know any more.
pub(in crate::call) fn gone(error: &CallError) -> Option<Fact> {
    let CallError::Rejected(e) = error else {
        return None;
    };
    Some(Fact::Without {
        outcome: Outcome::Unknown,
        failure: failure("task_gone", e.error.as_ref(), e.status),
        by: Settler::Task,
    })
}

impl Caller<'_> {
    /// Records what a task has told of its operation, unless somebody else is about to. It goes on
    /// when nobody waits for it, so that nothing stays claimed.
    pub(in crate::call) async fn note_task(
        &self,
        journal: &Journal,
        task: &TaskHandle,
        fact: Fact,
        left: Duration,
    ) {
        let (journal, task) = (journal.clone(), task.clone());
        let connection = self.line.name.clone();
        let noting = tokio::spawn(async move { note(&journal, &connection, &task, fact).await });
        // Nothing is lost where it takes longer.
        let _ = tokio::time::timeout(left + LAST_WRITE, noting).await;
    }
}

/// Records what a task has told of its operation, unless somebody else is about to.
async fn note(journal: &Journal, connection: &ConnectionName, task: &TaskHandle, fact: Fact) {
    let Some(operation) = task.operation() else {
        return;
    };
    let tell = |error| {
        tracing::error!(%operation, %error, "the end of its task could not be recorded");
    };
    let (held, record) = match journal.claim(operation).await {
        Ok(Claimed::Yes(held, record)) => (held, record),
        // Nothing is lost: the server tells it again to whoever asks.
        Ok(_) => return,
        Err(error) => return tell(error),
    };
    // A handle can be put together by hand.
    let is_its = record.intent.connection == *connection
        && record.task().is_some_and(|kept| kept.id() == task.id());
    let settles = !matches!(
        fact,
        Fact::Without {
            outcome: Outcome::Unknown,
            ..
        }
    );
    let is_news = settles || record.state != State::OutcomeUnknown;
    let noted = match is_its && is_news {
        true => journal
            .append(&held, fact)
            .await
            .map(|state| state.is_settled()),
        false => Ok(false),
    };
    let left = match noted {
        Ok(true) => return,
        Ok(false) => journal.release(&held).await,
        Err(error) => {
            tell(error);
            journal.release(&held).await
        }
    };
    if let Err(error) = left {
        tell(error);
    }
}
