//! The way of a call that may be run: into the ledger's transaction, in a task of its own.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    answer::Answer,
    call::Call,
    definition::Terms,
    flight::{Entered, Flights},
    identity::Arrival,
    ledger::Ledger,
    table::Conflict,
};

/// A handler with the ledger that runs it.
pub(crate) trait Runs: Send + Sync {
    /// Those who are under way, over all tools of the ledger.
    fn flights(&self) -> &Arc<Flights>;

    /// The ledger.
    fn ledger(&self) -> Arc<dyn Ledger>;

    /// Asks the table, with the transaction open, and does what it says. It answers when what it did is
    /// durable.
    fn run(&self, arrival: Arrival, call: Call, terms: Arc<Terms>) -> Running;
}

/// A call on its way.
pub(crate) type Running = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Runs a call, or waits for the one that has its key. What was begun goes on when this is dropped.
pub(crate) async fn arrive(
    runs: &dyn Runs,
    arrival: Arrival,
    call: Call,
    terms: &Arc<Terms>,
) -> Answer {
    let id = arrival.id;
    match runs.flights().enter(&arrival) {
        Entered::First(landing) => {
            let running = runs.run(arrival, call, Arc::clone(terms));
            let task = tokio::spawn(async move {
                let answer = running.await;
                landing.land(&answer);
                answer
            });
            // Its task is never cancelled; it ends without an answer where it panicked.
            task.await.unwrap_or(Answer::Unclear { id })
        }
        Entered::Behind(first) if first.fingerprint != arrival.fingerprint => Answer::Conflict {
            id: first.id,
            with: Conflict::Arguments,
        },
        Entered::Behind(first) => {
            let id = first.id;
            behind(first.landed(), id, terms.bounds.wait).await
        }
    }
}

async fn behind(
    landed: impl Future<Output = Option<Answer>>,
    id: crate::operation::OperationId,
    within: Duration,
) -> Answer {
    match tokio::time::timeout(within, landed).await {
        Ok(Some(answer)) => answer.replayed(),
        Ok(None) => Answer::Unclear { id },
        Err(_) => Answer::InProgress { id },
    }
}

/// What is done when a call has its answer, in the call's own task.
#[cfg(feature = "sqlite")]
pub(crate) type Afterwards = Arc<dyn Fn(&Arrival, &Answer) + Send + Sync>;

/// A handler, and what is done after each of its calls.
#[cfg(feature = "sqlite")]
pub(crate) struct Followed {
    pub(crate) runs: Arc<dyn Runs>,
    pub(crate) then: Afterwards,
}

#[cfg(feature = "sqlite")]
impl Runs for Followed {
    fn flights(&self) -> &Arc<Flights> {
        self.runs.flights()
    }

    fn ledger(&self) -> Arc<dyn Ledger> {
        self.runs.ledger()
    }

    fn run(&self, arrival: Arrival, call: Call, terms: Arc<Terms>) -> Running {
        let running = self.runs.run(arrival.clone(), call, terms);
        let then = Arc::clone(&self.then);
        Box::pin(async move {
            let answer = running.await;
            then(&arrival, &answer);
            answer
        })
    }
}
