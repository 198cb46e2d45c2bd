//! The clock of an operation, which can stand.
//!
//! A server may ask the host something before it answers, and behind the host there may be a person.
//! While one thinks, nobody is late: the operation's limits are put off by the time that its clock
//! stood, up to a bound of its own.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// The clock by which one operation's limits run.
#[derive(Debug)]
pub(crate) struct Clock {
    /// How long it may stand altogether.
    bound: Duration,
    standing: Mutex<Standing>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Standing {
    holders: usize,
    since: Option<Instant>,
    /// How long it stood before that.
    before: Duration,
}

/// A point in the time of one clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    at: Instant,
    /// How long the clock had stood when this was reckoned.
    stood: Duration,
}

/// While this lives, the clock stands.
#[derive(Debug)]
pub(crate) struct Held(Arc<Clock>);

impl Clock {
    pub(crate) fn new(bound: Duration) -> Self {
        Self {
            bound,
            standing: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stood(&self, standing: &Standing, now: impl FnOnce() -> Instant) -> Duration {
        let this_time = standing
            .since
            .map(|since| now().saturating_duration_since(since));
        (standing.before + this_time.unwrap_or_default()).min(self.bound)
    }

    /// Lets the clock stand. Where several hold it, it goes on when the last lets go.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        let mut standing = self.standing();
        standing.holders += 1;
        standing.since.get_or_insert_with(Instant::now);
        drop(standing);
        self.changed.notify_waiters();
        Held(Arc::clone(self))
    }

    /// The point that is `limit` from `now`.
    pub(crate) fn after(&self, limit: Duration, now: Instant) -> Due {
        Due {
            stood: self.stood(&self.standing(), || now),
            at: now + limit,
        }
    }

    /// How much of the time until `due` is left, should the clock go on now.
    pub(crate) fn left(&self, due: Due) -> Duration {
        let now = Instant::now();
        let stood = self.stood(&self.standing(), || now);
        (due.at + stood.saturating_sub(due.stood)).saturating_duration_since(now)
    }

    /// Waits until `due`.
    pub(crate) async fn reaches(&self, due: Due) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (stands, at) = {
                let standing = self.standing();
                let stood = self.stood(&standing, Instant::now);
                let stands = standing.holders > 0 && stood < self.bound;
                let at = if stands {
                    Instant::now() + (self.bound - stood)
                } else {
                    due.at + stood.saturating_sub(due.stood)
                };
                (stands, at)
            };
            tokio::select! {
                biased;
                () = &mut changed => {}
                () = tokio::time::sleep_until(at) => if !stands { return },
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut standing = self.0.standing();
        standing.holders -= 1;
        if standing.holders == 0
            && let Some(since) = standing.since.take()
        {
            standing.before += since.elapsed();
        }
        drop(standing);
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_is_due_is_put_off_by_the_time_that_the_clock_stood() {
        let began = Instant::now();
        let clock = Arc::new(Clock::new(60 * SECOND));
        let due = clock.after(10 * SECOND, Instant::now());
        let holder = {
            let clock = Arc::clone(&clock);
            tokio::spawn(async move {
                tokio::time::sleep(5 * SECOND).await;
                let first = clock.hold();
                let second = clock.hold();
                tokio::time::sleep(20 * SECOND).await;
                drop(first);
                tokio::time::sleep(10 * SECOND).await;
                drop(second);
            })
        };
        clock.reaches(due).await;
        assert_eq!(began.elapsed().as_secs(), 40);
        holder.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_stands_no_longer_than_its_bound() {
        let began = Instant::now();
        let clock = Arc::new(Clock::new(30 * SECOND));
        let due = clock.after(10 * SECOND, Instant::now());
        let _held = clock.hold();
        clock.reaches(due).await;
        assert_eq!(began.elapsed().as_secs(), 40);
        assert!(clock.left(due).is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_begins_later_is_not_put_off_by_what_was_before() {
        let clock = Arc::new(Clock::new(60 * SECOND));
        let held = clock.hold();
        tokio::time::sleep(20 * SECOND).await;
        drop(held);
        let began = Instant::now();
        clock
            .reaches(clock.after(10 * SECOND, Instant::now()))
            .await;
        assert_eq!(began.elapsed().as_secs(), 10);
    }
}
