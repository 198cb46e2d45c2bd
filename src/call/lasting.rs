//! Writes to the journal that outlast the wait for them: a store that fails or hangs holds up no caller
//! past its deadline, and what it was asked to keep is not dropped for that.

use std::{collections::VecDeque, future::Future, pin::Pin, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{
    journal::{Claimed, Fact, Held, Journal, State, StoreError},
    operation::OperationId,
};

/// How much longer than its deadline a caller waits for the record of its outcome. What is not durable
/// by then is told all the same.
pub(super) const LAST_WRITE: Duration = Duration::from_secs(1);

/// The waits before an outcome is offered again to a store that failed: a quarter of an hour
/// altogether, in which somebody can make room on a disk. Then it is left to the next start of the
/// host, for which it is unknown.
const AGAIN: [Duration; 7] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(120),
    Duration::from_secs(300),
    Duration::from_secs(450),
];

/// A question to the store that is its own, so that it can be waited for elsewhere.
pub(super) type Asked<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// What happened to an operation and is not recorded yet.
pub(super) struct Unwritten {
    journal: Journal,
    held: Held,
    facts: VecDeque<Fact>,
    state: Option<State>,
}

impl Unwritten {
    pub(super) fn new(journal: &Journal, held: &Held, facts: Vec<Fact>) -> Self {
        Self {
            journal: journal.clone(),
            held: Held { ..*held },
            facts: facts.into(),
            state: None,
        }
    }

    /// Offers what is left to the store, once, in its order.
    pub(super) async fn offer(&mut self) -> Result<(), StoreError> {
        while let Some(fact) = self.facts.front() {
            let state = self.journal.append(&self.held, fact.clone()).await?;
            self.state = Some(state);
            self.facts.pop_front();
        }
        Ok(())
    }

    /// Goes on after a first offer until all is recorded, and says where the operation stands then.
    /// `None`: that is not to be had.
    pub(super) async fn persist(mut self, first: Result<(), StoreError>) -> Option<State> {
        let operation = self.held.operation;
        let mut offered = first;
        let mut waits = AGAIN.into_iter();
        loop {
            let Err(error) = offered else {
                return self.state;
            };
            let wait = waits.next().filter(|_| may_pass(&error));
            tracing::error!(
                %operation, %error, again = wait.is_some(),
                "the outcome could not be recorded"
            );
            sleep(wait?).await;
            offered = self.offer().await;
        }
    }
}

/// Whether the same write may succeed later.
fn may_pass(error: &StoreError) -> bool {
    match error {
        StoreError::Full(_)
        | StoreError::ReadOnly(_)
        | StoreError::Locked(_)
        | StoreError::Corrupt(_)
        | StoreError::Unavailable(_) => true,
        StoreError::Newer { .. }
        | StoreError::Settings(_)
        | StoreError::Fenced
        | StoreError::Illegal(_)
        | StoreError::Closed => false,
    }
}

/// Waits for a store only so long.
pub(super) async fn within<T>(
    patience: Duration,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(patience, asked).await {
        Ok(done) => done,
        Err(_) => Err(silent()),
    }
}

fn silent() -> StoreError {
    StoreError::Unavailable("it did not answer in time".into())
}

/// A claim that is not lost when nobody waits for it any more.
pub(super) fn claiming(journal: &Journal, operation: OperationId) -> Asked<Claimed> {
    let journal = journal.clone();
    Box::pin(async move { journal.claim(operation).await })
}

/// Claims, and waits for that only so long.
pub(super) async fn claim_within(
    journal: &Journal,
    operation: OperationId,
    patience: Duration,
) -> Result<Claimed, StoreError> {
    let mut asked = claiming(journal, operation);
    match timeout(patience, &mut asked).await {
        Ok(done) => done,
        Err(_) => {
            tokio::spawn(give_back(journal.clone(), asked));
            Err(silent())
        }
    }
}

/// Gives up at once what was claimed too late.
pub(super) async fn give_back(journal: Journal, asked: Asked<Claimed>) {
    if let Ok(Claimed::Yes(held, _)) = asked.await {
        release(&journal, &held).await;
    }
}

/// Lets others claim it.
pub(super) async fn release(journal: &Journal, held: &Held) {
    if let Err(error) = journal.release(held).await {
        let operation = held.operation;
        tracing::error!(%operation, %error, "an unknown outcome could not be released");
    }
}
