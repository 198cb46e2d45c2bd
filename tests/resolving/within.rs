//! In the process that lost the answer.

use std::time::Duration;

use mcp_supervisor::{
    CancellationToken, Era, Known, LentSpec, Resolve, ResolveError, Supervisor, ToolCall,
    ToolContract, What,
    error::{CallError, InvalidRequest, Unsettled},
    journal::{Fact, Ruling, Settler, State, Verdict},
};
use serde_json::{Value, json};

use super::{charge, journal, keyed, looked_up, lose, once, open};
use crate::support::{
    bounded, initialize,
    world::{Wire, World, everywhere, shut_down, told, until_told},
};

fn over() -> Value {
    json!({"error": {"code": -32001, "message": "Session terminated"}})
}

/// The first charge has its effect, and its answer is lost. A server that deduplicates answers all
/// others.
fn losing_the_first() -> Value {
    json!({"log_messages": true, "rules": [
        {"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1,
            "do": ["ledger_once", over()]},
        {"on": "tools/call", "tool": "charge", "do": ["ledger_once", "answer"]},
    ]})
}

fn arguments(world: &World) -> Vec<Value> {
    let calls = world.bed.messages().into_iter();
    calls
        .filter(|m| m["method"] == "tools/call" && m["params"]["name"] == "charge")
        .map(|mut m| m["params"]["arguments"].take())
        .collect()
}

#[track_caller]
fn unsettled(error: &ResolveError) -> Option<Unsettled> {
    match error {
        ResolveError::StillUnknown(unknown) => unknown.unsettled.clone(),
        other => panic!("not unknown: {other}"),
    }
}

#[tokio::test]
async fn resolving_repeats_with_the_same_key_and_arguments_and_settles_the_operation() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, losing_the_first()).await;
            let journal = journal(true);
            let (supervisor, connection) = open(&world, &journal, keyed()).await;
            let mut events = supervisor.events();
            let id = lose(&connection, charge()).await;
            let done = connection.resolve(id).await.unwrap();
            assert_eq!((done.operation, &done.by), (id, &Settler::Repeat));
            let answer = done.answer().unwrap();
            assert_eq!((answer.operation(), answer.attempts()), (id, 2));
            assert_eq!(answer.text(), "charged");
            let sent = arguments(&world);
            assert_eq!(sent.len(), 2);
            assert_eq!(sent[0], sent[1]);
            assert_eq!(world.bed.ran("charge"), 1);
            let record = journal.show(id).await.unwrap().unwrap();
            assert_eq!((record.state, record.attempts()), (State::Succeeded, 2));
            assert!(matches!(
                &record.last().unwrap().fact,
                Fact::Answered {
                    by: Settler::Repeat,
                    ..
                }
            ));
            let told = told(&mut events).await;
            assert!(told.contains(&What::Resolved {
                operation: id,
                by: "repeat"
            }));
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn arguments_that_were_not_kept_are_asked_for_and_compared_before_anything_is_sent() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), losing_the_first()).await;
        let journal = journal(false);
        let (supervisor, connection) = open(&world, &journal, keyed()).await;
        let id = lose(&connection, charge()).await;
        let error = connection.resolve(id).await.unwrap_err();
        assert!(
            matches!(error, ResolveError::ArgumentsNotKept(_)),
            "{error}"
        );
        let other = Resolve::new(id).with_arguments(json!({"amount": 2000}));
        let error = connection.resolve(other).await.unwrap_err();
        assert!(matches!(error, ResolveError::OtherArguments(_)), "{error}");
        assert!(!error.to_string().contains("2000"));
        let list = Resolve::new(id).with_arguments(json!([1]));
        let error = connection.resolve(list).await.unwrap_err();
        assert!(
            matches!(
                error,
                ResolveError::Invalid(InvalidRequest::ArgumentsNotAnObject { .. })
            ),
            "{error}"
        );
        assert_eq!(world.bed.read("tools/call"), 1);
        // In any order of the members.
        let same = json!({"nested": {"a": [2.5, null], "b": 1}, "amount": 1999});
        let order = Resolve::new(id).with_arguments(same);
        let done = connection.resolve(order).await.unwrap();
        assert_eq!(done.answer().unwrap().text(), "charged");
        let sent = arguments(&world);
        assert_eq!(sent[0], sent[1]);
        assert_eq!(world.bed.ran("charge"), 1);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn without_a_contract_nothing_is_sent_to_resolve_it() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, losing_the_first()).await;
            let journal = journal(true);
            let (supervisor, connection) = open(&world, &journal, ToolContract::AtMostOnce).await;
            let id = lose(&connection, charge()).await;
            let error = connection.resolve(id).await.unwrap_err();
            assert!(
                matches!(error, ResolveError::NothingAllowed { why: None, .. }),
                "{error}"
            );
            assert_eq!(world.bed.read("tools/call"), 1);
            let record = journal.show(id).await.unwrap().unwrap();
            assert_eq!(record.state, State::OutcomeUnknown);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn two_that_resolve_at_once_make_one_repeat() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut script = losing_the_first();
            script["rules"][1]["do"] =
                json!(["ledger_once", {"touch": "again"}, {"wait_file": "go"}, "answer"]);
            let world = World::new(wire, era, script).await;
            let journal = journal(true);
            let (supervisor, connection) = open(&world, &journal, keyed()).await;
            let id = lose(&connection, charge()).await;
            let first = connection.resolve(id);
            let second = async {
                world.bed.until_file("again").await;
                let second = connection.resolve(id).await;
                world.bed.touch("go");
                second
            };
            let (first, second) = tokio::join!(first, second);
            assert_eq!(first.unwrap().answer().unwrap().text(), "charged");
            let error = second.unwrap_err();
            assert!(matches!(error, ResolveError::Elsewhere(_)), "{error}");
            assert_eq!(arguments(&world).len(), 2);
            let error = connection.resolve(id).await.unwrap_err();
            let ResolveError::Settled(record) = error else {
                panic!("{error}")
            };
            assert_eq!(record.state, State::Succeeded);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_repeat_goes_on_and_is_recorded_when_nobody_waits_for_it() {
    bounded(async {
        let mut script = losing_the_first();
        script["rules"][1]["do"] =
            json!(["ledger_once", {"touch": "again"}, {"wait_file": "go"}, "answer"]);
        let world = World::new(Wire::Http, Era::Discover, script).await;
        let journal = journal(true);
        let (supervisor, connection) = open(&world, &journal, keyed()).await;
        let mut events = supervisor.events();
        let id = lose(&connection, charge()).await;
        {
            let resolving = connection.resolve(id);
            tokio::pin!(resolving);
            tokio::select! {
                done = &mut resolving => panic!("{done:?}"),
                () = world.bed.until_file("again") => {}
            }
        }
        world.bed.touch("go");
        until_told(&mut events, |what| matches!(what, What::Resolved { .. })).await;
        let record = journal.show(id).await.unwrap().unwrap();
        assert_eq!(record.state, State::Succeeded);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_that_runs_is_not_resolved() {
    bounded(async {
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge",
            "do": ["ledger", {"touch": "ran"}, {"wait_file": "go"}, "answer"]}]});
        let world = World::new(Wire::Stdio, Era::Discover, script).await;
        let journal = journal(true);
        let (supervisor, connection) = open(&world, &journal, keyed()).await;
        let id = mcp_supervisor::OperationId::mint();
        let call = connection.call_tool(charge().operation_id(id));
        let resolving = async {
            world.bed.until_file("ran").await;
            let error = connection.resolve(id).await.unwrap_err();
            world.bed.touch("go");
            error
        };
        let (answer, error) = tokio::join!(call, resolving);
        assert!(matches!(error, ResolveError::Elsewhere(_)), "{error}");
        assert_eq!(answer.unwrap().attempts(), 1);
        assert_eq!(world.bed.read("tools/call"), 1);
        shut_down(supervisor).await;
    })
    .await;
}

/// The first attempt may have run, whatever the server says about the second.
#[tokio::test]
async fn a_repeat_that_is_refused_or_lost_leaves_it_unknown_and_it_can_be_resolved_again() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut script = losing_the_first();
            let rules = script["rules"].as_array_mut().unwrap();
            // Over stdio the second session counts anew.
            let nth = match wire {
                Wire::Stdio => 1,
                Wire::Http => 2,
            };
            let refused = json!({"error": {"code": -32602, "message": "not now"}});
            rules.insert(
                1,
                json!({"on": "tools/call", "tool": "charge", "nth": nth, "do": [refused]}),
            );
            let world = World::new(wire, era, script).await;
            let journal = journal(true);
            let (supervisor, connection) = open(&world, &journal, keyed()).await;
            let id = lose(&connection, charge()).await;
            let error = connection.resolve(id).await.unwrap_err();
            assert_eq!(
                unsettled(&error),
                Some(Unsettled::RepeatRejected),
                "{error}"
            );
            let record = journal.show(id).await.unwrap().unwrap();
            assert_eq!(
                (record.state, record.attempts()),
                (State::OutcomeUnknown, 2)
            );
            let done = connection.resolve(id).await.unwrap();
            assert_eq!(done.answer().unwrap().attempts(), 3);
            assert_eq!(world.bed.ran("charge"), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_repeat_that_is_cancelled_or_out_of_time_leaves_it_unknown() {
    bounded(async {
        let mut script = losing_the_first();
        script["rules"][1]["do"] = json!(["ledger_once", {"touch": "again"}, "hang"]);
        let world = World::new(Wire::Stdio, Era::Discover, script).await;
        let journal = journal(true);
        let (supervisor, connection) = open(&world, &journal, keyed()).await;
        let id = lose(&connection, charge()).await;
        let token = CancellationToken::new();
        let order = Resolve::new(id).cancelled_by(token.clone());
        let cancelling = async {
            world.bed.until_file("again").await;
            token.cancel();
        };
        let (done, ()) = tokio::join!(connection.resolve(order), cancelling);
        assert_eq!(unsettled(&done.unwrap_err()), Some(Unsettled::Interrupted));
        let order = Resolve::new(id).deadline(Duration::from_millis(600));
        let error = connection.resolve(order).await.unwrap_err();
        assert_eq!(unsettled(&error), Some(Unsettled::Spent), "{error}");
        let ResolveError::StillUnknown(still) = &error else {
            panic!("{error}")
        };
        assert!(
            still.about.key.is_some(),
            "its caller may have no other way to it"
        );
        let nothing = Resolve::new(id).deadline(Duration::ZERO);
        let error = connection.resolve(nothing).await.unwrap_err();
        assert!(matches!(error, ResolveError::Invalid(_)), "{error}");
        let record = journal.show(id).await.unwrap().unwrap();
        assert_eq!(record.state, State::OutcomeUnknown);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_status_tool_settles_what_it_finds_and_nothing_else() {
    for (wire, era) in everywhere() {
        for effect in [true, false] {
            bounded(async {
                let steps = match effect {
                    true => json!(["ledger", over()]),
                    false => json!([over()]),
                };
                // The first look-up, which the call itself makes, cannot be answered.
                let script = json!({"log_messages": true, "rules": [
                    {"on": "tools/call", "tool": "charge", "do": steps},
                    {"on": "tools/call", "tool": "lookup", "args": {"key": "order-1001"},
                        "nth": 1, "do": [{"error": {"code": -32603, "message": "later"}}]},
                ]});
                let world = World::new(wire, era.clone(), script).await;
                let journal = journal(false);
                let (supervisor, connection) = open(&world, &journal, looked_up(None)).await;
                let call = ToolCall::new("charge", json!({"key": "order-1001"}));
                let call = call.idempotency_key("order-1001".parse().unwrap());
                let id = lose(&connection, call).await;
                let mut done = connection.resolve(id).await;
                if matches!(&done, Err(error) if matches!(unsettled(error), Some(Unsettled::LookUpFailed { .. })))
                {
                    done = connection.resolve(id).await;
                }
                if effect {
                    let done = done.unwrap();
                    assert_eq!(done.by, Settler::LookUp);
                    assert!(done.answer().unwrap().was_looked_up());
                } else {
                    assert_eq!(unsettled(&done.unwrap_err()), Some(Unsettled::Absent));
                }
                assert_eq!(arguments(&world).len(), 1, "no repeat");
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

/// Who took a contract back does not vouch for it, and who added one did not vouch for that call.
#[tokio::test]
async fn a_contract_that_is_not_the_one_of_the_call_allows_nothing() {
    bounded(async {
        for (then, now) in [
            (keyed(), ToolContract::AtMostOnce),
            (keyed(), ToolContract::keyed("id")),
            (ToolContract::Idempotent, keyed()),
        ] {
            let world = World::new(Wire::Stdio, initialize(), losing_the_first()).await;
            let journal = journal(true);
            let (supervisor, connection) = open(&world, &journal, then).await;
            let id = lose(&connection, charge()).await;
            shut_down(supervisor).await;
            let (supervisor, connection) = open(&world, &journal, now).await;
            let error = connection.resolve(id).await.unwrap_err();
            let changed = Some(Unsettled::ContractChanged);
            assert!(
                matches!(&error, ResolveError::NothingAllowed { why, .. } if *why == changed),
                "{error}"
            );
            assert_eq!(world.bed.read("tools/call"), 1);
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_operation_is_handed_to_another_supervisor_by_its_id_alone() {
    bounded(async {
        let world = World::new(Wire::Http, Era::Discover, losing_the_first()).await;
        let journal = journal(true);
        let (first, connection) = open(&world, &journal, keyed()).await;
        let id = lose(&connection, charge()).await;
        let agent = Supervisor::builder().journal(journal.clone()).start().await.unwrap();
        let error = agent.resolve(id).await.unwrap_err();
        assert!(
            matches!(&error, ResolveError::NoConnection { connection } if connection.as_str() == "server"),
            "{error}"
        );
        agent.open("server", once(world.spec(), keyed())).await.unwrap();
        let written = id.to_string();
        let done = agent.resolve(written.parse::<mcp_supervisor::OperationId>().unwrap()).await;
        assert_eq!(done.unwrap().answer().unwrap().text(), "charged");
        let error = first.resolve(id).await.unwrap_err();
        assert!(matches!(error, ResolveError::Settled(_)), "{error}");
        shut_down(agent).await;
        shut_down(first).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_not_there_to_be_resolved_is_told_apart() {
    bounded(async {
        let world = World::new(Wire::Http, initialize(), losing_the_first()).await;
        let journal = journal(true);
        let (supervisor, connection) = open(&world, &journal, keyed()).await;
        let id = lose(&connection, charge()).await;
        let stranger = mcp_supervisor::OperationId::mint();
        for error in [
            connection.resolve(stranger).await.unwrap_err(),
            supervisor.resolve(stranger).await.unwrap_err(),
        ] {
            assert!(
                matches!(error, ResolveError::NotKnown(at) if at == stranger),
                "{error}"
            );
        }
        let spec = once(world.spec(), keyed());
        let other = supervisor.open("other", spec.clone()).await.unwrap();
        let error = other.resolve(id).await.unwrap_err();
        assert!(
            matches!(error, ResolveError::OtherConnection { .. }),
            "{error}"
        );
        let without = Supervisor::builder().start().await.unwrap();
        let plain = without.open("server", spec).await.unwrap();
        let error = plain.resolve(id).await.unwrap_err();
        assert!(matches!(error, ResolveError::NoJournal), "{error}");
        assert!(matches!(
            without.resolve(id).await,
            Err(ResolveError::NoJournal)
        ));
        assert_eq!(world.bed.read("tools/call"), 1);
        shut_down(without).await;
        shut_down(supervisor).await;
    })
    .await;
}

/// Contracts act on what the runtime owns.
#[tokio::test]
async fn on_a_lent_connection_no_contract_resolves_anything() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), losing_the_first()).await;
        let journal = journal(true);
        let supervisor = Supervisor::builder()
            .journal(journal.clone())
            .start()
            .await
            .unwrap();
        let client = world.client().await;
        let rules = LentSpec::new().contract("charge", keyed());
        let lent = supervisor
            .lend_service("server", &client, rules)
            .await
            .unwrap();
        let error = lent.call_tool(charge()).await.unwrap_err();
        assert!(matches!(error, CallError::Unknown(_)), "{error}");
        let id = error.operation();
        for error in [
            lent.resolve(id).await.unwrap_err(),
            supervisor.resolve(id).await.unwrap_err(),
        ] {
            let owned = Some(Unsettled::CallerOwned);
            assert!(
                matches!(&error, ResolveError::NothingAllowed { why, .. } if *why == owned),
                "{error}"
            );
        }
        assert_eq!(world.bed.read("tools/call"), 1);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn an_error_that_answers_a_repeat_is_what_became_of_it() {
    bounded(async {
        let mut script = losing_the_first();
        script["rules"][1]["do"] = json!([{"error": {"code": -32603, "message": "broken"}}]);
        let world = World::new(Wire::Stdio, Era::Discover, script).await;
        let journal = journal(true);
        let (supervisor, connection) = open(&world, &journal, keyed()).await;
        let id = lose(&connection, charge()).await;
        let done = connection.resolve(id).await.unwrap();
        let Known::Failed(failed) = &done.known else {
            panic!("{done:?}")
        };
        assert_eq!(failed.error.code, -32603);
        let record = journal.show(id).await.unwrap().unwrap();
        assert_eq!(record.state, State::Failed);
        shut_down(supervisor).await;
    })
    .await;
}

/// A caller who knows the key and the arguments need not know of the journal.
#[tokio::test]
async fn the_same_call_finds_out_what_became_of_the_first_one_as_its_contract_allows() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era.clone(), losing_the_first()).await;
            let journal = journal(false);
            let (supervisor, connection) = open(&world, &journal, keyed()).await;
            let id = lose(&connection, charge()).await;
            let answer = connection.call_tool(charge()).await.unwrap();
            assert_eq!((answer.operation(), answer.attempts()), (id, 2));
            assert_eq!(answer.text(), "charged");
            let sent = arguments(&world);
            assert_eq!((sent.len(), &sent[0]), (2, &sent[1]));
            assert_eq!(world.bed.ran("charge"), 1);
            let again = connection.call_tool(charge()).await.unwrap();
            assert!(again.replayed());
            assert_eq!((again.operation(), arguments(&world).len()), (id, 2));
            shut_down(supervisor).await;
        })
        .await;
        bounded(async {
            // The first look-up, which the call itself makes, cannot be answered.
            let script = json!({"log_messages": true, "rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", over()]},
                {"on": "tools/call", "tool": "lookup", "args": {"key": "order-1001"},
                    "nth": 1, "do": [{"error": {"code": -32603, "message": "later"}}]},
            ]});
            let world = World::new(wire, era, script).await;
            let journal = journal(false);
            let (supervisor, connection) = open(&world, &journal, looked_up(None)).await;
            let call = ToolCall::new("charge", json!({"key": "order-1001"}));
            let call = call.idempotency_key("order-1001".parse().unwrap());
            let id = lose(&connection, call.clone()).await;
            let answer = match connection.call_tool(call.clone()).await {
                // The rule counts from anew on a new session.
                Err(CallError::Unknown(e))
                    if matches!(e.unsettled, Some(Unsettled::LookUpFailed { .. })) =>
                {
                    connection.call_tool(call).await
                }
                done => done,
            };
            let answer = answer.unwrap();
            assert_eq!(answer.operation(), id);
            assert!(answer.was_looked_up());
            assert_eq!((arguments(&world).len(), world.bed.ran("charge")), (1, 1));
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_verdict_settles_what_nothing_may_be_sent_for() {
    for ran in [true, false] {
        bounded(async {
            let world = World::new(Wire::Stdio, initialize(), losing_the_first()).await;
            let journal = journal(false);
            let (supervisor, connection) = open(&world, &journal, ToolContract::AtMostOnce).await;
            let id = lose(&connection, charge()).await;
            let error = connection.resolve(id).await.unwrap_err();
            assert!(
                matches!(error, ResolveError::NothingAllowed { .. }),
                "{error}"
            );
            let answer = json!({"content": [{"type": "text", "text": "seen in the ledger"}]});
            let verdict = Verdict {
                who: "dana".to_owned(),
                why: "looked at the shop's ledger".to_owned(),
                outcome: match ran {
                    true => Ruling::Succeeded(Some(answer)),
                    false => Ruling::DidNotRun,
                },
            };
            let state = journal.verdict(id, verdict).await.unwrap();
            let again = connection.call_tool(charge()).await.unwrap();
            match ran {
                true => {
                    assert_eq!(state, State::Succeeded);
                    assert!(again.replayed());
                    assert_eq!(
                        (again.operation(), &*again.text()),
                        (id, "seen in the ledger")
                    );
                    assert_eq!(arguments(&world).len(), 1);
                }
                // Its key is free by somebody's word.
                false => {
                    assert_eq!(state, State::NotSent);
                    assert!(!again.replayed());
                    assert_ne!(again.operation(), id);
                    assert_eq!(arguments(&world).len(), 2);
                }
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}
