//! A byte stream that carries newline-delimited JSON-RPC, with one ordered writer.
//!
//! rmcp calls `send` in mailbox order and then runs each returned future in a task of its own. So
//! `send` enqueues before it returns, and wire order is mailbox order. The writer is the witness:
//! it asks each request's cell before the first byte, and what it finds recalled it drops.
//!
//! Ids on the wire are unique within the connection, not only within the session, so an answer that
//! belongs to an older session can never be taken for one of this session. Within a session rmcp's are
//! even and those of the [`lane`](super::lane) odd.

mod desk;
mod writer;

use std::{
    future::{Future, ready},
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use desk::{Desk, Heard};
use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ErrorCode, ErrorData, GetExtensions as _, JsonRpcMessage, RequestId,
        ServerJsonRpcMessage,
    },
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use writer::Writer;
pub(super) use writer::{Message, Outgoing};

use super::{
    ExitWatch, Pulse,
    frame::{Frame, FrameReader},
    lane::{Lane, Outbox},
    witness::{Anchor, cell_of, closed},
};
use crate::evidence::{DispatchCell, Loss};

/// How many ids each generation has to itself. JSON numbers are exact up to 2^53, which leaves
/// room for two million generations.
const IDS_PER_GENERATION: i64 = 1 << 32;

/// How long the reader goes on after the process has exited or the writer has failed. Whatever the
/// server wrote before is in the pipe already; only a grandchild can keep the pipe open longer.
const DRAIN: Duration = Duration::from_millis(250);

/// How long the end waits to learn the exit status, so that it can be told with the loss.
const EXIT_STATUS: Duration = Duration::from_millis(100);

pub(crate) struct OrderedTransport<R> {
    reader: FrameReader<R>,
    limit: usize,
    outbox: Arc<dyn Outbox>,
    lane: Arc<Lane>,
    /// Requests of rmcp's that it is to forget. By their numbers alone: a channel keeps room for many.
    released: mpsc::UnboundedReceiver<i64>,
    desk: Desk,
    pulse: Arc<Pulse>,
    exit: Option<ExitWatch>,
    writer_failed: CancellationToken,
    ending: Ending,
    /// rmcp has the request that stands for those of the lane.
    anchored: bool,
}

enum Ending {
    /// Reading.
    No,
    /// The process is gone or the writer has failed: reading on until then, for what is left.
    Draining(Instant),
    /// The stream is over: waiting until then to learn the exit status.
    Ended(Instant),
}

/// What an [`OrderedTransport`] needs to know.
pub(crate) struct OrderedOptions {
    pub(crate) max_frame_bytes: usize,
    /// How long the handshake's `server/discover` may take before rmcp is told to fall back.
    pub(crate) discover_limit: Option<Duration>,
    pub(crate) exit: Option<ExitWatch>,
    /// Closes the writing side when cancelled, whatever is still queued or half written.
    pub(crate) stop_writing: CancellationToken,
}

impl<R: AsyncRead + Unpin + Send> OrderedTransport<R> {
    pub(crate) fn new<W>(read: R, write: W, pulse: Arc<Pulse>, options: OrderedOptions) -> Self
    where
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let (releases, released) = mpsc::unbounded_channel();
        let writer_failed = CancellationToken::new();
        let writer = Writer::new(write, releases, Arc::clone(&pulse), writer_failed.clone());
        let writer = Arc::new(writer);
        let generations_before =
            i64::try_from(pulse.generation.0.saturating_sub(1)).unwrap_or(i64::MAX);
        let first_id = generations_before.saturating_mul(IDS_PER_GENERATION);
        let outbox: Arc<dyn Outbox> = Arc::clone(&writer) as _;
        let lane = Arc::new(Lane::new(Arc::clone(&outbox), first_id));
        writer.serves(&lane);
        let limit = options.discover_limit;
        let desk = Desk::new(Arc::clone(&pulse), Arc::clone(&lane), first_id, limit);
        tokio::spawn(writer.run(options.stop_writing));
        Self {
            reader: FrameReader::new(read, options.max_frame_bytes),
            limit: options.max_frame_bytes,
            outbox,
            lane,
            released,
            desk,
            pulse,
            exit: options.exit,
            writer_failed,
            ending: Ending::No,
            anchored: false,
        }
    }

    /// The way of the session's operations past rmcp.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    fn put(
        &self,
        message: ClientJsonRpcMessage,
        cell: Option<Arc<DispatchCell>>,
        id: Option<i64>,
    ) -> io::Result<()> {
        let message = Box::new(message);
        let outgoing = Outgoing {
            message: Message::Whole { message, id },
            cell,
        };
        self.outbox.put(outgoing).map_err(|_| closed())
    }

    fn on_frame(&mut self, frame: io::Result<Frame>) -> Option<ServerJsonRpcMessage> {
        let lines = &mut self.reader.lines;
        let heard = match frame {
            Ok(Frame::Line(line)) => self.desk.on_line(lines, line, true),
            Ok(Frame::TooLarge(id)) => self.desk.too_large(id, self.limit),
            Ok(Frame::End(rest)) => {
                self.ending = Ending::Ended(Instant::now() + EXIT_STATUS);
                self.desk.on_line(lines, rest, false)
            }
            Err(_) => {
                self.ending = Ending::Ended(Instant::now() + EXIT_STATUS);
                None
            }
        };
        match heard? {
            Heard::Message(message) => Some(message),
            Heard::Refuse(error) => {
                // Where the session is over, nobody waits for it.
                self.put(error, None, None).ok();
                None
            }
        }
    }

    fn publish_end(&self) {
        let exit = self.exit.as_ref().and_then(ExitWatch::status);
        let stderr = self
            .exit
            .as_ref()
            .map(|e| e.stderr.text())
            .unwrap_or_default();
        self.pulse.end(match exit {
            Some(_) => Loss::Exited { exit, stderr },
            None => Loss::Closed { exit, stderr },
        });
    }
}

/// The answer to a server that asks without being asked, where its revision forbids that.
fn unasked(id: RequestId) -> ClientJsonRpcMessage {
    let text = "a server asks only while a request of the client's is with it";
    ClientJsonRpcMessage::error(ErrorData::invalid_params(text, None), Some(id))
}

fn made_up_error(id: i64, code: ErrorCode) -> ServerJsonRpcMessage {
    let error = ErrorData::new(code, "made up by the client", None);
    ServerJsonRpcMessage::error(error, Some(RequestId::Number(id)))
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleClient> for OrderedTransport<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        mut message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let cell = cell_of(&message);
        if let JsonRpcMessage::Request(request) = &message
            && request.request.extensions().get::<Anchor>().is_some()
        {
            self.anchored = true;
            return ready(Ok(()));
        }
        let id = self.desk.note(&mut message, cell.as_ref());
        ready(self.put(message, cell, id))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let anchor_comes = self.lane.asks_only_if_asked.load(Ordering::Acquire);
        if anchor_comes && !self.anchored {
            // rmcp has the anchor in its channel, and takes it now.
            return std::future::pending().await;
        }
        loop {
            let probe_ends = self.desk.probe_ends();
            let message = match self.ending {
                Ending::No => tokio::select! {
                    biased;
                    Some(id) = self.released.recv() => {
                        Some(made_up_error(id, ErrorCode::INTERNAL_ERROR))
                    }
                    frame = self.reader.next() => self.on_frame(frame),
                    () = exited(&mut self.exit) => {
                        self.ending = Ending::Draining(Instant::now() + DRAIN);
                        None
                    }
                    () = self.writer_failed.cancelled() => {
                        self.ending = Ending::Draining(Instant::now() + DRAIN);
                        None
                    }
                    () = until(probe_ends) => self.desk.fall_back(),
                },
                Ending::Draining(until) => tokio::select! {
                    biased;
                    frame = self.reader.next() => self.on_frame(frame),
                    () = tokio::time::sleep_until(until) => {
                        self.ending = Ending::Ended(Instant::now());
                        None
                    }
                },
                Ending::Ended(until) => {
                    if let Some(exit) = &mut self.exit {
                        // Without the status the loss is told all the same.
                        let _ = tokio::time::timeout_at(until, exit.exited()).await;
                    }
                    // Every answer that was read has been given to its caller by now: rmcp asks
                    // for the next message only after it has dealt with the last.
                    self.publish_end();
                    return None;
                }
            };
            if let Some(message) = message {
                self.desk.released(&message);
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        // The session stops the process and the writer; rmcp is not kept waiting for either.
        Ok(())
    }
}

impl<R> Drop for OrderedTransport<R> {
    fn drop(&mut self) {
        self.pulse.end(Loss::Ended("its client service stopped"));
        // After the end, by which whoever waits is to judge.
        self.lane.close();
    }
}

async fn exited(exit: &mut Option<ExitWatch>) {
    match exit {
        Some(exit) => exit.exited().await,
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
