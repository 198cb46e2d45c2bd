//! A connection of ours to the fault server, over one transport and in one era.

use std::time::Duration;

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, EventStream, OwnedConnection, Supervisor, ToolAnswer, ToolCall,
    connection::ConnectionState,
    error::{NotSentReason, UnknownCause},
};
use serde_json::{Value, json};

use super::{Bed, HttpServer, initialize};

/// How the fault server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Stdio,
    Http,
}

pub const BOTH: [Over; 2] = [Over::Stdio, Over::Http];

/// Every combination of these transports with both eras.
pub fn lanes(transports: &[Over]) -> Vec<(Over, Era)> {
    let eras = [initialize(), Era::Discover];
    let with_eras = |over: &Over| eras.clone().map(|era| (*over, era));
    transports.iter().flat_map(with_eras).collect()
}

/// A fault server and a framework-owned connection to it.
pub struct Rig {
    pub bed: Bed,
    pub server: Option<HttpServer>,
    pub supervisor: Supervisor,
    pub connection: OwnedConnection,
    pub events: EventStream,
}

impl Rig {
    pub async fn new(over: Over, era: Era, script: Value) -> Self {
        Self::with(over, era, script, |spec| spec).await
    }

    /// With a spec that `adjust` has the last word on.
    pub async fn with(
        over: Over,
        era: Era,
        script: Value,
        adjust: impl FnOnce(ConnectionSpec) -> ConnectionSpec,
    ) -> Self {
        let bed = Bed::new(script);
        let (server, spec) = match over {
            Over::Stdio => (None, bed.stdio_spec(era)),
            Over::Http => {
                let server = bed.http().await;
                let spec = server.spec(era);
                (Some(server), spec)
            }
        };
        let supervisor = Supervisor::builder().start().await.unwrap();
        let events = supervisor.events();
        let connection = supervisor.open("case", adjust(spec)).await.unwrap();
        Self {
            bed,
            server,
            supervisor,
            connection,
            events,
        }
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Result<ToolAnswer, CallError> {
        self.connection
            .call_tool(ToolCall::new(tool, arguments))
            .await
    }

    /// An `echo` that must work, and the generation that answered it.
    pub async fn echo(&self) -> u64 {
        let sent = json!({"still": "here"});
        let answer = self.call("echo", sent.clone()).await.unwrap();
        assert_eq!(answer.structured(), Some(&sent));
        answer.generation().number()
    }

    /// Waits until the connection has noticed that its session is over.
    pub async fn until_idle(&self) {
        self.connection
            .status_when(|status| status.state == ConnectionState::Idle)
            .await;
    }

    /// Shuts down, and finds no process left behind.
    pub async fn finish(mut self) {
        if let Some(server) = &mut self.server {
            server.kill();
        }
        let report = self.supervisor.shutdown(Duration::from_secs(2)).await;
        assert_eq!(report.unknown().count(), 0, "{report:?}");
        self.bed.until_all_gone().await;
    }
}

/// Why nobody knows; anything but an unknown outcome fails the test.
#[track_caller]
pub fn unknown(result: Result<ToolAnswer, CallError>) -> UnknownCause {
    match result {
        Err(error) => unknown_cause(&error),
        Ok(answer) => panic!("it was answered: {answer:?}"),
    }
}

#[track_caller]
pub fn unknown_cause(error: &CallError) -> UnknownCause {
    match error {
        CallError::Unknown(unknown) => unknown.cause.clone(),
        other => panic!("its outcome is known: {other}"),
    }
}

/// Why it was not sent; anything else fails the test.
#[track_caller]
pub fn not_sent(error: &CallError) -> &NotSentReason {
    match error {
        CallError::NotSent(not_sent) => &not_sent.reason,
        other => panic!("it may have been sent: {other}"),
    }
}
