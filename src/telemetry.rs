//! One span for each operation, by the OpenTelemetry semantic conventions for MCP.
//!
//! Where nobody listens a span costs a comparison: its fields are not even computed.

#[cfg(feature = "otel")]
mod propagation;

use std::borrow::Cow;

use rmcp::model::{ClientRequest, RequestId};
use tokio::time::Instant;
use tracing::{Span, field::Empty};

use crate::{
    error::{CallError, NotSentReason, UnknownCause},
    event::{Ended, Teller, What},
    operation::{AttemptId, ConnectionName, Generation, OperationId, OperationKind, Ownership},
    spec::TraceContext,
};

/// Where a connection's requests go, as far as a span tells of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FarEnd {
    transport: Option<&'static str>,
    protocol: Option<&'static str>,
    host: Option<String>,
    port: Option<u16>,
}

#[cfg_attr(
    not(all(feature = "stdio", feature = "http")),
    expect(dead_code, reason = "each is for one transport")
)]
impl FarEnd {
    pub(crate) fn pipe() -> Self {
        Self {
            transport: Some("pipe"),
            ..Self::default()
        }
    }

    pub(crate) fn http(host: Option<String>, port: Option<u16>) -> Self {
        Self {
            transport: Some("tcp"),
            protocol: Some("http"),
            host,
            port,
        }
    }
}

/// What an operation is about, for its span and its end.
pub(crate) struct Subject<'a> {
    pub(crate) teller: &'a Teller,
    pub(crate) operation: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) connection: &'a ConnectionName,
    pub(crate) ownership: Ownership,
    pub(crate) far_end: &'a FarEnd,
    /// The method, where it is the caller's own and in no request.
    pub(crate) method: Option<&'a str>,
}

/// What a caller has seen of its attempts.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) generation: Option<Generation>,
    pub(crate) request: Option<RequestId>,
    /// A request of the operation may have reached the server.
    pub(crate) perhaps_sent: bool,
}

impl Seen {
    fn request_id(&self) -> Option<String> {
        self.request.as_ref().map(ToString::to_string)
    }
}

/// Watches an operation from its beginning to its end, and tells of the end: also of that of an
/// operation whose caller goes away.
pub(crate) struct Watch<'a> {
    subject: Subject<'a>,
    pub(crate) began: Instant,
    span: Span,
    pub(crate) seen: Seen,
    attempts: u32,
    attempting: bool,
    waited: bool,
    over: bool,
}

impl<'a> Watch<'a> {
    /// The operation begins, in the caller's current span.
    pub(crate) fn begin(subject: Subject<'a>, request: Option<&ClientRequest>) -> Self {
        let span = span(&subject, request);
        subject.teller.operation_began();
        Self {
            subject,
            began: Instant::now(),
            span,
            seen: Seen::default(),
            attempts: 0,
            attempting: false,
            waited: false,
            over: false,
        }
    }

    pub(crate) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Since when the next attempt waits: the first since the operation began, any other since now.
    pub(crate) fn waits_since(&mut self) -> Instant {
        match std::mem::replace(&mut self.waited, true) {
            false => self.began,
            true => Instant::now(),
        }
    }

    /// Puts the trace context of the operation's span into the request, where the connection's
    /// setting says so. What the caller has put there itself stays.
    pub(crate) fn propagate(&self, setting: TraceContext, request: &mut ClientRequest) {
        #[cfg(feature = "otel")]
        propagation::propagate(&self.span, setting, request);
        #[cfg(not(feature = "otel"))]
        let _ = (setting, request);
    }

    /// An attempt begins.
    pub(crate) fn attempt_begins(&mut self) -> &mut Seen {
        self.attempting = true;
        self.seen.generation = None;
        &mut self.seen
    }

    /// An attempt is over, and was not handed over.
    pub(crate) fn attempt_stayed_here(&mut self, before: Option<Generation>) {
        self.attempting = false;
        self.seen.generation = before;
    }

    /// An attempt that was handed over is over: an event in the operation's span.
    pub(crate) fn attempt_ended(&mut self, attempt: AttemptId, number: u32, ended: Ended) {
        self.attempting = false;
        self.attempts = number;
        tracing::event!(
            target: "mcp_supervisor",
            parent: &self.span,
            tracing::Level::DEBUG,
            {
                mcp_supervisor.attempt = %attempt,
                mcp_supervisor.number = number,
                mcp_supervisor.generation = self.seen.generation.map(Generation::number),
                mcp_supervisor.outcome = ended.as_str(),
                jsonrpc.request.id = self.seen.request_id().as_deref(),
            },
            "attempt ended"
        );
    }

    /// The operation ended with an answer.
    pub(crate) fn answered(
        &mut self,
        is_tool_error: bool,
        revision: impl FnOnce() -> Option<String>,
    ) {
        let ended = if is_tool_error {
            self.span.record("error.type", "tool_error");
            self.span.record("otel.status_code", "ERROR");
            Ended::ToolError
        } else {
            Ended::Answered
        };
        self.end(ended, revision);
    }

    /// It was a notification, and the transport has taken it.
    pub(crate) fn handed_over(&mut self, revision: impl FnOnce() -> Option<String>) {
        self.end(Ended::HandedOver, revision);
    }

    /// The operation ended without an answer.
    pub(crate) fn failed(&mut self, error: &CallError, revision: impl FnOnce() -> Option<String>) {
        if !self.span.is_disabled() {
            self.span.record("error.type", &*error_type(error));
            self.span.record("otel.status_code", "ERROR");
            if let Some(error) = error.server_error() {
                let code = error.code.to_string();
                self.span.record("rpc.response.status_code", &*code);
            }
        }
        self.end(Ended::Without(error.outcome()), revision);
    }

    fn end(&mut self, ended: Ended, revision: impl FnOnce() -> Option<String>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if !self.span.is_disabled() {
            if let Some(revision) = revision() {
                self.span.record("mcp.protocol.version", &*revision);
            }
            if let Some(request) = &self.seen.request {
                self.span
                    .record("jsonrpc.request.id", &*request.to_string());
            }
            if let Some(generation) = self.seen.generation {
                self.span
                    .record("mcp_supervisor.generation", generation.number());
            }
            self.span.record("mcp_supervisor.attempts", self.attempts);
            self.span.record("mcp_supervisor.outcome", ended.as_str());
        }
        self.subject.teller.tell(What::OperationFinished {
            operation: self.subject.operation,
            kind: self.subject.kind,
            ended,
            attempts: self.attempts,
            generation: self.seen.generation,
            elapsed: self.began.elapsed(),
        });
        // Closed now, and not when the caller lets go of what it has.
        self.span = Span::none();
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let perhaps_sent = self.seen.perhaps_sent;
        if self.attempting && self.seen.generation.is_some() {
            self.attempts += 1;
        }
        self.span.record("error.type", "abandoned");
        self.span.record("otel.status_code", "ERROR");
        self.span
            .record("mcp_supervisor.perhaps_sent", perhaps_sent);
        self.end(Ended::Abandoned { perhaps_sent }, || None);
    }
}

fn span(subject: &Subject<'_>, request: Option<&ClientRequest>) -> Span {
    // The fields are expressions of the macro, and so computed only where somebody listens.
    let span = tracing::info_span!(
        target: "mcp_supervisor",
        "mcp.operation",
        otel.kind = "client",
        otel.name = name(subject, request),
        otel.status_code = Empty,
        "error.type" = Empty,
        mcp.method.name = method(subject, request),
        mcp.protocol.version = Empty,
        mcp.resource.uri = request.and_then(resource).as_deref(),
        gen_ai.operation.name = (subject.kind == OperationKind::ToolCall).then_some("execute_tool"),
        gen_ai.tool.name = request.and_then(tool),
        gen_ai.prompt.name = request.and_then(prompt),
        jsonrpc.request.id = Empty,
        rpc.response.status_code = Empty,
        network.transport = subject.far_end.transport,
        network.protocol.name = subject.far_end.protocol,
        server.address = subject.far_end.host.as_deref(),
        server.port = subject.far_end.port,
        mcp_supervisor.operation = %subject.operation,
        mcp_supervisor.connection = subject.connection.as_str(),
        mcp_supervisor.ownership = ownership(subject.ownership),
        mcp_supervisor.generation = Empty,
        mcp_supervisor.attempts = Empty,
        mcp_supervisor.outcome = Empty,
        mcp_supervisor.perhaps_sent = Empty,
    );
    span
}

fn ownership(ownership: Ownership) -> &'static str {
    match ownership {
        Ownership::Framework => "framework",
        Ownership::LentService => "lent_service",
        Ownership::LentPeer => "lent_peer",
    }
}

fn method<'a>(subject: &Subject<'a>, request: Option<&'a ClientRequest>) -> &'a str {
    match request {
        Some(request) => request.method(),
        None => subject.method.unwrap_or(subject.kind.method()),
    }
}

fn tool(request: &ClientRequest) -> Option<&str> {
    match request {
        ClientRequest::CallToolRequest(request) => Some(&request.params.name),
        _ => None,
    }
}

fn prompt(request: &ClientRequest) -> Option<&str> {
    match request {
        ClientRequest::GetPromptRequest(request) => Some(&request.params.name),
        _ => None,
    }
}

fn name(subject: &Subject<'_>, request: Option<&ClientRequest>) -> String {
    let method = method(subject, request);
    match request.and_then(|request| tool(request).or_else(|| prompt(request))) {
        Some(target) => format!("{method} {target}"),
        None => method.to_owned(),
    }
}

fn resource(request: &ClientRequest) -> Option<String> {
    let uri = match request {
        ClientRequest::ReadResourceRequest(request) => &request.params.uri,
        ClientRequest::SubscribeRequest(request) => &request.params.uri,
        ClientRequest::UnsubscribeRequest(request) => &request.params.uri,
        _ => return None,
    };
    Some(without_secrets(uri))
}

/// A resource's URI without what holds credentials in the field: user and password, query and
/// fragment, and everything of a URI that has no authority, such as `data:`.
fn without_secrets(uri: &str) -> String {
    let Some((scheme, rest)) = uri.split_once(':') else {
        return String::new();
    };
    let Some(rest) = rest.strip_prefix("//") else {
        return format!("{scheme}:");
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// The class of an error, in a bounded number of words and numbers.
fn error_type(error: &CallError) -> Cow<'static, str> {
    if let Some(error) = error.server_error() {
        return error.code.to_string().into();
    }
    match error {
        CallError::NotSent(e) => match &e.reason {
            NotSentReason::DeadlinePassed(_) => "timeout".into(),
            reason => reason.as_str().into(),
        },
        CallError::Unknown(e) => match &e.cause {
            UnknownCause::DeadlinePassed(_) => "timeout".into(),
            UnknownCause::Status(status) => status.to_string().into(),
            cause => cause.as_str().into(),
        },
        CallError::Rejected(_) | CallError::Failed(_) => error
            .http_status()
            .map_or("_OTHER".into(), |status| status.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_shows_of_a_resource_where_it_is_and_no_credentials() {
        for (uri, shown) in [
            ("file:///home/me/notes.txt", "file:///home/me/notes.txt"),
            (
                "https://user:pw@host:8080/a/b?token=t#f",
                "https://host:8080/a/b",
            ),
            ("https://host?token=t", "https://host"),
            ("postgres://u@p@db/customers", "postgres://db/customers"),
            ("data:text/plain;base64,c2VjcmV0", "data:"),
            ("secret", ""),
        ] {
            assert_eq!(without_secrets(uri), shown);
        }
    }
}
