//! How an answer is read: its head, its body, and whose answer it is.

use std::time::Duration;

use ::http::{HeaderMap, HeaderName, header};
use futures::StreamExt as _;
use rmcp::{
    model::{ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse},
};

use super::{Failure, HttpError, exchange::Exchange};
use crate::{
    evidence::{RawResult, WireFault},
    transport::decode::{Answer, LARGE, Wanted},
};

/// The most that is read of a body in which nothing matters, and how long it may take. It is read
/// so that the connection can be used again, and never shown.
const DRAINED_BODY: usize = 64 * 1024;
const DRAIN_LIMIT: Duration = Duration::from_millis(250);

/// The text of an error and its causes, without the URL, which may hold credentials.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
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

pub(super) fn fault_of(error: reqwest::Error) -> WireFault {
    let error = error.without_url();
    if error.is_connect() {
        WireFault::ConnectFailed(chain(&error))
    } else {
        WireFault::ExchangeBroke(chain(&error))
    }
}

pub(super) fn media_type_is(headers: &HeaderMap, expected: &str) -> bool {
    headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split(';').next())
        .is_some_and(|v| v.trim().eq_ignore_ascii_case(expected))
}

pub(super) fn text_header(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    headers
        .get(name)
        .and_then(|v| v.to_str().ok())
        .map(str::to_owned)
}

/// All challenges as one list: a server may send a header for each scheme.
pub(super) fn challenges(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(header::WWW_AUTHENTICATE);
    let all: Vec<_> = all.iter().filter_map(|v| v.to_str().ok()).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// A message as it stands in a body. Some servers put a byte order mark before it.
pub(super) fn message_in(body: &[u8]) -> serde_json::Result<ServerJsonRpcMessage> {
    serde_json::from_slice(body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body))
}

/// The message in the body of an answer, by the short way if there is one. A tool's result that is large
/// stays as it came, in the cell, unless whoever waits for it may not have the cell.
pub(super) fn as_it_came(
    body: Vec<u8>,
    exchange: &Exchange,
) -> serde_json::Result<ServerJsonRpcMessage> {
    match String::from_utf8(body) {
        Ok(text) => as_text_came(text, exchange),
        Err(error) => message_in(error.as_bytes()),
    }
}

/// The same of what is text already.
pub(super) fn as_text_came(
    text: String,
    exchange: &Exchange,
) -> serde_json::Result<ServerJsonRpcMessage> {
    in_short(text, exchange).or_else(|text| message_in(text.as_bytes()))
}

/// Decodes by the short way, or gives the text back.
fn in_short(text: String, exchange: &Exchange) -> Result<ServerJsonRpcMessage, String> {
    let Some(answer) = Answer::walk(&text) else {
        return Err(text);
    };
    if text.len() >= LARGE
        && !exchange.outlives
        && let (Wanted::Tool, Some(cell)) = (exchange.wanted, &exchange.cell)
        && exchange.asked(answer.id)
        && let Some(left) = answer.left_raw(&text)
    {
        let stub = left.stub;
        cell.keep(RawResult::new(text, left.result, left.structured));
        return Ok(stub);
    }
    answer.decode(exchange.wanted, answer.id).ok_or(text)
}

/// Whether `answer` is an answer to the request `id`.
pub(super) fn answers(answer: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match answer {
        JsonRpcMessage::Response(r) => same_id(id, &r.id),
        JsonRpcMessage::Error(e) => e.id.as_ref().is_some_and(|e| same_id(id, e)),
        _ => false,
    }
}

/// Some servers answer a numeric id with the same number as a string.
pub(super) fn same_id(asked: &RequestId, answered: &RequestId) -> bool {
    match (asked, answered) {
        (RequestId::Number(n), RequestId::String(s)) => s.parse() == Ok(*n),
        _ => asked == answered,
    }
}

/// What an older server would have answered to `server/discover`.
pub(super) fn not_known(id: RequestId) -> StreamableHttpPostResponse {
    let error = ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "made up by the client", None);
    StreamableHttpPostResponse::Json(ServerJsonRpcMessage::error(error, Some(id)), None)
}

pub(super) async fn drain(response: reqwest::Response) {
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
pub(super) async fn as_json(
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
