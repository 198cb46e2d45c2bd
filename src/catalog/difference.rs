//! What changed from one published list to the next.

use std::collections::HashMap;

use super::Entry;

/// What changed from one complete list to the next, by name: of a tool or prompt its name, of a
/// resource, template or skill the name that it goes by, never its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// What was not there before, in the order of the list.
    pub added: Vec<String>,
    /// What is no longer there, in the order of the list before.
    pub removed: Vec<String>,
    /// What is there with another description, schema, or anything else about it.
    pub changed: Vec<String>,
}

impl Difference {
    /// From `before` to `after`. The order makes no difference, and of entries with one name the
    /// first counts.
    pub(crate) fn between<T: Entry>(before: &[T], after: &[T]) -> Self {
        let (old, new) = (by_identity(before), by_identity(after));
        let mut this = Self::default();
        for entry in firsts(after, &new) {
            match old.get(entry.identity()) {
                None => this.added.push(entry.label().to_owned()),
                Some(was) if *was != entry => this.changed.push(entry.label().to_owned()),
                Some(_) => {}
            }
        }
        for entry in firsts(before, &old) {
            if !new.contains_key(entry.identity()) {
                this.removed.push(entry.label().to_owned());
            }
        }
        this
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

fn by_identity<T: Entry>(entries: &[T]) -> HashMap<&str, &T> {
    let mut map = HashMap::with_capacity(entries.len());
    for entry in entries {
        map.entry(entry.identity()).or_insert(entry);
    }
    map
}

fn firsts<'a, T: Entry>(
    entries: &'a [T],
    by_identity: &HashMap<&'a str, &'a T>,
) -> impl Iterator<Item = &'a T> {
    entries.iter().filter(move |entry| {
        let first = by_identity.get(entry.identity());
        first.is_some_and(|first| std::ptr::eq(*first, *entry))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rmcp::model::{Resource, Tool};

    use super::*;

    fn tool(name: &str, about: &str) -> Tool {
        Tool::new(name.to_owned(), about.to_owned(), Arc::default())
    }

    #[test]
    fn what_came_went_and_changed_is_told_by_name_and_the_order_is_not_a_change() {
        let before = [tool("a", ""), tool("b", ""), tool("c", "")];
        let after = [tool("c", "other"), tool("d", ""), tool("b", "")];
        let difference = Difference::between(&before, &after);
        assert_eq!(difference.added, ["d"]);
        assert_eq!(difference.removed, ["a"]);
        assert_eq!(difference.changed, ["c"]);
        assert!(Difference::between(&after, &after).is_empty());
    }

    #[test]
    fn of_two_entries_with_one_name_the_first_counts() {
        let before = [tool("a", "one")];
        let after = [tool("a", "one"), tool("a", "two")];
        assert!(Difference::between(&before, &after).is_empty());
    }

    #[test]
    fn the_address_of_a_resource_is_compared_and_not_shown() {
        let before = [Resource::new("db://user:secret@host", "orders")];
        let after = [Resource::new("db://user:other@host", "orders")];
        let difference = Difference::between(&before, &after);
        assert_eq!(
            (difference.added, difference.removed),
            (vec!["orders".to_owned()], vec!["orders".to_owned()])
        );
    }
}
