//! A connection: a stable mailbox that outlives its sessions.
//!
//! The [`step`] function decides; the actor in here carries out. No handler waits for a peer:
//! handing over is one poll, starting a session is spawning a child, and everything that takes
//! time happens in the session's task or in the caller's.

mod step;
mod ticket;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::{
    sync::{Notify, Semaphore, futures::Notified, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use step::{Admission, Gate};
pub(crate) use ticket::{Attempt, GiveUpOnDrop, Progress, Ticket, Waits};

use crate::{
    catalog::ToolSchemas,
    error::{NotSentReason, ReconnectError, StartError},
    event::{Dropped, Events, Stopped, What},
    evidence::Loss,
    operation::{ConnectionName, Generation, OperationId, Ownership},
    session::{
        After, Command, Connector, Report, Session, SessionActor, SessionArgs, SessionHandle,
    },
    spec::Settings,
    transport::Pulse,
};
use step::{Health, Input, Phase, Refusal, Retire, State, Step};
use ticket::Handing;

/// What is the same for a connection whatever happens to its actor: its name, its rules, its
/// numbers. Handles hold it; the actor works on it.
pub(crate) struct Line {
    pub(crate) name: ConnectionName,
    pub(crate) ownership: Ownership,
    pub(crate) settings: Arc<Settings>,
    pub(crate) events: Events,
    pub(crate) admission: Semaphore,
    /// Cancelled when no new operation is let in any more.
    pub(crate) closing: CancellationToken,
    /// Operations whose outcome was unknown when the connection closed under them.
    pub(crate) left_unknown: Mutex<Vec<OperationId>>,
    schemas: Mutex<Option<Arc<ToolSchemas>>>,
    source: LineSource,
    gate: Arc<dyn Gate>,
    generations: AtomicU64,
    status: watch::Sender<ConnectionStatus>,
    newest: Mutex<Option<Arc<Pulse>>>,
    session_over: Notify,
    hardest_stop: Mutex<Option<Stopped>>,
    mailbox: RwLock<Option<Mailbox>>,
    stopping: Mutex<Vec<CancellationToken>>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionStatus {
    /// Its state.
    pub state: ConnectionState,
    /// The generation of its newest session, if there ever was one.
    pub generation: Option<Generation>,
    /// The protocol revision of that session, once it was negotiated.
    pub revision: Option<String>,
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
        events: Events,
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
            events,
            admission: Semaphore::new(
                limits
                    .max_in_flight
                    .saturating_add(limits.max_queued)
                    .min(Semaphore::MAX_PERMITS),
            ),
            closing: CancellationToken::new(),
            left_unknown: Mutex::default(),
            schemas: Mutex::default(),
            settings: Arc::new(settings),
            gate,
            generations: AtomicU64::new(0),
            status: watch::Sender::new(ConnectionStatus {
                state,
                generation,
                revision,
                in_flight: 0,
                dropped: DroppedFrames::default(),
            }),
            session_over: Notify::new(),
            hardest_stop: Mutex::default(),
            newest: Mutex::new(match source {
                LineSource::Owned(_) => None,
                LineSource::Lent(ref session) => Some(Arc::clone(&session.pulse)),
            }),
            source,
            mailbox: RwLock::default(),
            stopping: Mutex::default(),
        }
    }

    pub(crate) fn tell(&self, what: What) {
        if let What::SessionStopped { how, .. } = &what {
            let mut hardest = self
                .hardest_stop
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *hardest = (*hardest).max(Some(*how));
        }
        self.events.tell(&self.name, self.ownership, what);
    }

    pub(crate) fn status(&self) -> ConnectionStatus {
        let mut status = self.status.borrow().clone();
        if let Some(pulse) = &*self.newest.lock().unwrap_or_else(PoisonError::into_inner) {
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

    /// Waits until the processes and transports of all sessions are gone. Bounded by their own
    /// graces.
    pub(crate) async fn stopped(&self) {
        loop {
            let next = {
                let mut stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
                stopping.retain(|gone| !gone.is_cancelled());
                stopping.first().cloned()
            };
            match next {
                Some(gone) => gone.cancelled().await,
                None => return,
            }
        }
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

    /// The revision in force, if it is one that has no ping.
    pub(crate) fn revision_without_ping(&self) -> Option<String> {
        let revision = self.status.borrow().revision.clone()?;
        (revision.as_str() >= "2026-07-28").then_some(revision)
    }

    /// The schemas that were read from the newest session.
    pub(crate) fn schemas_of_this_generation(&self) -> Option<Arc<ToolSchemas>> {
        let newest = self.status.borrow().generation;
        let schemas = self
            .schemas
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        schemas.filter(|s| Some(s.generation) == newest)
    }

    pub(crate) fn keep_schemas(&self, schemas: &Arc<ToolSchemas>) {
        *self.schemas.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(schemas));
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
        self.gate.failed(Instant::now());
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
    /// otherwise everything but the session that is draining.
    fn must_be_gone(&self, all: bool) -> Vec<After> {
        let mut stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        stopping.retain(|gone| !gone.is_cancelled());
        let keep = usize::from(!all);
        let count = stopping.len().saturating_sub(keep);
        stopping
            .iter()
            .take(count)
            .cloned()
            .map(After::Gone)
            .collect()
    }
}

pub(crate) enum Message {
    Operate(Arc<Ticket>),
    Reconnect(oneshot::Sender<Result<Generation, ReconnectError>>),
    WarmUp,
    Session(Generation, Report),
    /// An operation left a session that was full.
    Room,
    Close,
    #[cfg(test)]
    Panic,
}

pub(crate) struct ConnectionActor;

pub(crate) struct Working {
    line: Arc<Line>,
    state: State,
    current: Option<Current>,
    /// Sessions that take nothing new and are not over yet, oldest first.
    retired: VecDeque<(ActorCell, SessionHandle)>,
    waiting: VecDeque<Arc<Ticket>>,
    /// Handed over to the current session, in order, until known to have left the queues below.
    outstanding: VecDeque<Arc<Ticket>>,
    reconnects: Vec<oneshot::Sender<Result<Generation, ReconnectError>>>,
    /// A mailbox before this one was lost, and with it a session that may not be gone yet.
    after_failure: bool,
    last_failure: Option<Arc<StartError>>,
    _alive: DropGuard,
}

struct Current {
    actor: Option<ActorCell>,
    handle: Option<SessionHandle>,
    pulse: Arc<Pulse>,
    session: Option<Arc<Session>>,
}

impl Actor for ConnectionActor {
    type Msg = Message;
    type State = Working;
    type Arguments = Arc<Line>;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        line: Arc<Line>,
    ) -> Result<Working, ActorProcessingErr> {
        let alive = CancellationToken::new();
        let mailbox = Mailbox {
            actor: myself,
            alive: alive.clone(),
        };
        let before = line
            .mailbox
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(mailbox);
        let (state, current) = match &line.source {
            LineSource::Owned(_) => (State::owned(), None),
            LineSource::Lent(session) => {
                let pulse = Arc::clone(&session.pulse);
                pulse.on_room(line.room_caller());
                pulse.on_end(line.end_caller());
                let session = Some(Arc::clone(session));
                (
                    State::lent(),
                    Some(Current {
                        actor: None,
                        handle: None,
                        pulse,
                        session,
                    }),
                )
            }
        };
        let mut working = Working {
            line,
            state,
            current,
            retired: VecDeque::new(),
            waiting: VecDeque::new(),
            outstanding: VecDeque::new(),
            reconnects: Vec::new(),
            after_failure: before.is_some(),
            last_failure: None,
            _alive: alive.drop_guard(),
        };
        if working.line.closing.is_cancelled() {
            working.close();
        }
        working.publish();
        Ok(working)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        working: &mut Working,
    ) -> Result<(), ActorProcessingErr> {
        let start = match message {
            Message::Operate(ticket) => working.operate(ticket),
            Message::Reconnect(reply) => working.reconnect(reply),
            Message::WarmUp if working.state.phase == Phase::Idle => {
                let (reply, _) = oneshot::channel();
                working.reconnect(reply)
            }
            Message::WarmUp => None,
            Message::Session(generation, report) => working.news(generation, report),
            Message::Room => working.flush(),
            Message::Close => {
                working.close();
                None
            }
            #[cfg(test)]
            Message::Panic => panic!("asked to by a test"),
        };
        if let Some((actor, args)) = start.map(|start| working.begin(start, &myself)) {
            let (child, _) = Actor::spawn_linked(None, actor, args, myself.get_cell()).await?;
            working.started(child.get_cell());
        }
        if working.is_finished() {
            myself.stop(None);
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        working: &mut Working,
    ) -> Result<(), ActorProcessingErr> {
        let over = match &event {
            SupervisionEvent::ActorTerminated(who, ..) | SupervisionEvent::ActorFailed(who, _) => {
                Some(who)
            }
            _ => None,
        };
        let start = over.and_then(|who| working.session_ended(who));
        if let Some((actor, args)) = start.map(|start| working.begin(start, &myself)) {
            let (child, _) = Actor::spawn_linked(None, actor, args, myself.get_cell()).await?;
            working.started(child.get_cell());
        }
        if working.is_finished() {
            myself.stop(None);
        }
        Ok(())
    }
}

impl Drop for Working {
    /// An actor that went with its supervisor had no time for a message that closes it.
    fn drop(&mut self) {
        if self.line.closing.is_cancelled() {
            self.state.phase = Phase::Closed;
            self.publish();
        }
    }
}

/// A session that is to be started.
struct StartPlan {
    at: Instant,
    probe: bool,
    drain_first: Option<Arc<Pulse>>,
}

impl Working {
    fn step(&mut self, input: Input) -> Step {
        let gate = Arc::clone(&self.line.gate);
        self.state.step(input, Instant::now(), &*gate)
    }

    fn operate(&mut self, ticket: Arc<Ticket>) -> Option<StartPlan> {
        if self.health() == Health::Over && !self.line.ownership.is_lent() {
            // Its supervision event is on its way. What it left behind goes before the newcomer.
            let plan = self.lose();
            self.waiting.push_back(ticket);
            return plan.or_else(|| self.start_for_waiting());
        }
        let input = Input::Operation {
            health: self.health(),
            others: !self.waiting.is_empty(),
            room: self.has_room(),
        };
        match self.step(input) {
            Step::HandOver => {
                self.hand_over(ticket);
                self.flush()
            }
            Step::Wait => {
                self.waiting.push_back(ticket);
                self.flush()
            }
            Step::Refuse(refusal) => {
                ticket.refuse(self.reason(refusal));
                None
            }
            Step::Start {
                after,
                probe,
                retire,
            } => {
                let plan = self.plan(after, probe, retire);
                self.waiting.push_back(ticket);
                Some(plan)
            }
            Step::Rest | Step::Flush | Step::FailWaiting => None,
        }
    }

    fn start_for_waiting(&mut self) -> Option<StartPlan> {
        let input = Input::Operation {
            health: Health::Good,
            others: true,
            room: true,
        };
        match self.step(input) {
            Step::Start {
                after,
                probe,
                retire,
            } => Some(self.plan(after, probe, retire)),
            Step::Refuse(refusal) => {
                let reason = self.reason(refusal);
                self.fail_waiting(&reason);
                None
            }
            _ => None,
        }
    }

    fn reconnect(
        &mut self,
        reply: oneshot::Sender<Result<Generation, ReconnectError>>,
    ) -> Option<StartPlan> {
        match self.step(Input::Reconnect) {
            Step::Start {
                after,
                probe,
                retire,
            } => {
                self.reconnects.push(reply);
                Some(self.plan(after, probe, retire))
            }
            Step::Wait => {
                self.reconnects.push(reply);
                None
            }
            Step::Refuse(Refusal::CircuitOpen { retry_in }) => {
                // Whoever asked may have stopped waiting.
                let _ = reply.send(Err(ReconnectError::CircuitOpen { retry_in }));
                None
            }
            _ => {
                let _ = reply.send(Err(ReconnectError::Closed));
                None
            }
        }
    }

    /// What the session that is being started says.
    fn news(&mut self, generation: Generation, report: Report) -> Option<StartPlan> {
        let current = self
            .current
            .as_mut()
            .filter(|c| c.pulse.generation == generation)?;
        match report {
            Report::Started(session) => {
                current.session = Some(session);
                let _ = self.step(Input::Started);
                for reply in self.reconnects.drain(..) {
                    // Whoever asked may have stopped waiting.
                    let _ = reply.send(Ok(generation));
                }
                self.publish();
                if self.health() == Health::Over {
                    self.lose()
                } else {
                    self.flush()
                }
            }
            Report::Failed(error) => {
                self.fail_start(&error);
                None
            }
        }
    }

    fn fail_start(&mut self, error: &Arc<StartError>) {
        self.current = None;
        self.last_failure = Some(Arc::clone(error));
        if self.step(Input::StartFailed) == Step::FailWaiting {
            self.fail_waiting(&NotSentReason::StartFailed(Arc::clone(error)));
        }
        for reply in self.reconnects.drain(..) {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(Err(ReconnectError::StartFailed(Arc::clone(error))));
        }
        self.publish();
    }

    fn session_ended(&mut self, who: &ActorCell) -> Option<StartPlan> {
        if let Some(at) = self
            .retired
            .iter()
            .position(|(a, _)| a.get_id() == who.get_id())
        {
            self.retired.remove(at);
            return None;
        }
        let is_current = self
            .current
            .as_ref()
            .and_then(|c| c.actor.as_ref())
            .is_some_and(|actor| actor.get_id() == who.get_id());
        // Before `Started` or `Failed` it can only have been told to stop, and `Failed` follows.
        let was_live = self.current.as_ref().is_some_and(|c| c.session.is_some());
        if is_current && was_live {
            self.lose()
        } else {
            None
        }
    }

    /// The current session is over.
    fn lose(&mut self) -> Option<StartPlan> {
        let current = self.current.take()?;
        let pulse = current.pulse;
        let why = pulse.loss().map(ToString::to_string).unwrap_or_default();
        let unanswered = pulse.in_flight();
        self.line.tell(What::SessionLost {
            generation: pulse.generation,
            why,
            unanswered,
        });
        if let (Some(actor), Some(handle)) = (current.actor, current.handle) {
            self.retired.push_back((actor, handle));
        }
        self.take_back(true);
        let waiting = !self.waiting.is_empty();
        let step = self.step(Input::Ended {
            answered: pulse.answers() > 0,
            waiting,
        });
        self.publish();
        match step {
            Step::Start {
                after,
                probe,
                retire,
            } => Some(self.plan(after, probe, retire)),
            Step::Refuse(refusal) => {
                let reason = self.reason(refusal);
                self.fail_waiting(&reason);
                None
            }
            _ => None,
        }
    }

    /// Puts what a session has not sent before everything that waits, in its order.
    ///
    /// The last one is taken back first, because the writer goes the other way: where the two meet,
    /// all that was sent is older than all that was not.
    fn take_back(&mut self, session_is_over: bool) {
        for ticket in std::mem::take(&mut self.outstanding).into_iter().rev() {
            if ticket.take_back(session_is_over) {
                self.waiting.push_front(ticket);
            }
        }
    }

    fn plan(
        &mut self,
        after: std::time::Duration,
        probe: bool,
        retire: Option<Retire>,
    ) -> StartPlan {
        let mut drain_first = None;
        if let Some(why) = retire
            && let Some(Current {
                actor: Some(actor),
                handle: Some(handle),
                pulse,
                ..
            }) = self.current.take()
        {
            let text = match why {
                Retire::Suspect => "it may be dead, and nothing was heard since",
                Retire::Requested => "a new session was asked for",
            };
            self.line.tell(What::SessionRetired {
                generation: pulse.generation,
                why: text,
            });
            self.take_back(false);
            if why == Retire::Requested {
                drain_first = Some(pulse);
            }
            // At most one session drains beside the live one.
            for (_, older) in &self.retired {
                older.command(Command::Close("a newer session took its place"));
            }
            handle.command(Command::Retire);
            self.retired.push_back((actor, handle));
        }
        StartPlan {
            at: Instant::now() + after,
            probe,
            drain_first,
        }
    }

    fn begin(
        &mut self,
        plan: StartPlan,
        myself: &ActorRef<Message>,
    ) -> (SessionActor, SessionArgs) {
        let line = Arc::clone(&self.line);
        let generation = line.next_generation();
        let tell: Arc<dyn Fn(What) + Send + Sync> = {
            let line = Arc::clone(&line);
            Arc::new(move |what| line.tell(what))
        };
        // The line keeps its newest pulse, so the pulse must not keep the line.
        let tell_dropped = {
            let (events, name, ownership) =
                (line.events.clone(), line.name.clone(), line.ownership);
            move |what| events.tell(&name, ownership, what)
        };
        let pulse = Arc::new(Pulse::new(generation, Arc::new(tell_dropped)));
        pulse.on_room(line.room_caller());
        pulse.on_end(line.end_caller());
        *line.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&pulse));
        let (command, commands) = watch::channel(Command::Run);
        let mut after = line.must_be_gone(std::mem::take(&mut self.after_failure));
        if let Some(pulse) = plan.drain_first {
            after.insert(
                0,
                After::Drained(pulse, line.settings.limits.reconnect_grace),
            );
        }
        let gone = CancellationToken::new();
        line.stopping
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(gone.clone());
        self.current = Some(Current {
            actor: None,
            handle: Some(SessionHandle(command)),
            pulse: Arc::clone(&pulse),
            session: None,
        });
        line.tell(What::SessionStarting { generation });
        self.publish();
        let LineSource::Owned(connector) = &line.source else {
            unreachable!("a lent connection never starts a session: its state has no way to it");
        };
        let report = {
            let myself = myself.clone();
            // Without an actor nobody waits for the report.
            Box::new(move |report| drop(myself.send_message(Message::Session(generation, report))))
        };
        let args = SessionArgs {
            connection: line.name.clone(),
            connector: Arc::clone(connector),
            settings: Arc::clone(&line.settings),
            pulse,
            command: commands,
            gone,
            after,
            not_before: plan.at,
            probe: plan.probe,
            report,
            tell,
        };
        (SessionActor, args)
    }

    fn started(&mut self, actor: ActorCell) {
        if let Some(current) = &mut self.current {
            current.actor = Some(actor);
        }
    }

    /// Hands over what waits, as far as there is room.
    fn flush(&mut self) -> Option<StartPlan> {
        while self.state.phase == Phase::Live && !self.waiting.is_empty() {
            let Some(pulse) = self.current.as_ref().map(|c| Arc::clone(&c.pulse)) else {
                break;
            };
            if self.health() == Health::Over && !self.line.ownership.is_lent() {
                return self.lose();
            }
            if !self.has_room() {
                pulse.want_room();
                // One may have left between the look and the asking.
                if !self.has_room() {
                    break;
                }
            }
            if let Some(ticket) = self.waiting.pop_front() {
                self.hand_over(ticket);
            }
        }
        None
    }

    fn hand_over(&mut self, ticket: Arc<Ticket>) {
        let Some(session) = self.current.as_ref().and_then(|c| c.session.clone()) else {
            self.waiting.push_back(ticket);
            return;
        };
        let generation = session.pulse.generation;
        let told = |attempt: &Attempt| {
            self.line.tell(What::AttemptStarted {
                operation: attempt.operation,
                attempt: attempt.id,
                generation,
                number: attempt.number,
            });
        };
        match ticket.hand_over(&session, told) {
            Handing::Done if self.line.ownership.is_lent() => {}
            Handing::Done => {
                while self.outstanding.front().is_some_and(|t| t.is_decided()) {
                    self.outstanding.pop_front();
                }
                self.outstanding.push_back(ticket);
            }
            Handing::Dropped => {}
            Handing::SessionOver if self.line.ownership.is_lent() => {
                let reason = self.reason(Refusal::LentClosed);
                ticket.refuse(reason);
            }
            // It goes first on the next session.
            Handing::SessionOver => self.waiting.push_front(ticket),
        }
    }

    fn has_room(&self) -> bool {
        self.current
            .as_ref()
            .is_none_or(|c| c.pulse.in_flight() < self.line.settings.limits.max_in_flight)
    }

    fn health(&self) -> Health {
        match self.current.as_ref().and_then(|c| c.session.as_ref()) {
            Some(session) if session.is_over() => Health::Over,
            Some(session) if session.pulse.is_suspect() => Health::Suspect,
            _ => Health::Good,
        }
    }

    fn reason(&self, refusal: Refusal) -> NotSentReason {
        match refusal {
            Refusal::Closed => NotSentReason::Closed,
            Refusal::LentClosed => {
                self.line.tell(What::LentLost);
                NotSentReason::CallerOwnedClosed
            }
            Refusal::CircuitOpen { retry_in } => NotSentReason::CircuitOpen {
                retry_in,
                last: self.last_failure.clone(),
            },
        }
    }

    fn fail_waiting(&mut self, reason: &NotSentReason) {
        for ticket in self.waiting.drain(..) {
            ticket.refuse(reason.clone());
        }
    }

    fn close(&mut self) {
        if self.step(Input::Close) != Step::FailWaiting {
            return;
        }
        self.take_back(false);
        self.fail_waiting(&NotSentReason::Closed);
        for reply in self.reconnects.drain(..) {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(Err(ReconnectError::Closed));
        }
        let current = self.current.as_ref().and_then(|c| c.handle.as_ref());
        for handle in current
            .into_iter()
            .chain(self.retired.iter().map(|(_, h)| h))
        {
            handle.command(Command::Close("its connection was closed"));
        }
        if self.line.ownership.is_lent()
            && let Some(current) = self.current.take()
        {
            // Of what is lent, only our own wait for it ends.
            current
                .pulse
                .end(Loss::Ended("its connection was taken from the supervisor"));
        }
        self.publish();
    }

    /// Whether there is nothing left to do for this actor.
    fn is_finished(&self) -> bool {
        self.state.phase == Phase::Closed && self.current.is_none() && self.retired.is_empty()
    }

    fn publish(&self) {
        let state = match self.state.phase {
            Phase::Idle => ConnectionState::Idle,
            Phase::Starting => ConnectionState::Starting,
            Phase::Live => ConnectionState::Live,
            Phase::Closed => ConnectionState::Closed,
        };
        self.line.status.send_modify(|status| {
            status.state = state;
            if let Some(current) = &self.current {
                status.generation = Some(current.pulse.generation);
                if let Some(session) = &current.session {
                    status.revision = Some(session.revision.as_str().to_owned());
                }
            }
        });
    }
}
