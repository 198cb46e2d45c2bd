//! Where intents are kept: a table of the ledger's own database, so that an intent and its receipt are
//! one transaction.

use std::time::Duration;

use super::letter::Letter;
use crate::{operation::OperationId, receipts::LedgerFuture};

/// Keeps intents from their commit until what became of them is in the receipt.
///
/// One dispatcher at a time has an intent: it holds it under a lease, and whoever takes it after the
/// lease ran out fences the one before out.
pub(crate) trait Letters: Send + Sync + 'static {
    /// Takes up to `at_most` intents that are due, for providers of these names, until `lease` is over.
    fn take<'a>(
        &'a self,
        providers: &'a [String],
        at_most: usize,
        lease: Duration,
    ) -> LedgerFuture<'a, Taken>;

    /// Writes how far an intent got. `false`: somebody else has it now, and nothing was written.
    fn write<'a>(
        &'a self,
        held: &'a Held,
        letter: &'a Letter,
        then: Then,
    ) -> LedgerFuture<'a, bool>;

    /// Removes intents whose outcome has been in their receipts since before this long ago, at most
    /// `at_most`. Unknown ones stay.
    fn sweep(&self, kept_for: Duration, at_most: usize) -> LedgerFuture<'_, usize>;
}

/// The right to write how far one intent got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) operation: OperationId,
    pub(crate) fence: i64,
}

/// What a write says about who has the intent then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Still this one.
    Keep,
    /// Whoever takes it, once it is due.
    Release,
    /// Nobody: what became of it is in the receipt.
    Close,
}

/// What was there to take.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The store's time, in milliseconds.
    pub(crate) now: i64,
    pub(crate) letters: Vec<(Held, Letter)>,
    /// When the next one is due or its lease runs out, if one is left.
    pub(crate) next_in: Option<Duration>,
}
