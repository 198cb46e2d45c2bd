//! Clients that are not ours: what a caller builds with plain rmcp and lends.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcp_supervisor::Era;
use rmcp::{
    ClientServiceExt as _, RoleClient,
    model::{
        ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ProtocolVersion, ServerJsonRpcMessage,
    },
    service::{ClientLifecycleMode, RunningService},
    transport::{
        IntoTransport, StreamableHttpClientTransport, TokioChildProcess, Transport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};

use super::Bed;

/// A client service over a child process, as a caller would run it.
pub async fn lent_stdio(bed: &Bed, era: Era) -> RunningService<RoleClient, ()> {
    serve(child(bed), era).await
}

/// A client service over HTTP, as a caller would run it.
pub async fn lent_http(url: impl AsRef<str>, era: Era) -> RunningService<RoleClient, ()> {
    serve(http(url), era).await
}

/// The transport below [`lent_stdio`].
pub fn child(bed: &Bed) -> TokioChildProcess {
    let command = tokio::process::Command::from(bed.command("stdio"));
    TokioChildProcess::new(command).expect("the fault server starts")
}

/// The transport below [`lent_http`]. It does not open sessions by itself, which a plain rmcp
/// client does: what is counted at the server shall be of our doing.
pub fn http(url: impl AsRef<str>) -> impl Transport<RoleClient> + 'static {
    // Without a provider rmcp's own HTTP client panics where `reqwest` is built for one of choice.
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_ref())
        .reinit_on_expired_session(false);
    StreamableHttpClientTransport::from_config(config).into_transport()
}

/// Negotiates over `transport` with plain rmcp.
pub async fn serve(
    transport: impl Transport<RoleClient> + 'static,
    era: Era,
) -> RunningService<RoleClient, ()> {
    let (lifecycle, offer) = match era {
        Era::Initialize(revision) => (ClientLifecycleMode::Initialize, revision.as_str()),
        _ => {
            let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
            (ClientLifecycleMode::Discover { preferred_versions }, "")
        }
    };
    let offering = Offering {
        inner: transport,
        offer,
    };
    ().serve_with_lifecycle(offering, lifecycle)
        .await
        .expect("the server greets")
}

/// Offers another revision in `initialize` than the newest, which is all that the service `()` can
/// offer, and which has no `initialize`.
struct Offering<T> {
    inner: T,
    offer: &'static str,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Offering<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        mut message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &mut message
            && let ClientRequest::InitializeRequest(initialize) = &mut request.request
        {
            let mut known = ProtocolVersion::KNOWN_VERSIONS.iter();
            let offer = known
                .find(|v| v.as_str() == self.offer)
                .expect("a known revision");
            initialize.params.protocol_version = offer.clone();
        }
        self.inner.send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.inner.receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.inner.close()
    }
}

/// What went through a transport.
#[derive(Clone, Default)]
pub struct Counters {
    methods: Arc<Mutex<Vec<String>>>,
    closes: Arc<AtomicUsize>,
    gate: Arc<Mutex<()>>,
}

impl Counters {
    /// The methods of all requests so far, in order.
    pub fn requests(&self) -> Vec<String> {
        self.methods.lock().expect("no test panics here").clone()
    }

    /// How often the transport was closed.
    pub fn closes(&self) -> usize {
        self.closes.load(Ordering::SeqCst)
    }

    /// While the guard lives, the transport takes nothing, and the client service in front of it
    /// stands still with it.
    pub fn hold(&self) -> std::sync::MutexGuard<'_, ()> {
        self.gate.lock().expect("no test panics here")
    }

    /// `inner`, counted.
    pub fn around<T: Transport<RoleClient>>(&self, inner: T) -> Counted<T> {
        Counted {
            inner,
            counters: self.clone(),
        }
    }
}

/// A transport that counts.
pub struct Counted<T> {
    inner: T,
    counters: Counters,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Counted<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        if self.counters.gate.try_lock().is_err() {
            // Only a test that holds the gate comes here, and it has threads to spare.
            drop(tokio::task::block_in_place(|| self.counters.gate.lock()));
        }
        if let JsonRpcMessage::Request(request) = &message {
            let method = method(&request.request);
            self.counters
                .methods
                .lock()
                .expect("no test panics here")
                .push(method);
        }
        self.inner.send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.inner.receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.counters.closes.fetch_add(1, Ordering::SeqCst);
        self.inner.close()
    }
}

fn method(request: &ClientRequest) -> String {
    let json = serde_json::to_value(request).expect("a request is JSON");
    json["method"]
        .as_str()
        .expect("a request has a method")
        .to_owned()
}
