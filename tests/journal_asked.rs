//! When a call asks its journal's store, and what becomes of a call whose store fails.

mod support;

use std::{sync::atomic::Ordering, time::Duration};

use mcp_supervisor::{
    Limits, Outcome, Page, Resolve, ResolveError, Supervisor, ToolCall, ToolContract, What,
    error::{NotSentReason, UnknownCause, Wait},
    event::Ended,
    journal::{JournalSettings, State},
    operation::OperationId,
    policy::Repeats,
    spec::Overload,
};
use serde_json::json;
use support::{
    bounded, initialize,
    store::{Asked, watched, watched_with},
    until,
    world::{WIRES, Wire, World, charge, echo, eras, everywhere, not_sent, unknown, until_told},
};

/// Accepted once, with the first attempt in the same write; dispatched once more for each further
/// attempt; settled once. Always of one operation.
#[track_caller]
fn assert_asked(
    asked: &[Asked],
    attempts: usize,
    last: impl Fn(OperationId) -> Asked,
) -> OperationId {
    let Some(Asked::Accept(operation, Some(first))) = asked.first() else {
        panic!("not accepted with its first attempt: {asked:?}");
    };
    let mut dispatched = vec![*first];
    let mut rest = asked[1..].iter();
    let mut settled = None;
    for asked in &mut rest {
        match asked {
            Asked::Dispatching(of, attempt) if of == operation => {
                assert!(
                    !dispatched.contains(attempt),
                    "each attempt has an id of its own"
                );
                dispatched.push(*attempt);
            }
            other => {
                settled = Some(other.clone());
                break;
            }
        }
    }
    assert_eq!(dispatched.len(), attempts);
    assert_eq!(settled, Some(last(*operation)));
    let released = rest.all(|asked| *asked == Asked::Release(*operation));
    assert!(released, "nothing after the end: {asked:?}");
    *operation
}

fn answered(operation: OperationId) -> Asked {
    Asked::Answered(operation, false)
}

#[tokio::test]
async fn the_journal_is_asked_once_to_accept_once_for_each_attempt_and_once_to_settle() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "args": {"amount": 2}, "do": ["ledger", {"error": {"code": -32000, "message": "no"}}]},
                {"on": "tools/call", "args": {"amount": 3}, "nth": 1, "generation": 1, "do": ["ledger", "kill"]},
            ]});
            let mut world = World::new(wire, era, script).await;
            let (supervisor, _, store) = watched().await;
            // The operator vouches for a repeat of `charge`.
            let spec = world.spec().contract("charge", ToolContract::Idempotent);
            let server = supervisor.open("server", spec).await.unwrap();

            let answer = server.call_tool(charge()).await.unwrap();
            let operation = assert_asked(&store.take(), 1, answered);
            assert_eq!(answer.operation(), operation);

            server.list_tools(Page::first()).await.unwrap();
            assert_eq!(store.take(), [], "a read changes nothing that would have to be remembered");

            let amount = |n| ToolCall::new("charge", json!({"amount": n}));
            let error = server.call_tool(amount(2)).await.unwrap_err();
            let failed = |operation| Asked::Without(operation, Outcome::Failed);
            let operation = assert_asked(&store.take(), 1, failed);
            assert_eq!(error.operation(), operation);

            if world.http.is_none() {
                server.call_tool(amount(3)).await.unwrap();
                assert_asked(&store.take(), 2, answered);
                assert_eq!(world.bed.ran("charge"), 4);
            } else if let Some(http) = &mut world.http {
                http.kill();
                let error = server.call_tool(echo()).await.unwrap_err();
                let outcome = error.outcome();
                assert_asked(&store.take(), 1, |operation| Asked::Without(operation, outcome));
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_the_journal_cannot_record_is_not_sent() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let (supervisor, _, store) = watched().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            store.fails.accept.store(true, Ordering::SeqCst);
            let error = server.call_tool(charge()).await.unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::Journal(_)));
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(source, "there is no room for the journal: the disk is full");
            assert!(matches!(store.take()[..], [Asked::Accept(_, Some(_)), ..]));
            store.fails.accept.store(false, Ordering::SeqCst);
            assert!(
                world.bed.wire().is_empty(),
                "not even a session was started"
            );

            server.call_tool(echo()).await.unwrap();
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (0, 1));
            assert_eq!(world.bed.read("tools/call"), 1);
        })
        .await;
    }
}

/// A call that has to wait for its place is accepted first, and its attempt is a write of its own.
#[tokio::test]
async fn an_attempt_that_cannot_be_recorded_is_not_sent_either() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", {"touch": "running"}, {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, _, store) = watched().await;
            let limits = Limits {
                max_in_flight: 1,
                max_queued: 0,
                overload: Overload::Wait,
                ..Limits::default()
            };
            let server = supervisor.open("server", world.spec().limits(limits)).await.unwrap();
            let (first, second) = (server.share(), server.share());
            let first = tokio::spawn(async move { first.call_tool(charge()).await });
            world.bed.until_file("running").await;
            store.take();
            let second = tokio::spawn(async move { second.call_tool(echo()).await });
            let mut asked = Vec::new();
            until("the second one is accepted", || {
                asked.extend(store.take());
                !asked.is_empty()
            })
            .await;
            let Some(Asked::Accept(waits, None)) = asked.first() else {
                panic!("{asked:?}");
            };
            store.fails.dispatching.store(true, Ordering::SeqCst);
            world.bed.touch("go");
            first.await.unwrap().unwrap();
            let error = second.await.unwrap().unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::Journal(_)), "{error:?}");
            assert_eq!(error.operation(), *waits);
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (1, 0));
            assert_eq!(world.bed.read("tools/call"), 1);
            let told = store.take();
            assert!(told.contains(&Asked::Without(*waits, Outcome::NotSent)), "{told:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_is_told_and_recorded_once_the_store_takes_it() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let (supervisor, journal, store) = watched().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            store.fails.outcome.store(true, Ordering::SeqCst);
            let answer = server.call_tool(charge()).await.unwrap();
            let operation = answer.operation();
            let record = journal.show(operation).await.unwrap().unwrap();
            assert_eq!(
                record.state,
                State::Dispatching,
                "after a crash it would be unknown"
            );
            store.fails.outcome.store(false, Ordering::SeqCst);
            let within = Duration::from_secs(20);
            let record = journal.wait(operation, within).await.unwrap().unwrap();
            assert_eq!(record.state, State::Succeeded);
            assert_eq!(world.bed.read("tools/call"), 1);
        })
        .await;
    }
}

fn keyed() -> ToolCall {
    charge().idempotency_key("order-1001".parse().unwrap())
}

const SOON: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_call_whose_intent_the_store_swallows_is_not_sent_and_frees_its_key_once_it_is_written() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let (supervisor, journal, store) = watched().await;
            let server = supervisor.open("server", world.spec()).await.unwrap();
            store.hangs.send_replace(true);
            let error = server.call_tool(keyed().deadline(SOON)).await.unwrap_err();
            assert!(
                matches!(
                    not_sent(&error),
                    NotSentReason::DeadlinePassed(Wait::Journal)
                ),
                "{error:?}"
            );
            assert!(world.bed.wire().is_empty());
            store.hangs.send_replace(false);
            // The same key once more waits for that, and is a call of its own.
            let answer = server.call_tool(keyed()).await.unwrap();
            assert!(!answer.replayed());
            assert_ne!(answer.operation(), error.operation());
            let record = journal.show(error.operation()).await.unwrap();
            assert!(record.is_none_or(|record| record.state == State::NotSent));
            assert_eq!(
                (world.bed.ran("charge"), world.bed.read("tools/call")),
                (1, 1)
            );
        })
        .await;
    }
}

/// Its host stood still, and another one took the operation over: with its attempt recorded, it is taken for
/// sent there, and its contract may let it be sent.
#[tokio::test]
async fn what_changed_hands_is_unknown_although_this_host_did_not_send_it() {
    bounded(async {
        let script = json!({"rules": [{"on": "initialize", "do": ["hang"]}]});
        let world = World::new(Wire::Stdio, initialize(), script).await;
        let (supervisor, _, store) = watched().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        let call = || charge().deadline(Duration::from_millis(300));
        let error = server.call_tool(call()).await.unwrap_err();
        assert!(matches!(
            not_sent(&error),
            NotSentReason::DeadlinePassed(Wait::Session)
        ));

        store.fails.fenced.store(true, Ordering::SeqCst);
        let error = server.call_tool(call()).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown);
        assert_eq!(*unknown(&error), UnknownCause::ChangedHands);
        assert_eq!(world.bed.read("tools/call"), 0);
    })
    .await;
}

fn sent_once_more(spec: mcp_supervisor::ConnectionSpec) -> mcp_supervisor::ConnectionSpec {
    let once = Repeats {
        max_attempts: 1,
        ..Repeats::default()
    };
    spec.contract("charge", ToolContract::keyed("key"))
        .repeats(once)
}

/// With an attempt in its record it is taken for sent by whoever takes it over, and its contract lets it
/// be sent. As long as the record does not say that it was not, it may be, if this host ends.
#[tokio::test]
async fn what_may_be_sent_by_whoever_resolves_it_is_not_sent_only_once_that_is_recorded() {
    let (wire, era) = everywhere().next().unwrap();
    for hangs_for_long in [false, true] {
        bounded(async {
            let world = World::new(wire, era.clone(), json!({})).await;
            let (supervisor, journal, store) = watched().await;
            let server = supervisor.open("server", sent_once_more(world.spec()));
            let server = server.await.unwrap();
            server.list_tools(Page::first()).await.unwrap();
            store.hangs.send_replace(true);
            let calling = async {
                let error = server.call_tool(keyed().deadline(SOON)).await.unwrap_err();
                let record = journal.show(error.operation()).await.unwrap();
                (error, record.map(|record| record.state))
            };
            let moving = async {
                if !hangs_for_long {
                    tokio::time::sleep(2 * SOON).await;
                    store.hangs.send_replace(false);
                }
            };
            let ((error, state), ()) = tokio::join!(calling, moving);
            if hangs_for_long {
                assert_eq!(*unknown(&error), UnknownCause::Unrecorded);
            } else {
                let reason = not_sent(&error);
                let journal = NotSentReason::DeadlinePassed(Wait::Journal);
                assert_eq!(reason.as_str(), journal.as_str());
                assert_eq!(state, Some(State::NotSent));
            }
            assert_eq!(world.bed.read("tools/call"), 0);
        })
        .await;
    }
}

/// The same of a call whose session could not be started, and whose store takes nothing any more.
#[tokio::test]
async fn what_was_not_sent_is_unknown_where_the_store_fails_and_its_contract_lets_others_send_it() {
    for repeats in [false, true] {
        bounded(async {
            let script = json!({"rules": [{"on": "initialize", "do": ["hang"]}]});
            let world = World::new(Wire::Stdio, initialize(), script).await;
            let (supervisor, _, store) = watched().await;
            let spec = match repeats {
                true => sent_once_more(world.spec()),
                false => world.spec(),
            };
            let server = supervisor.open("server", spec).await.unwrap();
            store.fails.outcome.store(true, Ordering::SeqCst);
            let call = keyed().deadline(Duration::from_millis(600));
            let error = server.call_tool(call).await.unwrap_err();
            match repeats {
                true => assert_eq!(*unknown(&error), UnknownCause::Unrecorded),
                false => drop(not_sent(&error)),
            }
            assert_eq!(world.bed.read("tools/call"), 0);
        })
        .await;
    }
}

/// A resolve that cannot go on, because the journal fails, never says that nothing was sent: the call
/// before it may have been.
#[tokio::test]
async fn a_resolve_that_its_journal_fails_says_that_it_was_perhaps_sent() {
    bounded(async {
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "do":
            ["ledger_once", {"error": {"code": -32001, "message": "Session terminated"}}]}]});
        let world = World::new(Wire::Stdio, initialize(), script).await;
        let settings = JournalSettings {
            keep_arguments: true,
            ..JournalSettings::default()
        };
        let (supervisor, _, store) = watched_with(settings).await;
        let server = supervisor.open("server", sent_once_more(world.spec()));
        let server = server.await.unwrap();
        let operation = server.call_tool(keyed()).await.unwrap_err().operation();
        store.fails.dispatching.store(true, Ordering::SeqCst);
        store.fails.outcome.store(true, Ordering::SeqCst);
        let mut events = supervisor.events();
        let error = server.resolve(operation).await.unwrap_err();
        assert!(matches!(error, ResolveError::Journal(_)), "{error}");
        let is_over =
            |what: &What| matches!(what, What::OperationFinished { operation: it, .. } if *it == operation);
        let over = until_told(&mut events, is_over).await;
        let What::OperationFinished { ended, .. } = &over.what else {
            unreachable!("it was just looked at");
        };
        assert_eq!(*ended, Ended::Abandoned { perhaps_sent: true });
        assert_eq!(world.bed.read("tools/call"), 1);
    })
    .await;
}

#[tokio::test]
async fn a_store_that_hangs_at_the_end_holds_up_neither_the_caller_nor_the_connection() {
    for (wire, era) in WIRES.into_iter().zip(eras()) {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do":
                    ["ledger", {"touch": "running"}, {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, journal, store) = watched().await;
            let limits = Limits {
                max_in_flight: 1,
                ..Limits::default()
            };
            let spec = world.spec().limits(limits);
            let server = supervisor.open("server", spec).await.unwrap();
            let calling = server.share();
            let call = charge().deadline(Duration::from_secs(4));
            let call = tokio::spawn(async move { calling.call_tool(call).await });
            world.bed.until_file("running").await;
            store.hangs.send_replace(true);
            world.bed.touch("go");
            let answer = call.await.unwrap().unwrap();
            server.list_tools(Page::first()).await.unwrap();
            store.hangs.send_replace(false);
            let within = Duration::from_secs(20);
            let record = journal.wait(answer.operation(), within).await;
            assert_eq!(record.unwrap().unwrap().state, State::Succeeded);
        })
        .await;
    }
}

#[tokio::test]
async fn a_store_that_hangs_keeps_nobody_who_resolves_past_the_deadline_and_nothing_claimed() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "generation": 1, "nth": 1, "do":
                ["ledger_once", {"error": {"code": -32001, "message": "Session terminated"}}]},
                {"on": "tools/call", "tool": "charge", "do": ["ledger_once", "answer"]}]});
            let world = World::new(wire, era, script).await;
            let settings = JournalSettings {
                keep_arguments: true,
                ..JournalSettings::default()
            };
            let (supervisor, journal, store) = watched_with(settings).await;
            let contract = ToolContract::keyed("key");
            let spec = world.spec().contract("charge", contract).repeats(Repeats {
                max_attempts: 1,
                ..Repeats::default()
            });
            let server = supervisor.open("server", spec).await.unwrap();
            let lost = server.call_tool(keyed()).await.unwrap_err();
            let operation = lost.operation();
            let record = journal.show(operation).await.unwrap().unwrap();
            assert_eq!(record.state, State::OutcomeUnknown);
            store.hangs.send_replace(true);
            let order = Resolve::new(operation).deadline(SOON);
            let error = server.resolve(order).await.unwrap_err();
            assert!(matches!(error, ResolveError::Journal(_)), "{error}");
            // Nor whoever calls again under the key.
            let again = server.call_tool(keyed().deadline(SOON)).await.unwrap_err();
            assert!(
                matches!(not_sent(&again), NotSentReason::StillRuns { operation: of } if *of == operation),
                "{again:?}"
            );
            assert_eq!(world.bed.read("tools/call"), 1);
            store.hangs.send_replace(false);
            // What was claimed too late is given back.
            let resolution = loop {
                match server.resolve(operation).await {
                    Err(ResolveError::Elsewhere(_)) => tokio::task::yield_now().await,                    done => break done.unwrap(),
                }
            };
            assert_eq!(resolution.operation, operation);
            let record = journal.show(operation).await.unwrap().unwrap();
            assert_eq!(record.state, State::Succeeded);
            assert_eq!(world.bed.ran("charge"), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_that_is_refused_as_overload_is_not_recorded() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do":
                    [{"touch": "running"}, {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, journal, store) = watched().await;
            let limits = Limits {
                max_in_flight: 1,
                max_queued: 0,
                overload: Overload::Refuse,
                ..Limits::default()
            };
            let spec = world.spec().limits(limits);
            let server = supervisor.open("server", spec).await.unwrap();
            let calling = server.share();
            let first = tokio::spawn(async move { calling.call_tool(charge()).await });
            world.bed.until_file("running").await;
            store.take();
            let error = server.call_tool(keyed()).await.unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::Overloaded { .. }));
            let accepted = |asked: &Asked| matches!(asked, Asked::Accept(..));
            assert!(!store.take().iter().any(accepted));
            assert_eq!(journal.show(error.operation()).await.unwrap(), None);
            world.bed.touch("go");
            first.await.unwrap().unwrap();
            assert!(!server.call_tool(keyed()).await.unwrap().replayed());
        })
        .await;
    }
}

#[tokio::test]
async fn an_intent_whose_write_failed_and_is_not_there_is_recorded_as_not_sent() {
    bounded(async {
        let (wire, era) = everywhere().next().unwrap();
        let world = World::new(wire, era, json!({})).await;
        let (supervisor, journal, store) = watched().await;
        let server = supervisor.open("server", world.spec()).await.unwrap();
        store.fails.accept.store(true, Ordering::SeqCst);
        let error = server.call_tool(charge()).await.unwrap_err();
        store.fails.accept.store(false, Ordering::SeqCst);
        let operation = error.operation();
        let within = Duration::from_secs(20);
        let settled = async {
            loop {
                if let Some(record) = journal.wait(operation, within).await.unwrap() {
                    return record.state;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(settled.await, State::NotSent);
        assert!(world.bed.wire().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_supervisor_under_another_one_uses_its_journal() {
    for own_journal in [false, true] {
        bounded(async {
            let bed = support::Bed::new(json!({}));
            let (host, _, above) = watched().await;
            let (_, journal, own) = watched().await;
            let mut builder = Supervisor::builder().under(&host, "agent");
            if own_journal {
                builder = builder.journal(journal);
            }
            let agent = builder.start().await.unwrap();
            let spec = bed.stdio_spec(support::initialize());
            let server = agent.open("server", spec).await.unwrap();
            server.call_tool(echo()).await.unwrap();
            let (asked, other) = if own_journal {
                (own.take(), above.take())
            } else {
                (above.take(), own.take())
            };
            assert_asked(&asked, 1, answered);
            assert_eq!(other, []);
        })
        .await;
    }
}
