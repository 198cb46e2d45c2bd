//! What a session's requests wait for, by their ids: what comes in finds its place here.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, GetMeta as _,
    JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerNotification, ServerRequest,
    ServerResult,
};
use tokio::time::Instant;

use super::{made_up_error, unasked};
use crate::{
    event::Dropped,
    evidence::{DispatchCell, RawResult, WireFault, WireReport},
    transport::{
        Pulse,
        decode::{Answer, LARGE, Wanted},
        frame::{Line, Lines, id_in, number_of},
        lane::Lane,
    },
};

/// The id of no request of this session's.
struct NoneOfOurs;

/// A request of rmcp's that waits for its answer.
struct Asked {
    cell: Option<Arc<DispatchCell>>,
    wanted: Wanted,
}

/// The `server/discover` of the handshake and its time limit, where there is one to fall back to.
struct Discover {
    limit: Option<Duration>,
    waiting: Option<(i64, Instant)>,
}

/// What the short way made of a frame.
#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would cost an allocation for each answer"
)]
enum Short {
    Message(ServerJsonRpcMessage),
    /// It answers what nobody waits for any more.
    Unmatched,
    LongWay,
}

/// What comes of a frame beside what rmcp is to hear.
pub(super) enum Heard {
    /// For rmcp.
    Message(ServerJsonRpcMessage),
    /// To be sent back.
    Refuse(ClientJsonRpcMessage),
}

/// The requests of a session that wait for an answer: rmcp's own, and those of the lane.
pub(super) struct Desk {
    outstanding: HashMap<i64, Asked>,
    lane: Arc<Lane>,
    first_id: i64,
    /// The lowest id that no request had: a second handshake counts from zero again.
    next_id: i64,
    pulse: Arc<Pulse>,
    discover: Discover,
}

impl Desk {
    pub(super) fn new(
        pulse: Arc<Pulse>,
        lane: Arc<Lane>,
        first_id: i64,
        discover_limit: Option<Duration>,
    ) -> Self {
        Self {
            outstanding: HashMap::new(),
            lane,
            first_id,
            next_id: 0,
            pulse,
            discover: Discover {
                limit: discover_limit,
                waiting: None,
            },
        }
    }

    /// Notes what rmcp sends, and has it speak of requests by the ids that they have on the wire. Gives
    /// the id by which rmcp knows a request.
    pub(super) fn note(
        &mut self,
        message: &mut ClientJsonRpcMessage,
        cell: Option<&Arc<DispatchCell>>,
    ) -> Option<i64> {
        match message {
            JsonRpcMessage::Request(request) => {
                let RequestId::Number(n) = &mut request.id else {
                    return None;
                };
                let id = *n;
                // One with a cell is a probe, whose answer must not be made up.
                if let (ClientRequest::DiscoverRequest(_), None) = (&request.request, cell) {
                    let first_id = self.next_id.saturating_sub(2 * id);
                    self.first_id = self.first_id.max(first_id);
                    self.lane.first_id.store(self.first_id, Ordering::Relaxed);
                    // A second handshake has nothing to fall back on.
                    let limit = self.discover.limit.take();
                    self.discover.waiting = limit.map(|limit| (id, Instant::now() + limit));
                }
                let asked = Asked {
                    cell: cell.cloned(),
                    wanted: Wanted::by(&request.request),
                };
                self.outstanding.insert(id, asked);
                *n = self.wire_id(id);
                self.next_id = *n + 2;
                Some(id)
            }
            JsonRpcMessage::Notification(n) => {
                if let ClientNotification::CancelledNotification(cancelled) = &mut n.notification
                    && let Some(RequestId::Number(n)) = &mut cancelled.params.request_id
                {
                    self.outstanding.remove(n);
                    *n = self.wire_id(*n);
                }
                None
            }
            _ => None,
        }
    }

    /// When the wait for the answer to the handshake's `server/discover` ends.
    pub(super) fn probe_ends(&self) -> Option<Instant> {
        self.discover.waiting.map(|(_, at)| at)
    }

    /// Ends the wait for the answer to the handshake's `server/discover`, with one that is made up.
    pub(super) fn fall_back(&mut self) -> Option<ServerJsonRpcMessage> {
        let (id, _) = self.discover.waiting.take()?;
        self.outstanding.remove(&id);
        Some(made_up_error(id, ErrorCode::METHOD_NOT_FOUND))
    }

    /// A made-up answer ended the wait for this one.
    pub(super) fn released(&mut self, message: &ServerJsonRpcMessage) {
        if let JsonRpcMessage::Error(error) = message
            && let Some(RequestId::Number(id)) = &error.id
        {
            self.outstanding.remove(id);
        }
    }

    /// `whole`: whether the line had its end. Half a frame is no answer, but not a bad one either.
    pub(super) fn on_line(&mut self, lines: &mut Lines, line: Line, whole: bool) -> Option<Heard> {
        if lines.bytes(&line).len() >= LARGE {
            return match String::from_utf8(lines.take(line)) {
                Ok(text) => self.on_large(text, whole),
                Err(error) => self.long_way(error.as_bytes(), whole),
            };
        }
        let line = without_mark(lines.bytes(&line));
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let text = str::from_utf8(line);
        let answer = text.ok().and_then(Answer::walk);
        if let Some(answer) = &answer
            && self.settled_on_lane(answer)
        {
            return None;
        }
        match answer.map_or(Short::LongWay, |answer| self.short_way(&answer)) {
            Short::LongWay => self.long_way(line, whole),
            short => self.went(short),
        }
    }

    /// Whether it was an answer that whoever waits on the lane was given.
    fn settled_on_lane(&self, answer: &Answer<'_>) -> bool {
        if self.local(&RequestId::Number(answer.id)).is_ok() {
            return false;
        }
        let wanted = self.lane.waits_for(answer.id);
        let Some(said) = wanted.and_then(|wanted| answer.said(wanted)) else {
            return false;
        };
        self.pulse.hear();
        self.lane.settle(answer.id, said)
    }

    /// A large frame is taken out of the buffer, so that a result can stay where it is.
    fn on_large(&mut self, text: String, whole: bool) -> Option<Heard> {
        let Some(answer) = Answer::walk(&text) else {
            return self.long_way(text.as_bytes(), whole);
        };
        if let Some((Wanted::Tool, Some(cell))) = self.asked(answer.id)
            && let Some(left) = answer.left_raw(&text)
        {
            let message = left.stub;
            cell.keep(RawResult::new(text, left.result, left.structured));
            return self.went(Short::Message(message));
        }
        match self.short_way(&answer) {
            Short::LongWay => self.long_way(text.as_bytes(), whole),
            short => self.went(short),
        }
    }

    /// What the request with this id is to be answered with, and where its answer may be kept.
    fn asked(&self, wire_id: i64) -> Option<(Wanted, Option<Arc<DispatchCell>>)> {
        match self.local(&RequestId::Number(wire_id)) {
            Ok(local) => {
                let asked = self.outstanding.get(&local)?;
                Some((asked.wanted, asked.cell.clone()))
            }
            Err(NoneOfOurs) => {
                let (wanted, cell) = self.lane.wanted(wire_id)?;
                Some((wanted, Some(cell)))
            }
        }
    }

    fn short_way(&self, answer: &Answer<'_>) -> Short {
        match self.asked(answer.id) {
            Some((wanted, _)) => {
                let message = answer.decode(wanted, answer.id);
                message.map_or(Short::LongWay, Short::Message)
            }
            // Any result is one of rmcp's, if only a custom one.
            None if answer.is_result() => Short::Unmatched,
            None => Short::LongWay,
        }
    }

    fn went(&mut self, short: Short) -> Option<Heard> {
        self.pulse.hear();
        match short {
            Short::Message(message) => self.on_message(message),
            Short::Unmatched | Short::LongWay => {
                self.pulse.drop_frame(Dropped::Unmatched);
                None
            }
        }
    }

    /// What rmcp's own decoder says.
    fn long_way(&mut self, line: &[u8], whole: bool) -> Option<Heard> {
        let line = without_mark(line);
        match serde_json::from_slice::<ServerJsonRpcMessage>(line) {
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

    fn on_message(&mut self, mut message: ServerJsonRpcMessage) -> Option<Heard> {
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
                None => return Some(Heard::Message(message)),
            },
            JsonRpcMessage::Notification(notification) => {
                return match self.about_ours(&mut notification.notification) {
                    true => Some(Heard::Message(message)),
                    false => {
                        self.pulse.drop_frame(Dropped::Unmatched);
                        None
                    }
                };
            }
            JsonRpcMessage::Request(request) => {
                return match self.may_ask(&request.request) {
                    true => Some(Heard::Message(message)),
                    false => Some(Heard::Refuse(unasked(request.id.clone()))),
                };
            }
        };
        let local = self.local(id).ok();
        match local.filter(|n| self.settle(*n).is_some()) {
            Some(local) => {
                *id = RequestId::Number(local);
                Some(Heard::Message(message))
            }
            None => {
                let number = number_of(id);
                let answer = match message {
                    JsonRpcMessage::Response(response) => Ok(Box::new(response.result)),
                    JsonRpcMessage::Error(error) => Err(error.error),
                    other => return Some(Heard::Message(other)),
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

    /// Takes a request off the list of those that wait for an answer.
    fn settle(&mut self, id: i64) -> Option<Asked> {
        if self.discover.waiting.is_some_and(|(probe, _)| probe == id) {
            self.discover.waiting = None;
        }
        self.outstanding.remove(&id)
    }

    /// Ends the wait for an answer that came and cannot be read.
    fn give_up(&mut self, wire_id: Option<i64>, fault: WireFault) -> Option<Heard> {
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
        let error = made_up_error(id, ErrorCode::INTERNAL_ERROR);
        Some(Heard::Message(error))
    }

    /// Ends the wait for an answer that is larger than the limit.
    pub(super) fn too_large(&mut self, wire_id: Option<i64>, limit: usize) -> Option<Heard> {
        self.pulse.drop_frame(Dropped::TooLarge);
        self.give_up(wire_id, WireFault::AnswerTooLarge { limit })
    }
}

/// A frame without the byte order mark that some servers put before it.
fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line)
}
