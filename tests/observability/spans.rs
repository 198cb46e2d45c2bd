//! The span of an operation, as an OpenTelemetry exporter gets it.

use std::time::Duration;

use mcp_supervisor::{
    CustomCall, Era, Notice, Outcome, Page, Ping, PromptGet, ResourceRead, ToolCall, ToolContract,
    What, connection::ConnectionState, event::Ended,
};
use opentelemetry::trace::{SpanKind, Status};
use serde_json::json;
use tracing::Instrument as _;

use super::{
    Scene, attribute, everywhere,
    support::{
        bounded, initialize, until,
        world::{Wire, until_told},
    },
};

fn charge() -> ToolCall {
    ToolCall::new("charge", json!({"amount": 1}))
}

#[tokio::test]
async fn a_tool_call_is_one_client_span_by_the_conventions_for_mcp() {
    for (wire, era) in everywhere() {
        bounded(async {
            let scene = Scene::new(wire, era.clone(), json!({})).await;
            let server = scene.open(scene.spec()).await;
            let answer = server.call_tool(charge()).await.unwrap();
            let span = scene.span();
            assert_eq!(span.0.name, "tools/call charge");
            assert_eq!(span.0.span_kind, SpanKind::Client);
            assert_eq!(span.0.status, Status::Unset, "an answer is no error");
            let revision = match era {
                Era::Discover => "2026-07-28",
                _ => "2025-11-25",
            };
            let (transport, protocol) = match wire {
                Wire::Stdio => ("pipe", None),
                Wire::Http => ("tcp", Some("http")),
            };
            let address = scene
                .http
                .as_ref()
                .map(|http| http.addr.rsplit_once(':').unwrap());
            for (key, value) in [
                ("mcp.method.name", Some("tools/call")),
                ("gen_ai.operation.name", Some("execute_tool")),
                ("gen_ai.tool.name", Some("charge")),
                ("gen_ai.prompt.name", None),
                ("mcp.protocol.version", Some(revision)),
                ("mcp.session.id", None),
                ("network.transport", Some(transport)),
                ("network.protocol.name", protocol),
                ("server.address", address.map(|(host, _)| host)),
                ("server.port", address.map(|(_, port)| port)),
                ("error.type", None),
                (
                    "mcp_supervisor.operation",
                    Some(&*answer.operation().to_string()),
                ),
                ("mcp_supervisor.ownership", Some("framework")),
                ("mcp_supervisor.generation", Some("1")),
                ("mcp_supervisor.attempts", Some("1")),
                ("mcp_supervisor.outcome", Some("answered")),
            ] {
                assert_eq!(span.get(key).as_deref(), value, "{key} of {wire:?}");
            }
            let wire = scene.bed.wire();
            let call = wire
                .iter()
                .find(|read| read.method == "tools/call")
                .unwrap();
            assert_eq!(span.get("jsonrpc.request.id"), Some(call.id.clone()));
            scene.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_name_of_a_span_holds_a_tool_or_prompt_and_never_a_resource() {
    bounded(async {
        let resource = json!({"contents": [{"uri": "x://y", "text": "t"}]});
        let script = json!({"rules": [
            {"on": "prompts/get", "do": [{"result": {"messages": []}}]},
            {"on": "resources/read", "do": [{"result": resource}]},
        ]});
        let scene = Scene::new(Wire::Stdio, initialize(), script).await;
        let server = scene.open(scene.spec()).await;
        server.list_tools(Page::first()).await.unwrap();
        server.get_prompt(PromptGet::new("greet")).await.unwrap();
        let uri = "https://me:pw@files.example/a/b?token=t#part";
        server.read_resource(ResourceRead::new(uri)).await.unwrap();
        server
            .request(CustomCall::new("x/echo", None))
            .await
            .unwrap();
        server.ping(Ping::default()).await.unwrap();
        let spans = scene.spans();
        let names: Vec<_> = spans.iter().map(|span| &*span.0.name).collect();
        assert_eq!(
            names,
            [
                "tools/list",
                "prompts/get greet",
                "resources/read",
                "x/echo",
                "ping"
            ]
        );
        assert_eq!(spans[1].get("gen_ai.prompt.name").as_deref(), Some("greet"));
        let shown = spans[2].get("mcp.resource.uri");
        assert_eq!(shown.as_deref(), Some("https://files.example/a/b"));
        assert_eq!(spans[3].get("mcp.method.name").as_deref(), Some("x/echo"));
        scene.end().await;
    })
    .await;
}

#[tokio::test]
async fn the_span_of_an_operation_that_went_wrong_says_how_and_repeats_no_words_of_the_servers() {
    let failing = json!({"result": {"content": [], "isError": true}});
    for (steps, outcome, kind, code) in [
        (json!([failing]), "tool_error", "tool_error", None),
        (
            json!([{"error": {"code": -32602, "message": "planted words"}}]),
            "rejected",
            "-32602",
            Some("-32602"),
        ),
        (
            json!([{"error": {"code": -32000, "message": "planted words"}}]),
            "failed",
            "-32000",
            Some("-32000"),
        ),
        (json!([{"exit": 1}]), "unknown", "session_ended", None),
        (json!(["hang"]), "unknown", "timeout", None),
    ] {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "do": steps}]});
            let scene = Scene::new(Wire::Stdio, initialize(), script).await;
            let server = scene.open(scene.spec()).await;
            let call = charge().deadline(Duration::from_secs(3));
            let answer = server.call_tool(call).await;
            assert_eq!(answer.is_ok(), outcome == "tool_error");
            let span = scene.span();
            assert_eq!(
                span.0.status,
                Status::error(""),
                "no description: {outcome}"
            );
            assert_eq!(span.get("mcp_supervisor.outcome").as_deref(), Some(outcome));
            assert_eq!(span.get("error.type").as_deref(), Some(kind));
            assert_eq!(span.get("rpc.response.status_code").as_deref(), code);
            assert!(!format!("{span:?}").contains("planted"), "{span:?}");
            scene.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_span_of_a_call_that_was_dropped_ends_with_it_and_says_whether_it_may_have_been_sent() {
    for (at, perhaps_sent) in [("tools/call", "true"), ("initialize", "false")] {
        bounded(async {
            let script = json!({"rules": [{"on": at, "do": [{"wait_file": "never"}]}]});
            let scene = Scene::new(Wire::Stdio, initialize(), script).await;
            let server = scene.open(scene.spec()).await;
            let call = server.call_tool(charge());
            let reached = async {
                until("the server has read it", || scene.bed.read(at) == 1).await;
            };
            tokio::select! {
                _ = call => panic!("nothing answers"),
                () = reached => {}
            }
            let span = scene.span();
            assert_eq!(
                span.get("mcp_supervisor.outcome").as_deref(),
                Some("abandoned")
            );
            assert_eq!(
                span.get("mcp_supervisor.perhaps_sent").as_deref(),
                Some(perhaps_sent)
            );
            assert_eq!(span.get("error.type").as_deref(), Some("abandoned"));
            let attempts = if perhaps_sent == "true" { "1" } else { "0" };
            assert_eq!(
                span.get("mcp_supervisor.attempts").as_deref(),
                Some(attempts)
            );
            scene.end().await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_callers_span_is_the_parent_whatever_task_the_answer_comes_from() {
    bounded(async {
        let scene = Scene::new(Wire::Http, Era::Discover, json!({})).await;
        let server = scene.open(scene.spec()).await;
        let agent =
            tracing::info_span!(target: "agent", "agent", mcp_supervisor.connection = scene.name);
        let two = async {
            let (one, other) =
                tokio::join!(server.call_tool(charge()), server.list_tools(Page::first()));
            one.unwrap();
            other.unwrap();
        };
        two.instrument(agent).await;
        let mut spans = scene.spans();
        let agent = spans.pop().unwrap();
        assert_eq!(agent.0.name, "agent");
        assert_eq!(spans.len(), 2);
        for span in spans {
            assert_eq!(span.0.parent_span_id, agent.0.span_context.span_id());
        }
        scene.end().await;
    })
    .await;
}

#[tokio::test]
async fn each_attempt_is_an_event_in_the_span_of_its_operation() {
    bounded(async {
        let script = json!({"rules": [
            {"on": "tools/call", "generation": 1, "do": ["ledger", {"exit": 1}]},
        ]});
        let scene = Scene::new(Wire::Stdio, initialize(), script).await;
        let spec = scene.spec().contract("charge", ToolContract::Idempotent);
        let server = scene.open(spec).await;
        assert_eq!(server.call_tool(charge()).await.unwrap().attempts(), 2);
        let spans = scene.spans();
        let call = spans.iter().find(|span| span.0.name == "tools/call charge");
        let call = call.unwrap();
        assert_eq!(call.get("mcp_supervisor.attempts").as_deref(), Some("2"));
        assert_eq!(call.get("mcp_supervisor.generation").as_deref(), Some("2"));
        let attempts: Vec<_> = call.0.events.iter().collect();
        let of = |key| {
            let all = attempts
                .iter()
                .map(|event| attribute(&event.attributes, key));
            all.map(Option::unwrap).collect::<Vec<_>>()
        };
        assert_eq!(of("mcp_supervisor.outcome"), ["unknown", "answered"]);
        assert_eq!(of("mcp_supervisor.generation"), ["1", "2"]);
        let ids = of("mcp_supervisor.attempt");
        assert_ne!(ids[0], ids[1]);
        scene.end().await;
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_sent_has_its_span_too() {
    bounded(async {
        let scene = Scene::new(Wire::Stdio, initialize(), json!({})).await;
        let server = scene.open(scene.spec()).await;
        let error = server
            .call_tool(ToolCall::new("charge", json!(1)))
            .await
            .unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotSent);
        let span = scene.span();
        assert_eq!(span.get("error.type").as_deref(), Some("invalid"));
        assert_eq!(span.get("mcp_supervisor.attempts").as_deref(), Some("0"));
        assert_eq!(server.status().state, ConnectionState::Idle);
        scene.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_notification_is_a_span_that_ends_when_the_transport_has_taken_it() {
    for (wire, era) in everywhere() {
        bounded(async {
            let scene = Scene::new(wire, era, json!({})).await;
            let server = scene.open(scene.spec()).await;
            let early = server.notify(Notice::new("x/moved", None)).await;
            assert_eq!(early.unwrap_err().outcome(), Outcome::NotSent);
            let span = scene.span();
            assert_eq!(span.0.name, "x/moved");
            assert_eq!(span.get("error.type").as_deref(), Some("no_session"));
            assert_eq!(span.get("mcp_supervisor.attempts").as_deref(), Some("0"));

            server.call_tool(charge()).await.unwrap();
            let mut events = scene.supervisor.events();
            let notice = Notice::new("x/moved", Some(json!({"to": "planted"})));
            server.notify(notice).await.unwrap();
            let spans = scene.spans();
            let span = spans.last().unwrap();
            assert_eq!(span.0.name, "x/moved");
            assert_eq!(span.0.span_kind, SpanKind::Client);
            assert_eq!(span.0.status, Status::Unset);
            for (key, value) in [
                ("mcp.method.name", Some("x/moved")),
                ("mcp_supervisor.outcome", Some("handed_over")),
                ("mcp_supervisor.attempts", Some("1")),
                ("mcp_supervisor.generation", Some("1")),
                ("jsonrpc.request.id", None),
                ("error.type", None),
            ] {
                assert_eq!(span.get(key).as_deref(), value, "{key}");
            }
            assert!(!format!("{spans:?}").contains("planted"));
            until_told(&mut events, |w| matches!(w, What::AttemptStarted { .. })).await;
            let over = |w: &What| {
                matches!(
                    w,
                    What::OperationFinished {
                        ended: Ended::HandedOver,
                        ..
                    }
                )
            };
            until_told(&mut events, over).await;
            scene.end().await;
        })
        .await;
    }
}
