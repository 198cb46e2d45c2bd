//! A long work under way: begun with its start, in a task of its own, and ended in the ledger.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    End, Run, Work,
    rows::{Last, Left, Rows},
};
use crate::{
    operation::OperationId,
    receipts::{Answer, Arrival, Failure, Identity, LedgerError, Standing, tool::parse},
};

/// The works of one tool in this process.
#[derive(Default)]
pub(super) struct Live(Mutex<HashMap<OperationId, CancellationToken>>);

impl Live {
    fn works(&self) -> MutexGuard<'_, HashMap<OperationId, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, id: OperationId) -> CancellationToken {
        let cancel = CancellationToken::new();
        self.works().insert(id, cancel.clone());
        cancel
    }

    /// Tells a work that it is asked to stop, if it is here.
    pub(super) fn cancel(&self, id: OperationId) {
        if let Some(cancel) = self.works().get(&id) {
            cancel.cancel();
        }
    }
}

/// Begins works, runs them, and writes down how they end.
pub(super) struct Driver<A, O> {
    pub(super) rows: Arc<Rows>,
    pub(super) run: Run<A, O>,
    pub(super) live: Arc<Live>,
}

impl<A, O> Driver<A, O>
where
    A: DeserializeOwned + Send + 'static,
    O: Serialize + Send + 'static,
{
    /// Takes over what processes that are gone have left.
    pub(super) async fn take_over(&self, resumes: bool) -> Result<(), LedgerError> {
        for left in self.rows.left_behind().await? {
            let Left { id, identity, row } = left;
            match parse::<A>(&row.arguments) {
                Ok(arguments) if resumes && self.rows.take(id, &row.host).await? => {
                    let asked = row.cancel_requested;
                    self.drive(id, identity, arguments, row.checkpoint, asked);
                }
                // Somebody else was faster.
                Ok(_) if resumes => {}
                // Nobody says that it may run twice, or its arguments are of another version.
                _ => self.rows.forsake(id).await?,
            }
        }
        Ok(())
    }

    /// Runs the work of a start that was the first of its key.
    pub(super) fn begun(&self, arrival: &Arrival, answer: &Answer) {
        let Answer::Kept {
            receipt,
            replayed: false,
        } = answer
        else {
            return;
        };
        // It was parsed when it was admitted.
        if receipt.standing == Standing::Running
            && let Ok(arguments) = parse::<A>(&arrival.arguments)
        {
            let identity = arrival.identity.clone();
            self.drive(receipt.id, identity, arguments, None, false);
        }
    }

    /// Runs a work that the ledger has.
    fn drive(
        &self,
        id: OperationId,
        identity: Identity,
        arguments: A,
        checkpoint: Option<Value>,
        cancel_requested: bool,
    ) {
        let cancel = self.live.enter(id);
        if cancel_requested {
            cancel.cancel();
        }
        let work = Work {
            arguments,
            id,
            identity,
            checkpoint,
            cancel,
            rows: Arc::clone(&self.rows),
        };
        let (rows, live) = (Arc::clone(&self.rows), Arc::clone(&self.live));
        let run = Arc::clone(&self.run);
        tokio::spawn(async move {
            let ran = tokio::spawn(async move { run(work).await }).await;
            let last = match ran {
                Ok(Ok(End::Done(writes))) => Last::writes(writes),
                Ok(Ok(End::Stopped)) => Last::Standing(Standing::Cancelled),
                Ok(Err(failure)) => Last::Standing(failed(failure)),
                // It panicked, and nobody knows how far it came.
                Err(_) => Last::Standing(rows.unknown()),
            };
            rows.end(id, last).await;
            live.works().remove(&id);
        });
    }
}

/// How a work that says no ended. What it did not commit at a checkpoint was not made.
pub(super) fn failed(failure: Failure) -> Standing {
    match failure {
        Failure::Refused(refusal) => Standing::Refused { refusal },
        Failure::Invalid(message) | Failure::Denied(message) => Standing::Failed { message },
        other => {
            tracing::warn!(error = %other, "a long work failed");
            Standing::Failed {
                message: other.to_string(),
            }
        }
    }
}
