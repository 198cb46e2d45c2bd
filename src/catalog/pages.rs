//! The pages of one list of one generation, put together.

use std::io;

use serde::Serialize;

use crate::{
    error::ListError,
    operation::{Generation, ListKind, Turn, Walk},
};

/// The most entries of one list that are kept. It is far above any list that a client could do
/// something with, and keeps a server from filling the memory with one that goes on.
pub(crate) const MOST_ENTRIES: usize = 100_000;

/// The most that is kept of a list whose pages are many, in bytes of JSON; that of a single page is
/// the connection's limit of an answer, and where that is larger it holds here too.
pub(crate) const MOST_BYTES: usize = 64 * 1024 * 1024;

/// The pages read so far, all of one generation.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    kind: ListKind,
    walk: Walk,
    entries: Vec<T>,
    read: usize,
    bytes: usize,
    most_bytes: usize,
    generation: Option<Generation>,
}

/// Counts, and keeps nothing.
struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn size<T: Serialize>(entries: &[T]) -> usize {
    let mut count = Count(0);
    // What came as JSON goes as JSON.
    let _ = serde_json::to_writer(&mut count, entries);
    count.0
}

impl<T: Serialize> Pages<T> {
    /// None yet, and at most `most`, of which none is larger than `page` bytes.
    pub(crate) fn new(kind: ListKind, most: usize, page: usize) -> Self {
        Self {
            kind,
            walk: Walk::new(most),
            entries: Vec::new(),
            read: 0,
            bytes: 0,
            most_bytes: MOST_BYTES.max(page),
            generation: None,
        }
    }

    /// The number of the page that is to come, from 1.
    pub(crate) fn page(&self) -> usize {
        self.read + 1
    }

    /// The session of the first page, which all others must come from.
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// Takes a page with the cursor that it names, and says where to go. An error is for good.
    pub(crate) fn take(
        &mut self,
        generation: Generation,
        entries: Vec<T>,
        cursor: Option<String>,
    ) -> Result<Turn, ListError> {
        let kind = self.kind;
        let page = self.page();
        if *self.generation.get_or_insert(generation) != generation {
            return Err(ListError::GenerationChanged { kind, page });
        }
        self.read = page;
        if entries.len() > MOST_ENTRIES - self.entries.len() {
            return Err(ListError::TooManyEntries {
                kind,
                entries: MOST_ENTRIES,
            });
        }
        // Most lists are one page, which its transport has measured.
        if page > 1 || cursor.is_some() {
            let cursor = cursor.as_ref().map_or(0, String::len);
            self.bytes = self.bytes.saturating_add(size(&entries) + cursor);
        }
        if self.bytes > self.most_bytes {
            let bytes = self.most_bytes;
            return Err(ListError::TooLarge { kind, bytes });
        }
        self.entries.extend(entries);
        self.walk
            .turn(cursor)
            .map_err(|why| ListError::Endless { kind, why })
    }

    /// All entries in the order of the pages.
    pub(crate) fn into_entries(self) -> Vec<T> {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::EndlessList;

    const ONE: Generation = Generation(1);

    fn pages() -> Pages<u32> {
        Pages::new(ListKind::Tools, 10, 1_024)
    }

    fn cursor(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn three_pages_are_one_list_in_their_order() {
        let mut pages = pages();
        pages.take(ONE, vec![1, 2], cursor("a")).unwrap();
        pages.take(ONE, vec![], cursor("b")).unwrap();
        assert_eq!(pages.take(ONE, vec![3], None).unwrap(), Turn::Complete);
        assert_eq!(pages.into_entries(), [1, 2, 3]);
    }

    #[test]
    fn a_list_without_end_is_no_list() {
        let mut pages = pages();
        pages.take(ONE, vec![1], cursor("a")).unwrap();
        let error = pages.take(ONE, vec![2], cursor("a")).unwrap_err();
        let why = EndlessList::RepeatedCursor { pages: 2 };
        assert!(
            matches!(error, ListError::Endless { why: w, .. } if w == why),
            "{error}"
        );
    }

    #[test]
    fn entries_without_end_end_at_the_cap() {
        let mut pages = Pages::new(ListKind::Resources, 10, 1_024);
        pages
            .take(ONE, vec![(); MOST_ENTRIES], cursor("a"))
            .unwrap();
        let error = pages.take(ONE, vec![()], None).unwrap_err();
        assert!(matches!(error, ListError::TooManyEntries { .. }), "{error}");
    }

    #[test]
    fn pages_that_are_large_together_end_at_the_cap() {
        let large = || vec!["x".repeat(MOST_BYTES / 3)];
        let mut pages = Pages::new(ListKind::Tools, 10, 1_024);
        pages.take(ONE, large(), cursor("a")).unwrap();
        pages.take(ONE, large(), cursor("b")).unwrap();
        let error = pages.take(ONE, large(), cursor("c")).unwrap_err();
        assert!(matches!(error, ListError::TooLarge { .. }), "{error}");

        let mut pages = Pages::new(ListKind::Tools, 10, 1_024);
        let cursor = Some("c".repeat(MOST_BYTES));
        let error = pages.take(ONE, vec!["x"], cursor).unwrap_err();
        assert!(matches!(error, ListError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn a_page_of_another_session_is_no_page_of_this_list() {
        let mut pages = pages();
        pages.take(ONE, vec![1], cursor("a")).unwrap();
        let error = pages.take(Generation(2), vec![2], None).unwrap_err();
        assert!(
            matches!(error, ListError::GenerationChanged { page: 2, .. }),
            "{error}"
        );
    }
}
