//! What happened, in the past tense. The one place that tells the world about lifecycles.
//!
//! Each fact goes to `tracing` and to whoever subscribed. The subscription is bounded: a subscriber
//! that falls behind is told how many facts it missed, and slows nobody down.

use std::{sync::Arc, time::Duration};

use tokio::sync::broadcast;

use crate::operation::{AttemptId, ConnectionName, Generation, OperationId, Ownership};

/// How many events a slow subscriber may lag behind before it misses some.
const CAPACITY: usize = 1_024;

/// A fact about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The connection.
    pub connection: ConnectionName,
    /// Who owns it.
    pub ownership: Ownership,
    /// What happened.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A session is being started.
    SessionStarting {
        /// Its generation.
        generation: Generation,
    },
    /// A session was negotiated. The lists of any earlier generation no longer hold.
    SessionStarted {
        /// Its generation.
        generation: Generation,
        /// The revision that was negotiated.
        revision: String,
    },
    /// A session could not be started.
    StartFailed {
        /// The generation that it would have been.
        generation: Generation,
        /// Why, without secrets.
        why: String,
    },
    /// A session was lost.
    SessionLost {
        /// Its generation.
        generation: Generation,
        /// Why, without secrets.
        why: String,
        /// How many operations were handed over to it and unanswered.
        unanswered: usize,
    },
    /// A session takes no new operations; what is in flight on it goes on.
    SessionRetired {
        /// Its generation.
        generation: Generation,
        /// Why.
        why: &'static str,
    },
    /// The process or transport of a session is gone.
    SessionStopped {
        /// Its generation.
        generation: Generation,
        /// How far the runtime had to go.
        how: Stopped,
    },
    /// The circuit opened: operations are refused until the cool-down is over.
    CircuitOpened {
        /// How long.
        cool_down: Duration,
    },
    /// One start probes whether the server works again.
    CircuitProbed,
    /// The circuit closed: traffic flows.
    CircuitClosed,
    /// The connection's actor failed and was given a new mailbox.
    ActorRestarted,
    /// A caller-owned connection was found to be closed. It was left as it is.
    LentLost,
    /// A request of an operation was handed over to a session.
    AttemptStarted {
        /// The operation.
        operation: OperationId,
        /// This attempt of it.
        attempt: AttemptId,
        /// The session.
        generation: Generation,
        /// Which attempt it is, from 1.
        number: u32,
    },
    /// Nobody knows whether an operation ran.
    OutcomeUnknown {
        /// The operation.
        operation: OperationId,
        /// The session of its last attempt.
        generation: Generation,
    },
    /// The server said that one of its lists changed.
    ListChanged {
        /// The session.
        generation: Generation,
        /// Which list.
        list: Listing,
    },
    /// The server said that a resource changed. Which one is told to those who subscribed to it.
    ResourceUpdated {
        /// The session.
        generation: Generation,
    },
    /// The server sent messages for the log. They go to the connection's handler; this is told at
    /// the first, and then whenever their number has doubled.
    LogReceived {
        /// The session.
        generation: Generation,
        /// How many the session has sent so far.
        total: u64,
    },
    /// The server asked something of the connection's handler.
    HandlerAsked {
        /// The session.
        generation: Generation,
        /// What it asked for.
        what: Asked,
    },
    /// Frames from the server were dropped.
    FramesDropped {
        /// The session.
        generation: Generation,
        /// Why.
        why: Dropped,
        /// How many of this kind the session has dropped so far.
        total: u64,
    },
}

/// One of a server's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Listing {
    /// Its tools.
    Tools,
    /// Its prompts.
    Prompts,
    /// Its resources and resource templates.
    Resources,
}

/// What a server can ask of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Asked {
    /// To sample a language model.
    Sampling,
    /// To ask a person.
    Elicitation,
    /// For the roots.
    Roots,
    /// Something that the protocol does not name.
    Custom,
}

/// Why a frame from the server was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// It is not JSON-RPC.
    Garbage,
    /// It answers nothing that is waiting: late, a duplicate, or never asked.
    Unmatched,
    /// It is larger than the limit.
    TooLarge,
}

/// How far the runtime had to go to stop a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stopped {
    /// There was no process of ours, or it had exited by itself.
    ByItself,
    /// It exited when its stdin was closed.
    StdinClosed,
    /// It exited at SIGTERM.
    Terminated,
    /// It was killed.
    Killed,
}

/// Where events go.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    sender: broadcast::Sender<Arc<Event>>,
}

/// A subscription to events.
#[derive(Debug)]
pub struct EventStream(broadcast::Receiver<Arc<Event>>);

/// What a subscription yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// The next event.
    Event(Arc<Event>),
    /// The subscriber was too slow and missed this many events.
    Missed(u64),
}

impl EventStream {
    /// The next event, or `None` once the supervisor and every handle of its connections are gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Received> {
        match self.0.recv().await {
            Ok(event) => Some(Received::Event(event)),
            Err(broadcast::error::RecvError::Lagged(n)) => Some(Received::Missed(n)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            sender: broadcast::Sender::new(CAPACITY),
        }
    }

    pub(crate) fn subscribe(&self) -> EventStream {
        EventStream(self.sender.subscribe())
    }

    pub(crate) fn tell(&self, connection: &ConnectionName, ownership: Ownership, what: What) {
        log(connection, ownership, &what);
        if self.sender.receiver_count() > 0 {
            let event = Event {
                connection: connection.clone(),
                ownership,
                what,
            };
            // An error means that the last subscriber has just gone.
            let _ = self.sender.send(Arc::new(event));
        }
    }
}

fn log(connection: &ConnectionName, ownership: Ownership, what: &What) {
    let name = connection.as_str();
    match what {
        What::SessionStarting { generation } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                "session starting"
            );
        }
        What::SessionStarted {
            generation,
            revision,
        } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                revision,
                "session started"
            );
        }
        What::StartFailed { generation, why } => {
            tracing::warn!(
                connection = name,
                generation = generation.0,
                why,
                "start failed"
            );
        }
        What::SessionLost {
            generation,
            why,
            unanswered,
        } => {
            tracing::warn!(
                connection = name,
                generation = generation.0,
                why,
                unanswered,
                "session lost"
            );
        }
        What::SessionRetired { generation, why } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                why,
                "session retired"
            );
        }
        What::SessionStopped { generation, how } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                ?how,
                "session stopped"
            );
        }
        What::CircuitOpened { cool_down } => {
            tracing::warn!(connection = name, ?cool_down, "circuit opened");
        }
        What::CircuitProbed => tracing::info!(connection = name, "circuit probed"),
        What::CircuitClosed => tracing::info!(connection = name, "circuit closed"),
        What::ActorRestarted => tracing::error!(connection = name, "connection actor restarted"),
        What::LentLost => {
            tracing::warn!(connection = name, %ownership, "caller-owned connection is closed");
        }
        What::AttemptStarted {
            operation,
            attempt,
            generation,
            number,
        } => {
            tracing::trace!(
                connection = name,
                %operation,
                %attempt,
                generation = generation.0,
                number,
                "attempt started"
            );
        }
        What::OutcomeUnknown {
            operation,
            generation,
        } => {
            tracing::warn!(
                connection = name,
                %ownership,
                %operation,
                generation = generation.0,
                "outcome unknown"
            );
        }
        What::ListChanged { generation, list } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                ?list,
                "list changed"
            );
        }
        What::ResourceUpdated { generation } => {
            tracing::trace!(
                connection = name,
                generation = generation.0,
                "resource updated"
            );
        }
        What::LogReceived { generation, total } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                total,
                "log messages received"
            );
        }
        What::HandlerAsked { generation, what } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                ?what,
                "handler asked"
            );
        }
        What::FramesDropped {
            generation,
            why,
            total,
        } => {
            // One line for the first of a kind, then one at each doubling: no flood.
            if total.is_power_of_two() {
                tracing::warn!(
                    connection = name,
                    generation = generation.0,
                    ?why,
                    total,
                    "frames dropped"
                );
            }
        }
    }
}
