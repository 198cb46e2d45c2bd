//! Subscriptions: what is told to whom, on this session and the next, and what it costs nobody else.

use std::time::Duration;

use mcp_supervisor::{
    ConnectionSpec, Era, Generation, Limits, OwnedConnection, Subscription, Supervisor, ToolCall,
    Update, Updates,
    operation::ListKind,
    subscription::{GapCause, Refusal, SubscribeError},
};
use serde_json::{Value, json};

use crate::support::{
    bounded, initialize, kill, until,
    world::{self, Wire, World, echo, everywhere, lend, open, short_graces, shut_down, unknown},
};

const A: &str = "mem://a";
const B: &str = "mem://b";

fn capabilities() -> Value {
    json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
    })
}

/// A notification; with the id of the standing request that it is for.
fn tell(method: &str, params: Value, standing: bool) -> Value {
    let mut params = params;
    if standing {
        params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": "$id"});
    }
    json!({"notify": {"method": method, "params": params}})
}

fn acknowledged(part: Value) -> Value {
    let method = "notifications/subscriptions/acknowledged";
    tell(method, json!({"notifications": part}), true)
}

fn changes(standing: bool) -> [Value; 2] {
    [
        tell(
            "notifications/resources/updated",
            json!({"uri": A}),
            standing,
        ),
        tell("notifications/tools/list_changed", json!({}), standing),
    ]
}

/// A server that tells of a change of `A` and of its tools whenever it is poked.
fn telling() -> Value {
    let [updated, listed] = changes(false);
    let mut listen = vec![acknowledged(
        json!({"toolsListChanged": true, "resourceSubscriptions": [A]}),
    )];
    listen.push(json!({"wait_file": "poke-${generation}"}));
    listen.extend(changes(true));
    listen.push(json!("hang"));
    json!({
        "capabilities": capabilities(),
        "rules": [
            {"on": ["resources/subscribe", "resources/unsubscribe"], "do": [{"result": {}}]},
            {"on": "subscriptions/listen", "do": listen},
            {"on": "tools/call", "tool": "charge", "do": [updated, listed, "answer"]},
            {"on": "tools/call", "tool": "lookup", "do": ["answer", {"expire_session": true}]},
        ],
    })
}

fn both() -> Subscription {
    Subscription::new().resource(A).list(ListKind::Tools)
}

fn number(n: u64) -> Generation {
    serde_json::from_value(json!(n)).unwrap()
}

async fn poke(world: &World, server: &OwnedConnection) {
    if world.era == Era::Discover {
        let generation = server.status().generation.unwrap().number();
        // Over HTTP there is one process, whatever the sessions.
        let generation = if world.wire == Wire::Http {
            1
        } else {
            generation
        };
        world.bed.touch(&format!("poke-{generation}"));
    } else {
        server
            .call_tool(ToolCall::new("charge", json!({})))
            .await
            .unwrap();
    }
}

fn subscribed(generation: u64, accepted: Subscription, renewed: bool) -> Update {
    Update::Subscribed {
        generation: number(generation),
        accepted,
        renewed,
    }
}

fn gap(generation: u64, why: GapCause) -> Update {
    Update::Gap {
        generation: number(generation),
        why,
    }
}

async fn expect(updates: &mut Updates, expected: impl IntoIterator<Item = Update>) {
    for expected in expected {
        assert_eq!(updates.next().await, Some(expected));
    }
}

fn quick(world: &World) -> ConnectionSpec {
    world.spec().limits(short_graces())
}

async fn subscribe(world: &World, wanted: Subscription) -> (Supervisor, OwnedConnection, Updates) {
    let (supervisor, server) = open(quick(world)).await;
    let updates = server.subscribe(wanted).unwrap();
    (supervisor, server, updates)
}

#[tokio::test]
async fn a_subscriber_is_told_of_what_changes() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, telling()).await;
            let (supervisor, server, mut updates) = subscribe(&world, both()).await;
            expect(&mut updates, [subscribed(1, both(), false)]).await;
            poke(&world, &server).await;
            let told = [Update::Resource(A.into()), Update::List(ListKind::Tools)];
            expect(&mut updates, told).await;
            shut_down(supervisor).await;
            while let Some(update) = updates.next().await {
                assert_eq!(update, gap(1, GapCause::SessionOver));
            }
        })
        .await;
    }
}

#[tokio::test]
async fn after_a_loss_the_gap_is_told_and_the_next_session_subscribes_before_its_first_operation() {
    for era in [initialize(), Era::Discover] {
        bounded(async {
            let world = World::new(Wire::Stdio, era, telling()).await;
            let (supervisor, server, mut updates) = subscribe(&world, both()).await;
            expect(&mut updates, [subscribed(1, both(), false)]).await;
            for generation in 1..=3_u64 {
                poke(&world, &server).await;
                let told = [Update::Resource(A.into()), Update::List(ListKind::Tools)];
                expect(&mut updates, told).await;
                kill(world.bed.running()[0]);
                expect(&mut updates, [gap(generation, GapCause::SessionOver)]).await;
                server.call_tool(echo()).await.unwrap();
                expect(&mut updates, [subscribed(generation + 1, both(), true)]).await;
                let on_this = world.bed.wire();
                let on_this: Vec<_> = on_this
                    .iter()
                    .filter(|r| r.generation == generation + 1)
                    .map(|r| r.method.as_str())
                    .filter(|m| !matches!(*m, "initialize" | "server/discover"))
                    .filter(|m| *m != "notifications/initialized")
                    .collect();
                assert!(
                    matches!(on_this[0], "resources/subscribe" | "subscriptions/listen"),
                    "{on_this:?}"
                );
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_http_session_that_the_server_forgot_is_followed_by_one_that_subscribes() {
    bounded(async {
        let world = World::new(Wire::Http, initialize(), telling()).await;
        let (supervisor, server, mut updates) = subscribe(&world, both()).await;
        expect(&mut updates, [subscribed(1, both(), false)]).await;
        let forget = ToolCall::new("lookup", json!({"key": "k"}));
        server.call_tool(forget).await.unwrap();
        unknown(&server.call_tool(echo()).await.unwrap_err());
        server.call_tool(echo()).await.unwrap();
        let told = [gap(1, GapCause::SessionOver), subscribed(2, both(), true)];
        expect(&mut updates, told).await;
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_reconnect_leaves_no_subscription_behind_and_makes_it_anew() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, telling()).await;
            let (supervisor, server, mut updates) = subscribe(&world, both()).await;
            expect(&mut updates, [subscribed(1, both(), false)]).await;
            let limits = tokio::time::timeout(Duration::from_secs(20), server.reconnect());
            limits.await.expect("it ends").unwrap();
            let told = [gap(1, GapCause::SessionOver), subscribed(2, both(), true)];
            expect(&mut updates, told).await;
            poke(&world, &server).await;
            let told = [Update::Resource(A.into()), Update::List(ListKind::Tools)];
            expect(&mut updates, told).await;
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_refusal_is_told_and_the_session_goes_on() {
    for (wire, era) in everywhere() {
        bounded(async {
            let error = json!({"error": {"code": -32002, "message": "no such resource"}});
            let script = json!({
                "capabilities": capabilities(),
                "rules": [
                    {"on": "resources/subscribe", "params": {"uri": B}, "do": [error]},
                    {"on": "resources/subscribe", "do": [{"result": {}}]},
                    {"on": "subscriptions/listen", "do": [error]},
                ],
            });
            let world = World::new(wire, era.clone(), script).await;
            let wanted = Subscription::new().resource(A).resource(B);
            let (supervisor, server, mut updates) = subscribe(&world, wanted.clone()).await;
            let modern = era == Era::Discover;
            let refused = if modern {
                wanted
            } else {
                Subscription::new().resource(B)
            };
            match updates.next().await {
                Some(Update::Refused {
                    what,
                    why: Refusal::Error(error),
                    generation,
                }) => {
                    assert_eq!((what, error.code), (refused, -32002));
                    assert_eq!(generation, number(1));
                }
                other => panic!("{other:?}"),
            }
            if !modern {
                let accepted = Subscription::new().resource(A);
                expect(&mut updates, [subscribed(1, accepted, false)]).await;
            }
            server.call_tool(echo()).await.unwrap();
            assert_eq!(server.status().generation, Some(number(1)));
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_refusal_over_http_says_which_status_it_was_and_what_a_challenge_asks_for() {
    let challenge = "Bearer error=\"insufficient_scope\", scope=\"watch\"";
    let body = json!({"jsonrpc": "2.0", "id": "$id", "error": {"code": -32001, "message": "no"}});
    let answers = [
        (403, json!(""), None),
        (403, body, Some(-32001)),
        (422, json!(""), None),
    ];
    for era in world::eras() {
        for (status, body, code) in answers.clone() {
            bounded(async {
                let answer = json!({"http": {"status": status, "body": body,
                    "content_type": "application/json",
                    "headers": {"WWW-Authenticate": challenge}}});
                let script = json!({
                    "capabilities": capabilities(),
                    "rules": [{"on": ["resources/subscribe", "subscriptions/listen"], "do": [answer]}],
                });
                let world = World::new(Wire::Http, era.clone(), script).await;
                let wanted = Subscription::new().resource(A);
                let (supervisor, server, mut updates) = subscribe(&world, wanted).await;
                server.call_tool(echo()).await.unwrap();
                match updates.next().await {
                    Some(Update::Refused {
                        why:
                            Refusal::Http {
                                status: told,
                                challenge,
                                error,
                            },
                        ..
                    }) => {
                        assert_eq!(told, status);
                        let scope = challenge.and_then(|challenge| challenge.scope);
                        assert_eq!(scope.is_some(), status == 403, "{scope:?}");
                        assert_eq!(error.map(|error| error.code), code);
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(server.status().generation, Some(number(1)));
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn what_a_server_of_an_older_revision_does_not_declare_it_is_not_asked_for() {
    for wire in [Wire::Stdio, Wire::Http] {
        bounded(async {
            let script = json!({"capabilities": {"tools": {"listChanged": true}}});
            let world = World::new(wire, initialize(), script).await;
            let wanted = both().list(ListKind::Prompts);
            let (supervisor, server, mut updates) = subscribe(&world, wanted).await;
            let refused = Update::Refused {
                generation: number(1),
                what: Subscription::new().resource(A),
                why: Refusal::NotDeclared,
            };
            let accepted = Subscription::new().list(ListKind::Tools);
            expect(&mut updates, [refused, subscribed(1, accepted, false)]).await;
            server.call_tool(echo()).await.unwrap();
            assert_eq!(world.bed.read("resources/subscribe"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_may_acknowledge_a_part_or_nothing() {
    for wire in [Wire::Stdio, Wire::Http] {
        for (part, accepted) in [
            (
                json!({"toolsListChanged": true}),
                Some(Subscription::new().list(ListKind::Tools)),
            ),
            (json!({}), None),
        ] {
            bounded(async {
                let script = json!({"rules": [
                    {"on": "subscriptions/listen", "do": [acknowledged(part), "hang"]},
                ]});
                let world = World::new(wire, Era::Discover, script).await;
                let (supervisor, _server, mut updates) = subscribe(&world, both()).await;
                let expected = match accepted {
                    Some(accepted) => subscribed(1, accepted, false),
                    None => Update::Refused {
                        generation: number(1),
                        what: both(),
                        why: Refusal::NotAccepted,
                    },
                };
                expect(&mut updates, [expected]).await;
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_standing_request_that_ends_is_made_again_and_says_nothing_about_the_session() {
    let ends = [
        (
            json!([{"result": {"_meta": {"io.modelcontextprotocol/subscriptionId": "$id"}}}]),
            GapCause::Ended,
        ),
        (json!(["cut"]), GapCause::BrokeOff),
    ];
    for wire in [Wire::Stdio, Wire::Http] {
        for (end, why) in ends.clone() {
            if wire == Wire::Stdio && why == GapCause::BrokeOff {
                // A byte stream that breaks off is the end of the session.
                continue;
            }
            bounded(async {
                let ack = acknowledged(json!({"toolsListChanged": true}));
                let mut first = vec![ack.clone(), json!({"wait_file": "end"})];
                first.extend(end.as_array().unwrap().clone());
                let script = json!({"rules": [
                    {"on": "subscriptions/listen", "nth": 1, "do": first},
                    {"on": "subscriptions/listen", "do": [ack, "hang"]},
                ]});
                let world = World::new(wire, Era::Discover, script).await;
                let wanted = Subscription::new().list(ListKind::Tools);
                let (supervisor, server, mut updates) = subscribe(&world, wanted.clone()).await;
                expect(&mut updates, [subscribed(1, wanted.clone(), false)]).await;
                world.bed.touch("end");
                expect(&mut updates, [gap(1, why), subscribed(1, wanted, true)]).await;
                server.call_tool(echo()).await.unwrap();
                assert_eq!(server.status().generation, Some(number(1)));
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_standing_request_that_the_server_cancels_is_not_made_again_on_that_session() {
    bounded(async {
        let ack = acknowledged(json!({"toolsListChanged": true}));
        let cancel = json!({"notify": {
            "method": "notifications/cancelled", "params": {"requestId": "$id", "reason": "enough"},
        }});
        let script = json!({"rules": [
            {"on": "subscriptions/listen", "do": [ack, {"wait_file": "cancel-${generation}"}, cancel, "hang"]},
        ]});
        let world = World::new(Wire::Stdio, Era::Discover, script).await;
        let wanted = Subscription::new().list(ListKind::Tools);
        let (supervisor, server, mut updates) = subscribe(&world, wanted.clone()).await;
        // On the second session the ids on the wire are not those that rmcp knows.
        expect(&mut updates, [subscribed(1, wanted.clone(), false)]).await;
        server.reconnect().await.unwrap();
        let told = [gap(1, GapCause::SessionOver), subscribed(2, wanted.clone(), true)];
        expect(&mut updates, told).await;
        world.bed.touch("cancel-2");
        expect(&mut updates, [gap(2, GapCause::Cancelled)]).await;
        server.call_tool(echo()).await.unwrap();
        server.reconnect().await.unwrap();
        expect(&mut updates, [subscribed(3, wanted, true)]).await;
        assert_eq!(world.bed.read("subscriptions/listen"), 3);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_subscriber_that_leaves_is_unsubscribed_when_it_is_the_last() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era.clone(), telling()).await;
            let (supervisor, server, mut first) = subscribe(&world, both()).await;
            expect(&mut first, [subscribed(1, both(), false)]).await;
            let mut second = server.subscribe(both()).unwrap();
            expect(&mut second, [subscribed(1, both(), false)]).await;
            drop(first);
            if era == Era::Discover {
                // Each has a standing request of its own.
                let over = match wire {
                    Wire::Stdio => "notifications/cancelled",
                    Wire::Http => "disconnect",
                };
                until("the first is over", || world.bed.read(over) == 1).await;
                poke(&world, &server).await;
            } else {
                poke(&world, &server).await;
                assert_eq!(world.bed.read("resources/unsubscribe"), 0);
            }
            let told = [Update::Resource(A.into()), Update::List(ListKind::Tools)];
            expect(&mut second, told).await;
            drop(second);
            if era != Era::Discover {
                until("it is unsubscribed", || {
                    world.bed.read("resources/unsubscribe") == 1
                })
                .await;
            }
            server.call_tool(echo()).await.unwrap();
            assert_eq!(server.status().generation, Some(number(1)));
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn subscriptions_take_no_place_of_a_call_and_hold_up_no_end() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, telling()).await;
            let limits = Limits {
                max_in_flight: 1,
                max_queued: 0,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let mut all = Vec::new();
            for _ in 0..8 {
                let mut updates = server.subscribe(both()).unwrap();
                expect(&mut updates, [subscribed(1, both(), false)]).await;
                all.push(updates);
            }
            assert_eq!(server.status().in_flight, 0);
            server.call_tool(echo()).await.unwrap();
            let ended = supervisor.shutdown(Duration::from_secs(10));
            let ended = tokio::time::timeout(Duration::from_secs(20), ended).await;
            assert_eq!(ended.expect("it ends").unknown().count(), 0);
            for mut updates in all {
                let mut last = None;
                while let Some(update) = updates.next().await {
                    last = Some(update);
                }
                assert!(matches!(last, None | Some(Update::Gap { .. })), "{last:?}");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn thousands_of_resources_are_subscribed_to_beside_the_calls() {
    for (wire, era) in everywhere() {
        bounded(async {
            let uris: Vec<_> = (0..2_000).map(|n| format!("mem://{n}")).collect();
            let ack = acknowledged(json!({"resourceSubscriptions": uris}));
            let script = json!({
                "capabilities": capabilities(),
                "rules": [
                    {"on": "resources/subscribe", "do": [{"result": {}}]},
                    {"on": "subscriptions/listen", "do": [ack, "hang"]},
                ],
            });
            let world = World::new(wire, era, script).await;
            let wanted = Subscription::new().resources(uris);
            let (supervisor, server, mut updates) = subscribe(&world, wanted.clone()).await;
            server.call_tool(echo()).await.unwrap();
            expect(&mut updates, [subscribed(1, wanted, false)]).await;
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_subscription_that_cannot_be_is_an_error_at_once() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), telling()).await;
        let (supervisor, server) = open(quick(&world)).await;
        let shared = server.share();
        let empty = server.subscribe(Subscription::new()).unwrap_err();
        assert_eq!(empty, SubscribeError::Empty);
        server.close().await;
        let closed = shared.subscribe(both()).unwrap_err();
        assert!(matches!(closed, SubscribeError::Closed { .. }));
        shut_down(supervisor).await;

        let client = world.client().await;
        let supervisor = world::supervisor().await;
        let lent = lend(&supervisor, &client, false).await;
        let lent = lent.subscribe(both()).unwrap_err();
        assert!(matches!(lent, SubscribeError::CallerOwned { .. }));
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn the_catalog_has_its_lists_told_of_in_the_newest_revision() {
    for wire in [Wire::Stdio, Wire::Http] {
        bounded(async {
            let listed = tell("notifications/tools/list_changed", json!({}), true);
            let script = json!({
                "log_messages": true,
                "capabilities": {"tools": {"listChanged": true}, "prompts": {}},
                "rules": [{"on": "subscriptions/listen", "do": [
                    acknowledged(json!({"toolsListChanged": true})),
                    {"wait_file": "poke"}, listed, "hang",
                ]}],
            });
            let world = World::new(wire, Era::Discover, script).await;
            let (supervisor, server) = open(quick(&world)).await;
            server.catalog().tools().await.unwrap();
            until("it listens", || world.bed.read("subscriptions/listen") == 1).await;
            let messages = world.bed.messages();
            let listen = messages
                .iter()
                .find(|m| m["method"] == "subscriptions/listen")
                .unwrap();
            // What the server does not declare it is not asked for.
            let asked = &listen["params"]["notifications"];
            assert_eq!(asked, &json!({"toolsListChanged": true}));
            let read = world.bed.read("tools/list");
            world.bed.touch("poke");
            until("it is read again", || world.bed.read("tools/list") > read).await;
            shut_down(supervisor).await;
        })
        .await;
    }
}
