//! One operation on its way: admitted, recorded, attempted, and judged.

use std::{sync::Arc, time::Duration};

use rmcp::model::{CallToolResult, ClientRequest, ServerResult};
use tokio::{sync::SemaphorePermit, time::Instant};
use tracing::{Instrument as _, Span};

use super::{
    ToolAnswer, about,
    answer::{Body, RawBody},
    attempt::{
        Answered, AskedBy, HeardToTheEnd, Times, Verdict, Without, attempt, cancelled, overloaded,
    },
    contract::Schema,
    journaled::Journaled,
    receipts::open,
    rounds::Rounds,
};
use crate::{
    connection::{Attempt, Line},
    error::{CallError, Failed, NotSent, NotSentReason, Rejected, Unknown, Unsettled, Wait},
    event::{Ended, Ground, What},
    evidence::{Outcome, RawResult, retry_after_seconds},
    extension::Open,
    operation::{AttemptId, Generation, IdempotencyKey, OperationId, OperationKind, TaskHandle},
    policy::{Decision, Situation, ToolContract, decide},
    spec::Overload,
    telemetry::Watch,
};

/// One operation on its way.
pub(super) struct Operation<'a> {
    pub(super) line: &'a Arc<Line>,
    /// The right to write its history, where it has one.
    pub(super) journaled: Option<Box<Journaled>>,
    pub(super) id: OperationId,
    pub(super) kind: OperationKind,
    pub(super) request: Arc<ClientRequest>,
    pub(super) tool: Option<String>,
    pub(super) key: Option<IdempotencyKey>,
    /// The schema that it is made against, where its contract may repeat it and the schema was read.
    pub(super) schema: Option<Schema>,
    pub(super) times: Times,
    pub(super) attempts: u32,
    /// Since when the first attempt that was handed over had waited for that.
    pub(super) first_attempt: Option<Instant>,
    /// How long before that a host that is gone made the first one.
    pub(super) attempted_before: Duration,
    pub(super) generation: Option<Generation>,
    pub(super) admitted: bool,
    pub(super) rounds: Rounds,
    pub(super) _heard: HeardToTheEnd,
    /// The one session that it may run on, whatever becomes of that.
    pub(super) pinned: Option<Generation>,
    pub(super) watch: Watch<'a>,
}

/// An operation that was answered.
pub(super) struct Done {
    pub(super) result: Box<ServerResult>,
    /// What the tool said, where it was left as it came: the result is all but that.
    pub(super) raw: Option<Arc<RawResult>>,
    pub(super) generation: Generation,
    /// Who asks for input, if that is the answer.
    pub(super) asked: Option<Box<AskedBy>>,
    pub(super) attempts: u32,
    pub(super) looked_up: bool,
}

impl Operation<'_> {
    /// Runs it in its span, and tells how it ended.
    pub(super) async fn run(&mut self) -> Result<Done, CallError> {
        let span = self.begin();
        let done = self.run_to_its_end().instrument(span).await;
        self.end(&done);
        done
    }

    /// The span in which it runs. The request goes with it.
    pub(super) fn begin(&mut self) -> Span {
        let request = Arc::make_mut(&mut self.request);
        self.watch
            .propagate(self.line.settings.trace_context, request);
        self.watch.span()
    }

    /// Tells how it ended.
    pub(super) fn end(&mut self, done: &Result<Done, CallError>) {
        let revision = || self.line.status().revision;
        match done {
            Ok(done) => self.watch.answered(is_tool_error(&done.result), revision),
            Err(error) => self.watch.failed(error, revision),
        }
    }

    async fn run_to_its_end(&mut self) -> Result<Done, CallError> {
        let line = self.line;
        if line.closing.is_cancelled() {
            return Err(self.error(NotSentReason::Closed.into(), None));
        }
        let _permit = match self.admitted {
            true => None,
            false => match admit(line, &self.times).await {
                Ok(permit) => Some(permit),
                Err(reason) => return Err(self.error(reason.into(), None)),
            },
        };
        self.all_rounds().await
    }

    /// All that is done with a place in the connection.
    pub(super) async fn all_rounds(&mut self) -> Result<Done, CallError> {
        let done = match self.attempts().await {
            Ok(done) if done.asked.is_some() => self.rounds(done).await,
            done => done,
        };
        if let Err(CallError::Unknown(unknown)) = &done {
            if let Some(generation) = unknown.about.generation {
                self.line.tell(What::OutcomeUnknown {
                    operation: self.id,
                    generation,
                    cause: unknown.cause.as_str(),
                });
            }
            self.line.note_unknown(self.id);
        }
        done
    }

    pub(super) fn task_handle(&self, task: String) -> TaskHandle {
        let tool = self.tool.clone().unwrap_or_default();
        TaskHandle::new(self.line.name.clone(), tool, task).of(self.id)
    }

    /// A tool's answer, as it is told to the caller.
    pub(super) fn answer(&self, done: Done) -> ToolAnswer {
        let task = match &*done.result {
            ServerResult::CreateTaskResult(created) => {
                Some(self.task_handle(created.task.task_id.clone()))
            }
            _ => None,
        };
        let is_error = is_tool_error(&done.result);
        ToolAnswer {
            body: match (done.raw, *done.result) {
                (Some(raw), _) => Body::Raw(Arc::new(RawBody::new(raw, is_error))),
                (None, ServerResult::CallToolResult(result)) => Body::Complete(result),
                (None, ServerResult::InputRequiredResult(result)) => Body::InputRequired(result),
                (None, ServerResult::CreateTaskResult(result)) => Body::Task(result),
                // A result without content, which rmcp decodes as an empty one.
                (None, _) => Body::Complete(CallToolResult::default()),
            },
            operation: self.id,
            generation: done.generation,
            attempts: done.attempts,
            looked_up: done.looked_up,
            replayed: false,
            key: self.key.clone(),
            task,
        }
    }

    pub(super) async fn attempts(&mut self) -> Result<Done, CallError> {
        let contract = self.contract().clone();
        if self.schema.is_none() {
            self.schema = self.schema_before(&contract).await;
        }
        let mut unknown: Option<Without> = None;
        let mut refused: Option<Without> = None;
        let mut may_resend = true;
        let (mut only_in, mut ground) = (self.pinned, None);
        loop {
            let without = match self.attempt_once(only_in, ground).await {
                Ok(Answered {
                    result,
                    raw,
                    generation,
                    asked,
                }) => {
                    let busy = open(&contract, &result) == Some(Open::Busy);
                    match unknown.take_if(|_| busy) {
                        // It says that it changed nothing, and not what became of the one before.
                        Some(before) => before,
                        None => {
                            let attempts = self.attempts;
                            return Ok(Done {
                                result,
                                raw,
                                generation,
                                asked,
                                attempts,
                                looked_up: false,
                            });
                        }
                    }
                }
                Err(without) => without,
            };
            if let Some(refused) = refused.take()
                && (without.misplaced || without.verdict.outcome() == Outcome::NotSent)
            {
                // It was not sent again: the refusal is what is known.
                return Err(self.error(refused, None));
            }
            if may_resend && unknown.is_none() && self.has_fresh_credentials(&without).await {
                may_resend = false;
                (only_in, ground) = (without.generation, Some(Ground::Credentials));
                refused = Some(without);
                continue;
            }
            let again = without.misplaced;
            ground = Some(Ground::of(&contract));
            let without = self.not_forgetting(unknown.take(), without)?;
            let decision = match again {
                // Another session would be the answer to another question.
                _ if self.pinned.is_some() => Decision::Tell,
                // It may have been handed over before its session ended, and then it counts.
                true if self.attempts >= self.line.settings.repeats.max_attempts => Decision::Tell,
                true => Decision::Repeat(Duration::ZERO),
                false => self.decide(&contract, &without),
            };
            match decision {
                Decision::Tell => {
                    let unsettled = self.unsettled(&contract, &without);
                    return Err(self.error(without, unsettled));
                }
                Decision::Repeat(wait) => {
                    if !self.pause(wait).await {
                        return Err(self.error(without, self.if_tool(Unsettled::Interrupted)));
                    }
                    match self.ask_for_receipt(&contract, &without).await {
                        Ok(Some(done)) => return Ok(done),
                        Ok(None) => {}
                        Err(unsettled) => return Err(self.error(without, Some(unsettled))),
                    }
                    match self.schema_holds(&contract, self.schema.as_ref()).await {
                        Ok(generation) => only_in = generation,
                        Err(unsettled) => return Err(self.error(without, Some(unsettled))),
                    }
                    if let Err(unsettled) = self.receipts_hold(&contract, only_in) {
                        return Err(self.error(without, Some(unsettled)));
                    }
                    unknown = Some(without);
                }
                Decision::LookUp(wait) => {
                    if !self.pause(wait).await {
                        return Err(self.error(without, Some(Unsettled::Interrupted)));
                    }
                    return self.look_up(&contract, without, None).await;
                }
            }
        }
    }

    /// The contract in force.
    pub(super) fn contract(&self) -> &ToolContract {
        match &self.tool {
            Some(tool) => self.line.settings.contracts.for_tool(tool),
            None => &ToolContract::AtMostOnce,
        }
    }

    /// What is known of a repeat together with the attempt before it: where the repeat was not
    /// sent, or was refused, that one may still have run.
    fn not_forgetting(&self, before: Option<Without>, last: Without) -> Result<Without, CallError> {
        let Some(before) = before else {
            return Ok(last);
        };
        match last.verdict.outcome() {
            _ if last.misplaced => Ok(before),
            Outcome::NotSent => {
                let unsettled = match last.cancelled {
                    true => Unsettled::Interrupted,
                    false => Unsettled::RepeatNotSent {
                        why: in_words(&self.error(last, None)),
                    },
                };
                Err(self.error(before, self.if_tool(unsettled)))
            }
            // The server's answer to a read is the answer, also if it is a refusal.
            Outcome::Rejected if !self.kind.is_read() => {
                Err(self.error(before, Some(Unsettled::RepeatRejected)))
            }
            _ => Ok(last),
        }
    }

    /// Only tools have contracts that could stay unsettled.
    fn if_tool(&self, unsettled: Unsettled) -> Option<Unsettled> {
        self.tool.as_ref().map(|_| unsettled)
    }

    /// Waits before a repeat. `false`: the caller cancelled, or the connection was closed.
    pub(super) async fn pause(&self, wait: Duration) -> bool {
        tokio::select! {
            biased;
            () = cancelled(&self.times) => false,
            () = self.line.closing.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        }
    }

    pub(super) async fn attempt_once(
        &mut self,
        only_in: Option<Generation>,
        repeats: Option<Ground>,
    ) -> Result<Answered, Without> {
        let attempt_id = match &mut self.journaled {
            None => AttemptId::mint(),
            // Durable before anything is handed over.
            Some(journaled) => journaled.dispatching(&self.times).await?,
        };
        let since = self.watch.waits_since();
        self.attempts += 1;
        let this = Attempt {
            operation: self.id,
            kind: self.kind,
            id: attempt_id,
            number: self.attempts,
            only_in,
            repeats,
            since,
        };
        let request = Arc::clone(&self.request);
        let (kind, times) = (self.kind, &self.times);
        let seen = self.watch.attempt_begins();
        let late = self.journaled.is_some();
        let mut done = attempt(self.line, kind, this, request, times, late, seen).await;
        if let (Err(without), Some(journaled)) = (&mut done, &mut self.journaled) {
            journaled.late.extend(without.late.take().map(|late| *late));
        }
        if let (Ok(answered), Some(_)) = (&mut done, &self.journaled) {
            // It is about to be recorded.
            answered.read();
        }
        match self.watch.seen.generation {
            Some(generation) => {
                self.first_attempt.get_or_insert(since);
                self.generation = Some(generation);
                self.watch.attempt_ended(
                    attempt_id,
                    self.attempts,
                    match &done {
                        Ok(answered) if is_tool_error(&answered.result) => Ended::ToolError,
                        Ok(_) => Ended::Answered,
                        Err(without) => Ended::Without(without.verdict.outcome()),
                    },
                );
            }
            None => {
                self.attempts -= 1;
                self.watch.attempt_stayed_here(self.generation);
            }
        }
        done
    }

    fn decide(&self, contract: &ToolContract, without: &Without) -> Decision {
        if without.cancelled || self.line.closing.is_cancelled() {
            return Decision::Tell;
        }
        let situation = Situation {
            kind: self.kind,
            contract,
            outcome: without.verdict.outcome(),
            session: without.session,
            lent: self.line.ownership.is_lent(),
            has_key: self.key.is_some(),
            receipts: self.receipts(without),
            attempts: self.attempts,
            remaining: self.times.left(),
            retry_after: without
                .report
                .retry_after
                .as_deref()
                .and_then(retry_after_seconds),
            jitter: rand::random(),
        };
        decide(&situation, &self.line.settings.repeats)
    }

    /// Why the contract, if there is one, did not settle an unknown outcome.
    fn unsettled(&self, contract: &ToolContract, without: &Without) -> Option<Unsettled> {
        let unknown = without.verdict.outcome() == Outcome::Unknown;
        if !unknown || without.cancelled {
            return None;
        }
        match contract {
            ToolContract::AtMostOnce => None,
            _ if self.line.ownership.is_lent() => Some(Unsettled::CallerOwned),
            ToolContract::Keyed { .. } | ToolContract::Status { .. } | ToolContract::Receipts
                if self.key.is_none() =>
            {
                Some(Unsettled::NoKey)
            }
            ToolContract::Receipts => {
                let why = self.without_receipts(without);
                Some(why.unwrap_or(Unsettled::Spent))
            }
            _ => Some(Unsettled::Spent),
        }
    }

    pub(super) fn error(&self, without: Without, unsettled: Option<Unsettled>) -> CallError {
        let generation = without.generation.or(self.generation);
        let (line, id, kind) = (self.line, self.id, self.kind);
        let without = Without {
            generation,
            ..without
        };
        let mut error = error_of(line, id, kind, without, unsettled, self.attempts);
        error.about_mut().key.clone_from(&self.key);
        error
    }
}

/// What a caller is told of an operation without an answer.
pub(super) fn error_of(
    line: &Line,
    id: OperationId,
    kind: OperationKind,
    without: Without,
    unsettled: Option<Unsettled>,
    attempts: u32,
) -> CallError {
    let Without {
        verdict,
        generation,
        report,
        source,
        ..
    } = without;
    let about = about(line, id, kind, generation, attempts);
    let status = report.failed_status();
    let retry_after = report.retry_after;
    match verdict {
        Verdict::NotSent(reason) => CallError::NotSent(Box::new(NotSent { about, reason })),
        Verdict::Rejected(error) => CallError::Rejected(Box::new(Rejected {
            about,
            status,
            challenge: report.challenge,
            retry_after,
            error,
            source,
        })),
        Verdict::Failed(error) => CallError::Failed(Box::new(Failed {
            about,
            status,
            retry_after,
            error,
        })),
        Verdict::Unknown(cause) => CallError::Unknown(Box::new(Unknown {
            about,
            cause,
            status,
            retry_after,
            unsettled,
            journaled: false,
            source,
        })),
    }
}

/// Why there is no answer, for whoever is told of another call than the one that failed.
pub(super) fn in_words(error: &CallError) -> Arc<str> {
    error.why().to_string().into()
}

/// Whether it is a tool's answer that says that the tool failed.
pub(super) fn is_tool_error(result: &ServerResult) -> bool {
    matches!(result, ServerResult::CallToolResult(result) if result.is_error == Some(true))
}

/// Takes a place in the connection before anything is put into its mailbox.
pub(super) async fn admit<'a>(
    line: &'a Line,
    times: &Times,
) -> Result<SemaphorePermit<'a>, NotSentReason> {
    if let Ok(permit) = line.admission.try_acquire() {
        return Ok(permit);
    }
    if line.settings.limits.overload == Overload::Refuse {
        return Err(overloaded(line));
    }
    let cancelled = async {
        match &times.cancel {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = line.closing.cancelled() => Err(NotSentReason::Closed),
        () = cancelled => Err(NotSentReason::Cancelled),
        permit = line.admission.acquire() => permit.map_err(|_| NotSentReason::Closed),
        () = times.spent() => {
            Err(NotSentReason::DeadlinePassed(Wait::Admission))
        }
    }
}
