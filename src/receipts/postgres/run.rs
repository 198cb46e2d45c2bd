//! A call in PostgreSQL: the key is claimed, the handler runs behind a savepoint, and what it came to
//! is committed with its effect.

use std::sync::Arc;

use deadpool_postgres::{Client, Transaction};
use tokio::time::{Instant, sleep};

use super::{Handles, PostgresLedger, fault, kept, rows};
use crate::receipts::{
    answer::Answer,
    call::Call,
    definition::Terms,
    flight::Flights,
    identity::Arrival,
    ledger::{Ledger, LedgerError},
    receipt::Standing,
    run::{Running, Runs},
};

/// How often a key may vanish between its claim and its reading before the caller is told to come
/// later: only a sweep removes one, and no sweep removes it twice in a row.
const LOOKS: usize = 3;

/// How long it waits before it asks again whether a commit held.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_millis(200);

/// A handler with its ledger.
pub(super) struct Tool {
    ledger: PostgresLedger,
    handler: Arc<dyn Handles>,
}

impl Tool {
    pub(super) fn new(ledger: PostgresLedger, handler: Arc<dyn Handles>) -> Self {
        Self { ledger, handler }
    }
}

impl Runs for Tool {
    fn flights(&self) -> &Arc<Flights> {
        self.ledger.flights()
    }

    fn ledger(&self) -> Arc<dyn Ledger> {
        Arc::new(self.ledger.clone())
    }

    fn run(&self, arrival: Arrival, call: Call, terms: Arc<Terms>) -> Running {
        let ledger = self.ledger.clone();
        let handler = Arc::clone(&self.handler);
        Box::pin(async move {
            let one = One {
                ledger: &ledger,
                arrival: &arrival,
                terms: &terms,
            };
            let answered = one.run(&*handler, &call).await;
            answered.unwrap_or_else(|error| kept::no_answer(arrival.id, &error))
        })
    }
}

/// One call.
struct One<'a> {
    ledger: &'a PostgresLedger,
    arrival: &'a Arrival,
    terms: &'a Terms,
}

impl One<'_> {
    async fn run(&self, handler: &dyn Handles, call: &Call) -> Result<Answer, LedgerError> {
        let mut client = self.ledger.client(self.terms.bounds.begin).await?;
        for _ in 0..LOOKS {
            let transaction = self
                .ledger
                .begin(&mut client, self.terms.bounds.begin)
                .await?;
            if rows::claim(&transaction, self.arrival).await? {
                return self.first(transaction, handler, call).await;
            }
            // A new statement sees what the rival committed while its claim was waited for.
            if let Some(receipt) = rows::by_key(&transaction, &self.arrival.identity).await? {
                return Ok(kept::found(receipt, self.arrival, self.terms));
            }
        }
        Ok(Answer::Busy)
    }

    /// The key is this call's, in a transaction that nobody else sees yet.
    async fn first(
        &self,
        mut transaction: Transaction<'_>,
        handler: &dyn Handles,
        call: &Call,
    ) -> Result<Answer, LedgerError> {
        let effect = transaction.savepoint("effect").await.map_err(fault::of)?;
        let handled = handler.handle(&effect, call, &self.arrival.arguments).await;
        let bound = self.terms.bounds.max_result_bytes;
        let standing = match handled.and_then(|standing| kept::within(standing, bound)) {
            Ok(standing) => {
                // It fails where a statement did and the handler did not mind.
                effect.commit().await.map_err(fault::of)?;
                standing
            }
            Err(failure) => match kept::of_failure(failure, self.terms, call.id()) {
                Ok(standing) => {
                    effect.rollback().await.map_err(fault::of)?;
                    standing
                }
                // Dropped, the transaction is rolled back: nothing of it was committed.
                Err(answer) => return Ok(answer),
            },
        };
        rows::write(&transaction, self.arrival.id, &standing).await?;
        match transaction.commit().await {
            Ok(()) => Ok(self.answer(standing)),
            Err(error) if fault::says_that_it_failed(&error) => Err(fault::of(error)),
            Err(_) => self.settle().await,
        }
    }

    fn answer(&self, standing: Standing) -> Answer {
        Answer::Kept {
            receipt: Arc::new(kept::receipt(self.arrival, standing)),
            replayed: false,
        }
    }

    /// Nobody said whether the commit held: the row does.
    async fn settle(&self) -> Result<Answer, LedgerError> {
        let began = Instant::now();
        let within = self.ledger.settings().settle_within;
        loop {
            match self.look().await {
                Ok(answer) => return Ok(answer),
                Err(error) if began.elapsed() + ASK_AGAIN >= within => {
                    return Err(LedgerError::Unclear(error.to_string().into()));
                }
                Err(_) => sleep(ASK_AGAIN).await,
            }
        }
    }

    /// Claims the key once more, which waits for the lost transaction if the server still has it, and
    /// lets go of it again.
    async fn look(&self) -> Result<Answer, LedgerError> {
        let mut client: Client = self.ledger.client(self.terms.bounds.begin).await?;
        let transaction = self
            .ledger
            .begin(&mut client, self.terms.bounds.begin)
            .await?;
        if rows::claim(&transaction, self.arrival).await? {
            // It was rolled back, the effect with it.
            transaction.rollback().await.map_err(fault::of)?;
            return Ok(Answer::Busy);
        }
        let receipt = rows::by_key(&transaction, &self.arrival.identity).await?;
        match receipt {
            Some(receipt) if receipt.id == self.arrival.id => Ok(self.answer(receipt.standing)),
            Some(receipt) => Ok(kept::found(receipt, self.arrival, self.terms)),
            None => Err(LedgerError::Unclear("a sweep removed the row".into())),
        }
    }
}
