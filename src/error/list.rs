//! What kept a list from being read whole.

use super::CallError;
use crate::operation::ListKind;

/// Why a list was not read from its first page to its last. No part of such a list is published.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// A page has no answer, or not one that is a page.
    #[error("page {page} of {kind} could not be read: {error}")]
    PageFailed {
        /// Which list.
        kind: ListKind,
        /// Which page, from 1.
        page: usize,
        /// What is known of the request for it.
        #[source]
        error: CallError,
    },
    /// A page names a cursor that a page before it named: read on, it would never end.
    #[error(
        "page {page} of {kind} leads back to an earlier page; the server has to mend its cursors"
    )]
    CursorRepeated {
        /// Which list.
        kind: ListKind,
        /// The page that named it.
        page: usize,
    },
    /// There are more pages than are read.
    #[error("{kind} has more than {pages} pages, which is where reading stops")]
    TooManyPages {
        /// Which list.
        kind: ListKind,
        /// How many were read.
        pages: usize,
    },
    /// There are more entries than are kept.
    #[error("{kind} has more than {entries} entries, which is where reading stops")]
    TooManyEntries {
        /// Which list.
        kind: ListKind,
        /// How many are kept at most.
        entries: usize,
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
    /// The connection is closed.
    #[error("the connection is closed, and {kind} was never read")]
    Closed {
        /// Which list.
        kind: ListKind,
    },
}
