//! The connections that a configuration asks for: which an `apply` opens, closes and leaves alone.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Supervisor, source_of};
use crate::{
    config::{ConfigError, Configuration, ServerConfig},
    connection::Line,
    error::AddError,
    operation::{ConnectionName, Ownership},
    spec::ConnectionSpec,
};

/// What was applied last.
#[derive(Default)]
pub(super) struct Configured {
    running: BTreeMap<ConnectionName, Running>,
    /// What was closed last under a name, until nothing is left of it.
    leaving: BTreeMap<ConnectionName, Leaving>,
}

#[derive(Clone)]
struct Leaving {
    line: Arc<Line>,
    gone: CancellationToken,
}

struct Running {
    /// As the file describes it.
    spec: ConnectionSpec,
    line: Arc<Line>,
}

/// What an [`apply`](Supervisor::apply) did, server by server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct ApplyReport {
    /// What became of each server, by its name: those of the configuration, and those that were
    /// there before.
    pub changes: BTreeMap<String, ServerChange>,
}

/// What an [`apply`](Supervisor::apply) did about one server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServerChange {
    /// It is new, and open.
    Added,
    /// It is no longer in the configuration, and closed.
    Removed,
    /// It is described differently. A new connection took its name; the old one is closed.
    Restarted,
    /// It is as it was, and was not touched.
    Unchanged,
    /// The configuration switches it off. If it was open, it is closed.
    Disabled,
    /// It cannot be used as it is described.
    Failed {
        /// Why.
        error: ApplyError,
        /// Whether the connection from before goes on, under its old description.
        still_running: bool,
    },
}

/// Why a server of a configuration could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Its description.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The supervisor: the name belongs to a connection that was opened or lent by hand, or it is
    /// shutting down.
    #[error(transparent)]
    Add(AddError),
}

impl ApplyReport {
    /// The servers that cannot be used as they are described, and why.
    pub fn errors(&self) -> impl Iterator<Item = (&str, &ApplyError)> {
        self.changes
            .iter()
            .filter_map(|(name, change)| match change {
                ServerChange::Failed { error, .. } => Some((name.as_str(), error)),
                _ => None,
            })
    }
}

impl fmt::Display for ServerChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Added => f.write_str("added"),
            Self::Removed => f.write_str("removed"),
            Self::Restarted => f.write_str("restarted"),
            Self::Unchanged => f.write_str("unchanged"),
            Self::Disabled => f.write_str("disabled"),
            Self::Failed {
                error,
                still_running,
            } => {
                let running = if *still_running {
                    " (the one from before goes on)"
                } else {
                    ""
                };
                write!(f, "failed{running}: {error}")
            }
        }
    }
}

impl Configured {
    fn open(&self, name: &str) -> Option<&Running> {
        let running = self.running.get(&name.parse::<ConnectionName>().ok()?)?;
        (!running.line.closing.is_cancelled()).then_some(running)
    }

    /// Closes the connection of that name, if it is one of these.
    fn close(&mut self, name: &ConnectionName) -> Option<Ending> {
        let line = self.running.remove(name)?.line;
        let ending = end(Arc::clone(&line));
        let gone = ending.gone.clone();
        self.leaving.insert(name.clone(), Leaving { line, gone });
        Some(ending)
    }

    /// What the next connection of that name has to wait for.
    fn leaving(&self, name: &ConnectionName) -> Option<Leaving> {
        let leaving = self.leaving.get(name)?;
        (!leaving.gone.is_cancelled()).then(|| leaving.clone())
    }
}

/// A connection that is being closed.
struct Ending {
    task: JoinHandle<()>,
    gone: CancellationToken,
}

/// Closes a connection: nothing new from now on, some time for what is in flight, then the end. It
/// happens whether or not anybody waits for it.
fn end(line: Arc<Line>) -> Ending {
    line.finish();
    let gone = CancellationToken::new();
    let told = gone.clone().drop_guard();
    let task = tokio::spawn(async move {
        let grace = line.settings.limits.reconnect_grace;
        if timeout(grace, line.stopped()).await.is_err() {
            line.close_now();
            line.stopped().await;
        }
        drop(told);
    });
    Ending { task, gone }
}

impl Supervisor {
    /// Makes the connections what the configuration says: opens what is new, closes what is gone or
    /// switched off, restarts what is described differently, and touches nothing else. A connection
    /// that is not from a configuration is never touched.
    ///
    /// A server with an error keeps the connection that it has, under its old description. A server
    /// is described differently when its resolved settings differ: values of variables, and the
    /// defaults for all servers, are part of them.
    ///
    /// What is closed or restarted starts nothing any more, whatever it was about to start. Its
    /// calls in flight are given `reconnect_grace`; what was not sent yet is refused as not sent.
    /// When this returns, its process is gone. The restarted server's first session waits for that.
    /// Handles of the old connection stay closed: ask for [`connection`](Self::connection) by name.
    ///
    /// It starts no server: what only a start can show, such as a missing command, is told by the
    /// first call, by [`What::StartFailed`](crate::What::StartFailed), and by
    /// [`last_failure`](crate::connection::ConnectionStatus::last_failure). What no file can hold,
    /// such as a handler, is set by [`prepare`](crate::supervisor::SupervisorBuilder::prepare).
    ///
    /// Concurrent calls are carried out one after the other.
    ///
    /// # Cancel safety
    ///
    /// Dropped, some servers may have been dealt with and others not; the next `apply` sees to the
    /// rest. What was being closed is closed all the same.
    pub async fn apply(&self, configuration: &Configuration) -> ApplyReport {
        let mut configured = self.configured.lock().await;
        configured.leaving.retain(|_, l| !l.gone.is_cancelled());
        let mut report = ApplyReport::default();
        let mut endings = Vec::new();
        let is_gone = |name: &&ConnectionName| !configuration.servers.contains_key(name.as_str());
        let gone: Vec<_> = configured.running.keys().filter(is_gone).cloned().collect();
        for name in gone {
            endings.extend(configured.close(&name));
            report
                .changes
                .insert(name.as_str().to_owned(), ServerChange::Removed);
        }
        for (name, server) in &configuration.servers {
            let still_running = configured.open(name).is_some();
            let change = match server {
                Err(error) => Err(ApplyError::Config(error.clone())),
                Ok(server) => match server.spec() {
                    None => {
                        endings.extend(configured.close(server.name()));
                        Ok(ServerChange::Disabled)
                    }
                    Some(spec) => {
                        self.settle(&mut configured, server, spec, &mut endings)
                            .await
                    }
                },
            };
            let change = change.unwrap_or_else(|error| ServerChange::Failed {
                error,
                still_running: still_running && configured.open(name).is_some(),
            });
            report.changes.insert(name.clone(), change);
        }
        for ending in endings {
            // Its end is told by a guard, also if the runtime stops.
            let _ = ending.task.await;
        }
        report
    }

    /// Has a connection open that is as the file describes it.
    async fn settle(
        &self,
        configured: &mut Configured,
        server: &ServerConfig,
        spec: &ConnectionSpec,
        endings: &mut Vec<Ending>,
    ) -> Result<ServerChange, ApplyError> {
        let name = server.name();
        let before = configured.open(name.as_str());
        if before.is_some_and(|before| before.spec.is_same(spec)) {
            return Ok(ServerChange::Unchanged);
        }
        let restarts = before.is_some();
        let adjusted = (self.prepare)(server, spec.clone());
        // Before the old one is closed: it stays, if this fails.
        let source = source_of(&adjusted).map_err(|error| server.error(error))?;
        let ended = configured.close(name);
        let change = match restarts {
            true => ServerChange::Restarted,
            false => ServerChange::Added,
        };
        // Also of one that an earlier call, or somebody else, has closed.
        let leaving = configured.leaving(name);
        let entered = self.enter(
            name.clone(),
            Ownership::Framework,
            adjusted.settings,
            source,
            leaving.as_ref().map(|l| (&*l.line, l.gone.clone())),
        );
        endings.extend(ended);
        let (line, added) = entered.map_err(ApplyError::Add)?;
        let spec = spec.clone();
        configured
            .running
            .insert(name.clone(), Running { spec, line });
        if added.await.is_err() {
            configured.running.remove(name);
            return Err(ApplyError::Add(AddError::ShuttingDown));
        }
        Ok(change)
    }
}
