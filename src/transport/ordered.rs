//! A byte stream that carries newline-delimited JSON-RPC, with one ordered writer.
//!
//! rmcp calls `send` in mailbox order and then runs each returned future in a task of its own. So
//! `send` enqueues before it returns, and wire order is mailbox order. The writer is the witness:
//! it asks each request's cell before the first byte, and what it finds recalled it drops.
//!
//! Ids on the wire are unique within the connection, not only within the session, so an answer that
//! belongs to an older session can never be taken for one of this session. Within a session rmcp's are
//! even and those of the [`lane`](super::lane) odd.

mod writer;

use std::{
    collections::HashMap,
    future::{Future, ready},
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, ErrorData,
        GetExtensions as _, GetMeta as _, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
        ServerNotification, ServerRequest, ServerResult,
    },
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
pub(super) use writer::Outgoing;
use writer::Writer;

use super::{
    ExitWatch, Pulse, decode,
    frame::{Frame, FrameReader, id_in},
    lane::{Lane, Outbox},
    witness::{Anchor, cell_of, closed},
};
use crate::{
    event::Dropped,
    evidence::{DispatchCell, Loss, WireFault, WireReport},
};

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
    /// Messages of our own making, which rmcp is to take for the server's.
    made_up: mpsc::UnboundedReceiver<ServerJsonRpcMessage>,
    outstanding: HashMap<i64, Asked>,
    first_id: i64,
    /// The lowest id that no request had: a second handshake counts from zero again.
    next_id: i64,
    pulse: Arc<Pulse>,
    exit: Option<ExitWatch>,
    writer_failed: CancellationToken,
    discover: Discover,
    ending: Ending,
    /// rmcp has the request that stands for those of the lane.
    anchored: bool,
}

/// The id of no request of this session's.
struct NoneOfOurs;

/// A request of rmcp's that waits for its answer.
struct Asked {
    cell: Option<Arc<DispatchCell>>,
}

/// The `server/discover` of the handshake and its time limit, where there is one to fall back to.
struct Discover {
    limit: Option<Duration>,
    waiting: Option<(i64, Instant)>,
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
        let (releases, made_up) = mpsc::unbounded_channel();
        let writer_failed = CancellationToken::new();
        let writer = Writer::new(write, releases, Arc::clone(&pulse), writer_failed.clone());
        let writer = Arc::new(writer);
        let generations_before =
            i64::try_from(pulse.generation.0.saturating_sub(1)).unwrap_or(i64::MAX);
        let first_id = generations_before.saturating_mul(IDS_PER_GENERATION);
        let outbox: Arc<dyn Outbox> = Arc::clone(&writer) as _;
        let lane = Arc::new(Lane::new(Arc::clone(&outbox), first_id));
        writer.serves(&lane);
        tokio::spawn(writer.run(options.stop_writing));
        Self {
            reader: FrameReader::new(read, options.max_frame_bytes),
            limit: options.max_frame_bytes,
            outbox,
            lane,
            made_up,
            outstanding: HashMap::new(),
            first_id,
            next_id: 0,
            pulse,
            exit: options.exit,
            writer_failed,
            discover: Discover {
                limit: options.discover_limit,
                waiting: None,
            },
            ending: Ending::No,
            anchored: false,
        }
    }

    /// The way of the session's operations past rmcp.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    /// `whole`: whether the line had its end. Half a frame is no answer, but not a bad one either.
    fn on_line(&mut self, line: &[u8], whole: bool) -> Option<ServerJsonRpcMessage> {
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let message = match self.tool_answer(line) {
            Some(message) => Ok(message),
            None => serde_json::from_slice::<ServerJsonRpcMessage>(line),
        };
        match message {
            Ok(message) => {
                self.pulse.hear();
                self.on_message(message)
            }
            Err(error) => {
                self.pulse.drop_frame(Dropped::Garbage);
                if !whole {
                    return None;
                }
                // The error's own text is not kept: it quotes what the server sent.
                let what = match error.classify() {
                    serde_json::error::Category::Data => "it is JSON, but not a message of MCP",
                    _ => "it is not JSON",
                };
                self.give_up(id_in(line), WireFault::BadAnswer(what.into()))
            }
        }
    }

    /// The answer to a tool call, by the short way.
    fn tool_answer(&self, line: &[u8]) -> Option<ServerJsonRpcMessage> {
        let (id, message) = decode::tool_answer(line)?;
        self.lane.is_tool_call(id).then_some(message)
    }

    fn on_message(&mut self, mut message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        if let JsonRpcMessage::Response(response) = &mut message
            && let ServerResult::SubscriptionsListenResult(result) = &mut response.result
            && let Some(Ok(local)) = result.meta.subscription_id().map(|id| self.local(&id))
        {
            result.meta.set_subscription_id(RequestId::Number(local));
        }
        let id = match &mut message {
            JsonRpcMessage::Response(response) => &mut response.id,
            JsonRpcMessage::Error(error) => match &mut error.id {
                Some(id) => id,
                None => return Some(message),
            },
            JsonRpcMessage::Notification(notification) => {
                return match self.about_ours(&mut notification.notification) {
                    true => Some(message),
                    false => {
                        self.pulse.drop_frame(Dropped::Unmatched);
                        None
                    }
                };
            }
            JsonRpcMessage::Request(request) => {
                return match self.may_ask(&request.request) {
                    true => Some(message),
                    false => {
                        let error = unasked(request.id.clone());
                        self.put(error, None, None).ok();
                        None
                    }
                };
            }
        };
        let local = self.local(id).ok();
        match local.filter(|n| self.settle(*n).is_some()) {
            Some(local) => {
                *id = RequestId::Number(local);
                Some(message)
            }
            None => {
                let number = number_of(id);
                let answer = match message {
                    JsonRpcMessage::Response(response) => Ok(response.result),
                    JsonRpcMessage::Error(error) => Err(error.error),
                    other => return Some(other),
                };
                if number.is_none_or(|number| !self.lane.settle(number, answer)) {
                    self.pulse.drop_frame(Dropped::Unmatched);
                }
                None
            }
        }
    }

    /// The id by which rmcp knows the request that has this one on the wire.
    fn local(&self, wire_id: &RequestId) -> Result<i64, NoneOfOurs> {
        let doubled = number_of(wire_id).and_then(|n| n.checked_sub(self.first_id));
        let doubled = doubled.filter(|doubled| doubled % 2 == 0);
        doubled.map(|doubled| doubled / 2).ok_or(NoneOfOurs)
    }

    fn wire_id(&self, local: i64) -> i64 {
        self.first_id + 2 * local
    }

    /// Has a notification speak of our requests by the ids that rmcp knows. `false`: it speaks of a
    /// subscription that is none of this session's.
    fn about_ours(&self, notification: &mut ServerNotification) -> bool {
        if let ServerNotification::CancelledNotification(cancelled) = notification {
            // A server cancels requests of its own by this, or a standing request of ours.
            if let Some(id) = &mut cancelled.params.request_id
                && let Ok(local) = self.local(id)
                && self.outstanding.contains_key(&local)
            {
                *id = RequestId::Number(local);
            }
            return true;
        }
        let Some(id) = notification.get_meta().subscription_id() else {
            return true;
        };
        let Ok(local) = self.local(&id) else {
            return true;
        };
        if !self.outstanding.contains_key(&local) {
            return false;
        }
        let id = RequestId::Number(local);
        notification.get_meta_mut().set_subscription_id(id);
        true
    }

    fn asks_only_if_asked(&self) -> bool {
        self.lane.asks_only_if_asked.load(Ordering::Acquire)
    }

    /// Whether the server may ask this now. rmcp would know it by its own requests alone.
    fn may_ask(&self, request: &ServerRequest) -> bool {
        let bound = matches!(
            request,
            ServerRequest::CreateMessageRequest(_)
                | ServerRequest::ElicitRequest(_)
                | ServerRequest::ListRootsRequest(_)
        );
        let is_asked = || !self.outstanding.is_empty() || self.lane.is_waited_on();
        !bound || !self.asks_only_if_asked() || is_asked()
    }

    fn put(
        &self,
        message: ClientJsonRpcMessage,
        cell: Option<Arc<DispatchCell>>,
        id: Option<i64>,
    ) -> io::Result<()> {
        let lane = None;
        let outgoing = Outgoing {
            message,
            cell,
            id,
            lane,
        };
        self.outbox.put(outgoing).map_err(|_| closed())
    }

    /// Takes a request off the list of those that wait for an answer.
    fn settle(&mut self, id: i64) -> Option<Asked> {
        if self.discover.waiting.is_some_and(|(probe, _)| probe == id) {
            self.discover.waiting = None;
        }
        self.outstanding.remove(&id)
    }

    /// Ends the wait for an answer that came and cannot be read.
    fn give_up(&mut self, wire_id: Option<i64>, fault: WireFault) -> Option<ServerJsonRpcMessage> {
        let number = wire_id?;
        let Ok(id) = self.local(&RequestId::Number(number)) else {
            if self.lane.give_up(number, fault) {
                self.pulse.hear();
            }
            return None;
        };
        let asked = self.settle(id)?;
        self.pulse.hear();
        if let Some(cell) = asked.cell {
            cell.report(WireReport {
                fault: Some(fault),
                ..WireReport::default()
            });
        }
        Some(made_up_error(id, ErrorCode::INTERNAL_ERROR))
    }

    fn on_frame(&mut self, frame: io::Result<Frame>) -> Option<ServerJsonRpcMessage> {
        match frame {
            Ok(Frame::Line(line)) => self.on_line(&line, true),
            Ok(Frame::TooLarge(id)) => {
                self.pulse.drop_frame(Dropped::TooLarge);
                self.give_up(id, WireFault::AnswerTooLarge { limit: self.limit })
            }
            Ok(Frame::End(rest)) => {
                self.ending = Ending::Ended(Instant::now() + EXIT_STATUS);
                self.on_line(&rest, false)
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

/// An id as a number. Some servers send it back as a text.
fn number_of(id: &RequestId) -> Option<i64> {
    match id {
        RequestId::Number(n) => Some(*n),
        RequestId::String(s) => s.parse().ok(),
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
        let mut id = None;
        match &mut message {
            JsonRpcMessage::Request(request) => {
                if request.request.extensions().get::<Anchor>().is_some() {
                    self.anchored = true;
                    return ready(Ok(()));
                }
                if let RequestId::Number(n) = &mut request.id {
                    id = Some(*n);
                    // One with a cell is a probe, whose answer must not be made up.
                    if let (ClientRequest::DiscoverRequest(_), None) = (&request.request, &cell) {
                        let first_id = self.next_id.saturating_sub(2 * *n);
                        self.first_id = self.first_id.max(first_id);
                        self.lane.first_id.store(self.first_id, Ordering::Relaxed);
                        // A second handshake has nothing to fall back on.
                        let limit = self.discover.limit.take();
                        self.discover.waiting = limit.map(|limit| (*n, Instant::now() + limit));
                    }
                    let asked = Asked { cell: cell.clone() };
                    self.outstanding.insert(*n, asked);
                    *n = self.wire_id(*n);
                    self.next_id = *n + 2;
                }
            }
            JsonRpcMessage::Notification(n) => {
                if let ClientNotification::CancelledNotification(cancelled) = &mut n.notification
                    && let Some(RequestId::Number(n)) = &mut cancelled.params.request_id
                {
                    self.outstanding.remove(n);
                    *n = self.wire_id(*n);
                }
            }
            _ => {}
        }
        ready(self.put(message, cell, id))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        if self.asks_only_if_asked() && !self.anchored {
            // rmcp has the anchor in its channel, and takes it now.
            return std::future::pending().await;
        }
        loop {
            let probe = self.discover.waiting;
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
                    () = until(probe.map(|(_, at)| at)) => {
                        self.discover.waiting = None;
                        probe.map(|(id, _)| made_up_error(id, ErrorCode::METHOD_NOT_FOUND))
                    }
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
                if let JsonRpcMessage::Error(error) = &message
                    && let Some(RequestId::Number(id)) = &error.id
                {
                    self.outstanding.remove(id);
                }
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
