//! The numbers that a recorder of the `metrics` facade gets.

use std::{collections::BTreeMap, sync::LazyLock, time::Duration};

use mcp_supervisor::{Notice, Page, ToolCall, ToolContract, operation::ListKind, spec::Recovery};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use serde_json::json;

use super::{
    Scene,
    support::{bounded, initialize, until, world::Wire},
};

static SNAPSHOTS: LazyLock<Snapshotter> = LazyLock::new(|| {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    snapshotter
});

type Numbers = BTreeMap<String, DebugValue>;

/// The numbers of one connection since the last look. A look empties the histograms, so that one
/// test alone looks.
fn numbers(connection: &str) -> Numbers {
    let mut found = Numbers::new();
    for (key, _, _, value) in SNAPSHOTS.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        let mut name = key.name().to_owned();
        let mut ours = false;
        for label in key.labels() {
            if label.key() == "connection" {
                ours = label.value() == connection;
            } else {
                name += &format!(" {}={}", label.key(), label.value());
            }
        }
        if ours {
            found.insert(name, value);
        }
    }
    found
}

fn count(numbers: &Numbers, name: &str) -> u64 {
    match numbers.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        Some(other) => panic!("{name} is {other:?}"),
        None => 0,
    }
}

fn samples(numbers: &Numbers, name: &str) -> usize {
    match numbers.get(name) {
        Some(DebugValue::Histogram(samples)) => {
            assert!(
                samples.iter().all(|s| (0.0..60.0).contains(&s.0)),
                "{name}: {samples:?}"
            );
            samples.len()
        }
        other => panic!("{name} is {other:?}"),
    }
}

fn charge() -> ToolCall {
    ToolCall::new("charge", json!({"amount": 1}))
}

#[tokio::test]
async fn operations_outcomes_replays_reconnects_and_drops_are_counted() {
    LazyLock::force(&SNAPSHOTS);
    bounded(async {
        let die = json!(["ledger", {"exit": 1}]);
        let scene = Scene::new(
            Wire::Stdio,
            initialize(),
            json!({"rules": [
                {"on": "tools/call", "tool": "charge", "generation": [1, 2], "do": die},
                {"on": "tools/call", "tool": "slow", "do": ["hang"]},
                {"on": "tools/call", "tool": "progress", "do": [{"result": {"content": [], "isError": true}}]},
                {"on": "ping", "do": [{"raw": "garbage\n"}, "answer"]},
            ]}),
        )
        .await;
        let spec = scene.spec().contract("charge", ToolContract::Idempotent);
        let server = scene.open(spec).await;
        // Dies in generations 1 and 2, is answered in the third.
        assert_eq!(server.call_tool(charge()).await.unwrap().attempts(), 3);
        server.call_tool(ToolCall::new("progress", json!({}))).await.unwrap();
        server.call_tool(ToolCall::new("no such tool", json!({}))).await.unwrap_err();
        server.call_tool(ToolCall::new("charge", json!(7))).await.unwrap_err();
        server.ping(mcp_supervisor::Ping::default()).await.unwrap();
        {
            let dropped = server.call_tool(ToolCall::new("slow", json!({})));
            let read = || scene.bed.wire().iter().filter(|r| r.method == "tools/call").count() == 6;
            tokio::select! {
                _ = dropped => panic!("nothing answers"),
                () = until("it is read", read) => {}
            }
        }
        let in_flight = server.call_tool(ToolCall::new("slow", json!({})).deadline(Duration::from_secs(1)));
        in_flight.await.unwrap_err();
        let n = numbers(&scene.name);
        let operations = |outcome: &str| {
            let labels = format!("mcp.method.name=tools/call outcome={outcome}");
            let duration = format!("mcp.client.operation.duration {labels}");
            let counted = count(&n, &format!("mcp_supervisor.operations {labels}"));
            assert_eq!(samples(&n, &duration) as u64, counted, "{outcome}");
            counted
        };
        for outcome in ["answered", "tool_error", "rejected", "not_sent", "abandoned", "unknown"] {
            assert_eq!(operations(outcome), 1, "{outcome}: {n:#?}");
        }
        let named = |name: &str| count(&n, &format!("mcp_supervisor.{name}"));
        assert_eq!(named("operations mcp.method.name=ping outcome=answered"), 1);
        assert_eq!(named("replays contract=idempotent"), 2);
        assert_eq!(named("unknown_outcomes cause=deadline"), 1);
        assert_eq!(named("unknown_outcomes cause=abandoned"), 1);
        assert_eq!(named("sessions.started"), 3);
        assert_eq!(named("sessions.lost"), 2);
        assert_eq!(named("reconnects"), 2);
        assert_eq!(named("frames.dropped reason=garbage"), 1);
        assert!(samples(&n, "mcp_supervisor.queue.wait") >= 8);
        let gauge = &n["mcp_supervisor.operations.in_flight"];
        assert_eq!(*gauge, DebugValue::Gauge(0.0.into()), "all have ended");
        // A tool's name is the server's to choose, and so no label.
        assert!(n.keys().all(|name| !name.contains("charge")), "{n:#?}");
        scene.end().await;
    })
    .await;

    bounded(async {
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "nth": 1, "do": ["ledger", {"exit": 1}]}]});
        let scene = Scene::new(Wire::Stdio, initialize(), script).await;
        let spec = scene.spec().contract("charge", ToolContract::status("lookup", "key"));
        let server = scene.open(spec).await;
        let call = charge().idempotency_key("order-1".parse().unwrap());
        // The look-up finds nothing: the server knows its keys by another argument.
        let _ = server.call_tool(call).await;
        let n = numbers(&scene.name);
        let known = count(&n, "mcp_supervisor.look_ups found=true");
        let unknown = count(&n, "mcp_supervisor.look_ups found=false");
        assert!(known + unknown > 0, "{n:#?}");
        assert_eq!(count(&n, "mcp_supervisor.replays contract=read"), 0);
        scene.end().await;
    })
    .await;

    bounded(async {
        let script = json!({"rules": [{"on": "initialize", "nth": "any", "do": [{"exit": 3}]}]});
        let scene = Scene::new(Wire::Stdio, initialize(), script).await;
        let recovery = Recovery {
            max_restarts: 1,
            cool_down: Duration::from_secs(60),
            ..Recovery::default()
        };
        let server = scene.open(scene.spec().recovery(recovery)).await;
        for _ in 0..4 {
            server.list_tools(Page::first()).await.unwrap_err();
        }
        let n = numbers(&scene.name);
        assert!(count(&n, "mcp_supervisor.sessions.failed") >= 1, "{n:#?}");
        assert_eq!(count(&n, "mcp_supervisor.circuit.changes state=open"), 1);
        assert_eq!(
            count(
                &n,
                "mcp_supervisor.operations mcp.method.name=tools/list outcome=not_sent"
            ),
            4
        );
        scene.end().await;
    })
    .await;

    bounded(async {
        let refused = json!({"error": {"code": -32603, "message": "not now"}});
        let script = json!({
            "tools": [{"name": "late", "if_file": "changed"}],
            "rules": [{"on": "tools/list", "nth": 3, "do": [refused]}],
        });
        let scene = Scene::new(Wire::Stdio, initialize(), script).await;
        let server = scene.open(scene.spec()).await;
        let moved = || server.notify(Notice::new("x/moved", None));
        moved().await.unwrap_err();
        let catalog = server.catalog();
        catalog.tools().await.unwrap();
        moved().await.unwrap();
        scene.bed.touch("changed");
        catalog.refresh(ListKind::Tools).await.unwrap();
        catalog.refresh(ListKind::Tools).await.unwrap_err();
        let n = numbers(&scene.name);
        let named = |name: &str| count(&n, &format!("mcp_supervisor.{name}"));
        for outcome in ["not_sent", "handed_over"] {
            let operations = format!("operations mcp.method.name=notification outcome={outcome}");
            assert_eq!(named(&operations), 1, "{n:#?}");
        }
        assert_eq!(named("catalog.changes list=tools"), 1);
        assert_eq!(named("catalog.kept list=tools"), 1);
        let gauge = &n["mcp_supervisor.operations.in_flight"];
        assert_eq!(*gauge, DebugValue::Gauge(0.0.into()), "all have ended");
        scene.end().await;
    })
    .await;
}
