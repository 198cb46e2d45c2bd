//! The supervisor: it opens connections, restarts their actors, and stops everything in order.
//!
//! It is not on the path of a call. A call goes from its handle straight into its connection's
//! mailbox.

mod branch;
mod circuit;
mod configured;
mod registry;
mod tree;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ractor::{Actor, ActorCell, ActorRef};
use rmcp::{
    Peer, RoleClient,
    model::ProtocolVersion,
    service::{RunningService, Service},
};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    connection::{Admission, Gate, Line, LineSource},
    error::AddError,
    event::{EventStream, Stopped, What},
    evidence::SessionEndedList,
    handle::{Handle, LentConnection, OwnedConnection, SharedConnection},
    journal::Journal,
    operation::{ConnectionName, Generation, NameError, OperationId, Ownership, SupervisorPath},
    policy::{Repeats, ToolContract},
    session::{Connector, Session},
    spec::{ConnectionSpec, Limits, Settings, SpecError, settings_setters},
    toolbox::{Connections, Toolbox},
    transport::Pulse,
};
use branch::Branch;
use circuit::{Change, Circuit, Permission};
use configured::Configured;
pub use configured::{ApplyError, ApplyReport, ServerChange};
use tree::{Message, SupervisorActor};

/// How long callers are given, at the end of a shutdown, to learn their outcomes, so that the
/// report can tell of them.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Opens connections and looks after them.
///
/// Supervisors nest: one that is started [`under`](SupervisorBuilder::under) another has names of its
/// own, may end long before the one above it, and never outlives it.
///
/// Dropped without a [`shutdown`](Self::shutdown), everything is stopped in the background, and so is
/// everything below.
pub struct Supervisor {
    actor: ActorRef<Message>,
    branch: Arc<Branch>,
    configured: tokio::sync::Mutex<Configured>,
}

/// Builds a [`Supervisor`].
#[derive(Default)]
pub struct SupervisorBuilder {
    journal: Option<Arc<dyn Journal>>,
    above: Option<(Arc<Branch>, String)>,
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

/// The rules under which a caller-owned connection is used.
///
/// A [`Keyed`](ToolContract::Keyed) contract still fills its argument there, but no contract repeats
/// or looks up anything on what is lent: an unknown outcome stays one, and says so.
#[derive(Clone, Debug, Default)]
pub struct LentSpec {
    settings: Settings,
}
settings_setters!(LentSpec);

impl LentSpec {
    /// The default rules.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl SupervisorBuilder {
    /// Records every operation in `journal`.
    #[must_use]
    pub fn journal(mut self, journal: Arc<dyn Journal>) -> Self {
        self.journal = Some(journal);
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
        };
        if let Some(above) = above
            && !above.adopt(&supervisor.branch)
        {
            return Err(SupervisorError::ShuttingDown);
        }
        Ok(supervisor)
    }
}

impl Supervisor {
    /// Starts to build a supervisor.
    #[must_use]
    pub fn builder() -> SupervisorBuilder {
        SupervisorBuilder::default()
    }

    /// Opens a framework-owned connection. Its first session starts with its first operation,
    /// unless the spec says [`Start::Eager`](crate::spec::Start::Eager).
    ///
    /// # Errors
    ///
    /// [`AddError`], if the name is taken or the spec cannot be run.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the connection may be open; it is found by its name.
    pub async fn open(
        &self,
        name: &str,
        spec: impl Into<ConnectionSpec>,
    ) -> Result<OwnedConnection, AddError> {
        let name: ConnectionName = name.parse()?;
        let spec = spec.into();
        let in_spec = |error| AddError::Spec {
            name: name.clone(),
            error,
        };
        let source = source_of(&spec).map_err(in_spec)?;
        let line = self
            .add(name, Ownership::Framework, spec.settings, source)
            .await?;
        Ok(Handle::new(line, self.branch.journal.clone()))
    }

    /// Lends a running client service. The supervisor uses its peer; the service stays the
    /// caller's, to close and to replace.
    ///
    /// # Errors
    ///
    /// [`AddError`], if the name is taken or the service is closed already.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the connection may be lent; it is found by its name.
    pub async fn lend_service<S: Service<RoleClient>>(
        &self,
        name: &str,
        service: &RunningService<RoleClient, S>,
        spec: LentSpec,
    ) -> Result<LentConnection, AddError> {
        if service.is_closed() {
            return Err(AddError::LentClosed(name.parse()?));
        }
        self.lend(name, service.peer().clone(), Ownership::LentService, spec)
            .await
    }

    /// Lends a bare peer of a client service that the caller keeps.
    ///
    /// # Errors
    ///
    /// [`AddError`], if the name is taken or the peer is closed already.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the connection may be lent; it is found by its name.
    pub async fn lend_peer(
        &self,
        name: &str,
        peer: Peer<RoleClient>,
        spec: LentSpec,
    ) -> Result<LentConnection, AddError> {
        self.lend(name, peer, Ownership::LentPeer, spec).await
    }

    async fn lend(
        &self,
        name: &str,
        peer: Peer<RoleClient>,
        ownership: Ownership,
        spec: LentSpec,
    ) -> Result<LentConnection, AddError> {
        let name: ConnectionName = name.parse()?;
        let settings = spec.settings;
        settings.check().map_err(|error| AddError::Spec {
            name: name.clone(),
            error,
        })?;
        if peer.is_transport_closed() {
            return Err(AddError::LentClosed(name));
        }
        // No transport of ours is below it, so there are no frames to tell of.
        let pulse = Arc::new(Pulse::new(Generation(1), Arc::new(|_| {})));
        // What is not known is taken, as rmcp takes it, for a revision that has an `initialize`.
        let revision = peer
            .peer_info()
            .map_or(ProtocolVersion::LATEST_WITH_INITIALIZE, |info| {
                info.protocol_version.clone()
            });
        let session = Session::new(peer, revision, ownership, pulse);
        let source = LineSource::Lent(Arc::new(session));
        let line = self.add(name, ownership, settings, source).await?;
        Ok(Handle::new(line, self.branch.journal.clone()))
    }

    async fn add(
        &self,
        name: ConnectionName,
        ownership: Ownership,
        settings: Settings,
        source: LineSource,
    ) -> Result<Arc<Line>, AddError> {
        let (line, added) = self.enter(name, ownership, settings, source, None)?;
        if added.await.is_err() {
            self.branch.forget(&line);
            return Err(AddError::ShuttingDown);
        }
        Ok(line)
    }

    /// Registers a connection and has its actor started, which the receiver tells of. `before` is
    /// the line whose place it takes, with the token of that one's end.
    fn enter(
        &self,
        name: ConnectionName,
        ownership: Ownership,
        settings: Settings,
        source: LineSource,
        before: Option<(&Line, tokio_util::sync::CancellationToken)>,
    ) -> Result<(Arc<Line>, oneshot::Receiver<()>), AddError> {
        let teller = Arc::new(self.branch.events.of(name.clone(), ownership));
        let tell = {
            let teller = Arc::clone(&teller);
            move |what| teller.tell(what)
        };
        let gate = Arc::new(CircuitGate {
            cool_down: settings.recovery.cool_down,
            circuit: Mutex::new(Circuit::new(settings.recovery)),
            tell: Box::new(tell),
        });
        let mut line = Line::new(name, ownership, settings, source, gate, teller);
        if let Some((before, gone)) = before {
            line.follow(before, gone);
        }
        let line = Arc::new(line);
        self.branch.add(&line)?;
        let (reply, added) = oneshot::channel();
        let asked = self
            .actor
            .send_message(Message::Add(Arc::clone(&line), reply));
        if asked.is_err() {
            self.branch.forget(&line);
            return Err(AddError::ShuttingDown);
        }
        Ok((line, added))
    }

    /// A handle of a framework-owned connection, by its name.
    #[must_use]
    pub fn connection(&self, name: &str) -> Option<SharedConnection> {
        let line = self.branch.registry.find(&name.parse().ok()?)?;
        (!line.ownership.is_lent()).then(|| Handle::new(line, self.branch.journal.clone()))
    }

    /// A handle of a lent connection, by its name.
    #[must_use]
    pub fn lent_connection(&self, name: &str) -> Option<LentConnection> {
        let line = self.branch.registry.find(&name.parse().ok()?)?;
        line.ownership
            .is_lent()
            .then(|| Handle::new(line, self.branch.journal.clone()))
    }

    /// The names of all connections that are not closed, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<ConnectionName> {
        self.branch.registry.names()
    }

    /// The tools of all connections under one set of names: those that are open whenever it is
    /// asked, the lent ones included, and not those of the supervisors below.
    #[must_use]
    pub fn toolbox(&self) -> Toolbox {
        Toolbox::over(Arc::clone(&self.branch) as Arc<dyn Connections>)
    }

    /// Where it stands among the supervisors.
    #[must_use]
    pub fn path(&self) -> &SupervisorPath {
        &self.branch.path
    }

    /// Subscribes to what happens from now on, here and at the supervisors below.
    #[must_use]
    pub fn events(&self) -> EventStream {
        self.branch.events.subscribe()
    }

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

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Before their actors go: it is their end, not a failure of theirs.
        self.branch.close_admission();
        self.actor.stop(None);
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("connections", &self.names())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SupervisorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SupervisorBuilder").finish_non_exhaustive()
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
    /// The operations of which nobody knows whether they ran.
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
    /// The operations of which nobody knows whether they ran.
    pub unknown: Vec<OperationId>,
    /// How far the runtime had to go to stop a session of it; `None` if it never had one.
    pub stopped: Option<Stopped>,
}

/// Checks a spec, and builds what its sessions come from.
fn source_of(spec: &ConnectionSpec) -> Result<LineSource, SpecError> {
    spec.check()?;
    spec.is_complete()?;
    Ok(LineSource::Owned(Arc::new(Connector::new(spec)?)))
}

/// A connection's circuit behind the question that the connection asks.
struct CircuitGate {
    circuit: Mutex<Circuit>,
    cool_down: Duration,
    tell: Box<dyn Fn(What) + Send + Sync>,
}

impl CircuitGate {
    fn told(&self, change: Option<Change>) {
        match change {
            None => {}
            Some(Change::Opened) => (self.tell)(What::CircuitOpened {
                cool_down: self.cool_down,
            }),
            Some(Change::Probed) => (self.tell)(What::CircuitProbed),
            Some(Change::Closed) => (self.tell)(What::CircuitClosed),
        }
    }

    fn circuit(&self) -> std::sync::MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for CircuitGate {
    fn may_start(&self, now: std::time::Instant) -> Admission {
        let (permission, change) = self.circuit().may_start(now, rand::random());
        self.told(change);
        match permission {
            Permission::Start { after, probe } => Admission::Start { after, probe },
            Permission::Refused { retry_in } => Admission::Open { retry_in },
        }
    }

    fn open_for(&self, now: std::time::Instant) -> Option<Duration> {
        self.circuit().open_for(now)
    }

    fn failed(&self, now: std::time::Instant) {
        let change = self.circuit().failed(now);
        self.told(change);
    }

    fn proved(&self, _: std::time::Instant) {
        let change = self.circuit().proved();
        self.told(change);
    }
}

#[cfg(test)]
mod tests;
