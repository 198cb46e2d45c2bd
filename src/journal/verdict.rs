//! A person's or a program's word on what became of an operation.

use serde_json::Value;

use super::{
    Claimed, Fact, Failure, Held, Journal, JournalError, Kept, Settler, State, StoreError,
};
use crate::{evidence::Outcome, operation::OperationId};

/// What somebody found out about an operation whose outcome was unknown.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Who says so: 1 to [`MAX_WHO_BYTES`](Self::MAX_WHO_BYTES) bytes without control characters.
    pub who: String,
    /// Why: 1 to [`MAX_WHY_BYTES`](Self::MAX_WHY_BYTES) bytes. It is kept with the operation, also
    /// after its answer is forgotten.
    pub why: String,
    /// What became of it.
    pub outcome: Ruling,
}

/// What became of an operation, by somebody's word.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Ruling {
    /// It ran and did what it was to do. What the server would have answered, where that is known: it
    /// is given to whoever comes with the same key.
    Succeeded(Option<Value>),
    /// It ran, and failed; an effect may stand.
    Failed,
    /// It did not run and will not. **Its key is free from then on**: whoever comes with it runs the
    /// tool. A request that is still on its way somewhere makes this wrong.
    DidNotRun,
    /// It was begun, and is established to have been stopped.
    Stopped,
}

/// A verdict that cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerdictError {
    /// Nothing but space.
    #[error("`{field}` is empty; say it in a few words")]
    Empty {
        /// Which field.
        field: &'static str,
    },
    /// Longer than what is kept.
    #[error("`{field}` has {bytes} bytes; the most that is kept is {most}")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// A control character, such as a line break.
    #[error("`{field}` holds a control character at byte {at}; remove it")]
    ControlCharacter {
        /// Which field.
        field: &'static str,
        /// Its byte offset.
        at: usize,
    },
}

impl Verdict {
    /// The longest `who`: a name, an address or the name of a program.
    pub const MAX_WHO_BYTES: usize = 256;
    /// The longest `why`: a paragraph or two, and no place to store documents in.
    pub const MAX_WHY_BYTES: usize = 4 * 1024;

    fn check(&self) -> Result<(), VerdictError> {
        bounded("who", &self.who, Self::MAX_WHO_BYTES)?;
        bounded("why", &self.why, Self::MAX_WHY_BYTES)?;
        match self.who.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(VerdictError::ControlCharacter { field: "who", at }),
            None => Ok(()),
        }
    }
}

fn bounded(field: &'static str, text: &str, most: usize) -> Result<(), VerdictError> {
    let bytes = text.len();
    if text.trim().is_empty() {
        return Err(VerdictError::Empty { field });
    }
    if bytes > most {
        return Err(VerdictError::TooLong { field, bytes, most });
    }
    Ok(())
}

impl std::fmt::Debug for Ruling {
    /// Shows nothing of the answer.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Succeeded(_) => "Succeeded",
            Self::Failed => "Failed",
            Self::DidNotRun => "DidNotRun",
            Self::Stopped => "Stopped",
        })
    }
}

impl Journal {
    /// Settles an operation whose outcome is unknown by somebody's word, which is recorded with who and
    /// why.
    ///
    /// Nothing is sent. An answer that comes after it changes nothing.
    ///
    /// ```
    /// # use mcp_supervisor::{OperationId, journal::{Journal, JournalError, Ruling, Verdict}};
    /// # async fn settle(journal: &Journal, operation: OperationId) -> Result<(), JournalError> {
    /// let verdict = Verdict {
    ///     who: "dana@example.com".to_owned(),
    ///     why: "the ledger of the payment provider has it as p-1001".to_owned(),
    ///     outcome: Ruling::Succeeded(None),
    /// };
    /// journal.verdict(operation, verdict).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Verdict`](JournalError::Verdict) where who or why is missing or too long,
    /// [`OperationMissing`](JournalError::OperationMissing),
    /// [`StillRunning`](JournalError::StillRunning) while it runs or somebody else resolves it,
    /// [`AlreadySettled`](JournalError::AlreadySettled), and what keeps the store from being written.
    ///
    /// # Cancel safety
    ///
    /// Once polled, it goes on when it is dropped.
    pub async fn verdict(
        &self,
        operation: OperationId,
        verdict: Verdict,
    ) -> Result<State, JournalError> {
        verdict.check()?;
        let journal = self.clone();
        // In a task of its own: a claim whose claimant was dropped would keep all others out.
        let judged = tokio::spawn(async move { journal.judge(operation, verdict).await });
        match judged.await {
            Ok(judged) => judged,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down.
                Err(_) => Err(JournalError::Store(StoreError::Closed)),
            },
        }
    }

    async fn judge(&self, operation: OperationId, verdict: Verdict) -> Result<State, JournalError> {
        let held = self.hold(operation).await?;
        let by = Settler::Verdict {
            who: verdict.who,
            why: verdict.why,
        };
        let without = |outcome, by| Fact::Without {
            outcome,
            failure: Failure::new("verdict"),
            by,
        };
        let fact = match verdict.outcome {
            Ruling::Succeeded(answer) => Fact::Answered {
                is_error: false,
                answer: answer.map_or(Kept::Nothing, |answer| self.kept(answer)),
                by,
            },
            Ruling::Failed => without(Outcome::Failed, by),
            Ruling::DidNotRun => without(Outcome::NotSent, by),
            Ruling::Stopped => Fact::Cancelled { by },
        };
        match self.append(&held, fact).await {
            Ok(state) => Ok(state),
            Err(error) => {
                // Whatever failed, the next one may claim it. That this fails, too, adds nothing.
                let _ = self.release(&held).await;
                Err(error.into())
            }
        }
    }

    /// Claims an operation, or says why it is not to be had.
    async fn hold(&self, operation: OperationId) -> Result<Held, JournalError> {
        match self.claim(operation).await? {
            Claimed::Yes(held, _) => Ok(held),
            Claimed::Elsewhere(record) => Err(JournalError::StillRunning {
                host: record.owner.map_or_else(String::new, |owner| owner.host),
            }),
            Claimed::Settled(record) => Err(JournalError::AlreadySettled(record.state)),
            Claimed::Missing => Err(JournalError::OperationMissing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_needs_who_and_why_within_bounds() {
        let verdict = |who: &str, why: &str| {
            let verdict = Verdict {
                who: who.to_owned(),
                why: why.to_owned(),
                outcome: Ruling::Failed,
            };
            verdict.check()
        };
        assert_eq!(verdict("dana", "seen in the ledger,\nline 2"), Ok(()));
        assert_eq!(verdict(" ", "x"), Err(VerdictError::Empty { field: "who" }));
        assert_eq!(
            verdict("d", "\n"),
            Err(VerdictError::Empty { field: "why" })
        );
        assert_eq!(verdict(&"d".repeat(256), &"y".repeat(4096)), Ok(()));
        let long = verdict(&"d".repeat(257), "y");
        let (field, bytes, most) = ("who", 257, 256);
        assert_eq!(long, Err(VerdictError::TooLong { field, bytes, most }));
        let long = verdict("d", &"y".repeat(4097));
        assert!(matches!(
            long,
            Err(VerdictError::TooLong { field: "why", .. })
        ));
        let forged = verdict("dana\nwhy: forged", "y");
        assert_eq!(
            forged,
            Err(VerdictError::ControlCharacter {
                field: "who",
                at: 4
            })
        );
    }
}
