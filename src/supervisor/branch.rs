//! One supervisor among the supervisors: its connections, and who is below it.
//!
//! Two trees meet here. In the tree of actors a supervisor may be the child of an agent, so that it
//! ends when the agent does. In the tree of supervisors it is below the host's, so that it ends when
//! that one does, is part of its shutdown, and is heard by its subscribers.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ractor::ActorCell;
use tokio_util::sync::CancellationToken;

use super::{SupervisorError, registry::Registry};
use crate::{
    connection::Line, error::AddError, event::Events, handle::Connection, journal::Journal,
    operation::SupervisorPath, toolbox::Connections,
};

pub(super) struct Branch {
    pub(super) path: SupervisorPath,
    pub(super) registry: Registry,
    pub(super) events: Events,
    pub(super) journal: Option<Journal>,
    /// Cancelled when no connection and no supervisor is let in any more.
    pub(super) closing: CancellationToken,
    actor: OnceLock<ActorCell>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// In the order of opening.
    lines: Vec<Arc<Line>>,
    /// Closed, with a process or transport that may not be gone yet.
    leaving: Vec<Arc<Line>>,
    /// The supervisors below, in the order of their start.
    below: Vec<Arc<Branch>>,
    /// The actor ended.
    ended: bool,
}

impl Branch {
    pub(super) fn top(journal: Option<Journal>) -> Self {
        Self::new(SupervisorPath::default(), Events::new(), journal)
    }

    pub(super) fn below(
        above: &Self,
        name: &str,
        journal: Option<Journal>,
    ) -> Result<Self, SupervisorError> {
        let path = above.path.below(name)?;
        let events = above.events.below(path.clone());
        Ok(Self::new(
            path,
            events,
            journal.or_else(|| above.journal.clone()),
        ))
    }

    fn new(path: SupervisorPath, events: Events, journal: Option<Journal>) -> Self {
        Self {
            path,
            registry: Registry::default(),
            events,
            journal,
            closing: CancellationToken::new(),
            actor: OnceLock::new(),
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_run_by(&self, actor: ActorCell) {
        // It is said once, by whoever spawned it.
        let _ = self.actor.set(actor);
    }

    pub(super) fn actor(&self) -> Option<ActorCell> {
        self.actor.get().cloned()
    }

    /// Lets a connection in. Whoever closes admission after this finds it.
    pub(super) fn add(&self, line: &Arc<Line>) -> Result<(), AddError> {
        let mut held = self.held();
        if self.closing.is_cancelled() {
            return Err(AddError::ShuttingDown);
        }
        self.registry.add(line)?;
        held.lines.push(Arc::clone(line));
        Ok(())
    }

    /// Forgets a connection that is closed. A shutdown still waits for what is left of it.
    pub(super) fn forget(&self, line: &Arc<Line>) {
        self.registry.forget(line);
        let mut held = self.held();
        held.lines.retain(|there| !Arc::ptr_eq(there, line));
        held.leaving.retain(|line| !line.is_stopped());
        if !line.is_stopped() {
            held.leaving.push(Arc::clone(line));
        }
    }

    /// Takes a supervisor in below this one, unless nothing is let in any more.
    pub(super) fn adopt(&self, child: &Arc<Self>) -> bool {
        let mut held = self.held();
        if self.closing.is_cancelled() {
            return false;
        }
        held.below.retain(|child| !child.is_over());
        held.below.push(Arc::clone(child));
        true
    }

    /// Nothing of it is left.
    fn is_over(&self) -> bool {
        let held = self.held();
        let mut lines = held.lines.iter().chain(&held.leaving);
        held.ended && lines.all(|line| line.is_stopped()) && held.below.iter().all(|b| b.is_over())
    }

    /// Lets no new operation, connection or supervisor in, here and below. Gives the connections of
    /// all supervisors that live.
    pub(super) fn close_admission(&self) -> Vec<(SupervisorPath, Arc<Line>)> {
        let mut all = Vec::new();
        self.collect(&mut all);
        for (_, line) in &all {
            line.closing.cancel();
        }
        all
    }

    fn collect(&self, all: &mut Vec<(SupervisorPath, Arc<Line>)>) {
        self.closing.cancel();
        let held = self.held();
        if !held.ended {
            let lines = held.lines.iter();
            all.extend(lines.map(|line| (self.path.clone(), Arc::clone(line))));
        }
        for child in &held.below {
            child.collect(all);
        }
    }

    /// The connections here and below that are closed, or whose supervisor ended, and of which a
    /// process or transport may be left.
    pub(super) fn leaving(&self) -> Vec<Arc<Line>> {
        let held = self.held();
        let mut all = held.leaving.clone();
        if held.ended {
            all.extend(held.lines.iter().cloned());
        }
        for child in &held.below {
            all.extend(child.leaving());
        }
        all
    }

    /// The actor ended, and with it the actors of its connections. The supervisors below end too,
    /// also those whose actors have another parent.
    pub(super) fn end(&self) {
        self.closing.cancel();
        let (lines, below) = {
            let mut held = self.held();
            held.ended = true;
            (held.lines.clone(), held.below.clone())
        };
        for line in lines {
            line.abandon();
        }
        for child in below {
            child.close_admission();
            if let Some(actor) = child.actor() {
                actor.stop(None);
            }
        }
    }
}

impl Connections for Branch {
    fn all(&self) -> Vec<Arc<Connection>> {
        let of = |line| Arc::new(Connection::over(line, self.journal.clone()));
        self.registry.open().into_iter().map(of).collect()
    }
}
