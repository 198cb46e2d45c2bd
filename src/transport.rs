//! Transports: rmcp's trait on top, a wire underneath, and the witness in between.
//!
//! No request leaves the process except through a [`witness`]: on byte streams it sits in the
//! [`ordered`] writer, on HTTP in the crate's own client, and around a user's transport in a
//! wrapper. Nothing in here sends anything twice.

mod calls;
pub(crate) mod clock;
mod decode;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
#[cfg(feature = "http")]
pub(crate) mod http;
mod json;
pub(crate) mod lane;
pub(crate) mod ordered;
#[cfg(feature = "stdio")]
pub(crate) mod stdio;
pub(crate) mod witness;

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

pub(crate) use calls::{Calls, Listener};
pub(crate) use decode::read;
use rmcp::model::ErrorData;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    event::{Dropped, What},
    evidence::{Loss, ServerError},
    extension::Offer,
    operation::Generation,
};

/// What the transport of a session, its calls and its connection tell each other while it lives.
///
/// Everything is written without waiting. The end is published once, with its cause, and callers
/// select on it: they do not wait for rmcp to drain.
pub(crate) struct Pulse {
    pub(crate) generation: Generation,
    /// What is unanswered, as far as the server may speak about it.
    pub(crate) calls: Calls,
    born: Instant,
    heard: AtomicU64,
    suspected: AtomicU64,
    answers: AtomicU64,
    in_flight: AtomicUsize,
    idle: Notify,
    ended: CancellationToken,
    loss: OnceLock<Loss>,
    ended_at: OnceLock<Instant>,
    unanswered: OnceLock<usize>,
    receipts: OnceLock<Offer>,
    dropped: [AtomicU64; 3],
    wanted: AtomicBool,
    room: OnceLock<Box<dyn Fn() + Send + Sync>>,
    over: OnceLock<Box<dyn Fn() + Send + Sync>>,
    tell: Arc<dyn Fn(What) + Send + Sync>,
}

impl Pulse {
    /// `tell` hears of dropped frames.
    pub(crate) fn new(generation: Generation, tell: Arc<dyn Fn(What) + Send + Sync>) -> Self {
        Self {
            generation,
            calls: Calls::default(),
            born: Instant::now(),
            heard: AtomicU64::new(0),
            suspected: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
            ended: CancellationToken::new(),
            loss: OnceLock::new(),
            ended_at: OnceLock::new(),
            unanswered: OnceLock::new(),
            receipts: OnceLock::new(),
            dropped: Default::default(),
            wanted: AtomicBool::new(false),
            room: OnceLock::new(),
            over: OnceLock::new(),
            tell,
        }
    }

    /// Now, as a tick of this session: microseconds since its birth, never zero.
    pub(crate) fn tick(&self) -> u64 {
        self.tick_at(Instant::now())
    }

    pub(crate) fn tick_at(&self, now: Instant) -> u64 {
        let age = now.saturating_duration_since(self.born);
        u64::try_from(age.as_micros()).unwrap_or(u64::MAX - 1) + 1
    }

    /// Something came from the server.
    pub(crate) fn hear(&self) {
        self.heard.fetch_max(self.tick(), Ordering::Relaxed);
    }

    /// Whether anything came from the server since `tick`.
    pub(crate) fn heard_since(&self, tick: u64) -> bool {
        self.heard.load(Ordering::Relaxed) > tick
    }

    /// How long nothing came from the server.
    pub(crate) fn silent_for(&self) -> Duration {
        Duration::from_micros(
            self.tick()
                .saturating_sub(self.heard.load(Ordering::Relaxed)),
        )
    }

    /// The session may be dead or wedged.
    pub(crate) fn suspect(&self) {
        self.suspected.fetch_max(self.tick(), Ordering::Relaxed);
    }

    /// Whether the session is suspected and nothing was heard since.
    pub(crate) fn is_suspect(&self) -> bool {
        match self.suspected.load(Ordering::Relaxed) {
            0 => false,
            at => !self.heard_since(at),
        }
    }

    /// An operation was answered.
    pub(crate) fn answered(&self) {
        self.hear();
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// How many operations were answered.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// An operation was handed over.
    pub(crate) fn enter(&self) {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
    }

    /// An operation that was handed over has its outcome.
    pub(crate) fn leave(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.notify_waiters();
        }
        if self.wanted.swap(false, Ordering::AcqRel)
            && let Some(room) = self.room.get()
        {
            room();
        }
    }

    /// Sets whom [`want_room`](Self::want_room) asks to call. The first one stays.
    pub(crate) fn on_room(&self, room: impl Fn() + Send + Sync + 'static) {
        let _ = self.room.set(Box::new(room));
    }

    /// Asks to be told, once, when the next operation leaves.
    pub(crate) fn want_room(&self) {
        // A swap and no store: with `leave` it decides which of the two sees the other. A store may
        // still be on its way when the asker looks for room once more, and neither would.
        let _ = self.wanted.swap(true, Ordering::AcqRel);
    }

    /// How many operations are handed over and without an outcome.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            if self.in_flight() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Publishes the end. The first cause stays.
    pub(crate) fn end(&self, loss: Loss) {
        let _ = self.loss.set(loss);
        let _ = self.ended_at.set(Instant::now());
        // Before anybody hears of the end and leaves.
        let _ = self.unanswered.set(self.in_flight());
        self.ended.cancel();
        if let Some(over) = self.over.get() {
            over();
        }
    }

    /// Sets whom the end calls, once it is published. The first one stays.
    pub(crate) fn on_end(&self, over: impl Fn() + Send + Sync + 'static) {
        let _ = self.over.set(Box::new(over));
    }

    /// How many operations had no outcome when the session ended.
    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.get().copied().unwrap_or_default()
    }

    /// The server offers receipts in this session.
    pub(crate) fn offer_receipts(&self, offer: Offer) {
        let _ = self.receipts.set(offer);
    }

    /// What the server offers by way of receipts in this session.
    pub(crate) fn receipts(&self) -> Option<&Offer> {
        self.receipts.get()
    }

    /// When the session ended, if it has.
    pub(crate) fn ended_at(&self) -> Option<Instant> {
        self.ended_at.get().copied()
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(crate) fn is_ended(&self) -> bool {
        // The last that is set before the token is cancelled, which takes a lock to ask.
        self.unanswered.get().is_some()
    }

    /// Why the session ended, once it has.
    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }

    /// A frame from the server was dropped.
    pub(crate) fn drop_frame(&self, why: Dropped) {
        let total = self.dropped[why as usize].fetch_add(1, Ordering::Relaxed) + 1;
        (self.tell)(What::FramesDropped {
            generation: self.generation,
            why,
            total,
        });
    }

    /// How many frames were dropped for this reason.
    pub(crate) fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize].load(Ordering::Relaxed)
    }
}

/// An error of the server's in the crate's own type.
pub(crate) fn server_error(error: ErrorData) -> ServerError {
    ServerError {
        code: i64::from(error.code.0),
        message: error.message.into_owned(),
        data: error.data,
    }
}

/// What a transport's own task or process knows about its end: exit status and stderr.
#[derive(Clone)]
pub(crate) struct ExitWatch {
    pub(crate) exit: watch::Receiver<Option<String>>,
    pub(crate) stderr: Arc<Tail>,
}

impl ExitWatch {
    /// Waits until the process has exited.
    pub(crate) async fn exited(&mut self) {
        // The sender goes only after it has told.
        let _ = self.exit.wait_for(Option::is_some).await;
    }

    pub(crate) fn status(&self) -> Option<String> {
        self.exit.borrow().clone()
    }
}

/// The last bytes of a stream, and no more of them than allowed.
pub(crate) struct Tail {
    limit: usize,
    bytes: Mutex<VecDeque<u8>>,
}

#[cfg_attr(
    not(feature = "stdio"),
    expect(dead_code, reason = "only a process has a stderr")
)]
impl Tail {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Mutex::new(VecDeque::new()),
        }
    }

    pub(crate) fn push(&self, chunk: &[u8]) {
        let chunk = &chunk[chunk.len().saturating_sub(self.limit)..];
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let excess = (bytes.len() + chunk.len()).saturating_sub(self.limit);
        bytes.drain(..excess);
        bytes.extend(chunk);
    }

    /// The last lines as text, at most twenty of them.
    pub(crate) fn text(&self) -> String {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(bytes.make_contiguous());
        let text = text.trim_end();
        let lines: Vec<_> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_keeps_the_last_bytes_and_no_more() {
        let tail = Tail::new(8);
        tail.push(b"0123456789");
        assert_eq!(tail.text(), "23456789");
        tail.push(b"ab");
        assert_eq!(tail.text(), "456789ab");
        tail.push(&vec![b'x'; 256 * 1024]);
        assert_eq!(tail.text(), "xxxxxxxx");
    }

    #[tokio::test(start_paused = true)]
    async fn suspicion_ends_when_something_is_heard() {
        let pulse = Pulse::new(Generation(1), Arc::new(|_| {}));
        pulse.hear();
        assert!(!pulse.is_suspect());
        tokio::time::advance(Duration::from_millis(1)).await;
        pulse.suspect();
        assert!(pulse.is_suspect());
        tokio::time::advance(Duration::from_millis(1)).await;
        pulse.hear();
        assert!(!pulse.is_suspect());
    }
}
