//! What the journal makes of a store.

use std::task::Poll;

use serde_json::json;

use super::*;
use crate::{evidence::Outcome, operation::Fingerprint};

const LONG: Duration = Duration::from_secs(20);

async fn bounded<T>(body: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, body)
        .await
        .expect("the test ran into its outer deadline")
}

fn name() -> ConnectionName {
    "billing".parse().unwrap()
}

fn key(text: &str) -> IdempotencyKey {
    text.parse().unwrap()
}

fn intent() -> Intent {
    let print = Fingerprint::of("charge", &serde_json::Map::new());
    Intent::new(OperationId::mint(), name(), "charge", print)
}

fn call() -> Settler {
    Settler::Call {
        generation: None,
        attempts: 1,
    }
}

fn without(outcome: Outcome) -> Fact {
    Fact::Without {
        outcome,
        failure: Failure::new("session_ended"),
        by: call(),
    }
}

async fn dispatched(journal: &Journal, intent: Intent) -> Held {
    let accepted = journal.accept(intent, Some(AttemptId::mint())).await;
    match accepted.unwrap() {
        Accepted::New(held) => held,
        Accepted::Found(record) => panic!("it is there already: {record:?}"),
    }
}

async fn unknown(journal: &Journal) -> Held {
    let held = dispatched(journal, intent()).await;
    let lost = journal.append(&held, without(Outcome::Unknown)).await;
    assert_eq!(lost.unwrap(), State::OutcomeUnknown);
    held
}

fn verdict(outcome: Ruling) -> Verdict {
    Verdict {
        who: "dana".to_owned(),
        why: "the ledger has it".to_owned(),
        outcome,
    }
}

// ------------------------------------------------------------------- verdicts

#[tokio::test]
async fn a_verdict_settles_an_unknown_operation_and_is_kept_with_who_and_why() {
    let journal = Journal::memory();
    let answer = json!({"id": "p-1001"});
    for (ruling, state) in [
        (Ruling::Succeeded(Some(answer.clone())), State::Succeeded),
        (Ruling::Succeeded(None), State::Succeeded),
        (Ruling::Failed, State::Failed),
        (Ruling::DidNotRun, State::NotSent),
        (Ruling::Stopped, State::Cancelled),
    ] {
        let operation = unknown(&journal).await.operation;
        let settled = journal.verdict(operation, verdict(ruling.clone())).await;
        assert_eq!(settled.unwrap(), state);
        let record = journal.show(operation).await.unwrap().unwrap();
        assert_eq!(record.state, state);
        let by = match record.last().map(|last| &last.fact) {
            Some(Fact::Answered {
                by, answer: kept, ..
            }) => {
                let expected = match ruling {
                    Ruling::Succeeded(Some(answer)) => Kept::Whole(answer),
                    _ => Kept::Nothing,
                };
                assert_eq!(*kept, expected);
                by
            }
            Some(Fact::Without { by, .. } | Fact::Cancelled { by }) => by,
            other => panic!("{other:?}"),
        };
        let Settler::Verdict { who, why } = by else {
            panic!("{by:?}");
        };
        assert_eq!((who.as_str(), why.as_str()), ("dana", "the ledger has it"));
    }
    assert!(journal.unknown().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_verdict_is_refused_for_what_runs_is_settled_or_missing_and_changes_nothing() {
    let journal = Journal::memory();
    let judge = async |operation| journal.verdict(operation, verdict(Ruling::Failed)).await;

    let running = dispatched(&journal, intent()).await;
    let refused = judge(running.operation).await.unwrap_err();
    assert!(matches!(refused, JournalError::StillRunning { ref host } if !host.is_empty()));

    let resolved = unknown(&journal).await.operation;
    let Claimed::Yes(held, _) = journal.claim(resolved).await.unwrap() else {
        panic!("nobody has it");
    };
    let refused = judge(resolved).await.unwrap_err();
    assert!(matches!(refused, JournalError::StillRunning { .. }));

    journal
        .append(&running, without(Outcome::Rejected))
        .await
        .unwrap();
    let refused = judge(running.operation).await.unwrap_err();
    assert!(matches!(
        refused,
        JournalError::AlreadySettled(State::Rejected)
    ));
    assert!(refused.to_string().ends_with("rejected"), "{refused}");

    let refused = judge(OperationId::mint()).await.unwrap_err();
    assert!(matches!(refused, JournalError::OperationMissing));

    let mut nobodys = verdict(Ruling::Failed);
    nobodys.who.clear();
    journal.release(&held).await.unwrap();
    let refused = journal.verdict(resolved, nobodys).await.unwrap_err();
    assert!(matches!(refused, JournalError::Verdict(_)), "{refused}");

    let record = journal.show(resolved).await.unwrap().unwrap();
    assert_eq!(
        (record.state, record.history.len()),
        (State::OutcomeUnknown, 2)
    );
    judge(resolved).await.unwrap();
    journal.close().await.unwrap();
    let refused = judge(resolved).await.unwrap_err();
    assert!(matches!(refused, JournalError::Store(StoreError::Closed)));
}

#[tokio::test]
async fn a_verdict_whose_caller_stopped_waiting_is_recorded() {
    bounded(async {
        let journal = Journal::memory();
        let operation = unknown(&journal).await.operation;
        let mut judged = Box::pin(journal.verdict(operation, verdict(Ruling::Failed)));
        std::future::poll_fn(|task| {
            assert!(
                judged.as_mut().poll(task).is_pending(),
                "it is another task's"
            );
            Poll::Ready(())
        })
        .await;
        drop(judged);
        while journal.show(operation).await.unwrap().unwrap().state != State::Failed {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_did_not_run_frees_its_key_and_what_ran_does_not() {
    let journal = Journal::memory();
    for (text, ruling, free) in [
        ("order-1", Ruling::DidNotRun, true),
        ("order-2", Ruling::Failed, false),
    ] {
        let mut intent = intent();
        intent.key = Some(key(text));
        let held = dispatched(&journal, intent.clone()).await;
        journal
            .append(&held, without(Outcome::Unknown))
            .await
            .unwrap();
        journal
            .verdict(held.operation, verdict(ruling))
            .await
            .unwrap();
        let found = journal
            .find_key(&name(), &key(text))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(found.intent.operation, held.operation);
        intent.operation = OperationId::mint();
        let accepted = journal.accept(intent, None).await.unwrap();
        assert_eq!(matches!(accepted, Accepted::New(_)), free, "{text}");
    }
}

// ------------------------------------------------------------------- waiting and listing

#[tokio::test]
async fn a_wait_ends_when_its_operation_rests_and_not_with_others() {
    bounded(async {
        let journal = Journal::memory();
        for outcome in [Outcome::Unknown, Outcome::Failed] {
            let held = dispatched(&journal, intent()).await;
            let mut waiting = Box::pin(journal.wait(held.operation, Duration::MAX));
            // More of others than are remembered.
            for _ in 0..=REMEMBERED {
                let other = dispatched(&journal, intent()).await;
                journal
                    .append(&other, without(Outcome::Failed))
                    .await
                    .unwrap();
                std::future::poll_fn(|task| {
                    assert!(waiting.as_mut().poll(task).is_pending());
                    Poll::Ready(())
                })
                .await;
            }
            for _ in 0..2 * REMEMBERED {
                let other = dispatched(&journal, intent()).await;
                journal
                    .append(&other, without(Outcome::Failed))
                    .await
                    .unwrap();
            }
            let state = journal.append(&held, without(outcome)).await.unwrap();
            let record = waiting.await.unwrap().unwrap();
            assert_eq!(
                (record.intent.operation, record.state),
                (held.operation, state)
            );
        }
        let stranger = journal.wait(OperationId::mint(), Duration::MAX).await;
        assert!(stranger.unwrap().is_none());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_gives_what_is_there_when_its_time_is_over() {
    let journal = Journal::memory();
    let held = dispatched(&journal, intent()).await;
    let begun = tokio::time::Instant::now();
    let within = Duration::from_secs(3);
    let record = journal.wait(held.operation, within).await.unwrap();
    assert_eq!(record.unwrap().state, State::Dispatching);
    let took = begun.elapsed();
    assert!(
        took >= within && took < within + Duration::from_secs(1),
        "{took:?}"
    );
}

#[tokio::test]
async fn all_that_is_unknown_is_listed_however_much_it_is() {
    let journal = Journal::memory();
    let mut expected = Vec::new();
    for i in 0..2 * PAGE + 1 {
        expected.push(unknown(&journal).await.operation);
        if i % 3 == 0 {
            dispatched(&journal, intent()).await;
        }
    }
    expected.sort();
    let listed = journal.unknown().await.unwrap();
    let listed: Vec<_> = listed.iter().map(|r| r.intent.operation).collect();
    assert_eq!(listed, expected);
}

// ------------------------------------------------------------------- what is kept

#[tokio::test]
async fn what_is_too_large_is_not_kept_and_a_servers_text_is_cut() {
    let settings = JournalSettings {
        max_answer_bytes: 20,
        ..JournalSettings::default()
    };
    let journal = Journal::new(MemoryStore::new(), settings);
    let fits = json!({"text": "0123456"});
    assert_eq!(fits.to_string().len(), 18);
    assert_eq!(journal.kept(fits.clone()), Kept::Whole(fits));
    let large = json!({"text": "0123456789"});
    assert_eq!(journal.kept(large), Kept::TooLarge { bytes: 21 });

    let held = dispatched(&journal, intent()).await;
    let mut failure = Failure::new("server_error");
    failure.message = Some("m".repeat(1_000_000));
    let fact = Fact::Without {
        outcome: Outcome::Failed,
        failure,
        by: call(),
    };
    journal.append(&held, fact).await.unwrap();
    let record = journal.show(held.operation).await.unwrap().unwrap();
    assert!(serde_json::to_string(&record).unwrap().len() < 6_000);
}

#[tokio::test]
async fn an_export_has_a_header_and_a_record_on_each_line() {
    let journal = Journal::memory();
    let mut intents: Vec<_> = (0..PAGE + 10).map(|_| intent()).collect();
    intents[3].key = Some(key("order-1"));
    intents[3].arguments = json!({"note": "two\nlines"}).as_object().cloned();
    for intent in &intents {
        dispatched(&journal, intent.clone()).await;
    }
    let mut file = Vec::new();
    let written = journal.export(&mut file).await.unwrap();
    assert_eq!(written, intents.len() as u64);
    let text = String::from_utf8(file).unwrap();
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    let header: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(header["format"], "mcp-supervisor journal");
    assert_eq!(header["version"], 1);
    assert!(humantime::parse_rfc3339(header["exported_at"].as_str().unwrap()).is_ok());
    let read: Vec<Record> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    intents.sort_by_key(|intent| intent.operation);
    let exported: Vec<_> = read.iter().map(|record| record.intent.operation).collect();
    let expected: Vec<_> = intents.iter().map(|intent| intent.operation).collect();
    assert_eq!(exported, expected);
    for record in read {
        let shown = journal
            .show(record.intent.operation)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(record, shown);
    }

    let mut full = tokio::io::duplex(16).0;
    let error = journal.export(&mut full).await.unwrap_err();
    assert!(matches!(error, JournalError::Export(_)), "{error}");
}

#[test]
fn a_journal_shows_its_settings_and_no_record() {
    let shown = format!("{:?}", Journal::memory());
    assert!(shown.contains("answers_kept_for"), "{shown}");
}

// ------------------------------------------------------------------- the background

/// What was settled is over its time at once.
fn short_lived() -> Journal {
    let settings = JournalSettings {
        answers_kept_for: Duration::ZERO,
        tombstones_kept_for: Duration::ZERO,
        ..JournalSettings::default()
    };
    Journal::new(MemoryStore::new(), settings)
}

#[tokio::test(start_paused = true)]
async fn what_is_over_its_time_is_removed_in_the_background_and_what_is_unknown_stays() {
    let journal = short_lived();
    for _ in 0..600 {
        let held = dispatched(&journal, intent()).await;
        journal
            .append(&held, without(Outcome::Failed))
            .await
            .unwrap();
    }
    let unknown = unknown(&journal).await.operation;
    let all = Filter {
        limit: usize::MAX,
        ..Filter::default()
    };
    let begun = tokio::time::Instant::now();
    loop {
        let left = journal.list(&all).await.unwrap();
        if left.len() == 1 {
            assert_eq!(left[0].intent.operation, unknown);
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{} left",
            left.len()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // 600 are three sweeps, and a tombstone is removed by a sweep after the one that made it.
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn the_task_in_the_background_ends_with_the_last_clone() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let journal = Journal::memory();
    let before = tasks();
    journal.show(OperationId::mint()).await.unwrap();
    journal.show(OperationId::mint()).await.unwrap();
    assert_eq!(tasks(), before + 1, "one task, from the first use on");
    let clone = journal.clone();
    drop(journal);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(tasks(), before + 1, "a clone is the journal");
    drop(clone);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(tasks(), before);
}

#[test]
fn a_journal_that_outlives_its_runtime_is_swept_on_the_next_one() {
    let journal = short_lived();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let held = dispatched(&journal, intent()).await;
            journal
                .append(&held, without(Outcome::Rejected))
                .await
                .unwrap();
            let begun = tokio::time::Instant::now();
            while journal.show(held.operation).await.unwrap().is_some() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
}

// --------------------------------------------------------------------- claims

#[tokio::test]
async fn whoever_is_refused_a_claim_leaves_the_operation_with_the_one_who_has_it() {
    bounded(async {
        let journal = Journal::memory();
        let held = dispatched(&journal, intent()).await;
        let operation = held.operation;
        journal.hold_task(held);
        let Ok(Claimed::Yes(first, _)) = journal.claim(operation).await else {
            panic!("nobody has it");
        };
        for _ in 0..3 {
            let claimed = journal.claim(operation).await.unwrap();
            assert!(matches!(claimed, Claimed::Elsewhere(_)), "{claimed:?}");
        }
        // It came from its task, and goes back there.
        journal.release(&first).await.unwrap();
        assert!(journal.is_in_task(operation));
        let Ok(Claimed::Yes(again, _)) = journal.claim(operation).await else {
            panic!("nobody has it");
        };
        // Unknown, it is nobody's, and there is no task to wait for.
        journal
            .append(&again, without(Outcome::Unknown))
            .await
            .unwrap();
        journal.release(&again).await.unwrap();
        assert!(!journal.is_in_task(operation));
        let claimed = journal.claim(operation).await.unwrap();
        assert!(matches!(claimed, Claimed::Yes(..)), "{claimed:?}");
    })
    .await;
}
