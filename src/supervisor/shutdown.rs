//! The end of a supervisor, and what it left behind.

use std::{sync::PoisonError, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::Supervisor;
use crate::{
    event::Stopped,
    operation::{ConnectionName, OperationId, Ownership, SupervisorPath},
};

/// How long callers are given, at the end of a shutdown, to learn their outcomes, so that the
/// report can tell of them.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Supervisor {
    /// Stops everything, here and at the supervisors below: new work is refused, what is in flight
    /// has until `deadline` to finish, what is still queued then is recalled, and the sessions are
    /// closed in the reverse order of their opening, those of the supervisors below first. A lent
    /// connection is left as it is.
    ///
    /// It takes at most the deadline, the graces of the connections, and a few seconds.
    ///
    /// # Cancel safety
    ///
    /// Dropped, everything is stopped at once, in the background.
    pub async fn shutdown(self, deadline: Duration) -> ShutdownReport {
        let lines = self.branch.close_admission();
        let until = Instant::now() + deadline;
        let mut drained = Vec::with_capacity(lines.len());
        for (_, line) in &lines {
            drained.push(timeout_at(until, line.idle()).await.is_ok());
        }
        for (_, line) in lines.iter().rev() {
            line.close_now();
        }
        for (_, line) in lines.iter().rev() {
            line.stopped().await;
        }
        for line in self.branch.leaving() {
            line.stopped().await;
        }
        let until = Instant::now() + LAST_WORDS;
        for (_, line) in &lines {
            // Whoever does not fetch an outcome by then is not in the report.
            let _ = timeout_at(until, line.idle()).await;
        }
        let connections = lines
            .into_iter()
            .zip(drained)
            .map(|((supervisor, line), drained)| ConnectionReport {
                supervisor,
                name: line.name.clone(),
                ownership: line.ownership,
                drained,
                unknown: line
                    .left_unknown
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone(),
                stopped: line.hardest_stop(),
            })
            .collect();
        ShutdownReport { connections }
    }
}

/// What a shutdown left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct ShutdownReport {
    /// One entry for each connection, in the order of their opening; then those of the supervisors
    /// below.
    pub connections: Vec<ConnectionReport>,
}

impl ShutdownReport {
    /// The operations that were on their way at the shutdown and of which nobody knows whether they ran. Those
    /// that were told as unknown before are not among them; a journal lists them all.
    pub fn unknown(&self) -> impl Iterator<Item = OperationId> + '_ {
        self.connections
            .iter()
            .flat_map(|c| c.unknown.iter().copied())
    }
}

/// What a shutdown left behind of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionReport {
    /// The supervisor of the connection: the one that was shut down, or one below it.
    pub supervisor: SupervisorPath,
    /// The connection.
    pub name: ConnectionName,
    /// Who owns it. A lent connection was left as it is.
    pub ownership: Ownership,
    /// Whether everything in flight finished before the deadline.
    pub drained: bool,
    /// The operations that were on their way, and of which nobody knows whether they ran.
    pub unknown: Vec<OperationId>,
    /// How far the runtime had to go to stop a session of it; `None` if it never had one.
    pub stopped: Option<Stopped>,
}
