//! A directory with one server of receipts, its levers, and what it received and did.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use mcp_supervisor::{
    ConnectionSpec, Era, HttpSpec, IdempotencyKey, StdioSpec,
    policy::{Backoff, Repeats},
};
use tempfile::TempDir;

use super::{example, rig::Wire, until};

/// The shop and, over HTTP, its process.
pub struct Shop {
    dir: TempDir,
    wire: Wire,
    era: Era,
    http: Option<Server>,
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Shop {
    pub async fn open(wire: Wire, era: &Era, levers: &[&str]) -> Self {
        let mut shop = Self {
            dir: tempfile::tempdir().expect("a directory"),
            wire,
            era: era.clone(),
            http: None,
        };
        for lever in levers {
            shop.pull(lever);
        }
        shop.start().await;
        shop
    }

    /// Over HTTP the process is the shop's own; over stdio each session starts one.
    async fn start(&mut self) {
        if self.wire == Wire::Stdio {
            return;
        }
        let child = Command::new(example("desk_server"))
            .arg("http")
            .arg(self.dir.path())
            .stdin(Stdio::null())
            .spawn()
            .expect("the server starts");
        self.http = Some(Server(child));
        until("the server listens", || self.port().is_some()).await;
    }

    fn port(&self) -> Option<u16> {
        let text = std::fs::read_to_string(self.dir.path().join("port")).ok()?;
        text.parse().ok()
    }

    pub fn spec(&self) -> ConnectionSpec {
        self.spec_of("local")
    }

    /// A connection of this principal's; over stdio there is one principal.
    pub fn spec_of(&self, principal: &str) -> ConnectionSpec {
        let spec: ConnectionSpec = match self.wire {
            Wire::Stdio => StdioSpec::new(example("desk_server"))
                .arg("stdio")
                .arg(self.dir.path())
                .into(),
            Wire::Http => {
                let port = self.port().expect("it listens");
                HttpSpec::new(format!("http://127.0.0.1:{port}/mcp"))
                    .header("x-principal", principal)
                    .into()
            }
        };
        spec.era(self.era.clone()).repeats(Repeats {
            max_attempts: 3,
            backoff: Backoff {
                base: Duration::from_millis(1),
                cap: Duration::from_millis(10),
            },
        })
    }

    pub fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Its address, or the program that it is and its arguments, for a host that is another process.
    pub fn place(&self) -> serde_json::Value {
        match self.port() {
            Some(port) => format!("http://127.0.0.1:{port}/mcp").into(),
            None => serde_json::json!([example("desk_server"), "stdio", self.path()]),
        }
    }

    /// Waits until a lever is pulled no more: the server has come to where it looks for it.
    pub async fn until_taken(&self, lever: &str) {
        let lever = self.path().join(lever);
        until("the lever is taken", || !lever.exists()).await;
    }

    pub fn pull(&self, lever: &str) {
        let (name, value) = lever.split_once('=').unwrap_or((lever, ""));
        std::fs::write(self.dir.path().join(name), value).expect("the lever can be pulled");
    }

    /// Kills the process that serves now, with the signal that nothing survives.
    pub fn kill(&self) {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).expect("it has a pid");
        let killed = Command::new("kill").args(["-9", pid.trim()]).status();
        assert!(killed.expect("there is a kill").success());
    }

    /// Kills whatever still serves; the next one is started with [`Self::serve_again`].
    pub fn crash(&self) {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).unwrap_or_default();
        if let Ok(pid) = pid.trim().parse() {
            super::kill_if_of(pid, self.path());
        }
    }

    /// Over HTTP: a process that serves, instead of the one there was.
    pub async fn serve_again(&mut self) {
        if self.http.take().is_some() {
            std::fs::remove_file(self.dir.path().join("port")).expect("it had a port");
            self.start().await;
        }
    }

    /// Kills it, waits until it is gone, and starts another one.
    pub async fn kill_and_start(&mut self) {
        self.kill();
        if let Some(mut server) = self.http.take() {
            let _ = server.0.wait();
            std::fs::remove_file(self.dir.path().join("port")).expect("it had a port");
            self.start().await;
        }
    }

    /// Holds the lock of its database until it is dropped.
    pub fn lock(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.dir.path().join("shop.db"));
        let connection = connection.expect("it has a database");
        let patience = connection.busy_timeout(Duration::from_secs(10));
        patience.expect("a bound");
        let begun = connection.execute_batch("BEGIN IMMEDIATE");
        begun.expect("nobody else has it");
        connection
    }

    /// How many lines of what it received begin like this.
    pub fn received(&self, beginning: &str) -> usize {
        let text = std::fs::read_to_string(self.dir.path().join("received")).unwrap_or_default();
        text.lines()
            .filter(|line| line.starts_with(beginning))
            .count()
    }

    fn tables(&self) -> rusqlite::Connection {
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let shop = rusqlite::Connection::open_with_flags(self.dir.path().join("shop.db"), flags)
            .expect("the database is there");
        shop.busy_timeout(Duration::from_secs(10))
            .expect("it can wait");
        shop
    }

    /// What was ordered. The shop may have been killed before it had a table for that, or a database.
    pub fn items(&self) -> Vec<String> {
        let database = self.dir.path().join("shop.db");
        if !database.try_exists().expect("its folder can be read") {
            return Vec::new();
        }
        let shop = self.tables();
        let has_orders = shop.table_exists(None, "orders");
        if !has_orders.expect("its tables can be read") {
            return Vec::new();
        }
        let select = shop.prepare("SELECT item FROM orders");
        let mut select = select.expect("it can be read");
        let items = select.query_map([], |row| row.get(0));
        let items = items.expect("they can be read");
        items.map(|item| item.expect("a text")).collect()
    }

    /// A number from the shop's own tables.
    pub fn number(&self, sql: &str) -> i64 {
        let shop = self.tables();
        shop.query_row(sql, [], |row| row.get(0))
            .expect("it is a number")
    }
}

pub fn key(text: &str) -> IdempotencyKey {
    text.parse().expect("a key")
}
