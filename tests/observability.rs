//! What is told of an operation beside its outcome: its span, its trace context, its events and its
//! numbers.

#[path = "observability/numbers.rs"]
mod numbers;
#[path = "observability/spans.rs"]
mod spans;
#[path = "support/mod.rs"]
mod support;
#[path = "observability/tables.rs"]
mod tables;
#[path = "observability/trace_context.rs"]
mod trace_context;

use std::{
    collections::BTreeMap,
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcp_supervisor::{ConnectionSpec, Era, OwnedConnection, Supervisor};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde_json::Value;
use support::{
    Bed, HttpServer,
    world::{Wire, everywhere},
};
use tracing_subscriber::{
    Layer, filter::LevelFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// One exporter for the whole process, so that no place in the code is first seen under none.
static EXPORTED: LazyLock<InMemorySpanExporter> = LazyLock::new(|| {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("tests"));
    tracing_subscriber::registry()
        .with(spans.with_filter(LevelFilter::DEBUG))
        .with(Fields)
        .init();
    exporter
});

/// The names of the fields of each span of this crate's.
static FIELDS: Mutex<BTreeMap<&str, Vec<&str>>> = Mutex::new(BTreeMap::new());

struct Fields;

impl<S: tracing::Subscriber> Layer<S> for Fields {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        let metadata = attributes.metadata();
        if metadata.target() == "mcp_supervisor" {
            let names = metadata.fields().iter().map(|field| field.name()).collect();
            FIELDS.lock().unwrap().insert(metadata.name(), names);
        }
    }
}

/// A supervisor with one connection to a fault server, whose name no other test has.
struct Scene {
    bed: Bed,
    http: Option<HttpServer>,
    era: Era,
    supervisor: Supervisor,
    name: String,
}

impl Scene {
    async fn new(wire: Wire, era: Era, script: Value) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        LazyLock::force(&EXPORTED);
        let bed = Bed::new(script);
        let http = match wire {
            Wire::Stdio => None,
            Wire::Http => Some(bed.http().await),
        };
        Self {
            bed,
            http,
            era,
            supervisor: Supervisor::builder().start().await.unwrap(),
            name: format!("server-{}", COUNT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn spec(&self) -> ConnectionSpec {
        match &self.http {
            None => self.bed.stdio_spec(self.era.clone()),
            Some(server) => server.spec(self.era.clone()),
        }
    }

    async fn open(&self, spec: ConnectionSpec) -> OwnedConnection {
        self.supervisor.open(&self.name, spec).await.unwrap()
    }

    /// The spans of this connection's operations, in the order of their ends.
    fn spans(&self) -> Vec<Span> {
        let all = EXPORTED.get_finished_spans().unwrap();
        let mut all: Vec<_> = all.into_iter().map(Span).collect();
        all.retain(|span| span.get("mcp_supervisor.connection") == Some(self.name.clone()));
        all
    }

    /// The only span that there is.
    #[track_caller]
    fn span(&self) -> Span {
        let mut spans = self.spans();
        assert_eq!(spans.len(), 1, "{spans:#?}");
        spans.remove(0)
    }

    async fn end(self) {
        let _ = self
            .supervisor
            .shutdown(std::time::Duration::from_secs(2))
            .await;
        drop(self.http);
        self.bed.until_all_gone().await;
    }
}

#[derive(Debug)]
struct Span(SpanData);

impl Span {
    fn get(&self, key: &str) -> Option<String> {
        attribute(&self.0.attributes, key)
    }

    fn ids(&self) -> (String, String) {
        let context = &self.0.span_context;
        (
            context.trace_id().to_string(),
            context.span_id().to_string(),
        )
    }
}

fn attribute(of: &[opentelemetry::KeyValue], key: &str) -> Option<String> {
    of.iter()
        .find(|attribute| attribute.key.as_str() == key)
        .map(|attribute| attribute.value.to_string())
}
