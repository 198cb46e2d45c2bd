//! What a subscriber has not read yet: bounded, without doubles, and in an order that makes sense
//! whichever session tells first.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{GapCause, Refusal, Subscription, Update};
use crate::operation::Generation;

/// How many updates a reader may lag behind before it misses some.
const KEPT: usize = 256;

pub(crate) struct Queue {
    unread: Mutex<Unread>,
    news: Notify,
}

#[derive(Default)]
struct Unread {
    /// Nobody ever reads it, so nothing is kept.
    unheard: bool,
    updates: VecDeque<Update>,
    missed: u64,
    /// The session on which the subscription is in force.
    in_force: Option<Generation>,
    /// The newest session on which it ever was.
    newest: Option<Generation>,
}

impl Unread {
    fn push(&mut self, update: Update) {
        if self.unheard {
            return;
        }
        let is_change = matches!(update, Update::List(_) | Update::Resource(_));
        // What the reader has yet to read it will find changed already. A gap in between is read as
        // one, so the change after it is told again.
        let since_gap = self
            .updates
            .iter()
            .rev()
            .take_while(|u| matches!(u, Update::List(_) | Update::Resource(_)));
        if is_change && since_gap.into_iter().any(|unread| *unread == update) {
            return;
        }
        if self.updates.len() == KEPT {
            self.updates.pop_front();
            self.missed += 1;
        }
        self.updates.push_back(update);
    }
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            unread: Mutex::default(),
            news: Notify::new(),
        }
    }

    /// One that nobody reads.
    pub(super) fn unheard() -> Self {
        let queue = Self::new();
        queue.unread().unheard = true;
        queue
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, update: Update) {
        self.unread().push(update);
        self.news.notify_one();
    }

    /// It is in force on this session.
    pub(super) fn subscribed(&self, generation: Generation, accepted: Subscription) {
        let mut unread = self.unread();
        if unread.newest.is_some_and(|newest| newest > generation) {
            return;
        }
        // The session before may not have told its end yet.
        if let Some(before) = unread.in_force.take() {
            let why = GapCause::SessionOver;
            unread.push(Update::Gap {
                generation: before,
                why,
            });
        }
        let renewed = unread.newest.is_some();
        unread.in_force = Some(generation);
        unread.newest = Some(generation);
        unread.push(Update::Subscribed {
            generation,
            accepted,
            renewed,
        });
        drop(unread);
        self.news.notify_one();
    }

    /// It is not in force on this session any more.
    pub(crate) fn gap(&self, generation: Generation, why: GapCause) {
        let mut unread = self.unread();
        if unread.in_force != Some(generation) {
            return;
        }
        unread.in_force = None;
        unread.push(Update::Gap { generation, why });
        drop(unread);
        self.news.notify_one();
    }

    /// This session does not tell about this part.
    pub(crate) fn refused(&self, generation: Generation, what: Subscription, why: Refusal) {
        self.push(Update::Refused {
            generation,
            what,
            why,
        });
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.unread().updates.is_empty()
    }

    pub(super) async fn next(&self) -> Update {
        loop {
            {
                let mut unread = self.unread();
                if unread.missed > 0 {
                    return Update::Missed(std::mem::take(&mut unread.missed));
                }
                if let Some(update) = unread.updates.pop_front() {
                    return update;
                }
            }
            self.news.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::ListKind;

    fn resource(n: usize) -> Update {
        Update::Resource(format!("r:{n}"))
    }

    #[tokio::test]
    async fn a_reader_that_is_too_slow_is_told_how_much_it_missed() {
        let queue = Queue::new();
        for n in 0..300 {
            queue.push(resource(n));
        }
        assert_eq!(queue.next().await, Update::Missed(44));
        assert_eq!(queue.next().await, resource(44));
    }

    #[tokio::test]
    async fn a_change_that_nobody_has_read_yet_is_told_once_and_again_after_a_gap() {
        let queue = Queue::new();
        let all = Subscription::new().list(ListKind::Tools);
        queue.subscribed(Generation(1), all.clone());
        for _ in 0..3 {
            queue.push(Update::List(ListKind::Tools));
        }
        queue.gap(Generation(1), GapCause::SessionOver);
        queue.gap(Generation(1), GapCause::Ended);
        queue.subscribed(Generation(2), all.clone());
        queue.push(Update::List(ListKind::Tools));
        let subscribed = |generation, renewed| Update::Subscribed {
            generation: Generation(generation),
            accepted: all.clone(),
            renewed,
        };
        let expected = [
            subscribed(1, false),
            Update::List(ListKind::Tools),
            Update::Gap {
                generation: Generation(1),
                why: GapCause::SessionOver,
            },
            subscribed(2, true),
            Update::List(ListKind::Tools),
        ];
        for update in expected {
            assert_eq!(queue.next().await, update);
        }
    }

    #[tokio::test]
    async fn a_session_that_tells_its_end_late_breaks_nothing_on_the_next_one() {
        let queue = Queue::new();
        let all = Subscription::new().list(ListKind::Tools);
        queue.subscribed(Generation(1), all.clone());
        queue.subscribed(Generation(2), all.clone());
        queue.gap(Generation(1), GapCause::SessionOver);
        queue.subscribed(Generation(1), all);
        let mut told = Vec::new();
        for _ in 0..3 {
            told.push(queue.next().await);
        }
        assert!(matches!(
            told[1],
            Update::Gap {
                generation: Generation(1),
                ..
            }
        ));
        assert!(matches!(
            told[2],
            Update::Subscribed {
                generation: Generation(2),
                ..
            }
        ));
        assert!(queue.unread().updates.is_empty());
    }
}
