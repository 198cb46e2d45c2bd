//! What kept a list from being read whole.

use super::CallError;
use crate::operation::{EndlessList, ListKind};

/// Why a list was not read from its first page to its last. No part of such a list is published.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// A page has no answer, or one that is no page. It may be asked for again.
    #[error("page {page} of {kind} could not be read")]
    PageFailed {
        /// Which list.
        kind: ListKind,
        /// Which page, from 1.
        page: usize,
        /// What is known of the request for it.
        #[source]
        error: CallError,
    },
    /// The pages do not end. Whoever runs the server has to mend it.
    #[error("{kind} has no end: {why}")]
    Endless {
        /// Which list.
        kind: ListKind,
        /// How it showed.
        why: EndlessList,
    },
    /// There are more entries than are kept.
    #[error("{kind} has more than {entries} entries, which is where reading stops")]
    TooManyEntries {
        /// Which list.
        kind: ListKind,
        /// How many are kept at most.
        entries: usize,
    },
    /// Its pages are larger, all together, than what is kept.
    #[error("{kind} has more than {bytes} bytes, which is where reading stops")]
    TooLarge {
        /// Which list.
        kind: ListKind,
        /// How much is kept at most.
        bytes: usize,
    },
    /// The session ended between two pages, and so did the next one. Pages of two sessions are not
    /// one list.
    #[error("the session ended before page {page} of {kind} was read")]
    GenerationChanged {
        /// Which list.
        kind: ListKind,
        /// The page that was to come from the session that ended.
        page: usize,
    },
    /// The reading was given up, because the program's runtime shuts down.
    #[error("the reading of {kind} was given up")]
    GivenUp {
        /// Which list.
        kind: ListKind,
    },
}
