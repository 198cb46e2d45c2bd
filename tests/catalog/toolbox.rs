//! L5: the tools of many connections under names that are stable and all different.

use std::time::Duration;

use mcp_supervisor::{
    CallError, LentSpec, Outcome, ToolCall, Toolbox,
    catalog::Stale,
    connection::ConnectionState,
    toolbox::{Offer, ToolboxError, offered_name},
};
use serde_json::{Value, json};

use crate::support::{
    Bed, bounded, initialize, kill,
    world::{Wire, World, everywhere, open, short_graces, shut_down, supervisor},
};

fn tools(names: &[&str]) -> Value {
    let tools: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({"tools_only": true, "tools": tools})
}

fn names(offer: &Offer) -> Vec<&str> {
    offer.tools.iter().map(|tool| &*tool.name).collect()
}

/// Two long names that begin alike, on two connections whose names do as well.
const LONG: [&str; 2] = [
    "list_all_the_customers_of_a_region_with_their_open_orders_by_date",
    "list_all_the_customers_of_a_region_with_their_open_orders_by_name",
];
const SERVERS: [&str; 2] = ["customer-relations-europe", "customer-relations-america"];

#[tokio::test]
async fn long_names_that_begin_alike_are_four_tools_whatever_was_started_first() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, tools(&LONG)).await;
            let mut offers = Vec::new();
            for order in [[0, 1], [1, 0]] {
                let supervisor = supervisor().await;
                for i in order {
                    let opened = supervisor.open(SERVERS[i], world.spec()).await.unwrap();
                    opened
                        .call_tool(ToolCall::new(LONG[0], json!({})))
                        .await
                        .unwrap();
                }
                let toolbox = supervisor.toolbox();
                let offer = toolbox.tools().await;
                assert_eq!(offer.tools.len(), 4, "{:?}", names(&offer));
                for tool in &offer.tools {
                    let shown = tool.for_model();
                    let name = &*shown.name;
                    assert!(name.len() <= 64, "{name}");
                    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    assert!(name.chars().all(allowed), "{name}");
                    let (connection, own) = toolbox.resolve(name).unwrap();
                    assert_eq!((&connection, &*own), (&tool.connection, &*tool.tool.name));
                    assert_eq!(name, offered_name(&connection, &own));
                    let answer = toolbox.call(name, json!({"who": name})).await.unwrap();
                    assert_eq!(answer.structured(), Some(&json!({"who": name})));
                }
                offers.push(names(&offer).join(" "));
                shut_down(supervisor).await;
            }
            assert_eq!(offers[0], offers[1]);
            // Each of the four tools ran once for each of the two supervisors, beside the openings.
            for tool in LONG {
                assert_eq!(world.bed.ran(tool), if tool == LONG[0] { 8 } else { 4 });
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_is_down_keeps_its_last_tools_marked_stale_and_holds_nobody_up() {
    bounded(async {
        let down = Bed::new(json!({"tools_only": true, "tools": [{"name": "gone"}],
            "rules": [{"on": "start", "generation": [2, 3, 4], "do": ["hang"]}]}));
        let never = Bed::new(json!({"rules": [{"on": "start", "do": ["hang"]}]}));
        let up = Bed::new(tools(&["here"]));
        let supervisor = supervisor().await;
        let spec = |bed: &Bed| bed.stdio_spec(initialize()).limits(short_graces());
        let lost = supervisor.open("down", spec(&down)).await.unwrap();
        supervisor.open("never", spec(&never)).await.unwrap();
        supervisor.open("up", spec(&up)).await.unwrap();
        let toolbox = supervisor
            .toolbox()
            .wait_at_most(Duration::from_millis(1_500));

        let offer = toolbox.tools().await;
        assert_eq!(names(&offer), ["down__gone", "up__here"]);
        let missing: Vec<_> = offer
            .missing
            .iter()
            .map(|m| m.connection.as_str())
            .collect();
        assert_eq!(missing, ["never"]);
        assert!(offer.missing[0].why.is_none(), "it is still being started");

        kill(down.running()[0]);
        lost.status_when(|s| s.state == ConnectionState::Idle).await;
        let offer = toolbox.tools().await;
        assert_eq!(names(&offer), ["down__gone", "up__here"]);
        let stale = &offer.tool("down__gone").unwrap().stale;
        assert!(matches!(stale, Some(Stale::SessionOver)), "{stale:?}");
        assert!(offer.tool("up__here").unwrap().stale.is_none());
        toolbox.call("up__here", json!({})).await.unwrap();

        let call = ToolCall::new("down__gone", json!({})).deadline(Duration::from_millis(300));
        match toolbox.call_tool(call).await.unwrap_err() {
            ToolboxError::Call(error) => assert_eq!(error.outcome(), Outcome::NotSent),
            other => panic!("{other}"),
        }
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_no_tool_has_is_not_sent_to_anybody() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), tools(&["here"])).await;
        let supervisor = supervisor().await;
        supervisor.open("up", world.spec()).await.unwrap();
        let toolbox = supervisor.toolbox();
        for name in [
            "up__gone",
            "up__here_0123456789abcdef0123",
            "here",
            "",
            "other__here",
        ] {
            let error = toolbox.call(name, json!({})).await.unwrap_err();
            assert!(matches!(error, ToolboxError::NoSuchTool), "{name}: {error}");
        }
        assert_eq!(world.bed.read("tools/call"), 0);
        // Without anybody having asked for the tools before.
        toolbox.call("up__here", json!({})).await.unwrap();
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_tool_is_called_by_its_name_before_the_tools_were_ever_listed() {
    for name in ["here", "find customer (all)"] {
        bounded(async {
            let world = World::new(Wire::Stdio, initialize(), tools(&[name])).await;
            let supervisor = supervisor().await;
            let server = supervisor.open("up", world.spec()).await.unwrap();
            let offered = offered_name(server.name(), name);
            supervisor
                .toolbox()
                .call(&offered, json!({}))
                .await
                .unwrap();
            assert_eq!(world.bed.read("tools/call"), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_toolbox_of_chosen_connections_takes_lent_ones_and_refuses_two_of_one_name() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, tools(&["here"])).await;
            let client = world.client().await;
            let (one, other) = (supervisor().await, supervisor().await);
            let lent = one
                .lend_service("lent", &client, LentSpec::new())
                .await
                .unwrap();
            let owned = one.open("owned", world.spec()).await.unwrap();
            let unused = one.open("unused", world.spec()).await.unwrap();
            let twin = other.open("owned", world.spec()).await.unwrap();

            let toolbox = Toolbox::of([&*lent, &*owned, &*owned.share()]).unwrap();
            assert_eq!(names(&toolbox.tools().await), ["lent__here", "owned__here"]);
            for name in ["lent__here", "owned__here"] {
                toolbox.call(name, json!({})).await.unwrap();
            }
            assert_eq!(unused.status().generation, None);

            let error = Toolbox::of([&*owned, &*twin]).unwrap_err();
            assert!(
                matches!(&error, ToolboxError::DuplicateConnection(n) if n.as_str() == "owned")
            );
            shut_down(one).await;
            shut_down(other).await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_toolbox_of_a_supervisor_follows_what_is_opened_and_closed() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), tools(&["here"])).await;
        let supervisor = supervisor().await;
        let toolbox = supervisor.toolbox();
        assert!(toolbox.tools().await.tools.is_empty());
        let one = supervisor.open("one", world.spec()).await.unwrap();
        let _two = supervisor.open("two", world.spec()).await.unwrap();
        assert_eq!(names(&toolbox.tools().await), ["one__here", "two__here"]);
        one.close().await;
        assert_eq!(names(&toolbox.known_tools()), ["two__here"]);
        let error = toolbox.call("one__here", json!({})).await.unwrap_err();
        assert!(matches!(error, ToolboxError::NoSuchTool), "{error}");
        shut_down(supervisor).await;
    })
    .await;
}

/// A call through a toolbox is a call like any other.
#[tokio::test]
async fn a_lost_answer_of_a_call_through_a_toolbox_is_unknown_and_not_sent_again() {
    for (wire, era) in everywhere() {
        bounded(async {
            let end = match wire {
                Wire::Stdio => json!("kill"),
                Wire::Http => json!("reset"),
            };
            let script = json!({"rules": [{"on": "tools/call", "nth": 1, "do": ["ledger", end]}]});
            let world = World::new(wire, era, script).await;
            let supervisor = supervisor().await;
            supervisor.open("bank", world.spec()).await.unwrap();
            let toolbox = supervisor.toolbox();
            let error = toolbox.call("bank__charge", json!({})).await.unwrap_err();
            assert!(
                matches!(error, ToolboxError::Call(CallError::Unknown(_))),
                "{error}"
            );
            assert_eq!(world.bed.ran("charge"), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_without_tools_is_nothing_that_is_missing() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"capabilities": {"prompts": {}}});
            let world = World::new(wire, era, script).await;
            let (supervisor, _server) = open(world.spec()).await;
            let offer = supervisor.toolbox().tools().await;
            assert!(
                offer.tools.is_empty() && offer.missing.is_empty(),
                "{offer:?}"
            );
            let called = supervisor.toolbox().call("server__echo", json!({})).await;
            assert!(
                matches!(called, Err(ToolboxError::NoSuchTool)),
                "{called:?}"
            );
            assert_eq!(world.bed.read("tools/list"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}
