//! One fault server on one transport in one era, and what is read from its errors and events.

use std::{sync::Arc, time::Duration};

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, Event, EventStream, LentConnection, LentSpec, Limits,
    OwnedConnection, Received, Supervisor, ToolCall, What,
    error::{NotSentReason, StartError, UnknownCause},
};
use rmcp::{RoleClient, service::RunningService};
use serde_json::{Value, json};

use super::{
    Bed, HttpServer, initialize,
    lent::{lent_http, lent_stdio},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Stdio,
    Http,
}

pub const WIRES: [Wire; 2] = [Wire::Stdio, Wire::Http];

pub fn eras() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// Both transports in both eras.
pub fn everywhere() -> impl Iterator<Item = (Wire, Era)> {
    WIRES
        .into_iter()
        .flat_map(|wire| eras().map(|era| (wire, era)))
}

pub struct World {
    pub bed: Bed,
    pub wire: Wire,
    pub era: Era,
    pub http: Option<HttpServer>,
}

impl World {
    pub async fn new(wire: Wire, era: Era, script: Value) -> Self {
        let bed = Bed::new(script);
        let http = match wire {
            Wire::Stdio => None,
            Wire::Http => Some(bed.http().await),
        };
        println!("{wire:?}, {era:?}");
        Self {
            bed,
            wire,
            era,
            http,
        }
    }

    pub fn spec(&self) -> ConnectionSpec {
        match &self.http {
            Some(server) => server.spec(self.era.clone()),
            None => self.bed.stdio_spec(self.era.clone()),
        }
    }

    /// The request that opens a session in this era.
    pub fn opening(&self) -> &'static str {
        match self.era {
            Era::Discover => "server/discover",
            _ => "initialize",
        }
    }

    /// A client of the caller's own.
    pub async fn client(&self) -> Client {
        match &self.http {
            None => lent_stdio(&self.bed, self.era.clone()).await,
            Some(http) => lent_http(http.url(), self.era.clone()).await,
        }
    }

    pub fn is_modern_http(&self) -> bool {
        self.wire == Wire::Http && self.era == Era::Discover
    }
}

/// A client service that a caller made.
pub type Client = RunningService<RoleClient, ()>;

pub async fn supervisor() -> Supervisor {
    Supervisor::builder().start().await.expect("it starts")
}

/// A supervisor with one connection, `server`.
pub async fn open(spec: ConnectionSpec) -> (Supervisor, OwnedConnection) {
    let supervisor = supervisor().await;
    let connection = supervisor.open("server", spec).await.expect("it opens");
    (supervisor, connection)
}

/// Lends `client` as `server`.
pub async fn lend(supervisor: &Supervisor, client: &Client, as_peer: bool) -> LentConnection {
    let spec = LentSpec::new();
    if as_peer {
        let peer = client.peer().clone();
        supervisor
            .lend_peer("server", peer, spec)
            .await
            .expect("it is open")
    } else {
        supervisor
            .lend_service("server", client, spec)
            .await
            .expect("it is open")
    }
}

pub async fn shut_down(supervisor: Supervisor) {
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
}

pub fn echo() -> ToolCall {
    ToolCall::new("echo", json!({}))
}

pub fn charge() -> ToolCall {
    ToolCall::new("charge", json!({"amount": 1}))
}

/// Limits under which nothing is given long to stop.
pub fn short_graces() -> Limits {
    Limits {
        stdin_grace: Duration::from_millis(200),
        term_grace: Duration::from_millis(200),
        ..Limits::default()
    }
}

#[track_caller]
pub fn not_sent(error: &CallError) -> &NotSentReason {
    match error {
        CallError::NotSent(e) => &e.reason,
        other => panic!("not \"not sent\": {other:?}"),
    }
}

#[track_caller]
pub fn unknown(error: &CallError) -> &UnknownCause {
    match error {
        CallError::Unknown(e) => &e.cause,
        other => panic!("not unknown: {other:?}"),
    }
}

#[track_caller]
pub fn start_error(error: &CallError) -> &Arc<StartError> {
    match not_sent(error) {
        NotSentReason::StartFailed(start) => start,
        other => panic!("no failed start: {other:?}"),
    }
}

/// Waits for an event.
pub async fn until_told(events: &mut EventStream, wanted: impl Fn(&What) -> bool) -> Arc<Event> {
    loop {
        match events.next().await.expect("the supervisor lives") {
            Received::Event(event) if wanted(&event.what) => return event,
            Received::Event(_) => {}
            Received::Missed(n) => panic!("{n} events were missed"),
        }
    }
}

/// The events that are there already.
pub async fn told(events: &mut EventStream) -> Vec<What> {
    let mut all = Vec::new();
    while let Ok(Some(received)) =
        tokio::time::timeout(Duration::from_millis(20), events.next()).await
    {
        match received {
            Received::Event(event) => all.push(event.what.clone()),
            Received::Missed(n) => panic!("{n} events were missed"),
        }
    }
    all
}
