//! What another host finds in the journal of one that was killed, and what it makes of it.

use mcp_supervisor::{
    Outcome, Resolve, Supervisor, ToolContract,
    journal::{Journal, JournalSettings, SqliteStore, State},
};
use serde_json::{Value, json};

use super::{keyed, looked_up, tasks};
use crate::support::{
    bounded,
    host::{HostProcess, journal_of, options},
    world::{Wire, World, everywhere},
};

/// The first charge has its effect and no answer: its host is killed meanwhile. A server that
/// deduplicates answers all others.
fn hangs_after_the_effect() -> Value {
    json!({"log_messages": true, "rules": [
        {"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1,
            "do": ["ledger_once", {"touch": "ran"}, "hang"]},
        {"on": "tools/call", "tool": "charge", "do": ["ledger_once", "answer"]},
    ]})
}

fn charge() -> Value {
    json!({"do": "call", "tool": "charge", "arguments": {"amount": 1999}, "key": "order-1001"})
}

/// Has a host call, kills it after the effect, and gives back the operation's id.
async fn killed_after_the_effect(world: &World, options: &Value) -> String {
    let mut host = HostProcess::start(options);
    host.order(&charge());
    let started =
        host.until(|line| line["event"] == "attempt_started" && line["method"] == "tools/call");
    world.bed.until_file("ran").await;
    host.kill();
    started["operation"].as_str().expect("an id").to_owned()
}

/// The one operation that is listed.
fn only(mut listed: Vec<Value>) -> Value {
    assert_eq!(listed.len(), 1, "{listed:?}");
    listed.remove(0)
}

fn last_arguments(world: &World) -> Vec<Value> {
    let calls = world.bed.messages().into_iter();
    calls
        .filter(|m| m["method"] == "tools/call" && m["params"]["name"] == "charge")
        .map(|mut m| m["params"]["arguments"].take())
        .collect()
}

#[tokio::test]
async fn a_killed_host_s_call_is_listed_under_its_id_and_resolving_repeats_it_under_its_key() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, hangs_after_the_effect()).await;
            let options = options(&world, &keyed());
            let id = killed_after_the_effect(&world, &options).await;

            let mut host = HostProcess::start(&options);
            let record = only(host.listed());
            assert_eq!(record["intent"]["operation"], json!(id));
            assert_eq!(record["state"], json!("outcome_unknown"));
            // What is found is not run: neither by the start nor by what else the host does.
            host.ask(json!({"do": "call", "tool": "echo", "arguments": {}}));
            assert_eq!(last_arguments(&world).len(), 1);
            assert_eq!(only(host.listed())["state"], json!("outcome_unknown"));

            let done = host.ask(json!({"do": "resolve", "operation": id}));
            assert_eq!(done["by"], json!("repeat"), "{done}");
            assert_eq!(
                (&done["text"], &done["attempts"]),
                (&json!("charged"), &json!(2))
            );
            let sent = last_arguments(&world);
            assert_eq!(sent, [&sent[0], &sent[0]].map(Clone::clone));
            assert_eq!(sent[0]["key"], json!("order-1001"));
            assert_eq!(world.bed.ran("charge"), 1, "one effect");
            assert!(host.listed().is_empty());

            let again = host.ask(json!({"do": "resolve", "operation": id}));
            let error = again["error"].as_str().expect("it is settled");
            assert!(error.contains("settled already"), "{error}");
            // The same call once more gets the stored answer.
            let replayed = host.ask(charge());
            assert_eq!(replayed["text"], json!("charged"), "{replayed}");
            assert_eq!(last_arguments(&world).len(), 2);
            host.close();
        })
        .await;
    }
}

#[tokio::test]
async fn without_a_contract_a_killed_host_s_call_stays_unknown_until_there_is_a_verdict() {
    for wire in [Wire::Stdio, Wire::Http] {
        bounded(async {
            let era = mcp_supervisor::Era::Discover;
            let world = World::new(wire, era, hangs_after_the_effect()).await;
            let options = options(&world, &ToolContract::AtMostOnce);
            let id = killed_after_the_effect(&world, &options).await;
            let mut host = HostProcess::start(&options);
            let refused = host.ask(json!({"do": "resolve", "operation": id}));
            let error = refused["error"].as_str().expect("nothing is allowed");
            assert!(error.contains("give a verdict"), "{error}");
            let again = host.ask(charge());
            assert_eq!(again["outcome"], json!(Outcome::Unknown), "{again}");
            assert_eq!(again["operation"], json!(id));
            assert_eq!(world.bed.read("tools/call"), 1);
            assert_eq!(only(host.listed())["intent"]["operation"], json!(id));
            host.close();
        })
        .await;
    }
}

/// Where a session has a tool list of its own, and a host that starts again has another session.
#[tokio::test]
async fn a_tool_that_changed_or_vanished_before_the_restart_stops_the_repeat() {
    let changed = json!({"name": "charge", "generation": [2, 3], "inputSchema": {
        "type": "object", "properties": {"key": {"type": "integer"}}}});
    let vanished = json!({"name": "charge", "generation": [2, 3], "remove": true});
    for (wire, era) in everywhere() {
        if wire == Wire::Http && era == mcp_supervisor::Era::Discover {
            continue;
        }
        for tool in [&changed, &vanished] {
            bounded(async {
                let mut script = hangs_after_the_effect();
                script["tools"] = json!([tool]);
                let world = World::new(wire, era.clone(), script).await;
                let options = options(&world, &keyed());
                let id = killed_after_the_effect(&world, &options).await;
                let mut host = HostProcess::start(&options);
                let stopped = host.ask(json!({"do": "resolve", "operation": id}));
                let error = stopped["error"].as_str().expect("it stops");
                assert!(error.contains("changed or vanished"), "{error}");
                assert_eq!(world.bed.read("tools/call"), 1);
                assert_eq!(only(host.listed())["state"], json!("outcome_unknown"));
                host.close();
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_status_tool_settles_after_a_restart_what_it_finds() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut script = hangs_after_the_effect();
            script["rules"][0]["do"] = json!(["ledger", {"touch": "ran"}, "hang"]);
            let world = World::new(wire, era, script).await;
            let options = options(&world, &looked_up(None));
            let id = {
                let mut host = HostProcess::start(&options);
                let mut call = charge();
                call["arguments"]["key"] = json!("order-1001");
                host.order(&call);
                let started = host.until(|line| {
                    line["event"] == "attempt_started" && line["method"] == "tools/call"
                });
                world.bed.until_file("ran").await;
                host.kill();
                started["operation"].as_str().expect("an id").to_owned()
            };
            let mut host = HostProcess::start(&options);
            let done = host.ask(json!({"do": "resolve", "operation": id}));
            assert_eq!(done["by"], json!("look_up"), "{done}");
            assert_eq!(
                last_arguments(&world).len(),
                1,
                "it is asked for, and not repeated"
            );
            assert!(host.listed().is_empty());
            host.close();
        })
        .await;
    }
}

/// The time is counted from the start of the host that found it, which is the earliest moment at which
/// the session of the one before it is known to be over.
#[tokio::test]
async fn an_absence_is_final_after_a_restart_only_when_its_time_is_over_once_more() {
    const FINAL: std::time::Duration = std::time::Duration::from_millis(1_500);
    for wire in [Wire::Stdio, Wire::Http] {
        bounded(async {
            let mut script = hangs_after_the_effect();
            script["rules"][0]["do"] = json!([{"touch": "ran"}, "hang"]);
            let world = World::new(wire, mcp_supervisor::Era::Discover, script).await;
            let mut never = options(&world, &looked_up(None));
            never["max_attempts"] = json!(3);
            let id = killed_after_the_effect(&world, &never).await;
            let mut host = HostProcess::start(&never);
            let open = host.ask(json!({"do": "resolve", "operation": id}));
            let error = open["error"].as_str().expect("it is not final");
            assert!(error.contains("does not know it yet"), "{error}");
            host.close();

            let mut after = options(&world, &looked_up(Some(FINAL)));
            after["max_attempts"] = json!(3);
            let began = std::time::Instant::now();
            let mut host = HostProcess::start(&after);
            let done = host.ask(json!({"do": "resolve", "operation": id}));
            assert_eq!(done["by"], json!("look_up"), "{done}");
            assert_eq!(done["text"], json!(null));
            assert!(began.elapsed() >= FINAL, "{:?}", began.elapsed());
            let record = host.ask(json!({"do": "show", "operation": id}));
            assert_eq!(record["record"]["state"], json!("not_sent"));
            assert_eq!(world.bed.ran("charge"), 0);
            host.close();
        })
        .await;
    }
}

#[tokio::test]
async fn a_task_is_listed_after_a_restart_and_resolving_leads_to_its_answer() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", tasks::created()]},
                {"on": "tasks/get", "do": [tasks::done()]},
            ]});
            let world = World::new(wire, era, script).await;
            let options = options(&world, &ToolContract::AtMostOnce);
            let mut host = HostProcess::start(&options);
            let called = host.ask(charge());
            let task = called["task"].clone();
            assert_eq!(task["task"], json!("t-1"), "{called}");
            host.kill();

            let mut host = HostProcess::start(&options);
            let record = only(host.listed());
            assert_eq!(record["intent"]["operation"], called["operation"]);
            assert_eq!(record["state"], json!("outcome_unknown"));
            assert!(record["history"].to_string().contains("t-1"), "{record}");
            let done = host.ask(json!({"do": "resolve", "operation": called["operation"]}));
            assert_eq!(
                (&done["by"], &done["text"]),
                (&json!("task"), &json!("built"))
            );
            assert!(host.listed().is_empty());
            assert_eq!(world.bed.ran("charge"), 1);
            host.close();
        })
        .await;
    }
}

/// An id is all that is handed over: to a program that has the journal and another supervisor.
#[tokio::test]
async fn an_operation_is_handed_to_another_program_by_its_id() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, hangs_after_the_effect()).await;
            let options = options(&world, &keyed());
            let id = killed_after_the_effect(&world, &options).await;

            let store = SqliteStore::open(journal_of(&world)).await.unwrap();
            let journal = Journal::new(store, JournalSettings::default());
            let supervisor = Supervisor::builder().journal(journal.clone()).start().await;
            let supervisor = supervisor.unwrap();
            let spec = world.spec().contract("charge", keyed());
            supervisor.open("server", spec).await.unwrap();
            let order = Resolve::new(id.parse().unwrap());
            let done = supervisor.resolve(order).await.unwrap();
            assert_eq!(done.answer().unwrap().text(), "charged");
            assert_eq!(done.answer().unwrap().attempts(), 2);
            let record = journal.show(id.parse().unwrap()).await.unwrap().unwrap();
            assert_eq!((record.state, record.attempts()), (State::Succeeded, 2));
            assert_eq!(world.bed.ran("charge"), 1);
            crate::support::world::shut_down(supervisor).await;
            journal.close().await.unwrap();
        })
        .await;
    }
}
