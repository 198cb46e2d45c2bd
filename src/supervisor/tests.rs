//! A connection actor that panics: what its handles, its calls and its old session then do. The order in
//! which a shutdown begins to close, and what a closed connection leaves behind.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{IntoTransport as _, Transport},
};
use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf,
        duplex, split,
    },
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    CallError, Era, Outcome, Received, SharedConnection, ToolAnswer, ToolCall, What,
    connection::{ConnectionState, ConnectionStatus},
    error::{NotSentReason, UnknownCause},
    policy::Backoff,
    spec::{Recovery, Revision, WireOrder},
};

/// The servers at the other ends of a connection's in-memory pipes.
#[derive(Default)]
struct Servers {
    opened: AtomicUsize,
    gone: AtomicUsize,
    /// The most that there ever were at a time.
    most: AtomicUsize,
    /// The tools that were called, in order.
    called: Mutex<Vec<String>>,
    /// Lets `wait` be answered.
    answer: CancellationToken,
}

impl Servers {
    fn open(self: &Arc<Self>) -> (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>) {
        let opened = self.opened.fetch_add(1, Ordering::SeqCst) + 1;
        self.most
            .fetch_max(opened - self.gone.load(Ordering::SeqCst), Ordering::SeqCst);
        let (ours, theirs) = duplex(64 * 1024);
        let servers = Arc::clone(self);
        tokio::spawn(async move {
            servers.serve(theirs).await;
            servers.gone.fetch_add(1, Ordering::SeqCst);
        });
        split(ours)
    }

    async fn serve(&self, pipe: DuplexStream) {
        let (read, mut write) = split(pipe);
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let message: Value = serde_json::from_str(&line).unwrap();
            let result = match message["method"].as_str() {
                Some("initialize") => json!({
                    "protocolVersion": "2025-11-25", "capabilities": {},
                    "serverInfo": {"name": "s", "version": "1"},
                }),
                Some("tools/call") => {
                    let tool = message["params"]["name"].as_str().unwrap().to_owned();
                    let waits = tool == "wait";
                    let dies = tool == "die";
                    self.called.lock().unwrap().push(tool);
                    if dies {
                        return;
                    }
                    if waits {
                        self.answer.cancelled().await;
                    }
                    json!({"content": []})
                }
                _ => continue,
            };
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
            // Nobody reads the answers of a session that is over.
            let _ = write.write_all(format!("{answer}\n").as_bytes()).await;
        }
    }

    fn called(&self) -> Vec<String> {
        self.called.lock().unwrap().clone()
    }
}

/// A transport that takes its time to close.
struct Lingering<T>(T);

impl<T: Transport<RoleClient>> Transport<RoleClient> for Lingering<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.0.send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.0.receive()
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        tokio::time::sleep(Duration::from_millis(30)).await;
        self.0.close().await
    }
}

/// A test's outer deadline.
async fn bounded(body: impl Future<Output = ()>) {
    timeout_at(Instant::now() + Duration::from_secs(30), body)
        .await
        .expect("the test ran into its outer deadline");
}

struct Rig {
    supervisor: Supervisor,
    servers: Arc<Servers>,
    server: SharedConnection,
    line: Arc<Line>,
    _owner: OwnedConnection,
}

impl Rig {
    async fn new(limits: Limits) -> Self {
        Self::bearing(limits, 1_000).await
    }

    async fn bearing(limits: Limits, max_restarts: u32) -> Self {
        let servers = Arc::new(Servers::default());
        let opening = Arc::clone(&servers);
        let spec = ConnectionSpec::byte_stream(move || {
            std::future::ready(Ok::<_, std::io::Error>(opening.open()))
        });
        Self::over(servers, spec.limits(limits), max_restarts).await
    }

    /// Over transports that take their time to close.
    async fn lingering() -> Self {
        let servers = Arc::new(Servers::default());
        let opening = Arc::clone(&servers);
        let spec = ConnectionSpec::factory(WireOrder::Ordered, move || {
            let inner = opening.open().into_transport();
            std::future::ready(Ok::<_, std::io::Error>(Lingering(inner)))
        });
        Self::over(servers, spec, 1_000).await
    }

    async fn over(servers: Arc<Servers>, spec: ConnectionSpec, max_restarts: u32) -> Self {
        let spec = spec
            .era(Era::Initialize(Revision::V2025_11_25))
            .recovery(Recovery {
                max_restarts,
                backoff: Backoff {
                    base: Duration::ZERO,
                    cap: Duration::ZERO,
                },
                ..Recovery::default()
            });
        let supervisor = Supervisor::builder().start().await.unwrap();
        let owner = supervisor.open("server", spec).await.unwrap();
        let line = supervisor
            .branch
            .registry
            .find(&"server".parse().unwrap())
            .unwrap();
        Self {
            supervisor,
            servers,
            server: owner.share(),
            line,
            _owner: owner,
        }
    }

    fn call(&self, tool: &str) -> tokio::task::JoinHandle<Result<ToolAnswer, CallError>> {
        let (server, call) = (self.server.clone(), ToolCall::new(tool, json!({})));
        tokio::spawn(async move { server.call_tool(call).await })
    }

    async fn until_called(&self, tool: &str) {
        while !self.servers.called().iter().any(|called| called == tool) {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn old_handles_find_the_new_mailbox_of_an_actor_that_panicked() {
    bounded(async {
        let rig = Rig::new(Limits::default()).await;
        let mut events = rig.supervisor.events();
        for generation in 1..=3 {
            let answer = rig.call("echo").await.unwrap().unwrap();
            assert_eq!(answer.generation().number(), generation);
            rig.line.make_the_actor_panic();
            loop {
                let Some(Received::Event(event)) = events.next().await else {
                    panic!("the supervisor is gone");
                };
                if event.what == What::ActorRestarted {
                    break;
                }
            }
        }
        rig.call("echo").await.unwrap().unwrap();
        assert_eq!(rig.servers.called().len(), 4);
    })
    .await;
}

#[tokio::test]
async fn what_was_only_in_the_mailbox_of_an_actor_that_panicked_is_not_sent() {
    bounded(async {
    let rig = Rig::new(Limits::default()).await;
    rig.call("echo").await.unwrap().unwrap();
    rig.line.make_the_actor_panic();
    // One thread: the call is put into the mailbox, behind the panic, before the actor sees either.
    let lost = rig.server.call_tool(ToolCall::new("lost", json!({})));
    let error = lost.await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotSent);
    assert!(
        matches!(&error, CallError::NotSent(e) if matches!(e.reason, NotSentReason::ActorFailed)),
        "{error:?}"
    );
    loop {
        // Until there is a new mailbox, the old one takes nothing.
        match rig.call("after").await.unwrap() {
            Ok(_) => break,
            Err(error) => assert_eq!(error.outcome(), Outcome::NotSent, "{error:?}"),
        }
    }
    assert_eq!(rig.servers.called(), ["echo", "after"]);
    })
    .await;
}

#[tokio::test]
async fn what_was_queued_behind_a_full_session_is_not_sent_when_the_actor_panics() {
    bounded(async {
        let limits = Limits {
            max_in_flight: 1,
            ..Limits::default()
        };
        let rig = Rig::new(limits).await;
        let running = rig.call("wait");
        rig.until_called("wait").await;
        let queued = rig.call("queued");
        tokio::task::yield_now().await;
        rig.line.make_the_actor_panic();
        assert_eq!(
            queued.await.unwrap().unwrap_err().outcome(),
            Outcome::NotSent
        );
        assert_eq!(
            running.await.unwrap().unwrap_err().outcome(),
            Outcome::Unknown
        );
        assert_eq!(rig.servers.called(), ["wait"]);
    })
    .await;
}

#[tokio::test]
async fn what_was_handed_over_is_unknown_when_the_actor_panics_unless_it_was_answered() {
    bounded(async {
        let rig = Rig::new(Limits::default()).await;
        let running = rig.call("wait");
        rig.until_called("wait").await;
        rig.line.make_the_actor_panic();
        let error = running.await.unwrap().unwrap_err();
        assert!(
            matches!(
                &error,
                CallError::Unknown(e)
                    if matches!(e.cause, UnknownCause::SessionEnded(_) | UnknownCause::ActorFailed)
            ),
            "{error:?}"
        );
        assert_eq!(error.about().generation, Some(Generation(1)));
        assert_eq!(rig.servers.called(), ["wait"], "sent once, and not again");
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_was_there_before_the_actor_panicked_is_the_answer() {
    bounded(async {
        let rig = Rig::new(Limits::default()).await;
        rig.servers.answer.cancel();
        rig.call("echo").await.unwrap().unwrap();
        let mut call = Box::pin(rig.server.call_tool(ToolCall::new("wait", json!({}))));
        // Looked at until it is handed over, and not after that.
        while rig.line.status().in_flight == 0 {
            let looked = std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx)));
            assert!(looked.await.is_pending());
            tokio::task::yield_now().await;
        }
        rig.until_called("wait").await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        rig.line.make_the_actor_panic();
        while rig.servers.gone.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        call.await.unwrap();
        assert_eq!(rig.servers.called(), ["echo", "wait"]);
    })
    .await;
}

#[tokio::test]
async fn the_old_session_is_gone_before_the_one_after_a_panic_connects() {
    bounded(async {
        let rig = Rig::lingering().await;
        for _ in 0..20 {
            loop {
                match rig.call("echo").await.unwrap() {
                    Ok(_) => break,
                    Err(error) => assert_eq!(error.outcome(), Outcome::NotSent, "{error:?}"),
                }
                tokio::task::yield_now().await;
            }
            rig.line.make_the_actor_panic();
            tokio::task::yield_now().await;
        }
        assert!(rig.servers.opened.load(Ordering::SeqCst) > 1);
        assert_eq!(rig.servers.most.load(Ordering::SeqCst), 1, "at a time");
    })
    .await;
}

#[tokio::test]
async fn an_actor_that_panics_again_and_again_opens_the_circuit() {
    bounded(async {
        let rig = Rig::bearing(Limits::default(), 5).await;
        let mut refused = None;
        for _ in 0..7 {
            rig.line.make_the_actor_panic();
            while let Err(error) = rig.call("echo").await.unwrap() {
                let CallError::NotSent(e) = error else {
                    panic!("{error:?}");
                };
                match e.reason {
                    NotSentReason::CircuitOpen { .. } => {
                        refused = Some(e);
                        break;
                    }
                    _ => tokio::task::yield_now().await,
                }
            }
            if refused.is_some() {
                break;
            }
        }
        assert!(refused.is_some(), "it was restarted for ever");
    })
    .await;
}

#[tokio::test]
async fn what_is_closed_while_nobody_knows_yet_that_its_actor_failed_is_stopped() {
    bounded(async {
        let rig = Rig::new(Limits::default()).await;
        rig.line.make_the_actor_panic();
        let line = Arc::clone(&rig.line);
        // Its turn is behind the actor's and before that of the supervisor, which then is told.
        let closing = tokio::spawn(async move { line.close_now() });
        closing.await.unwrap();
        rig.line.stopped().await;
        assert!(rig.supervisor.names().is_empty());
        let _ = rig.supervisor.shutdown(Duration::ZERO).await;
    })
    .await;
}

#[tokio::test]
async fn a_lent_session_outlives_an_actor_that_panics() {
    bounded(async {
        use rmcp::ServiceExt as _;
        let servers = Arc::new(Servers::default());
        let client = ().serve(servers.open()).await.unwrap();
        let supervisor = Supervisor::builder().start().await.unwrap();
        let lent = supervisor
            .lend_service("lent", &client, LentSpec::new())
            .await
            .unwrap();
        let line = supervisor
            .branch
            .registry
            .find(&"lent".parse().unwrap())
            .unwrap();
        let call = || lent.call_tool(ToolCall::new("echo", json!({})));
        call().await.unwrap();
        line.make_the_actor_panic();
        loop {
            match call().await {
                Ok(_) => break,
                Err(error) => assert_eq!(error.outcome(), Outcome::NotSent, "{error:?}"),
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(servers.opened.load(Ordering::SeqCst), 1);
        assert_eq!(servers.gone.load(Ordering::SeqCst), 0);
        assert_eq!(servers.called(), ["echo", "echo"]);
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_begins_to_close_sessions_in_the_reverse_order_of_their_opening() {
    bounded(async {
        let supervisor = Supervisor::builder().start().await.unwrap();
        let closed = Arc::new(Mutex::new(Vec::new()));
        let mut owners = Vec::new();
        for name in ["first", "second", "third"] {
            let closed = Arc::clone(&closed);
            let spec = ConnectionSpec::byte_stream(move || {
                let closed = Arc::clone(&closed);
                let (ours, theirs) = duplex(64 * 1024);
                tokio::spawn(async move {
                    Servers::default().serve(theirs).await;
                    closed.lock().unwrap().push(name);
                });
                std::future::ready(Ok::<_, std::io::Error>(split(ours)))
            })
            .era(Era::Initialize(Revision::V2025_11_25));
            let owner = supervisor.open(name, spec).await.unwrap();
            owners.push(owner);
        }
        // Not in the order of their opening.
        for at in [1, 2, 0] {
            let call = ToolCall::new("echo", json!({}));
            owners[at].call_tool(call).await.unwrap();
        }
        let report = supervisor.shutdown(Duration::from_secs(5)).await;
        let names = report.connections.iter().map(|c| c.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["first", "second", "third"]);
        while closed.lock().unwrap().len() < 3 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*closed.lock().unwrap(), ["third", "second", "first"]);
    })
    .await;
}

/// Whether a loss is heard of from the end of the session or from the operation after it.
#[tokio::test]
async fn a_closed_connection_that_lost_sessions_leaves_no_actor_behind() {
    bounded(async {
        let rig = Rig::new(Limits::default()).await;
        for hears_of_the_end in [true, false, true, true, false] {
            let die = ToolCall::new("die", json!({}));
            let error = rig.server.call_tool(die).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            if hears_of_the_end {
                let is_idle = |status: &ConnectionStatus| status.state == ConnectionState::Idle;
                rig.server.status_when(is_idle).await;
            }
        }
        let answer = rig.server.call_tool(ToolCall::new("work", json!({})));
        assert_eq!(answer.await.unwrap().generation().number(), 6);
        let actors = || rig.supervisor.actor.get_cell().get_children().len();
        assert_eq!(actors(), 1);
        rig._owner.close().await;
        while actors() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
