//! The trace context of an operation in the `_meta` of its requests, under the three names that
//! MCP reserves for it (SEP-414).

use opentelemetry::{
    Context, global,
    propagation::Injector,
    trace::{SpanContext, TraceContextExt as _},
};
use rmcp::model::{ClientRequest, GetMeta as _};
use serde_json::Value;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::spec::TraceContext;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const BAGGAGE: &str = "baggage";

pub(super) fn propagate(span: &Span, setting: TraceContext, request: &mut ClientRequest) {
    if setting == TraceContext::Withheld {
        return;
    }
    let mut context = span.context();
    if !context.span().span_context().is_valid() {
        // Nobody exports this span: the context that is current is what the host has.
        context = Context::current();
    }
    if !has(request, TRACEPARENT) && !has(request, TRACESTATE) {
        let of_span = context.span().span_context().clone();
        if of_span.is_valid() {
            put(request, TRACEPARENT, traceparent(&of_span));
            let state = of_span.trace_state().header();
            if !state.is_empty() {
                put(request, TRACESTATE, state);
            }
        }
    }
    if setting == TraceContext::SentWithBaggage && !has(request, BAGGAGE) {
        let mut baggage = Baggage(None);
        global::get_text_map_propagator(|p| p.inject_context(&context, &mut baggage));
        if let Some(baggage) = baggage.0 {
            put(request, BAGGAGE, baggage);
        }
    }
}

/// Version 00 of <https://www.w3.org/TR/trace-context/>.
fn traceparent(of: &SpanContext) -> String {
    let flags = of.trace_flags().to_u8();
    format!("00-{}-{}-{flags:02x}", of.trace_id(), of.span_id())
}

/// Takes, of all that the host's propagator injects, the baggage.
struct Baggage(Option<String>);

impl Injector for Baggage {
    fn set(&mut self, key: &str, value: String) {
        if key.eq_ignore_ascii_case(BAGGAGE) && !value.is_empty() {
            self.0 = Some(value);
        }
    }
}

fn put(request: &mut ClientRequest, key: &str, value: String) {
    request
        .get_meta_mut()
        .insert(key.to_owned(), Value::String(value));
}

#[expect(
    deprecated,
    reason = "`logging/setLevel` is, in the newest revision alone"
)]
/// Whether the caller has put `key` there itself, in whichever of the places that rmcp merges.
fn has(request: &ClientRequest, key: &str) -> bool {
    use ClientRequest as R;
    if request.get_meta().contains_key(key) {
        return true;
    }
    let in_params = match request {
        R::CallToolRequest(r) => r.params.meta.as_ref(),
        R::GetPromptRequest(r) => r.params.meta.as_ref(),
        R::ReadResourceRequest(r) => r.params.meta.as_ref(),
        R::CompleteRequest(r) => r.params.meta.as_ref(),
        R::SetLevelRequest(r) => r.params.meta.as_ref(),
        R::SubscribeRequest(r) => r.params.meta.as_ref(),
        R::UnsubscribeRequest(r) => r.params.meta.as_ref(),
        R::ListToolsRequest(r) => r.params.as_ref().and_then(|p| p.meta.as_ref()),
        R::ListPromptsRequest(r) => r.params.as_ref().and_then(|p| p.meta.as_ref()),
        R::ListResourcesRequest(r) => r.params.as_ref().and_then(|p| p.meta.as_ref()),
        R::ListResourceTemplatesRequest(r) => r.params.as_ref().and_then(|p| p.meta.as_ref()),
        R::CustomRequest(r) => {
            let meta = r.params.as_ref().and_then(|params| params.get("_meta"));
            return meta.is_some_and(|meta| meta.get(key).is_some());
        }
        _ => None,
    };
    in_params.is_some_and(|meta| meta.contains_key(key))
}
