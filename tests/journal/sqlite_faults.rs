//! What a SQLite journal does when its disk, its file or its neighbours fail: a clear error, nothing
//! lost that was acknowledged, and work as before once the cause is gone.
//!
//! The disk is full in three ways: the file's own bound (SQLite's page count), the limit of a process
//! on the size of a file (`ulimit -f`), and a small file system of its own. The last one, like the
//! read-only mount, needs a mount namespace; where there can be none, the test says so on stderr.

use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use mcp_supervisor::{
    journal::{
        Accepted, By, Entry, Fact, Filter, Held, Kept, Record, SqliteSettings, SqliteStore, State,
        Store, StoreError,
    },
    operation::{AttemptId, OperationId},
};
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    child::{JournalWriter, Said},
    conformance::{answered, call, key, keyed, name},
    support::bounded,
};

struct Bed(TempDir);

impl Bed {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("journal.db")
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path()).await.unwrap()
    }

    async fn open_with(&self, adjust: impl FnOnce(&mut SqliteSettings)) -> SqliteStore {
        let mut settings = SqliteSettings::default();
        adjust(&mut settings);
        SqliteStore::open_with(self.path(), settings).await.unwrap()
    }

    async fn refused(&self) -> StoreError {
        refused(&self.path()).await
    }
}

async fn refused(path: &Path) -> StoreError {
    match SqliteStore::open(path).await {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

async fn dispatch(store: &dyn Store, text: &str) -> Result<Held, StoreError> {
    match store.accept(keyed(text), Some(AttemptId::mint())).await? {
        Accepted::New(held) => Ok(held),
        Accepted::Found(record) => panic!("{text} is there: {record:?}"),
    }
}

async fn settle(store: &dyn Store, text: &str) -> OperationId {
    let held = dispatch(store, text).await.unwrap();
    store.append(&held, answered(false)).await.unwrap();
    held.operation
}

async fn all(store: &dyn Store) -> Result<Vec<Record>, StoreError> {
    let filter = Filter {
        limit: usize::MAX,
        ..Filter::default()
    };
    store.list(&filter).await
}

fn ids(records: &[Record]) -> BTreeSet<OperationId> {
    records.iter().map(|r| r.intent.operation).collect()
}

/// That the error says which file it is about.
#[track_caller]
fn names(error: &StoreError, path: &Path) {
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
}

// ------------------------------------------------------------------ no room

#[tokio::test]
async fn a_full_file_refuses_and_takes_more_after_a_sweep() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open_with(|s| s.max_bytes = Some(512 * 1024)).await;
        let mut kept = BTreeSet::new();
        let error = loop {
            let text = format!("order-{}", kept.len());
            let held = match dispatch(&store, &text).await {
                Ok(held) => held,
                Err(error) => break error,
            };
            let fact = Fact::Answered {
                is_error: false,
                answer: Kept::Whole(json!("a".repeat(20_000))),
                by: call(),
            };
            kept.insert(held.operation);
            if let Err(error) = store.append(&held, fact).await {
                break error;
            }
        };
        assert!(matches!(error, StoreError::Full(_)), "{error:?}");
        names(&error, &bed.path());
        assert_eq!(
            ids(&all(&store).await.unwrap()),
            kept,
            "nothing more and nothing less"
        );

        let later = SystemTime::now() + Duration::from_secs(60);
        let swept = store
            .sweep(later, SystemTime::UNIX_EPOCH, usize::MAX)
            .await
            .unwrap();
        assert!(swept.forgotten + 1 >= kept.len(), "{swept:?}");
        settle(&store, "after").await;
        assert_eq!(all(&store).await.unwrap().len(), kept.len() + 1);
    })
    .await;
}

#[tokio::test]
async fn one_write_that_does_not_fit_takes_no_other_of_its_group_with_it() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open_with(|s| s.max_bytes = Some(512 * 1024)).await;
        let writes = (0..40).map(|n| {
            let mut intent = keyed(&format!("order-{n}"));
            if n == 7 {
                let large = json!({"note": "a".repeat(1024 * 1024)});
                intent.arguments = large.as_object().cloned();
            }
            store.accept(intent, None)
        });
        for (n, done) in join_all(writes).await.into_iter().enumerate() {
            match done {
                Ok(Accepted::New(_)) => assert_ne!(n, 7),
                Err(StoreError::Full(_)) => assert_eq!(n, 7),
                other => panic!("{n}: {other:?}"),
            }
        }
        assert_eq!(all(&store).await.unwrap().len(), 39);
        // Nothing of it stayed in memory: the key is free.
        settle(&store, "order-7").await;
    })
    .await;
}

#[tokio::test]
async fn a_process_at_its_limit_of_file_size_loses_nothing_that_it_acknowledged() {
    bounded(async {
        let bed = Bed::new();
        // In units of 512 or 1,024 bytes, by the shell. The signal would end the process.
        let limit = "trap '' XFSZ; ulimit -f 1500";
        let writer = JournalWriter::in_shell(limit, "write", &bed.path(), &["4"]);
        let said = writer.finish();
        assert_eq!(said.refused.len(), 4, "each task is refused once");
        for why in &said.refused {
            assert!(
                ["full", "unavailable, with its path"].contains(&why.as_str()),
                "{why}"
            );
        }
        // It closed in order, and so did what had been acknowledged.
        assert!(
            said.closed && !said.settled.is_empty(),
            "{}",
            said.settled.len()
        );
        holds(&bed.open().await, &said).await;
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_refuses_and_takes_more_once_there_is_room() {
    bounded(async {
        let (bed, mount) = (Bed::new(), tempfile::tempdir().unwrap());
        let Some(mut command) = mounted(
            &format!(
                "mount -t tmpfs -o size=3m tmpfs {m} && head -c 1000000 /dev/zero > {m}/ballast",
                m = mount.path().display()
            ),
            &format!(
                "cp {}/journal.db* {}",
                mount.path().display(),
                bed.0.path().display()
            ),
        ) else {
            return;
        };
        let (file, ballast) = (
            mount.path().join("journal.db"),
            mount.path().join("ballast"),
        );
        command.arg("ballast").arg(file).arg("4").arg(ballast);
        let said = JournalWriter::of(command).finish();
        assert_eq!(said.refused, ["full"; 4]);
        assert!(said.closed);
        assert_eq!(said.after_room, 20, "4 tasks wrote 5 more each");
        holds(&bed.open().await, &said).await;
    })
    .await;
}

/// A writer in a mount namespace of its own, between two commands; the arguments are to be added.
/// None, where there can be none.
fn mounted(before: &str, after: &str) -> Option<Command> {
    let can = Command::new("unshare").args(["-rm", "true"]).output();
    if !can.is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: no mount namespace can be made here");
        return None;
    }
    let mut command = Command::new("unshare");
    let program = crate::support::example("journal_writer");
    let script = format!("set -e; {before}; \"$0\" \"$@\"; {after}");
    command.args(["-rm", "sh", "-c"]).arg(script).arg(program);
    Some(command)
}

/// That all that was acknowledged is there, and the journal goes on.
async fn holds(store: &SqliteStore, said: &Said) {
    let records = all(store).await.unwrap();
    let found = ids(&records);
    assert!(said.accepted.is_subset(&found), "an operation is forgotten");
    let succeeded: BTreeSet<_> = records
        .iter()
        .filter(|record| record.state == State::Succeeded)
        .map(|record| record.intent.operation)
        .collect();
    assert!(said.settled.is_subset(&succeeded), "an answer is forgotten");
    settle(store, "and-on").await;
}

// ------------------------------------------------------------------ no right to write

#[tokio::test]
async fn a_journal_on_a_read_only_file_system_is_refused_for_writing_and_read() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        let operation = settle(&store, "order-1").await;
        store.close().await.unwrap();
        for (mode, more) in [("write", &["1"][..]), ("read", &[])] {
            let dir = bed.0.path().display();
            let before = format!("mount --bind {dir} {dir} && mount -o remount,ro,bind {dir}");
            let Some(mut command) = mounted(&before, "true") else {
                return;
            };
            command.arg(mode).arg(bed.path()).args(more);
            let said = JournalWriter::of(command).finish();
            match mode {
                "write" => assert_eq!(said.refused, ["read-only"]),
                _ => assert_eq!(said.accepted, BTreeSet::from([operation])),
            }
        }
        settle(&bed.open().await, "order-2").await;
    })
    .await;
}

#[tokio::test]
async fn what_is_opened_for_reading_reads_beside_its_writer_and_writes_nothing() {
    bounded(async {
        let bed = Bed::new();
        let writer = bed.open().await;
        let held = dispatch(&writer, "order-1").await.unwrap();
        let reader = SqliteStore::open_read_only(bed.path()).await.unwrap();
        let show = async || {
            let by_key = reader
                .find(By::Key(&name("billing"), &key("order-1")))
                .await;
            let by_id = reader.find(By::Operation(held.operation)).await;
            let record = by_key.unwrap().unwrap();
            assert_eq!(by_id.unwrap().unwrap(), record);
            assert_eq!(all(&reader).await.unwrap(), std::slice::from_ref(&record));
            record.state
        };
        assert_eq!(show().await, State::Dispatching);
        writer.append(&held, answered(false)).await.unwrap();
        assert_eq!(show().await, State::Succeeded);

        let now = SystemTime::now();
        for refused in [
            dispatch(&reader, "order-2").await.map(drop),
            reader.append(&held, Fact::CancelRequested).await.map(drop),
            reader.claim(held.operation).await.map(drop),
            reader.release(&held).await,
            reader.sweep(now, now, 1).await.map(drop),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, StoreError::ReadOnly(_)), "{error:?}");
            names(&error, &bed.path());
        }
    })
    .await;
}

#[tokio::test]
async fn a_path_that_can_hold_no_file_is_named() {
    bounded(async {
        let bed = Bed::new();
        let missing = bed.0.path().join("missing").join("journal.db");
        for path in [missing.as_path(), bed.0.path()] {
            let error = refused(path).await;
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
            names(&error, path);
            let error = SqliteStore::open_read_only(path).await.err().unwrap();
            names(&error, path);
        }
    })
    .await;
}

#[tokio::test]
async fn the_files_are_their_owners_alone() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        dispatch(&store, "order-1").await.unwrap();
        for ending in ["", "-wal", "-shm", ".lock"] {
            let file = format!("{}{ending}", bed.path().display());
            let mode = std::fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    })
    .await;
}

// ------------------------------------------------------------------ somebody else has it

#[tokio::test]
async fn a_journal_of_another_process_is_locked_and_free_once_that_is_gone() {
    bounded(async {
        let bed = Bed::new();
        settle(&bed.open().await, "order-1").await;
        let mut other = JournalWriter::start("hold", &bed.path(), &[]);
        assert!(other.listen(|said| said.open));
        let error = bed.refused().await;
        assert!(matches!(error, StoreError::Locked(_)), "{error:?}");
        names(&error, &bed.path());
        let reader = SqliteStore::open_read_only(bed.path()).await.unwrap();
        assert_eq!(all(&reader).await.unwrap().len(), 1);
        other.kill();
        settle(&bed.open().await, "order-2").await;
    })
    .await;
}

#[tokio::test]
async fn a_journal_is_locked_by_its_file_and_not_by_its_name() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        let link = bed.0.path().join("link.db");
        std::os::unix::fs::symlink(bed.path(), &link).unwrap();
        assert!(matches!(refused(&link).await, StoreError::Locked(_)));
        drop(store);
        SqliteStore::open(&link).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_foreign_writer_is_waited_for_within_the_bound() {
    bounded(async {
        let bed = Bed::new();
        let store = bed
            .open_with(|s| s.busy_for = Duration::from_millis(50))
            .await;
        let held = dispatch(&store, "order-1").await.unwrap();
        let foreign = Connection::open(bed.path()).unwrap();
        foreign.execute_batch("BEGIN IMMEDIATE").unwrap();

        let error = dispatch(&store, "order-2").await.unwrap_err();
        assert!(matches!(error, StoreError::Locked(_)), "{error:?}");
        let error = store.append(&held, answered(false)).await.unwrap_err();
        assert!(matches!(error, StoreError::Locked(_)), "{error:?}");
        let [record] = &all(&store).await.unwrap()[..] else {
            panic!("one was acknowledged")
        };
        assert_eq!(record.state, State::Dispatching);

        foreign.execute_batch("COMMIT").unwrap();
        store.append(&held, answered(false)).await.unwrap();
        settle(&store, "order-2").await;
    })
    .await;
}

// ------------------------------------------------------------------ it is not what was written

/// A closed journal with something of everything in it, and its records.
async fn journal(bed: &Bed) -> Vec<Record> {
    let store = bed.open().await;
    for n in 0..25 {
        settle(&store, &format!("order-{n}")).await;
        dispatch(&store, &format!("lost-{n}")).await.unwrap();
    }
    store.close().await.unwrap();
    // The dispatched ones become unknown: nothing is left to take over.
    let store = bed.open().await;
    let records = all(&store).await.unwrap();
    store.close().await.unwrap();
    records
}

/// What a journal with this content says: an error, or all that was written.
async fn tell(content: &[u8], written: &[Record], what: &str) -> Option<StoreError> {
    let bed = Bed::new();
    std::fs::write(bed.path(), content).unwrap();
    let store = match SqliteStore::open(bed.path()).await {
        Ok(store) => store,
        Err(error) => return Some(error),
    };
    match all(&store).await {
        Ok(read) => assert!(read == written, "{what}: a wrong record"),
        Err(error) => return Some(error),
    }
    for record in written {
        let key = record.intent.key.as_ref().unwrap();
        let found = store.find(By::Key(&record.intent.connection, key)).await;
        match found {
            Ok(found) => assert!(found.as_ref() == Some(record), "{what}: a wrong key"),
            Err(error) => return Some(error),
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_anywhere_is_an_error_or_no_matter() {
    bounded(async {
        let bed = Bed::new();
        let written = Arc::new(journal(&bed).await);
        let content = Arc::new(std::fs::read(bed.path()).unwrap());
        assert_eq!(
            tell(&content, &written, "untouched")
                .await
                .map(|e| e.to_string()),
            None
        );
        // The head whole, since most of it means something; then a prime's multiples.
        let offsets: Vec<_> = (0..100).chain((100..content.len()).step_by(311)).collect();
        let mut errors = 0;
        for chunk in offsets.chunks(4) {
            let flips = chunk.iter().map(|at| {
                let (mut content, written, at) = (content.to_vec(), Arc::clone(&written), *at);
                content[at] ^= 1 << (at % 8);
                tokio::spawn(async move { tell(&content, &written, &format!("byte {at}")).await })
            });
            for told in join_all(flips).await {
                let told = told.expect("no panic");
                errors += usize::from(told.is_some());
            }
        }
        // Most of the file is records.
        assert!(errors * 2 > offsets.len(), "{errors} of {}", offsets.len());
    })
    .await;
}

#[tokio::test]
async fn a_file_that_was_cut_is_an_error() {
    bounded(async {
        let bed = Bed::new();
        let written = journal(&bed).await;
        let content = std::fs::read(bed.path()).unwrap();
        let page = 4096;
        let pages = [
            page,
            2 * page,
            content.len() / 2 / page * page,
            content.len() - page,
        ];
        for length in [1, 15, 16, 99, 100, 511, 512, page - 1]
            .into_iter()
            .chain(pages)
        {
            let told = tell(&content[..length], &written, &format!("cut at {length}")).await;
            let error = told.unwrap_or_else(|| panic!("cut at {length}: it was opened"));
            assert!(
                matches!(error, StoreError::Corrupt(_)),
                "cut at {length}: {error:?}"
            );
        }
        // What is missing of the last page may have been zeros.
        tell(&content[..content.len() - 1], &written, "cut by a byte").await;
    })
    .await;
}

#[tokio::test]
async fn a_log_that_is_damaged_before_its_last_commit_is_an_error_and_one_cut_short_is_none() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        let mut written = BTreeSet::new();
        for n in 0..20 {
            written.insert(settle(&store, &format!("order-{n}")).await);
        }
        // As a kill leaves them: nothing is written back from the log.
        let wal = bed.path().with_extension("db-wal");
        let (file, log) = (
            std::fs::read(bed.path()).unwrap(),
            std::fs::read(&wal).unwrap(),
        );
        let open = async |log: &[u8]| {
            let copy = Bed::new();
            std::fs::write(copy.path(), &file).unwrap();
            std::fs::write(copy.path().with_extension("db-wal"), log).unwrap();
            let store = SqliteStore::open(copy.path()).await?;
            Ok::<_, StoreError>(ids(&all(&store).await?))
        };
        assert_eq!(open(&log).await.unwrap(), written);
        let frame = 24 + 4096;
        for at in [
            3,
            17,
            32 + 9,
            32 + 24 + 5,
            log.len() / 2,
            log.len() - 6 * frame,
        ] {
            let mut log = log.clone();
            log[at] ^= 1;
            let error = open(&log).await.expect_err("it is damaged");
            assert!(
                matches!(error, StoreError::Corrupt(_)),
                "byte {at}: {error:?}"
            );
        }
        // The last commit is cut short: it was never acknowledged, as far as anybody can tell.
        let found = open(&log[..log.len() - 100]).await.unwrap();
        assert_eq!(found, written, "the intent of the last is there");
        drop(store);
    })
    .await;
}

#[tokio::test]
async fn a_journal_that_was_cut_to_nothing_does_not_become_a_new_one() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        settle(&store, "order-1").await;
        store.close().await.unwrap();
        drop(store);
        let content = std::fs::read(bed.path()).unwrap();
        std::fs::write(bed.path(), "").unwrap();
        for _ in 0..2 {
            let error = bed.refused().await;
            assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
            names(&error, &bed.path());
        }
        std::fs::write(bed.path(), content).unwrap();
        let store = bed.open().await;
        assert_eq!(all(&store).await.unwrap().len(), 1);
        // A host that died before it had made the tables leaves two empty files.
        let other = Bed::new();
        std::fs::write(other.path(), "").unwrap();
        std::fs::write(other.path().with_extension("db.lock"), "").unwrap();
        settle(&other.open().await, "order-1").await;
    })
    .await;
}

#[tokio::test]
async fn a_flipped_byte_under_a_running_journal_is_an_error_when_it_is_read() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        let operation = settle(&store, "order-1").await;
        let foreign = Connection::open(bed.path()).unwrap();
        let flipped =
            "UPDATE operations SET history = replace(history, 'attempt\":\"0', 'attempt\":\"1')";
        assert_eq!(foreign.execute(flipped, []).unwrap(), 1);
        let error = store.find(By::Operation(operation)).await.unwrap_err();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
        assert!(
            error.to_string().contains(&operation.to_string()),
            "{error}"
        );
        // The others are not touched.
        settle(&store, "order-2").await;
        drop(store);
        let error = bed.refused().await;
        assert!(
            error.to_string().contains(&operation.to_string()),
            "{error}"
        );
    })
    .await;
}

/// FNV-1a, as the store has it over a row.
fn fnv(parts: &[&[u8]]) -> i64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let sum = parts
        .iter()
        .copied()
        .flatten()
        .fold(0xcbf2_9ce4_8422_2325, step);
    sum.cast_signed()
}

#[tokio::test]
async fn an_impossible_history_keeps_the_journal_closed_and_names_its_operation() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        settle(&store, "order-1").await;
        let operation = dispatch(&store, "order-2").await.unwrap().operation;
        store.close().await.unwrap();
        let plant = |facts: &[Fact]| {
            let foreign = Connection::open(bed.path()).unwrap();
            let id = operation.as_bytes();
            let ask = "SELECT row, key, intent, fence, name FROM operations JOIN hosts USING (host) WHERE id = ?";
            let (row, key, intent, fence, host) = foreign
                .query_row(ask, [id], |row| {
                    let key: Vec<u8> = row.get(1)?;
                    let (intent, host): (String, String) = (row.get(2)?, row.get(4)?);
                    let (row, fence): (i64, i64) = (row.get(0)?, row.get(3)?);
                    Ok((row, key, intent, fence, host))
                })
                .unwrap();
            let line = |fact: &Fact| serde_json::to_string(&Entry::now(fact.clone())).unwrap() + "\n";
            let history: String = facts.iter().map(line).collect();
            let sum = fnv(&[
                &row.to_le_bytes(),
                id,
                &key,
                b"billing",
                intent.as_bytes(),
                history.as_bytes(),
                // Dispatching, and not settled.
                &2_i64.to_le_bytes(),
                &(-1_i64).to_le_bytes(),
                host.as_bytes(),
                &fence.to_le_bytes(),
            ]);
            let set = "UPDATE operations SET history = ?2, sum = ?3 WHERE id = ?1";
            let changed = foreign.execute(set, rusqlite::params![id, history, sum]);
            assert_eq!(changed.unwrap(), 1);
        };
        let attempt = AttemptId::mint();
        plant(&[Fact::Dispatching { attempt }, Fact::Forgotten]);
        let error = bed.refused().await;
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&operation.to_string()) && text.contains("Forget"), "{text}");

        // It is the history that was refused, and not the planting.
        plant(&[Fact::Dispatching { attempt }]);
        let store = bed.open().await;
        let record = store.find(By::Operation(operation)).await.unwrap().unwrap();
        assert_eq!(record.state, State::OutcomeUnknown);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_journal_is_refused_and_left_alone() {
    bounded(async {
        let bed = Bed::new();
        let text = "# Notes\n".repeat(1000);
        std::fs::write(bed.path(), &text).unwrap();
        assert!(matches!(bed.refused().await, StoreError::Corrupt(_)));
        assert_eq!(std::fs::read_to_string(bed.path()).unwrap(), text);

        let bed = Bed::new();
        let foreign = Connection::open(bed.path()).unwrap();
        foreign.execute_batch("CREATE TABLE notes (text)").unwrap();
        drop(foreign);
        let error = bed.refused().await;
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
        let error = SqliteStore::open_read_only(bed.path()).await.err().unwrap();
        assert!(matches!(error, StoreError::Corrupt(_)), "{error:?}");
    })
    .await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_empty_database_is_brought_to_this_one() {
    bounded(async {
        let bed = Bed::new();
        settle(&bed.open().await, "order-1").await;
        let set = |version| {
            let file = Connection::open(bed.path()).unwrap();
            file.pragma_update(None, "user_version", version).unwrap();
        };
        set(99);
        for error in [
            bed.refused().await,
            SqliteStore::open_read_only(bed.path()).await.err().unwrap(),
        ] {
            let StoreError::Newer { found: 99, known } = error else {
                panic!("{error:?}")
            };
            set(known);
            set(99);
        }
        set(1);
        assert_eq!(all(&bed.open().await).await.unwrap().len(), 1);

        let bed = Bed::new();
        let empty = Connection::open(bed.path()).unwrap();
        empty.execute_batch("VACUUM").unwrap();
        drop(empty);
        let error = SqliteStore::open_read_only(bed.path()).await.err().unwrap();
        assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        settle(&bed.open().await, "order-1").await;
    })
    .await;
}

// ------------------------------------------------------------------ the clock

#[tokio::test]
async fn a_clock_that_was_set_back_stands_still_in_a_history() {
    bounded(async {
        let bed = Bed::new();
        let store = bed.open().await;
        let mut intent = keyed("order-1");
        // The clock said so, an hour from now, before it was set back.
        intent.accepted_at = SystemTime::now() + Duration::from_secs(3600);
        let (operation, accepted_at) = (intent.operation, intent.accepted_at);
        let Accepted::New(held) = store.accept(intent, Some(AttemptId::mint())).await.unwrap()
        else {
            panic!("it is new")
        };
        store.append(&held, Fact::CancelRequested).await.unwrap();
        store.close().await.unwrap();

        // A start takes it over as it takes over any other.
        let store = bed.open().await;
        let record = store.find(By::Operation(operation)).await.unwrap().unwrap();
        assert_eq!(record.state, State::OutcomeUnknown);
        let times: Vec<_> = record.history.iter().map(|entry| entry.at).collect();
        assert!(times.is_sorted(), "{times:?}");
        assert!(times.iter().all(
            |at| accepted_at.duration_since(*at).unwrap_or_default() < Duration::from_millis(1)
        ));
        settle(&store, "order-2").await;
    })
    .await;
}
