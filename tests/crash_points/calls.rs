//! The points of one call, each with a contract that repeats and with none.

use mcp_supervisor::{Era, OperationId, ToolContract, journal::State};
use serde_json::{Value, json};

use super::{all, ids};
use crate::support::{
    bounded,
    host::{HostProcess, journal_of, options},
    until,
    world::{Wire, World, everywhere},
};

/// Where a host is killed, and what that leaves.
struct Crash {
    /// Where its journal stops.
    stop_at: Option<&'static str>,
    /// Whether the operation waits for a place in the connection first.
    waits: bool,
    /// What the server does with the call. `None`: the call does not come so far.
    server: Option<Value>,
    /// When it is killed.
    when: When,
    effects: usize,
    /// The state that the next start finds. `None`: there is no operation.
    left: Option<State>,
}

enum When {
    /// Its journal has stopped.
    Stopped,
    /// The server made this file.
    Made(&'static str),
    /// The answer has been written, and the host does nothing any more.
    AnsweredWhileFrozen,
    /// The caller has been told.
    Told,
}

impl Crash {
    fn new(when: When, left: Option<State>) -> Self {
        Self {
            stop_at: None,
            waits: false,
            server: None,
            when,
            effects: 0,
            left,
        }
    }

    fn stopped(point: &'static str, left: Option<State>) -> Self {
        Self {
            stop_at: Some(point),
            ..Self::new(When::Stopped, left)
        }
    }

    /// Both transports and eras where the tool takes a key, and both transports where nothing is vouched
    /// for. A call of the first kind has the tool list read, and does not come so far as to wait when
    /// nothing has a place.
    async fn everywhere(self) {
        let keyed = everywhere().filter(|_| !self.waits);
        let keyed = keyed.map(|(wire, era)| (wire, era, ToolContract::keyed("key")));
        let plain = [Wire::Stdio, Wire::Http];
        let plain = plain.map(|wire| (wire, Era::Discover, ToolContract::AtMostOnce));
        for (wire, era, contract) in keyed.chain(plain) {
            bounded(self.happens(wire, era, &contract)).await;
        }
    }

    fn script(&self) -> Value {
        let mut rules = vec![
            json!({"on": "tools/call", "tool": "charge", "do": ["ledger_once", "answer"]}),
            json!({"on": "tools/call", "tool": "echo",
                "do": [{"touch": "held"}, {"wait_file": "free"}, "answer"]}),
        ];
        if let Some(steps) = &self.server {
            let first = json!({"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1,
                "do": steps});
            rules.insert(0, first);
        }
        json!({"log_messages": true, "rules": rules})
    }

    async fn happens(&self, wire: Wire, era: Era, contract: &ToolContract) {
        let world = World::new(wire, era, self.script()).await;
        let mut options = options(&world, contract);
        // The call that takes the place of another has no key, and is none of the journal's.
        options["only_keyed"] = json!(true);
        let id = OperationId::mint();
        self.kill_a_host(&world, &options, id).await;

        let mut host = HostProcess::start(&options);
        let found = all(&journal_of(&world)).await;
        let expected: Vec<_> = self.left.map(|state| (id, state)).into_iter().collect();
        let states: Vec<_> = found
            .iter()
            .map(|r| (r.intent.operation, r.state))
            .collect();
        assert_eq!(states, expected, "none forgotten, none invented");
        assert_eq!(
            sent(&world),
            usize::from(self.server.is_some()),
            "a start runs nothing"
        );
        assert_eq!(world.bed.ran("charge"), self.effects);

        let another = OperationId::mint();
        let repeats = *contract != ToolContract::AtMostOnce;
        match self.left {
            None | Some(State::NotSent) => {
                let again = host.ask(charge(another));
                assert_eq!(again["text"], json!("charged"), "its key is free: {again}");
                assert_eq!(world.bed.ran("charge"), 1);
            }
            Some(State::OutcomeUnknown) if repeats => {
                let done = host.ask(json!({"do": "resolve", "operation": id}));
                assert_eq!(
                    (&done["by"], &done["text"]),
                    (&json!("repeat"), &json!("charged")),
                    "{done}"
                );
                assert_eq!(world.bed.ran("charge"), 1, "one effect under one key");
                assert!(host.listed().is_empty());
            }
            Some(State::OutcomeUnknown) => {
                let before = sent(&world);
                let refused = host.ask(json!({"do": "resolve", "operation": id}));
                let error = refused["error"].as_str().expect("nothing is allowed");
                assert!(error.contains("give a verdict"), "{error}");
                let again = host.ask(charge(another));
                assert_eq!(again["outcome"], json!("unknown"), "{again}");
                assert_eq!(again["operation"], json!(id));
                assert_eq!(
                    (sent(&world), world.bed.ran("charge")),
                    (before, self.effects)
                );
                assert_eq!(host.listed().len(), 1, "it stays listed");
            }
            Some(_) => {
                let before = sent(&world);
                let again = host.ask(charge(another));
                assert_eq!(again["text"], json!("charged"), "{again}");
                assert_eq!(again["operation"], json!(id));
                let settled = host.ask(json!({"do": "resolve", "operation": id}));
                let error = settled["error"].as_str().expect("it is settled");
                assert!(error.contains("settled already"), "{error}");
                assert_eq!((sent(&world), world.bed.ran("charge")), (before, 1));
            }
        }
        host.close();
        let known = ids(&all(&journal_of(&world)).await);
        assert!(
            known.iter().all(|it| [id, another].contains(it)),
            "{known:?}"
        );
    }

    async fn kill_a_host(&self, world: &World, options: &Value, id: OperationId) {
        let mut options = options.clone();
        if let Some(point) = self.stop_at {
            options["stop_at"] = json!(point);
        }
        if self.waits {
            options["max_in_flight"] = json!(1);
            options["no_queue"] = json!(true);
        }
        let mut host = HostProcess::start(&options);
        if self.waits {
            host.order(&json!({"do": "call", "tool": "echo", "arguments": {}}));
            world.bed.until_file("held").await;
        }
        host.order(&charge(id));
        if self.waits && self.stop_at != Some("after_intent") {
            while ids(&all(&journal_of(world)).await) != [id] {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            world.bed.touch("free");
        }
        match self.when {
            When::Stopped => drop(host.until(|line| line["event"] == "stopped")),
            When::Made(name) => world.bed.until_file(name).await,
            When::AnsweredWhileFrozen => {
                world.bed.until_file("ran").await;
                host.freeze();
                world.bed.touch("go");
                world.bed.until_file("answered").await;
            }
            When::Told => {
                let told = host.until(|line| line["did"] == "call");
                assert_eq!(told["operation"], json!(id), "{told}");
            }
        }
        host.kill();
        if world.wire == Wire::Stdio {
            until("its server is gone, too", || world.bed.running().is_empty()).await;
        }
    }
}

fn charge(id: OperationId) -> Value {
    json!({"do": "call", "tool": "charge", "arguments": {"amount": 1999}, "key": "order-1001",
        "id": id})
}

/// How often the server was asked to charge.
fn sent(world: &World) -> usize {
    let asked = |m: &Value| m["method"] == "tools/call" && m["params"]["name"] == "charge";
    world.bed.messages().iter().filter(|m| asked(m)).count()
}

#[tokio::test]
async fn before_the_intent_there_is_nothing() {
    Crash::stopped("before_intent", None).everywhere().await;
}

/// Of an operation that waits for its place no attempt is recorded, and none was made.
#[tokio::test]
async fn after_the_intent_of_one_that_waits_it_was_not_sent() {
    let crash = Crash {
        waits: true,
        ..Crash::stopped("after_intent", Some(State::NotSent))
    };
    crash.everywhere().await;
}

/// One that has a place at once is recorded together with its first attempt.
#[tokio::test]
async fn after_the_intent_with_an_attempt_it_is_unknown() {
    let crash = Crash::stopped("after_intent", Some(State::OutcomeUnknown));
    crash.everywhere().await;
}

#[tokio::test]
async fn before_its_attempt_is_recorded_it_was_not_sent() {
    let crash = Crash {
        waits: true,
        ..Crash::stopped("before_dispatching", Some(State::NotSent))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn after_its_attempt_is_recorded_it_is_unknown() {
    let crash = Crash {
        waits: true,
        ..Crash::stopped("after_dispatching", Some(State::OutcomeUnknown))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn after_the_hand_over_it_is_unknown() {
    let crash = Crash {
        server: Some(json!([{"touch": "read"}, "hang"])),
        ..Crash::new(When::Made("read"), Some(State::OutcomeUnknown))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn after_the_effect_it_is_unknown() {
    let crash = Crash {
        server: Some(json!(["ledger_once", {"touch": "ran"}, "hang"])),
        effects: 1,
        ..Crash::new(When::Made("ran"), Some(State::OutcomeUnknown))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn after_the_answer_that_nobody_read_it_is_unknown() {
    let steps = json!(["ledger_once", {"touch": "ran"}, {"wait_file": "go"}, "answer",
        {"touch": "answered"}]);
    let crash = Crash {
        server: Some(steps),
        effects: 1,
        ..Crash::new(When::AnsweredWhileFrozen, Some(State::OutcomeUnknown))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn after_the_answer_and_before_the_record_it_is_unknown() {
    let crash = Crash {
        server: Some(json!(["ledger_once", "answer"])),
        effects: 1,
        ..Crash::stopped("before_record", Some(State::OutcomeUnknown))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn after_the_record_its_answer_is_there_though_its_caller_never_heard() {
    let crash = Crash {
        server: Some(json!(["ledger_once", "answer"])),
        effects: 1,
        ..Crash::stopped("after_record", Some(State::Succeeded))
    };
    crash.everywhere().await;
}

#[tokio::test]
async fn what_its_caller_was_told_is_what_the_next_start_says() {
    let crash = Crash {
        server: Some(json!(["ledger_once", "answer"])),
        effects: 1,
        ..Crash::new(When::Told, Some(State::Succeeded))
    };
    crash.everywhere().await;
}
