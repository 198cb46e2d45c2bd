//! A walk over the pages of a list, that ends.
//!
//! A server names the next page by a cursor of its own making, and nothing keeps it from naming the
//! same one for ever. So whoever walks counts the pages and remembers the cursors.

use std::collections::HashSet;

/// Where a walk over the pages of one list stands. It asks nobody: who holds it asks for the pages.
#[derive(Debug)]
pub(crate) struct Walk {
    most: usize,
    pages: usize,
    seen: HashSet<String>,
}

/// Why a walk ended before the list did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndlessList {
    /// The server named more pages than the connection's limit.
    #[error("the list has more than {most} pages, which is the connection's limit")]
    TooManyPages {
        /// The limit.
        most: usize,
    },
    /// The server named a cursor for the second time.
    #[error("the server named the same cursor twice, after {pages} pages")]
    RepeatedCursor {
        /// How many pages were read.
        pages: usize,
    },
}

/// Where to go after a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// To the page behind this cursor.
    Next(String),
    /// Nowhere: that was the last page.
    Complete,
}

impl Walk {
    /// A walk of at most this many pages, before its first one.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            pages: 0,
            seen: HashSet::new(),
        }
    }

    /// A page was read, and names this cursor. An empty cursor is one like any other: only a
    /// missing one ends a list.
    pub(crate) fn turn(&mut self, next: Option<String>) -> Result<Turn, EndlessList> {
        self.pages += 1;
        let Some(cursor) = next else {
            return Ok(Turn::Complete);
        };
        if !self.seen.insert(cursor.clone()) {
            return Err(EndlessList::RepeatedCursor { pages: self.pages });
        }
        if self.pages >= self.most {
            return Err(EndlessList::TooManyPages { most: self.most });
        }
        Ok(Turn::Next(cursor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(cursor: &str) -> Option<String> {
        Some(cursor.to_owned())
    }

    #[test]
    fn a_list_ends_where_no_cursor_is_named() {
        let mut walk = Walk::new(3);
        assert_eq!(walk.turn(next("a")), Ok(Turn::Next("a".to_owned())));
        assert_eq!(walk.turn(next("")), Ok(Turn::Next(String::new())));
        assert_eq!(walk.turn(None), Ok(Turn::Complete));
    }

    #[test]
    fn a_cursor_that_comes_again_ends_the_walk_also_in_a_circle() {
        let mut walk = Walk::new(100);
        assert!(walk.turn(next("a")).is_ok());
        assert!(walk.turn(next("b")).is_ok());
        let stop = walk.turn(next("a"));
        assert_eq!(stop, Err(EndlessList::RepeatedCursor { pages: 3 }));
    }

    #[test]
    fn more_pages_than_the_limit_end_the_walk_and_exactly_the_limit_does_not() {
        let mut walk = Walk::new(2);
        assert!(walk.turn(next("a")).is_ok());
        assert_eq!(walk.turn(None), Ok(Turn::Complete));
        let mut walk = Walk::new(2);
        assert!(walk.turn(next("a")).is_ok());
        let stop = walk.turn(next("b"));
        assert_eq!(stop, Err(EndlessList::TooManyPages { most: 2 }));
    }
}
