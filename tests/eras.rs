//! Both eras: what is negotiated, what an automatic connection falls back on, and what it does not.

mod support;

use std::time::Duration;

use mcp_supervisor::{
    ConnectionSpec, Era, Limits, Page, Ping, ToolCall,
    error::{NotSentReason, StartFailure},
    spec::Revision,
};
use serde_json::{Value, json};
use support::{
    bounded, initialize,
    world::{
        WIRES, Wire, World, echo, everywhere, not_sent, open, short_graces, shut_down, start_error,
    },
};

const REVISIONS: [Revision; 3] = [
    Revision::V2025_03_26,
    Revision::V2025_06_18,
    Revision::V2025_11_25,
];

/// Limits under which a server that does not answer the probe is soon taken for an older one.
fn quick_probe() -> Limits {
    Limits {
        discover: Duration::from_millis(300),
        ..short_graces()
    }
}

/// The revision that a connection negotiates, or why it negotiates none.
async fn negotiate(spec: ConnectionSpec) -> Result<String, StartFailure> {
    let (supervisor, server) = open(spec).await;
    let negotiated = match server.call_tool(echo()).await {
        Ok(_) => Ok(server.status().revision.expect("it was negotiated")),
        Err(error) => Err(start_error(&error).failure.clone()),
    };
    shut_down(supervisor).await;
    negotiated
}

/// What the server was asked to open a session with.
fn offers(world: &World) -> Vec<Value> {
    let initialize = |m: &Value| m["method"] == "initialize";
    let messages = world.bed.messages().into_iter().filter(initialize);
    messages
        .map(|m| m["params"]["protocolVersion"].clone())
        .collect()
}

#[tokio::test]
async fn a_pinned_revision_is_offered_and_negotiated() {
    for wire in WIRES {
        for revision in REVISIONS {
            bounded(async {
                let era = Era::Initialize(revision);
                let world = World::new(wire, era, json!({"log_messages": true})).await;
                assert_eq!(negotiate(world.spec()).await.unwrap(), revision.as_str());
                assert_eq!(offers(&world), [revision.as_str()]);
                assert_eq!(world.bed.read("server/discover"), 0);
            })
            .await;
        }
        bounded(async {
            let world = World::new(wire, Era::Discover, json!({"eras": "modern"})).await;
            assert_eq!(negotiate(world.spec()).await.unwrap(), "2026-07-28");
            assert_eq!(world.bed.read("initialize"), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn a_counter_offer_to_a_pinned_revision_is_an_error() {
    for wire in WIRES {
        for (revision, counter) in [
            (Revision::V2025_11_25, "2025-06-18"),
            (Revision::V2025_03_26, "2025-11-25"),
            (Revision::V2025_11_25, "2026-07-28"),
            (Revision::V2025_11_25, "2031-01-01"),
        ] {
            bounded(async {
                let script = json!({"protocol_version": counter});
                let world = World::new(wire, Era::Initialize(revision), script).await;
                let failure = negotiate(world.spec()).await.unwrap_err();
                let StartFailure::Revision { offered, allowed } = failure else {
                    panic!("{failure:?}");
                };
                assert_eq!((&*offered, &*allowed), (counter, revision.as_str()));
                assert_eq!(world.bed.read("tools/call"), 0);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_server_of_the_older_era_is_an_error_for_a_connection_pinned_to_the_newer() {
    for wire in WIRES {
        bounded(async {
            let world = World::new(wire, Era::Discover, json!({"eras": "legacy"})).await;
            let failure = negotiate(world.spec()).await.unwrap_err();
            assert!(matches!(failure, StartFailure::Refused(_)), "{failure:?}");

            let script = json!({"supported_versions": ["2025-11-25"]});
            let world = World::new(wire, Era::Discover, script).await;
            let failure = negotiate(world.spec()).await.unwrap_err();
            assert!(
                matches!(failure, StartFailure::Revision { .. }),
                "{failure:?}"
            );
            assert_eq!(world.bed.read("initialize"), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn an_automatic_connection_asks_for_the_newer_era_first() {
    for wire in WIRES {
        bounded(async {
            let world = World::new(wire, Era::Automatic, json!({})).await;
            assert_eq!(negotiate(world.spec()).await.unwrap(), "2026-07-28");
            assert_eq!(world.bed.wire()[0].method, "server/discover");
            assert_eq!(world.bed.read("initialize"), 0);
        })
        .await;
    }
}

async fn falls_back(wire: Wire, script: Value) -> World {
    let mut script = script;
    script["log_messages"] = json!(true);
    let world = World::new(wire, Era::Automatic, script).await;
    let negotiated = negotiate(world.spec().limits(quick_probe())).await;
    assert_eq!(negotiated.as_deref(), Ok("2025-11-25"));
    assert_eq!(
        offers(&world),
        ["2025-11-25"],
        "and never the newer revision"
    );
    assert_eq!(world.bed.read("server/discover"), 1);
    world
}

async fn does_not_fall_back(wire: Wire, step: Value) -> StartFailure {
    let script = json!({"rules": [{"on": "server/discover", "do": [step]}]});
    let world = World::new(wire, Era::Automatic, script).await;
    let failure = negotiate(world.spec().limits(quick_probe()))
        .await
        .expect_err("nothing is negotiated");
    assert_eq!(world.bed.read("initialize"), 0, "{failure:?}");
    failure
}

#[tokio::test]
async fn an_automatic_connection_falls_back_on_errors_that_look_like_an_older_server() {
    for wire in WIRES {
        bounded(falls_back(wire, json!({"eras": "legacy"}))).await;
        for code in [-32601, -32602, -32600, -32000] {
            let step = json!({"error": {"code": code, "message": "what?"}});
            let script = json!({"rules": [{"on": "server/discover", "do": [step]}]});
            bounded(falls_back(wire, script)).await;
        }
    }
}

#[tokio::test]
async fn an_automatic_connection_falls_back_on_an_http_status_of_an_older_server() {
    let error = json!({"jsonrpc": "2.0", "id": null,
        "error": {"code": -32000, "message": "Bad Request: Server not initialized"}});
    for answer in [
        json!({"status": 400, "body": error}),
        json!({"status": 400}),
        json!({"status": 404}),
        json!({"status": 405}),
        json!({"status": 406}),
        json!({"status": 415, "body": "no"}),
        json!({"status": 422}),
    ] {
        let script = json!({"rules": [{"on": "server/discover", "do": [{"http": answer}]}]});
        bounded(falls_back(Wire::Http, script)).await;
    }
}

#[tokio::test]
async fn an_automatic_connection_falls_back_when_the_probe_is_not_answered_in_time() {
    for wire in WIRES {
        bounded(async {
            let script = json!({"rules": [{"on": "server/discover", "do": ["hang"]}]});
            falls_back(wire, script).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_to_the_probe_that_comes_after_the_fall_back_is_dropped() {
    for wire in WIRES {
        bounded(async {
            let script = json!({"rules": [
                {"on": "server/discover", "do": [{"wait_file": "late"}, "answer", {"touch": "told"}]},
            ]});
            let world = World::new(wire, Era::Automatic, script).await;
            let (supervisor, server) = open(world.spec().limits(quick_probe())).await;
            server.call_tool(echo()).await.unwrap();
            world.bed.touch("late");
            world.bed.until_file("told").await;
            server.call_tool(echo()).await.unwrap();
            if wire == Wire::Stdio {
                // Over HTTP nobody reads it: its exchange was given up.
                assert_eq!(server.status().dropped.unmatched, 1);
            }
            let status = server.status();
            assert_eq!(status.revision.as_deref(), Some("2025-11-25"));
            assert_eq!(status.generation.unwrap().number(), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// A server that was too slow for the probe and then refuses `initialize`, as Python servers do.
fn slow_and_refusing(supported: &[&str]) -> Value {
    let error = refusal(supported);
    slow_and_answering(json!({"error": error}))
}

fn refusal(supported: &[&str]) -> Value {
    let data = json!({"requested": "2025-11-25", "supported": supported});
    json!({"code": -32022, "message": "not here", "data": data})
}

fn slow_and_answering(refusal: Value) -> Value {
    json!({"rules": [
        {"on": "server/discover", "nth": 1, "do": [{"wait_file": "late"}, "answer"]},
        {"on": "initialize", "do": [{"touch": "late"}, refusal]},
    ]})
}

#[tokio::test]
async fn a_process_that_was_slow_to_start_and_is_not_older_is_asked_again_and_not_started_again() {
    bounded(async {
        let script = slow_and_refusing(&["2026-07-28"]);
        let world = World::new(Wire::Stdio, Era::Automatic, script).await;
        let (supervisor, server) = open(world.spec().limits(quick_probe())).await;
        server.call_tool(echo()).await.unwrap();
        let status = server.status();
        assert_eq!(status.revision.as_deref(), Some("2026-07-28"));
        assert_eq!(status.generation.unwrap().number(), 1);
        assert_eq!(world.bed.pids().len(), 1);
        assert_eq!(world.bed.read("server/discover"), 2);
        let ids: Vec<String> = world.bed.wire().into_iter().map(|read| read.id).collect();
        let different: std::collections::BTreeSet<&String> = ids.iter().collect();
        assert_eq!(different.len(), ids.len(), "no id is used twice: {ids:?}");
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_over_http_that_was_slow_and_is_not_older_is_asked_again() {
    let error = refusal(&["2026-07-28"]);
    let whole = json!({"jsonrpc": "2.0", "id": 1, "error": error});
    for refused in [
        json!({"error": error}),
        json!({"http": {"status": 400, "body": whole}}),
    ] {
        bounded(async {
            let script = slow_and_answering(refused);
            let world = World::new(Wire::Http, Era::Automatic, script).await;
            let (supervisor, server) = open(world.spec().limits(quick_probe())).await;
            server.call_tool(echo()).await.unwrap();
            server.call_tool(echo()).await.unwrap();
            let status = server.status();
            assert_eq!(status.revision.as_deref(), Some("2026-07-28"));
            assert_eq!(status.generation.unwrap().number(), 1);
            assert_eq!(world.bed.read("server/discover"), 2);
            assert_eq!(world.bed.read("initialize"), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_refuses_both_eras_is_not_asked_for_a_third() {
    for wire in WIRES {
        bounded(async {
            let script = slow_and_refusing(&["2031-01-01"]);
            let world = World::new(wire, Era::Automatic, script).await;
            let failure = negotiate(world.spec().limits(quick_probe())).await;
            let failure = failure.unwrap_err();
            assert!(
                matches!(&failure, StartFailure::Refused(e) if e.code == -32022),
                "{failure:?}"
            );
            assert_eq!(world.bed.read("server/discover"), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn an_automatic_connection_does_not_fall_back_on_a_broken_transport() {
    bounded(async {
        let failure = does_not_fall_back(Wire::Stdio, json!({"exit": 3})).await;
        assert_eq!(failure, StartFailure::EndedDuringHandshake);
        for step in [json!("reset"), json!("close")] {
            let failure = does_not_fall_back(Wire::Http, step).await;
            assert!(
                matches!(failure, StartFailure::Unreachable(_)),
                "{failure:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn an_automatic_connection_does_not_fall_back_on_a_refusal_or_a_server_error() {
    let error = json!({"jsonrpc": "2.0", "id": 0, "error": {"code": -32601, "message": "no"}});
    for expected in [401, 403, 500, 502, 503, 504] {
        for answer in [
            json!({"status": expected}),
            json!({"status": expected, "body": error}),
        ] {
            bounded(async {
                let failure = does_not_fall_back(Wire::Http, json!({"http": answer})).await;
                let StartFailure::Status { status, .. } = failure else {
                    panic!("{failure:?}");
                };
                assert_eq!(status, expected);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_server_that_echoes_the_newer_revision_in_initialize_is_an_error() {
    for wire in WIRES {
        for revision in ["2026-07-28", "2031-01-01"] {
            bounded(async {
                let script = json!({"eras": "legacy", "protocol_version": revision});
                let world = World::new(wire, Era::Automatic, script).await;
                let failure = negotiate(world.spec()).await.unwrap_err();
                assert!(
                    matches!(&failure, StartFailure::Revision { offered, .. } if offered == revision),
                    "{failure:?}"
                );
                assert_eq!(world.bed.read("tools/call"), 0);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn an_automatic_connection_takes_an_older_revision_that_the_server_counters_with() {
    for wire in WIRES {
        bounded(async {
            let script = json!({"eras": "legacy", "protocol_version": "2025-03-26"});
            let world = World::new(wire, Era::Automatic, script).await;
            assert_eq!(negotiate(world.spec()).await.unwrap(), "2025-03-26");
        })
        .await;
    }
}

#[tokio::test]
async fn a_pinned_probe_has_the_whole_time_to_start() {
    for wire in WIRES {
        bounded(async {
            let script =
                json!({"rules": [{"on": "server/discover", "do": [{"sleep_ms": 700}, "answer"]}]});
            let world = World::new(wire, Era::Discover, script).await;
            let negotiated = negotiate(world.spec().limits(quick_probe())).await;
            assert_eq!(negotiated.as_deref(), Ok("2026-07-28"));
        })
        .await;
    }
}

#[tokio::test]
async fn what_the_server_says_about_itself_is_there_for_the_host() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({ "instructions": "Ask before you charge." });
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            assert!(server.server().is_none());
            server.call_tool(echo()).await.unwrap();
            let told = server.server().expect("a session was negotiated");
            assert_eq!(told.instructions.as_deref(), Some("Ask before you charge."));
            assert!(told.capabilities.tools.is_some());
            assert!(told.server_info.is_some());
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_ping_is_sent_only_where_the_revision_has_one() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era.clone(), json!({})).await;
            let (supervisor, server) = open(world.spec()).await;
            // The first one also starts the session: nothing is known of its revision before.
            for _ in 0..2 {
                match server.ping(Ping::default()).await {
                    Ok(()) => assert_eq!(era, initialize()),
                    Err(error) => {
                        assert_eq!(era, Era::Discover, "{error}");
                        assert!(matches!(
                            not_sent(&error),
                            NotSentReason::NotInRevision { method: "ping", revision }
                                if revision == "2026-07-28"
                        ));
                    }
                }
            }
            let sent = if era == initialize() { 2 } else { 0 };
            assert_eq!(world.bed.read("ping"), sent);
            // The session is none the worse for it.
            server.call_tool(echo()).await.unwrap();
            assert_eq!(server.status().generation.unwrap().number(), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_first_request_of_an_http_session_goes_out_behind_its_standing_stream() {
    // What the server asks of its client meanwhile has no other way.
    bounded(async {
        let bed = support::Bed::new(json!({"rules": [
            {"on": "GET", "do": [{"sleep_ms": 50}, {"touch": "standing"}, "default"]},
        ]}));
        let server = bed.http().await;
        let (supervisor, connection) = open(server.spec(initialize())).await;
        connection.call_tool(echo()).await.unwrap();
        assert!(
            bed.file("standing").exists(),
            "the call was answered before"
        );
        shut_down(supervisor).await;
    })
    .await;
}

/// What the headers of each POST of a tool call said.
fn call_headers(bed: &support::Bed) -> Vec<Value> {
    let text = std::fs::read_to_string(bed.file("messages")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let calls = lines.filter(|line| line["message"]["method"] == "tools/call");
    calls
        .map(|mut line| line["http"]["headers"].take())
        .collect()
}

#[tokio::test]
async fn a_call_in_2026_07_28_says_in_headers_what_it_is_and_the_arguments_that_its_tool_wants_there()
 {
    bounded(async {
        let region = json!({"type": "string", "x-mcp-header": "Region"});
        let bed = support::Bed::new(json!({"log_messages": true, "tools": [
            {"name": "größer"},
            {"name": "by_region", "inputSchema": {"type": "object", "properties": {"region": region}}},
        ]}));
        let server = bed.http().await;
        let (supervisor, connection) = open(server.spec(Era::Discover)).await;
        let in_a_region = || ToolCall::new("by_region", json!({"region": "eu west"}));
        connection.call_tool(echo()).await.unwrap();
        let named = ToolCall::new("größer", json!({}));
        connection.call_tool(named).await.unwrap();
        connection.list_tools(Page::first()).await.unwrap();
        connection.call_tool(in_a_region()).await.unwrap();
        connection.call_tool(echo()).await.unwrap();
        let headers = call_headers(&bed);
        let said = |name: &str| headers.iter().map(|h| h[name].clone()).collect::<Vec<_>>();
        assert_eq!(said("mcp-method"), ["tools/call"; 4]);
        let names = ["echo", "=?base64?Z3LDtsOfZXI=?=", "by_region", "echo"];
        assert_eq!(said("mcp-name"), names);
        assert_eq!(said("mcp-protocol-version"), ["2026-07-28"; 4]);
        assert_eq!(
            said("mcp-param-region"),
            [json!(null), json!(null), json!("eu west"), json!(null)]
        );
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_of_an_older_revision_says_in_headers_its_session_and_its_revision() {
    bounded(async {
        let bed = support::Bed::new(json!({"log_messages": true}));
        let server = bed.http().await;
        let (supervisor, connection) = open(server.spec(initialize())).await;
        connection.call_tool(echo()).await.unwrap();
        let headers = call_headers(&bed);
        assert_eq!(headers[0]["mcp-protocol-version"], "2025-11-25");
        assert!(headers[0]["mcp-session-id"].is_string(), "{headers:?}");
        assert_eq!(headers[0]["mcp-method"], json!(null));
        shut_down(supervisor).await;
    })
    .await;
}
