//! Server-sent events: the stream of one answer, and the standing stream of a session.
//!
//! rmcp resumes a broken stream by itself, without a bound where the server names a retry time. So
//! it never gets to see an event id: the answer's stream is resumed in here, a counted number of
//! times, and what rmcp sees is one stream that ends once.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ::http::{HeaderName, HeaderValue};
use bytes::Bytes;
use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use rmcp::{
    model::{JsonRpcMessage, JsonRpcVersion2_0, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::SseError,
};
use serde::Deserialize;
use sse_stream::{Sse, SseStream};
use tokio::runtime::Handle;

use super::{HttpClient, Pulse, exchange::Exchange, reading::same_id};
use crate::{
    event::Dropped,
    evidence::{DispatchCell, WireFault, WireReport},
    transport::{
        decode::{Answer, Wanted},
        frame::id_in,
    },
};

/// The wait before a resumption when the server names none, and the most that it may ask for.
const RESUME_AFTER: Duration = Duration::from_millis(200);
const LONGEST_RESUME_WAIT: Duration = Duration::from_secs(30);

type Events = BoxStream<'static, Result<Sse, SseError>>;

/// Which answer is awaited, and how its stream is resumed.
pub(super) struct Resume {
    pub(super) client: HttpClient,
    pub(super) request: RequestId,
    pub(super) uri: Arc<str>,
    pub(super) session_id: Option<Arc<str>>,
    pub(super) headers: HashMap<HeaderName, HeaderValue>,
    pub(super) auth: Option<String>,
}

struct AnswerStream {
    events: Events,
    resume: Resume,
    cell: Option<Arc<DispatchCell>>,
    /// The answer is wanted also after it was cancelled.
    outlives: bool,
    can_resume: bool,
    report: WireReport,
    last_event_id: Option<String>,
    wait: Duration,
    resumes: u32,
    answered: bool,
    over: bool,
}

/// The events of one answer, resumed within the limit, and then over.
pub(super) fn stream(
    response: reqwest::Response,
    resume: Resume,
    exchange: &Exchange,
    report: WireReport,
) -> Events {
    let events = events(response, resume.client.max_answer_bytes);
    let state = AnswerStream {
        events,
        resume,
        cell: exchange.cell.clone(),
        outlives: exchange.outlives,
        can_resume: exchange.can_resume,
        report,
        last_event_id: None,
        wait: RESUME_AFTER,
        resumes: 0,
        answered: false,
        over: false,
    };
    stream::unfold(Read(Some(state)), |mut read| async move {
        let event = read.0.as_mut()?.next().await?;
        Some((Ok(event), read))
    })
    .boxed()
}

/// A stream that rmcp reads. Where rmcp lets go of it because nobody waits, it is read on if somebody
/// expects the answer all the same.
struct Read(Option<AnswerStream>);

impl Drop for Read {
    fn drop(&mut self) {
        let unread = self.0.take().filter(AnswerStream::is_expected);
        // Without a runtime the process is on its way out.
        if let (Some(stream), Ok(runtime)) = (unread, Handle::try_current()) {
            runtime.spawn(stream.read_on());
        }
    }
}

/// What is looked at in an event to know whether it is the answer.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "jsonrpc")]
    _version: JsonRpcVersion2_0,
    id: Option<RequestId>,
    method: Option<serde::de::IgnoredAny>,
    result: Option<serde::de::IgnoredAny>,
    error: Option<serde::de::IgnoredAny>,
}

impl AnswerStream {
    async fn next(&mut self) -> Option<Sse> {
        while !self.over {
            match self.events.next().await {
                Some(Ok(event)) => {
                    self.resume.client.pulse.hear();
                    if let Some(event) = self.take(event) {
                        return Some(event);
                    }
                }
                Some(Err(error)) if too_large(&error) => {
                    let limit = self.resume.client.max_answer_bytes;
                    self.give_up(WireFault::AnswerTooLarge { limit });
                }
                Some(Err(_)) | None if self.answered => self.over = true,
                Some(Err(_)) | None => self.take_up_again().await,
            }
        }
        None
    }

    fn is_expected(&self) -> bool {
        let calls = &self.resume.client.pulse.calls;
        self.outlives && !self.answered && !self.over && calls.expects(&self.resume.request)
    }

    /// Reads until the answer, which it gives to whoever expects it, or until the session ends.
    async fn read_on(mut self) {
        let pulse = Arc::clone(&self.resume.client.pulse);
        let reading = async {
            while let Some(event) = self.next().await {
                if self.answered {
                    return event.data;
                }
            }
            None
        };
        let answer = tokio::select! {
            biased;
            answer = reading => answer,
            () = pulse.ended() => None,
        };
        let answer = answer.and_then(|text| {
            // Only a tool call is waited for that long.
            let short = Answer::walk(&text).and_then(|a| a.decode(Wanted::Tool, a.id));
            short.or_else(|| serde_json::from_str(&text).ok())
        });
        if let Some(answer) = answer {
            // Only an answer is given to the exchange.
            let _ = pulse.calls.hear_late(&self.resume.request, answer);
        }
        pulse.calls.expect_no_more(&self.resume.request);
    }

    fn take(&mut self, mut event: Sse) -> Option<Sse> {
        if let Some(retry) = event.retry.take() {
            self.wait = Duration::from_millis(retry).min(LONGEST_RESUME_WAIT);
        }
        if let Some(id) = event.id.take() {
            // An empty id takes the last one back.
            self.last_event_id = Some(id).filter(|id| !id.is_empty());
        }
        if !matches!(event.event.as_deref(), None | Some("" | "message")) {
            return None;
        }
        let data = event
            .data
            .as_deref()
            .filter(|data| !data.trim().is_empty())?;
        let Ok(head) = serde_json::from_str::<Head>(data) else {
            // As on a byte stream: what is no message is skipped, and the wait goes on, unless it
            // can still be told that it was to be the answer.
            self.resume.client.pulse.drop_frame(Dropped::Garbage);
            let id = id_in(data.as_bytes()).map(RequestId::Number);
            if id.is_some_and(|id| same_id(&self.resume.request, &id)) {
                self.give_up(WireFault::BadAnswer(
                    "its event is not a message of MCP".into(),
                ));
            }
            return None;
        };
        if head.method.is_some() || (head.result.is_none() && head.error.is_none()) {
            return Some(event);
        }
        let is_error = head.error.is_some();
        match &head.id {
            Some(id) if same_id(&self.resume.request, id) => {}
            // An error without an id belongs to this exchange.
            None if is_error => {}
            _ => {
                self.resume.client.pulse.drop_frame(Dropped::Unmatched);
                return None;
            }
        }
        if is_error {
            let parsed = serde_json::from_str::<ServerJsonRpcMessage>(data);
            let Ok(JsonRpcMessage::Error(error)) = parsed else {
                self.give_up(WireFault::BadAnswer(
                    "its error is not one of JSON-RPC".into(),
                ));
                return None;
            };
            let id = Some(self.resume.request.clone());
            let error = ServerJsonRpcMessage::error(error.error, id);
            event.data = serde_json::to_string(&error).ok();
        }
        self.tell(self.report.clone());
        self.answered = true;
        Some(event)
    }

    fn tell(&self, report: WireReport) {
        match &self.cell {
            Some(cell) => cell.report(report),
            None => self.resume.client.handshake.note(&report),
        }
    }

    fn give_up(&mut self, fault: WireFault) {
        self.tell(WireReport {
            fault: Some(fault),
            ..self.report.clone()
        });
        self.over = true;
    }

    /// Asks for the rest of the stream, until it is given one or may not ask any more.
    async fn take_up_again(&mut self) {
        loop {
            let client = &self.resume.client;
            let can =
                self.can_resume && self.resumes < client.max_resumes && !client.pulse.is_ended();
            let Some(last_event_id) = self.last_event_id.as_deref().filter(|_| can) else {
                self.give_up(WireFault::StreamEnded {
                    resumes: self.resumes,
                });
                return;
            };
            self.resumes += 1;
            tokio::time::sleep(self.wait).await;
            let opened = self
                .resume
                .client
                .open_stream(
                    &self.resume.uri,
                    self.resume.session_id.as_ref(),
                    Some(last_event_id),
                    self.resume.auth.clone(),
                    self.resume.headers.clone(),
                )
                .await;
            if let Ok(response) = opened {
                self.events = events(response, self.resume.client.max_answer_bytes);
                return;
            }
        }
    }
}

/// The standing stream of a session. Its end makes the session suspect, and is an end: it is not
/// opened again.
pub(super) fn standing(response: reqwest::Response, pulse: Arc<Pulse>, limit: usize) -> Events {
    let events = events(response, limit);
    stream::unfold((events, pulse), |(mut events, pulse)| async move {
        loop {
            match events.next().await {
                Some(Ok(event)) if is_late(&event, &pulse) => pulse.hear(),
                Some(Ok(mut event)) => {
                    pulse.hear();
                    event.id = None;
                    event.retry = None;
                    return Some((Ok(event), (events, pulse)));
                }
                Some(Err(_)) | None => {
                    pulse.suspect();
                    return None;
                }
            }
        }
    })
    .boxed()
}

/// Whether an event is an answer that came too late, and was given to whoever expects it all the same.
fn is_late(event: &Sse, pulse: &Pulse) -> bool {
    let data = event.data.as_deref().filter(|_| pulse.calls.expects_any());
    let message = data.and_then(|data| serde_json::from_str::<ServerJsonRpcMessage>(data).ok());
    let Some(message) = message else {
        return false;
    };
    let id = match &message {
        JsonRpcMessage::Response(response) => Some(response.id.clone()),
        JsonRpcMessage::Error(error) => error.id.clone(),
        _ => None,
    };
    id.is_some_and(|id| pulse.calls.hear_late(&id, message).is_none())
}

fn events(response: reqwest::Response, limit: usize) -> Events {
    SseStream::from_bytes_stream(bounded(response.bytes_stream(), limit)).boxed()
}

#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("an event is larger than the limit")]
    TooLarge,
    #[error("{0}")]
    Http(reqwest::Error),
}

fn too_large(error: &SseError) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(BodyError::TooLarge)) {
            return true;
        }
        cause = error.source();
    }
    matches!(error, SseError::Body(body) if matches!(body.downcast_ref(), Some(BodyError::TooLarge)))
}

/// Ends a stream with an error when more than `limit` bytes pass without a blank line.
fn bounded(
    bytes: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    limit: usize,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static {
    let mut event = 0_usize;
    let mut line_is_empty = true;
    bytes.map(move |chunk| {
        let chunk = chunk.map_err(|e| BodyError::Http(e.without_url()))?;
        for byte in &chunk {
            event += 1;
            match byte {
                b'\n' if line_is_empty => event = 0,
                b'\n' => line_is_empty = true,
                b'\r' => {}
                _ => line_is_empty = false,
            }
            if event > limit {
                return Err(BodyError::TooLarge);
            }
        }
        Ok(chunk)
    })
}
