//! The place of one list: the last complete one, and the one reading that may be under way.
//!
//! ```text
//!            begin                    end
//! at rest ───────────▶ reading n ───────────▶ at rest
//!                        │  ▲
//!                        └──┘ begin: whoever comes joins n
//! ```
//!
//! The lock is held for looking and for writing down, never while anything is waited for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::{sync::Notify, time::Instant};

use super::{AsOf, Difference, Entry, List, Stale, Whole};
use crate::{error::ListError, operation::Generation};

#[derive(Debug)]
pub(crate) struct Shelf<T> {
    state: Mutex<State<T>>,
    /// Told when a reading is over. It wakes who waits in the order in which they came, so that calls
    /// which wait for one reading go on in the order in which they were made.
    over: Notify,
}

#[derive(Debug)]
struct State<T> {
    last: Option<Arc<Whole<T>>>,
    /// Why the last reading that says anything about the list failed, if it did.
    failed: Option<ListError>,
    /// How the newest reading ended.
    ended: Ended,
    begun: u64,
    /// The number of the newest reading that is over.
    over: u64,
    under_way: bool,
}

/// How a reading ended.
#[derive(Clone, Debug)]
pub(crate) enum Ended {
    /// With a list, which was published. Also: there was none yet.
    Published,
    /// With this. The list that was there before stays.
    Failed(ListError),
    /// Without anything to be said about the list: it was for one session only, and that is over.
    Abandoned,
}

/// What became of the wish to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// This reading is the asker's to carry out.
    New(u64),
    /// This reading is under way already.
    Joined(u64),
}

impl Begun {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::New(number) | Self::Joined(number) => number,
        }
    }
}

/// What a list is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    pub(crate) time: Instant,
    /// The session that takes operations, if there is one.
    pub(crate) live: Option<Generation>,
    /// How many changes the server has told of.
    pub(crate) as_of: AsOf,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                last: None,
                failed: None,
                ended: Ended::Published,
                begun: 0,
                over: 0,
                under_way: false,
            }),
            over: Notify::new(),
        }
    }
}

impl<T: Entry> Shelf<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last complete list, with what speaks against it now.
    pub(crate) fn look(&self, now: &Now) -> Option<List<T>> {
        let state = self.state();
        let whole = Arc::clone(state.last.as_ref()?);
        let stale = match &state.failed {
            Some(why) => Some(Stale::ReadFailed(why.clone())),
            _ if now.live != Some(whole.generation) => Some(Stale::SessionOver),
            _ if now.as_of != whole.as_of => Some(Stale::Changed),
            _ if whole.fresh_until.is_some_and(|until| until <= now.time) => Some(Stale::Expired),
            _ => None,
        };
        Some(List::new(whole, stale))
    }

    /// How the newest reading ended.
    pub(crate) fn outcome(&self) -> Ended {
        self.state().ended.clone()
    }

    pub(crate) fn begin(&self) -> Begun {
        let mut state = self.state();
        if state.under_way {
            return Begun::Joined(state.begun);
        }
        state.under_way = true;
        state.begun += 1;
        Begun::New(state.begun)
    }

    /// The reading that was begun is over. Says what changed, if it replaced a list.
    pub(crate) fn end(&self, read: Result<Whole<T>, Ended>) -> Option<Difference> {
        let mut state = self.state();
        let mut before = None;
        let mut after = None;
        match read {
            Ok(whole) => {
                let whole = Arc::new(whole);
                before = state.last.replace(Arc::clone(&whole));
                after = Some(whole);
                state.failed = None;
                state.ended = Ended::Published;
            }
            Err(how) => {
                if let Ended::Failed(why) = &how {
                    state.failed = Some(why.clone());
                }
                state.ended = how;
            }
        }
        state.under_way = false;
        state.over = state.begun;
        drop(state);
        self.over.notify_waiters();
        let (before, after) = (before?, after?);
        Some(Difference::between(&before.entries, &after.entries))
    }

    /// Waits until this reading is over. Can be dropped at any time.
    pub(crate) async fn over(&self, number: u64) {
        loop {
            // Asked for before the look, so that no end is missed in between.
            let over = self.over.notified();
            if self.state().over >= number {
                return;
            }
            over.await;
        }
    }
}
