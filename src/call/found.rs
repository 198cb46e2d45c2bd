//! A call that the journal has already: under the same key, or under the operation id that its caller
//! chose.

use super::{
    ToolAnswer,
    attempt::cancelled,
    journaled::Asks,
    operation::Operation,
    recorded::{INPUT_REQUIRED, earlier_unknown, replay, why_unknown},
};
use crate::{
    error::{CallError, NotSentReason},
    journal::{By, Claimed, Held, Journal, Record, State},
};

/// What a call comes to that the journal has already.
pub(super) enum Found {
    /// To what is known of the first one.
    Outcome(Result<ToolAnswer, CallError>),
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
                false => NotSentReason::OtherArguments { operation },
            };
            return Err(self.error(reason.into(), None));
        }
        if !record.state.is_settled() && record.state != State::OutcomeUnknown {
            record = match self.until_it_rests(journal, record).await? {
                Some(record) => record,
                // It was removed meanwhile, which only what is settled long ago can be.
                None => return Ok(Found::Free),
            };
        }
        match record.state {
            State::Accepted | State::Dispatching | State::CancelRequested => {
                Err(self.error(NotSentReason::StillRuns { operation }.into(), None))
            }
            State::OutcomeUnknown if asks.has_input && why_unknown(&record) == INPUT_REQUIRED => {
                match self.in_time(journal.claim(operation)).await? {
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
            State::OutcomeUnknown => Ok(Found::Outcome(Err(earlier_unknown(self.line, &record)))),
            state if state.frees_its_key() && operation != self.id => Ok(Found::Free),
            _ => Ok(Found::Outcome(replay(self.line, record))),
        }
    }

    /// Waits, within the deadline, until the first call is settled or its outcome is unknown.
    async fn until_it_rests(
        &self,
        journal: &Journal,
        record: Record,
    ) -> Result<Option<Record>, CallError> {
        let operation = record.intent.operation;
        let waiting = journal.wait(operation, self.times.left());
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
