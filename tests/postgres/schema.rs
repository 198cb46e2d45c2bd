//! Versions of the schema, settings that cannot be, and what errors say.

use std::time::{Duration, SystemTime};

use mcp_supervisor::journal::{
    Filter, Journal, JournalSettings, PostgresSettings, PostgresStore, State, Store, StoreError,
};

use crate::{
    support::{bounded, postgres::Schema},
    written::{answered, dispatch, settings, show, store},
};

#[tokio::test]
async fn hosts_that_start_together_make_one_schema() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let connecting = (0..6).map(|_| PostgresStore::connect_url(&schema.url, settings(&schema)));
        let stores = futures_all(connecting).await;
        let mut held = Vec::new();
        for (i, store) in stores.iter().enumerate() {
            let store = store.as_ref().expect("it connects");
            held.push(dispatch(store, &format!("order-{i}")).await);
        }
        let sql = format!("SELECT version FROM {}.journal", schema.name);
        let versions = schema.client().await.query(&sql, &[]).await.unwrap();
        let versions: Vec<i64> = versions.iter().map(|row| row.get(0)).collect();
        assert_eq!(versions, [1]);
        let listed = stores[0].as_ref().unwrap().list(&Filter::default()).await;
        assert_eq!(listed.unwrap().len(), held.len());
    })
    .await;
}

async fn futures_all<T: Send + 'static>(
    all: impl IntoIterator<Item = impl Future<Output = T>>,
) -> Vec<T> {
    let mut waiting: Vec<_> = all.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    std::future::poll_fn(|task| {
        for (future, done) in waiting.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(task)
            {
                *done = Some(value);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_left_as_it_is() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        store(&schema).await.close().await.unwrap();
        let client = schema.client().await;
        let sql = format!("UPDATE {}.journal SET version = 99", schema.name);
        client.execute(&sql, &[]).await.unwrap();
        let refused = PostgresStore::connect_url(&schema.url, settings(&schema)).await;
        let Err(StoreError::Newer {
            found: 99,
            known: 1,
        }) = refused.as_ref().map(|_| ())
        else {
            panic!("{:?}", refused.err());
        };
        let sql = format!("SELECT version FROM {}.journal", schema.name);
        let row = client.query_one(&sql, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 99);
    })
    .await;
}

#[tokio::test]
async fn a_record_that_was_changed_by_another_hand_is_an_error() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let host = store(&schema).await;
        let held = dispatch(&host, "order-1").await;
        let client = schema.client().await;
        for damage in [
            "UPDATE {s}.operations SET state = 'succeeded'",
            "UPDATE {s}.operations SET state = 'gone'",
            "UPDATE {s}.operations SET entries = 2",
            "UPDATE {s}.operations SET intent = '{}'",
            "UPDATE {s}.entries SET entry = 'no'",
            "DELETE FROM {s}.entries",
        ] {
            let sql = damage.replace("{s}", &schema.name);
            let before = format!("SELECT entry FROM {}.entries", schema.name);
            let entry: String = client.query_one(&before, &[]).await.unwrap().get(0);
            let before = format!("SELECT intent FROM {}.operations", schema.name);
            let intent: String = client.query_one(&before, &[]).await.unwrap().get(0);
            client.batch_execute(&sql).await.unwrap();
            let listed = host.list(&Filter::default()).await;
            let Err(error @ StoreError::Corrupt(_)) = listed else {
                panic!("{damage}: {listed:?}");
            };
            assert!(!error.to_string().contains("order-1"), "{error}");
            let mend = format!(
                "UPDATE {0}.operations SET state = 'dispatching', entries = 1, intent = $1",
                schema.name
            );
            client.execute(&mend, &[&intent]).await.unwrap();
            let mend = format!(
                "INSERT INTO {0}.entries (row, token, number, entry)
                 SELECT row, accepted, 1, $1 FROM {0}.operations
                 ON CONFLICT (row, token) DO UPDATE SET entry = excluded.entry",
                schema.name
            );
            client.execute(&mend, &[&entry]).await.unwrap();
            assert_eq!(show(&host, held.operation).await.state, State::Dispatching);
        }
    })
    .await;
}

#[tokio::test]
async fn a_journal_in_postgres_lists_what_its_store_has() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let host = store(&schema).await;
        let held = dispatch(&host, "order-1").await;
        let journal = Journal::postgres(&schema.url, settings(&schema), JournalSettings::default());
        let journal = journal.await.unwrap();
        let waiting = journal.wait(held.operation, Duration::from_secs(20));
        let settling = host.append(&held, answered());
        let (record, settled) = tokio::join!(waiting, settling);
        assert_eq!(settled.unwrap(), State::Succeeded);
        assert_eq!(record.unwrap().unwrap().state, State::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn two_sweeps_at_a_time_share_the_work_and_take_nothing_unknown() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (host, other) = (store(&schema).await, store(&schema).await);
        for i in 0..80 {
            let held = dispatch(&host, &format!("order-{i}")).await;
            if i % 2 == 0 {
                host.append(&held, answered()).await.unwrap();
            }
        }
        // Half of them lose their host.
        host.close().await.unwrap();
        let host = store(&schema).await;
        let later = SystemTime::now() + Duration::from_secs(60);
        let never = SystemTime::UNIX_EPOCH;
        let (mut forgotten, mut rounds) = (0, 0);
        while forgotten < 40 {
            let (one, two) =
                tokio::join!(host.sweep(later, never, 30), other.sweep(later, never, 30));
            forgotten += one.unwrap().forgotten + two.unwrap().forgotten;
            rounds += 1;
            assert!(rounds < 20, "{forgotten} forgotten after {rounds} rounds");
        }
        assert_eq!(forgotten, 40);
        let (one, two) = tokio::join!(host.sweep(later, later, 25), other.sweep(later, later, 25));
        let removed = one.unwrap().removed + two.unwrap().removed;
        assert!((25..=40).contains(&removed), "{removed}");
        host.sweep(later, later, 100).await.unwrap();
        let left = host.list(&Filter::default()).await.unwrap();
        assert_eq!(left.len(), 40);
        assert!(
            left.iter()
                .all(|record| record.state == State::OutcomeUnknown)
        );
    })
    .await;
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused_before_anything_is_asked_of_a_server() {
    let with = |change: fn(&mut PostgresSettings)| {
        let mut settings = PostgresSettings::default();
        change(&mut settings);
        settings
    };
    let wrong = [
        with(|s| s.schema = "Upper".to_owned()),
        with(|s| s.schema = "a\"b".to_owned()),
        with(|s| s.schema = String::new()),
        with(|s| s.schema = "x".repeat(64)),
        with(|s| s.schema = "pg_mine".to_owned()),
        with(|s| s.label = "a\nb".to_owned()),
        with(|s| s.lease = Duration::from_millis(10)),
        with(|s| s.margin = Duration::from_secs(8)),
        with(|s| s.within = Duration::ZERO),
    ];
    for settings in wrong {
        // Nobody listens there.
        let url = "postgresql://127.0.0.1:1/nowhere";
        let refused = PostgresStore::connect_url(url, settings.clone()).await;
        let refused = refused.err().expect("it is refused");
        assert!(
            matches!(refused, StoreError::Settings(_)),
            "{settings:?}: {refused}"
        );
    }
}

#[tokio::test]
async fn an_error_holds_no_password_and_no_text_of_the_server() {
    bounded(async {
        let mut short = PostgresSettings::default();
        short.within = Duration::from_millis(500);
        for url in [
            "postgresql://agent:hunter2@127.0.0.1:1/billing",
            "postgresql://agent:hunter2@127.0.0.1:notaport/billing",
        ] {
            let refused = PostgresStore::connect_url(url, short.clone()).await;
            let error = refused.err().expect("nobody listens there");
            let told = format!("{error} {error:?}");
            assert!(
                !told.contains("hunter2") && !told.contains("agent"),
                "{told}"
            );
        }
    })
    .await;
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let url = schema.url.replace("/postgres?", "/no_such_database?");
        if url == schema.url {
            eprintln!("not asked: the URL names no database that could be another");
            return;
        }
        let refused = PostgresStore::connect_url(&url, settings(&schema)).await;
        let error = refused
            .err()
            .expect("there is no such database")
            .to_string();
        assert!(error.contains("no such database"), "{error}");
        assert!(!error.contains("no_such_database"), "{error}");
    })
    .await;
}
