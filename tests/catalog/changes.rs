//! What becomes of a list when the server says that it changed.

use std::time::Duration;

use mcp_supervisor::{
    Connection, Era, What, catalog::Stale, connection::ConnectionState, operation::ListKind,
};
use serde_json::{Value, json};

use super::lists::names;
use crate::support::{
    bounded, initialize, until,
    world::{WIRES, Wire, World, echo, everywhere, open, shut_down, told, until_told},
};

/// A server whose tools change with the file `changed`, and that tells so this many times: after a
/// call of `echo`, and in 2026-07-28 to whoever asked to be told, at once.
fn noisy(notices: usize) -> Value {
    let notice = |params: Value| json!({"notify": {"method": "notifications/tools/list_changed", "params": params}});
    let mut call = vec![notice(json!({})); notices];
    call.push(json!("answer"));
    let standing = json!({"io.modelcontextprotocol/subscriptionId": "$id"});
    let mut listen = vec![
        json!({"notify": {"method": "notifications/subscriptions/acknowledged",
            "params": {"notifications": {"toolsListChanged": true}, "_meta": standing}}}),
        json!({"touch": "listening"}),
        json!({"wait_file": "changed"}),
    ];
    listen.extend(vec![notice(json!({"_meta": standing})); notices]);
    listen.push(json!("hang"));
    json!({"ttl_ms": 600_000,
        "tools": [
            {"name": "late", "if_file": "changed"},
            {"name": "slow", "if_file": "changed", "description": "Changed."},
            {"name": "big", "if_file": "changed", "remove": true}],
        "rules": [
            {"on": "tools/call", "tool": "echo", "do": call},
            {"on": "subscriptions/listen", "do": listen}]})
}

/// Changes the tools, and has the server tell so.
async fn change(world: &World, server: &Connection) {
    if world.era == Era::Discover {
        world.bed.until_file("listening").await;
        world.bed.touch("changed");
    } else {
        world.bed.touch("changed");
        server.call_tool(echo()).await.unwrap();
    }
}

#[tokio::test]
async fn a_hundred_notices_in_a_burst_are_a_few_readings_and_one_difference() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, noisy(100)).await;
            let (supervisor, server) = open(world.spec()).await;
            let mut events = supervisor.events();
            let catalog = server.catalog();
            catalog.tools().await.unwrap();
            change(&world, &server).await;

            let event = until_told(&mut events, |w| matches!(w, What::CatalogChanged { .. })).await;
            let What::CatalogChanged {
                generation,
                list,
                added,
                removed,
                changed,
                unnamed,
            } = &event.what
            else {
                unreachable!()
            };
            assert_eq!((generation.number(), *list), (1, ListKind::Tools));
            assert_eq!(
                (added, removed),
                (&vec!["late".to_owned()], &vec!["big".to_owned()])
            );
            assert_eq!((changed, *unnamed), (&vec!["slow".to_owned()], 0));
            until("what was read is known", || {
                catalog
                    .known_tools()
                    .is_some_and(|list| list.stale().is_none())
            })
            .await;
            assert!(names(&catalog.known_tools().unwrap()).contains(&"late"));
            let reads = world.bed.read("tools/list");
            assert!((2..=4).contains(&reads), "{reads} readings for one burst");
            let more = told(&mut events).await;
            let differences = more
                .iter()
                .filter(|w| matches!(w, What::CatalogChanged { .. }));
            assert_eq!(differences.count(), 0, "it changed once");
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn between_the_notice_and_the_reading_the_list_is_stale_and_a_use_reads_it_at_once() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut script = noisy(1);
            script["rules"]
                .as_array_mut()
                .unwrap()
                .push(json!({"on": "tools/list", "nth": 2,
                "do": [{"touch": "asked"}, {"wait_file": "go"}, "answer"]}));
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            let first = tokio::spawn({
                let catalog = catalog.clone();
                async move { catalog.tools().await }
            });
            // Where the standing request is acknowledged after that, it is read once more for the first.
            until("it is read", || catalog.known_tools().is_some()).await;
            change(&world, &server).await;
            until("the notice is heard", || {
                let known = catalog.known_tools();
                known.is_some_and(|list| matches!(list.stale(), Some(Stale::Changed)))
            })
            .await;
            let using = tokio::spawn({
                let catalog = catalog.clone();
                async move { catalog.tools().await }
            });
            world.bed.until_file("asked").await;
            world.bed.touch("go");
            let tools = using.await.unwrap().unwrap();
            assert!(tools.stale().is_none());
            assert!(names(&tools).contains(&"late"));
            first.await.unwrap().unwrap();
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// A server of 2026-07-28 that acknowledges the standing request after `ack` is there, and whose tools
/// change with the file `changed`, of which it says nothing.
fn silent(ack: Value) -> Value {
    let standing = json!({"io.modelcontextprotocol/subscriptionId": "$id"});
    json!({"ttl_ms": 600_000,
    "tools": [{"name": "late", "if_file": "changed"}],
    "rules": [
        {"on": "subscriptions/listen", "do": [
            ack,
            {"notify": {"method": "notifications/subscriptions/acknowledged",
                "params": {"notifications": {"toolsListChanged": true}, "_meta": standing}}},
            {"touch": "listening-${generation}"}, "hang"]},
        {"on": "tools/list", "nth": 1, "do": [{"wait_file": "list-${generation}"}, "answer"]},
    ]})
}

#[tokio::test]
async fn what_changed_between_a_list_and_the_first_acknowledgement_is_read_although_nobody_told() {
    for wire in WIRES {
        bounded(async {
            let script = silent(json!({"wait_file": "ack"}));
            let world = World::new(wire, Era::Discover, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            world.bed.touch("list-1");
            let tools = catalog.tools().await.unwrap();
            assert!(!names(&tools).contains(&"late"));
            world.bed.touch("changed");
            world.bed.touch("ack");
            until("it is read again", || {
                let known = catalog.known_tools();
                known.is_some_and(|list| names(&list).contains(&"late"))
            })
            .await;
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_list_that_comes_after_the_acknowledgement_is_read_once_on_each_session() {
    bounded(async {
        let world = World::new(Wire::Stdio, Era::Discover, silent(json!({"sleep_ms": 0}))).await;
        let (supervisor, server) = open(world.spec()).await;
        let catalog = server.catalog();
        for session in 1..=2 {
            let reading = {
                let catalog = catalog.clone();
                tokio::spawn(async move { catalog.tools().await })
            };
            world.bed.until_file(&format!("listening-{session}")).await;
            world.bed.touch(&format!("list-{session}"));
            reading.await.unwrap().unwrap();
            // Longer than a burst lasts.
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(world.bed.read("tools/list"), session);
            server.reconnect().await.unwrap();
        }
        shut_down(supervisor).await;
    })
    .await;
}

/// Nothing reconnects by itself: what changed on a session that is over is read when it is used.
#[tokio::test]
async fn a_notice_of_a_session_that_dies_starts_no_other() {
    bounded(async {
        let mut script = noisy(1);
        let steps = script["rules"][0]["do"].as_array_mut().unwrap();
        steps.push(json!("kill"));
        let world = World::new(Wire::Stdio, initialize(), script).await;
        let (supervisor, server) = open(world.spec()).await;
        server.catalog().tools().await.unwrap();
        let _ = server.call_tool(echo()).await;
        server
            .status_when(|s| s.state == ConnectionState::Idle)
            .await;
        // Longer than a burst lasts.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(server.status().state, ConnectionState::Idle);
        assert_eq!(world.bed.pids().len(), 1);
        assert_eq!(world.bed.read("tools/list"), 1);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_list_that_nobody_has_read_is_not_read_for_a_notice() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), noisy(3)).await;
        let (supervisor, server) = open(world.spec()).await;
        server.catalog().prompts().await.unwrap();
        server.call_tool(echo()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(world.bed.read("tools/list"), 0);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn the_difference_is_also_what_a_refresh_returns() {
    for wire in WIRES {
        bounded(async {
            let world = World::new(wire, initialize(), noisy(0)).await;
            let (supervisor, server) = open(world.spec()).await;
            let catalog = server.catalog();
            let all = catalog.refresh(ListKind::Tools).await.unwrap();
            assert!(
                all.added.contains(&"echo".to_owned()),
                "the first list is all new"
            );
            assert!(catalog.refresh(ListKind::Tools).await.unwrap().is_empty());
            world.bed.touch("changed");
            let difference = catalog.refresh(ListKind::Tools).await.unwrap();
            assert_eq!(difference.added, ["late"]);
            assert_eq!(difference.removed, ["big"]);
            assert_eq!(difference.changed, ["slow"]);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_event_names_a_bounded_number_and_counts_the_rest() {
    bounded(async {
        let tools: Vec<Value> = (0..40)
            .map(|n| json!({"name": format!("t{n:02}"), "if_file": "changed"}))
            .collect();
        let world = World::new(Wire::Stdio, initialize(), json!({"tools": tools})).await;
        let (supervisor, server) = open(world.spec()).await;
        let mut events = supervisor.events();
        let catalog = server.catalog();
        catalog.tools().await.unwrap();
        world.bed.touch("changed");
        let difference = catalog.refresh(ListKind::Tools).await.unwrap();
        assert_eq!(difference.added.len(), 40, "whoever asks gets all of it");
        let event = until_told(&mut events, |w| matches!(w, What::CatalogChanged { .. })).await;
        let What::CatalogChanged { added, unnamed, .. } = &event.what else {
            unreachable!()
        };
        assert_eq!((added.len(), *unnamed), (What::MOST_NAMES, 8));
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_list_that_could_not_be_read_is_an_event_without_the_servers_words() {
    for (wire, era) in everywhere() {
        bounded(async {
            let refused = json!({"error": {"code": -32603, "message": "planted by the server"}});
            let rules = json!([{"on": "tools/list", "nth": 2, "do": [refused]}]);
            let world = World::new(wire, era, json!({"rules": rules})).await;
            let (supervisor, server) = open(world.spec()).await;
            let mut events = supervisor.events();
            let catalog = server.catalog();
            catalog.tools().await.unwrap();
            let why = catalog.refresh(ListKind::Tools).await.unwrap_err();
            let event = until_told(&mut events, |w| matches!(w, What::CatalogKept { .. })).await;
            let What::CatalogKept {
                list, why: told, ..
            } = &event.what
            else {
                unreachable!()
            };
            assert_eq!((*list, told), (ListKind::Tools, &why.to_string()));
            assert!(!format!("{event:?}").contains("planted"), "{event:?}");
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_change_that_is_told_of_as_the_standing_stream_ends_is_no_failed_reading() {
    bounded(async {
        let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        let mut script = noisy(0);
        script["rules"] = json!([{"on": "GET", "do": [{"sse": [
            {"comment": "here"}, {"wait_file": "changed"}, {"data": changed}, {"sleep_ms": 20}, "close",
        ]}]}]);
        let world = World::new(Wire::Http, initialize(), script).await;
        let (supervisor, server) = open(world.spec()).await;
        let mut events = supervisor.events();
        let catalog = server.catalog();
        catalog.tools().await.unwrap();
        world.bed.touch("changed");
        until_told(&mut events, |w| matches!(w, What::ListChanged { .. })).await;
        until("the session is suspect", || server.status().suspect).await;
        // Longer than a burst lasts: nobody reads on such a session.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let tools = catalog.tools().await.unwrap();
        assert_eq!(tools.generation().number(), 2);
        assert!(names(&tools).contains(&"late"));
        shut_down(supervisor).await;
        let told = told(&mut events).await;
        let kept = |what: &What| matches!(what, What::CatalogKept { .. });
        assert!(!told.iter().any(kept), "{told:?}");
    })
    .await;
}
