//! One operation on its way: admitted, recorded, attempted, and judged.

use std::{sync::Arc, time::Duration};

use rmcp::model::{ClientRequest, ServerResult};
use tokio::{sync::SemaphorePermit, time::Instant};

use super::{
    Caller, about,
    attempt::{Answered, Times, Verdict, Without, attempt, cancelled, overloaded},
};
use crate::{
    catalog::ToolSchemas,
    connection::{Attempt, Line},
    error::{CallError, Failed, NotSent, NotSentReason, Rejected, Unknown, Unsettled, Wait},
    event::What,
    evidence::{Outcome, retry_after_seconds},
    journal::{Intent, Journal, Settled},
    operation::{
        AttemptId, Budget, Generation, IdempotencyKey, OperationId, OperationKind, Page, Turn, Walk,
    },
    policy::{Decision, Situation, ToolContract, decide},
    spec::Overload,
};

/// One operation on its way.
pub(super) struct Operation<'a> {
    pub(super) line: &'a Line,
    pub(super) journal: Option<&'a dyn Journal>,
    pub(super) id: OperationId,
    pub(super) kind: OperationKind,
    pub(super) request: Arc<ClientRequest>,
    pub(super) tool: Option<String>,
    pub(super) key: Option<IdempotencyKey>,
    pub(super) times: Times,
    pub(super) attempts: u32,
    pub(super) generation: Option<Generation>,
    pub(super) admitted: bool,
}

/// An operation that was answered.
pub(super) struct Done {
    pub(super) result: ServerResult,
    pub(super) generation: Generation,
    pub(super) attempts: u32,
    pub(super) looked_up: bool,
}

impl Operation<'_> {
    pub(super) async fn run(&mut self) -> Result<Done, CallError> {
        let line = self.line;
        if line.closing.is_cancelled() {
            return Err(self.error(NotSentReason::Closed.into(), None));
        }
        if let Some(journal) = self.journal {
            let intent = Intent {
                operation: self.id,
                kind: self.kind,
                connection: line.name.clone(),
                key: self.key.clone(),
            };
            if let Err(error) = journal.accepted(&intent).await {
                let reason = NotSentReason::Journal(Arc::from(error));
                return Err(self.error(reason.into(), None));
            }
        }
        let admitted = match self.admitted {
            true => Ok(None),
            false => admit(line, &self.times).await.map(Some),
        };
        let done = match admitted {
            Ok(permit) => {
                let done = self.attempts().await;
                drop(permit);
                done
            }
            Err(reason) => Err(self.error(reason.into(), None)),
        };
        if let Err(CallError::Unknown(unknown)) = &done {
            if let Some(generation) = unknown.about.generation {
                line.tell(What::OutcomeUnknown {
                    operation: self.id,
                    generation,
                });
            }
            line.note_unknown(self.id);
        }
        if let Some(journal) = self.journal {
            let how = match &done {
                Ok(_) => Settled::Answered,
                Err(error) => Settled::Without(error.outcome()),
            };
            if let Err(error) = journal.settled(self.id, how).await {
                tracing::error!(operation = %self.id, %error, "the outcome could not be recorded");
            }
        }
        done
    }

    async fn attempts(&mut self) -> Result<Done, CallError> {
        let contract = match &self.tool {
            Some(tool) => self.line.settings.contracts.for_tool(tool).clone(),
            None => ToolContract::AtMostOnce,
        };
        let schema = self.schema_before(&contract).await;
        let mut unknown: Option<Without> = None;
        let mut only_in = None;
        loop {
            let without = match self.attempt_once(only_in).await {
                Ok(Answered { result, generation }) => {
                    let attempts = self.attempts;
                    return Ok(Done {
                        result,
                        generation,
                        attempts,
                        looked_up: false,
                    });
                }
                Err(without) => without,
            };
            let again = without.misplaced;
            let without = self.not_forgetting(unknown.take(), without)?;
            let decision = match again {
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
                    match self.schema_holds(&contract, schema.as_ref()).await {
                        Ok(generation) => only_in = generation,
                        Err(unsettled) => return Err(self.error(without, Some(unsettled))),
                    }
                    unknown = Some(without);
                }
                Decision::LookUp(wait) => {
                    if !self.pause(wait).await {
                        return Err(self.error(without, Some(Unsettled::Interrupted)));
                    }
                    return self.look_up(&contract, without).await;
                }
            }
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
                let unsettled = if last.cancelled {
                    Unsettled::Interrupted
                } else {
                    Unsettled::RepeatNotSent
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

    async fn attempt_once(&mut self, only_in: Option<Generation>) -> Result<Answered, Without> {
        let attempt_id = AttemptId::mint();
        if let Some(journal) = self.journal {
            journal
                .dispatching(self.id, attempt_id)
                .await
                .map_err(|error| NotSentReason::Journal(Arc::from(error)))?;
        }
        self.attempts += 1;
        let this = Attempt {
            operation: self.id,
            id: attempt_id,
            number: self.attempts,
            only_in,
        };
        let mut told = None;
        let mut handed_over = |generation| told = Some(generation);
        let request = Arc::clone(&self.request);
        let (kind, times) = (self.kind, &self.times);
        let done = attempt(self.line, kind, this, request, times, &mut handed_over).await;
        if told.is_some() {
            self.generation = told;
        } else {
            self.attempts -= 1;
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
            attempts: self.attempts,
            remaining: self.times.total.saturating_duration_since(Instant::now()),
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
            ToolContract::Keyed { .. } | ToolContract::Status { .. } if self.key.is_none() => {
                Some(Unsettled::NoKey)
            }
            _ => Some(Unsettled::Spent),
        }
    }

    pub(super) fn error(&self, without: Without, unsettled: Option<Unsettled>) -> CallError {
        let Without {
            verdict,
            generation,
            report,
            source,
            ..
        } = without;
        let generation = generation.or(self.generation);
        let about = about(self.line, self.id, self.kind, generation, self.attempts);
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
                source,
            })),
        }
    }
}

/// Takes a place in the connection before anything is put into its mailbox.
async fn admit<'a>(line: &'a Line, times: &Times) -> Result<SemaphorePermit<'a>, NotSentReason> {
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
        () = tokio::time::sleep_until(times.total) => {
            Err(NotSentReason::DeadlinePassed(Wait::Admission))
        }
    }
}

/// Reads all pages of the tool list, for a contract that has to know a tool's schema.
pub(super) async fn schemas(caller: &Caller<'_>, times: &Times) -> Option<Arc<ToolSchemas>> {
    let mut walk = Walk::new(caller.line.settings.limits.max_pages);
    let mut tools = Vec::new();
    let mut cursor = None;
    let mut generation = None;
    loop {
        let budget = Budget {
            total: Some(times.total.saturating_duration_since(Instant::now())),
            cancel: times.cancel.clone(),
            ..Budget::default()
        };
        let page = Page {
            cursor: cursor.take(),
            budget,
        };
        let answered = caller.page_of_tools(page).await.ok()?;
        // Pages of two generations are two lists.
        if *generation.get_or_insert(answered.1) != answered.1 {
            return None;
        }
        tools.extend(answered.0.tools);
        match walk.turn(answered.0.next_cursor).ok()? {
            Turn::Next(next) => cursor = Some(next),
            Turn::Complete => {
                let schemas = Arc::new(ToolSchemas::new(answered.1, tools));
                caller.line.keep_schemas(&schemas);
                return Some(schemas);
            }
        }
    }
}
