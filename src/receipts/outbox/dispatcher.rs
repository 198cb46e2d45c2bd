//! Sends what is committed, until what became of it is in the receipt.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    Shared,
    letter::{Letter, Next},
    letters::{Held, Then},
    provider::{Found, Provider, Reason, Sent},
    table::Illegal,
};
use crate::receipts::LedgerError;

/// How many intents are under way at a time. Each is one request to a provider; a server that needs
/// more has more than one process, or a provider that is too slow.
const AT_A_TIME: usize = 32;

/// How often it looks for what other processes committed, or left behind.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The least that it waits between two looks, where another dispatcher is just taking what is due.
const NO_SOONER: Duration = Duration::from_millis(5);

/// How long it waits after the database failed, and between attempts to write down an answer.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// Takes what is due and attends to each, until it is stopped. What is under way then is finished
/// first, which the limit of an attempt bounds.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut under_way = JoinSet::new();
    while !stop.is_cancelled() {
        let free = AT_A_TIME.saturating_sub(under_way.len());
        let wait = match free {
            0 => LOOK_EVERY,
            _ => take(&shared, free, &mut under_way).await,
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = shared.wake.notified(), if free > 0 => {}
            Some(_) = under_way.join_next(), if !under_way.is_empty() => {}
            () = sleep(wait) => {}
        }
    }
    while under_way.join_next().await.is_some() {}
}

/// Takes what is due, and says when to look again.
async fn take(shared: &Arc<Shared>, free: usize, under_way: &mut JoinSet<()>) -> Duration {
    let began = Instant::now();
    let taken = shared.letters.take(&shared.names, free, shared.lease());
    let taken = match taken.await {
        Ok(taken) => taken,
        Err(error) => {
            tracing::warn!(%error, "the outbox cannot be read; nothing is sent");
            return AFTER_FAILURE;
        }
    };
    for (held, letter) in taken.letters {
        let attended = Attended {
            shared: Arc::clone(shared),
            held,
            letter,
            began,
            now: taken.now,
        };
        under_way.spawn(attended.attend());
    }
    taken
        .next_in
        .map_or(LOOK_EVERY, |next| next.clamp(NO_SOONER, LOOK_EVERY))
}

/// One intent that this dispatcher has.
struct Attended {
    shared: Arc<Shared>,
    held: Held,
    letter: Letter,
    /// When it was taken: before the store's `now` was read, so that the lease ends here no later than
    /// there.
    began: Instant,
    now: i64,
}

/// Why an intent is left to whoever takes it next.
enum Left {
    /// Somebody else has it, or the lease is too short for what would come next.
    Lease,
    /// The database failed for as long as the lease was.
    Ledger(LedgerError),
    /// What is kept is not what was written.
    Damaged(Illegal),
}

impl From<Illegal> for Left {
    fn from(illegal: Illegal) -> Self {
        Self::Damaged(illegal)
    }
}

impl Attended {
    async fn attend(mut self) {
        let operation = self.held.operation;
        match self.go_on().await {
            Ok(()) => {}
            Err(Left::Lease) => tracing::debug!(%operation, "an intent is left to its next lease"),
            Err(Left::Ledger(error)) => {
                tracing::warn!(%operation, %error, "what became of an intent could not be written");
            }
            Err(Left::Damaged(error)) => {
                tracing::error!(%operation, %error, "an intent is damaged")
            }
        }
    }

    async fn go_on(&mut self) -> Result<(), Left> {
        let Some(provider) = self.shared.provider(&self.letter.intent.provider) else {
            return Ok(());
        };
        if !self.letter.progress.state.is_over() {
            self.letter.progress.recover()?;
            let now = self.clock();
            match self
                .letter
                .progress
                .step(now, self.shared.rules(&*provider))?
            {
                Some(Next::Send) => self.send(provider).await?,
                Some(Next::LookUp) => self.look_up(provider).await?,
                None => {}
            }
        }
        match self.letter.progress.state.is_over() {
            true => self.close().await,
            false => self.write(Then::Release).await,
        }
    }

    /// The attempt is durable before it is made, and is made within the lease.
    async fn send(&mut self, provider: Arc<dyn Provider>) -> Result<(), Left> {
        self.write(Then::Keep).await?;
        if self.began.elapsed() > self.shared.time_to_begin() {
            // Nothing was sent, and what is written says that something may have been.
            return Err(Left::Lease);
        }
        let outgoing = self.letter.outgoing();
        let asked = Arc::clone(&provider);
        let sent = self
            .bounded(async move { asked.send(&outgoing).await })
            .await
            .unwrap_or_else(|reason| Sent::Unclear(Reason::new(reason)));
        let rules = self.shared.rules(&*provider);
        let now = self.clock();
        Ok(self.letter.progress.sent(sent, now, rules)?)
    }

    async fn look_up(&mut self, provider: Arc<dyn Provider>) -> Result<(), Left> {
        let reference = self.letter.reference.clone();
        let asked = Arc::clone(&provider);
        let found = self
            .bounded(async move { asked.look_up(&reference).await })
            .await
            .unwrap_or_else(|reason| Found::Unclear(Reason::new(reason)));
        let rules = self.shared.rules(&*provider);
        let now = self.clock();
        Ok(self.letter.progress.found(found, now, rules)?)
    }

    /// Writes how it ended, and then the receipt. In between, it is taken again and found to be over.
    async fn close(&mut self) -> Result<(), Left> {
        self.write(Then::Keep).await?;
        let standing = self.shared.standing(&self.letter);
        let operation = self.held.operation;
        loop {
            match self.shared.ledger.settle(operation, standing.clone()).await {
                Ok(_) => break,
                Err(error) => self.again_or(error).await?,
            }
        }
        tracing::debug!(%operation, state = self.letter.progress.state.word(), "an intent is over");
        self.write(Then::Close).await?;
        self.shared.settled.notify_waiters();
        Ok(())
    }

    /// What the provider said is worth more than one attempt to write it: without it, a provider that
    /// knows no keys leaves an unknown outcome.
    async fn write(&self, then: Then) -> Result<(), Left> {
        loop {
            match self
                .shared
                .letters
                .write(&self.held, &self.letter, then)
                .await
            {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Left::Lease),
                Err(error) => self.again_or(error).await?,
            }
        }
    }

    /// Waits before a write is tried again, if the lease lasts so long.
    async fn again_or(&self, error: LedgerError) -> Result<(), Left> {
        if self.began.elapsed() + AFTER_FAILURE >= self.shared.lease() {
            return Err(Left::Ledger(error));
        }
        sleep(AFTER_FAILURE).await;
        Ok(())
    }

    /// Runs what a provider does, in a task of its own, so that its panic is not ours.
    async fn bounded<T: Send + 'static>(
        &self,
        asked: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, &'static str> {
        let task = AbortOnDropHandle::new(tokio::spawn(asked));
        match timeout(self.shared.limits.attempt_timeout, task).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err("this server's client of the provider panicked"),
            Err(_) => Err("the provider did not answer in time"),
        }
    }

    /// The store's time now.
    fn clock(&self) -> i64 {
        let since = i64::try_from(self.began.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.now.saturating_add(since)
    }
}
