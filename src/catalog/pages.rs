//! The pages of one list, put together: which one to ask for next, when it is whole, and when it
//! is never going to be.

use std::collections::HashSet;

use crate::{
    error::ListError,
    operation::{Generation, ListKind},
};

/// Where reading stops. A server that mints a new cursor for ever is told from a long list by this
/// alone, so it is far above any list that a client could do something with.
pub(crate) const MOST_PAGES: usize = 1_000;
/// The same for the entries of all pages together.
pub(crate) const MOST_ENTRIES: usize = 100_000;

/// The pages read so far, all of one generation.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    kind: ListKind,
    entries: Vec<T>,
    /// Every cursor that was named, also the one that is asked for now.
    cursors: HashSet<String>,
    read: usize,
    generation: Option<Generation>,
}

/// What comes after a page.
#[derive(Debug)]
pub(crate) enum Next {
    /// The page behind this cursor, from the same session.
    Ask(String),
    /// Nothing: the list is whole.
    Complete,
    /// Nothing: it will never be whole.
    Stop(ListError),
}

impl<T> Pages<T> {
    pub(crate) fn new(kind: ListKind) -> Self {
        Self {
            kind,
            entries: Vec::new(),
            cursors: HashSet::new(),
            read: 0,
            generation: None,
        }
    }

    /// The number of the page that is asked for now, from 1.
    pub(crate) fn page(&self) -> usize {
        self.read + 1
    }

    /// The session of the first page.
    pub(crate) fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// Takes a page with the cursor that it names.
    pub(crate) fn next(
        &mut self,
        generation: Generation,
        entries: Vec<T>,
        cursor: Option<String>,
    ) -> Next {
        let kind = self.kind;
        let page = self.page();
        if *self.generation.get_or_insert(generation) != generation {
            return Next::Stop(ListError::GenerationChanged { kind, page });
        }
        self.read = page;
        if entries.len() > MOST_ENTRIES - self.entries.len() {
            return Next::Stop(ListError::TooManyEntries {
                kind,
                entries: MOST_ENTRIES,
            });
        }
        self.entries.extend(entries);
        let Some(cursor) = cursor else {
            return Next::Complete;
        };
        if !self.cursors.insert(cursor.clone()) {
            return Next::Stop(ListError::CursorRepeated { kind, page });
        }
        if page == MOST_PAGES {
            return Next::Stop(ListError::TooManyPages { kind, pages: page });
        }
        Next::Ask(cursor)
    }

    /// All entries in the order of the pages.
    pub(crate) fn into_entries(self) -> Vec<T> {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Generation = Generation(1);

    fn pages() -> Pages<u32> {
        Pages::new(ListKind::Tools)
    }

    fn cursor(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn three_pages_are_one_list_in_their_order() {
        let mut pages = pages();
        assert!(matches!(pages.next(ONE, vec![1, 2], cursor("a")), Next::Ask(c) if c == "a"));
        assert!(matches!(pages.next(ONE, vec![], cursor("b")), Next::Ask(c) if c == "b"));
        assert!(matches!(pages.next(ONE, vec![3], None), Next::Complete));
        assert_eq!(pages.into_entries(), [1, 2, 3]);
    }

    #[test]
    fn a_cursor_that_was_named_before_ends_the_list_also_in_a_longer_circle() {
        let mut same = pages();
        same.next(ONE, vec![1], cursor("a"));
        let stop = same.next(ONE, vec![2], cursor("a"));
        assert!(matches!(
            stop,
            Next::Stop(ListError::CursorRepeated { page: 2, .. })
        ));
        let mut circle = pages();
        circle.next(ONE, vec![1], cursor("a"));
        circle.next(ONE, vec![2], cursor("b"));
        let stop = circle.next(ONE, vec![3], cursor("a"));
        assert!(matches!(
            stop,
            Next::Stop(ListError::CursorRepeated { page: 3, .. })
        ));
    }

    #[test]
    fn new_cursors_for_ever_end_at_the_cap() {
        let mut pages = pages();
        for n in 1..MOST_PAGES {
            assert!(matches!(
                pages.next(ONE, vec![], cursor(&n.to_string())),
                Next::Ask(_)
            ));
        }
        let stop = pages.next(ONE, vec![], cursor("one more"));
        assert!(matches!(
            stop,
            Next::Stop(ListError::TooManyPages {
                pages: MOST_PAGES,
                ..
            })
        ));
    }

    #[test]
    fn a_list_of_just_as_many_pages_as_are_read_is_whole() {
        let mut pages = pages();
        for n in 1..MOST_PAGES {
            pages.next(ONE, vec![], cursor(&n.to_string()));
        }
        assert!(matches!(pages.next(ONE, vec![7], None), Next::Complete));
    }

    #[test]
    fn entries_without_end_end_at_the_cap() {
        let mut pages = Pages::new(ListKind::Resources);
        let full = pages.next(ONE, vec![(); MOST_ENTRIES], cursor("a"));
        assert!(matches!(full, Next::Ask(_)));
        let stop = pages.next(ONE, vec![()], None);
        assert!(matches!(stop, Next::Stop(ListError::TooManyEntries { .. })));
    }

    #[test]
    fn a_page_of_another_session_is_no_page_of_this_list() {
        let mut pages = pages();
        pages.next(ONE, vec![1], cursor("a"));
        let stop = pages.next(Generation(2), vec![2], None);
        assert!(matches!(
            stop,
            Next::Stop(ListError::GenerationChanged { page: 2, .. })
        ));
    }
}
