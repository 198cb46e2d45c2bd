//! The rounds of a request whose server asks for input before it goes on.
//!
//! Each round is a request of its own under the operation's id and deadline, sent at most once. While
//! the host's handler answers, the operation's clock stands.

use std::{sync::Arc, time::Duration};

use rmcp::model::{
    ClientRequest, InputRequests, InputRequiredResult, InputResponses, ServerResult,
};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    attempt::{Answered, AskedBy, Verdict, Without, cancelled},
    operation::{Done, Operation},
};
use crate::{
    error::{CallError, InputMissing, UnknownCause, Wait},
    operation::{Input, OperationKind},
    session::answer_input,
    spec::Handler,
};

/// Who takes the rounds after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounds {
    /// The connection's handler.
    Driven,
    /// The caller, who gets the server's question as the answer.
    Callers,
}

impl Operation<'_> {
    /// Goes on from an answer that asks for input until there is one that does not.
    pub(super) async fn rounds(&mut self, mut done: Done) -> Result<Done, CallError> {
        if self.rounds == Rounds::Callers {
            return Ok(done);
        }
        let most = self.line.settings.limits.max_rounds;
        let mut without_questions = 0;
        for sent in 1.. {
            let (ServerResult::InputRequiredResult(asked), Some(by)) = (&*done.result, &done.asked)
            else {
                return Ok(done);
            };
            if sent >= most {
                return Err(self.half_way(InputMissing::TooManyRounds { most }));
            }
            let InputRequiredResult {
                input_requests,
                request_state,
                ..
            } = asked.clone();
            let questions = input_requests.unwrap_or_default();
            let by = by.clone();
            let responses = if questions.is_empty() {
                if !self.pause(backoff(without_questions)).await {
                    return Err(self.half_way_because(UnknownCause::Cancelled));
                }
                without_questions += 1;
                InputResponses::new()
            } else {
                without_questions = 0;
                let Some(handler) = self.handler() else {
                    return match self.kind {
                        // The caller sees the question and can go on from there.
                        OperationKind::ToolCall => Ok(done),
                        _ => Err(self.half_way(InputMissing::NoHandler)),
                    };
                };
                self.ask(&handler, questions, &by).await?
            };
            let input = Input {
                responses: (!responses.is_empty()).then_some(responses),
                state: request_state,
            };
            put_input(Arc::make_mut(&mut self.request), input);
            done = self.next_round(&done).await?;
        }
        Ok(done)
    }

    /// Sends the next round.
    async fn next_round(&mut self, before: &Done) -> Result<Done, CallError> {
        self.attempts = 0;
        if self.kind.is_read() {
            let done = self.attempts().await;
            return done.map_err(|error| self.not_forgetting_the_rounds(error));
        }
        // Only where it was asked for: whoever else gets it may take it for a call of its own.
        match self.attempt_once(Some(before.generation), None).await {
            Ok(Answered {
                result,
                raw,
                generation,
                asked,
            }) => Ok(Done {
                result,
                raw,
                generation,
                asked,
                attempts: self.attempts,
                looked_up: false,
            }),
            Err(without) if without.misplaced => Err(self.half_way(InputMissing::SessionGone)),
            Err(without) => {
                let error = self.error(without, None);
                Err(self.not_forgetting_the_rounds(error))
            }
        }
    }

    /// A round that was not sent leaves the one before it, which was.
    fn not_forgetting_the_rounds(&self, error: CallError) -> CallError {
        match error {
            CallError::NotSent(e) => self.half_way(InputMissing::NotSent {
                why: e.reason.to_string(),
            }),
            other => other,
        }
    }

    fn handler(&self) -> Option<Handler> {
        let settings = &self.line.settings;
        settings.handled.then(|| settings.handler.clone())
    }

    /// Lets the host's handler answer all questions of a round, side by side as far as its limit goes.
    async fn ask(
        &self,
        handler: &Handler,
        questions: InputRequests,
        by: &AskedBy,
    ) -> Result<InputResponses, CallError> {
        let _held = self.times.clock.hold();
        let nobody_waits = CancellationToken::new();
        let _when_dropped = nobody_waits.clone().drop_guard();
        let mut answering = JoinSet::new();
        let most = self.line.settings.limits.max_asked;
        let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        for (key, question) in questions {
            let (handler, peer, ct) = (handler.clone(), by.peer.clone(), nobody_waits.clone());
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
                match answered {
                    Ok((key, Ok(answer))) => drop(responses.insert(key, answer)),
                    Ok((_, Err(error))) => {
                        let code = i64::from(error.code.0);
                        return Err(InputMissing::HandlerFailed { code });
                    }
                    // The handler's panics are caught above; this is the end of the runtime.
                    Err(_) => return Err(InputMissing::HandlerFailed { code: -32603 }),
                }
            }
            Ok(responses)
        };
        let session_over = async {
            if self.kind.is_read() {
                std::future::pending::<()>().await;
            }
            by.pulse.ended().await;
        };
        tokio::select! {
            biased;
            all = all => all.map_err(|missing| self.half_way(missing)),
            () = cancelled(&self.times) => Err(self.half_way_because(UnknownCause::Cancelled)),
            () = self.line.closing.cancelled() => Err(self.half_way(InputMissing::SessionGone)),
            () = session_over => Err(self.half_way(InputMissing::SessionGone)),
            () = self.times.spent() => {
                Err(self.half_way_because(UnknownCause::DeadlinePassed(Wait::Input)))
            }
        }
    }

    fn half_way(&self, missing: InputMissing) -> CallError {
        self.half_way_because(UnknownCause::InputMissing(missing))
    }

    fn half_way_because(&self, cause: UnknownCause) -> CallError {
        self.error(Without::new(Verdict::Unknown(cause)), None)
    }
}

/// The wait before a round for which the server only wants to be asked again. As rmcp waits.
fn backoff(rounds: u32) -> Duration {
    Duration::from_millis((50_u64 << rounds.min(3)).min(250))
}

/// Puts what was asked for into a request.
pub(super) fn put_input(request: &mut ClientRequest, input: Input) {
    let Input { responses, state } = input;
    match request {
        ClientRequest::CallToolRequest(r) => {
            r.params.input_responses = responses;
            r.params.request_state = state;
        }
        ClientRequest::GetPromptRequest(r) => {
            r.params.input_responses = responses;
            r.params.request_state = state;
        }
        ClientRequest::ReadResourceRequest(r) => {
            r.params.input_responses = responses;
            r.params.request_state = state;
        }
        _ => {}
    }
}
