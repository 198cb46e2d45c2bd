//! Where a connection's requests go: the endpoint, checked, and a transport for each session.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ::http::{HeaderName, HeaderValue};
use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage, ServerJsonRpcMessage,
        ServerResult,
    },
    transport::{
        Transport,
        common::client_side_sse::NeverRetry,
        streamable_http_client::{
            StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
        },
    },
};

use tokio::sync::mpsc;

use super::{
    Handshake, HttpClient, PROTOCOL_VERSION, Posts, Pulse, RESERVED,
    lane::{FIRST_ID, OnStream},
    reading::chain,
};
use crate::{
    event::Dropped,
    evidence::Loss,
    spec::{HttpSpec, Limits, SpecError, Tokens},
    telemetry::FarEnd,
    transport::{frame::number_of, lane::Lane, witness::Anchor},
};

type Worker = StreamableHttpClientTransport<HttpClient>;

/// What the spec says, in the types that are sent.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: reqwest::Client,
    pub(super) url: Arc<str>,
    pub(super) headers: HashMap<HeaderName, HeaderValue>,
    pub(super) bearer: Option<String>,
    tokens: Option<Tokens>,
    resend_after_401: bool,
}

/// How many standing requests may wait for the head of their answers without being in the way of
/// operations.
const STANDING: usize = 64;

impl Endpoint {
    /// Checks the spec and builds the client that all sessions of the connection share.
    pub(crate) fn new(spec: &HttpSpec) -> Result<Self, SpecError> {
        let url = reqwest::Url::parse(&spec.url).map_err(|e| SpecError::Http {
            what: "url",
            why: e.to_string(),
        })?;
        // The parser takes the first part of the path for a host that is missing.
        let after_scheme = spec.url.split_once("://").map(|(_, rest)| rest);
        if after_scheme.is_none_or(|rest| rest.starts_with(['/', '\\', '?', '#'])) {
            return Err(SpecError::Http {
                what: "url",
                why: "it names no host".into(),
            });
        }
        if cfg!(not(feature = "tls")) && url.scheme() == "https" {
            return Err(SpecError::NotCompiled { feature: "tls" });
        }
        let mut headers = HashMap::new();
        for (name, value) in &spec.headers {
            let bad = |why: &str| SpecError::Http {
                what: "header",
                why: format!("{name:?} {why}"),
            };
            let name = HeaderName::try_from(name).map_err(|_| bad("is no header name"))?;
            if RESERVED.contains(&name) || name == PROTOCOL_VERSION {
                return Err(bad("is set by the protocol"));
            }
            let mut value =
                HeaderValue::try_from(value).map_err(|_| bad("has a value that cannot be sent"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        if let Some(token) = &spec.bearer
            && HeaderValue::try_from(format!("Bearer {token}")).is_err()
        {
            let why = "it holds characters that no header can carry".into();
            return Err(SpecError::Http {
                what: "bearer token",
                why,
            });
        }
        Ok(Self {
            client: client(spec.http2_prior_knowledge)?,
            url: Arc::from(url.as_str()),
            headers,
            bearer: spec.bearer.clone(),
            tokens: spec.tokens.clone(),
            resend_after_401: spec.resend_after_401,
        })
    }

    /// The host and the port, and nothing else of the URL.
    pub(crate) fn far_end(&self) -> FarEnd {
        let url = reqwest::Url::parse(&self.url).ok();
        let host = url
            .as_ref()
            .and_then(|url| url.host_str())
            .map(str::to_owned);
        FarEnd::http(host, url.and_then(|url| url.port_or_known_default()))
    }

    /// Opens a transport for one session. Nothing is sent before rmcp sends.
    pub(crate) fn open(
        &self,
        pulse: Arc<Pulse>,
        limits: &Limits,
        discover_limit: Option<Duration>,
    ) -> (HttpTransport, Arc<Handshake>) {
        let (way, handshake) = self.way(Arc::clone(&pulse), limits, discover_limit);
        (HttpTransport { way, pulse }, handshake)
    }

    /// Opens a transport for another handshake of the same session, instead of one whose handshake
    /// failed and that is still held, so that its session has not ended.
    pub(crate) fn open_again(
        &self,
        mut failed: HttpTransport,
        limits: &Limits,
    ) -> (HttpTransport, Arc<Handshake>) {
        let (way, handshake) = self.way(Arc::clone(&failed.pulse), limits, None);
        failed.way = way;
        (failed, handshake)
    }

    fn way(
        &self,
        pulse: Arc<Pulse>,
        limits: &Limits,
        discover_limit: Option<Duration>,
    ) -> (Way, Arc<Handshake>) {
        let handshake = Arc::new(Handshake::default());
        let client = HttpClient {
            http: self.client.clone(),
            pulse,
            handshake: Arc::clone(&handshake),
            max_answer_bytes: limits.max_answer_bytes,
            max_resumes: limits.max_resumes,
            tokens: self.tokens.clone(),
            resend_after_401: self.resend_after_401,
            discover_limit,
        };
        let mut config = StreamableHttpClientTransportConfig::with_uri(Arc::clone(&self.url))
            .max_concurrent_requests(limits.max_in_flight.saturating_add(STANDING))
            .custom_headers(self.headers.clone())
            .reinit_on_expired_session(false);
        config.auth_header.clone_from(&self.bearer);
        config.channel_buffer_capacity = limits.max_in_flight.max(16);
        config.retry_config = Arc::new(NeverRetry::default());
        let (posts, lane, heard) = Posts::new(client.clone());
        let way = Way {
            worker: StreamableHttpClientTransport::with_client(client, config),
            posts,
            lane,
            heard,
            anchored: false,
        };
        (way, handshake)
    }
}

/// rmcp's session worker over this crate's client and the lane beside it, with their end published.
pub(crate) struct HttpTransport {
    way: Way,
    pulse: Arc<Pulse>,
}

/// What belongs to one handshake.
struct Way {
    worker: Worker,
    posts: Posts,
    lane: Arc<Lane>,
    /// What came on the streams of the lane's answers.
    heard: mpsc::Receiver<OnStream>,
    /// rmcp has the request that stands for those of the lane.
    anchored: bool,
}

impl HttpTransport {
    /// The way of the session's tool calls past rmcp.
    pub(crate) fn lane(&self) -> (Posts, Arc<Lane>) {
        (self.way.posts.clone(), Arc::clone(&self.way.lane))
    }

    /// Ends the session, and the exchanges that have no answer yet.
    fn end(&self) {
        self.pulse.end(Loss::Ended("its client service stopped"));
        // After the end, by which whoever waits is to judge.
        self.way.lane.close();
    }

    /// Leaves rmcp what is its own: the answer to a call on the lane may come by the standing stream.
    fn for_rmcp(&self, message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        let id = match &message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let number = id.and_then(number_of).filter(|number| *number >= FIRST_ID);
        let Some(number) = number else {
            if let JsonRpcMessage::Response(response) = &message
                && let ServerResult::ListToolsResult(list) = &response.result
            {
                self.way.posts.note_tools(list);
            }
            return Some(message);
        };
        let answer = match message {
            JsonRpcMessage::Response(response) => Ok(Box::new(response.result)),
            JsonRpcMessage::Error(error) => Err(error.error),
            other => return Some(other),
        };
        if !self.way.lane.settle(number, answer) {
            self.pulse.drop_frame(Dropped::Unmatched);
        }
        None
    }
}

impl Transport<RoleClient> for HttpTransport {
    type Error = <Worker as Transport<RoleClient>>::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let is_anchor = matches!(
            &message,
            JsonRpcMessage::Request(request) if request.request.extensions().get::<Anchor>().is_some()
        );
        self.way.anchored |= is_anchor;
        let sending = (!is_anchor).then(|| Transport::send(&mut self.way.worker, message));
        async move {
            match sending {
                Some(sending) => sending.await,
                None => Ok(()),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            // Before it has the anchor, rmcp would take what a server asks for unasked.
            let bound = self.way.lane.asks_only_if_asked.load(Ordering::Acquire);
            let may_ask = self.way.anchored || !bound;
            let message = tokio::select! {
                message = self.way.worker.receive() => message,
                Some(heard) = self.way.heard.recv(), if may_ask => match heard {
                    OnStream::Beside(message) => return Some(message),
                    OnStream::Answer(number, answer) => {
                        self.way.posts.settle(number, answer);
                        continue;
                    }
                },
            };
            let Some(message) = message else {
                self.pulse.end(Loss::Closed {
                    exit: None,
                    stderr: String::new(),
                });
                return None;
            };
            if let Some(message) = self.for_rmcp(message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        // After a handshake that failed there may be another one.
        if self.way.posts.has_begun() {
            self.end();
        }
        self.way.worker.close().await
    }
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        self.end();
    }
}

/// Gives the process a crypto provider where it has none.
#[cfg(feature = "tls")]
pub(crate) fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was first, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// The one way in which this crate builds an HTTP client: one that sends once.
fn client(http2_prior_knowledge: bool) -> Result<reqwest::Client, SpecError> {
    #[cfg(feature = "tls")]
    provide_cryptography();
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false);
    if http2_prior_knowledge {
        builder = builder.http2_prior_knowledge();
    }
    builder.build().map_err(|e| SpecError::Http {
        what: "client",
        why: chain(&e),
    })
}
