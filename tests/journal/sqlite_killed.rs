//! SIGKILL, at any point, to a process that writes a journal.

use std::{collections::BTreeSet, path::Path, time::Duration};

use mcp_supervisor::{
    journal::{Fact, Filter, Record, SqliteStore, State, Store},
    operation::OperationId,
};
use rand::RngExt as _;

use crate::{
    child::JournalWriter,
    conformance::{facts, keyed},
    support::bounded,
};

const TASKS: &str = "16";

/// Everything in the journal. Each history is legal, since it was replayed to be read.
async fn all(path: &Path) -> Vec<Record> {
    let store = SqliteStore::open(path)
        .await
        .expect("what was killed can be opened");
    let filter = Filter {
        limit: usize::MAX,
        ..Filter::default()
    };
    let records = store.list(&filter).await.expect("and read");
    store.close().await.expect("and closed");
    records
}

#[tokio::test]
async fn what_was_acknowledged_survives_sigkill_at_any_point() {
    bounded(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.db");
        let (mut accepted, mut settled) = (BTreeSet::new(), BTreeSet::new());
        for round in 0..10 {
            let mut writer = JournalWriter::start("write", &path, &[TASKS]);
            let lines = rand::rng().random_range(0..400);
            let enough = writer.listen(|said| said.accepted.len() + said.settled.len() >= lines);
            assert!(
                enough,
                "round {round}: it ended by itself: {:?}",
                writer.said
            );
            let mut said = writer.kill();
            assert!(said.refused.is_empty(), "round {round}: {:?}", said.refused);
            accepted.append(&mut said.accepted);
            settled.append(&mut said.settled);

            let records = all(&path).await;
            let found: BTreeSet<_> = records.iter().map(|r| r.intent.operation).collect();
            assert!(
                accepted.is_subset(&found),
                "round {round}: an operation is forgotten"
            );
            for record in records {
                let acknowledged = settled.contains(&record.intent.operation);
                match record.state {
                    State::Succeeded => {}
                    State::OutcomeUnknown if !acknowledged => {}
                    state => panic!("round {round}: {state:?}, acknowledged: {acknowledged}"),
                }
            }
            // What was written and not acknowledged is one operation for each task at most.
            let invented = found.difference(&accepted).count();
            assert!(
                invented <= 16 * (round + 1),
                "round {round}: {invented} nobody asked for"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_recovery_that_is_killed_is_gone_on_with_by_the_next() {
    bounded(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal.db");
        let store = SqliteStore::open(&path).await.unwrap();
        // More than one transaction of a recovery.
        let planted: BTreeSet<OperationId> = (0..3_000).map(|_| OperationId::mint()).collect();
        let accepting = planted.iter().map(|id| {
            let mut intent = keyed(&id.to_string());
            intent.operation = *id;
            store.accept(intent, Some(mcp_supervisor::operation::AttemptId::mint()))
        });
        futures::future::try_join_all(accepting).await.unwrap();
        store.close().await.unwrap();

        // The whole of an opening, so that the kills fall into it.
        let started = std::time::Instant::now();
        let mut writer = JournalWriter::start("hold", &copy_of(dir.path(), &path), &[]);
        assert!(writer.listen(|said| said.open));
        let whole = started.elapsed();
        drop(writer);

        for _ in 0..12 {
            let writer = JournalWriter::start("hold", &path, &[]);
            let part = rand::rng().random_range(0.0..1.0);
            tokio::time::sleep(whole.mul_f64(part).min(Duration::from_secs(2))).await;
            writer.kill();
        }

        let records = all(&path).await;
        assert_eq!(records.len(), planted.len());
        for record in records {
            assert!(planted.contains(&record.intent.operation));
            assert_eq!(record.state, State::OutcomeUnknown);
            let [Fact::Dispatching { .. }, Fact::Abandoned { .. }] = facts(&record)[..] else {
                panic!("it was taken over more than once: {record:?}")
            };
        }
    })
    .await;
}

fn copy_of(dir: &Path, path: &Path) -> std::path::PathBuf {
    let copy = dir.join("copy.db");
    std::fs::copy(path, &copy).unwrap();
    copy
}
