//! What a server asks of the host, and that nothing the handler does harms anybody else.

use std::{sync::Arc, time::Duration};

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, Limits, Subscription, ToolCall, What,
    error::{NotSentReason, StartFailure, UnknownCause},
    event::Asked,
    operation::ListKind,
};
use rmcp::{
    ClientHandler,
    model::{ClientConfig, ErrorCode},
};
use serde_json::{Value, json};

use crate::{
    host::{Host, Person, ask, asking, form, sampling, url},
    support::{
        bounded, until,
        world::{
            WIRES, Wire, World, echo, everywhere, not_sent, open, short_graces, shut_down, told,
            unknown,
        },
    },
};

/// The answers that the server got, by id.
fn answer(world: &World, id: &str) -> Value {
    let messages = world.bed.messages();
    let found = messages
        .iter()
        .filter(|m| m["id"] == json!(id) && m.get("method").is_none());
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "answers to {id} in {messages:?}");
    found[0].clone()
}

fn spec(world: &World, host: &Arc<Host>) -> ConnectionSpec {
    world
        .spec()
        .limits(short_graces())
        .handler(Arc::clone(host))
}

#[tokio::test]
async fn what_a_server_asks_within_a_call_reaches_the_handler_and_its_answer_the_server() {
    for (wire, era) in everywhere() {
        bounded(async {
            let asks = vec![
                sampling("a-1", 11),
                form("a-2"),
                url("a-3"),
                ask("a-4", "roots/list", json!({})),
                ask("a-5", "x/ask", json!({"deep": [1]})),
                ask("a-6", "ping", json!({})),
            ];
            let world = World::new(wire, era, asking(asks, 6)).await;
            let host = Host::new(Person::Answers);
            let (supervisor, server) = open(spec(&world, &host)).await;
            let mut events = supervisor.events();
            server.call_tool(echo()).await.unwrap();
            let mut asked = host.asked();
            asked.sort();
            let expected = [
                "custom x/ask",
                "form who?",
                "roots",
                "sampling 11",
                "url https://pay.example/1",
            ];
            assert_eq!(asked, expected);
            assert_eq!(answer(&world, "a-1")["result"]["model"], "a model");
            assert_eq!(
                answer(&world, "a-2")["result"]["content"],
                json!({"name": "Ada"})
            );
            assert_eq!(answer(&world, "a-3")["result"]["action"], "accept");
            let roots = &answer(&world, "a-4")["result"]["roots"];
            assert_eq!(roots[0]["uri"], "file:///work");
            assert_eq!(answer(&world, "a-5")["result"], json!({"custom": true}));
            assert_eq!(answer(&world, "a-6")["result"], json!({}));
            let events = told(&mut events).await;
            for what in [
                Asked::Sampling,
                Asked::Elicitation,
                Asked::Roots,
                Asked::Custom,
            ] {
                let asked =
                    |e: &What| matches!(e, What::HandlerAsked { what: w, .. } if *w == what);
                assert!(events.iter().any(asked), "{what:?}");
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn where_the_host_has_no_handler_no_event_says_that_it_was_asked() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, asking(vec![form("n-1")], 1)).await;
            let (supervisor, server) = open(world.spec().limits(short_graces())).await;
            let mut events = supervisor.events();
            server.call_tool(echo()).await.unwrap();
            assert_eq!(answer(&world, "n-1")["result"]["action"], "decline");
            let asked = |e: &What| matches!(e, What::HandlerAsked { .. });
            assert!(!told(&mut events).await.iter().any(asked));
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_handshake_offers_what_the_handler_offers_and_the_revision_of_the_connection() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era.clone(), json!({"log_messages": true})).await;
            let host = Host::new(Person::Answers);
            let (supervisor, server) = open(spec(&world, &host)).await;
            server.call_tool(echo()).await.unwrap();
            let messages = world.bed.messages();
            let hello = messages
                .iter()
                .find(|m| m["method"] == world.opening())
                .unwrap();
            let (info, capabilities) = match era {
                Era::Discover => {
                    let meta = &hello["params"]["_meta"];
                    (
                        &meta["io.modelcontextprotocol/clientInfo"],
                        &meta["io.modelcontextprotocol/clientCapabilities"],
                    )
                }
                _ => {
                    let params = &hello["params"];
                    assert_eq!(params["protocolVersion"], "2025-11-25");
                    (&params["clientInfo"], &params["capabilities"])
                }
            };
            assert_eq!(info["name"], "the host");
            for capability in ["sampling", "elicitation", "roots"] {
                assert!(capabilities[capability].is_object(), "{capability}");
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_on_the_standing_stream_reaches_the_handler_without_any_call() {
    bounded(async {
        let script = json!({
            "log_messages": true,
            "rules": [{"on": "GET", "do": [{"sse": [
                {"wait_file": "ask"}, form("g-1"), "hang",
            ]}]}],
        });
        let world = World::new(Wire::Http, crate::support::initialize(), script).await;
        let host = Host::new(Person::Answers);
        let (supervisor, server) = open(spec(&world, &host)).await;
        server.call_tool(echo()).await.unwrap();
        world.bed.touch("ask");
        until("it is answered", || world.bed.read("response") == 1).await;
        assert_eq!(answer(&world, "g-1")["result"]["action"], "accept");
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_panics_is_answered_as_an_internal_error_and_harms_nobody() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, asking(vec![form("p-1")], 1)).await;
            let host = Host::new(Person::Panics);
            let (supervisor, server) = open(spec(&world, &host)).await;
            server.call_tool(echo()).await.unwrap();
            let error = &answer(&world, "p-1")["error"];
            assert_eq!(error["code"], ErrorCode::INTERNAL_ERROR.0);
            let generation = server.status().generation;
            server
                .call_tool(ToolCall::new("charge", json!({})))
                .await
                .unwrap();
            assert_eq!(server.status().generation, generation);
            shut_down(supervisor).await;
        })
        .await;
    }
}

struct OffersNothing;

impl ClientHandler for OffersNothing {
    fn get_info(&self) -> ClientConfig {
        panic!("as a test wants it to")
    }
}

#[tokio::test]
async fn a_handler_that_panics_when_it_is_asked_what_it_offers_is_a_failed_start() {
    bounded(async {
        let world = World::new(Wire::Stdio, Era::Discover, json!({})).await;
        let (supervisor, server) = open(world.spec().handler(OffersNothing)).await;
        let error = server.call_tool(echo()).await.unwrap_err();
        match not_sent(&error) {
            NotSentReason::StartFailed(start) => {
                assert_eq!(start.failure, StartFailure::HandlerPanicked);
            }
            other => panic!("{other}"),
        }
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_hundred_requests_are_with_the_handler_side_by_side_while_calls_go_on() {
    for (wire, era) in everywhere() {
        bounded(async {
            let asks = (0..100).map(|n| sampling(&format!("s-{n}"), n)).collect();
            let world = World::new(wire, era, asking(asks, 100)).await;
            let host = Host::new(Person::Waits);
            let limits = Limits {
                max_asked: 100,
                ..short_graces()
            };
            let (supervisor, server) = open(spec(&world, &host).limits(limits)).await;
            let server = server.share();
            let calling = {
                let server = server.clone();
                tokio::spawn(async move { server.call_tool(echo()).await })
            };
            until("all were asked", || host.count(&host.at_once) == 100).await;
            server
                .call_tool(ToolCall::new("charge", json!({})))
                .await
                .unwrap();
            host.becomes(Person::Answers);
            host.speak.notify_waiters();
            calling.await.unwrap().unwrap();
            assert_eq!(host.count(&host.most_at_once), 100);
            for n in 0..100 {
                let answer = answer(&world, &format!("s-{n}"));
                assert_eq!(answer["result"]["content"]["text"], "sampled");
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_asks_more_than_the_limit_is_refused_at_once_and_its_pings_are_not() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut asks: Vec<_> = (0..5).map(|n| sampling(&format!("l-{n}"), n)).collect();
            asks.push(ask("l-ping", "ping", json!({})));
            let world = World::new(wire, era, asking(asks, 6)).await;
            let host = Host::new(Person::Waits);
            let limits = Limits {
                max_asked: 3,
                ..short_graces()
            };
            let (supervisor, server) = open(spec(&world, &host).limits(limits)).await;
            let server = server.share();
            let calling = {
                let server = server.clone();
                tokio::spawn(async move { server.call_tool(echo()).await })
            };
            // While three are with the person: the ping's answer, and two refusals.
            until("the rest was answered", || {
                world.bed.read("response") == 3 && host.count(&host.at_once) == 3
            })
            .await;
            host.becomes(Person::Answers);
            host.speak.notify_waiters();
            calling.await.unwrap().unwrap();
            assert_eq!(host.count(&host.most_at_once), 3);
            assert_eq!(answer(&world, "l-ping")["result"], json!({}));
            let answers = (0..5).map(|n| answer(&world, &format!("l-{n}")));
            let (sampled, refused): (Vec<_>, Vec<_>) =
                answers.partition(|answer| answer.get("result").is_some());
            assert_eq!((sampled.len(), refused.len()), (3, 2));
            for refused in refused {
                assert_eq!(refused["error"]["code"], -32000);
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_that_the_server_gave_up_keeps_its_place_as_long_as_the_handler_has_it() {
    bounded(async {
        let gone = json!({"notify": {"method": "notifications/cancelled", "params": {"requestId": "g-1"}}});
        let script = json!({
            "log_messages": true,
            "rules": [
                {"on": "tools/call", "tool": "echo", "do": [
                    form("g-1"), {"wait_file": "cancel"}, gone,
                    {"wait_file": "again"}, form("g-2"), {"wait_file": "answered"}, "answer",
                ]},
                {"on": "response", "do": [{"touch": "answered"}]},
            ],
        });
        let world = World::new(Wire::Stdio, crate::support::initialize(), script).await;
        let host = Host::new(Person::Ignores);
        let limits = Limits {
            max_asked: 1,
            ..short_graces()
        };
        let (supervisor, server) = open(spec(&world, &host).limits(limits)).await;
        let server = server.share();
        let calling = {
            let server = server.clone();
            tokio::spawn(async move { server.call_tool(echo()).await })
        };
        until("it was asked", || host.count(&host.at_once) == 1).await;
        world.bed.touch("cancel");
        until("it is cancelled", || host.count(&host.cancelled) == 1).await;
        world.bed.touch("again");
        calling.await.unwrap().unwrap();
        assert_eq!(answer(&world, "g-2")["error"]["code"], -32000);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_may_call_through_the_connection_that_asked_it() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, asking(vec![sampling("c-1", 1)], 1)).await;
            let host = Host::new(Person::CallsBack);
            // One at a time would wait for itself; two is the least that can.
            let limits = Limits {
                max_in_flight: 2,
                ..short_graces()
            };
            let (supervisor, server) = open(spec(&world, &host).limits(limits)).await;
            let server = server.share();
            host.connection.set(server.clone()).ok().unwrap();
            server.call_tool(echo()).await.unwrap();
            assert_eq!(world.bed.ran("lookup"), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_cancels_its_request_cancels_it_at_the_handler_and_gets_no_answer() {
    for wire in WIRES {
        bounded(async {
            let script = json!({
                "log_messages": true,
                "rules": [{"on": "tools/call", "tool": "echo", "do": [
                    form("k-1"),
                    {"wait_file": "cancel"},
                    {"notify": {"method": "notifications/cancelled", "params": {"requestId": "k-1"}}},
                    {"wait_file": "go"},
                    "answer",
                ]}],
            });
            let world = World::new(wire, crate::support::initialize(), script).await;
            let host = Host::new(Person::Waits);
            let (supervisor, server) = open(spec(&world, &host)).await;
            let server = server.share();
            let calling = {
                let server = server.clone();
                tokio::spawn(async move { server.call_tool(echo()).await })
            };
            until("it was asked", || host.count(&host.at_once) == 1).await;
            world.bed.touch("cancel");
            until("it is cancelled", || host.count(&host.cancelled) == 1).await;
            world.bed.touch("go");
            calling.await.unwrap().unwrap();
            // What comes next would come after an answer.
            server.call_tool(ToolCall::new("charge", json!({}))).await.unwrap();
            assert_eq!(world.bed.read("response"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_clock_of_a_call_stands_while_the_host_is_asked_about_it_up_to_the_bound() {
    for (wire, era) in everywhere() {
        bounded(async {
            for (hold, answered) in [(Duration::from_secs(30), true), (Duration::ZERO, false)] {
                let world = World::new(wire, era.clone(), asking(vec![form("h-1")], 1)).await;
                let host = Host::new(Person::Waits);
                let limits = Limits {
                    hold,
                    ..short_graces()
                };
                let (supervisor, server) = open(spec(&world, &host).limits(limits)).await;
                let server = server.share();
                server.list_tools(Default::default()).await.unwrap();
                let calling = {
                    let server = server.clone();
                    let call = echo().deadline(Duration::from_millis(700));
                    tokio::spawn(async move { server.call_tool(call).await })
                };
                until("it was asked", || host.count(&host.at_once) == 1).await;
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                host.speak.notify_waiters();
                let done = calling.await.unwrap();
                match done {
                    Ok(_) => assert!(answered, "the deadline was 700 ms and nothing held it"),
                    Err(error) => {
                        assert!(!answered, "{error}");
                        assert!(matches!(unknown(&error), UnknownCause::DeadlinePassed(_)));
                        assert!(matches!(error, CallError::Unknown(_)));
                    }
                }
                shut_down(supervisor).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn over_http_only_the_call_that_is_asked_about_has_its_clock_held() {
    bounded(async {
        let script = json!({"rules": [
            {"on": "tools/call", "tool": "echo", "do": [
                {"wait_file": "ask"}, form("h-1"), {"wait_file": "answered"}, "answer",
            ]},
            {"on": "tools/call", "tool": "charge", "do": ["hang"]},
            {"on": "response", "do": [{"touch": "answered"}]},
        ]});
        for era in crate::support::world::eras() {
            let world = World::new(Wire::Http, era, script.clone()).await;
            let host = Host::new(Person::Waits);
            let (supervisor, server) = open(spec(&world, &host)).await;
            let server = server.share();
            let call = |call: ToolCall| {
                let server = server.clone();
                tokio::spawn(async move { server.call_tool(call).await })
            };
            let asked = call(echo().deadline(Duration::from_secs(3)));
            let other = ToolCall::new("charge", json!({})).deadline(Duration::from_secs(2));
            let other = call(other);
            until("both are there", || world.bed.read("tools/call") == 2).await;
            world.bed.touch("ask");
            until("it was asked", || host.count(&host.at_once) == 1).await;
            let error = other.await.unwrap().unwrap_err();
            assert!(matches!(unknown(&error), UnknownCause::DeadlinePassed(_)));
            tokio::time::sleep(Duration::from_secs(2)).await;
            host.speak.notify_waiters();
            asked.await.unwrap().unwrap();
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn log_messages_reach_the_handler_and_are_told_without_their_content() {
    for (wire, era) in everywhere() {
        bounded(async {
            let log = json!({"notify": {"method": "notifications/message",
                "params": {"level": "info", "data": "planted-in-the-log"}}});
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "echo", "do": [log, log, log, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let host = Host::new(Person::Answers);
            let (supervisor, server) = open(spec(&world, &host)).await;
            let mut events = supervisor.events();
            server.call_tool(echo()).await.unwrap();
            until("all were heard", || host.logged.lock().unwrap().len() == 3).await;
            let events = told(&mut events).await;
            let totals: Vec<_> = events
                .iter()
                .filter_map(|e| match e {
                    What::LogReceived { total, .. } => Some(*total),
                    _ => None,
                })
                .collect();
            assert_eq!(totals, [1, 2]);
            assert!(!format!("{events:?}").contains("planted"));
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn progress_tasks_and_notifications_of_the_servers_own_reach_the_handler_and_so_do_pings() {
    let notify =
        |method: &str, params: Value| json!({"notify": {"method": method, "params": params}});
    for (wire, era) in everywhere() {
        bounded(async {
            let task = json!({
                "taskId": "t-1", "status": "working", "ttlMs": null, "pollIntervalMs": 60,
                "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z",
            });
            let mut script = asking(
                vec![
                    notify(
                        "notifications/progress",
                        json!({"progressToken": "$token", "progress": 7}),
                    ),
                    notify("notifications/tasks", task),
                    notify("x/news", json!({"to": [1]})),
                    ask("p-1", "ping", json!({})),
                ],
                1,
            );
            let standing = json!({"io.modelcontextprotocol/subscriptionId": "$id"});
            script["rules"].as_array_mut().unwrap().push(json!({
                "on": "subscriptions/listen", "do": [
                    notify("notifications/subscriptions/acknowledged",
                        json!({"notifications": {"toolsListChanged": true}, "_meta": standing})),
                    "hang"],
            }));
            let world = World::new(wire, era.clone(), script).await;
            let host = Host::new(Person::Answers);
            let (supervisor, server) = open(spec(&world, &host)).await;
            let wanted = Subscription::new().list(ListKind::Tools);
            let updates = server.subscribe(wanted).unwrap();
            server.call_tool(echo()).await.unwrap();
            let mut expected = vec!["custom x/news", "ping", "progress 7", "task t-1"];
            if era == Era::Discover {
                expected.insert(0, "acknowledged Some(true)");
            }
            until("all was heard", || host.heard().len() >= expected.len()).await;
            assert_eq!(host.heard(), expected);
            drop(updates);
            shut_down(supervisor).await;
        })
        .await;
    }
}
