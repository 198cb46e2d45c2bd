//! Answers that come after their callers were told that nobody knows the outcome.

use std::{sync::Arc, time::Duration};

use rmcp::model::{ErrorData, ServerResult};
use tokio::task::JoinSet;

use super::{
    lasting::release,
    operation::is_tool_error,
    recorded::{failure, result_fact},
};
use crate::{
    connection::Line,
    event::{Ended, What},
    evidence::{CameBack, Outcome, judge},
    journal::{Claimed, Fact, Journal, Record, Settler},
    operation::{Generation, OperationId, TaskHandle},
    session::Late,
    transport::server_error,
};

/// How often, and how many times, an answer is offered to an operation that somebody else is resolving.
const OFFER_EVERY: Duration = Duration::from_millis(250);
const OFFERS: usize = 240;

/// Waits for the answers of attempts that were given up, until their sessions end, and records the first
/// that says what became of the operation.
pub(super) async fn settle_late(
    line: &Arc<Line>,
    journal: &Journal,
    operation: OperationId,
    tool: &str,
    late: Vec<Late>,
) {
    let mut waiting = JoinSet::new();
    for mut late in late {
        waiting.spawn(async move { (late.generation(), late.answer().await) });
    }
    while let Some(heard) = waiting.join_next().await {
        // None of them panics; one that did would be heard no more.
        let Ok((generation, Some(answer))) = heard else {
            continue;
        };
        let Some((fact, ended)) = said(line, journal, operation, tool, generation, answer) else {
            continue;
        };
        if record(journal, operation, fact).await {
            line.tell(What::LateAnswer {
                operation,
                generation,
                ended,
            });
            return;
        }
    }
}

/// What an answer says about the operation. `None`: nothing.
fn said(
    line: &Line,
    journal: &Journal,
    operation: OperationId,
    tool: &str,
    generation: Generation,
    answer: Result<ServerResult, ErrorData>,
) -> Option<(Fact, Ended)> {
    let by = Settler::LateAnswer { generation };
    match answer {
        Ok(ServerResult::CreateTaskResult(created)) => {
            let (connection, task) = (line.name.clone(), created.task.task_id);
            let task = TaskHandle::new(connection, tool, task).of(operation);
            Some((Fact::Task { task }, Ended::Answered))
        }
        Ok(result) => {
            let ended = match is_tool_error(&result) {
                true => Ended::ToolError,
                false => Ended::Answered,
            };
            Some((result_fact(journal, &result, by)?, ended))
        }
        Err(error) => {
            let error = server_error(error);
            let (outcome, _) = judge(&CameBack::Error(error.clone()), None, &line.settings.rules);
            let known = matches!(outcome, Outcome::Failed | Outcome::Rejected);
            let fact = Fact::Without {
                outcome,
                failure: failure("server", Some(&error), None),
                by,
            };
            known.then_some((fact, Ended::Without(outcome)))
        }
    }
}

/// Whether a fact leaves the operation as unknown as it is. That one attempt among several was refused says
/// nothing about the others, each of which may have run.
fn says_nothing(fact: &Fact, record: &Record) -> bool {
    let refused = matches!(
        fact,
        Fact::Without {
            outcome: Outcome::Rejected,
            ..
        }
    );
    refused && record.attempts() > 1
}

/// Records it, unless the operation is settled already. An answer goes before whatever else somebody does
/// to find out, but waits for that to be over.
async fn record(journal: &Journal, operation: OperationId, fact: Fact) -> bool {
    for _ in 0..OFFERS {
        match journal.claim(operation).await {
            Ok(Claimed::Yes(held, record)) if says_nothing(&fact, &record) => {
                release(journal, &held).await;
                return false;
            }
            Ok(Claimed::Yes(held, _)) => match journal.append(&held, fact.clone()).await {
                Ok(state) => {
                    if !state.is_settled() {
                        // What is left to find out is for others.
                        let _ = journal.release(&held).await;
                    }
                    return true;
                }
                Err(error) => {
                    let _ = journal.release(&held).await;
                    tracing::error!(%operation, %error, "a late answer could not be recorded");
                }
            },
            Ok(Claimed::Settled(_) | Claimed::Missing) => return false,
            Ok(Claimed::Elsewhere(_)) => {}
            Err(error) => {
                tracing::error!(%operation, %error, "a late answer could not be recorded");
            }
        }
        tokio::time::sleep(OFFER_EVERY).await;
    }
    false
}
