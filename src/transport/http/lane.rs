//! The lane over HTTP: each tool call is an exchange of its own, in a task that gives its answer to whoever
//! waits.
//!
//! What else there is stays with rmcp's session worker: the handshake, lists, standing streams, what the
//! server asks. In the newer revisions it also copies arguments into headers, where a tool's schema asks
//! for that. So calls of such tools, and of those whose names no header carries as they are, go through
//! it as well.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use ::http::{HeaderName, HeaderValue, header};
use futures::{StreamExt as _, stream::BoxStream};
use rmcp::{
    RoleClient, ServiceError,
    model::{
        ClientJsonRpcMessage, ClientRequest, GetExtensions as _, JsonRpcMessage, ListToolsResult,
        ProtocolVersion, RequestId, ServerJsonRpcMessage,
    },
    transport::{
        DynamicTransportError,
        streamable_http_client::{SseError, StreamableHttpPostResponse},
    },
};
use serde_json::Value;
use sse_stream::Sse;
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    ACCEPT_ANSWER, Endpoint, Failure, HttpClient, PROTOCOL_VERSION, answer::Resume, authorization,
    endpoint::HttpTransport, exchange::Exchange, reading::as_text_came,
};
use crate::{
    evidence::DispatchCell,
    transport::{
        lane::{Closed, Lane, OnLane, Outbox, not_answered},
        ordered::{Message, Outgoing},
        witness::OnStreamOf,
    },
};

/// Where the ids of the lane begin. rmcp counts its own from zero, and sends few on a session with a
/// lane. It fits into 32 bits, which is what some servers have for an id.
pub(super) const FIRST_ID: i64 = 1 << 30;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The member of a schema by which a tool asks for an argument in a header.
const IN_A_HEADER: &str = "x-mcp-header";

/// What a value begins with that is not the one it stands for.
const ENCODED: &str = "=?base64?";

/// How long a server may take to take a notification.
const NOTIFICATION_LIMIT: Duration = Duration::from_secs(10);

/// How long what follows an answer is read, so that the connection can be used again.
const DRAIN: Duration = Duration::from_millis(50);

/// How many messages of the server's may wait for rmcp before their streams are not read any further.
const HEARD: usize = 16;

/// What puts the lane's requests into exchanges.
#[derive(Clone)]
pub(crate) struct Posts(Arc<Shared>);

struct Shared {
    client: HttpClient,
    runtime: Handle,
    lane: OnceLock<Weak<Lane>>,
    opened: OnceLock<Opened>,
    /// Tools whose arguments go into headers.
    by_header: Mutex<HashSet<String>>,
    /// For what comes on the streams of answers, beside the answers.
    heard: mpsc::Sender<OnStream>,
}

/// What came on the stream of an answer.
pub(super) enum OnStream {
    /// What rmcp is to hear.
    Beside(ServerJsonRpcMessage),
    /// The answer to the request of this number, behind what came before it.
    Answer(i64, ServerJsonRpcMessage),
}

/// What is the same in all requests of a session.
struct Opened {
    /// A request without a body.
    post: reqwest::Request,
    uri: Arc<str>,
    session_id: Option<Arc<str>>,
    headers: HashMap<HeaderName, HeaderValue>,
    auth: Option<String>,
    /// Its revision has methods and names in headers, and takes the end of an exchange for a cancel.
    newer: bool,
}

impl Posts {
    /// What puts requests into exchanges, the lane that it serves, and what it hears for rmcp.
    pub(super) fn new(client: HttpClient) -> (Self, Arc<Lane>, mpsc::Receiver<OnStream>) {
        let (heard, hears) = mpsc::channel(HEARD);
        let posts = Self(Arc::new(Shared {
            client,
            runtime: Handle::current(),
            lane: OnceLock::new(),
            opened: OnceLock::new(),
            by_header: Mutex::default(),
            heard,
        }));
        let lane = Arc::new(Lane::new(Arc::new(posts.clone()), FIRST_ID));
        let _ = posts.0.lane.set(Arc::downgrade(&lane));
        (posts, lane, hears)
    }

    /// The handshake is over. Before that, and where this fails, all goes through rmcp.
    pub(crate) fn begin(&self, endpoint: &Endpoint, revision: &ProtocolVersion) {
        let client = &self.0.client;
        let mut headers = endpoint.headers.clone();
        if let Ok(revision) = HeaderValue::from_str(revision.as_str()) {
            headers.insert(PROTOCOL_VERSION, revision);
        }
        // The newer revisions have no sessions.
        let session_id = client.handshake.session_id();
        let session_id = session_id.filter(|_| revision.has_initialize());
        let auth = endpoint.bearer.clone();
        let post = client
            .request(
                client.http.post(endpoint.url.as_ref()),
                ACCEPT_ANSWER,
                session_id.as_ref(),
                auth.clone(),
                headers.clone(),
            )
            .header(header::CONTENT_TYPE, "application/json")
            .build();
        if let Ok(post) = post {
            let _ = self.0.opened.set(Opened {
                post,
                uri: Arc::clone(&endpoint.url),
                session_id,
                headers,
                auth,
                newer: !revision.has_initialize(),
            });
        }
    }

    /// Notes which tools have arguments that go into headers. A tool that had some is one that may.
    pub(super) fn note_tools(&self, list: &ListToolsResult) {
        let asks = list.tools.iter().filter(|tool| {
            let mut schema = tool.input_schema.iter();
            schema.any(|(key, value)| key == IN_A_HEADER || asks_for_headers(value))
        });
        let names = asks.map(|tool| tool.name.to_string());
        self.0.by_header().extend(names);
    }

    fn hand_over(&self, outgoing: Outgoing) -> Result<(), Closed> {
        let Outgoing { message, cell } = outgoing;
        let shared = Arc::clone(&self.0);
        let Some(opened) = self.0.opened.get() else {
            return Err(Closed);
        };
        if self.0.client.pulse.is_ended() {
            return Err(Closed);
        }
        match message {
            Message::OnLane(request) => {
                let number = request.number;
                let task = self.0.runtime.spawn(shared.answer(request, cell));
                if let Some(lane) = self.0.lane() {
                    lane.runs(number, task.abort_handle());
                }
            }
            // The newer revisions take the end of an exchange for a cancel, which is all there is to tell.
            Message::Whole { .. } if opened.newer => {}
            Message::Whole { message, .. } => {
                self.0.runtime.spawn(shared.tell(*message));
            }
        }
        Ok(())
    }

    /// Whether the handshake is over.
    pub(super) fn has_begun(&self) -> bool {
        self.0.opened.get().is_some()
    }

    /// Gives an answer to whoever waits for it.
    pub(super) fn settle(&self, number: i64, answer: ServerJsonRpcMessage) {
        self.0.settle(number, answer);
    }
}

impl Outbox for Posts {
    fn put(&self, outgoing: Outgoing) -> Result<(), Closed> {
        self.hand_over(outgoing)
    }

    fn leave(&self, outgoing: Outgoing) -> Result<(), Closed> {
        self.hand_over(outgoing)
    }

    fn takes(&self, request: &ClientRequest) -> bool {
        let (Some(opened), ClientRequest::CallToolRequest(call)) = (self.0.opened.get(), request)
        else {
            return false;
        };
        let name = &*call.params.name;
        // What says something of itself may name another revision, by which rmcp chooses the headers.
        !opened.newer
            || (call.params.meta.is_none() && is_plain(name) && !self.0.by_header().contains(name))
    }

    fn takes_all(&self) -> bool {
        false
    }
}

impl Shared {
    fn by_header(&self) -> MutexGuard<'_, HashSet<String>> {
        self.by_header
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self) -> Option<Arc<Lane>> {
        self.lane.get().and_then(Weak::upgrade)
    }

    /// Makes one exchange and gives its answer to whoever waits.
    async fn answer(self: Arc<Self>, request: OnLane, cell: Option<Arc<DispatchCell>>) {
        let Some(opened) = self.opened.get() else {
            return;
        };
        let number = request.number;
        let in_session = opened.session_id.is_some();
        let exchange = Exchange::on_lane(number, cell, in_session, !opened.newer);
        let posted = self.post(opened, &request, &exchange).await;
        drop(request);
        match posted {
            Ok(StreamableHttpPostResponse::Json(answer, _)) => self.settle(number, answer),
            Ok(StreamableHttpPostResponse::Sse(events, _)) => self.read(events, &exchange).await,
            // Its answer comes by the standing stream, if it does.
            Ok(_) => {}
            Err(failure) => {
                let error = DynamicTransportError::new::<HttpTransport, RoleClient>(failure);
                self.fail(number, ServiceError::TransportSend(error));
            }
        }
    }

    async fn post(
        &self,
        opened: &Opened,
        request: &OnLane,
        exchange: &Exchange,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let client = &self.client;
        let unencodable = |why| client.unencodable(exchange, why);
        let mut body = Vec::new();
        request
            .write(&mut body)
            .map_err(|e| unencodable(e.to_string()))?;
        let token = client.token_for(exchange).await?;
        let post = opened.post.try_clone();
        let mut post = post.expect("a request without a body can be cloned");
        let headers = post.headers_mut();
        if let (true, ClientRequest::CallToolRequest(call)) = (opened.newer, &*request.request) {
            let name = HeaderValue::from_str(&call.params.name);
            headers.insert(METHOD, HeaderValue::from_static("tools/call"));
            headers.insert(NAME, name.map_err(|e| unencodable(e.to_string()))?);
        }
        if let Some(token) = token.as_ref().and_then(|t| authorization(t.secret())) {
            headers.insert(header::AUTHORIZATION, token);
        }
        *post.body_mut() = Some(body.into());
        let resume = |request| Resume {
            client: client.clone(),
            request,
            uri: Arc::clone(&opened.uri),
            session_id: opened.session_id.clone(),
            headers: opened.headers.clone(),
            auth: opened.auth.clone(),
        };
        client.exchange(exchange, post, token, resume).await
    }

    fn settle(&self, number: i64, answer: ServerJsonRpcMessage) {
        let Some(lane) = self.lane() else { return };
        match answer {
            // Where nobody waits any more, nobody needs to hear of it.
            JsonRpcMessage::Response(response) => {
                let _ = lane.settle(number, Ok(Box::new(response.result)));
            }
            JsonRpcMessage::Error(error) => {
                let _ = lane.settle(number, Err(error.error));
            }
            _ => lane.fail(number, not_answered()),
        }
    }

    fn fail(&self, number: i64, error: ServiceError) {
        if let Some(lane) = self.lane() {
            lane.fail(number, error);
        }
    }

    /// Reads the stream of an answer, until the answer. What came before it is heard before it.
    async fn read(
        &self,
        mut events: BoxStream<'static, Result<Sse, SseError>>,
        exchange: &Exchange,
    ) {
        let Some(RequestId::Number(number)) = exchange.request else {
            return;
        };
        let mut beside = false;
        while let Some(Ok(event)) = events.next().await {
            let Some(message) = event.data.map(|text| as_text_came(text, exchange)) else {
                continue;
            };
            match message {
                Ok(answer @ (JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_))) => {
                    if beside {
                        // Where rmcp has stopped, the session is over.
                        let _ = self.heard.send(OnStream::Answer(number, answer)).await;
                    } else {
                        self.settle(number, answer);
                    }
                    let rest = async { while events.next().await.is_some() {} };
                    // Late, the connection is closed instead of being used again.
                    let _ = tokio::time::timeout(DRAIN, rest).await;
                    return;
                }
                Ok(mut message) => {
                    if let JsonRpcMessage::Request(request) = &mut message {
                        let on = OnStreamOf(RequestId::Number(number));
                        request.request.extensions_mut().insert(on);
                    }
                    beside = true;
                    let _ = self.heard.send(OnStream::Beside(message)).await;
                }
                Err(_) => {}
            }
        }
        self.fail(number, not_answered());
    }

    /// Posts a notification. There is nobody to tell how it went.
    async fn tell(self: Arc<Self>, notification: ClientJsonRpcMessage) {
        let Some(opened) = self.opened.get() else {
            return;
        };
        let posting = self.client.post(
            Arc::clone(&opened.uri),
            notification,
            opened.session_id.clone(),
            opened.auth.clone(),
            opened.headers.clone(),
        );
        tokio::select! {
            biased;
            () = self.client.pulse.ended() => {}
            _ = tokio::time::timeout(NOTIFICATION_LIMIT, posting) => {}
        }
    }
}

/// Whether a header can have this value as it is.
fn is_plain(value: &str) -> bool {
    let printable = value.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    printable && value.trim() == value && !value.starts_with(ENCODED)
}

/// Whether something in a schema asks for an argument in a header.
fn asks_for_headers(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => map
            .iter()
            .any(|(key, value)| key == IN_A_HEADER || asks_for_headers(value)),
        Value::Array(items) => items.iter().any(asks_for_headers),
        _ => false,
    }
}
