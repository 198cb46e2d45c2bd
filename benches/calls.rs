//! What supervision costs: plain rmcp and this crate side by side in one run, as ratios.
//!
//! ```text
//! cargo bench                 every case
//! cargo bench -- --quick      fewer rounds
//! cargo bench -- memory       the cases whose name contains a word
//! ```
//!
//! Both sides call the same kind of server with the same arguments. They take turns in short
//! blocks (A B A B …), so that whatever else the machine does falls on both; a ratio is made of two
//! neighbouring blocks, and what is printed is the median of the ratios with its quartiles.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
};
use mcp_supervisor::{
    ConnectionSpec, Era, HttpSpec, OwnedConnection, SharedConnection, StdioSpec, Supervisor,
    ToolCall, spec::Revision,
};
use rmcp::{
    ClientServiceExt as _, RoleClient, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientConfig, ContentBlock,
        ProtocolVersion, ServerCapabilities, ServerConfig,
    },
    service::{ClientLifecycleMode, RequestContext, RoleServer, RunningService},
    transport::{
        StreamableHttpClientTransport, TokioChildProcess,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Map, Value, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, DuplexStream,
    },
    task::JoinSet,
};

const CONCURRENCIES: [usize; 3] = [1, 16, 256];
/// The argument with which this program is a server on its standard streams.
const SERVE: &str = "--serve-stdio";
/// Large enough that an in-memory pipe is never what waits.
const PIPE: usize = 1 << 20;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|w| w != "--bench")
        .collect();
    if words.iter().any(|w| w == SERVE) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let serving = respond(tokio::io::stdin(), tokio::io::stdout());
        return runtime.expect("a runtime").block_on(serving);
    }
    let quick = words.iter().any(|w| w == "--quick");
    let only = words.iter().find(|w| !w.starts_with("--"));
    let plan = if quick {
        Plan {
            rounds: 8,
            calls: 400,
        }
    } else {
        Plan {
            rounds: 40,
            calls: 1_000,
        }
    };
    println!("| case | callers | rmcp p50 | ours p50 | p50 ratio | throughput ratio |");
    println!("|---|---|---|---|---|---|");
    for case in CASES {
        if only.is_none_or(|word| case.name().contains(word.as_str())) {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(compare(case, &plan));
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

struct Plan {
    rounds: usize,
    /// Calls in a block.
    calls: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Case {
    Memory,
    MemoryRmcp,
    Stdio,
    Http,
    HttpDefault,
}
const CASES: [Case; 5] = [
    Case::Memory,
    Case::MemoryRmcp,
    Case::Stdio,
    Case::Http,
    Case::HttpDefault,
];

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory, minimal server",
            Self::MemoryRmcp => "memory, rmcp server",
            Self::Stdio => "stdio, child process",
            Self::Http => "http, rmcp with pooled connections",
            Self::HttpDefault => "http, rmcp as it comes",
        }
    }
}

async fn compare(case: Case, plan: &Plan) {
    let url = match case {
        Case::Http | Case::HttpDefault => serve_http(),
        _ => String::new(),
    };
    let plain = plain(case, &url).await;
    let (supervisor, ours) = ours(case, &url).await;
    for callers in CONCURRENCIES {
        let (mut pairs, calls) = (Vec::new(), plan.calls.max(callers * 4));
        for round in 0..=plan.rounds {
            let a = block(callers, calls, || plain_call(Arc::clone(&plain))).await;
            let b = block(callers, calls, || our_call(ours.share())).await;
            // The first round is to warm up.
            if round > 0 {
                pairs.push((a, b));
            }
        }
        let p50s = Spread::of(pairs.iter().map(|(a, b)| b.p50 / a.p50));
        let throughputs = Spread::of(pairs.iter().map(|(a, b)| b.per_second / a.per_second));
        let a = Spread::of(pairs.iter().map(|(a, _)| a.p50 * 1e6)).median;
        let b = Spread::of(pairs.iter().map(|(_, b)| b.p50 * 1e6)).median;
        let name = case.name();
        println!("| {name} | {callers} | {a:.1} µs | {b:.1} µs | {p50s} | {throughputs} |");
    }
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
}

/// What one block of calls took.
struct Block {
    p50: f64,
    per_second: f64,
}

type Calling = Pin<Box<dyn Future<Output = ()> + Send>>;

async fn block(callers: usize, calls: usize, call: impl Fn() -> Caller) -> Block {
    let each = calls / callers;
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let call = call();
        tasks.spawn(async move {
            let mut took = Vec::with_capacity(each);
            for _ in 0..each {
                let started = Instant::now();
                call().await;
                took.push(started.elapsed().as_secs_f64());
            }
            took
        });
    }
    let took = tasks.join_all().await.concat();
    let per_second = took.len() as f64 / started.elapsed().as_secs_f64();
    Block {
        p50: Spread::of(took.into_iter()).median,
        per_second,
    }
}

type Caller = Box<dyn Fn() -> Calling + Send + Sync>;

fn plain_call(service: Arc<Plain>) -> Caller {
    Box::new(move || {
        let service = Arc::clone(&service);
        Box::pin(async move {
            let params = CallToolRequestParams::new("charge").with_arguments(arguments());
            let answer = service.peer().call_tool(params).await.expect("an answer");
            assert!(!answer.content.is_empty());
        })
    })
}

fn our_call(connection: SharedConnection) -> Caller {
    Box::new(move || {
        let connection = connection.clone();
        Box::pin(async move {
            let call = ToolCall::new("charge", Value::Object(arguments()));
            let answer = connection.call_tool(call).await.expect("an answer");
            assert!(!answer.content().is_empty());
        })
    })
}

fn arguments() -> Map<String, Value> {
    let mut arguments = Map::new();
    arguments.insert("customer".into(), "c-42".into());
    arguments.insert("cents".into(), 1999.into());
    arguments
}

/// A median with the quartiles around it.
struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<_> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
        Self {
            low: at(1),
            median: at(2),
            high: at(3),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.2} ({:.2} to {:.2})",
            self.median, self.low, self.high
        )
    }
}

// The two clients.

type Plain = RunningService<RoleClient, ClientConfig>;

async fn plain(case: Case, url: &str) -> Arc<Plain> {
    let config =
        ClientConfig::default().with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE);
    let mode = ClientLifecycleMode::Initialize;
    let service = match case {
        Case::Memory | Case::MemoryRmcp => {
            config
                .serve_with_lifecycle(tokio::io::split(in_memory(case)), mode)
                .await
        }
        Case::Stdio => {
            let mut command = tokio::process::Command::new(this_program());
            command.arg(SERVE);
            let child = TokioChildProcess::new(command).expect("this program starts");
            config.serve_with_lifecycle(child, mode).await
        }
        Case::Http | Case::HttpDefault => {
            #[cfg(feature = "tls")]
            let _ = rustls::crypto::ring::default_provider().install_default();
            // As many at a time as ours has by default, not the 16 of rmcp.
            let settings =
                StreamableHttpClientTransportConfig::with_uri(url).max_concurrent_requests(256);
            // rmcp's default client opens a TCP connection for each request.
            let transport = match case {
                Case::Http => {
                    StreamableHttpClientTransport::with_client(reqwest::Client::new(), settings)
                }
                _ => StreamableHttpClientTransport::from_config(settings),
            };
            config.serve_with_lifecycle(transport, mode).await
        }
    };
    Arc::new(service.expect("the server greets"))
}

async fn ours(case: Case, url: &str) -> (Supervisor, OwnedConnection) {
    let spec = match case {
        Case::Memory | Case::MemoryRmcp => ConnectionSpec::byte_stream(move || async move {
            Ok::<_, Infallible>(tokio::io::split(in_memory(case)))
        }),
        Case::Stdio => StdioSpec::new(this_program()).arg(SERVE).into(),
        Case::Http | Case::HttpDefault => HttpSpec::new(url).into(),
    };
    let supervisor = Supervisor::builder().start().await.expect("a supervisor");
    let spec = spec.era(Era::Initialize(Revision::V2025_11_25));
    let connection = supervisor.open("bench", spec).await.expect("a connection");
    (supervisor, connection)
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("this program has a path")
}

// The servers.

fn in_memory(case: Case) -> DuplexStream {
    let (client, server) = tokio::io::duplex(PIPE);
    let (read, write) = tokio::io::split(server);
    match case {
        Case::MemoryRmcp => {
            tokio::spawn(async move {
                let service = RmcpServer
                    .serve((read, write))
                    .await
                    .expect("the client greets");
                let _ = service.waiting().await;
            });
        }
        _ => drop(tokio::spawn(respond(read, write))),
    }
    client
}

struct RmcpServer;

impl ServerHandler for RmcpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, rmcp::ErrorData> {
        Ok(CallToolResult::success(vec![ContentBlock::text("charged")]).into())
    }
}

/// Answers line by line, with as little work as can be.
async fn respond(read: impl AsyncRead + Unpin, mut write: impl AsyncWrite + Unpin) {
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(mut answer) = answer(line.as_bytes()) else {
            continue;
        };
        answer.push(b'\n');
        if write.write_all(&answer).await.is_err() || write.flush().await.is_err() {
            return;
        }
    }
}

/// The answer to a message, unless it is a notification.
fn answer(message: &[u8]) -> Option<Vec<u8>> {
    let message: Value = serde_json::from_slice(message).ok()?;
    let id = message.get("id")?;
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "bench", "version": "1"},
        }),
        _ => json!({"content": [{"type": "text", "text": "charged"}]}),
    };
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    Some(answer.to_string().into_bytes())
}

/// Serves over HTTP in threads of its own, until the program ends.
fn serve_http() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let io = hyper_util::rt::TokioIo::new(stream);
                let service = hyper::service::service_fn(exchange);
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(io, service));
            }
        });
    });
    format!("http://{address}/mcp")
}

async fn exchange(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = |status| {
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        Ok(response)
    };
    if request.method() != Method::POST {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let Ok(body) = request.into_body().collect().await else {
        return status(StatusCode::BAD_REQUEST);
    };
    match answer(&body.to_bytes()) {
        Some(answer) => {
            let mut response = Response::new(Full::new(answer.into()));
            let json = "application/json".parse().expect("a header");
            response.headers_mut().insert(CONTENT_TYPE, json);
            Ok(response)
        }
        None => status(StatusCode::ACCEPTED),
    }
}
