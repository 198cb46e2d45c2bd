//! Completions, templates, skills and the level of the log.

use mcp_supervisor::{
    CallError, Completion, DirectoryRead, Era, LogLevel, OperationId, Page, Received, SkillGet,
    ToolCall, What, error::NotSentReason, operation::OperationKind,
};
use serde_json::{Value, json};

use crate::support::{
    bounded, initialize,
    lane::{BOTH, Over, Rig, lanes},
};

/// The parameters of every request with this method that the server read.
pub(super) fn params(rig: &Rig, method: &str) -> Vec<Value> {
    let messages = rig.bed.messages().into_iter();
    messages
        .filter(|m| m["method"] == method)
        .map(|m| m["params"].clone())
        .collect()
}

fn skills() -> Value {
    json!({"tools": {}, "extensions": {"io.modelcontextprotocol/skills": {"directoryRead": true}}})
}

#[tokio::test]
async fn completions_templates_and_skills_are_asked_for_as_rmcp_asks() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let skill = json!({
                "uri": "skill://deploy/SKILL.md",
                "frontmatter": {"name": "deploy", "description": "how to"},
                "resources": [],
            });
            let rig = Rig::new(over, era.clone(), json!({
                "log_messages": true,
                "capabilities": skills(),
                "rules": [
                    {"on": "completion/complete", "do": [
                        {"result": {"completion": {"values": ["paris"], "hasMore": false}}}]},
                    {"on": "resources/templates/list", "do": [
                        {"result": {"resourceTemplates": [{"uriTemplate": "file:///{p}", "name": "f"}],
                                    "ttlMs": 1, "cacheScope": "private"}}]},
                    {"on": "skills/list", "do": [{"result": {"skills": [skill], "ttlMs": 1, "cacheScope": "private"}}]},
                    {"on": "skills/get", "do": [{"result": {"skill": skill, "ttlMs": 1, "cacheScope": "private"}}]},
                    {"on": "resources/directory/read", "do": [
                        {"result": {"resources": [{"uri": "file:///d/a", "name": "a"}], "ttlMs": 1, "cacheScope": "private"}}]},
                ],
            }))
            .await;
            let c = &rig.connection;
            let ask = Completion::of_prompt("travel", "city", "pa").knowing("country", "fr");
            assert_eq!(c.complete(ask).await.unwrap().values, ["paris"]);
            let ask = Completion::of_resource("file:///{p}", "p", "x");
            c.complete(ask).await.unwrap();
            let templates = c.list_resource_templates(Page::first()).await.unwrap();
            assert_eq!(templates.resource_templates[0].name, "f");
            let listed = c.list_skills(Page::first()).await.unwrap();
            assert_eq!(listed.skills.len(), 1, "{over:?} {era:?}");
            let got = c.get_skill(SkillGet::new("skill://deploy/SKILL.md")).await;
            assert_eq!(got.unwrap().skill.uri, "skill://deploy/SKILL.md");
            let children = c.read_resource_directory(DirectoryRead::new("file:///d")).await;
            assert_eq!(children.unwrap().resources[0].name, "a");

            let asked = params(&rig, "completion/complete");
            assert_eq!(asked[0]["ref"], json!({"type": "ref/prompt", "name": "travel"}));
            assert_eq!(asked[0]["argument"], json!({"name": "city", "value": "pa"}));
            assert_eq!(asked[0]["context"], json!({"arguments": {"country": "fr"}}));
            assert_eq!(asked[1]["ref"]["type"], "ref/resource");
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn skills_are_not_asked_of_a_server_that_does_not_declare_them() {
    bounded(async {
        let rig = Rig::new(Over::Stdio, Era::Discover, json!({})).await;
        let asked = rig.connection.list_skills(Page::first()).await;
        match asked {
            Err(CallError::NotSent(e)) => {
                assert!(matches!(
                    e.reason,
                    NotSentReason::NotDeclared { what: "skills" }
                ));
            }
            other => panic!("{other:?}"),
        }
        assert!(
            rig.bed
                .wire()
                .iter()
                .all(|read| read.method != "skills/list")
        );
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_completion_is_asked_once_more_after_a_loss() {
    bounded(async {
        for era in [initialize(), Era::Discover] {
            let rig = Rig::new(Over::Stdio, era, json!({"rules": [
                {"on": "completion/complete", "generation": 1, "do": ["kill"]},
                {"on": "completion/complete", "do": [{"result": {"completion": {"values": ["b"]}}}]},
            ]}))
            .await;
            let ask = Completion::of_prompt("p", "a", "");
            assert_eq!(rig.connection.complete(ask).await.unwrap().values, ["b"]);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_log_level_of_a_connection_holds_on_the_next_session_before_its_first_call() {
    bounded(async {
        for over in BOTH {
            let script = json!({
                "log_messages": true,
                "capabilities": {"tools": {}, "logging": {}},
                "rules": [{"on": "logging/setLevel", "do": [{"result": {}}]}],
            });
            let rig = Rig::new(over, initialize(), script).await;
            rig.connection
                .set_log_level(LogLevel::warning())
                .await
                .unwrap();
            rig.echo().await;
            rig.connection.reconnect().await.unwrap();
            assert_eq!(rig.echo().await, 2);
            let wire = rig.bed.wire().into_iter();
            let second: Vec<_> = wire
                .filter(|read| read.generation == 2)
                .map(|read| read.method)
                .collect();
            let at = |method: &str| second.iter().position(|m| m == method);
            assert!(at("logging/setLevel") < at("tools/call"), "{second:?}");
            let levels = params(&rig, "logging/setLevel");
            assert_eq!(levels.len(), 2, "{levels:?}");
            assert!(levels.iter().all(|p| p["level"] == "warning"), "{levels:?}");
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn in_2026_07_28_each_request_carries_the_log_level_also_after_a_reconnect() {
    bounded(async {
        for over in BOTH {
            let rig = Rig::new(over, Era::Discover, json!({"log_messages": true})).await;
            rig.echo().await;
            rig.connection
                .set_log_level(LogLevel::debug())
                .await
                .unwrap();
            rig.echo().await;
            rig.connection.reconnect().await.unwrap();
            rig.echo().await;
            let levels: Vec<_> = params(&rig, "tools/call")
                .into_iter()
                .map(|p| p["_meta"]["io.modelcontextprotocol/logLevel"].clone())
                .collect();
            assert_eq!(levels, [json!(null), json!("debug"), json!("debug")]);
            assert!(params(&rig, "logging/setLevel").is_empty());
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_level_that_the_server_refuses_is_not_sent_again() {
    bounded(async {
        let rig = Rig::new(Over::Stdio, initialize(), json!({
            "log_messages": true,
            "capabilities": {"tools": {}, "logging": {}},
            "rules": [{"on": "logging/setLevel", "do": [{"error": {"code": -32602, "message": "no"}}]}],
        }))
        .await;
        let refused = rig.connection.set_log_level(LogLevel::info()).await;
        assert!(matches!(refused, Err(CallError::Rejected(_))), "{refused:?}");
        rig.connection.reconnect().await.unwrap();
        rig.echo().await;
        assert_eq!(params(&rig, "logging/setLevel").len(), 1);
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn a_caller_can_choose_the_operation_id_and_add_to_the_meta_but_not_replace_the_token() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let mut rig = Rig::new(over, era, json!({"log_messages": true})).await;
            let id = OperationId::mint();
            let call = ToolCall::new("echo", json!({}))
                .operation_id(id)
                .meta("example/tenant", json!("t-1"))
                .meta("progressToken", json!("mine"));
            let answer = rig.connection.call_tool(call).await.unwrap();
            assert_eq!(answer.operation(), id);
            loop {
                let Some(Received::Event(event)) = rig.events.next().await else {
                    panic!("an event was missed")
                };
                if let What::AttemptStarted {
                    operation, kind, ..
                } = event.what
                {
                    assert_eq!((operation, kind), (id, OperationKind::ToolCall));
                    break;
                }
            }
            let sent = params(&rig, "tools/call").remove(0);
            assert_eq!(sent["_meta"]["example/tenant"], "t-1");
            assert!(sent["_meta"]["progressToken"].is_number(), "{sent}");
            rig.finish().await;
        }
    })
    .await;
}
