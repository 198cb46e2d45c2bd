//! The actor behind a connection's mailbox: it carries out what `step` decides.

mod handing;
mod sessions;

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError},
};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use sessions::StartPlan;
use tokio::{sync::oneshot, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    ConnectionState, Line, LineSource, Mailbox,
    step::{Health, Input, Phase, Refusal, State, Step},
    ticket::Ticket,
};
use crate::{
    error::{NotSentReason, ReconnectError, StartError},
    event::What,
    evidence::Loss,
    operation::Generation,
    session::{Command, Report, Session, SessionHandle},
    transport::Pulse,
};

pub(crate) enum Message {
    Operate(Arc<Ticket>),
    Reconnect(oneshot::Sender<Result<Generation, ReconnectError>>),
    WarmUp,
    Session(Generation, Report),
    /// An operation left a session that was full.
    Room,
    Close,
    Finish,
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
    /// The one of them that was retired last. It may take as long as the calls on it do.
    drains: Option<Generation>,
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
        let follows = !line
            .stopping
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty();
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
            drains: None,
            waiting: VecDeque::new(),
            outstanding: VecDeque::new(),
            reconnects: Vec::new(),
            // Also where another line had the name: what it leaves goes first.
            after_failure: before.is_some() || follows,
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
            Message::Finish => {
                working.finish();
                None
            }
            #[cfg(test)]
            Message::Panic => panic!("asked to by a test"),
        };
        working.carry_on(start, &myself).await
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
        working.carry_on(start, &myself).await
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

impl Working {
    /// Starts the session that was decided on, if one was, and leaves when there is nothing left to
    /// do. Spawning waits for the child's mailbox, never for a server.
    async fn carry_on(
        &mut self,
        start: Option<StartPlan>,
        myself: &ActorRef<Message>,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(start) = start {
            let (actor, args) = self.begin(start, myself);
            let (child, _) = Actor::spawn_linked(None, actor, args, myself.get_cell()).await?;
            self.started(child.get_cell());
        }
        if self.is_finished() {
            myself.stop(None);
        }
        Ok(())
    }

    fn step(&mut self, input: Input) -> Step {
        self.step_at(Instant::now(), input)
    }

    fn step_at(&mut self, now: Instant, input: Input) -> Step {
        let gate = Arc::clone(&self.line.gate);
        self.state.step(input, now.into_std(), &*gate)
    }

    fn operate(&mut self, ticket: Arc<Ticket>) -> Option<StartPlan> {
        // What nobody has asked for starts no session, and gives up none.
        let notification = ticket.is_notification();
        if notification && (self.current.is_none() || self.health() == Health::Over) {
            ticket.refuse(NotSentReason::NoSession);
            return None;
        }
        if ticket.attempt.only_in.is_some_and(|only| !self.takes(only)) {
            // No session that could be started would be the one.
            ticket.misplace();
            return None;
        }
        if self.health() == Health::Over && !self.line.ownership.is_lent() {
            // Its supervision event is on its way. What it left behind goes before the newcomer.
            let plan = self.lose();
            self.waiting.push_back(ticket);
            return plan.or_else(|| self.start_for_waiting());
        }
        let input = Input::Operation {
            health: match notification {
                true => Health::Good,
                false => self.health(),
            },
            others: !self.waiting.is_empty(),
            room: self.has_room(),
        };
        let now = Instant::now();
        match self.step_at(now, input) {
            Step::HandOver => {
                self.hand_over(ticket, now);
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
        let step = self.step(input);
        self.start_or_refuse(step)
    }

    /// Carries out a step on behalf of everything that waits.
    fn start_or_refuse(&mut self, step: Step) -> Option<StartPlan> {
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

    fn health(&self) -> Health {
        match self.current.as_ref().and_then(|c| c.session.as_ref()) {
            Some(session) if session.is_over() => Health::Over,
            Some(session) if session.pulse.is_suspect() => Health::Suspect {
                answered: session.pulse.answers() > 0,
            },
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

    /// Refuses what waits, from now on and for good.
    fn refuse_all(&mut self) {
        let _ = self.step(Input::Close);
        self.take_back(false);
        self.fail_waiting(&NotSentReason::Closed);
        for reply in self.reconnects.drain(..) {
            // Whoever asked may have stopped waiting.
            let _ = reply.send(Err(ReconnectError::Closed));
        }
    }

    /// What is in flight goes on, and nothing else.
    fn finish(&mut self) {
        if self.line.ownership.is_lent() {
            return self.close();
        }
        self.refuse_all();
        let is_live = self.current.as_ref().is_some_and(|c| c.session.is_some());
        if is_live {
            self.retire("its connection is no longer wanted");
            self.publish();
        } else {
            // Of a start in progress there is nothing to wait for.
            self.close();
        }
    }

    /// Also after [`finish`](Self::finish), when what was in flight has had its time.
    fn close(&mut self) {
        self.refuse_all();
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
            status.last_failure.clone_from(&self.last_failure);
            if let Some(current) = &self.current {
                status.generation = Some(current.pulse.generation);
                if let Some(session) = &current.session {
                    status.revision = Some(session.revision.as_str().to_owned());
                }
            }
        });
    }
}
