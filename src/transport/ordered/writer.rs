//! The one writer of a byte stream, which is its witness.
//!
//! Whoever puts a message into the queue of an idle writer writes it at once, as far as the stream
//! takes it without waiting. What is left, and what comes behind it, the writer's task writes.

use std::{
    collections::VecDeque,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
};

use rmcp::model::ClientJsonRpcMessage;
use tokio::{io::AsyncWrite, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    evidence::{DispatchCell, WireFault, WireReport},
    transport::{
        Pulse,
        lane::{Closed, Lane, OnLane, Outbox},
    },
};

pub(in crate::transport) struct Outgoing {
    pub(in crate::transport) message: Message,
    pub(in crate::transport) cell: Option<Arc<DispatchCell>>,
}

pub(in crate::transport) enum Message {
    Whole {
        message: Box<ClientJsonRpcMessage>,
        /// The id as rmcp knows it, to release its waiter should the request be dropped.
        id: Option<i64>,
    },
    OnLane(OnLane),
}

impl Message {
    fn write(&self, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
        match self {
            Self::Whole { message, .. } => serde_json::to_writer(bytes, message),
            Self::OnLane(request) => request.write(bytes),
        }
    }
}

pub(super) struct Writer<W> {
    desk: Mutex<Desk<W>>,
    releases: mpsc::UnboundedSender<i64>,
    lane: OnceLock<Weak<Lane>>,
    pulse: Arc<Pulse>,
    /// Cancelled when a write has failed.
    failed: CancellationToken,
}

struct Desk<W> {
    /// Gone when nothing is written any more.
    stream: Option<W>,
    queue: VecDeque<Outgoing>,
    /// The frame that is being written, and how much of it is.
    bytes: Vec<u8>,
    written: usize,
    /// The cell of the request whose frame that is.
    cell: Option<Arc<DispatchCell>>,
    /// The writer's task, while it sleeps.
    task: Option<Waker>,
}

/// The stream takes nothing any more.
struct Broken;

impl<W: AsyncWrite + Unpin + Send + 'static> Writer<W> {
    pub(super) fn new(
        stream: W,
        releases: mpsc::UnboundedSender<i64>,
        pulse: Arc<Pulse>,
        failed: CancellationToken,
    ) -> Self {
        Self {
            desk: Mutex::new(Desk {
                stream: Some(stream),
                queue: VecDeque::new(),
                bytes: Vec::with_capacity(1_024),
                written: 0,
                cell: None,
                task: None,
            }),
            releases,
            lane: OnceLock::new(),
            pulse,
            failed,
        }
    }

    pub(super) fn serves(&self, lane: &Arc<Lane>) {
        let _ = self.lane.set(Arc::downgrade(lane));
    }

    fn desk(&self) -> MutexGuard<'_, Desk<W>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what whoever brought it could not, until `stop` or until the stream breaks.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let writing = std::future::poll_fn(|context| {
            let mut desk = self.desk();
            match &mut desk.task {
                Some(task) => task.clone_from(context.waker()),
                None => desk.task = Some(context.waker().clone()),
            }
            match self.advance(&mut desk, context) {
                Poll::Ready(Err(Broken)) => Poll::Ready(()),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.pulse.ended() => {}
            () = writing => {}
        }
        self.close();
    }

    /// Drops the stream and what was not written, whose cells can be recalled.
    fn close(&self) {
        let mut desk = self.desk();
        let stream = desk.stream.take();
        let queue = std::mem::take(&mut desk.queue);
        drop(desk);
        drop((stream, queue));
    }

    /// Writes until the queue is empty or the stream wants to be waited for.
    fn advance(&self, desk: &mut Desk<W>, context: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        loop {
            if desk.bytes.is_empty() && !self.take_up(desk) {
                return Poll::Ready(Ok(()));
            }
            if ready!(push(desk, context)).is_err() || self.pulse.is_ended() {
                self.failed.cancel();
                return Poll::Ready(Err(Broken));
            }
            if let Some(cell) = desk.cell.take() {
                cell.finish_write();
            }
            desk.written = 0;
            match desk.bytes.capacity() > 1024 * 1024 {
                true => desk.bytes = Vec::with_capacity(1_024),
                false => desk.bytes.clear(),
            }
        }
    }

    /// Encodes the next message that is still wanted. `false`: there is none.
    fn take_up(&self, desk: &mut Desk<W>) -> bool {
        while let Some(outgoing) = desk.queue.pop_front() {
            let cell = outgoing.cell.as_ref();
            let encoded = outgoing.message.write(&mut desk.bytes);
            let begun = match encoded {
                Ok(()) => cell.is_none_or(|cell| cell.begin_write()),
                Err(error) => {
                    if let Some(cell) = cell {
                        let fault = Some(WireFault::Unencodable(error.to_string()));
                        cell.report(WireReport {
                            fault,
                            ..WireReport::default()
                        });
                    }
                    false
                }
            };
            if begun {
                desk.bytes.push(b'\n');
                desk.cell = outgoing.cell;
                return true;
            }
            desk.bytes.clear();
            self.release(&outgoing.message);
        }
        false
    }

    /// Lets whoever waits forget a request that will never be answered, because it was never sent.
    fn release(&self, message: &Message) {
        match message {
            Message::OnLane(request) => {
                if let Some(lane) = self.lane.get().and_then(Weak::upgrade) {
                    lane.drop_unsent(request.number);
                }
            }
            Message::Whole { id: Some(id), .. } => {
                // The reader is gone only when the session is.
                let _ = self.releases.send(*id);
            }
            Message::Whole { id: None, .. } => {}
        }
    }
}

/// Writes the frame. What was written of it is noted, so that this can be called again.
fn push<W: AsyncWrite + Unpin>(
    desk: &mut Desk<W>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let Some(stream) = &mut desk.stream else {
        return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
    };
    while desk.written < desk.bytes.len() {
        let rest = &desk.bytes[desk.written..];
        match ready!(Pin::new(&mut *stream).poll_write(context, rest))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            n => desk.written += n,
        }
    }
    Pin::new(stream).poll_flush(context)
}

impl<W: AsyncWrite + Unpin + Send + 'static> Outbox for Writer<W> {
    fn put(&self, outgoing: Outgoing) -> Result<(), Closed> {
        let mut desk = self.desk();
        if desk.stream.is_none() {
            return Err(Closed);
        }
        let is_idle = desk.queue.is_empty() && desk.bytes.is_empty();
        desk.queue.push_back(outgoing);
        if !is_idle {
            // The task is at it.
            return Ok(());
        }
        // The stream may wake this waker where it is waited for, and so the task polls it again.
        let mut nobody = Context::from_waker(Waker::noop());
        let advanced = catch_unwind(AssertUnwindSafe(|| self.advance(&mut desk, &mut nobody)));
        let task = match advanced {
            Ok(Poll::Ready(Ok(()))) => return Ok(()),
            Ok(Poll::Pending) => desk.task.clone(),
            // A user's stream that panics is broken.
            Ok(Poll::Ready(Err(Broken))) | Err(_) => {
                self.failed.cancel();
                desk.stream = None;
                desk.task.clone()
            }
        };
        drop(desk);
        if let Some(task) = task {
            task.wake();
        }
        Ok(())
    }

    fn leave(&self, outgoing: Outgoing) -> Result<(), Closed> {
        let mut desk = self.desk();
        if desk.stream.is_none() {
            return Err(Closed);
        }
        desk.queue.push_back(outgoing);
        let task = desk.task.clone();
        drop(desk);
        if let Some(task) = task {
            task.wake();
        }
        Ok(())
    }
}
