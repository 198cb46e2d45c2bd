//! A store for many hosts.
//!
//! Each host has a row of its own with a lease, which it renews. An operation names the host that has
//! it and a fencing number that grows each time it changes hands; every write of a host is conditional
//! on both and on the lease. What a host leaves whose lease ran out, any other host takes over: what
//! was accepted was never sent, and of what was dispatched nobody knows the outcome. A host that was
//! paused and comes back finds itself fenced out of all it had, and takes a new name for new work.
//!
//! The lease has a margin: a host writes only while so much of it is left by the host's own clock. That
//! makes the time small in which a host can be paused between its durable write and the sending, and
//! come back after others have taken its operation for unknown. It does not make that time zero: such a
//! host still sends what it had recorded. Nobody else sends it, so it is sent once; but it may be sent
//! after somebody was told that its outcome is unknown.

mod database;
mod doubt;
mod fault;
mod lease;
mod migrate;
mod moves;
mod read;
mod settings;
mod sql;
mod sweep;
mod take_over;
mod write;

use std::{future::Future, sync::Arc, time::SystemTime};

use deadpool_postgres::{
    ManagerConfig, Pool, RecyclingMethod, Runtime,
    tokio_postgres::{self, config::SslMode},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub use settings::PostgresSettings;

use super::{
    Journal, JournalSettings,
    record::{Fact, Intent, Record},
    store::{Accepted, By, Claimed, Filter, Held, Store, StoreError, Stored, Swept},
    table::State,
};
use crate::operation::{AttemptId, OperationId};
use {database::Database, doubt::Doubts, lease::Lease, sql::Sql, write::Desk};

/// Keeps operations in PostgreSQL, for many hosts at a time.
///
/// It needs PostgreSQL 13 or newer, a database with the encoding UTF8, and sessions of its own: behind
/// a pooler that shares them between transactions, prepared statements have to be supported by it.
///
/// A host that is dropped without [`close`](Store::close) leaves its operations until its lease has run
/// out. A host whose lease ran out while it lived, because it was paused or could not reach the
/// database, gets [`StoreError::Fenced`] for all that it had, and a new name for what it accepts after.
/// By its own clock it counts only while the machine runs: after a suspension of the whole machine it
/// is the database that refuses its writes.
pub struct PostgresStore {
    desk: Desk,
    /// Counts what is under way; closed, it takes nothing new.
    under_way: TaskTracker,
    keeper: AbortOnDropHandle<()>,
}

/// So many connections, where the host brings no pool of its own. A connection is used for one
/// statement at a time, and 8 keep a small server busy.
const CONNECTIONS: usize = 8;

impl PostgresStore {
    /// A store over the host's own pool, which says how to connect, with TLS or without.
    ///
    /// Makes the schema or brings it to this version, and registers this host.
    ///
    /// # Errors
    ///
    /// [`StoreError::Settings`] for settings that cannot be, [`StoreError::Newer`] for a schema of a
    /// later version, and what keeps the database from being reached.
    ///
    /// # Cancel safety
    ///
    /// The schema may have been made, and this host may have been registered until its lease runs out.
    pub async fn connect(pool: Pool, settings: PostgresSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let database = Database::new(pool, settings.within);
        database
            .bounded(migrate::prepare(&database, &settings.schema))
            .await?;
        let desk = Desk {
            sql: Arc::new(Sql::of(&settings.schema)),
            lease: Arc::new(Lease::new(settings.margin)),
            doubts: Doubts::default(),
            database,
        };
        lease::speak(&desk.lease, &desk.database, &desk.sql, &settings).await?;
        let keeper = tokio::spawn(lease::keep(
            Arc::clone(&desk.lease),
            desk.database.clone(),
            Arc::clone(&desk.sql),
            desk.doubts.clone(),
            settings,
        ));
        Ok(Self {
            desk,
            under_way: TaskTracker::new(),
            keeper: AbortOnDropHandle::new(keeper),
        })
    }

    /// A store over connections of its own, without TLS: for a server on this machine, or behind a
    /// network that one trusts.
    ///
    /// `url` is a connection string as `libpq` takes it. What it does not say is set so that a server
    /// that vanished is noticed: a time limit for connecting and for what was sent.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`StoreError::Settings`] for a string that is none. It is not
    /// repeated: it may hold a password.
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn connect_url(url: &str, settings: PostgresSettings) -> Result<Self, StoreError> {
        settings.check()?;
        let wrong = |why: &str| StoreError::Settings(why.into());
        let mut config: tokio_postgres::Config = url
            .parse()
            .map_err(|_| wrong("the connection string is none that PostgreSQL has"))?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(wrong(
                "the connection string demands TLS, which this way to connect does not have; make a \
                 pool with a TLS connector and give it to `PostgresStore::connect`",
            ));
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(settings.within);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(settings.within);
        }
        if config.get_application_name().is_none() {
            config.application_name("mcp-supervisor");
        }
        let manager = deadpool_postgres::Manager::from_config(
            config,
            tokio_postgres::NoTls,
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let pool = Pool::builder(manager)
            .max_size(CONNECTIONS)
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|_| wrong("no pool of connections can be made"))?;
        Self::connect(pool, settings).await
    }

    /// The name under which this host writes now. It has another one after its lease ran out.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        let tenure = self.desk.lease.current();
        tenure.map(|tenure| tenure.host.as_ref().to_owned())
    }

    /// Bounds what is asked, and counts it as under way.
    fn ask<'a, T: Send + 'a>(
        &'a self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'a,
    ) -> Stored<'a, T> {
        if self.under_way.is_closed() {
            return Box::pin(std::future::ready(Err(StoreError::Closed)));
        }
        Box::pin(
            self.under_way
                .track_future(self.desk.database.bounded(work)),
        )
    }

    async fn find_now(&self, by: By<'_>) -> Result<Option<Record>, StoreError> {
        let sql = &self.desk.sql;
        let found = match by {
            By::Operation(operation) => {
                let id = operation.to_string();
                self.desk.look(&sql.by_operation, &[&id]).await?
            }
            By::Key(connection, key) => {
                let given: database::Given<'_> = &[&connection.as_str(), &key.as_str()];
                self.desk.look(&sql.by_key, given).await?
            }
        };
        Ok(found.into_iter().next().map(|found| found.record))
    }

    async fn list_now(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        // What a dead host left may be in another state than it says.
        take_over::all(&self.desk.database, &self.desk.sql).await?;
        let states = filter.states.as_ref();
        let unsettled = states.is_some_and(|states| !states.iter().any(|s| s.is_settled()));
        let words: Option<Vec<String>> =
            states.map(|states| states.iter().map(|state| moves::word(*state)).collect());
        let connection = filter.connection.as_ref().map(|name| name.as_str());
        let after = filter.after.map(|after| after.to_string());
        let limit = i64::try_from(filter.limit).unwrap_or(i64::MAX);
        let sql = match unsettled {
            true => &self.desk.sql.list_unsettled,
            false => &self.desk.sql.list,
        };
        let found = self
            .desk
            .look(sql, &[&words, &connection, &after, &limit])
            .await?;
        Ok(found.into_iter().map(|found| found.record).collect())
    }

    /// Ends this host's lease, so that others need not wait for that.
    async fn resign(&self) -> Result<(), StoreError> {
        if let Some(tenure) = self.desk.lease.current() {
            let host = &*tenure.host;
            self.desk
                .database
                .ask(&self.desk.sql.resign, &[&host])
                .await?;
            self.desk.lease.lost(&tenure);
        }
        take_over::all(&self.desk.database, &self.desk.sql).await
    }
}

impl Store for PostgresStore {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        self.ask(self.desk.accept(intent, first))
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        self.ask(self.desk.append(held, fact))
    }

    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>> {
        self.ask(self.find_now(by))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        self.ask(self.list_now(filter))
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.ask(self.desk.claim(operation))
    }

    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()> {
        self.ask(self.desk.release(held))
    }

    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept> {
        let Desk { database, sql, .. } = &self.desk;
        self.ask(sweep::sweep(database, sql, answers, tombstones, at_most))
    }

    fn close(&self) -> Stored<'_, ()> {
        Box::pin(async {
            self.under_way.close();
            self.under_way.wait().await;
            self.keeper.abort();
            self.desk.database.bounded(self.resign()).await
        })
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl Journal {
    /// A journal in PostgreSQL, for many hosts, as [`PostgresStore::connect_url`] connects to it.
    ///
    /// ```no_run
    /// use mcp_supervisor::journal::{Journal, JournalSettings, PostgresSettings};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let url = "postgresql://agents@db.internal/agents";
    /// let journal =
    ///     Journal::postgres(url, PostgresSettings::default(), JournalSettings::default()).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::connect_url`].
    ///
    /// # Cancel safety
    ///
    /// As [`PostgresStore::connect`].
    pub async fn postgres(
        url: &str,
        settings: PostgresSettings,
        kept: JournalSettings,
    ) -> Result<Self, StoreError> {
        Ok(Self::new(
            PostgresStore::connect_url(url, settings).await?,
            kept,
        ))
    }
}
