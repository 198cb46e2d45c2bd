//! A byte stream that carries newline-delimited JSON-RPC, with one ordered writer.
//!
//! rmcp calls `send` in mailbox order and then runs each returned future in a task of its own. So
//! `send` enqueues before it returns, and wire order is mailbox order. The writer is the witness:
//! it asks each request's cell before the first byte, and what it finds recalled it drops.
//!
//! Ids on the wire are unique within the connection, not only within the session, so an answer that
//! belongs to an older session can never be taken for one of this session.

mod desk;
mod writer;

use std::{
    future::{Future, Ready, ready},
    io,
    sync::Arc,
    time::Duration,
};

use desk::Desk;
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use writer::{Outgoing, Writer};

use super::{
    ExitWatch, Pulse,
    frame::{Frame, FrameReader},
    witness::{cell_of, closed},
};
use crate::evidence::Loss;

/// How long the reader goes on after the process has exited or the writer has failed. Whatever the
/// server wrote before is in the pipe already; only a grandchild can keep the pipe open longer.
const DRAIN: Duration = Duration::from_millis(250);

/// How long the end waits to learn the exit status, so that it can be told with the loss.
const EXIT_STATUS: Duration = Duration::from_millis(100);

pub(crate) struct OrderedTransport<R> {
    reader: FrameReader<R>,
    limit: usize,
    queue: mpsc::UnboundedSender<Outgoing>,
    /// Messages of our own making, which rmcp is to take for the server's.
    made_up: mpsc::UnboundedReceiver<ServerJsonRpcMessage>,
    desk: Desk,
    pulse: Arc<Pulse>,
    exit: Option<ExitWatch>,
    writer_failed: CancellationToken,
    ending: Ending,
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
        let (queue, outgoing) = mpsc::unbounded_channel();
        let (releases, made_up) = mpsc::unbounded_channel();
        let writer_failed = CancellationToken::new();
        let writer = Writer {
            stream: write,
            outgoing,
            releases,
            pulse: Arc::clone(&pulse),
            failed: writer_failed.clone(),
        };
        let stop = options.stop_writing;
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = writer.run() => {}
            }
        });
        Self {
            reader: FrameReader::new(read, options.max_frame_bytes),
            limit: options.max_frame_bytes,
            queue,
            made_up,
            desk: Desk::new(Arc::clone(&pulse), options.discover_limit),
            pulse,
            exit: options.exit,
            writer_failed,
            ending: Ending::No,
        }
    }

    fn on_frame(&mut self, frame: io::Result<Frame>) -> Option<ServerJsonRpcMessage> {
        let lines = &mut self.reader.lines;
        match frame {
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
        let id = self.desk.note(&mut message, cell.as_ref());
        let sent = self
            .queue
            .send(Outgoing { message, cell, id })
            .map_err(|_| closed());
        let sent: Ready<io::Result<()>> = ready(sent);
        sent
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let probe_ends = self.desk.probe_ends();
            let message = match self.ending {
                Ending::No => tokio::select! {
                    biased;
                    Some(message) = self.made_up.recv() => Some(message),
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
