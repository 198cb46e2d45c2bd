//! One handler over many sessions: what is with it when one ends, and when the next one asks again.

use std::{sync::Arc, time::Duration};

use mcp_supervisor::Era;
use serde_json::json;

use crate::{
    host::{Host, Person, form},
    support::{
        bounded, initialize, kill, until,
        world::{Wire, World, echo, everywhere, open, short_graces, shut_down, unknown},
    },
};

#[tokio::test]
async fn after_a_loss_in_the_middle_of_an_elicitation_the_same_handler_is_asked_on_the_next_session()
 {
    for era in [initialize(), Era::Discover] {
        bounded(async {
            let script = json!({
                "log_messages": true,
                "rules": [
                    {"on": "tools/call", "tool": "echo", "generation": 1, "do": [form("e-1"), "hang"]},
                    {"on": "tools/call", "tool": "echo", "do": [
                        form("e-2"), {"wait_file": "answered"}, "answer",
                    ]},
                    {"on": "response", "do": [{"touch": "answered"}]},
                ],
            });
            let world = World::new(Wire::Stdio, era, script).await;
            let host = Host::new(Person::Ignores);
            let spec = world.spec().limits(short_graces()).handler(Arc::clone(&host));
            let (supervisor, server) = open(spec).await;
            let server = server.share();
            let calling = {
                let server = server.clone();
                tokio::spawn(async move { server.call_tool(echo()).await })
            };
            until("it was asked", || host.count(&host.at_once) == 1).await;
            kill(world.bed.running()[0]);
            unknown(&calling.await.unwrap().unwrap_err());
            // At once, and not when rmcp has waited five seconds for its answer.
            let cancelled = until("it was cancelled", || host.count(&host.cancelled) == 1);
            let cancelled = tokio::time::timeout(Duration::from_secs(4), cancelled).await;
            cancelled.expect("the end of the session is told to the handler");
            // It goes on all the same, and for a short time it may.
            host.becomes(Person::Answers);
            server.call_tool(echo()).await.unwrap();
            assert_eq!(host.asked(), ["form who?", "form who?"]);
            until("the first was dropped", || host.count(&host.at_once) == 0).await;
            let answers = world.bed.messages().into_iter().filter(|m| m.get("result").is_some());
            let answers: Vec<_> = answers.map(|m| m["id"].clone()).collect();
            assert_eq!(answers, [json!("e-2")]);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_handler_that_never_answers_holds_up_neither_a_reconnect_nor_the_end() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "echo", "do": [form("n-1"), "hang"]},
            ]});
            let world = World::new(wire, era, script).await;
            let host = Host::new(Person::Ignores);
            let spec = world
                .spec()
                .limits(short_graces())
                .handler(Arc::clone(&host));
            let (supervisor, server) = open(spec).await;
            let server = server.share();
            let calls = || {
                let server = server.clone();
                tokio::spawn(async move { server.call_tool(echo()).await })
            };
            let first = calls();
            until("it was asked", || host.asked().len() == 1).await;
            // What is in flight goes on beside the new session, and so does what it is asked.
            server.reconnect().await.unwrap();
            assert_eq!(host.count(&host.cancelled), 0);
            let second = calls();
            until("it was asked again", || host.asked().len() == 2).await;
            let closed = supervisor.shutdown(Duration::from_millis(200));
            let closed = tokio::time::timeout(Duration::from_secs(15), closed).await;
            let report = closed.expect("it ends");
            assert_eq!(report.connections.len(), 1);
            for calling in [first, second] {
                calling.await.unwrap().unwrap_err();
            }
            until("both were cancelled", || host.count(&host.cancelled) == 2).await;
            until("both were dropped", || host.count(&host.dropped) == 2).await;
        })
        .await;
    }
}
