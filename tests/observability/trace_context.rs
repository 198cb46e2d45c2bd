//! The trace context in `_meta`, as a server reads it.

use mcp_supervisor::{
    Connection, CustomCall, Era, LentSpec, Page, PromptGet, ResourceRead, ToolCall, ToolContract,
    spec::TraceContext,
};
use opentelemetry::{
    Context, KeyValue, baggage::BaggageExt as _, global, propagation::TextMapCompositePropagator,
    trace::FutureExt as _,
};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use serde_json::{Value, json};

use super::{
    Scene, everywhere,
    support::{
        bounded, initialize,
        lent::{lent_http, lent_stdio},
        world::Wire,
    },
};

fn script() -> Value {
    let resource = json!({"contents": [{"uri": "x://y", "text": "t"}]});
    json!({"log_messages": true, "rules": [
        {"on": "prompts/get", "do": [{"result": {"messages": []}}]},
        {"on": "resources/read", "do": [{"result": resource}]},
    ]})
}

/// One request of each shape.
async fn one_of_each(server: &Connection) {
    let call = ToolCall::new("echo", json!({"a": 1})).meta("mine", json!("kept"));
    server.call_tool(call).await.unwrap();
    server.list_tools(Page::first()).await.unwrap();
    server.get_prompt(PromptGet::new("greet")).await.unwrap();
    server
        .read_resource(ResourceRead::new("x://y"))
        .await
        .unwrap();
    let with_meta = json!({"_meta": {"theirs": 1}, "a": 1});
    for params in [None, Some(with_meta)] {
        server
            .request(CustomCall::new("x/echo", params))
            .await
            .unwrap();
    }
}

/// The `_meta` of each request that the operations made, in order.
fn metas(scene: &Scene) -> Vec<Value> {
    let opening = ["initialize", "server/discover"];
    let mut all = scene.bed.messages();
    all.retain(|message| {
        let method = message["method"].as_str().unwrap_or_default();
        message.get("id").is_some() && !opening.contains(&method) && !method.is_empty()
    });
    all.iter()
        .map(|message| message["params"]["_meta"].clone())
        .collect()
}

#[tokio::test]
async fn a_server_is_told_nothing_of_the_hosts_trace_unless_its_connection_says_so() {
    for (wire, era) in everywhere() {
        bounded(async {
            let scene = Scene::new(wire, era, script()).await;
            let server = scene.open(scene.spec()).await;
            one_of_each(&server).await;
            let metas = metas(&scene);
            assert_eq!(metas.len(), 6);
            assert_eq!(metas[0]["mine"], "kept");
            for meta in metas {
                for key in ["traceparent", "tracestate", "baggage"] {
                    assert!(meta.get(key).is_none(), "{meta}");
                }
            }
            scene.end().await;
        })
        .await;
    }
}

/// Each span that was exported is what the server of its request was told, in order.
#[track_caller]
fn assert_the_same(scene: &Scene) {
    let spans = scene.spans();
    let metas = metas(scene);
    assert_eq!(spans.len(), metas.len());
    for (span, meta) in spans.iter().zip(metas) {
        let (trace, id) = span.ids();
        assert_eq!(meta["traceparent"], format!("00-{trace}-{id}-01"), "{meta}");
        assert!(meta.get("baggage").is_none(), "{meta}");
    }
}

#[tokio::test]
async fn the_traceparent_that_a_server_reads_is_that_of_the_exported_span() {
    for (wire, era) in everywhere() {
        bounded(async {
            let scene = Scene::new(wire, era, script()).await;
            let spec = scene.spec().trace_context(TraceContext::Sent);
            let server = scene.open(spec).await;
            one_of_each(&server).await;
            assert_the_same(&scene);
            let metas = metas(&scene);
            assert_eq!(metas[0]["mine"], "kept");
            assert_eq!(metas[5]["theirs"], 1);
            scene.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_lent_connection_carries_the_trace_context_too() {
    for (wire, era) in everywhere() {
        bounded(async {
            let scene = Scene::new(wire, era.clone(), script()).await;
            let client = match &scene.http {
                None => lent_stdio(&scene.bed, era).await,
                Some(http) => lent_http(http.url(), era).await,
            };
            let spec = LentSpec::new().trace_context(TraceContext::Sent);
            let lent = scene
                .supervisor
                .lend_service(&scene.name, &client, spec)
                .await;
            let lent = lent.unwrap();
            one_of_each(&lent).await;
            assert_the_same(&scene);
            drop((lent, client));
            scene.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_traceparent_of_the_callers_own_is_sent_as_it_is() {
    const OWN: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
    bounded(async {
        let scene = Scene::new(Wire::Stdio, initialize(), script()).await;
        let spec = scene.spec().trace_context(TraceContext::Sent);
        let server = scene.open(spec).await;
        let call = ToolCall::new("echo", json!({})).meta("traceparent", json!(OWN));
        server.call_tool(call).await.unwrap();
        let params = json!({"_meta": {"traceparent": OWN}});
        server
            .request(CustomCall::new("x/echo", Some(params)))
            .await
            .unwrap();
        for meta in metas(&scene) {
            assert_eq!(meta["traceparent"], OWN);
            assert!(meta.get("tracestate").is_none());
        }
        scene.end().await;
    })
    .await;
}

#[tokio::test]
async fn baggage_is_sent_where_the_connection_says_so_and_the_host_propagates_it() {
    global::set_text_map_propagator(TextMapCompositePropagator::new(vec![
        Box::new(TraceContextPropagator::new()),
        Box::new(BaggagePropagator::new()),
    ]));
    for (setting, sent) in [
        (TraceContext::Withheld, None),
        (TraceContext::Sent, None),
        (TraceContext::SentWithBaggage, Some("user=alice")),
    ] {
        bounded(async {
            let scene = Scene::new(Wire::Stdio, Era::Discover, script()).await;
            let server = scene.open(scene.spec().trace_context(setting)).await;
            let context = Context::current().with_baggage([KeyValue::new("user", "alice")]);
            let call = server.call_tool(ToolCall::new("echo", json!({})));
            call.with_context(context).await.unwrap();
            assert_eq!(metas(&scene)[0]["baggage"].as_str(), sent);
            scene.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_repeat_carries_the_context_of_the_same_operation() {
    bounded(async {
        let script = json!({"log_messages": true, "rules": [
            {"on": "tools/call", "generation": 1, "do": ["ledger", {"exit": 1}]},
        ]});
        let scene = Scene::new(Wire::Stdio, initialize(), script).await;
        let spec = scene.spec().trace_context(TraceContext::Sent);
        let server = scene
            .open(spec.contract("charge", ToolContract::ReadOnly))
            .await;
        server
            .call_tool(ToolCall::new("charge", json!({})))
            .await
            .unwrap();
        let messages = scene.bed.messages();
        let calls: Vec<_> = messages
            .iter()
            .filter(|m| m["method"] == "tools/call")
            .collect();
        assert_eq!(calls.len(), 2);
        let told = |at: usize| &calls[at]["params"]["_meta"]["traceparent"];
        assert!(told(0).is_string());
        assert_eq!(told(0), told(1));
        scene.end().await;
    })
    .await;
}
