//! Any head and any body as the answer to a request, and what is made of it.

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use ::http::{HeaderName, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use futures::StreamExt as _;
use rmcp::{
    model::{JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse},
};

use super::{Handshake, HttpClient, HttpError, Pulse, answer, exchange::Exchange};
use crate::{operation::Generation, transport::decode::Wanted};

/// The request that is answered.
const ASKED: RequestId = RequestId::Number(7);

/// The first byte says what was asked, the second where the limit is and how the body is cut. Then come a
/// head as it stands on the wire, or nearly so, and behind an empty line the body.
pub(crate) fn exchange(bytes: &[u8]) {
    let [asked, limit, rest @ ..] = bytes else {
        return;
    };
    let (head, body) = match rest.windows(4).position(|four| four == b"\r\n\r\n") {
        Some(end) => (&rest[..end], &rest[end + 4..]),
        None => (rest, &[][..]),
    };
    let limit_bytes = [16, 200, 100_000][usize::from(limit & 3) % 3];
    let size = 1 + usize::from(limit >> 2);
    let exchange = Exchange {
        cell: None,
        request: Some(ASKED),
        may_fall_back: asked & 1 == 1,
        wanted: [Wanted::Tool, Wanted::Tools, Wanted::Resource, Wanted::Other]
            [usize::from(asked >> 1) % 4],
        is_handshake: false,
        can_resume: true,
        in_session: asked & 16 == 16,
        outlives: false,
    };
    let client = client(limit_bytes);
    // Nothing is asked for in here: the client may not resume.
    let resume = |request| answer::Resume {
        client: client.clone(),
        request,
        uri: Arc::from("http://localhost/"),
        session_id: None,
        headers: HashMap::new(),
        auth: None,
    };
    let response = response(head, body, size);
    let status = response.status();
    RUNTIME.with(|runtime| {
        runtime.block_on(async {
            let made = client
                .answered(&exchange, exchange.report(), response, None, resume)
                .await;
            judge(made, status, body, limit_bytes).await;
        });
    });
}

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime can be built");
    static HTTP: reqwest::Client = super::endpoint::client(false).expect("a client can be built");
}

fn client(max_answer_bytes: usize) -> HttpClient {
    HttpClient {
        http: HTTP.with(Clone::clone),
        pulse: Arc::new(Pulse::new(Generation(1), Arc::new(|_| {}))),
        handshake: Arc::new(Handshake::default()),
        max_answer_bytes,
        max_resumes: 0,
        tokens: None,
        resend_after_401: false,
        discover_limit: None,
    }
}

fn response(head: &[u8], body: &[u8], size: usize) -> reqwest::Response {
    let pieces: Vec<_> = body
        .chunks(size)
        .map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece)))
        .collect();
    let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    let mut response = Response::new(body);
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = lines.next().and_then(|line| str::from_utf8(line).ok());
    let status = status.and_then(|line| line.split(' ').nth(1)?.trim().parse().ok());
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    *response.status_mut() = status.unwrap_or(StatusCode::OK);
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            response.headers_mut().append(name, value);
        }
    }
    response.into()
}

/// Some servers put a number in quotes.
fn is_to_what_was_asked(answer: &ServerJsonRpcMessage) -> bool {
    let id = match answer {
        JsonRpcMessage::Response(response) => Some(&response.id),
        JsonRpcMessage::Error(error) => error.id.as_ref(),
        _ => None,
    };
    match id {
        Some(RequestId::String(text)) => text.parse() == Ok(7),
        id => id == Some(&ASKED),
    }
}

type Made = Result<StreamableHttpPostResponse, StreamableHttpError<HttpError>>;

/// What is taken for an answer is one, to what was asked.
async fn judge(made: Made, status: StatusCode, body: &[u8], limit: usize) {
    match made {
        Ok(StreamableHttpPostResponse::Json(answer, session)) => {
            assert!(is_to_what_was_asked(&answer), "{answer:?}");
            if !status.is_success() {
                assert!(matches!(answer, JsonRpcMessage::Error(_)), "{answer:?}");
                assert!(session.is_none());
                return;
            }
            assert!(body.len() <= limit);
            let text = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
            let rmcps = serde_json::from_slice::<ServerJsonRpcMessage>(text);
            let mut rmcps = rmcps.expect("what is taken for a message is one for rmcp");
            if let JsonRpcMessage::Error(error) = &mut rmcps {
                error.id.get_or_insert(ASKED);
            }
            // An id in quotes is taken for the number, and answered with what stands there.
            assert_eq!(format!("{answer:?}"), format!("{rmcps:?}"));
        }
        Ok(StreamableHttpPostResponse::Sse(mut events, _)) => {
            assert!(status.is_success());
            while let Some(event) = events.next().await {
                let event = event.expect("what is broken ends the stream");
                assert!(event.id.is_none() && event.retry.is_none());
                let data = event.data.unwrap_or_default();
                assert!(data.len() <= limit, "an event of {} bytes", data.len());
                let message = serde_json::from_str::<ServerJsonRpcMessage>(&data);
                if let Ok(message @ (JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))) =
                    message
                {
                    assert!(is_to_what_was_asked(&message), "{message:?}");
                }
            }
        }
        Ok(StreamableHttpPostResponse::Accepted) => {
            assert!(matches!(
                status,
                StatusCode::ACCEPTED | StatusCode::NO_CONTENT
            ));
        }
        Ok(other) => panic!("{other:?} is none of what a POST comes to"),
        Err(_) => {}
    }
}
