//! What happened, in the past tense. The one place that tells the world about lifecycles.
//!
//! Each fact goes to `tracing`, to the counters of the `metrics` facade, and to whoever subscribed.
//! The subscription is bounded: a subscriber that falls behind is told how many facts it missed, and
//! slows nobody down.

mod log;
#[cfg(feature = "metrics")]
mod metrics;

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::broadcast;

use crate::{
    evidence::Outcome,
    operation::{
        AttemptId, ConnectionName, Generation, ListKind, OperationId, OperationKind, Ownership,
        SupervisorPath,
    },
    policy::ToolContract,
};

/// How many events a slow subscriber may lag behind before it misses some.
const CAPACITY: usize = 1_024;

/// A fact about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The supervisor of the connection, which is the one that was subscribed to or one below it.
    pub supervisor: SupervisorPath,
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
        /// What it asks.
        kind: OperationKind,
        /// This attempt of it.
        attempt: AttemptId,
        /// The session.
        generation: Generation,
        /// Which attempt it is, from 1.
        number: u32,
        /// On what ground the request is sent again, where an attempt before this one may have been
        /// sent.
        repeats: Option<Ground>,
        /// It was handed over before, to a session that ended without having sent any of it.
        moved: bool,
        /// How long it had waited: for a place, in the mailbox, and for a session. Of a repeat or a
        /// later round, since it was decided on.
        waited: Duration,
    },
    /// An operation is over: its caller has its answer or its error, or went away.
    OperationFinished {
        /// The operation.
        operation: OperationId,
        /// What it asked.
        kind: OperationKind,
        /// How it ended.
        ended: Ended,
        /// How many attempts were handed over, as far as the caller had heard.
        attempts: u32,
        /// The session of the last of them.
        generation: Option<Generation>,
        /// From the caller's asking to the end.
        elapsed: Duration,
    },
    /// Nobody knows whether an operation ran.
    OutcomeUnknown {
        /// The operation.
        operation: OperationId,
        /// The session of its last attempt.
        generation: Generation,
        /// Why nobody knows, as one of the few words of
        /// [`UnknownCause::as_str`](crate::error::UnknownCause::as_str).
        cause: &'static str,
    },
    /// A contract's status tool was asked what became of an operation.
    LookedUp {
        /// The operation whose outcome was unknown.
        operation: OperationId,
        /// Whether the tool knows it.
        found: bool,
    },
    /// The server said that one of its lists changed.
    ListChanged {
        /// The session.
        generation: Generation,
        /// Which list.
        list: ListKind,
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
    /// A list was read again and is another one than before.
    CatalogChanged {
        /// The session that it was read from.
        generation: Generation,
        /// Which list.
        list: ListKind,
        /// The names of what is new, at most [`MOST_NAMES`](Self::MOST_NAMES).
        added: Vec<String>,
        /// The names of what is gone, at most as many.
        removed: Vec<String>,
        /// The names of what is there with something else about it, at most as many.
        changed: Vec<String>,
        /// How many more there are that are not named here.
        unnamed: usize,
    },
    /// A list could not be read whole. The last one stays.
    CatalogKept {
        /// Which list.
        list: ListKind,
        /// Why, without secrets.
        why: String,
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

impl What {
    /// The most names of one sort that [`CatalogChanged`](Self::CatalogChanged) holds.
    pub const MOST_NAMES: usize = 32;
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

impl Dropped {
    /// The reason as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Garbage => "garbage",
            Self::Unmatched => "unmatched",
            Self::TooLarge => "too_large",
        }
    }
}

/// On what ground a request is sent again that may have been sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ground {
    /// The protocol defines it as a read, and its session was lost.
    Read,
    /// The contract [`ToolContract::ReadOnly`].
    ReadOnly,
    /// The contract [`ToolContract::Idempotent`].
    Idempotent,
    /// The contract [`ToolContract::Keyed`].
    Keyed,
    /// The server refused the credentials that it went with, there are others now, and the
    /// connection's own setting allows it.
    Credentials,
}

impl Ground {
    /// The ground as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::ReadOnly => "read_only",
            Self::Idempotent => "idempotent",
            Self::Keyed => "keyed",
            Self::Credentials => "credentials",
        }
    }

    /// What allows a repeat under this contract; a request that has none is a read.
    pub(crate) fn of(contract: &ToolContract) -> Self {
        match contract {
            ToolContract::ReadOnly => Self::ReadOnly,
            ToolContract::Idempotent => Self::Idempotent,
            ToolContract::Keyed { .. } => Self::Keyed,
            ToolContract::AtMostOnce | ToolContract::Status { .. } => Self::Read,
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// With an answer.
    Answered,
    /// With a tool's answer that says `isError`.
    ToolError,
    /// A notification, which has no answer: the transport has taken it.
    HandedOver,
    /// Without an answer; this is what is known.
    Without(Outcome),
    /// Its caller went away.
    Abandoned {
        /// Whether the request may have reached the server. `false` is proof that it did not.
        perhaps_sent: bool,
    },
}

impl Ended {
    /// The end as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::ToolError => "tool_error",
            Self::HandedOver => "handed_over",
            Self::Without(Outcome::NotSent) => "not_sent",
            Self::Without(Outcome::Rejected) => "rejected",
            Self::Without(Outcome::Failed) => "failed",
            Self::Without(Outcome::Unknown) => "unknown",
            Self::Abandoned { .. } => "abandoned",
        }
    }
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

/// Where the events of one supervisor go: to its own subscribers, and to those of the supervisors
/// above it.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    supervisor: SupervisorPath,
    /// Its own, then those above it.
    senders: Arc<[broadcast::Sender<Arc<Event>>]>,
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
        #[cfg(feature = "metrics")]
        metrics::describe();
        Self {
            supervisor: SupervisorPath::default(),
            senders: Arc::new([broadcast::Sender::new(CAPACITY)]),
        }
    }

    /// The events of a supervisor below this one.
    pub(crate) fn below(&self, supervisor: SupervisorPath) -> Self {
        let own = [broadcast::Sender::new(CAPACITY)];
        Self {
            supervisor,
            senders: own
                .into_iter()
                .chain(self.senders.iter().cloned())
                .collect(),
        }
    }

    pub(crate) fn subscribe(&self) -> EventStream {
        EventStream(self.senders[0].subscribe())
    }

    /// What tells of one connection.
    pub(crate) fn of(&self, connection: ConnectionName, ownership: Ownership) -> Teller {
        let shown: Arc<str> = match self.supervisor.is_top() {
            true => connection.shared(),
            false => format!("{}/{connection}", self.supervisor).into(),
        };
        Teller {
            #[cfg(feature = "metrics")]
            counts: metrics::Counts::new(&shown),
            shown,
            connection,
            ownership,
            events: self.clone(),
        }
    }

    fn send(&self, connection: &ConnectionName, ownership: Ownership, what: What) {
        let mut listening = self.senders.iter().filter(|s| s.receiver_count() > 0);
        let Some(first) = listening.next() else {
            return;
        };
        let event = Arc::new(Event {
            supervisor: self.supervisor.clone(),
            connection: connection.clone(),
            ownership,
            what,
        });
        for sender in listening {
            // An error means that the last subscriber has just gone.
            let _ = sender.send(Arc::clone(&event));
        }
        let _ = first.send(event);
    }
}

/// Tells what happens to one connection: to the log, to the counters, and to the subscribers.
pub(crate) struct Teller {
    connection: ConnectionName,
    /// Its name behind the path of its supervisor, as the log and the counters show it.
    shown: Arc<str>,
    ownership: Ownership,
    events: Events,
    #[cfg(feature = "metrics")]
    counts: metrics::Counts,
}

impl Teller {
    pub(crate) fn tell(&self, what: What) {
        log::log(&self.shown, self.ownership, &what);
        #[cfg(feature = "metrics")]
        self.counts.count(&what);
        self.events.send(&self.connection, self.ownership, what);
    }

    /// An operation has begun. Its end is told as [`What::OperationFinished`].
    pub(crate) fn operation_began(&self) {
        #[cfg(feature = "metrics")]
        self.counts.operation_began();
    }
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Teller")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}
