//! Servers that we did not write, as they are published, run for real: each row of `rows.rs` on
//! each of its seats, which are a transport and an era.
//!
//! `.ci/run foreign` installs what they need and demands every row. Without it the rows whose
//! runtime is not there are left out, and each is named on stderr.
#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, reason = "also the helpers of a test may fail it")]

#[path = "foreign/everywhere.rs"]
mod everywhere;
#[path = "foreign/facts.rs"]
mod facts;
#[path = "foreign/page.rs"]
mod page;
#[path = "foreign/person.rs"]
mod person;
#[path = "foreign/rows.rs"]
mod rows;
#[path = "foreign/seat.rs"]
mod seat;
mod support;

use std::time::Duration;

use everywhere::{everywhere, holds};
use facts::{Fact, all_tools};
use mcp_supervisor::{CallError, error::UnknownCause};
use rows::ROWS;
use seat::{is_installed, required};

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

#[test]
fn each_foreign_server_negotiates_the_revision_that_its_row_states() {
    holds(Fact::Revision);
}

#[test]
fn each_foreign_server_lists_what_its_row_states() {
    holds(Fact::Lists);
}

#[test]
fn a_foreign_tool_answers_and_a_tool_that_fails_has_answered() {
    holds(Fact::Tools);
}

#[test]
fn a_foreign_prompt_a_resource_and_one_of_a_template_are_read() {
    holds(Fact::Reads);
}

#[test]
fn a_foreign_server_lists_its_templates_and_completes_an_argument() {
    holds(Fact::Templates);
}

#[test]
fn what_a_foreign_tool_asks_in_a_call_is_answered_by_the_users_handler() {
    holds(Fact::Questions);
}

#[test]
fn a_change_at_a_foreign_server_is_told_and_a_server_that_cannot_tell_is_named() {
    holds(Fact::Changes);
}

#[test]
fn progress_of_a_foreign_tool_keeps_a_call_alive_that_is_longer_than_its_idle_limit() {
    holds(Fact::Alive);
}

#[test]
fn the_progress_of_a_foreign_tool_is_read_as_it_was_sent_and_ends_with_the_call() {
    holds(Fact::Progress);
}

#[test]
fn a_foreign_server_is_told_of_a_call_that_nobody_waits_for() {
    holds(Fact::Cancelled);
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
