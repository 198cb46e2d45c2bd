//! PostgreSQL for tests: the server that `POSTGRES_URL` names, and in it a schema for each test.
//!
//! Without `POSTGRES_URL` a test says on stderr what it does not show and passes; with
//! `POSTGRES_REQUIRED=1` that is a failure. `.ci/postgres start DIR` starts a server and prints its URL.

use deadpool_postgres::tokio_postgres;
use tokio_postgres::{Client, NoTls};

/// The server's URL, where there is one.
pub fn url() -> Option<String> {
    match std::env::var("POSTGRES_URL") {
        Ok(url) if !url.is_empty() => Some(url),
        _ => {
            let required = std::env::var("POSTGRES_REQUIRED").is_ok_and(|r| r == "1");
            assert!(
                !required,
                "POSTGRES_URL is not set, and POSTGRES_REQUIRED says that it has to be"
            );
            let test = std::thread::current();
            let test = test.name().unwrap_or("a test").to_owned();
            eprintln!("skipped, since POSTGRES_URL names no PostgreSQL server: {test}");
            None
        }
    }
}

/// The name of a schema that no other test has. The schema is dropped with it.
pub struct Schema {
    pub url: String,
    pub name: String,
}

impl Schema {
    /// `None` where there is no server.
    pub fn new() -> Option<Self> {
        Some(Self::at(url()?))
    }

    pub fn at(url: String) -> Self {
        let name = format!("test_{}", uuid::Uuid::now_v7().simple());
        Self { url, name }
    }

    /// A connection of the test's own.
    pub async fn client(&self) -> Client {
        client(&self.url).await
    }

    /// A URL whose connections can be told from those of other tests.
    pub fn marked_url(&self) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}application_name={}", self.url, self.name)
    }
}

pub async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the test reaches the server");
    tokio::spawn(connection);
    client
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, name) = (self.url.clone(), self.name.clone());
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                tokio::spawn(connection);
                // A host that still writes keeps its tables; the server is the test's own as a rule.
                let sql = format!("SET lock_timeout = '2s'; DROP SCHEMA IF EXISTS {name} CASCADE");
                client.batch_execute(&sql).await?;
                Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
            })
        });
        let _ = dropping.join();
    }
}
