//! A call that the journal has already: under the same key, or under the operation id that its caller
//! chose.

use std::{sync::Arc, time::Duration};

use rmcp::model::ClientRequest;
use serde_json::Value;

use super::{
    ToolAnswer,
    attempt::cancelled,
    journaled::Asks,
    operation::Operation,
    recorded::{INPUT_REQUIRED, earlier_unknown, goes_on_in_task, replay, why_unknown},
    resolve::{Known, ResolveError, resolve},
};
use crate::{
    error::{CallError, FirstCall, NotSentReason, Source, Unsettled},
    journal::{By, Claimed, Held, Journal, Record, State},
    operation::Resolve,
};

impl Found {
    fn outcome(known: Result<ToolAnswer, CallError>) -> Self {
        Self::Outcome(Box::new(known))
    }
}

/// Whether somebody has the call in hand, as far as the journal knows.
fn runs(record: &Record) -> bool {
    !record.state.is_settled() && record.state != State::OutcomeUnknown
}

/// What a call comes to that the journal has already.
pub(super) enum Found {
    /// To what is known of the first one.
    Outcome(Box<Result<ToolAnswer, CallError>>),
    /// To nothing: the first one ended without having run, and the key is free.
    Free,
    /// To its next round: the server asked for input, and this call brings it.
    NextRound(Held),
}

impl Operation<'_> {
    /// Looks for the call, where its caller named it.
    pub(super) async fn look(
        &self,
        journal: &Journal,
        asks: &Asks,
    ) -> Result<Option<Record>, CallError> {
        let found = async {
            if asks.id_given
                && let Some(record) = journal.find(By::Operation(self.id)).await?
            {
                return Ok(Some(record));
            }
            match self.key.as_ref().filter(|_| asks.key_given) {
                Some(key) => journal.find(By::Key(&self.line.name, key)).await,
                None => Ok(None),
            }
        };
        let found = self.in_time(found).await?;
        Ok(found
            .filter(|record| record.intent.operation == self.id || !record.state.frees_its_key()))
    }

    /// What this call comes to, with the record of the first one.
    pub(super) async fn found(
        &mut self,
        journal: &Journal,
        asks: &Asks,
        mut record: Record,
    ) -> Result<Found, CallError> {
        let operation = record.intent.operation;
        let same = record.intent.connection == self.line.name
            && record.intent.fingerprint == asks.fingerprint
            && (self.key.is_none() || !asks.key_given || record.intent.key == self.key);
        if !same {
            let reason = match operation == self.id {
                true => NotSentReason::IdentityTaken { operation },
                false => NotSentReason::OtherArguments {
                    operation,
                    first: match record.state {
                        State::OutcomeUnknown => FirstCall::InDoubt,
                        State::Failed => FirstCall::Failed,
                        state if state.is_settled() => FirstCall::Settled,
                        _ => FirstCall::Running,
                    },
                },
            };
            return Err(self.error(reason.into(), None));
        }
        if runs(&record) && record.task().is_none() {
            record = match self.until_it_rests(journal, record).await? {
                Some(record) => record,
                // It was removed meanwhile, which only what is settled long ago can be.
                None => return Ok(Found::Free),
            };
        }
        match record.state {
            _ if runs(&record) && record.task().is_some() => {
                Ok(Found::outcome(Ok(goes_on_in_task(record))))
            }
            State::Accepted | State::Dispatching | State::CancelRequested => {
                Err(self.error(NotSentReason::StillRuns { operation }.into(), None))
            }
            State::OutcomeUnknown if asks.has_input && why_unknown(&record) == INPUT_REQUIRED => {
                match self.claim(journal, operation).await? {
                    Claimed::Yes(held, record) => {
                        self.id = operation;
                        self.key.clone_from(&record.intent.key);
                        Ok(Found::NextRound(held))
                    }
                    Claimed::Elsewhere(_) | Claimed::Settled(_) | Claimed::Missing => {
                        Err(self.error(NotSentReason::StillRuns { operation }.into(), None))
                    }
                }
            }
            State::OutcomeUnknown => self.find_out(journal, record).await,
            state if state.frees_its_key() && operation != self.id => Ok(Found::Free),
            _ => Ok(Found::outcome(replay(self.line, record))),
        }
    }

    /// Nobody knows what became of the first one: it is resolved, as far as its contract goes and the
    /// time of this call.
    async fn find_out(&mut self, journal: &Journal, record: Record) -> Result<Found, CallError> {
        let operation = record.intent.operation;
        let mut order = Resolve::new(operation);
        order.arguments = match &*self.request {
            ClientRequest::CallToolRequest(request) => Some(Value::Object(
                request.params.arguments.clone().unwrap_or_default(),
            )),
            _ => None,
        };
        // Zero would be a mistake of the caller's; this is only late.
        let left = self.times.left().max(Duration::from_millis(1));
        order.budget.total = Some(left);
        order.budget.attempt = self.times.attempt.map(|attempt| attempt.min(left));
        order.budget.cancel.clone_from(&self.times.cancel);
        let still = |why: Option<Unsettled>, source: Option<Source>| {
            let mut error = earlier_unknown(self.line, &record);
            if let CallError::Unknown(unknown) = &mut error {
                (unknown.unsettled, unknown.source) = (why, source);
            }
            Ok(Found::outcome(Err(error)))
        };
        match resolve(self.line, journal, order).await {
            Ok(resolution) => Ok(match resolution.known {
                Known::Answered(answer) => Found::outcome(Ok(*answer)),
                Known::Failed(failed) => Found::outcome(Err(CallError::Failed(failed))),
                Known::DidNotRun(_) if operation != self.id => Found::Free,
                Known::DidNotRun(e) => Found::outcome(Err(CallError::NotSent(e))),
                Known::Cancelled => {
                    let reason = NotSentReason::WasStopped { operation };
                    return Err(self.error(reason.into(), None));
                }
            }),
            Err(ResolveError::Settled(record)) => match record.state.frees_its_key() {
                true if operation != self.id => Ok(Found::Free),
                _ => Ok(Found::outcome(replay(self.line, *record))),
            },
            Err(ResolveError::Elsewhere(_)) => {
                Err(self.error(NotSentReason::StillRuns { operation }.into(), None))
            }
            Err(ResolveError::StillUnknown(unknown)) => {
                Ok(Found::outcome(Err(CallError::Unknown(unknown))))
            }
            Err(ResolveError::NothingAllowed { why, .. }) => still(why, None),
            Err(error) => still(None, Some(Arc::new(error))),
        }
    }

    /// Waits, within the deadline, until the first call is settled, its outcome is unknown, or the
    /// server has made a task of it.
    async fn until_it_rests(
        &self,
        journal: &Journal,
        record: Record,
    ) -> Result<Option<Record>, CallError> {
        let operation = record.intent.operation;
        let waiting = journal.wait_until(operation, self.times.left(), |record| {
            !runs(record) || record.task().is_some()
        });
        let rests = tokio::select! {
            biased;
            () = cancelled(&self.times) => Err(NotSentReason::Cancelled),
            () = self.line.closing.cancelled() => Err(NotSentReason::Closed),
            record = waiting => record.map_err(super::journaled::unrecorded),
            // The clock of the call may stand, that of the journal does not.
            () = self.times.spent() => Err(NotSentReason::StillRuns { operation }),
        };
        rests.map_err(|reason| self.error(reason.into(), None))
    }
}
