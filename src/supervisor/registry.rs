//! Which connections there are. Guards of the map never live across an `await`.

use std::sync::Arc;

use dashmap::{DashMap, Entry};

use crate::{connection::Line, error::AddError, operation::ConnectionName};

#[derive(Default)]
pub(super) struct Registry {
    lines: DashMap<ConnectionName, Arc<Line>>,
}

impl Registry {
    pub(super) fn add(&self, line: &Arc<Line>) -> Result<(), AddError> {
        match self.lines.entry(line.name.clone()) {
            Entry::Occupied(there) if !there.get().closing.is_cancelled() => {
                Err(AddError::Duplicate(line.name.clone()))
            }
            Entry::Occupied(mut closed) => {
                closed.insert(Arc::clone(line));
                Ok(())
            }
            Entry::Vacant(free) => {
                free.insert(Arc::clone(line));
                Ok(())
            }
        }
    }

    pub(super) fn find(&self, name: &ConnectionName) -> Option<Arc<Line>> {
        let line = self.lines.get(name).map(|line| Arc::clone(&line))?;
        (!line.closing.is_cancelled()).then_some(line)
    }

    /// Forgets this very line, not another one that has taken its name since.
    pub(super) fn forget(&self, line: &Arc<Line>) {
        self.lines
            .remove_if(&line.name, |_, there| Arc::ptr_eq(there, line));
    }

    /// All that are not closed, by their names.
    pub(super) fn open(&self) -> Vec<Arc<Line>> {
        let open = self.lines.iter().filter(|l| !l.closing.is_cancelled());
        let mut lines: Vec<_> = open.map(|line| Arc::clone(&line)).collect();
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        lines
    }

    pub(super) fn names(&self) -> Vec<ConnectionName> {
        let open = self.lines.iter().filter(|l| !l.closing.is_cancelled());
        let mut names: Vec<_> = open.map(|line| line.name.clone()).collect();
        names.sort();
        names
    }
}
