//! Waiting for a task's end by asking for it, on whatever session there is.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use rmcp::model::{
    CallToolResult, InputRequests, InputResponses, JsonObject, TaskPayload, TaskStatus,
};
use serde_json::Value;
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Caller, ToolAnswer,
    answer::Body,
    attempt::{AskedBy, Times, cancelled},
    times,
};
use crate::{
    error::{CallError, NotSentReason, TaskError},
    evidence::ServerError,
    operation::{Budget, Generation, OperationId, TaskAwait, TaskGet, TaskUpdate, task_interval},
    session::answer_input,
};

impl Caller<'_> {
    /// Asks how the task is doing until it is done. A lost session or a server that is away for a
    /// while is waited out: a `tasks/get` changes nothing.
    pub(crate) async fn await_task(&self, wait: TaskAwait) -> Result<ToolAnswer, TaskError> {
        let TaskAwait { task, budget } = wait;
        let id = budget.operation();
        let times =
            times(&budget, &self.line.settings.limits, Instant::now()).map_err(|invalid| {
                let kind = crate::operation::OperationKind::GetTask;
                TaskError::Call(self.not_sent(id, kind, invalid.into()))
            })?;
        let mut last = None;
        let mut given = BTreeSet::new();
        let mut interval = task_interval(None);
        loop {
            let mut get = TaskGet::new(&task);
            get.budget = self.step(&times, &budget);
            match self.task_state(get).await {
                Ok((state, generation, by)) => {
                    last = Some(state.task.status());
                    interval = task_interval(state.task.task.poll_interval_ms);
                    match state.task.payload {
                        TaskPayload::Completed { result } => return answer(id, generation, result),
                        TaskPayload::Failed { error } => {
                            return Err(TaskError::Failed(server_error(error)));
                        }
                        TaskPayload::Cancelled => return Err(TaskError::Cancelled),
                        TaskPayload::InputRequired { mut input_requests } => {
                            input_requests.retain(|key, _| !given.contains(key));
                            if !input_requests.is_empty() {
                                let keys: Vec<_> = input_requests.keys().cloned().collect();
                                let responses =
                                    self.ask_for_task(input_requests, by, &times, last).await?;
                                let mut update = TaskUpdate::new(&task, responses);
                                update.budget = self.step(&times, &budget);
                                // Never a second time: nobody knows what it would do twice.
                                self.update_task(update).await.map_err(TaskError::Call)?;
                                given.extend(keys);
                            }
                        }
                        _ => {}
                    }
                }
                Err(error) if ends_the_wait(&error) => return Err(TaskError::Call(error)),
                // The server is away, or the session went: the next one is asked.
                Err(_) => {}
            }
            self.rest(interval, &times, last).await?;
        }
    }

    /// Waits before it asks again.
    async fn rest(
        &self,
        interval: Duration,
        times: &Times,
        last: Option<TaskStatus>,
    ) -> Result<(), TaskError> {
        tokio::select! {
            biased;
            () = cancelled(times) => Err(TaskError::WaitCancelled),
            () = times.spent() => Err(TaskError::DeadlinePassed { last }),
            () = tokio::time::sleep(interval) => Ok(()),
        }
    }

    /// What each request on the way gets of the whole budget.
    fn step(&self, times: &Times, whole: &Budget) -> Budget {
        // Zero would be a mistake of the caller's; this is only late.
        let left = times.left().max(Duration::from_millis(1));
        Budget {
            total: Some(left),
            attempt: whole.attempt.map(|attempt| attempt.min(left)),
            cancel: whole.cancel.clone(),
            meta: whole.meta.clone(),
            ..Budget::default()
        }
    }

    async fn ask_for_task(
        &self,
        questions: InputRequests,
        by: Option<Box<AskedBy>>,
        times: &Times,
        last: Option<TaskStatus>,
    ) -> Result<InputResponses, TaskError> {
        let settings = &self.line.settings;
        let Some(by) = by.filter(|_| settings.handled) else {
            return Err(TaskError::InputRequired(questions));
        };
        let _held = times.clock.hold();
        let nobody_waits = CancellationToken::new();
        let _when_dropped = nobody_waits.clone().drop_guard();
        let mut answering = JoinSet::new();
        let most = self.line.settings.limits.max_asked;
        let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        for (key, question) in questions {
            let (handler, peer) = (settings.handler.clone(), by.peer.clone());
            let ct = nobody_waits.clone();
            let places = Arc::clone(&places);
            answering.spawn(async move {
                // Nobody closes it.
                let _place = places.acquire_owned().await;
                let answer = answer_input(&handler, peer, &key, question, ct).await;
                (key, answer)
            });
        }
        let all = async {
            let mut responses = InputResponses::new();
            while let Some(answered) = answering.join_next().await {
                let code = match answered {
                    Ok((key, Ok(answer))) => {
                        responses.insert(key, answer);
                        continue;
                    }
                    Ok((_, Err(error))) => i64::from(error.code.0),
                    Err(_) => -32603,
                };
                return Err(TaskError::HandlerFailed { code });
            }
            Ok(responses)
        };
        tokio::select! {
            biased;
            all = all => all,
            () = cancelled(times) => Err(TaskError::WaitCancelled),
            () = times.spent() => Err(TaskError::DeadlinePassed { last }),
        }
    }
}

/// Whether asking again cannot help.
fn ends_the_wait(error: &CallError) -> bool {
    match error {
        CallError::NotSent(e) => matches!(
            e.reason,
            NotSentReason::Invalid(_)
                | NotSentReason::Closed
                | NotSentReason::CallerOwnedClosed
                | NotSentReason::NotInRevision { .. }
        ),
        CallError::Rejected(_) | CallError::Failed(_) => true,
        CallError::Unknown(_) => error.ownership().is_lent(),
    }
}

fn answer(
    operation: OperationId,
    generation: Generation,
    result: JsonObject,
) -> Result<ToolAnswer, TaskError> {
    let result: CallToolResult =
        serde_json::from_value(Value::Object(result)).map_err(|_| TaskError::WrongType)?;
    Ok(ToolAnswer {
        body: Body::Complete(result),
        operation,
        generation,
        attempts: 1,
        looked_up: false,
        replayed: false,
        key: None,
        task: None,
    })
}

pub(super) fn server_error(error: JsonObject) -> ServerError {
    ServerError {
        code: error.get("code").and_then(Value::as_i64).unwrap_or(-32603),
        message: error
            .get("message")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned(),
        data: error.get("data").cloned(),
    }
}
