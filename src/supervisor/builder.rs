//! How a supervisor is started: on its own, below another one, or below an actor of the host's.

use std::{fmt, sync::Arc};

use ractor::{Actor, ActorCell};

use super::{Supervisor, branch::Branch, tree::SupervisorActor};
use crate::{config::ServerConfig, journal::Journal, operation::NameError, spec::ConnectionSpec};

/// Builds a [`Supervisor`].
pub struct SupervisorBuilder {
    journal: Option<Journal>,
    above: Option<(Arc<Branch>, String)>,
    prepare: Prepare,
}

/// The host's say in each connection of a configuration.
pub(super) type Prepare =
    Box<dyn Fn(&ServerConfig, ConnectionSpec) -> ConnectionSpec + Send + Sync>;

impl Default for SupervisorBuilder {
    fn default() -> Self {
        Self {
            journal: None,
            above: None,
            prepare: Box::new(|_, spec| spec),
        }
    }
}

/// A supervisor that could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SupervisorError {
    /// Its name among the supervisors.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The supervisor above it is shutting down, or gone.
    #[error("the supervisor above it is shutting down; start it under another one, or under none")]
    ShuttingDown,
    /// Its actor could not be started.
    #[error("the supervisor's actor could not be started; is the parent actor still running?")]
    NoActor,
}

impl SupervisorBuilder {
    /// Records the tool calls of its connections in `journal`, each before anything of it is sent. A
    /// recorded call goes on when its caller stops waiting, and the journal keeps what comes.
    #[must_use]
    pub fn journal(mut self, journal: Journal) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Gives the host its say in each connection that an [`apply`](Supervisor::apply) opens, before
    /// it is opened: what no file can hold, such as a handler or a source of tokens, is set here.
    /// It plays no part in whether a server counts as changed.
    ///
    /// ```
    /// use mcp_supervisor::Supervisor;
    /// use rmcp::ClientHandler;
    ///
    /// #[derive(Clone)]
    /// struct Person;
    /// impl ClientHandler for Person {}
    ///
    /// let builder = Supervisor::builder().prepare(|_server, spec| spec.handler(Person));
    /// # let _ = builder;
    /// ```
    #[must_use]
    pub fn prepare(
        mut self,
        prepare: impl Fn(&ServerConfig, ConnectionSpec) -> ConnectionSpec + Send + Sync + 'static,
    ) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// Puts the supervisor below `above`, as `name`: the supervisor of an agent below its host's.
    ///
    /// It has connections of its own, whose names may be taken above and elsewhere, and the journal
    /// of `above` unless it is given one. It may be shut down or dropped at any time, which leaves
    /// what is above as it is. In the other direction, a shutdown of `above` stops it within the same
    /// deadline and tells of its connections in the same report; when `above` goes, it goes too. Who
    /// subscribes to the events of `above` is told its events as well.
    ///
    /// The name need not be unique: an agent that is started again has the name of the one before,
    /// whose servers may still be stopping.
    ///
    /// ```
    /// # use mcp_supervisor::{Supervisor, StdioSpec};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let host = Supervisor::builder().start().await?;
    /// let clerk = Supervisor::builder().under(&host, "clerk").start().await?;
    /// clerk.open("billing", StdioSpec::new("billing-server")).await?;
    ///
    /// let report = host.shutdown(Duration::from_secs(2)).await;
    /// let billing = &report.connections[0];
    /// assert_eq!(format!("{}/{}", billing.supervisor, billing.name), "clerk/billing");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn under(mut self, above: &Supervisor, name: impl Into<String>) -> Self {
        self.above = Some((Arc::clone(&above.branch), name.into()));
        self
    }

    /// Starts the supervisor in the current tokio runtime.
    ///
    /// # Errors
    ///
    /// [`SupervisorError`], if its actor cannot be started, or if it is to be under a supervisor that
    /// is shutting down.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropped, no supervisor is left behind.
    pub async fn start(self) -> Result<Supervisor, SupervisorError> {
        self.start_under(None).await
    }

    pub(crate) async fn start_under(
        self,
        parent: Option<ActorCell>,
    ) -> Result<Supervisor, SupervisorError> {
        let branch = match &self.above {
            None => Branch::top(self.journal),
            Some((above, name)) => Branch::below(above, name, self.journal)?,
        };
        let branch = Arc::new(branch);
        let above = self.above.as_ref().map(|(above, _)| above);
        // Below an actor of the host's it ends with that one. Otherwise it ends with the supervisor
        // above it, whose actor is then its parent.
        let parent = parent.or_else(|| above.and_then(|above| above.actor()));
        let arguments = Arc::clone(&branch);
        let spawned = match parent {
            None => Actor::spawn(None, SupervisorActor, arguments).await,
            Some(parent) => Actor::spawn_linked(None, SupervisorActor, arguments, parent).await,
        };
        let (actor, _) = spawned.map_err(|_| match above {
            Some(above) if above.closing.is_cancelled() => SupervisorError::ShuttingDown,
            _ => SupervisorError::NoActor,
        })?;
        branch.is_run_by(actor.get_cell());
        // Dropped on the way out, it stops the actor.
        let supervisor = Supervisor {
            actor,
            branch,
            configured: tokio::sync::Mutex::default(),
            prepare: self.prepare,
        };
        if let Some(above) = above
            && !above.adopt(&supervisor.branch)
        {
            return Err(SupervisorError::ShuttingDown);
        }
        Ok(supervisor)
    }
}

impl fmt::Debug for SupervisorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupervisorBuilder").finish_non_exhaustive()
    }
}
