//! The supervisor: it opens connections, restarts their actors, and stops everything in order.
//!
//! It is not on the path of a call. A call goes from its handle straight into its connection's
//! mailbox.

mod branch;
mod builder;
mod circuit;
mod configured;
mod gate;
mod registry;
mod resolve;
mod shutdown;
mod tree;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use ractor::ActorRef;
use rmcp::{
    Peer, RoleClient,
    model::ProtocolVersion,
    service::{RunningService, Service},
};
use tokio::sync::oneshot;

use crate::{
    connection::{Line, LineSource},
    error::AddError,
    event::EventStream,
    evidence::SessionEndedList,
    handle::{Handle, LentConnection, OwnedConnection, SharedConnection},
    operation::{ConnectionName, Generation, Ownership, SupervisorPath},
    policy::{Repeats, ToolContract},
    session::{Connector, Session},
    spec::{ConnectionSpec, Limits, Settings, SpecError, settings_setters},
    toolbox::{Connections, Toolbox},
    transport::Pulse,
};
use branch::Branch;
use builder::Prepare;
pub use builder::{SupervisorBuilder, SupervisorError};
use circuit::Circuit;
use configured::Configured;
pub use configured::{ApplyError, ApplyReport, ServerChange};
use gate::CircuitGate;
pub use shutdown::{ConnectionReport, ShutdownReport};
use tree::Message;

/// Opens connections and looks after them.
///
/// It is no handle: whoever calls servers is given connections. A program that needs it in several
/// places shares it in an `Arc`, and shuts it down with what `Arc::into_inner` gives.
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
    prepare: Prepare,
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
            line.abandon();
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

/// Checks a spec, and builds what its sessions come from.
fn source_of(spec: &ConnectionSpec) -> Result<LineSource, SpecError> {
    spec.check()?;
    spec.is_complete()?;
    Ok(LineSource::Owned(Arc::new(Connector::new(spec)?)))
}

#[cfg(test)]
mod tests;
