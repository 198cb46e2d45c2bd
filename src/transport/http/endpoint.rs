//! Where a connection's requests go: the endpoint, checked, and a transport for each session.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use ::http::{HeaderName, HeaderValue};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        Transport,
        common::client_side_sse::NeverRetry,
        streamable_http_client::{
            StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
        },
    },
};

use super::{Handshake, HttpClient, PROTOCOL_VERSION, Pulse, RESERVED, reading::chain};
use crate::{
    evidence::Loss,
    spec::{HttpSpec, Limits, SpecError, Tokens},
    telemetry::FarEnd,
};

type Worker = StreamableHttpClientTransport<HttpClient>;

/// What the spec says, in the types that are sent.
#[derive(Clone)]
pub(crate) struct Endpoint {
    client: reqwest::Client,
    url: Arc<str>,
    headers: HashMap<HeaderName, HeaderValue>,
    bearer: Option<String>,
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
        let (worker, handshake) = self.worker(Arc::clone(&pulse), limits, discover_limit);
        (HttpTransport { worker, pulse }, handshake)
    }

    /// Opens a transport for another handshake of the same session, instead of one whose handshake
    /// failed and that is still held, so that its session has not ended.
    pub(crate) fn open_again(
        &self,
        mut failed: HttpTransport,
        limits: &Limits,
    ) -> (HttpTransport, Arc<Handshake>) {
        let (worker, handshake) = self.worker(Arc::clone(&failed.pulse), limits, None);
        failed.worker = worker;
        (failed, handshake)
    }

    fn worker(
        &self,
        pulse: Arc<Pulse>,
        limits: &Limits,
        discover_limit: Option<Duration>,
    ) -> (Worker, Arc<Handshake>) {
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
        let worker = StreamableHttpClientTransport::with_client(client, config);
        (worker, handshake)
    }
}

/// rmcp's session worker over this crate's client, with its end published.
pub(crate) struct HttpTransport {
    worker: Worker,
    pulse: Arc<Pulse>,
}

impl Transport<RoleClient> for HttpTransport {
    type Error = <Worker as Transport<RoleClient>>::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        Transport::send(&mut self.worker, message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.worker.receive().await;
        if message.is_none() {
            self.pulse.end(Loss::Closed {
                exit: None,
                stderr: String::new(),
            });
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.worker.close().await
    }
}

impl Drop for HttpTransport {
    fn drop(&mut self) {
        self.pulse.end(Loss::Ended("its client service stopped"));
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
pub(super) fn client(http2_prior_knowledge: bool) -> Result<reqwest::Client, SpecError> {
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
