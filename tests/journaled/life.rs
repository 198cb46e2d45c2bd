//! From the record before the first byte to the record of the end, whoever waits.

use std::time::Duration;

use mcp_supervisor::{
    CancellationToken, Outcome, Page, ToolCall, ToolContract,
    error::UnknownCause,
    journal::{Fact, Filter, JournalSettings, Settler, State},
    operation::OperationId,
};
use serde_json::json;

use super::{answers_on_go, farewells, history, record, state, with, with_journal};
use crate::support::{
    bounded, until,
    world::{World, charge, echo, everywhere, lend, short_graces, unknown},
};

#[tokio::test]
async fn a_call_whose_caller_went_away_goes_on_and_is_recorded() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = answers_on_go(wire, era, json!("answer")).await;
            let (supervisor, journal) = with_journal().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            let operation = OperationId::mint();
            let calling = server.share();
            let call = charge().operation_id(operation);
            let call = tokio::spawn(async move { calling.call_tool(call).await });
            world.bed.until_file("running").await;
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
            server.call_tool(echo()).await.unwrap();
            assert_eq!(state(&journal, operation).await, State::Dispatching);
            assert_eq!(farewells(&world), [], "nobody cancelled it");

            world.bed.touch("go");
            let within = Duration::from_secs(20);
            let settled = journal.wait(operation, within).await.unwrap().unwrap();
            assert_eq!(settled.state, State::Succeeded);
            assert_eq!(history(&settled), ["dispatching", "answered"]);
            assert_eq!((world.bed.ran("charge"), farewells(&world)), (1, vec![]));
            // Whoever asks for it again gets what came.
            let answer = server
                .call_tool(charge().operation_id(operation))
                .await
                .unwrap();
            assert!(answer.replayed());
            assert_eq!(answer.structured().unwrap()["charged"], true);
            assert_eq!(world.bed.ran("charge"), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn a_cancelled_call_is_recorded_with_the_cancel_and_its_outcome_is_unknown() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = answers_on_go(wire, era, json!("hang")).await;
            let (supervisor, journal) = with_journal().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            let token = CancellationToken::new();
            let (calling, call) = (server.share(), charge().cancelled_by(token.clone()));
            let call = tokio::spawn(async move { calling.call_tool(call).await });
            world.bed.until_file("running").await;
            token.cancel();
            let error = call.await.unwrap().unwrap_err();
            assert!(
                matches!(unknown(&error), UnknownCause::Cancelled),
                "{error:?}"
            );
            let record = record(&journal, error.operation()).await;
            assert_eq!(record.state, State::OutcomeUnknown);
            assert_eq!(
                history(&record),
                ["dispatching", "cancel requested", "without"]
            );
            until("the server is told", || !farewells(&world).is_empty()).await;
            assert_eq!(farewells(&world).len(), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn a_shutdown_records_what_is_in_flight_as_unknown_before_it_is_over() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = answers_on_go(wire, era, json!("hang")).await;
            let (supervisor, journal) = with_journal().await;
            let spec = world.spec().limits(short_graces());
            let server = supervisor.open("server", spec).await.unwrap();
            let operation = OperationId::mint();
            let call = charge().operation_id(operation);
            let call = tokio::spawn(async move { server.call_tool(call).await });
            world.bed.until_file("running").await;
            // Whoever waits, and that somebody waits at all, is no matter.
            call.abort();
            let report = supervisor.shutdown(Duration::from_millis(100)).await;
            assert_eq!(report.unknown().collect::<Vec<_>>(), [operation]);
            let record = record(&journal, operation).await;
            assert_eq!(record.state, State::OutcomeUnknown);
            assert_eq!(history(&record), ["dispatching", "without"]);
        })
        .await;
    }
}

#[tokio::test]
async fn only_tool_calls_are_recorded_and_with_only_keyed_only_those_with_a_key() {
    for only_keyed in [false, true] {
        bounded(async {
            let (wire, era) = everywhere().next().unwrap();
            let world = World::new(wire, era, json!({})).await;
            let settings = JournalSettings {
                only_keyed,
                ..JournalSettings::default()
            };
            let (supervisor, journal) = with(settings).await;
            let spec = world.spec().contract("charge", ToolContract::keyed("key"));
            let server = supervisor.open("server", spec).await.unwrap();
            server.list_tools(Page::first()).await.unwrap();
            server.list_prompts(Page::first()).await.unwrap();
            assert_eq!(journal.list(&Filter::default()).await.unwrap(), []);

            server.call_tool(echo()).await.unwrap();
            let keyed = echo().idempotency_key("a".parse().unwrap());
            server.call_tool(keyed).await.unwrap();
            server.call_tool(charge()).await.unwrap();
            let records = journal.list(&Filter::default()).await.unwrap();
            let tools: Vec<_> = records.iter().map(|r| r.intent.tool.as_str()).collect();
            match only_keyed {
                false => assert_eq!(tools, ["echo", "echo", "charge"]),
                true => assert_eq!(tools, ["echo", "charge"]),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn arguments_are_kept_only_where_the_caller_or_the_journal_allows_it() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, json!({})).await;
        let mut settings = JournalSettings::default();
        for keeps_all in [false, true] {
            settings.keep_arguments = keeps_all;
            let (supervisor, journal) = with(settings.clone()).await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            for call in [charge(), charge().keep_arguments()] {
                let keeps = keeps_all || call.keeps_arguments();
                let answer = server.call_tool(call).await.unwrap();
                let kept = record(&journal, answer.operation()).await.intent.arguments;
                let whole = json!({"amount": 1}).as_object().cloned();
                assert_eq!(kept, whole.filter(|_| keeps));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn calls_on_what_is_lent_are_recorded_too_and_not_repeated() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do":
                    ["ledger", {"error": {"code": -32001, "message": "Session terminated"}}]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, journal) = with_journal().await;
            let client = world.client().await;
            let lent = lend(&supervisor, &client, false).await;
            let answer = lent.call_tool(echo()).await.unwrap();
            let settled = record(&journal, answer.operation()).await;
            assert_eq!(settled.state, State::Succeeded);
            let Fact::Answered { by, .. } = &settled.last().unwrap().fact else {
                panic!("{settled:?}");
            };
            let generation = Some(answer.generation());
            assert_eq!(
                *by,
                Settler::Call {
                    generation,
                    attempts: 1
                }
            );

            let call = ToolCall::new("charge", json!({})).idempotency_key("k".parse().unwrap());
            let error = lent.call_tool(call.clone()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown);
            assert_eq!(
                state(&journal, error.operation()).await,
                State::OutcomeUnknown
            );
            assert_eq!(world.bed.ran("charge"), 1);
            let again = lent.call_tool(call).await.unwrap_err();
            assert_eq!(again.operation(), error.operation(), "it is the same call");
            assert_eq!(world.bed.ran("charge"), 1);
        })
        .await;
    }
}
