//! Any rmcp transport of the user's, through a factory: owned by the runtime, watched by the
//! witness, opened again after a loss.
#![allow(clippy::unwrap_used, reason = "also the helpers of a test may fail it")]

mod support;

use std::{
    borrow::Cow,
    future::Future,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, Limits, Outcome, Ownership, Supervisor, ToolCall,
    error::{NotSentReason, StartFailure},
    spec::WireOrder,
};
use rmcp::{
    ErrorData, RoleClient, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientJsonRpcMessage,
        ServerCapabilities, ServerConfig, ServerJsonRpcMessage,
    },
    service::RequestContext,
    transport::{IntoTransport, TokioChildProcess, Transport},
};
use serde_json::{Value, json};
use support::{Bed, bounded, initialize};
use tokio::io::DuplexStream;
use tokio_util::sync::CancellationToken;

const BOTH_ORDERS: [WireOrder; 2] = [WireOrder::Ordered, WireOrder::Concurrent];

fn both() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// What a factory and its transports were asked to do.
#[derive(Clone, Default)]
struct Watch {
    opened: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
    /// The argument `n` of each call that a transport was given.
    given: Arc<Mutex<Vec<u64>>>,
}

impl Watch {
    fn counts(&self) -> (usize, usize) {
        (
            self.opened.load(Ordering::SeqCst),
            self.closed.load(Ordering::SeqCst),
        )
    }

    fn over<T>(&self, inner: T) -> Watched<T> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        Watched {
            inner,
            watch: self.clone(),
        }
    }
}

/// A transport that notes what it is given.
struct Watched<T> {
    inner: T,
    watch: Watch,
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Watched<T> {
    type Error = T::Error;

    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        let json = serde_json::to_value(&message).unwrap();
        if let Some(n) = json["params"]["arguments"]["n"].as_u64() {
            self.watch.given.lock().unwrap().push(n);
        }
        self.inner.send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.inner.receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.watch.closed.fetch_add(1, Ordering::SeqCst);
        self.inner.close()
    }
}

/// rmcp's own server, in memory. `vanish` takes it down before it answers.
#[derive(Clone)]
struct Tools {
    ran: Arc<Mutex<Vec<String>>>,
    down: CancellationToken,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.ran.lock().unwrap().push(request.name.to_string());
        // Long enough for a caller to change its mind while the answer is on its way.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        if request.name == "vanish" {
            self.down.cancel();
            std::future::pending::<()>().await;
        }
        Ok(CallToolResult::success(Vec::new()).into())
    }
}

/// Starts the in-memory server and returns the client's end of it.
fn in_memory(ran: &Arc<Mutex<Vec<String>>>) -> DuplexStream {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let tools = Tools {
        ran: Arc::clone(ran),
        down: CancellationToken::new(),
    };
    tokio::spawn(async move {
        let down = tools.down.clone();
        tokio::select! {
            () = down.cancelled() => {}
            () = async {
                if let Ok(running) = tools.serve_with_ct(far, down.clone()).await {
                    let _ = running.waiting().await;
                }
            } => {}
        }
    });
    near
}

/// rmcp's transport over a byte stream.
fn client_of(near: DuplexStream) -> impl Transport<RoleClient, Error = io::Error> + 'static {
    IntoTransport::<RoleClient, _, _>::into_transport(near)
}

fn in_memory_spec(
    order: WireOrder,
    watch: &Watch,
    ran: &Arc<Mutex<Vec<String>>>,
) -> ConnectionSpec {
    let (watch, ran) = (watch.clone(), Arc::clone(ran));
    ConnectionSpec::factory(order, move || {
        let transport = watch.over(client_of(in_memory(&ran)));
        async move { io::Result::Ok(transport) }
    })
}

/// rmcp's own child process over the fault server.
fn child_spec(order: WireOrder, watch: &Watch, bed: &Arc<Bed>) -> ConnectionSpec {
    let (watch, bed) = (watch.clone(), Arc::clone(bed));
    ConnectionSpec::factory(order, move || {
        let child = TokioChildProcess::new(tokio::process::Command::from(bed.command("stdio")));
        let child = child.map(|child| watch.over(child));
        async move { child }
    })
}

/// Loses a call, and makes another one.
async fn lose_and_go_on(spec: ConnectionSpec, losing: &str, watch: &Watch) {
    let supervisor = Supervisor::builder().start().await.unwrap();
    let connection = supervisor.open("factory", spec).await.unwrap();
    assert_eq!(connection.ownership(), Ownership::Framework);
    assert_eq!(
        watch.counts(),
        (0, 0),
        "nothing is opened before it is needed"
    );
    let error = connection
        .call_tool(ToolCall::new(losing, json!({})))
        .await
        .unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(watch.counts().0, 1, "the failed call opens nothing");
    let answer = connection
        .call_tool(ToolCall::new("echo", json!({})))
        .await
        .unwrap();
    assert_eq!(answer.generation().number(), 2);
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    assert_eq!(
        watch.counts(),
        (2, 2),
        "each is opened once and closed once"
    );
}

#[tokio::test]
async fn a_lost_transport_is_an_unknown_outcome_and_the_next_call_opens_another() {
    for order in BOTH_ORDERS {
        for era in both() {
            bounded(async {
                let (watch, ran) = (Watch::default(), Arc::default());
                let spec = in_memory_spec(order, &watch, &ran).era(era.clone());
                lose_and_go_on(spec, "vanish", &watch).await;
                assert_eq!(*ran.lock().unwrap(), ["vanish", "echo"], "each ran once");

                let (watch, bed) = (
                    Watch::default(),
                    Arc::new(Bed::new(json!({"rules": [
                        {"on": "tools/call", "tool": "charge", "do": ["ledger", {"exit": 1}]},
                    ]}))),
                );
                let spec = child_spec(order, &watch, &bed).era(era);
                lose_and_go_on(spec, "charge", &watch).await;
                assert_eq!((bed.ran("charge"), bed.ran("echo")), (1, 1));
                bed.until_all_gone().await;
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_calls_through_an_ordered_transport_arrive_in_order() {
    const CALLS: u64 = 2_000;
    for era in both() {
        bounded(async {
            let bed = Arc::new(Bed::new(json!({"log_messages": true})));
            let watch = Watch::default();
            let limits = Limits {
                max_queued: 2_000,
                ..Limits::default()
            };
            let spec = child_spec(WireOrder::Ordered, &watch, &bed)
                .era(era)
                .limits(limits);
            let supervisor = Supervisor::builder().start().await.unwrap();
            let connection = supervisor.open("factory", spec).await.unwrap();
            let calls = (0..CALLS).map(|n| {
                let call = ToolCall::new("echo", json!({"n": n}));
                connection.call_tool(call)
            });
            // `join_all` polls them first in their order, and that is when they are submitted.
            for answer in futures::future::join_all(calls).await {
                answer.unwrap();
            }
            let _ = supervisor.shutdown(Duration::from_secs(2)).await;
            let messages = std::fs::read_to_string(bed.file("messages")).unwrap();
            let arrived: Vec<u64> = messages
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
                .filter_map(|m| m["message"]["params"]["arguments"]["n"].as_u64())
                .collect();
            assert!(arrived.iter().copied().eq(0..CALLS), "{arrived:?}");
            assert_eq!(watch.counts(), (1, 1));
        })
        .await;
    }
}

/// Calls that are cancelled at each of the steps on their way out: how many were recalled, and how
/// many were not in time.
async fn cancelled_on_the_way(order: WireOrder) -> (usize, usize) {
    let (watch, ran) = (Watch::default(), Arc::default());
    let supervisor = Supervisor::builder().start().await.unwrap();
    let spec = in_memory_spec(order, &watch, &ran);
    let connection = supervisor.open("factory", spec).await.unwrap();
    let barrier = || connection.call_tool(ToolCall::new("echo", json!({})));
    barrier().await.unwrap();
    let (mut recalled, mut late) = (0, 0);
    for n in 0..400_u64 {
        let token = CancellationToken::new();
        let call = ToolCall::new("echo", json!({"n": n})).cancelled_by(token.clone());
        let cancel = async {
            for _ in 0..n % 20 {
                tokio::task::yield_now().await;
            }
            token.cancel();
        };
        let (called, ()) = tokio::join!(connection.call_tool(call), cancel);
        match called.map_err(|error| error.outcome()) {
            Err(Outcome::NotSent) => {
                recalled += 1;
                // Whatever was still queued comes before this one.
                barrier().await.unwrap();
                assert!(!watch.given.lock().unwrap().contains(&n), "call {n}");
            }
            Err(Outcome::Unknown) => late += 1,
            Ok(_) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    (recalled, late)
}

#[tokio::test]
async fn what_was_recalled_is_never_given_to_the_transport() {
    for order in BOTH_ORDERS {
        // In a task: the body of a test takes turns with all tasks at once, not with each.
        let calls = tokio::spawn(cancelled_on_the_way(order));
        let (recalled, late) = bounded(calls).await.unwrap();
        assert!(
            recalled > 0 && late > 0,
            "{recalled} recalled, {late} not in time"
        );
    }
}

/// A transport that answers the handshake and fails to send calls, while it stays open.
struct Refusing<T>(T);

impl<T: Transport<RoleClient, Error = io::Error>> Transport<RoleClient> for Refusing<T> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let is_call = serde_json::to_value(&message).unwrap()["method"] == "tools/call";
        let sending = (!is_call).then(|| self.0.send(message));
        async move {
            match sending {
                Some(sending) => sending.await,
                None => Err(io::Error::other("the cable is out")),
            }
        }
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.0.receive()
    }

    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.0.close()
    }
}

fn causes_of(error: &CallError) -> Vec<String> {
    let first = std::error::Error::source(error);
    std::iter::successors(first, |cause| cause.source())
        .map(ToString::to_string)
        .collect()
}

#[tokio::test]
async fn a_transport_that_says_it_failed_to_send_is_heard_at_once() {
    for order in BOTH_ORDERS {
        for era in both() {
            bounded(async {
                let ran = Arc::default();
                let spec = ConnectionSpec::factory(order, move || {
                    let transport = Refusing(client_of(in_memory(&ran)));
                    async move { io::Result::Ok(transport) }
                });
                let supervisor = Supervisor::builder().start().await.unwrap();
                let connection = supervisor.open("factory", spec.era(era)).await.unwrap();
                let calling = connection.call_tool(ToolCall::new("echo", json!({})));
                let calling = tokio::time::timeout(Duration::from_secs(20), calling);
                let error = calling
                    .await
                    .expect("well before its deadline")
                    .unwrap_err();
                assert_eq!(error.outcome(), Outcome::Unknown);
                assert!(
                    !error.to_string().contains("cable"),
                    "it may hold a secret: {error}"
                );
                let causes: Vec<String> = causes_of(&error);
                assert!(
                    causes.iter().any(|c| c.contains("the cable is out")),
                    "{causes:?}"
                );
                let _ = supervisor.shutdown(Duration::from_secs(2)).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_factory_that_fails_or_panics_is_a_typed_failure_and_is_asked_again() {
    bounded(async {
        let asked = Arc::new(AtomicUsize::new(0));
        let (counter, ran) = (Arc::clone(&asked), Arc::default());
        let spec = ConnectionSpec::factory(WireOrder::Ordered, move || {
            let attempt = counter.fetch_add(1, Ordering::SeqCst);
            let near = in_memory(&ran);
            async move {
                match attempt {
                    0 => Err(io::Error::other("no such host")),
                    1 => panic!("a bug in the factory"),
                    _ => Ok(near),
                }
            }
        });
        let supervisor = Supervisor::builder().start().await.unwrap();
        let connection = supervisor.open("factory", spec).await.unwrap();
        for why in ["returned an error", "panicked"] {
            let error = connection
                .call_tool(ToolCall::new("echo", json!({})))
                .await
                .unwrap_err();
            let CallError::NotSent(not_sent) = &error else {
                panic!("{error}")
            };
            let NotSentReason::StartFailed(start) = &not_sent.reason else {
                panic!("{error}")
            };
            assert_eq!(start.failure, StartFailure::Factory(why));
        }
        connection
            .call_tool(ToolCall::new("echo", json!({})))
            .await
            .unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    })
    .await;
}

/// rmcp's own HTTP transport through a factory.
fn http_spec(url: String, era: Era) -> ConnectionSpec {
    let spec = ConnectionSpec::factory(WireOrder::Concurrent, move || {
        // What reqwest needs in this build; an error means that it is there already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let transport = rmcp::transport::StreamableHttpClientTransport::from_uri(url.clone());
        async move { io::Result::Ok(transport) }
    });
    spec.era(era)
}

#[tokio::test]
async fn a_status_that_the_transport_keeps_is_judged_as_one() {
    for era in both() {
        bounded(async {
            let challenge = json!({"status": 401, "headers": {"WWW-Authenticate": "Bearer"}});
            let busy = json!({"status": 503, "headers": {"Retry-After": "7"}});
            let bed = Bed::new(json!({"rules": [
                {"on": "tools/call", "nth": 1, "do": [{"http": challenge}]},
                {"on": "tools/call", "nth": 2, "do": ["ledger", {"http": busy}]},
            ]}));
            let server = bed.http().await;
            let supervisor = Supervisor::builder().start().await.unwrap();
            let url = format!("{}?key=planted-secret", server.url());
            let connection = supervisor
                .open("factory", http_spec(url, era))
                .await
                .unwrap();
            for (outcome, status) in [(Outcome::Rejected, 401), (Outcome::Unknown, 503)] {
                let call = ToolCall::new("charge", json!({}));
                let error = connection.call_tool(call).await.unwrap_err();
                assert_eq!(
                    (error.outcome(), error.http_status()),
                    (outcome, Some(status))
                );
                assert!(!error.to_string().contains("planted-secret"), "{error}");
            }
            drop(server);
            let call = ToolCall::new("charge", json!({}));
            let error = connection.call_tool(call).await.unwrap_err();
            assert!(!error.to_string().contains("planted-secret"), "{error}");
            let _ = supervisor.shutdown(Duration::from_secs(2)).await;
            assert_eq!(bed.ran("charge"), 1);
        })
        .await;
    }
}
