//! A connection: a stable mailbox that outlives its sessions.
//!
//! A pure function, `step`, decides; the actor in here carries out. No handler waits for a peer:
//! handing over is one poll, starting a session is spawning a child, and everything that takes
//! time happens in the session's task or in the caller's.

mod actor;
mod step;
mod ticket;

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ractor::ActorRef;
use rmcp::model::ServerPeerInfo;
use tokio::{
    sync::{Notify, Semaphore, futures::Notified, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub(crate) use actor::ConnectionActor;
use actor::Message;
pub(crate) use step::{Admission, Gate};
pub(crate) use ticket::{Attempt, GiveUpOnDrop, Progress, Ticket};

use crate::{
    catalog::Lists,
    error::{ReconnectError, StartError},
    event::{Dropped, Stopped, Teller, What},
    extension::Offer,
    operation::{ConnectionName, Generation, OperationId, Ownership},
    session::{After, Connector, Session, WantedLevel},
    spec::Settings,
    subscription::{Notices, SubscribeError, Subscription, Updates},
    telemetry::FarEnd,
    transport::Pulse,
};

/// What is the same for a connection whatever happens to its actor: its name, its rules, its
/// numbers. Handles hold it; the actor works on it.
pub(crate) struct Line {
    pub(crate) name: ConnectionName,
    pub(crate) ownership: Ownership,
    pub(crate) settings: Arc<Settings>,
    pub(crate) teller: Arc<Teller>,
    pub(crate) far_end: FarEnd,
    /// What the server told unasked.
    pub(crate) notices: Arc<Notices>,
    pub(crate) admission: Semaphore,
    /// Cancelled when no new operation is let in any more.
    pub(crate) closing: CancellationToken,
    /// Operations whose outcome was unknown when the connection closed under them.
    pub(crate) left_unknown: Mutex<Vec<OperationId>>,
    /// From which level on the server is to send messages for the log.
    pub(crate) log_level: Arc<WantedLevel>,
    /// What the server has on offer.
    pub(crate) lists: Lists,
    /// Set once, by whoever first wants to know of changes to the lists.
    pub(crate) attended: AtomicBool,
    source: LineSource,
    gate: Arc<dyn Gate>,
    /// Shared with the line that was there under the same name before, so that no number comes twice.
    generations: Arc<AtomicU64>,
    status: watch::Sender<ConnectionStatus>,
    newest: Mutex<Option<Arc<Pulse>>>,
    server: Mutex<Option<Arc<ServerPeerInfo>>>,
    session_over: Notify,
    hardest_stop: Mutex<Option<Stopped>>,
    mailbox: RwLock<Option<Mailbox>>,
    stopping: Mutex<Vec<(Generation, CancellationToken)>>,
}

/// Where a connection's sessions come from.
pub(crate) enum LineSource {
    Owned(Arc<Connector>),
    Lent(Arc<Session>),
}

#[derive(Clone)]
struct Mailbox {
    actor: ActorRef<Message>,
    alive: CancellationToken,
}

/// What a connection is doing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectionStatus {
    /// Its state.
    pub state: ConnectionState,
    /// The generation of its newest session, if there ever was one.
    pub generation: Option<Generation>,
    /// The protocol revision of that session, once it was negotiated.
    pub revision: Option<String>,
    /// Why the last start of a session failed, until one succeeds.
    pub last_failure: Option<Arc<StartError>>,
    /// For how long an open circuit still refuses operations, if it is open.
    pub circuit_open_for: Option<Duration>,
    /// Whether the newest session is suspect: it goes on for what is in flight, and the next
    /// operation gets another one, unless something is heard before.
    pub suspect: bool,
    /// How many operations the newest session has in flight.
    pub in_flight: usize,
    /// What the newest session has dropped.
    pub dropped: DroppedFrames,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionState {
    /// No session; the next operation starts one.
    Idle,
    /// A session is being started.
    Starting,
    /// A session takes operations.
    Live,
    /// Its owner closed it.
    Closed,
}

/// How many frames of each kind a connection's newest session has dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedFrames {
    /// Not JSON-RPC.
    pub garbage: u64,
    /// Answers to nothing that waits.
    pub unmatched: u64,
    /// Larger than the limit.
    pub too_large: u64,
}

impl Line {
    pub(crate) fn new(
        name: ConnectionName,
        ownership: Ownership,
        settings: Settings,
        source: LineSource,
        gate: Arc<dyn Gate>,
        teller: Arc<Teller>,
    ) -> Self {
        let limits = &settings.limits;
        let (state, generation, revision) = match &source {
            LineSource::Owned(_) => (ConnectionState::Idle, None, None),
            LineSource::Lent(session) => {
                let revision = session.revision.as_str().to_owned();
                (
                    ConnectionState::Live,
                    Some(session.pulse.generation),
                    Some(revision),
                )
            }
        };
        Self {
            name,
            ownership,
            teller,
            far_end: match &source {
                LineSource::Owned(connector) => connector.far_end(),
                LineSource::Lent(_) => FarEnd::default(),
            },
            notices: Arc::new(Notices::new()),
            admission: Semaphore::new(
                limits
                    .max_in_flight
                    .saturating_add(limits.max_queued)
                    .min(Semaphore::MAX_PERMITS),
            ),
            closing: CancellationToken::new(),
            left_unknown: Mutex::default(),
            log_level: match &source {
                LineSource::Owned(_) => Arc::default(),
                LineSource::Lent(session) => Arc::clone(&session.log_level),
            },
            lists: Lists::default(),
            attended: AtomicBool::new(false),
            settings: Arc::new(settings),
            gate,
            generations: Arc::default(),
            status: watch::Sender::new(ConnectionStatus {
                state,
                generation,
                revision,
                last_failure: None,
                suspect: false,
                circuit_open_for: None,
                in_flight: 0,
                dropped: DroppedFrames::default(),
            }),
            session_over: Notify::new(),
            hardest_stop: Mutex::default(),
            server: Mutex::new(match &source {
                LineSource::Owned(_) => None,
                LineSource::Lent(session) => session.server(),
            }),
            newest: Mutex::new(match source {
                LineSource::Owned(_) => None,
                LineSource::Lent(ref session) => Some(Arc::clone(&session.pulse)),
            }),
            source,
            mailbox: RwLock::default(),
            stopping: Mutex::default(),
        }
    }

    /// Makes this line take the place of another one: its first session starts when `gone` is
    /// cancelled, and the numbers of its sessions go on.
    pub(crate) fn follow(&mut self, before: &Self, gone: CancellationToken) {
        self.generations = Arc::clone(&before.generations);
        let newest = Generation(self.generations.load(Ordering::Relaxed));
        self.stopping
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .push((newest, gone));
    }

    pub(crate) fn tell(&self, what: What) {
        if let What::SessionStopped { how, .. } = &what {
            let mut hardest = self
                .hardest_stop
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *hardest = (*hardest).max(Some(*how));
        }
        self.teller.tell(what);
    }

    /// What the server of the newest session said about itself.
    pub(crate) fn server(&self) -> Option<Arc<ServerPeerInfo>> {
        let server = self.server.lock();
        server.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn status(&self) -> ConnectionStatus {
        let mut status = self.status.borrow().clone();
        status.circuit_open_for = self.gate.open_for(Instant::now().into_std());
        if let Some(pulse) = &*self.newest.lock().unwrap_or_else(PoisonError::into_inner) {
            status.suspect = pulse.is_suspect();
            status.in_flight = pulse.in_flight();
            status.dropped = DroppedFrames {
                garbage: pulse.dropped(Dropped::Garbage),
                unmatched: pulse.dropped(Dropped::Unmatched),
                too_large: pulse.dropped(Dropped::TooLarge),
            };
        }
        status
    }

    pub(crate) fn watch_status(&self) -> watch::Receiver<ConnectionStatus> {
        self.status.subscribe()
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.mailbox
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts a ticket into the mailbox. `None`: there is no mailbox, and it was not sent. The token
    /// is cancelled should the mailbox be lost.
    pub(crate) fn submit(&self, ticket: Arc<Ticket>) -> Option<CancellationToken> {
        let mailbox = self.mailbox()?;
        mailbox.actor.send_message(Message::Operate(ticket)).ok()?;
        Some(mailbox.alive)
    }

    /// Asks for a new session, in order.
    pub(crate) async fn reconnect(&self) -> Result<Generation, ReconnectError> {
        let (reply, answer) = oneshot::channel();
        let mailbox = self.mailbox().ok_or(ReconnectError::Closed)?;
        mailbox
            .actor
            .send_message(Message::Reconnect(reply))
            .map_err(|_| ReconnectError::Closed)?;
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or(Err(ReconnectError::Closed)),
            () = mailbox.alive.cancelled() => Err(ReconnectError::Closed),
        }
    }

    /// Subscribes on this session and on those to come, and starts one if there is none.
    pub(crate) fn subscribe(&self, wanted: Subscription) -> Result<Updates, SubscribeError> {
        let connection = || self.name.clone();
        if wanted.is_empty() {
            return Err(SubscribeError::Empty);
        }
        if self.ownership.is_lent() {
            return Err(SubscribeError::CallerOwned {
                connection: connection(),
            });
        }
        if self.closing.is_cancelled() {
            return Err(SubscribeError::Closed {
                connection: connection(),
            });
        }
        let updates = Updates::new(&self.notices, wanted, self.closing.clone());
        self.warm_up();
        Ok(updates)
    }

    /// Starts a session if there is none.
    pub(crate) fn warm_up(&self) {
        if let Some(mailbox) = self.mailbox() {
            // Without an actor there is nothing to warm up.
            let _ = mailbox.actor.send_message(Message::WarmUp);
        }
    }

    /// Refuses what waits and ends the session.
    pub(crate) fn close_now(&self) {
        self.closing.cancel();
        if let Some(mailbox) = self.mailbox() {
            // An actor that is gone has closed everything already.
            let _ = mailbox.actor.send_message(Message::Close);
        }
    }

    /// Refuses what waits and starts nothing any more. What is in flight goes on, and its sessions
    /// end with it.
    pub(crate) fn finish(&self) {
        self.closing.cancel();
        if let Some(mailbox) = self.mailbox() {
            // An actor that is gone has closed everything already.
            let _ = mailbox.actor.send_message(Message::Finish);
        }
    }

    /// Waits, on a line that was told to close, until the processes and transports of all sessions
    /// are gone. Bounded by their own graces.
    pub(crate) async fn stopped(&self) {
        // Until the actor has come to that message, it may start one more session.
        let mut status = self.status.subscribe();
        let _ = status
            .wait_for(|status| status.state == ConnectionState::Closed)
            .await;
        loop {
            let next = {
                let mut stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
                stopping.retain(|(_, gone)| !gone.is_cancelled());
                stopping.first().map(|(_, gone)| gone.clone())
            };
            match next {
                Some(gone) => gone.cancelled().await,
                None => return,
            }
        }
    }

    /// Whether no process or transport of any session is left.
    pub(crate) fn is_stopped(&self) -> bool {
        let stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        stopping.iter().all(|(_, gone)| gone.is_cancelled())
    }

    /// Its supervisor is gone, and its actor with it or about to be.
    pub(crate) fn abandon(&self) {
        self.closing.cancel();
        // An actor that is still on its way out says the same at its end.
        self.status
            .send_modify(|status| status.state = ConnectionState::Closed);
    }

    /// An operation ended without anybody knowing its outcome. It matters to the report of a
    /// shutdown.
    pub(crate) fn note_unknown(&self, operation: OperationId) {
        if self.closing.is_cancelled() {
            self.left_unknown
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(operation);
        }
    }

    /// The session that takes operations, if one does and is not known to be over.
    pub(crate) fn live(&self) -> Option<Generation> {
        let (state, generation) = {
            let status = self.status.borrow();
            (status.state, status.generation)
        };
        // Its end is in its pulse before it is in the status.
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let pulse = newest.as_ref().filter(|pulse| !pulse.is_ended())?;
        let live = state == ConnectionState::Live && generation == Some(pulse.generation);
        live.then_some(pulse.generation)
    }

    /// What the server offers by way of receipts, in this session, if it is the newest.
    pub(crate) fn receipts(&self, generation: Generation) -> Option<Offer> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let pulse = newest.as_ref().filter(|it| it.generation == generation)?;
        pulse.receipts().cloned()
    }

    /// How far the runtime had to go, at most, to stop a session of this connection.
    pub(crate) fn hardest_stop(&self) -> Option<Stopped> {
        *self
            .hardest_stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The actor failed by its own fault, which counts like a failed start.
    pub(crate) fn count_failure(&self) {
        self.gate.failed(Instant::now().into_std());
    }

    /// Waits until every operation that was admitted has its outcome.
    pub(crate) async fn idle(&self) {
        let limits = &self.settings.limits;
        let all = limits.max_in_flight.saturating_add(limits.max_queued);
        let all = u32::try_from(all).unwrap_or(u32::MAX);
        // The semaphore is never closed, so this can only wait or succeed.
        let _ = self.admission.acquire_many(all).await;
    }

    #[cfg(test)]
    pub(crate) fn make_the_actor_panic(&self) {
        let mailbox = self.mailbox().unwrap();
        mailbox.actor.send_message(Message::Panic).unwrap();
    }

    /// Waits until a session, whichever, ends after this call. Callers that sleep from the mailbox
    /// to the answer look at their tickets then.
    pub(crate) fn session_over(&self) -> Notified<'_> {
        self.session_over.notified()
    }

    fn end_caller(self: &Arc<Self>) -> impl Fn() + Send + Sync + 'static {
        let line = Arc::downgrade(self);
        move || {
            if let Some(line) = line.upgrade() {
                line.session_over.notify_waiters();
            }
        }
    }

    fn room_caller(self: &Arc<Self>) -> impl Fn() + Send + Sync + 'static {
        let line = Arc::downgrade(self);
        move || {
            if let Some(mailbox) = line.upgrade().and_then(|line| line.mailbox()) {
                // Without an actor nobody waits for room.
                let _ = mailbox.actor.send_message(Message::Room);
            }
        }
    }

    fn next_generation(&self) -> Generation {
        Generation(self.generations.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// What must be gone before the next session starts: of a mailbox that was lost everything,
    /// otherwise everything but the session that `drains`, whose calls may take long, or where none
    /// does the newest.
    fn must_be_gone(&self, all: bool, drains: Option<Generation>) -> Vec<After> {
        let mut stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        stopping.retain(|(_, gone)| !gone.is_cancelled());
        let draining = stopping.iter().find(|(it, _)| Some(*it) == drains);
        let spared = draining.or(stopping.last()).map(|(it, _)| *it);
        stopping
            .iter()
            .filter(|(it, _)| all || Some(*it) != spared)
            .map(|(_, gone)| After::Gone(gone.clone()))
            .collect()
    }
}
