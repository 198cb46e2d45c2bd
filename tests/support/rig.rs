//! One fault server, one supervisor, and the connections between them, on any transport and era.

use std::{error::Error, time::Duration};

use futures::StreamExt as _;
use mcp_supervisor::{
    CallError, Connection, ConnectionSpec, Era, LentConnection, LentSpec, OwnedConnection,
    Supervisor, ToolAnswer, ToolCall,
};
use rmcp::{RoleClient, service::RunningService};
use serde_json::{Value, json};

use super::{
    Bed, HttpServer, bounded, initialize,
    lent::{lent_http, lent_stdio},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Stdio,
    Http,
}

/// Who owns a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Framework,
    LentService,
    LentPeer,
}

pub const WIRES: [Wire; 2] = [Wire::Stdio, Wire::Http];
pub const OWNERS: [Owner; 3] = [Owner::Framework, Owner::LentService, Owner::LentPeer];
pub const LENDERS: [Owner; 2] = [Owner::LentService, Owner::LentPeer];

pub fn eras() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// An argument's value, which no text may show.
pub const SECRET: &str = "4242-4242";

/// Runs a test body for each case, a few at a time: most of their time is spent waiting.
pub async fn side_by_side<T>(cases: impl IntoIterator<Item = T>, body: impl AsyncFn(T)) {
    let body = &body;
    futures::stream::iter(cases)
        .for_each_concurrent(4, async move |case| bounded(body(case)).await)
        .await;
}

pub struct Rig {
    pub bed: Bed,
    pub http: Option<HttpServer>,
    pub supervisor: Supervisor,
    era: Era,
}

/// A connection of either kind. What was lent is kept as long as it lives.
pub enum Held {
    Owned(OwnedConnection),
    Lent(LentConnection, Box<RunningService<RoleClient, ()>>),
}

impl Held {
    pub fn connection(&self) -> &Connection {
        match self {
            Self::Owned(owned) => owned,
            Self::Lent(lent, _) => lent,
        }
    }
}

impl Rig {
    pub async fn new(wire: Wire, era: &Era, script: Value) -> Self {
        let bed = Bed::new(script);
        let http = match wire {
            Wire::Stdio => None,
            Wire::Http => Some(bed.http().await),
        };
        let supervisor = Supervisor::builder().start().await.unwrap();
        Self {
            bed,
            http,
            supervisor,
            era: era.clone(),
        }
    }

    pub fn spec(&self) -> ConnectionSpec {
        match &self.http {
            None => self.bed.stdio_spec(self.era.clone()),
            Some(server) => server.spec(self.era.clone()),
        }
    }

    /// A framework-owned connection under the default rules.
    pub async fn open(&self) -> OwnedConnection {
        self.open_with(self.spec()).await
    }

    pub async fn open_with(&self, spec: ConnectionSpec) -> OwnedConnection {
        self.supervisor.open("billing", spec).await.unwrap()
    }

    pub async fn hold(&self, owner: Owner) -> Held {
        let spec = LentSpec::new();
        if owner == Owner::Framework {
            return Held::Owned(self.open().await);
        }
        let service = match &self.http {
            None => lent_stdio(&self.bed, self.era.clone()).await,
            Some(server) => lent_http(server.url(), self.era.clone()).await,
        };
        let lent = match owner {
            Owner::LentPeer => {
                let peer = service.peer().clone();
                self.supervisor.lend_peer("billing", peer, spec).await
            }
            _ => {
                self.supervisor
                    .lend_service("billing", &service, spec)
                    .await
            }
        };
        Held::Lent(lent.unwrap(), Box::new(service))
    }

    /// How many requests of any kind the server has read.
    pub fn requests(&self) -> usize {
        let is_request = |id: &str| id != "-";
        let wire = self.bed.wire();
        wire.iter().filter(|read| is_request(&read.id)).count()
    }

    /// Stops everything and sees that no process of the runtime's stays.
    pub async fn finish(self) {
        let report = self.supervisor.shutdown(Duration::from_secs(2)).await;
        assert_eq!(report.unknown().count(), 0, "{report:?}");
        drop(self.http);
        self.bed.until_all_gone().await;
    }
}

/// The call whose answer gets lost. Its arguments hold something that no text may show.
pub fn charge() -> ToolCall {
    ToolCall::new("charge", json!({"amount": 1999, "card": SECRET}))
}

/// Another call, which the scripts leave alone.
pub async fn echo(connection: &Connection) -> Result<ToolAnswer, CallError> {
    connection
        .call_tool(ToolCall::new("echo", json!({"a": 1})))
        .await
}

/// No text of an error, nor of its causes, shows the arguments.
pub fn assert_discreet(error: &CallError) {
    let mut texts = vec![error.to_string(), format!("{error:?}")];
    let mut cause = error.source();
    while let Some(error) = cause {
        texts.push(error.to_string());
        cause = error.source();
    }
    for text in texts {
        assert!(!text.contains(SECRET), "shows the arguments: {text}");
    }
}

/// The first cause of a type among an error's sources.
pub fn cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}
