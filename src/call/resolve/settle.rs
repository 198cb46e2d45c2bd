//! Goes the ways there are, and records what is found.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest};
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{
    Known, Resolution, ResolveError, gone,
    way::{ByContract, Way},
};
use crate::{
    call::{
        Caller, ToolAnswer, about,
        attempt::{Verdict, Without},
        journaled::Journaled,
        operation::{Done, Operation, admit, in_words},
        receipts::{open, open_fact},
        recorded::{result_fact, why_unknown, without},
        rounds::Rounds,
    },
    connection::Line,
    error::{
        CallError, InputMissing, NotSentReason, Source, TaskError, Unknown, UnknownCause, Unsettled,
    },
    event::{Ground, What},
    evidence::{Outcome, retry_after_seconds},
    extension::Open,
    journal::{Fact, Held, Journal, Kept, Record, Settler, State, StoreError},
    operation::{OperationKind, Resolve, TaskAwait, TaskHandle},
    session::Late,
};

/// One operation that is being resolved.
pub(super) struct Settling<'a> {
    line: &'a Arc<Line>,
    journal: &'a Journal,
    record: &'a Record,
    ask: &'a Resolve,
    /// When this began.
    since: Instant,
}

/// What a way led to.
enum Found {
    Resolution(Resolution),
    /// The server made a task of it, or has it still.
    Task(TaskHandle),
}

impl<'a> Settling<'a> {
    pub(super) fn new(
        line: &'a Arc<Line>,
        journal: &'a Journal,
        record: &'a Record,
        ask: &'a Resolve,
    ) -> Self {
        Self {
            line,
            journal,
            record,
            ask,
            since: Instant::now(),
        }
    }

    fn caller(&self) -> Caller<'a> {
        Caller {
            line: self.line,
            journal: None,
            admitted: false,
            rounds: Rounds::Driven,
        }
    }

    /// Goes one way after the other, and tells how it ended.
    pub(super) async fn by(
        &self,
        way: Way,
        held: Held,
    ) -> (Result<Resolution, ResolveError>, Vec<Late>) {
        let intent = &self.record.intent;
        let request = match &way.contract {
            Some(ByContract::Repeat(request)) => Arc::clone(request),
            // Never sent: it says what the operation is about.
            _ => {
                let params = CallToolRequestParams::new(intent.tool.clone());
                Arc::new(ClientRequest::from(CallToolRequest::new(params)))
            }
        };
        let caller = self.caller();
        let (id, kind) = (intent.operation, OperationKind::ToolCall);
        let begun = caller.operation(id, kind, Ok(request), &self.ask.budget);
        let mut operation = match begun {
            Ok(operation) => operation,
            Err(error) => return (Err(self.repeat_not_sent(error)), Vec::new()),
        };
        operation.tool = Some(intent.tool.clone());
        operation.key.clone_from(&intent.key);
        operation.attempts = self.record.attempts();
        // By the call that left it unknown, however this ends.
        operation.watch.seen.perhaps_sent = true;
        operation.attempted_before = first_attempt_ago(self.record);
        operation.journaled = Some(Box::new(Journaled::new(self.journal, held, None)));
        let span = operation.begin();
        let done = self.ways(&mut operation, way).instrument(span).await;
        let revision = || self.line.status().revision;
        match &done {
            Ok(resolution) => {
                self.line.tell(What::Resolved {
                    operation: id,
                    by: word(&resolution.by),
                });
                match &resolution.known {
                    Known::Answered(answer) => {
                        operation.watch.answered(answer.is_error(), revision)
                    }
                    Known::Failed(e) => operation
                        .watch
                        .failed(&CallError::Failed(e.clone()), revision),
                    Known::DidNotRun(e) => operation
                        .watch
                        .failed(&CallError::NotSent(e.clone()), revision),
                    Known::Cancelled => operation.watch.answered(true, revision),
                }
            }
            Err(ResolveError::StillUnknown(e)) => operation
                .watch
                .failed(&CallError::Unknown(e.clone()), revision),
            Err(_) => {}
        }
        let late = operation.journaled.take().map(|journaled| journaled.late);
        (done, late.unwrap_or_default())
    }

    async fn ways(
        &self,
        operation: &mut Operation<'_>,
        way: Way,
    ) -> Result<Resolution, ResolveError> {
        if let Some(task) = &way.task {
            match self.by_task(operation, task).await {
                Err(ResolveError::StillUnknown(e))
                    if e.unsettled == Some(Unsettled::TaskGone) && way.contract.is_some() => {}
                done => return done,
            }
        }
        let found = match way.contract {
            Some(ByContract::Repeat(_)) => self.by_repeat(operation).await?,
            Some(ByContract::LookUp) => self.by_look_up(operation).await?,
            // There was a task, or there was no way.
            None => return Err(self.unknown(operation, Unsettled::TaskGone, None)),
        };
        match found {
            Found::Resolution(resolution) => Ok(resolution),
            Found::Task(task) => self.by_task(operation, &task).await,
        }
    }

    /// Waits for the end of its task.
    async fn by_task(
        &self,
        operation: &Operation<'_>,
        task: &TaskHandle,
    ) -> Result<Resolution, ResolveError> {
        // Zero would be a mistake of the caller's; this is only late.
        let left = operation.times.left().max(Duration::from_millis(1));
        let mut wait = TaskAwait::new(task).deadline(left);
        wait.budget.cancel.clone_from(&self.ask.budget.cancel);
        let by = Settler::Task;
        let (fact, known) = match self.caller().await_task(wait).await {
            Ok(mut answer) => {
                answer.operation = operation.id;
                answer.attempts = operation.attempts;
                answer.key.clone_from(&operation.key);
                (
                    self.answered(&answer, &by),
                    Known::Answered(Box::new(answer)),
                )
            }
            Err(TaskError::Failed(error)) => {
                let error = operation.error(Without::new(Verdict::Failed(error)), None);
                return self.ended(operation, error, by).await;
            }
            Err(TaskError::Cancelled) => (Fact::Cancelled { by: by.clone() }, Known::Cancelled),
            Err(error) => {
                if let TaskError::Call(error) = &error
                    && let Some(fact) = gone(error)
                    && self.record.state != State::OutcomeUnknown
                {
                    append(operation, fact).await?;
                }
                let unsettled = match &error {
                    TaskError::Call(CallError::Rejected(_)) => Unsettled::TaskGone,
                    TaskError::WaitCancelled => Unsettled::Interrupted,
                    _ => Unsettled::TaskGoesOn,
                };
                let source: Source = Arc::new(error);
                return Err(self.unknown(operation, unsettled, Some(source)));
            }
        };
        Ok(self.settled(operation, fact, known, by).await)
    }

    /// Sends the same request again, on the session that there is, as long as the tool is what it was.
    async fn by_repeat(&self, operation: &mut Operation<'_>) -> Result<Found, ResolveError> {
        let repeats = self.line.settings.repeats;
        let contract = &self.record.intent.contract;
        let _place = match admit(self.line, &operation.times).await {
            Ok(place) => place,
            Err(reason) => {
                let error = operation.error(reason.into(), None);
                return Err(self.repeat_not_sent(error));
            }
        };
        let mut last: Option<CallError> = None;
        let mut wait = Duration::ZERO;
        for failures in 1..=repeats.max_attempts {
            if wait >= operation.times.left() {
                break;
            }
            if !self.pause(operation, wait).await {
                return Err(self.unknown(operation, Unsettled::Interrupted, None));
            }
            let print = self.record.intent.schema.as_ref();
            let only_in = match operation.schema_is(contract, print).await {
                Ok(generation) => generation,
                Err(unsettled) => {
                    let source = last.map(|error| Arc::new(error) as Source);
                    return Err(self.unknown(operation, unsettled, source));
                }
            };
            match operation.ask_again_for_receipt(contract, only_in).await {
                Ok(Some(done)) => return self.answered_again(operation, done).await,
                Ok(None) => {}
                Err(unsettled) => {
                    let source = last.map(|error| Arc::new(error) as Source);
                    return Err(self.unknown(operation, unsettled, source));
                }
            }
            let ground = Some(Ground::of(contract));
            // It is durable before it is handed over.
            let lost = match operation.attempt_once(only_in, ground).await {
                Ok(answered) => {
                    let done = Done {
                        result: answered.result,
                        raw: answered.raw,
                        generation: answered.generation,
                        asked: answered.asked,
                        attempts: operation.attempts,
                        looked_up: false,
                    };
                    return self.answered_again(operation, done).await;
                }
                Err(lost) => lost,
            };
            let retry_after = lost.report.retry_after.as_deref();
            wait = repeats.backoff.wait(failures, rand::random()).max(
                retry_after
                    .and_then(retry_after_seconds)
                    .unwrap_or_default(),
            );
            if lost.misplaced {
                // The session on which the tool was compared is gone, and nothing was sent.
                continue;
            }
            let cancelled = lost.cancelled;
            let error = operation.error(lost, None);
            if error.outcome() != Outcome::Unknown {
                let found = self.ended(operation, error, Settler::Repeat).await?;
                return Ok(Found::Resolution(found));
            }
            append(operation, without(&error, Settler::Repeat)).await?;
            if cancelled {
                return Err(self.stays(Unsettled::Interrupted, error));
            }
            last = Some(error);
        }
        let source = last.map(|error| Arc::new(error) as Source);
        Err(self.unknown(operation, Unsettled::Spent, source))
    }

    /// The answer to a repeat, which may ask for input or be a task.
    async fn answered_again(
        &self,
        operation: &mut Operation<'_>,
        done: Done,
    ) -> Result<Found, ResolveError> {
        let by = match done.looked_up {
            true => Settler::LookUp,
            false => Settler::Repeat,
        };
        let done = match done.asked.is_some() {
            true => operation.rounds(done).await,
            false => Ok(done),
        };
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                let found = self.ended(operation, error, by).await?;
                return Ok(Found::Resolution(found));
            }
        };
        if let Some(open) = open(operation.contract(), &done.result) {
            // An attempt before this one may have run, whatever this one says of itself.
            append(operation, open_fact(open, u32::MAX, by)).await?;
            let unsettled = match open {
                Open::OutcomeUnknown => Unsettled::ReceiptUnknown,
                _ => Unsettled::Spent,
            };
            return Err(self.unknown(operation, unsettled, None));
        }
        let answer = operation.answer(done);
        if let Some(task) = answer.task() {
            let (task, kept) = (task.clone(), task.clone());
            append(operation, Fact::Task { task: kept }).await?;
            return Ok(Found::Task(task));
        }
        if answer.input_required().is_some() {
            let cause = UnknownCause::InputMissing(InputMissing::NoHandler);
            let error = operation.error(Without::new(Verdict::Unknown(cause)), None);
            return Err(self.stays(Unsettled::Interrupted, error));
        }
        let fact = self.answered(&answer, &by);
        let known = Known::Answered(Box::new(answer));
        let found = self.settled(operation, fact, known, by).await;
        Ok(Found::Resolution(found))
    }

    /// Asks the status tool.
    async fn by_look_up(&self, operation: &mut Operation<'_>) -> Result<Found, ResolveError> {
        let contracts = &self.line.settings.contracts;
        let contract = contracts.for_tool(&self.record.intent.tool).clone();
        let _place = match admit(self.line, &operation.times).await {
            Ok(place) => place,
            Err(reason) => {
                let error = operation.error(reason.into(), None);
                let why = in_words(&error);
                return Err(self.stays(Unsettled::LookUpFailed { why }, error));
            }
        };
        let by = Settler::LookUp;
        let before = Without::new(Verdict::Unknown(self.cause()));
        let over = self.over_since();
        let found = match operation.look_up(&contract, before, over).await {
            Ok(done) => {
                let answer = operation.answer(done);
                let fact = self.answered(&answer, &by);
                let known = Known::Answered(Box::new(answer));
                self.settled(operation, fact, known, by).await
            }
            Err(error) => self.ended(operation, error, by).await?,
        };
        Ok(Found::Resolution(found))
    }

    /// Since when the session of the last attempt is over for certain.
    ///
    /// Of a host that is gone nobody knows when its session ended: at the latest when the journal was
    /// opened after it, or, where hosts share one, when this host took the operation over. By this
    /// process's own clock, which nobody sets. Of a host that lives it is not known, and so an absence
    /// is not final.
    fn over_since(&self) -> Option<Instant> {
        let history = &self.record.history;
        let last = |wanted: fn(&Fact) -> bool| history.iter().rposition(|e| wanted(&e.fact));
        let sent = last(|fact| matches!(fact, Fact::Dispatching { .. }));
        let gone = last(|fact| matches!(fact, Fact::Abandoned { .. }))?;
        if sent.is_some_and(|sent| sent > gone) {
            return None;
        }
        Some(self.journal.opened_alone().unwrap_or(self.since))
    }

    async fn pause(&self, operation: &Operation<'_>, wait: Duration) -> bool {
        if wait.is_zero() {
            return true;
        }
        operation.pause(wait).await
    }

    fn answered(&self, answer: &ToolAnswer, by: &Settler) -> Fact {
        let result = answer.clone().into_server_result();
        let kept = result_fact(self.journal, &result, by.clone());
        kept.unwrap_or(Fact::Answered {
            is_error: answer.is_error(),
            answer: Kept::Nothing,
            by: by.clone(),
        })
    }

    /// What an end without a result comes to: known, or as unknown as before.
    async fn ended(
        &self,
        operation: &Operation<'_>,
        error: CallError,
        by: Settler,
    ) -> Result<Resolution, ResolveError> {
        let fact = without(&error, by.clone());
        let known = match error {
            CallError::Failed(failed) => Known::Failed(failed),
            CallError::NotSent(e) if matches!(e.reason, NotSentReason::AbsenceIsFinal) => {
                Known::DidNotRun(e)
            }
            CallError::NotSent(_) => {
                append(operation, fact).await?;
                return Err(self.repeat_not_sent(error));
            }
            // The attempt before it may have run, whatever the server says of this one.
            CallError::Rejected(_) => {
                append(operation, fact).await?;
                return Err(self.stays(Unsettled::RepeatRejected, error));
            }
            CallError::Unknown(unknown) => return Err(ResolveError::StillUnknown(unknown)),
        };
        Ok(self.settled(operation, fact, known, by).await)
    }

    /// Records what is known. Where that fails it is known all the same.
    async fn settled(
        &self,
        operation: &Operation<'_>,
        fact: Fact,
        known: Known,
        by: Settler,
    ) -> Resolution {
        if let Err(error) = append(operation, fact.clone()).await
            && let Some(journaled) = &operation.journaled
        {
            journaled.append_later(fact, error);
        }
        Resolution {
            operation: operation.id,
            by,
            known,
        }
    }

    /// Why nobody knew before.
    fn cause(&self) -> UnknownCause {
        UnknownCause::InJournal {
            cause: why_unknown(self.record).into(),
        }
    }

    fn unknown(
        &self,
        operation: &Operation<'_>,
        unsettled: Unsettled,
        source: Option<Source>,
    ) -> ResolveError {
        let (line, id, kind) = (self.line, operation.id, operation.kind);
        let mut about = about(line, id, kind, operation.generation, operation.attempts);
        about.key.clone_from(&operation.key);
        ResolveError::StillUnknown(Box::new(Unknown {
            about,
            cause: self.cause(),
            status: None,
            retry_after: None,
            unsettled: Some(unsettled),
            journaled: true,
            source,
        }))
    }

    fn repeat_not_sent(&self, error: CallError) -> ResolveError {
        let why = in_words(&error);
        self.stays(Unsettled::RepeatNotSent { why }, error)
    }

    /// As unknown as before, because of `error`.
    fn stays(&self, unsettled: Unsettled, error: CallError) -> ResolveError {
        ResolveError::StillUnknown(Box::new(Unknown {
            about: error.about().clone(),
            cause: self.cause(),
            status: error.http_status(),
            retry_after: error.retry_after().map(str::to_owned),
            unsettled: Some(unsettled),
            journaled: true,
            source: Some(Arc::new(error)),
        }))
    }
}

/// How it became known, as a word.
fn word(by: &Settler) -> &'static str {
    match by {
        Settler::Call { .. } => "call",
        Settler::LateAnswer { .. } => "late_answer",
        Settler::Repeat => "repeat",
        Settler::LookUp => "look_up",
        Settler::Task => "task",
        Settler::Verdict { .. } => "verdict",
    }
}

/// Adds what happened.
async fn append(operation: &Operation<'_>, fact: Fact) -> Result<(), StoreError> {
    match &operation.journaled {
        Some(journaled) => {
            let left = operation.times.left();
            journaled.append(fact, left).await.map(drop)
        }
        None => unreachable!("what is resolved is journaled"),
    }
}

/// How long ago the host before made its first attempt, by the wall clock.
fn first_attempt_ago(record: &Record) -> Duration {
    let dispatched = record.history.iter().find_map(|entry| match entry.fact {
        Fact::Dispatching { .. } => Some(entry.at),
        _ => None,
    });
    dispatched
        .and_then(|at| SystemTime::now().duration_since(at).ok())
        .unwrap_or_default()
}
