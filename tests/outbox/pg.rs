//! A schema of one's own in the PostgreSQL server that `POSTGRES_URL` names.

use std::sync::atomic::{AtomicU32, Ordering};

use deadpool_postgres::{
    Manager, Pool,
    tokio_postgres::{self, Client, Config, NoTls},
};

/// A schema that no other test has. Who makes a test's cluster removes it with all schemas in it.
pub(crate) struct Schema {
    config: Config,
    pub(crate) name: String,
}

impl Schema {
    /// `None` where there is no server: the test says so and shows nothing.
    pub(crate) async fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let url = std::env::var("POSTGRES_URL").unwrap_or_default();
        if url.is_empty() {
            let required = std::env::var("POSTGRES_REQUIRED").is_ok_and(|r| r == "1");
            assert!(
                !required,
                "POSTGRES_REQUIRED=1, and POSTGRES_URL is not set"
            );
            eprintln!("skipped: POSTGRES_URL names no PostgreSQL server");
            return None;
        }
        let mut config: Config = url.parse().expect("POSTGRES_URL is a URL");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let started = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let started = started.expect("the clock is right").as_micros();
        let name = format!("receipts_{started}_{}_{number}", std::process::id());
        let client = connect(&config).await;
        let create = format!("CREATE SCHEMA {name}");
        client.batch_execute(&create).await.expect("a schema");
        config.options(format!("-c search_path={name}"));
        config.application_name(&name);
        Some(Self { config, name })
    }

    /// A connection in this schema.
    pub(crate) async fn client(&self) -> Client {
        connect(&self.config).await
    }

    /// A pool of connections in this schema: what one host has.
    pub(crate) fn pool(&self, size: usize) -> Pool {
        let manager = Manager::new(self.config.clone(), NoTls);
        Pool::builder(manager)
            .max_size(size)
            .build()
            .expect("a pool")
    }

    /// One number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let row = self.client().await.query_one(sql, &[]).await;
        row.expect("a row").get(0)
    }
}

async fn connect(config: &Config) -> Client {
    let connected = config.connect(NoTls).await;
    let (client, connection) = connected.expect("the server is there");
    tokio::spawn(async move {
        // A test that kills backends ends this one too.
        let _: Result<(), tokio_postgres::Error> = connection.await;
    });
    client
}
