//! A call whose effect is a provider's: once its intent is committed, it waits for the dispatcher.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::Shared;
use crate::{
    operation::OperationId,
    receipts::{
        Call, Ledger, Receipt, Scope, Standing,
        answer::Answer,
        definition::Terms,
        flight::Flights,
        identity::Arrival,
        run::{Running, Runs},
    },
};

/// How often it looks for what the dispatcher of another process wrote.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The longest that a call waits, whatever its tool says: longer than any client does, and short enough
/// to be added to any point in time.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A handler that commits an intent, with the outbox that it is committed to.
pub(super) struct Sending {
    pub(super) commits: Arc<dyn Runs>,
    pub(super) shared: Arc<Shared>,
}

impl Runs for Sending {
    fn flights(&self) -> &Arc<Flights> {
        self.commits.flights()
    }

    fn ledger(&self) -> Arc<dyn Ledger> {
        self.commits.ledger()
    }

    fn run(&self, arrival: Arrival, call: Call, terms: Arc<Terms>) -> Running {
        let scope = arrival.identity.scope.clone();
        let shared = Arc::clone(&self.shared);
        let within = terms.bounds.wait;
        let committing = self.commits.run(arrival, call, terms);
        Box::pin(async move {
            let answer = committing.await;
            let (id, replayed) = match &answer {
                Answer::InProgress { id } => (*id, true),
                Answer::Kept { receipt, replayed } if receipt.standing == Standing::Running => {
                    (receipt.id, *replayed)
                }
                _ => return answer,
            };
            shared.wake.notify_one();
            match shared.settled_within(&scope, id, within).await {
                Some(receipt) => Answer::Kept {
                    receipt: Arc::new(receipt),
                    replayed,
                },
                None => answer,
            }
        })
    }
}

impl Shared {
    /// The receipt of an operation once it is not running any more, if that is soon enough.
    async fn settled_within(
        &self,
        scope: &Scope,
        id: OperationId,
        within: Duration,
    ) -> Option<Receipt> {
        let until = Instant::now() + within.min(LONGEST);
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            // A ledger that cannot be read now may be by the next look.
            if let Ok(Some(receipt)) = self.ledger.by_id(scope, id).await
                && receipt.standing != Standing::Running
            {
                return Some(receipt);
            }
            tokio::select! {
                () = settled => {}
                () = sleep(LOOK_EVERY) => {}
                () = sleep_until(until) => return None,
            }
        }
    }
}
