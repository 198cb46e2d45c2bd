//! Framework-owned and caller-owned connections: a workflow step takes either, and what is lent is
//! used and nothing else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_supervisor::{
    CallError, Connection, CustomCall, Era, Event, EventStream, LentConnection, LentSpec, Outcome,
    Ownership, Page, Ping, PromptGet, Received, ResourceRead, Supervisor, ToolCall, What,
    error::{AddError, NotSentReason},
};
use rmcp::{
    Peer, RoleClient,
    model::{CallToolRequestParams, ClientRequest, PingRequest},
    service::{PeerRequestOptions, RunningService},
};
use serde_json::{Value, json};
use support::{
    Bed, HttpServer, bounded, initialize, kill,
    lent::{self, Counters},
    until,
};
use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// What would be a lie about a connection that nobody re-established.
const LIES: [&str; 10] = [
    "reconnect",
    "re-connect",
    "reestablish",
    "re-establish",
    "replaced",
    "restart",
    "session start",
    "retired",
    "recovered",
    "resumed",
];

/// What a caller can lend.
#[derive(Clone, Copy, Debug)]
enum Lent {
    Service,
    Peer,
}
const LENT: [Lent; 2] = [Lent::Service, Lent::Peer];

impl Lent {
    async fn lend(
        self,
        supervisor: &Supervisor,
        service: &RunningService<RoleClient, ()>,
    ) -> Result<LentConnection, AddError> {
        match self {
            Self::Service => {
                supervisor
                    .lend_service("lent", service, LentSpec::new())
                    .await
            }
            Self::Peer => {
                supervisor
                    .lend_peer("lent", service.peer().clone(), LentSpec::new())
                    .await
            }
        }
    }

    fn ownership(self) -> Ownership {
        match self {
            Self::Service => Ownership::LentService,
            Self::Peer => Ownership::LentPeer,
        }
    }
}

fn eras() -> [Era; 2] {
    [initialize(), Era::Discover]
}

#[derive(Clone, Copy, Debug)]
enum Wire {
    Stdio,
    Http,
}
const WIRES: [Wire; 2] = [Wire::Stdio, Wire::Http];

/// A caller's own client, counted, and the server behind it.
struct Client {
    bed: Bed,
    server: Option<HttpServer>,
    counters: Counters,
    service: RunningService<RoleClient, ()>,
}

impl Client {
    async fn new(wire: Wire, era: Era, script: Value) -> Self {
        let bed = Bed::new(script);
        let counters = Counters::default();
        let (server, service) = match wire {
            Wire::Stdio => (
                None,
                lent::serve(counters.around(lent::child(&bed)), era).await,
            ),
            Wire::Http => {
                let server = bed.http().await;
                let transport = counters.around(lent::http(server.url()));
                (Some(server), lent::serve(transport, era).await)
            }
        };
        Self {
            bed,
            server,
            counters,
            service,
        }
    }

    /// What an observer sees of connects and requests, on both sides of the wire.
    fn traffic(&self) -> Traffic {
        let greetings =
            |r: &support::Read| r.method == "initialize" || r.method == "server/discover";
        let wire = self.bed.wire();
        Traffic {
            processes: self.bed.pids().len(),
            greetings: wire.iter().filter(|r| greetings(r)).count(),
            arrived: wire
                .iter()
                .filter(|r| r.method != "-" && r.id != "-")
                .count(),
            sent: self.counters.requests().len(),
        }
    }

    async fn works(&self) {
        let call = CallToolRequestParams::new("echo");
        self.service
            .call_tool(call)
            .await
            .expect("the caller's own client works");
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Traffic {
    processes: usize,
    greetings: usize,
    arrived: usize,
    sent: usize,
}

/// Each kind of operation.
const KINDS: [&str; 8] = [
    "tools/call",
    "tools/list",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/read",
    "ping",
    "x/echo",
];

async fn operate(kind: &str, connection: &Connection) -> Result<(), CallError> {
    match kind {
        "tools/call" => {
            let call = ToolCall::new("charge", json!({"cents": 1}));
            connection.call_tool(call).await.map(drop)
        }
        "tools/list" => connection.list_tools(Page::first()).await.map(drop),
        "prompts/list" => connection.list_prompts(Page::first()).await.map(drop),
        "prompts/get" => connection
            .get_prompt(PromptGet::new("greeting"))
            .await
            .map(drop),
        "resources/list" => connection.list_resources(Page::first()).await.map(drop),
        "resources/read" => connection
            .read_resource(ResourceRead::new("x:y"))
            .await
            .map(drop),
        "ping" => connection.ping(Ping::default()).await,
        custom => connection
            .request(CustomCall::new(custom, Some(json!({}))))
            .await
            .map(drop),
    }
}

fn kinds_of(era: &Era) -> impl Iterator<Item = &'static str> {
    let modern = *era == Era::Discover;
    KINDS
        .into_iter()
        .filter(move |kind| !modern || *kind != "ping")
}

/// Everything the crate logs on this thread, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("mcp_supervisor=trace,ractor=trace"))
            .with_writer(log.clone())
            .with_ansi(false)
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All events until the supervisor is gone.
async fn all(mut events: EventStream) -> Vec<Event> {
    let mut seen = Vec::new();
    while let Some(received) = events.next().await {
        match received {
            Received::Event(event) => seen.push((*event).clone()),
            Received::Missed(n) => panic!("{n} events were missed"),
        }
    }
    seen
}

fn lies_in(text: &str) -> Vec<&'static str> {
    let text = text.to_lowercase();
    LIES.into_iter().filter(|lie| text.contains(lie)).collect()
}

/// All that an error tells: itself, its causes, and what to do.
fn told(error: &CallError) -> String {
    let mut text = format!("{error}\n{error:?}\n{}\n", error.next_step());
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!("{error}\n"));
        cause = error.source();
    }
    text
}

fn assert_ownership_error(error: &CallError, lent: Lent) {
    let CallError::NotSent(not_sent) = error else {
        panic!("sent after the loss: {error}")
    };
    assert!(
        matches!(not_sent.reason, NotSentReason::CallerOwnedClosed),
        "{error}"
    );
    assert_eq!(error.ownership(), lent.ownership());
    assert!(error.to_string().contains("caller-owned"), "{error}");
    assert!(
        error
            .next_step()
            .contains("owner must supply a replacement"),
        "{error}"
    );
}

/// A workflow step. It does not know whose the connection is.
async fn charge(connection: &Connection) -> u64 {
    let call = ToolCall::new("charge", json!({"cents": 1999}));
    let answer = connection
        .call_tool(call)
        .await
        .expect("the server charges");
    assert_eq!(answer.structured().unwrap()["charged"], true);
    answer.generation().number()
}

#[tokio::test]
async fn a_workflow_step_takes_a_connection_of_either_owner() {
    for era in eras() {
        for wire in WIRES {
            bounded(async {
                let client = Client::new(wire, era.clone(), json!({})).await;
                let supervisor = Supervisor::builder().start().await.unwrap();
                let spec = match &client.server {
                    Some(server) => server.spec(era.clone()),
                    None => client.bed.stdio_spec(era.clone()),
                };
                let owned = supervisor.open("owned", spec).await.unwrap();
                let shared = owned.share();
                let service = &client.service;
                let lent = supervisor
                    .lend_service("a", service, LentSpec::new())
                    .await
                    .unwrap();
                let peer = service.peer().clone();
                let bare = supervisor
                    .lend_peer("b", peer, LentSpec::new())
                    .await
                    .unwrap();
                let connections: [&Connection; 4] = [&owned, &shared, &lent, &bare];
                for connection in connections {
                    assert_eq!(charge(connection).await, 1, "{connection:?}");
                }
                assert_eq!(client.bed.ran("charge"), 4);
                let lent = connections.map(|c| c.ownership().is_lent());
                assert_eq!(lent, [false, false, true, true]);
                let _ = supervisor.shutdown(Duration::from_secs(2)).await;
            })
            .await;
        }
    }
}

/// How the server takes its leave in the middle of a request.
#[derive(Clone, Copy, Debug)]
enum Leave {
    Exit,
    SaysSo,
}

impl Leave {
    fn during(self, method: &str) -> Value {
        let how = match self {
            Self::Exit => json!({"exit": 1}),
            Self::SaysSo => json!({"error": {"code": -32000, "message": "Session terminated"}}),
        };
        json!({"rules": [{"on": method, "do": [how]}]})
    }
}

/// A loss under one kind of operation, then one more operation of each kind.
async fn lose(wire: Wire, leave: Leave, era: &Era, lent: Lent, kind: &'static str) {
    let (log, _logging) = Log::capture();
    let client = Client::new(wire, era.clone(), leave.during(kind)).await;
    let supervisor = Supervisor::builder().start().await.unwrap();
    let events = supervisor.events();
    let connection = lent.lend(&supervisor, &client.service).await.unwrap();

    let error = operate(kind, &connection).await.unwrap_err();
    let case = format!("{wire:?} {leave:?} {era:?} {lent:?} {kind}");
    assert_eq!(error.outcome(), Outcome::Unknown, "{case}: {error}");
    assert_eq!(error.about().attempts, 1, "{case}");
    let mut texts = told(&error);
    let before = client.traffic();
    assert_eq!((before.processes, before.greetings), (1, 1), "{case}");

    for next in kinds_of(era) {
        let error = operate(next, &connection).await.unwrap_err();
        assert_ownership_error(&error, lent);
        texts.push_str(&told(&error));
    }
    assert_eq!(client.traffic(), before, "{case}");
    // The transport of a process that is gone is closed by rmcp itself, as without us.
    assert!(
        matches!(leave, Leave::Exit) || client.counters.closes() == 0,
        "{case}"
    );

    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    drop(connection);
    let seen = all(events).await;
    assert!(
        seen.iter().any(|event| event.what == What::LentLost),
        "{case}: {seen:?}"
    );
    assert!(
        seen.iter().all(|event| event.ownership == lent.ownership()),
        "{case}: {seen:?}"
    );
    assert!(
        log.text().contains("caller-owned connection is closed"),
        "{case}: {}",
        log.text()
    );
    for text in [texts, format!("{seen:?}"), log.text()] {
        let text = text.replace("SessionLost", "");
        assert_eq!(lies_in(&text), [""; 0], "{case}: {text}");
    }
    assert_eq!(client.traffic(), before, "{case}");
}

#[tokio::test]
async fn after_a_process_exits_nothing_more_is_asked_of_a_lent_connection() {
    for era in eras() {
        for lent in LENT {
            for kind in kinds_of(&era) {
                bounded(lose(Wire::Stdio, Leave::Exit, &era, lent, kind)).await;
            }
        }
    }
}

#[tokio::test]
async fn after_a_session_is_terminated_nothing_more_is_asked_of_a_lent_connection() {
    for era in eras() {
        for wire in WIRES {
            for lent in LENT {
                for kind in kinds_of(&era) {
                    bounded(lose(wire, Leave::SaysSo, &era, lent, kind)).await;
                }
            }
        }
    }
}

/// The control of the two above: their words are found where a session really is re-established.
#[tokio::test]
async fn the_same_loss_of_an_owned_connection_does_speak_of_a_new_session() {
    bounded(async {
        let (log, _logging) = Log::capture();
        let bed = Bed::new(Leave::Exit.during("tools/list"));
        let supervisor = Supervisor::builder().start().await.unwrap();
        let events = supervisor.events();
        let owned = supervisor
            .open("owned", bed.stdio_spec(initialize()))
            .await
            .unwrap();
        operate("tools/list", &owned).await.unwrap_err();
        charge(&owned).await;
        let _ = supervisor.shutdown(Duration::from_secs(2)).await;
        drop(owned);
        assert!(bed.pids().len() > 1, "it was started again");
        assert!(
            lies_in(&log.text()).contains(&"session start"),
            "{}",
            log.text()
        );
        let seen = all(events).await;
        assert!(
            seen.iter()
                .any(|e| matches!(e.what, What::SessionStarted { .. }))
        );
    })
    .await;
}

#[tokio::test]
async fn s4_a_client_that_its_owner_closed_answers_with_the_ownership_error_at_once() {
    for era in eras() {
        for wire in WIRES {
            for lent in LENT {
                bounded(async {
                    let mut client = Client::new(wire, era.clone(), json!({})).await;
                    let supervisor = Supervisor::builder().start().await.unwrap();
                    let connection = lent.lend(&supervisor, &client.service).await.unwrap();
                    charge(&connection).await;

                    client.service.close().await.unwrap();
                    let (before, closes) = (client.traffic(), client.counters.closes());
                    for kind in kinds_of(&era) {
                        let error = operate(kind, &connection).await.unwrap_err();
                        assert_ownership_error(&error, lent);
                        assert_eq!(error.about().attempts, 0, "{error}");
                    }
                    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
                    assert_eq!(client.traffic(), before);
                    assert_eq!(before.greetings, 1);
                    assert_eq!(
                        (closes, client.counters.closes()),
                        (1, 1),
                        "its owner's alone"
                    );
                })
                .await;
            }
        }
    }
}

/// The three ways in which a supervisor lets go of what is lent.
#[derive(Clone, Copy, Debug)]
enum LetGo {
    Shutdown,
    Detach,
    DropHandle,
    DropSupervisor,
}

async fn let_go(how: LetGo, wire: Wire, era: Era, lent: Lent) {
    let client = Client::new(wire, era, json!({})).await;
    let supervisor = Supervisor::builder().start().await.unwrap();
    let connection = lent.lend(&supervisor, &client.service).await.unwrap();
    charge(&connection).await;
    let another = connection.clone();
    match how {
        LetGo::Shutdown => {
            let report = supervisor.shutdown(Duration::from_secs(2)).await;
            assert_eq!(report.connections.len(), 1);
            assert_eq!(report.connections[0].stopped, None, "{how:?}");
            assert_eq!(report.unknown().count(), 0);
        }
        LetGo::Detach => {
            connection.detach();
            another
                .status_when(|s| s.state == mcp_supervisor::connection::ConnectionState::Closed)
                .await;
            let error = operate("tools/call", &another).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
        }
        LetGo::DropHandle => {
            drop(connection);
            charge(&another).await;
            drop(another);
        }
        LetGo::DropSupervisor => {
            drop(supervisor);
            until("it takes no more calls", || {
                another.status().state != mcp_supervisor::connection::ConnectionState::Live
            })
            .await;
        }
    }
    client.works().await;
    let traffic = client.traffic();
    assert_eq!((traffic.processes, traffic.greetings), (1, 1), "{how:?}");
    assert_eq!(client.counters.closes(), 0, "{how:?}");
    assert_eq!(client.bed.running().len(), 1, "{how:?}");
    assert!(!client.service.is_closed());
}

#[tokio::test]
async fn what_is_lent_works_on_in_the_callers_hands() {
    for how in [
        LetGo::Shutdown,
        LetGo::Detach,
        LetGo::DropHandle,
        LetGo::DropSupervisor,
    ] {
        for era in eras() {
            for wire in WIRES {
                for lent in LENT {
                    bounded(let_go(how, wire, era.clone(), lent)).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn lending_what_is_closed_fails_at_once() {
    for era in eras() {
        for lent in LENT {
            bounded(async {
                let supervisor = Supervisor::builder().start().await.unwrap();
                let closed_by_its_owner = {
                    let mut client = Client::new(Wire::Stdio, era.clone(), json!({})).await;
                    client.service.close().await.unwrap();
                    client
                };
                let died = Client::new(Wire::Stdio, era.clone(), json!({})).await;
                for pid in died.bed.running() {
                    kill(pid);
                }
                let peer = died.service.peer().clone();
                until("rmcp notices", || peer.is_transport_closed()).await;
                for client in [closed_by_its_owner, died] {
                    let before = client.traffic();
                    let error = lent.lend(&supervisor, &client.service).await.unwrap_err();
                    assert!(matches!(error, AddError::LentClosed(_)), "{error}");
                    assert!(error.to_string().contains("caller-owned"), "{error}");
                    assert_eq!(lies_in(&error.to_string()), [""; 0]);
                    assert_eq!(client.traffic(), before);
                    // Its name is free for the replacement.
                    assert!(supervisor.lent_connection("lent").is_none());
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn suspicion_never_condemns_a_lent_connection() {
    let script = json!({"rules": [{"on": "tools/call", "tool": "slow", "do": ["ledger", "hang"]}]});
    for era in eras() {
        for wire in WIRES {
            for lent in LENT {
                bounded(async {
                    let client = Client::new(wire, era.clone(), script.clone()).await;
                    let supervisor = Supervisor::builder().start().await.unwrap();
                    let connection = lent.lend(&supervisor, &client.service).await.unwrap();
                    for _ in 0..2 {
                        let slow = ToolCall::new("slow", json!({}));
                        let slow = slow.deadline(Duration::from_millis(150));
                        let error = connection.call_tool(slow).await.unwrap_err();
                        assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
                    }
                    assert_eq!(charge(&connection).await, 1);
                    assert_eq!((client.bed.ran("slow"), client.bed.ran("charge")), (2, 1));
                    assert_eq!(client.traffic().greetings, 1);
                    assert_eq!(client.counters.closes(), 0);
                })
                .await;
            }
        }
    }
}

/// Fills the channel that the caller and we share. The client service behind it stands still.
fn fill(peer: &Peer<RoleClient>) -> usize {
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    (0..)
        .find(|_| {
            let ping = ClientRequest::PingRequest(PingRequest::default());
            let sending = peer.send_request_with_option(ping, PeerRequestOptions::no_options());
            let sending = tokio::task::coop::unconstrained(sending);
            std::pin::pin!(sending).poll(&mut context).is_pending()
        })
        .expect("a channel has an end")
}

#[tokio::test]
#[expect(
    clippy::await_holding_lock,
    reason = "the other side, which the lock holds up, runs in a runtime of its own"
)]
async fn a_full_lent_channel_is_overload_and_nothing_was_sent() {
    // The caller's client stands still in a runtime of its own, so that ours does not with it.
    let theirs = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for lent in LENT {
        bounded(async {
            let client = theirs.spawn(Client::new(Wire::Stdio, initialize(), json!({})));
            let client = client.await.unwrap();
            let supervisor = Supervisor::builder().start().await.unwrap();
            let connection = lent.lend(&supervisor, &client.service).await.unwrap();
            charge(&connection).await;
            let held = client.counters.hold();
            let filled = fill(client.service.peer());
            assert!(filled >= 1_024, "{filled}");
            let error = operate("tools/call", &connection).await;
            drop(held);
            let error = error.unwrap_err();
            let CallError::NotSent(not_sent) = &error else {
                panic!("{error}")
            };
            assert!(
                matches!(not_sent.reason, NotSentReason::Overloaded { .. }),
                "{error}"
            );
            client.works().await;
            assert_eq!(
                charge(&connection).await,
                1,
                "it is taken again once there is room"
            );
            assert_eq!(client.bed.ran("charge"), 2);
        })
        .await;
    }
    theirs.shutdown_background();
}
