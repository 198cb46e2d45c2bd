//! What the journal keeps of an answer or an error, and what it makes of that again.

use rmcp::model::{CallToolResult, CreateTaskResult, ServerResult, Task, TaskStatus};

use super::{
    ToolAnswer, about,
    answer::Body,
    operation::{Done, Operation, is_tool_error},
    receipts::{open, open_fact},
};
use crate::{
    connection::Line,
    error::{CallError, Failed, NotSent, NotSentReason, Rejected, Unknown, UnknownCause},
    evidence::{Outcome, ServerError},
    journal::{Entry, Fact, Failure, Journal, Kept, Record, Settler, State, moment},
    operation::{Generation, OperationKind, TaskHandle},
};

/// The cause of an outcome that is unknown because the server asked for input and stands half-way.
pub(super) const INPUT_REQUIRED: &str = "input_required";

impl Operation<'_> {
    /// What is known of the call now.
    pub(super) fn fact(&self, journal: &Journal, done: &Result<Done, CallError>) -> Fact {
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                let about = error.about();
                let by = Settler::Call {
                    generation: about.generation,
                    attempts: about.attempts,
                };
                return without(error, by);
            }
        };
        let by = match done.looked_up {
            true => Settler::LookUp,
            false => Settler::Call {
                generation: Some(done.generation),
                attempts: done.attempts,
            },
        };
        if let Some(open) = open(self.contract(), &done.result) {
            return open_fact(open, done.attempts, by);
        }
        match result_fact(journal, &done.result, by.clone()) {
            Some(fact) => fact,
            None => match &*done.result {
                ServerResult::CreateTaskResult(created) => Fact::Task {
                    task: self.task_handle(created.task.task_id.clone()),
                },
                // A question is no answer: the server stands half-way until it is given what it asked for.
                _ => half_way(by),
            },
        }
    }
}

/// The server has asked for input, and waits.
pub(super) fn half_way(by: Settler) -> Fact {
    Fact::Without {
        outcome: Outcome::Unknown,
        failure: Failure::new(INPUT_REQUIRED),
        by,
    }
}

/// A result that says how the call ended. `None`: it does not say that.
pub(super) fn result_fact(journal: &Journal, result: &ServerResult, by: Settler) -> Option<Fact> {
    let answer = match result {
        ServerResult::CallToolResult(answer) => serde_json::to_value(answer),
        ServerResult::CreateTaskResult(_) | ServerResult::InputRequiredResult(_) => return None,
        // A result without content, which rmcp decodes as an empty one.
        _ => serde_json::to_value(CallToolResult::default()),
    };
    Some(Fact::Answered {
        is_error: is_tool_error(result),
        answer: answer.map_or(Kept::Nothing, |answer| journal.kept(answer)),
        by,
    })
}

/// An error that says how the call ended, as far as anybody knows.
pub(super) fn without(error: &CallError, by: Settler) -> Fact {
    let cause = match error {
        CallError::NotSent(e) => e.reason.as_str(),
        CallError::Unknown(e) => e.cause.as_str(),
        CallError::Rejected(_) | CallError::Failed(_) => "server",
    };
    Fact::Without {
        outcome: error.outcome(),
        failure: failure(cause, error.server_error(), error.http_status()),
        by,
    }
}

pub(super) fn failure(cause: &str, error: Option<&ServerError>, status: Option<u16>) -> Failure {
    let mut failure = Failure::new(cause);
    if let Some(error) = error {
        failure = failure.answered(error.code, &error.message);
    }
    match status {
        Some(status) => failure.status(status),
        None => failure,
    }
}

/// What a settled operation is to a call that is the same once more. Of one that did not run, the error
/// that says so.
pub(super) fn replay(line: &Line, record: Record) -> Result<ToolAnswer, CallError> {
    let operation = record.intent.operation;
    let attempts = record.attempts();
    let (generation, looked_up) = match record.last().map(|entry| &entry.fact) {
        Some(Fact::Answered { by, .. } | Fact::Without { by, .. }) => match by {
            Settler::Call { generation, .. } => (*generation, false),
            Settler::LateAnswer { generation } => (Some(*generation), false),
            by => (None, matches!(by, Settler::LookUp)),
        },
        _ => (None, false),
    };
    let mut about = about(
        line,
        operation,
        OperationKind::ToolCall,
        generation,
        attempts,
    );
    about.key.clone_from(&record.intent.key);
    let not_sent = |reason| {
        let about = about.clone();
        Err(CallError::NotSent(Box::new(NotSent { about, reason })))
    };
    if record.state == State::Forgotten {
        return not_sent(NotSentReason::AnswerForgotten { operation });
    }
    if record.state == State::Cancelled {
        return not_sent(NotSentReason::WasStopped { operation });
    }
    let by_verdict = matches!(
        record.last().map(|entry| &entry.fact),
        Some(
            Fact::Answered {
                by: Settler::Verdict { .. },
                ..
            } | Fact::Without {
                by: Settler::Verdict { .. },
                ..
            }
        )
    );
    let no_answer = match by_verdict {
        true => NotSentReason::SettledByVerdict {
            operation,
            failed: record.state == State::Failed,
        },
        false => NotSentReason::AnswerNotKept { operation },
    };
    match record
        .history
        .into_iter()
        .next_back()
        .map(|entry| entry.fact)
    {
        Some(Fact::Answered {
            answer: Kept::Whole(answer),
            ..
        }) => match serde_json::from_value::<CallToolResult>(answer) {
            Ok(result) => Ok(ToolAnswer {
                body: Body::Complete(result),
                operation,
                generation: generation.unwrap_or(Generation(0)),
                attempts,
                looked_up,
                replayed: true,
                key: record.intent.key,
                task: None,
            }),
            Err(_) => not_sent(no_answer),
        },
        Some(Fact::Without {
            outcome, failure, ..
        }) => {
            let status = failure.status;
            let error = failure.code.map(|code| ServerError {
                code,
                message: failure.message.unwrap_or_default().to_string(),
                data: None,
            });
            match (outcome, error) {
                (Outcome::Failed, Some(error)) => Err(CallError::Failed(Box::new(Failed {
                    about,
                    status,
                    retry_after: None,
                    error,
                }))),
                (Outcome::Rejected, error) => Err(CallError::Rejected(Box::new(Rejected {
                    about,
                    status,
                    challenge: None,
                    retry_after: None,
                    error,
                    source: None,
                }))),
                (Outcome::NotSent, _) => not_sent(NotSentReason::IdentityTaken { operation }),
                _ => not_sent(no_answer),
            }
        }
        _ => not_sent(no_answer),
    }
}

/// What a call that goes on in a task of the server's is to one that is the same once more: the same
/// task. How it is doing is for the server to say.
pub(super) fn goes_on_in_task(record: Record) -> ToolAnswer {
    let task = record.task().cloned();
    let id = task.as_ref().map_or("", TaskHandle::id);
    let kept = |entry: &&Entry| matches!(entry.fact, Fact::Task { .. });
    let since = record.history.iter().rfind(kept);
    let since = since.map_or(record.intent.accepted_at, |entry| entry.at);
    let since = moment(since);
    let seed = Task::new(id, TaskStatus::Working, since.clone(), since);
    ToolAnswer {
        body: Body::Task(CreateTaskResult::new(seed)),
        operation: record.intent.operation,
        generation: Generation(0),
        attempts: record.attempts(),
        looked_up: false,
        replayed: true,
        key: record.intent.key,
        task,
    }
}

/// Why nobody knows what became of an operation, as a word.
pub(super) fn why_unknown(record: &Record) -> &str {
    let causes = record.history.iter().rev().map(|entry| &entry.fact);
    let mut causes = causes.filter_map(|fact| match fact {
        Fact::Without { failure, .. } => Some(failure.cause.as_str()),
        Fact::Abandoned { .. } => Some("host_gone"),
        _ => None,
    });
    causes.next().unwrap_or("in_journal")
}

/// The error of a call that was made before and of which nobody knows what became.
pub(super) fn earlier_unknown(line: &Line, record: &Record) -> CallError {
    let generation = record
        .history
        .iter()
        .rev()
        .find_map(|entry| match &entry.fact {
            Fact::Without {
                by: Settler::Call { generation, .. },
                ..
            } => *generation,
            _ => None,
        });
    let (operation, attempts) = (record.intent.operation, record.attempts());
    let mut about = about(
        line,
        operation,
        OperationKind::ToolCall,
        generation,
        attempts,
    );
    about.key.clone_from(&record.intent.key);
    CallError::Unknown(Box::new(Unknown {
        about,
        cause: UnknownCause::InJournal {
            cause: why_unknown(record).into(),
        },
        status: None,
        retry_after: None,
        unsettled: None,
        journaled: true,
        source: None,
    }))
}
