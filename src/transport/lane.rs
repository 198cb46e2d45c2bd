//! The short way of an operation over a transport of ours: from the session to the wire, and from what
//! reads there to whoever waits, past rmcp.
//!
//! rmcp gives each request a task and two trips through its own loop. The handshake, standing
//! subscriptions, what the server asks and what a host's handler asks go that way. Operations do not:
//! the session puts their requests into the transport's hands itself, in mailbox order, and whatever
//! reads hands the answers to whoever waits. On a byte stream rmcp's ids are even on the wire, and those
//! in here are odd; over HTTP those in here begin where rmcp's do not come.

mod request;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use rmcp::{
    ServiceError,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage,
        ClientNotification, ClientRequest, ErrorCode, ErrorData, ProgressToken, RequestId,
        ServerResult,
    },
};
use tokio::{sync::oneshot, task::AbortHandle};

pub(crate) use request::{OnLane, Said};

use super::{
    clock::{Clock, Held},
    decode::Wanted,
    ordered::{Message, Outgoing},
};
use crate::evidence::{DispatchCell, WireFault, WireReport};

/// Where the lane's progress tokens begin, so that none is one of rmcp's, which count from zero.
const TOKENS: i64 = 1 << 32;

/// What comes of a request, as rmcp would tell it. A result is boxed where it is made: it is handed on
/// many times, and is a few hundred bytes.
pub(crate) type Answer = Result<Box<ServerResult>, ServiceError>;

/// Whoever hears of answers before those who wait for them.
type Hearing = dyn Fn(&ServerResult) + Send + Sync;

/// What puts messages onto the wire.
pub(super) trait Outbox: Send + Sync {
    /// Takes a message, which goes out behind all that was taken before. `Err`: the session is over,
    /// and the message will not be written.
    fn put(&self, outgoing: Outgoing) -> Result<(), Closed>;

    /// The same, and writes nothing before it returns: who lets go of something may be anywhere.
    fn leave(&self, outgoing: Outgoing) -> Result<(), Closed>;

    /// Whether it takes this request. What it does not take goes through rmcp.
    fn takes(&self, _request: &ClientRequest) -> bool {
        true
    }

    /// Whether it takes notifications, and calls whose answer is wanted also when it comes late.
    fn takes_all(&self) -> bool {
        true
    }
}

/// The session is over: nothing is taken any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed;

/// The lane of one session, shared by the session and its transport.
pub(crate) struct Lane {
    outbox: Arc<dyn Outbox>,
    waiting: Mutex<Waiting>,
    next: AtomicI64,
    /// The number from which the ids of the session count.
    pub(super) first_id: AtomicI64,
    /// Whether the server may ask for something only while it is asked itself.
    pub(super) asks_only_if_asked: AtomicBool,
    lists: OnceLock<Box<Hearing>>,
}

#[derive(Default)]
struct Waiting {
    /// Ids only grow, so what is new goes to the end.
    by_id: BTreeMap<i64, Asked>,
    closed: bool,
}

/// A request that waits for its answer.
struct Asked {
    tell: oneshot::Sender<Answer>,
    cell: Arc<DispatchCell>,
    /// The clock of its operation.
    clock: Option<Arc<Clock>>,
    wanted: Wanted,
    /// Where each request has an exchange of its own: what runs it.
    exchange: Option<AbortHandle>,
}

impl Asked {
    /// Nobody waits any more.
    fn drop_exchange(&self) {
        if let Some(exchange) = &self.exchange {
            exchange.abort();
        }
    }
}

/// The place of a request that is about to be handed over.
pub(crate) struct Place {
    pub(crate) id: RequestId,
    pub(crate) token: ProgressToken,
    pub(crate) number: i64,
}

impl Lane {
    pub(super) fn new(outbox: Arc<dyn Outbox>, first_id: i64) -> Self {
        Self {
            outbox,
            waiting: Mutex::default(),
            next: AtomicI64::new(1),
            first_id: AtomicI64::new(first_id),
            asks_only_if_asked: AtomicBool::new(false),
            lists: OnceLock::new(),
        }
    }

    /// The handshake is over. `lists` hears of each answer that is no tool's, before whoever waits.
    pub(crate) fn open(
        &self,
        asks_only_if_asked: bool,
        lists: impl Fn(&ServerResult) + Send + Sync + 'static,
    ) {
        let _ = self.lists.set(Box::new(lists));
        self.asks_only_if_asked
            .store(asks_only_if_asked, Ordering::Release);
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The session's side.

    /// Whether a request goes by the lane. `late`: whether its answer is wanted also when it comes after
    /// its caller has gone.
    pub(crate) fn takes(&self, request: &ClientRequest, late: bool) -> bool {
        (!late || self.outbox.takes_all()) && self.outbox.takes(request)
    }

    /// Whether notifications go by the lane.
    pub(crate) fn takes_notifications(&self) -> bool {
        self.outbox.takes_all()
    }

    /// A place for one request, by which the server may speak of it from its hand-over on.
    pub(crate) fn place(&self) -> Place {
        let local = self.next.fetch_add(2, Ordering::Relaxed);
        let number = self.first_id.load(Ordering::Relaxed) + local;
        Place {
            id: RequestId::Number(number),
            token: ProgressToken(RequestId::Number(TOKENS + local)),
            number,
        }
    }

    /// Hands a request over.
    pub(crate) fn hand_over(
        &self,
        request: OnLane,
        cell: &Arc<DispatchCell>,
        clock: Option<Arc<Clock>>,
    ) -> Result<oneshot::Receiver<Answer>, Closed> {
        let (tell, answer) = oneshot::channel();
        let asked = Asked {
            tell,
            cell: Arc::clone(cell),
            clock,
            wanted: Wanted::by(&request.request),
            exchange: None,
        };
        let number = request.number;
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(Closed);
        }
        waiting.by_id.insert(number, asked);
        drop(waiting);
        let outgoing = Outgoing {
            message: Message::OnLane(request),
            cell: Some(Arc::clone(cell)),
        };
        self.outbox.put(outgoing).inspect_err(|Closed| {
            self.waiting().by_id.remove(&number);
        })?;
        Ok(answer)
    }

    /// Hands a notification over.
    pub(crate) fn tell(&self, notification: ClientNotification) -> Result<(), Closed> {
        self.outbox.put(told(notification))
    }

    /// Nobody waits for this answer any more.
    pub(crate) fn forget(&self, id: &RequestId) {
        if let RequestId::Number(number) = id {
            let asked = self.waiting().by_id.remove(number);
            // Not under the lock: it may wake.
            if let Some(asked) = asked {
                asked.drop_exchange();
            }
        }
    }

    /// Tells the server that nobody waits for this answer any more. A courtesy: where the session is
    /// over nobody needs it.
    pub(crate) fn cancel(&self, params: CancelledNotificationParam) {
        let notification = CancelledNotification::new(params).into();
        let _ = self.outbox.leave(told(notification));
    }

    // The transport's side.

    /// Whether a request waits for its answer.
    pub(super) fn is_waited_on(&self) -> bool {
        !self.waiting().by_id.is_empty()
    }

    /// Lets the clocks of all that waits stand.
    pub(super) fn hold(&self) -> Vec<Held> {
        let waiting = self.waiting();
        let clocks = waiting.by_id.values().filter_map(|a| a.clock.as_ref());
        clocks.map(Clock::hold).collect()
    }

    /// Lets the clock of one request stand.
    pub(super) fn hold_one(&self, id: &RequestId) -> Option<Held> {
        let RequestId::Number(number) = id else {
            return None;
        };
        let waiting = self.waiting();
        let clock = waiting.by_id.get(number)?.clock.as_ref();
        clock.map(Clock::hold)
    }

    /// Notes what runs the exchange of a request, if that has no answer yet.
    #[cfg(feature = "http")]
    pub(super) fn runs(&self, number: i64, exchange: AbortHandle) {
        if let Some(asked) = self.waiting().by_id.get_mut(&number) {
            asked.exchange = Some(exchange);
        }
    }

    /// What the request with this id waits for.
    pub(super) fn waits_for(&self, number: i64) -> Option<Wanted> {
        Some(self.waiting().by_id.get(&number)?.wanted)
    }

    /// What the request with this id waits for, and its cell.
    pub(super) fn wanted(&self, number: i64) -> Option<(Wanted, Arc<DispatchCell>)> {
        let waiting = self.waiting();
        let asked = waiting.by_id.get(&number)?;
        Some((asked.wanted, Arc::clone(&asked.cell)))
    }

    /// Gives an answer to whoever waits for it. `false`: nobody does.
    pub(super) fn settle(&self, number: i64, answer: Result<Box<ServerResult>, ErrorData>) -> bool {
        let Some(asked) = self.waiting().by_id.remove(&number) else {
            return false;
        };
        if let (Ok(result), Some(lists)) = (&answer, self.lists.get())
            && asked.wanted != Wanted::Tool
        {
            lists(result);
        }
        // Whoever waited may just have gone.
        let _ = asked.tell.send(answer.map_err(ServiceError::McpError));
        true
    }

    /// Ends the wait for an answer that came and cannot be read. `false`: nobody waits for it.
    pub(super) fn give_up(&self, number: i64, fault: WireFault) -> bool {
        let Some(asked) = self.waiting().by_id.remove(&number) else {
            return false;
        };
        asked.cell.report(WireReport {
            fault: Some(fault),
            ..WireReport::default()
        });
        let _ = asked.tell.send(Err(not_answered()));
        true
    }

    /// Ends the wait of a request that the writer has dropped.
    pub(super) fn drop_unsent(&self, number: i64) {
        self.fail(number, not_answered());
    }

    /// Ends the wait of a request to which no answer will come. Its cell tells why.
    pub(super) fn fail(&self, number: i64, error: ServiceError) {
        let asked = self.waiting().by_id.remove(&number);
        if let Some(asked) = asked {
            let _ = asked.tell.send(Err(error));
        }
    }

    /// The session is over: no answer will come.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let left = std::mem::take(&mut waiting.by_id);
        drop(waiting);
        // Not under the lock: it wakes all of them.
        for asked in left.into_values() {
            asked.drop_exchange();
        }
    }
}

fn told(notification: ClientNotification) -> Outgoing {
    let message = Box::new(ClientJsonRpcMessage::notification(notification));
    Outgoing {
        message: Message::Whole { message, id: None },
        cell: None,
    }
}

/// An end without an answer. The request's cell tells why.
pub(super) fn not_answered() -> ServiceError {
    let text = "made up by the client";
    ServiceError::McpError(ErrorData::new(ErrorCode::INTERNAL_ERROR, text, None))
}
