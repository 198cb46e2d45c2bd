//! Streamable HTTP: the crate's own client below rmcp's session worker.
//!
//! The witness sits immediately before a request is executed. The client never sends anything
//! twice: no retries, no redirects, no re-initialisation; a broken answer stream may be resumed by
//! a GET, a bounded number of times. Status, challenge and `Retry-After` are kept beside any
//! JSON-RPC error.

mod answer;
mod endpoint;
mod exchange;
mod handshake;
mod lane;
mod late;
mod reading;
mod token;
mod worker;

use std::{collections::HashMap, sync::Arc, time::Duration};

use ::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use futures::StreamExt as _;
use rmcp::{
    model::{ClientJsonRpcMessage, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse},
};

pub(crate) use endpoint::Endpoint;
#[cfg(all(feature = "oauth", feature = "tls"))]
pub(crate) use endpoint::provide_cryptography;
use exchange::Exchange;
pub(crate) use handshake::Handshake;
pub(crate) use lane::Posts;
use reading::{
    answers, as_it_came, chain, drain, fault_of, media_type_is, message_in, not_known, text_header,
};

use super::{Pulse, server_error};
use crate::{
    credentials::AccessToken,
    evidence::{Loss, WireFault, WireReport},
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

/// The kinds of answers to a POST.
const ACCEPT_ANSWER: &str = "application/json, text/event-stream";

/// The most room that is made for a body before it has come.
const ROOM: usize = 1024 * 1024;

/// How long the body of an error may take to come.
const ERROR_BODY: Duration = Duration::from_secs(5);

type Failure = StreamableHttpError<HttpError>;

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

/// The value of the header that shows a token.
fn authorization(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
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
        // A server's word for the length of its body is believed up to here.
        let length = response.content_length().unwrap_or_default();
        let mut body = Vec::with_capacity(usize::try_from(length).map_or(0, |n| n.min(ROOM)));
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
        let body =
            serde_json::to_vec(&message).map_err(|e| self.unencodable(&exchange, e.to_string()))?;
        let (resume_headers, resume_auth) = (headers.clone(), auth.clone());
        let token = self.token_for(&exchange).await?;
        let auth = token.as_ref().map(|t| t.secret().to_owned()).or(auth);
        let request = self
            .request(
                self.http.post(uri.as_ref()),
                ACCEPT_ANSWER,
                session_id.as_ref(),
                auth,
                headers,
            )
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .build()
            .map_err(|e| self.unencodable(&exchange, chain(&e.without_url())))?;
        self.exchange(&exchange, request, token, |request| answer::Resume {
            client: self.clone(),
            request,
            uri,
            session_id,
            headers: resume_headers,
            auth: resume_auth,
        })
        .await
    }

    /// A message that was not sent because it cannot be written.
    fn unencodable(&self, exchange: &Exchange, why: String) -> Failure {
        self.broken(exchange, exchange.report(), WireFault::Unencodable(why))
    }

    /// The token to send, or why nothing is sent.
    async fn token_for(&self, exchange: &Exchange) -> Result<Option<AccessToken>, Failure> {
        let token = self.token(exchange.cell.as_deref()).await;
        token.map_err(|fault| match fault {
            Some(fault) => self.broken(exchange, exchange.report(), fault),
            None => StreamableHttpError::Client(HttpError::SessionOver),
        })
    }

    /// Sends one request, once, and reads the head of its answer, and the body where that is one message.
    async fn exchange(
        &self,
        exchange: &Exchange,
        request: reqwest::Request,
        token: Option<AccessToken>,
        resume: impl FnOnce(RequestId) -> answer::Resume,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let mut report = exchange.report();
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
            .map_err(|e| self.broken(exchange, report.clone(), fault_of(e)))?;
        if let Some(cell) = &exchange.cell {
            cell.finish_write();
        }
        let status = response.status();
        report.status = Some(status.as_u16());
        if !status.is_success() {
            self.tell_refusal(&mut report, token, response.headers());
            return self.refused(exchange, report, response).await;
        }
        let accepted = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT);
        if accepted && exchange.request.is_some() {
            // No sign of life: whoever waits for the answer has heard nothing.
            self.report(exchange, report);
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        self.pulse.hear();
        let new_session = text_header(response.headers(), SESSION_ID);
        if let Some(session_id) = new_session.as_deref().filter(|_| exchange.is_handshake) {
            self.handshake.assign(session_id);
        }
        let Some(id) = exchange.request.clone() else {
            drain(response).await;
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        if media_type_is(response.headers(), "text/event-stream") {
            let stream = answer::stream(response, resume(id), exchange, report);
            return Ok(StreamableHttpPostResponse::Sse(stream, new_session));
        }
        if !media_type_is(response.headers(), "application/json") {
            let fault = WireFault::BadAnswer("its content type is neither JSON nor SSE".into());
            return Err(self.broken(exchange, report, fault));
        }
        let body = match self.body(response).await {
            Ok(body) => body,
            Err(fault) => return Err(self.broken(exchange, report, fault)),
        };
        let decoded = as_it_came(body, exchange);
        match decoded {
            Ok(answer) if answers(&answer, &id) => {
                self.report(exchange, report);
                Ok(StreamableHttpPostResponse::Json(answer, new_session))
            }
            Ok(JsonRpcMessage::Error(error)) if error.id.is_none() => {
                self.report(exchange, report);
                let error = ServerJsonRpcMessage::error(error.error, Some(id));
                Ok(StreamableHttpPostResponse::Json(error, new_session))
            }
            Ok(_) => {
                let fault = WireFault::BadAnswer("it answers another request".into());
                Err(self.broken(exchange, report, fault))
            }
            Err(_) => {
                let fault = WireFault::BadAnswer("its body is not a message of MCP".into());
                Err(self.broken(exchange, report, fault))
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
        if let Some(value) = auth.as_deref().and_then(authorization) {
            all.insert(header::AUTHORIZATION, value);
        }
        request.headers(all)
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
