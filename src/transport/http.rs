//! Streamable HTTP: the crate's own client below rmcp's session worker.
//!
//! The witness sits immediately before a request is executed. The client never sends anything
//! twice: no retries, no redirects, no re-initialisation; a broken answer stream may be resumed by
//! a GET, a bounded number of times. Status, challenge and `Retry-After` are kept beside any
//! JSON-RPC error.

mod answer;
mod endpoint;
mod token;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use futures::{StreamExt as _, stream::BoxStream};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, GetMeta as _, JsonRpcMessage,
        RequestId, ServerJsonRpcMessage,
    },
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use sse_stream::Sse;
use tokio_util::sync::CancellationToken;

pub(crate) use endpoint::Endpoint;
#[cfg(all(feature = "oauth", feature = "tls"))]
pub(crate) use endpoint::provide_cryptography;

use super::{Pulse, decode, server_error, witness::cell_of};
use crate::{
    evidence::{DispatchCell, Loss, WireFault, WireReport},
    spec::Tokens,
};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

/// Headers that the protocol or the message's framing sets, and a spec may not.
const RESERVED: [HeaderName; 6] = [
    SESSION_ID,
    LAST_EVENT_ID,
    header::ACCEPT,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
];

/// The most that is read of a body in which nothing matters, and how long it may take. It is read
/// so that the connection can be used again, and never shown.
const DRAINED_BODY: usize = 64 * 1024;
const DRAIN_LIMIT: Duration = Duration::from_millis(250);

/// How long the body of an error may take to come.
const ERROR_BODY: Duration = Duration::from_secs(5);

/// How long the server may take to confirm the end of a session.
const DELETE_LIMIT: Duration = Duration::from_secs(2);

type Failure = StreamableHttpError<HttpError>;

/// How long a session's first request waits, at most, for the answer to its standing stream. There
/// are servers that keep the head of that answer until they have something to say.
const STANDING_LIMIT: Duration = Duration::from_millis(300);

/// What the handshake's HTTP exchanges said, for the error of a session that does not start, and how
/// far its standing stream is.
#[derive(Default)]
pub(crate) struct Handshake {
    last: Mutex<Option<WireReport>>,
    /// The server assigned a session, so a standing stream follows.
    has_session: AtomicBool,
    /// The standing stream was answered, whatever the answer.
    standing: CancellationToken,
}

impl Handshake {
    /// Waits until the server has the standing stream, or will not have one. What it asks of its
    /// client goes there, and before that it has no way: a tool that asks somebody would wait for
    /// ever.
    pub(crate) async fn standing_stream(&self) {
        if self.has_session.load(Ordering::Acquire) {
            let _ = tokio::time::timeout(STANDING_LIMIT, self.standing.cancelled()).await;
        }
    }

    fn note(&self, report: &WireReport) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
    }

    pub(crate) fn last(&self) -> Option<WireReport> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Why an exchange has no answer. What matters is in the cell's report; this is the `source`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("the request was recalled before it was written")]
    Recalled,
    #[error("the session was over before the request was written")]
    SessionOver,
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("{0}")]
    Fault(WireFault),
}

#[derive(Clone)]
pub(crate) struct HttpClient {
    http: reqwest::Client,
    pulse: Arc<Pulse>,
    handshake: Arc<Handshake>,
    max_answer_bytes: usize,
    max_resumes: u32,
    tokens: Option<Tokens>,
    /// Whether a refused handshake may go out once more with another token.
    resend_after_401: bool,
    /// How long the handshake's `server/discover` may take before rmcp is told to fall back; `None`
    /// where there is nothing to fall back to.
    discover_limit: Option<Duration>,
}

/// The text of an error and its causes, without the URL, which may hold credentials.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn fault_of(error: reqwest::Error) -> WireFault {
    let error = error.without_url();
    if error.is_connect() {
        WireFault::ConnectFailed(chain(&error))
    } else {
        WireFault::ExchangeBroke(chain(&error))
    }
}

fn media_type_is(headers: &HeaderMap, expected: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .is_some_and(|v| v.trim().eq_ignore_ascii_case(expected))
}

fn text_header(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers
        .get(name)
        .and_then(|v| v.to_str().ok())
        .map(str::to_owned)
}

/// All challenges as one list: a server may send a header for each scheme.
fn challenges(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(header::WWW_AUTHENTICATE);
    let all: Vec<_> = all.iter().filter_map(|v| v.to_str().ok()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// A message as it stands in a body. Some servers put a byte order mark before it.
fn message_in(body: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    serde_json::from_slice(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body))
}

/// One POST: where its report goes, and what kind of message it carries.
struct Exchange {
    cell: Option<Arc<DispatchCell>>,
    request: Option<RequestId>,
    /// The handshake's `server/discover`, which a server may be too old for.
    may_fall_back: bool,
    is_tool_call: bool,
    is_handshake: bool,
    can_resume: bool,
    in_session: bool,
}

impl Exchange {
    fn of(message: &ClientJsonRpcMessage, in_session: bool, falls_back: bool) -> Self {
        let mut exchange = Self {
            cell: cell_of(message),
            request: None,
            may_fall_back: false,
            is_tool_call: false,
            is_handshake: false,
            can_resume: true,
            in_session,
        };
        if let JsonRpcMessage::Request(r) = message {
            exchange.request = Some(r.id.clone());
            // A later `server/discover` is a probe, and has a cell.
            let is_discover =
                exchange.cell.is_none() && matches!(r.request, ClientRequest::DiscoverRequest(_));
            exchange.may_fall_back = falls_back && is_discover;
            exchange.is_handshake =
                is_discover || matches!(r.request, ClientRequest::InitializeRequest(_));
            exchange.is_tool_call = matches!(r.request, ClientRequest::CallToolRequest(_));
            exchange.can_resume = r
                .request
                .get_meta()
                .protocol_version()
                .is_none_or(|v| v.has_initialize());
        }
        exchange
    }
}

impl HttpClient {
    fn report(&self, exchange: &Exchange, report: WireReport) {
        match &exchange.cell {
            Some(cell) => cell.report(report),
            None => self.handshake.note(&report),
        }
    }

    fn broken(&self, exchange: &Exchange, mut report: WireReport, fault: WireFault) -> Failure {
        report.fault = Some(fault.clone());
        self.report(exchange, report);
        StreamableHttpError::Client(HttpError::Fault(fault))
    }

    async fn body(&self, response: reqwest::Response) -> Result<Vec<u8>, WireFault> {
        let limit = self.max_answer_bytes;
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|e| WireFault::ExchangeBroke(chain(&e.without_url())))?;
            if body.len() + chunk.len() > limit {
                return Err(WireFault::AnswerTooLarge { limit });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    async fn post(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let falls_back = self.discover_limit.is_some();
        let exchange = Exchange::of(&message, session_id.is_some(), falls_back);
        let mut report = WireReport {
            in_session: exchange.in_session,
            ..WireReport::default()
        };
        let body = serde_json::to_vec(&message).map_err(|e| {
            self.broken(
                &exchange,
                report.clone(),
                WireFault::Unencodable(e.to_string()),
            )
        })?;
        let accept = "application/json, text/event-stream";
        let (resume_headers, resume_auth) = (headers.clone(), auth.clone());
        let token = self.token(exchange.cell.as_deref()).await;
        let token = token.map_err(|fault| match fault {
            Some(fault) => self.broken(&exchange, report.clone(), fault),
            None => StreamableHttpError::Client(HttpError::SessionOver),
        })?;
        let auth = token.as_ref().map(|t| t.secret().to_owned()).or(auth);
        let request = self
            .request(
                self.http.post(uri.as_ref()),
                accept,
                session_id.as_ref(),
                auth,
                headers,
            )
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .build()
            .map_err(|e| {
                let why = chain(&e.without_url());
                self.broken(&exchange, report.clone(), WireFault::Unencodable(why))
            })?;
        // A session that is over gets nothing more: its id is not used again, and what still waited
        // here goes out on the next session.
        if self.pulse.is_ended() {
            return Err(StreamableHttpError::Client(HttpError::SessionOver));
        }
        if exchange
            .cell
            .as_ref()
            .is_some_and(|cell| !cell.begin_write())
        {
            return Err(StreamableHttpError::Client(HttpError::Recalled));
        }
        let response = self
            .http
            .execute(request)
            .await
            .map_err(|e| self.broken(&exchange, report.clone(), fault_of(e)))?;
        if let Some(cell) = &exchange.cell {
            cell.finish_write();
        }
        let status = response.status();
        report.status = Some(status.as_u16());
        if !status.is_success() {
            self.tell_refusal(&mut report, token, response.headers());
            return self.refused(&exchange, report, response).await;
        }
        let accepted = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT);
        if accepted && exchange.request.is_some() {
            // No sign of life: whoever waits for the answer has heard nothing.
            self.report(&exchange, report);
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        self.pulse.hear();
        let new_session = text_header(response.headers(), SESSION_ID);
        if new_session.is_some() {
            self.handshake.has_session.store(true, Ordering::Release);
        }
        let Some(id) = exchange.request.clone() else {
            drain(response).await;
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        if media_type_is(response.headers(), "text/event-stream") {
            let resume = answer::Resume {
                client: self.clone(),
                request: id,
                uri,
                session_id,
                limit: if exchange.can_resume {
                    self.max_resumes
                } else {
                    0
                },
                headers: resume_headers,
                auth: resume_auth,
            };
            let stream = answer::stream(response, resume, exchange.cell.clone(), report);
            return Ok(StreamableHttpPostResponse::Sse(stream, new_session));
        }
        if !media_type_is(response.headers(), "application/json") {
            let fault = WireFault::BadAnswer("its content type is neither JSON nor SSE".into());
            return Err(self.broken(&exchange, report, fault));
        }
        let body = match self.body(response).await {
            Ok(body) => body,
            Err(fault) => return Err(self.broken(&exchange, report, fault)),
        };
        let short = exchange
            .is_tool_call
            .then(|| decode::tool_answer(&body))
            .flatten();
        let decoded = match short {
            Some((_, answer)) => Ok(answer),
            None => message_in(&body),
        };
        match decoded {
            Ok(answer) if answers(&answer, &id) => {
                self.report(&exchange, report);
                Ok(StreamableHttpPostResponse::Json(answer, new_session))
            }
            Ok(JsonRpcMessage::Error(error)) if error.id.is_none() => {
                self.report(&exchange, report);
                let error = ServerJsonRpcMessage::error(error.error, Some(id));
                Ok(StreamableHttpPostResponse::Json(error, new_session))
            }
            Ok(_) => {
                let fault = WireFault::BadAnswer("it answers another request".into());
                Err(self.broken(&exchange, report, fault))
            }
            Err(_) => {
                let fault = WireFault::BadAnswer("its body is not a message of MCP".into());
                Err(self.broken(&exchange, report, fault))
            }
        }
    }

    /// An answer whose status is not a success.
    async fn refused(
        &self,
        exchange: &Exchange,
        mut report: WireReport,
        response: reqwest::Response,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let status = response.status();
        report.retry_after = text_header(response.headers(), header::RETRY_AFTER);
        // The end of a session does not wait for a body that does not come.
        let error = tokio::time::timeout(ERROR_BODY, self.error_in(response)).await;
        let error = error.ok().flatten();
        // The callers of a session hear of its end before they hear of this answer.
        report.error = error.clone().map(server_error);
        self.report(exchange, report);
        if exchange.in_session {
            self.note_end(status);
        }
        let code = status.as_u16();
        let looks_legacy =
            exchange.may_fall_back && status.is_client_error() && !matches!(code, 401 | 403);
        match (error, &exchange.request) {
            // The server's error belongs to this exchange, whatever id it could put into it.
            (Some(error), Some(id)) if !exchange.may_fall_back || looks_legacy => {
                let error = ServerJsonRpcMessage::error(error, Some(id.clone()));
                Ok(StreamableHttpPostResponse::Json(error, None))
            }
            (None, Some(id)) if looks_legacy => Ok(not_known(id.clone())),
            _ => Err(StreamableHttpError::Client(HttpError::Status(code))),
        }
    }

    /// The JSON-RPC error that came with a status, if one did.
    async fn error_in(&self, response: reqwest::Response) -> Option<ErrorData> {
        if !media_type_is(response.headers(), "application/json") {
            drain(response).await;
            return None;
        }
        let body = self.body(response).await.unwrap_or_default();
        match message_in(&body) {
            Ok(JsonRpcMessage::Error(error)) => Some(error.error),
            _ => None,
        }
    }

    /// Ends the session if this status, sent to its id, says that it is over.
    fn note_end(&self, status: StatusCode) {
        if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            let status = Some(status.as_u16());
            self.pulse.end(Loss::Terminated { status });
        }
    }

    fn request(
        &self,
        request: reqwest::RequestBuilder,
        accept: &'static str,
        session_id: Option<&Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> reqwest::RequestBuilder {
        let mut all = HeaderMap::with_capacity(headers.len() + 4);
        all.insert(header::ACCEPT, HeaderValue::from_static(accept));
        all.extend(
            headers
                .into_iter()
                .filter(|(name, _)| !RESERVED.contains(name)),
        );
        if let Some(id) = session_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            all.insert(SESSION_ID, id);
        }
        if let Some(token) = auth
            && let Ok(mut value) = HeaderValue::try_from(format!("Bearer {token}"))
        {
            value.set_sensitive(true);
            all.insert(header::AUTHORIZATION, value);
        }
        request.headers(all)
    }

    /// Posts, and takes the silence of a server that may be too old for its answer.
    async fn post_within(
        &self,
        exchange: Exchange,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let may_fall_back = exchange.may_fall_back;
        let posting = self.post(uri, message, session_id, auth, headers);
        match (self.discover_limit, exchange.request) {
            (Some(limit), Some(id)) if may_fall_back => {
                let answering = async { as_json(posting.await?).await };
                match tokio::time::timeout(limit, answering).await {
                    Ok(answer) => answer,
                    Err(_) => Ok(not_known(id)),
                }
            }
            _ => posting.await,
        }
    }

    async fn open_stream(
        &self,
        uri: &str,
        session_id: Option<&Arc<str>>,
        last_event_id: Option<&str>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<reqwest::Response, Failure> {
        if self.pulse.is_ended() {
            return Err(StreamableHttpError::Client(HttpError::SessionOver));
        }
        let token = self.token(None).await.map_err(|fault| {
            StreamableHttpError::Client(fault.map_or(HttpError::SessionOver, HttpError::Fault))
        })?;
        let auth = token.as_ref().map(|t| t.secret().to_owned()).or(auth);
        let mut request = self.request(
            self.http.get(uri),
            "text/event-stream",
            session_id,
            auth,
            headers,
        );
        if let Some(id) = last_event_id {
            request = request.header(LAST_EVENT_ID, id);
        }
        let response = request
            .send()
            .await
            .map_err(|e| StreamableHttpError::Client(HttpError::Fault(fault_of(e))))?;
        let status = response.status();
        if status.is_success() && media_type_is(response.headers(), "text/event-stream") {
            self.pulse.hear();
            return Ok(response);
        }
        if session_id.is_some() {
            self.note_end(status);
        }
        let mut report = WireReport {
            status: Some(status.as_u16()),
            ..WireReport::default()
        };
        self.tell_refusal(&mut report, token, response.headers());
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

/// Whether `answer` is an answer to the request `id`.
fn answers(answer: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match answer {
        JsonRpcMessage::Response(r) => same_id(id, &r.id),
        JsonRpcMessage::Error(e) => e.id.as_ref().is_some_and(|e| same_id(id, e)),
        _ => false,
    }
}

/// Some servers answer a numeric id with the same number as a string.
fn same_id(asked: &RequestId, answered: &RequestId) -> bool {
    match (asked, answered) {
        (RequestId::Number(n), RequestId::String(s)) => s.parse() == Ok(*n),
        _ => asked == answered,
    }
}

/// What an older server would have answered to `server/discover`.
fn not_known(id: RequestId) -> StreamableHttpPostResponse {
    let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "made up by the client", None);
    StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, Some(id)), None)
}

async fn drain(response: reqwest::Response) {
    if media_type_is(response.headers(), "text/event-stream") {
        // A stream may stay open for as long as the server likes.
        return;
    }
    let draining = async {
        let mut chunks = response.bytes_stream();
        let mut read = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            read += chunk.len();
            if read > DRAINED_BODY {
                return;
            }
        }
    };
    // Late, the connection is closed instead of being used again.
    let _ = tokio::time::timeout(DRAIN_LIMIT, draining).await;
}

/// Waits for the answer where it comes as a stream.
async fn as_json(
    response: StreamableHttpPostResponse,
) -> Result<StreamableHttpPostResponse, Failure> {
    let StreamableHttpPostResponse::Sse(mut events, session_id) = response else {
        return Ok(response);
    };
    while let Some(Ok(event)) = events.next().await {
        let message = event.data.as_deref().map(str::as_bytes).map(message_in);
        if let Some(Ok(answer @ (JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_)))) = message
        {
            return Ok(StreamableHttpPostResponse::Json(answer, session_id));
        }
    }
    let fault = WireFault::StreamEnded { resumes: 0 };
    Err(StreamableHttpError::Client(HttpError::Fault(fault)))
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let exchange = Exchange::of(&message, false, true);
        if !exchange.is_handshake || self.tokens.is_none() {
            return self
                .post_within(
                    exchange,
                    uri,
                    message,
                    session_id,
                    auth_header,
                    custom_headers,
                )
                .await;
        }
        // The wait for a token is not the server's: had here, it is there for the post.
        if let Err(fault) = self.token(None).await {
            return Err(match fault {
                Some(fault) => self.broken(&exchange, WireReport::default(), fault),
                None => StreamableHttpError::Client(HttpError::SessionOver),
            });
        }
        let posting = |message| {
            let (exchange, uri) = (Exchange::of(&message, false, true), Arc::clone(&uri));
            let (session_id, headers) = (session_id.clone(), custom_headers.clone());
            self.post_within(
                exchange,
                uri,
                message,
                session_id,
                auth_header.clone(),
                headers,
            )
        };
        let answer = posting(message.clone()).await;
        match self.renewed_after_the_handshake().await {
            true => posting(message).await,
            false => answer,
        }
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        _: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        // The connection's own limits hold, whatever rmcp's are.
        self.post_message(uri, message, session_id, auth_header, custom_headers)
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        if matches!(self.pulse.loss(), Some(Loss::Terminated { .. })) {
            // The server has said that it does not know the session; its id is not used again.
            return Ok(());
        }
        let at_hand = self.tokens.as_ref().and_then(|tokens| tokens.0.at_hand());
        let auth_header = at_hand.map(|t| t.secret().to_owned()).or(auth_header);
        let request = self
            .request(
                self.http.delete(uri.as_ref()),
                "*/*",
                Some(&session_id),
                auth_header,
                custom_headers,
            )
            .send();
        // Whatever the server says, or does not say, the session is over.
        let _ = tokio::time::timeout(DELETE_LIMIT, request).await;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let response = self
            .open_stream(
                &uri,
                session_id.as_ref(),
                last_event_id.as_deref(),
                auth_header,
                custom_headers,
            )
            .await;
        self.handshake.standing.cancel();
        Ok(answer::standing(
            response?,
            Arc::clone(&self.pulse),
            self.max_answer_bytes,
        ))
    }
}
