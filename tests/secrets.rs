//! What callers, servers and people say to each other is in nothing that is emitted.
//!
//! Each place that can hold something gets a mark of its own. Then the story is told, over each
//! transport and in each era, and everything that came out is searched for the marks: log lines of
//! every crate at `DEBUG` and of this one at `TRACE`, spans as logged and as exported, events,
//! errors with their causes, metrics as a page, and the `Debug` output of everything.

#![allow(
    deprecated,
    reason = "samplings and log messages are what the revisions before 2026-07-28 have"
)]

#[path = "support/mod.rs"]
mod support;

use std::{
    collections::BTreeSet,
    error::Error,
    fmt::{Debug, Write as _},
    sync::{Arc, LazyLock, Mutex},
    time::Duration,
};

use mcp_supervisor::{
    CallError, Connection, ConnectionSpec, CustomCall, Era, Event, HttpSpec, Limits, Outcome, Page,
    PromptGet, Received, ResourceRead, Supervisor, ToolCall, ToolContract, spec::TraceContext,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanEvents};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        CustomNotification, CustomRequest, CustomResult, ElicitRequestParams, ElicitResult,
        ElicitationAction, ErrorData, Implementation, LoggingMessageNotificationParam,
        ProgressNotificationParam, ResourceUpdatedNotificationParam,
    },
    service::{NotificationContext, RequestContext},
};
use serde_json::{Value, json};
use support::{
    Bed, bounded,
    logs::Logs,
    until,
    world::{Wire, everywhere},
};
use tracing_subscriber::{
    Layer as _,
    filter::LevelFilter,
    filter::Targets,
    fmt::format::{DefaultFields, FmtSpan, Format},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

/// Each planted secret begins like this; its place follows.
const MARK: &str = "planted-";

fn planted(place: &str) -> String {
    format!("{MARK}{place}")
}

/// Where marks were found in a text.
fn found(text: &str) -> BTreeSet<String> {
    text.split(MARK)
        .skip(1)
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            rest[..end.unwrap_or(rest.len())]
                .trim_end_matches('-')
                .to_owned()
        })
        .collect()
}

// ------------------------------------------------------------------------------ what is emitted

struct Emitted {
    logs: Logs,
    spans: InMemorySpanExporter,
    page: PrometheusHandle,
}

type Lines<S> = tracing_subscriber::fmt::Layer<S, DefaultFields, Format, Logs>;

fn text<S>(to: &Logs) -> Lines<S>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_subscriber::fmt::layer()
        .with_writer(to.clone())
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
}

static EMITTED: LazyLock<Emitted> = LazyLock::new(|| {
    let logs = Logs::default();
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(spans.clone())
        .build();
    let levels = Targets::new()
        .with_default(LevelFilter::DEBUG)
        .with_target("mcp_supervisor", LevelFilter::TRACE);
    let exported = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    tracing_subscriber::registry()
        .with(text(&logs).with_filter(levels.clone()))
        .with(exported.with_filter(levels))
        .init();
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    Emitted { logs, spans, page }
});

// ------------------------------------------------------------------------------ what is planted

/// Answers what it is asked with a secret, and keeps what it hears.
#[derive(Clone, Default)]
struct Person(Arc<Mutex<String>>);

impl Person {
    fn note(&self, heard: &impl Debug) {
        write!(self.0.lock().unwrap(), "{heard:?} ").unwrap();
    }
}

impl ClientHandler for Person {
    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.note(&asked);
        self.note(&context.peer.peer_info().unwrap());
        let content = json!({"name": planted("elicited")});
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }

    async fn create_message(
        &self,
        asked: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.note(&asked);
        Err(ErrorData::internal_error(planted("no"), None))
    }

    async fn on_custom_request(
        &self,
        asked: CustomRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        self.note(&asked);
        Ok(CustomResult(json!({"f": planted("custom-yes")})))
    }

    async fn on_progress(
        &self,
        told: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(&told);
    }

    async fn on_logging_message(
        &self,
        told: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(&told);
    }

    async fn on_resource_updated(
        &self,
        told: ResourceUpdatedNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(&told);
    }

    async fn on_custom_notification(
        &self,
        told: CustomNotification,
        _: NotificationContext<RoleClient>,
    ) {
        self.note(&told);
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder()
            .enable_elicitation()
            .enable_sampling()
            .build();
        ClientConfig::new(capabilities, Implementation::new("the host", "1"))
    }
}

fn script(wire: Wire) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let asks = json!({"jsonrpc": "2.0", "id": "e-1", "method": "elicitation/create", "params": {
        "mode": "form", "message": planted("question"), "requestedSchema": schema,
    }});
    let samples = json!({"jsonrpc": "2.0", "id": "e-2", "method": "sampling/createMessage", "params": {
        "maxTokens": 1, "messages": [
            {"role": "user", "content": {"type": "text", "text": planted("sampling")}},
        ],
    }});
    let custom = json!({"jsonrpc": "2.0", "id": "e-3", "method": "x/ask", "params": {
        "g": planted("custom-question"),
    }});
    let stray = json!({"jsonrpc": "2.0", "error": {
        "code": -32700, "message": planted("stray"), "data": planted("stray-data"),
    }});
    // Over HTTP it would belong to the call.
    let stray = match wire {
        Wire::Stdio => json!({"send": stray}),
        Wire::Http => json!({"sleep_ms": 0}),
    };
    let told = json!({"method": "x/told", "params": {"h": planted("told")}});
    let taken_back = json!({"method": "notifications/cancelled", "params": {
        "requestId": "e-0", "reason": planted("reason"),
    }});
    let progress = json!({"method": "notifications/progress", "params": {
        "progressToken": "$token", "progress": 1, "message": planted("progress"),
    }});
    let log = json!({"method": "notifications/message", "params": {
        "level": "info", "logger": planted("logger"), "data": planted("log"),
        "_meta": {"i": planted("log-meta")},
    }});
    let updated = json!({"method": "notifications/resources/updated", "params": {
        "uri": format!("x://y?{}", planted("updated")),
    }});
    let answer = json!({
        "content": [{"type": "text", "text": planted("result")}],
        "structuredContent": {"a": planted("structured")},
        "_meta": {"b": planted("result-meta")},
    });
    let error = json!({
        "code": -32000, "message": planted("error-message"), "data": planted("error-data"),
    });
    let refusal = json!({
        "code": -32602, "message": planted("refusal-message"), "data": planted("refusal-data"),
    });
    json!({
        "log_messages": true,
        "instructions": planted("instructions"),
        "rules": [
            {"on": "tools/call", "tool": "echo", "do": [
                {"notify": progress}, {"notify": log}, {"notify": updated}, {"notify": told},
                {"notify": taken_back}, stray,
                {"send": asks}, {"send": samples}, {"send": custom},
                {"wait_file": "answered"}, {"result": answer},
            ]},
            {"on": "response", "nth": 3, "do": [{"touch": "answered"}]},
            {"on": "tools/call", "tool": "lookup", "do": [{"error": error}]},
            {"on": "tools/call", "tool": "slow", "do": [{"error": refusal}]},
            {"on": "tools/call", "tool": "progress", "do": ["hang"]},
            {"on": "tools/call", "tool": "charge", "do": [
                "ledger", {"stderr": format!("{}\n", planted("stderr"))}, "kill",
            ]},
            {"on": "prompts/get", "do": [{"result": {"messages": [
                {"role": "user", "content": {"type": "text", "text": planted("prompt-result")}},
            ]}}]},
            {"on": "resources/read", "do": [{"result": {"contents": [
                {"uri": "x://y", "text": planted("resource")},
            ]}}]},
            {"on": "x/echo", "do": [{"result": {"c": planted("custom-result")}}]},
        ],
    })
}

/// All that an error says, to a person and to a debugger.
fn all_of(error: &CallError) -> String {
    let mut text = format!("{error} {error:?} {error:#?} {}", error.next_step());
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, " {cause} {cause:?}").unwrap();
        source = cause.source();
    }
    text
}

fn call(tool: &str) -> ToolCall {
    ToolCall::new(tool, json!({"card": planted("argument")}))
        .idempotency_key(planted("key").parse().unwrap())
        .meta("d", json!(planted("meta")))
        .deadline(Duration::from_secs(10))
}

/// Makes every kind of request, and returns what can be printed of what comes back.
async fn use_it(server: &Connection, told: &mut String) {
    let mut echo = call("echo");
    let progress = echo.progress();
    write!(told, "{echo:?} {progress:?} ").unwrap();
    let answer = server.call_tool(echo).await.unwrap();
    assert!(
        format!("{:?}", answer.structured()).contains(MARK),
        "it did come"
    );
    write!(told, "{answer:?} ").unwrap();
    for tool in ["lookup", "slow"] {
        let error = server.call_tool(call(tool)).await.unwrap_err();
        let ours = error.server_error().unwrap();
        assert!(ours.message.contains(MARK), "it did come");
        told.push_str(&all_of(&error));
    }
    let prompt = PromptGet::new("greet").argument("who", planted("prompt-argument"));
    write!(told, "{prompt:?} ").unwrap();
    server.get_prompt(prompt).await.unwrap();
    let uri = format!(
        "https://{}@host/p?{}",
        planted("uri-user"),
        planted("uri-query")
    );
    let read = ResourceRead::new(uri);
    write!(told, "{read:?} ").unwrap();
    server.read_resource(read).await.unwrap();
    let page = Page::after(planted("cursor"));
    write!(told, "{page:?} ").unwrap();
    if let Err(error) = server.list_tools(page).await {
        told.push_str(&all_of(&error));
    }
    let custom = CustomCall::new("x/echo", Some(json!({"e": planted("custom")})));
    write!(told, "{custom:?} ").unwrap();
    server.request(custom).await.unwrap();
    let dropped = server.call_tool(call("progress"));
    let _ = tokio::time::timeout(Duration::from_millis(200), dropped).await;
    let error = server.call_tool(call("charge")).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
    told.push_str(&all_of(&error));
}

async fn story(wire: Wire, era: Era, told: &mut String) {
    let bed = Bed::new(script(wire));
    let server = match wire {
        Wire::Http => Some(bed.http().await),
        Wire::Stdio => None,
    };
    let spec: ConnectionSpec = match &server {
        None => bed
            .stdio()
            .env("TOKEN", planted("env"))
            .arg(format!("--key={}", planted("arg")))
            .into(),
        Some(server) => {
            let userinfo = format!("{}:{}", planted("user"), planted("password"));
            let url = format!("http://{userinfo}@{}/mcp?{}", server.addr, planted("query"));
            HttpSpec::new(url)
                .header("x-api-key", planted("header"))
                .bearer(planted("bearer"))
                .into()
        }
    };
    let person = Person::default();
    let limits = Limits {
        total: Duration::from_secs(20),
        ..Limits::default()
    };
    let spec = spec
        .era(era)
        .limits(limits)
        .handler(person.clone())
        .trace_context(TraceContext::SentWithBaggage)
        .contract("charge", ToolContract::Idempotent);
    let supervisor = Supervisor::builder().start().await.unwrap();
    let mut events = supervisor.events();
    let connection = supervisor.open("server", spec.clone()).await.unwrap();
    write!(told, "{spec:?} {connection:?} {supervisor:?} ").unwrap();
    use_it(&connection, told).await;
    write!(told, "{:?} ", connection.status()).unwrap();
    let report = supervisor.shutdown(Duration::from_secs(1)).await;
    write!(told, "{report:?} {events:?} ").unwrap();
    drop(connection);
    let mut kinds = 0;
    while let Some(received) = events.next().await {
        let Received::Event(event) = received else {
            panic!("some were missed")
        };
        let _: &Event = &event;
        write!(told, "{event:?} ").unwrap();
        kinds += 1;
    }
    assert!(kinds > 15, "{kinds} events");
    // The plants have reached the server, so that they were there to be told.
    let read = std::fs::read_to_string(bed.file("messages")).unwrap();
    for place in [
        "argument",
        "meta",
        "prompt-argument",
        "uri-query",
        "cursor",
        "custom",
        "elicited",
        "no",
        "custom-yes",
    ] {
        assert!(read.contains(&planted(place)), "{place} was not sent");
    }
    // And the server's have reached the handler, whole.
    for place in [
        "instructions",
        "progress",
        "log",
        "logger",
        "updated",
        "told",
        "question",
        "sampling",
        "custom-question",
    ] {
        let heard = || found(&person.0.lock().unwrap()).contains(place);
        until(place, heard).await;
    }
    drop(server);
    bed.until_all_gone().await;
}

#[tokio::test]
async fn nothing_that_is_emitted_holds_what_was_said_or_what_opens_a_door() {
    let emitted = &*EMITTED;
    let mut told = String::new();
    for (wire, era) in everywhere() {
        bounded(story(wire, era, &mut told)).await;
    }
    let logs = emitted.logs.text();
    for seen in [
        "session started",
        "outcome unknown",
        "attempt ended",
        "tools/call echo",
        "DEBUG hyper_util",
        "Service initialized as client",
        "received notification",
        "received request",
        "response message",
    ] {
        assert!(logs.contains(seen), "{seen} is captured");
    }
    // A log line within a span is an event of it, and is looked at among the logs.
    let mut spans = emitted.spans.get_finished_spans().unwrap();
    for span in &mut spans {
        if !span.name.starts_with("tools/call") {
            span.events = SpanEvents::default();
        }
    }
    let spans = format!("{spans:?}");
    assert!(spans.contains("tools/call charge"), "spans are exported");
    let page = emitted.page.render();
    assert!(
        page.contains("mcp_supervisor_unknown_outcomes"),
        "numbers are counted"
    );
    // The tail of a server's stderr is in the error and the event of its end by design: it is what
    // a server says about its death, and nothing else tells it.
    let by_design = BTreeSet::from(["stderr".to_owned()]);
    for (what, text, allowed) in [
        ("errors, events and debug output", &told, &by_design),
        ("logs", &logs, &by_design),
        ("spans", &spans, &BTreeSet::new()),
        ("numbers", &page, &BTreeSet::new()),
    ] {
        let leaked: Vec<_> = found(text).difference(allowed).cloned().collect();
        assert!(leaked.is_empty(), "{what} hold {leaked:?}");
    }
    assert!(
        told.contains(&planted("stderr")),
        "the tail of stderr is told"
    );
}
