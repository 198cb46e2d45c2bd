//! Servers that we did not write, as they are published, run for real: each row of `rows.rs` on
//! each of its seats, which are a transport and an era.
//!
//! `.ci/run foreign` installs what they need and demands every row. Without it the rows whose
//! runtime is not there are left out, and each is named on stderr.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "also the helpers of a test may fail it")]

#[path = "foreign/page.rs"]
mod page;
#[path = "foreign/person.rs"]
mod person;
#[path = "foreign/rows.rs"]
mod rows;
#[path = "foreign/seat.rs"]
mod seat;
mod support;

use std::{collections::BTreeSet, time::Duration};

use mcp_supervisor::{
    CallError, Connection, CustomCall, Page, Ping, PromptGet, ResourceRead, Subscription, ToolCall,
    Update, error::UnknownCause,
};
use rows::ROWS;
use seat::{everywhere, is_installed, required};
use serde_json::{Value, json};

#[test]
fn a_foreign_server_that_is_not_installed_is_named_and_never_under_ci() {
    let missing: Vec<&str> = ROWS
        .iter()
        .filter(|row| !is_installed(row))
        .map(|row| row.name)
        .collect();
    for name in &missing {
        seat::say(&format!(
            "skipped: no {name}; `bash .ci/run foreign` runs it"
        ));
    }
    assert!(
        !required() || missing.is_empty(),
        "not installed: {missing:?}"
    );
    // rmcp is always there, so that something is tested everywhere
    assert!(missing.len() < ROWS.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_foreign_server_negotiates_the_revision_that_its_row_states() {
    everywhere(async |row, seat, taken| {
        let ping = taken.connection.ping(Ping::default()).await;
        // 2026-07-28 has no ping, so none is sent there
        if seat.revision == "2026-07-28" {
            assert!(matches!(ping, Err(CallError::NotSent(_))), "{ping:?}");
            taken.echo(row).await;
        } else {
            ping.unwrap();
        }
        let status = taken.connection.status();
        assert_eq!(status.revision.as_deref(), Some(seat.revision));
        assert_eq!(status.generation.unwrap().number(), 1);
        assert_eq!(status.dropped.garbage, 0, "stdout is the protocol's");
    })
    .await;
}

async fn all_tools(connection: &Connection) -> (Vec<String>, usize) {
    let (mut names, mut pages, mut page) = (Vec::new(), 0, Page::first());
    loop {
        let list = connection.list_tools(page).await.unwrap();
        pages += 1;
        assert!(pages < 20, "the list does not end");
        names.extend(list.tools.iter().map(|tool| tool.name.to_string()));
        match list.next_cursor {
            Some(cursor) => page = Page::after(cursor),
            None => return (names, pages),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_foreign_server_lists_what_its_row_states() {
    everywhere(async |row, _, taken| {
        let (names, pages) = all_tools(&taken.connection).await;
        let unique: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        for tool in row.tools {
            assert!(unique.contains(tool), "no {tool} in {names:?}");
        }
        assert_eq!(pages, row.pages_of_tools, "{names:?}");

        let prompts = taken.connection.list_prompts(Page::first()).await.unwrap();
        assert!(prompts.prompts.iter().any(|p| p.name == row.prompt.name));
        let listed = taken
            .connection
            .list_resources(Page::first())
            .await
            .unwrap();
        let uris: Vec<&str> = listed.resources.iter().map(|r| &*r.uri).collect();
        assert!(uris.contains(&row.resource.0), "{uris:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_tool_answers_and_a_tool_that_fails_has_answered() {
    everywhere(async |row, _, taken| {
        taken.echo(row).await;
        if let Some(text) = row.failure {
            let call = ToolCall::new("fails", json!({}));
            let answer = taken.connection.call_tool(call).await.unwrap();
            assert!(answer.is_error());
            assert_eq!(answer.text(), text);
        }
        // What it says about a tool that it does not have differs; that it is no unknown does not.
        let call = ToolCall::new("there-is-no-such-tool", json!({}));
        let told = match taken.connection.call_tool(call).await {
            Ok(answer) => {
                assert!(answer.is_error(), "{}", answer.text());
                "a tool error".to_owned()
            }
            Err(CallError::Rejected(_)) => "a rejection".to_owned(),
            Err(other) => format!("{other:?}"),
        };
        assert_eq!(told, row.no_such_tool);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_prompt_a_resource_and_one_of_a_template_are_read() {
    everywhere(async |row, _, taken| {
        let mut get = PromptGet::new(row.prompt.name);
        for (name, value) in row.prompt.arguments {
            get = get.argument(*name, *value);
        }
        let prompt = taken.connection.get_prompt(get).await.unwrap();
        let said = json!(prompt.messages);
        assert!(said.to_string().contains(row.prompt.says), "{said}");

        for (uri, says) in [row.resource, row.of_the_template] {
            let read = ResourceRead::new(uri);
            let contents = taken.connection.read_resource(read).await.unwrap();
            let contents = json!(contents.contents).to_string();
            assert!(contents.contains(says), "{uri}: {contents}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_server_lists_its_templates_and_completes_an_argument() {
    everywhere(async |row, _, taken| {
        let ask = CustomCall::new("resources/templates/list", None);
        let listed = taken.connection.request(ask).await.unwrap();
        let templates = listed["resourceTemplates"].as_array().unwrap();
        let known = |t: &Value| t["uriTemplate"] == row.template;
        assert!(templates.iter().any(known), "{listed}");

        let ask = json!({
            "ref": {"type": "ref/prompt", "name": row.completion.prompt},
            "argument": {"name": row.completion.argument, "value": row.completion.begun},
        });
        let ask = CustomCall::new("completion/complete", Some(ask));
        let completed = taken.connection.request(ask).await.unwrap();
        assert_eq!(
            completed["completion"]["values"],
            json!(row.completion.values)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_foreign_tool_asks_in_a_call_is_answered_by_the_users_handler() {
    everywhere(async |row, seat, taken| {
        for (call, says) in row.questions() {
            let answer = taken.connection.call_tool(call).await.unwrap();
            if seat.asks {
                assert!(!answer.is_error(), "{}", answer.text());
                assert!(answer.text().contains(says), "{}", answer.text());
            } else {
                assert!(answer.is_error(), "{}", answer.text());
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_at_a_foreign_server_is_told_and_a_server_that_cannot_tell_is_named() {
    everywhere(async |row, seat, taken| {
        let uri = row.resource.0;
        let wanted = Subscription::new().resource(uri);
        let mut updates = taken.connection.subscribe(wanted).unwrap();
        taken.echo(row).await;
        let first = updates.next().await.unwrap();
        if !seat.tells {
            assert!(matches!(first, Update::Refused { .. }), "{first:?}");
            return;
        }
        let Update::Subscribed { .. } = first else {
            panic!("{first:?}");
        };
        taken.connection.call_tool(row.pin()).await.unwrap();
        let told = updates.next().await.unwrap();
        assert!(
            matches!(&told, Update::Resource(of) if of == uri),
            "{told:?}"
        );
    })
    .await;
}

/// The longest silence that the calls with progress allow, and how long they take altogether.
const IDLE: Duration = Duration::from_secs(3);
const STEPS: u64 = 8;
const STEP: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_foreign_tool_keeps_a_call_alive_that_is_longer_than_its_idle_limit() {
    everywhere(async |row, _, taken| {
        taken.echo(row).await;
        let call = row.slow("long", STEPS, STEP).idle_limit(IDLE);
        let answer = taken.connection.call_tool(call).await.unwrap();
        assert!(!answer.is_error(), "{}", answer.text());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_server_is_told_of_a_call_that_nobody_waits_for() {
    everywhere(async |row, _, taken| {
        taken.echo(row).await;
        if row.keeps_a_ledger {
            let call = row.slow("given-up", 1_000, Duration::from_millis(50));
            {
                let mut calling = std::pin::pin!(taken.connection.call_tool(call));
                tokio::select! {
                    answer = &mut calling => panic!("{answer:?}"),
                    () = taken.until_noted("slow given-up begin") => {}
                }
            }
            taken.until_noted("slow given-up cancelled").await;
            assert!(!taken.has_noted("slow given-up end"));
        } else {
            let call = row.slow("given-up", 1_000, Duration::from_millis(50));
            let limited = call.deadline(Duration::from_secs(2));
            let error = taken.connection.call_tool(limited).await.unwrap_err();
            assert!(matches!(error, CallError::Unknown(_)), "{error:?}");
        }
        // and works on, on the same session
        taken.echo(row).await;
        assert_eq!(taken.generation(), 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_server_killed_in_a_call_leaves_it_unknown_run_once_and_the_next_call_works() {
    everywhere(async |row, _, taken| {
        taken.echo(row).await;
        let call = row.hang("c-1");
        let error = {
            let calling = taken.connection.call_tool(call);
            let mut calling = std::pin::pin!(calling);
            if row.keeps_a_ledger {
                tokio::select! {
                    answer = &mut calling => panic!("{answer:?}"),
                    () = taken.until_noted("charge c-1 charged") => {}
                }
            } else {
                tokio::select! {
                    answer = &mut calling => panic!("{answer:?}"),
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
            taken.kill_the_server();
            calling.await.unwrap_err()
        };
        let CallError::Unknown(unknown) = &error else {
            panic!("{error:?}");
        };
        assert!(
            !matches!(unknown.cause, UnknownCause::DeadlinePassed(_)),
            "the loss is noticed: {:?}",
            unknown.cause
        );
        taken.start_again().await;
        taken.echo(row).await;
        assert_eq!(taken.generation(), 2);
        if row.keeps_a_ledger {
            assert_eq!(taken.count("charge c-1"), 1, "{:?}", taken.ledger());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_server_restarted_between_calls_is_found_again_by_a_read() {
    everywhere(async |row, _, taken| {
        taken.echo(row).await;
        taken.kill_the_server();
        taken.start_again().await;
        // the session that the read is sent on may be gone: a read may be asked once more
        let (names, _) = all_tools(&taken.connection).await;
        assert!(!names.is_empty());
        taken.echo(row).await;
    })
    .await;
}

#[test]
fn the_versions_in_the_rows_are_those_that_are_installed() {
    for row in &ROWS {
        assert_eq!(page::pinned(row), row.version, "{}", row.name);
    }
}

#[test]
fn the_document_says_what_the_rows_say() {
    page::check();
}
