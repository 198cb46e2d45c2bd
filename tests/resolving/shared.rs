//! Two hosts with one journal in PostgreSQL, and one server that counts what they do to it.
//!
//! They run where `POSTGRES_URL` names a server: see `tests/support/postgres.rs`.

use std::time::Duration;

use mcp_supervisor::Era;
use serde_json::{Value, json};

use super::keyed;
use crate::support::{
    bounded,
    host::{HostProcess, options},
    initialize,
    postgres::Schema,
    world::{Wire, World},
};

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(60);
/// One that a test waits for when its host is killed or paused. Shorter, and a loaded machine could
/// stall a host that is to live for as long.
const SHORT: Duration = Duration::from_secs(5);

fn host(world: &World, schema: &Schema, label: &str, lease: Duration) -> HostProcess {
    let mut options = options(world, &keyed());
    options["journal"] = json!({
        "url": schema.url, "schema": schema.name, "label": label,
        "lease_ms": u64::try_from(lease.as_millis()).expect("it is short"),
    });
    HostProcess::start(&options)
}

fn charge() -> Value {
    json!({"do": "call", "tool": "charge", "arguments": {"amount": 1999}, "key": "order-1001",
        "deadline_ms": 40_000})
}

/// The first charge has its effect and waits; a server that deduplicates answers all others.
fn waits_after_the_effect() -> Value {
    json!({"rules": [
        {"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1,
            "do": ["ledger_once", {"touch": "ran"}, {"wait_file": "go"}, "answer"]},
        {"on": "tools/call", "tool": "charge", "do": ["ledger_once", "answer"]},
    ]})
}

fn eras() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// Has the first host call and, once the effect is there, gives back its operation's id.
async fn charged(world: &World, host: &mut HostProcess) -> String {
    host.order(&charge());
    let started =
        host.until(|line| line["event"] == "attempt_started" && line["method"] == "tools/call");
    world.bed.until_file("ran").await;
    started["operation"].as_str().expect("an id").to_owned()
}

/// Asks for the same call until the host that had it is given up, and gives back the answer.
fn until_answered(host: &mut HostProcess) -> Value {
    loop {
        let mut soon = charge();
        soon["deadline_ms"] = json!(2_000);
        let answer = host.ask(soon);
        match answer["error"].as_str() {
            None => return answer,
            Some(_) => assert_eq!(answer["outcome"], "not_sent", "{answer}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_hosts_that_are_told_to_run_one_call_one_sends_it_and_both_get_its_answer() {
    for era in eras() {
        let Some(schema) = Schema::new() else { return };
        bounded(async {
            let world = World::new(Wire::Http, era, waits_after_the_effect()).await;
            let mut hosts = ["one", "two"].map(|label| host(&world, &schema, label, LONG));
            for host in &mut hosts {
                host.order(&charge());
            }
            world.bed.until_file("ran").await;
            world.bed.touch("go");
            let said = hosts
                .each_mut()
                .map(|host| host.until(|line| line["did"] == "call"));
            assert_eq!(said[0]["operation"], said[1]["operation"], "{said:?}");
            assert_eq!(said[0]["text"], "charged");
            assert_eq!(said[1]["text"], "charged");
            let replayed = said.iter().filter(|said| said["replayed"] == true);
            assert_eq!(replayed.count(), 1, "{said:?}");
            assert_eq!(world.bed.ran("charge"), 1);
            assert_eq!(world.bed.read("tools/call"), 1);
            for host in hosts {
                host.close();
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_host_was_calling_another_host_finds_and_resolves_with_one_effect() {
    for (era, by_calling) in eras().into_iter().zip([true, false]) {
        let Some(schema) = Schema::new() else { return };
        bounded(async {
            let world = World::new(Wire::Http, era, waits_after_the_effect()).await;
            let mut first = host(&world, &schema, "first", SHORT);
            let mut second = host(&world, &schema, "second", LONG);
            let operation = charged(&world, &mut first).await;
            first.kill();
            if by_calling {
                let answer = until_answered(&mut second);
                assert_eq!(answer["operation"], *operation);
                assert_eq!(
                    (&answer["text"], &answer["attempts"]),
                    (&json!("charged"), &json!(2))
                );
            } else {
                let unknown = loop {
                    let listed = second.listed();
                    assert_eq!(listed.len(), 1, "it is not forgotten: {listed:?}");
                    if listed[0]["state"] == "outcome_unknown" {
                        break listed;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                };
                assert_eq!(unknown[0]["intent"]["operation"], *operation, "{unknown:?}");
                let resolved = second.ask(json!({"do": "resolve", "operation": operation}));
                assert_eq!(resolved["text"], "charged", "{resolved}");
            }
            assert_eq!(second.listed(), Vec::<Value>::new());
            assert_eq!(
                (world.bed.ran("charge"), world.bed.read("tools/call")),
                (1, 2)
            );
            second.close();
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_paused_is_fenced_out_and_another_one_s_answer_stands() {
    for era in eras() {
        let Some(schema) = Schema::new() else { return };
        bounded(async {
            let world = World::new(Wire::Http, era, waits_after_the_effect()).await;
            let mut paused = host(&world, &schema, "paused", SHORT);
            let mut other = host(&world, &schema, "other", LONG);
            let operation = charged(&world, &mut paused).await;
            paused.freeze();
            let answer = until_answered(&mut other);
            assert_eq!(answer["operation"], *operation);
            let show = json!({"do": "show", "operation": operation});
            let settled = other.ask(show.clone());

            // What it hears now is true, and records nothing any more.
            world.bed.touch("go");
            paused.thaw();
            let told = paused.until(|line| line["did"] == "call");
            assert_eq!(told["operation"], *operation);
            assert_eq!(other.ask(show.clone()), settled);
            // It reads what the other one wrote, and works on as another host.
            assert_eq!(paused.ask(show), settled);
            let again = paused.ask(charge());
            assert_eq!(
                (&again["replayed"], &again["operation"]),
                (&json!(true), &json!(operation))
            );
            assert_eq!(
                (world.bed.ran("charge"), world.bed.read("tools/call")),
                (1, 2)
            );
            paused.close();
            other.close();
        })
        .await;
    }
}
