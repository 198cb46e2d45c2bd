//! The sessions of a connection: which one is started, which is in force, and which ones still end.

use std::sync::{Arc, PoisonError};

use ractor::{ActorCell, ActorRef};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Current, Message, Working};
use crate::{
    connection::{
        LineSource,
        step::{Health, Input, Phase, Retire, Step},
    },
    error::{NotSentReason, ReconnectError, StartError},
    event::What,
    operation::Generation,
    session::{After, Command, Report, SessionActor, SessionArgs, SessionHandle},
    transport::Pulse,
};

/// A session that is to be started.
pub(super) struct StartPlan {
    at: Instant,
    probe: bool,
    drain_first: Option<Arc<Pulse>>,
}

impl Working {
    /// What the session that is being started says.
    pub(super) fn news(&mut self, generation: Generation, report: Report) -> Option<StartPlan> {
        let current = self
            .current
            .as_mut()
            .filter(|c| c.pulse.generation == generation)?;
        match report {
            Report::Started(session) => {
                let server = self.line.server.lock();
                *server.unwrap_or_else(PoisonError::into_inner) = session.server();
                current.session = Some(session);
                self.last_failure = None;
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
            // It was live already: its end is told by its supervision event.
            Report::Failed(_) if current.session.is_some() => None,
            Report::Failed(error) => {
                self.fail_start(&error);
                None
            }
        }
    }

    pub(super) fn fail_start(&mut self, error: &Arc<StartError>) {
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

    pub(super) fn session_ended(&mut self, who: &ActorCell) -> Option<StartPlan> {
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
            // It has been told now that it ended, and nobody will tell so again.
            if let Some(current) = &mut self.current {
                current.actor = None;
            }
            self.lose()
        } else {
            None
        }
    }

    /// The current session is over. Where its supervision event is still to come, that is waited for.
    pub(super) fn lose(&mut self) -> Option<StartPlan> {
        let current = self.current.take()?;
        let pulse = current.pulse;
        let why = pulse.loss().map(ToString::to_string).unwrap_or_default();
        let unanswered = pulse.unanswered();
        // What its owner closes is no loss. That it is over is told when it has stopped.
        if self.state.phase != Phase::Closed {
            self.line.tell(What::SessionLost {
                generation: pulse.generation,
                why,
                unanswered,
            });
        }
        if let (Some(actor), Some(handle)) = (current.actor, current.handle) {
            self.retired.push_back((actor, handle));
        }
        self.take_back(true);
        // What may run on that session alone waits for no other.
        self.waiting.retain(|ticket| {
            let only_there = ticket.attempt.only_in == Some(pulse.generation);
            if only_there {
                ticket.misplace();
            }
            !only_there
        });
        let waiting = !self.waiting.is_empty();
        let step = self.step(Input::Ended {
            answered: pulse.answers() > 0,
            waiting,
        });
        self.publish();
        self.start_or_refuse(step)
    }

    pub(super) fn plan(
        &mut self,
        after: std::time::Duration,
        probe: bool,
        retire: Option<Retire>,
    ) -> StartPlan {
        let mut drain_first = None;
        if let Some(why) = retire
            && let Some(pulse) = self.retire(match why {
                Retire::Suspect => "it may be dead, and nothing was heard since",
                Retire::Requested => "a new session was asked for",
            })
            && why == Retire::Requested
        {
            drain_first = Some(pulse);
        }
        StartPlan {
            at: Instant::now() + after,
            probe,
            drain_first,
        }
    }

    /// Gives the current session nothing more. It ends when nothing is in flight on it.
    pub(super) fn retire(&mut self, why: &'static str) -> Option<Arc<Pulse>> {
        let Some(Current {
            actor: Some(actor),
            handle: Some(handle),
            pulse,
            ..
        }) = self.current.take()
        else {
            return None;
        };
        self.line.tell(What::SessionRetired {
            generation: pulse.generation,
            why,
        });
        self.take_back(false);
        // At most one session drains beside the live one.
        for (_, older) in &self.retired {
            older.command(Command::Close("a newer session took its place"));
        }
        handle.command(Command::Retire);
        self.drains = Some(pulse.generation);
        self.retired.push_back((actor, handle));
        Some(pulse)
    }

    pub(super) fn begin(
        &mut self,
        plan: StartPlan,
        myself: &ActorRef<Message>,
    ) -> (SessionActor, SessionArgs) {
        let line = Arc::clone(&self.line);
        let generation = line.next_generation();
        let tell: Arc<dyn Fn(What) + Send + Sync> = {
            // Weak, because the line holds its newest pulse, and the pulse this.
            let line = Arc::downgrade(&line);
            Arc::new(move |what| {
                if let Some(line) = line.upgrade() {
                    line.tell(what);
                }
            })
        };
        let pulse = Arc::new(Pulse::new(generation, Arc::clone(&tell)));
        pulse.on_room(line.room_caller());
        pulse.on_end(line.end_caller());
        *line.newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&pulse));
        let (command, commands) = watch::channel(Command::Run);
        let mut after = line.must_be_gone(std::mem::take(&mut self.after_failure), self.drains);
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
            .push((generation, gone.clone()));
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
            notices: Arc::clone(&line.notices),
            log_level: Arc::clone(&line.log_level),
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

    pub(super) fn started(&mut self, actor: ActorCell) {
        if let Some(current) = &mut self.current {
            current.actor = Some(actor);
        }
    }
}
