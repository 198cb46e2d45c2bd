//! A list as it was read, and what is known to have happened to it since.

use std::{ops::Deref, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{error::ListError, operation::Generation};

/// A complete list of one generation. Cheap to clone; a slice of its entries, in the server's order.
#[derive(Clone, Debug)]
pub struct List<T> {
    whole: Arc<Whole<T>>,
    stale: Option<Stale>,
}

/// Why a list may no longer be what the server has on offer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Stale {
    /// The session that it was read from is over or was replaced.
    SessionOver,
    /// The server said since that the list changed.
    Changed,
    /// The time for which the server vouched for it is over.
    Expired,
    /// It was to be read again, and could not be.
    ReadFailed(ListError),
}

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SessionOver => f.write_str("the session that it was read from is over"),
            Self::Changed => f.write_str("the server said that it changed"),
            Self::Expired => f.write_str("the time that the server vouched for is over"),
            Self::ReadFailed(why) => write!(f, "it could not be read again: {why}"),
        }
    }
}

/// What was read, once.
#[derive(Debug)]
pub(crate) struct Whole<T> {
    pub(crate) entries: Vec<T>,
    pub(crate) generation: Generation,
    pub(crate) read_at: Instant,
    /// Until when the server vouches for it, if it says so.
    pub(crate) fresh_until: Option<Instant>,
    pub(crate) as_of: AsOf,
}

/// How many changes the server had told of when a reading began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AsOf(pub(crate) u64);

impl<T> List<T> {
    pub(crate) fn new(whole: Arc<Whole<T>>, stale: Option<Stale>) -> Self {
        Self { whole, stale }
    }

    /// Whoever has just had it read has what there is, for however short it is vouched for.
    pub(crate) fn just_read(mut self) -> Self {
        self.stale.take_if(|why| matches!(why, Stale::Expired));
        self
    }

    /// The session that all of it was read from.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.whole.generation
    }

    /// How long ago its last page was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.whole.read_at.elapsed()
    }

    /// Why it may no longer hold; `None` if nothing speaks against it. As it was when the list was
    /// asked for.
    #[must_use]
    pub fn stale(&self) -> Option<&Stale> {
        self.stale.as_ref()
    }
}

impl<T> Deref for List<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.whole.entries
    }
}
