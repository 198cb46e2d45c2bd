//! Who is told: the log, the counters, and those who subscribed.

use std::{fmt, sync::Arc};

use tokio::sync::broadcast;

#[cfg(feature = "metrics")]
use super::metrics;
use super::{Event, What, log};
use crate::operation::{ConnectionName, Ownership, SupervisorPath};

/// How many events a slow subscriber may lag behind before it misses some.
const CAPACITY: usize = 1_024;

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
