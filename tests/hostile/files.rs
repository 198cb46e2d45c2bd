//! A journal's files, changed on the disk.

use std::{path::Path, sync::OnceLock};

use mcp_supervisor::{
    journal::{Accepted, By, Fact, Filter, Held, Intent, Record, SqliteStore, Store, StoreError},
    operation::{AttemptId, Fingerprint, OperationId},
};
use proptest::prelude::*;
use serde_json::Map;

use super::{Change, cases, change, changed};

const NAMES: [&str; 2] = ["journal.db", "journal.db-wal"];

/// The files of a journal, and every state that each of its operations was ever in.
struct Written {
    files: [Vec<u8>; 2],
    lives: Vec<Vec<Record>>,
}

fn at_once<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn written() -> &'static Written {
    static WRITTEN: OnceLock<Written> = OnceLock::new();
    WRITTEN.get_or_init(|| std::thread::spawn(|| at_once(write())).join().unwrap())
}

/// Twelve operations, of which each third is settled; the files are taken under the open journal, so that
/// the log is full.
async fn write() -> Written {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAMES[0]);
    let store = SqliteStore::open(&path).await.unwrap();
    let mut lives = Vec::new();
    for n in 0..12 {
        let print = Fingerprint::of("order", &Map::new());
        let mut intent = Intent::new(OperationId::mint(), "shop".parse().unwrap(), "order", print);
        intent.key = Some(format!("order-{n}").parse().unwrap());
        let Ok(Accepted::New(held)) = store.accept(intent, None).await else {
            panic!("it is new");
        };
        let mut life = vec![record(&store, &held).await];
        let mut facts = vec![Fact::Dispatching {
            attempt: AttemptId::mint(),
        }];
        if n % 3 == 0 {
            facts.push(Fact::CancelRequested);
        }
        for fact in facts {
            store.append(&held, fact).await.unwrap();
            life.push(record(&store, &held).await);
        }
        lives.push(life);
    }
    let files = NAMES.map(|name| std::fs::read(directory.path().join(name)).unwrap());
    assert!(files[1].len() > 10_000, "the log is full");
    store.close().await.unwrap();
    Written { files, lives }
}

async fn record(store: &SqliteStore, held: &Held) -> Record {
    store
        .find(By::Operation(held.operation))
        .await
        .unwrap()
        .unwrap()
}

/// What an opened journal says of itself: an error, or its records.
async fn read(path: &Path) -> Result<Vec<Record>, StoreError> {
    let store = SqliteStore::open(path).await?;
    let filter = Filter {
        limit: usize::MAX,
        ..Filter::default()
    };
    let read = store.list(&filter).await;
    store.close().await?;
    read
}

/// A record is one of those that its operation was, or what a host that finds it there makes of that:
/// one entry more.
fn is_one_of(record: &Record, lives: &[Vec<Record>]) -> bool {
    lives.iter().flatten().any(|was| {
        let more = record.history.strip_prefix(&was.history[..]);
        was.intent == record.intent && more.is_some_and(|more| more.len() <= 1)
    })
}

proptest! {
    #![proptest_config(cases(24, 20))]

    #[test]
    fn a_journal_with_changed_files_is_refused_by_name_or_holds_no_wrong_record(
        database in prop::collection::vec(change(), 0..3),
        log in prop::collection::vec(change(), 0..3),
        without_log in prop::bool::weighted(0.2),
    ) {
        tell([&database[..], &log[..]], without_log)?;
    }
}

fn tell(changes: [&[Change]; 2], without_log: bool) -> Result<(), TestCaseError> {
    let Written { files, lives } = written();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(NAMES[0]);
    for ((name, content), changes) in NAMES.iter().zip(files).zip(changes) {
        if *name == NAMES[0] || !without_log {
            std::fs::write(directory.path().join(name), changed(content, changes)).unwrap();
        }
    }
    match at_once(read(&path)) {
        Ok(records) => {
            for record in &records {
                prop_assert!(is_one_of(record, lives), "{:?}", record);
            }
            let mut ids: Vec<_> = records
                .iter()
                .map(|record| record.intent.operation)
                .collect();
            ids.sort();
            ids.dedup();
            prop_assert_eq!(ids.len(), records.len(), "an operation is there twice");
            let whole = changes.iter().all(|changes| changes.is_empty()) && !without_log;
            prop_assert!(!whole || records.len() == lives.len(), "some are gone");
        }
        Err(error) => {
            let said = error.to_string();
            prop_assert!(said.contains(NAMES[0]), "{}", said);
            prop_assert!(!changes.concat().is_empty() || without_log, "{}", said);
        }
    }
    Ok(())
}

#[test]
fn an_unchanged_journal_is_whole() {
    tell([&[], &[]], false).unwrap();
}
