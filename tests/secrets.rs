//! What callers, servers and people say to each other is in nothing that is emitted.
//!
//! Each place that can hold something gets a mark of its own. Then the story is told, over each
//! transport and in each era, and everything that came out is searched for the marks: log lines of
//! every crate at `DEBUG` and of this one at `TRACE`, spans as logged and as exported, events,
//! errors with their causes, metrics as a page, and the `Debug` output of everything.

#[path = "support/mod.rs"]
mod support;

use std::{collections::BTreeSet, error::Error, fmt::Write as _, sync::LazyLock, time::Duration};

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
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ErrorData, Implementation,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use support::{
    Bed, bounded,
    logs::Logs,
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
    /// Of every crate but rmcp.
    logs: Logs,
    of_rmcp: Logs,
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
    let (logs, of_rmcp) = (Logs::default(), Logs::default());
    let spans = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(spans.clone())
        .build();
    let all_but_rmcp = Targets::new()
        .with_default(LevelFilter::DEBUG)
        .with_target("mcp_supervisor", LevelFilter::TRACE)
        .with_target("rmcp", LevelFilter::OFF);
    let rmcp_alone = Targets::new().with_target("rmcp", LevelFilter::DEBUG);
    let exported = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    tracing_subscriber::registry()
        .with(text(&logs).with_filter(all_but_rmcp.clone()))
        .with(text(&of_rmcp).with_filter(rmcp_alone))
        .with(exported.with_filter(all_but_rmcp))
        .init();
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    Emitted {
        logs,
        of_rmcp,
        spans,
        page,
    }
});

// ------------------------------------------------------------------------------ what is planted

/// Answers what it is asked with a secret.
struct Person;

impl ClientHandler for Person {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let content = json!({"name": planted("elicited")});
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("the host", "1"))
    }
}

fn script() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let asks = json!({"jsonrpc": "2.0", "id": "e-1", "method": "elicitation/create", "params": {
        "mode": "form", "message": planted("question"), "requestedSchema": schema,
    }});
    let progress = json!({"method": "notifications/progress", "params": {
        "progressToken": "$token", "progress": 1, "message": planted("progress"),
    }});
    let log = json!({"method": "notifications/message", "params": {
        "level": "info", "data": planted("log"),
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
                {"notify": progress}, {"notify": log}, {"notify": updated}, {"send": asks},
                {"wait_file": "answered"}, {"result": answer},
            ]},
            {"on": "response", "do": [{"touch": "answered"}]},
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
    let bed = Bed::new(script());
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
    let limits = Limits {
        total: Duration::from_secs(20),
        ..Limits::default()
    };
    let spec = spec
        .era(era)
        .limits(limits)
        .handler(Person)
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
    ] {
        assert!(read.contains(&planted(place)), "{place} was not sent");
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

    // rmcp logs by itself what the server says unasked and what the handler answers. Nothing here
    // can keep it from that; the document says how the host does.
    let of_rmcp = emitted.of_rmcp.text();
    let by_rmcp = found(&of_rmcp);
    let named = [
        "progress",
        "log",
        "updated",
        "question",
        "elicited",
        "instructions",
    ];
    let named: BTreeSet<_> = named.map(str::to_owned).into();
    assert_eq!(by_rmcp, named, "what docs/observability.md says of rmcp");
}
