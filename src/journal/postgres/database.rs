//! The way to the database: a connection from the pool, again while it breaks, never for longer than
//! stated.

use std::{future::Future, time::Duration};

use deadpool_postgres::{Object, Pool, tokio_postgres};
use tokio_postgres::{Row, types::ToSql};

use super::fault::Fault;
use crate::journal::StoreError;

/// What a statement is given.
pub(super) type Given<'a> = &'a [&'a (dyn ToSql + Sync)];

#[derive(Clone)]
pub(super) struct Database {
    pool: Pool,
    within: Duration,
}

impl Database {
    pub(super) fn new(pool: Pool, within: Duration) -> Self {
        Self { pool, within }
    }

    /// Bounds what is asked of the database as a whole.
    pub(super) async fn bounded<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let done = tokio::time::timeout(self.within, work).await;
        done.unwrap_or_else(|_| {
            let text = format!("the database gave no answer within {:?}", self.within);
            Err(StoreError::Unavailable(text.into()))
        })
    }

    pub(super) fn tries(&self) -> Tries {
        Tries {
            pool: self.pool.clone(),
            broken: 0,
        }
    }

    /// Asks until the database has answered. What is asked must be the same when it is done twice.
    pub(super) async fn ask(&self, sql: &str, given: Given<'_>) -> Result<Vec<Row>, StoreError> {
        let mut tries = self.tries();
        loop {
            let lent = tries.connection().await?;
            match lent.query(sql, given).await {
                Ok(rows) => {
                    lent.give_back();
                    return Ok(rows);
                }
                Err(fault) => tries.after(fault)?,
            }
        }
    }
}

/// Attempts at one thing, each on a connection that still works.
pub(super) struct Tries {
    pool: Pool,
    broken: u32,
}

/// The first pause, doubled up to 32 times it: a server that starts again needs about a second, and the
/// dead connections of a pool are found one by one.
const PAUSE: Duration = Duration::from_millis(10);

impl Tries {
    pub(super) async fn connection(&mut self) -> Result<Lent, StoreError> {
        loop {
            if self.broken > 0 {
                tokio::time::sleep(PAUSE * (1 << (self.broken - 1).min(5))).await;
            }
            match self.pool.get().await {
                Ok(object) => return Ok(Lent(Some(object))),
                Err(error) => self.after(Fault::of_pool(error))?,
            }
        }
    }

    /// Whether to go on after a fault.
    pub(super) fn after(&mut self, fault: Fault) -> Result<(), StoreError> {
        match fault {
            Fault::Broken => {
                self.broken += 1;
                Ok(())
            }
            Fault::Twice => Err(StoreError::Corrupt("two rows have one identity".into())),
            Fault::Refused(error) => Err(error),
        }
    }
}

/// A connection. It goes back to the pool only when its last answer was read: one that was dropped in
/// the middle may hang, or be in a transaction that nobody ends.
pub(super) struct Lent(Option<Object>);

impl Lent {
    pub(super) fn object(&mut self) -> &mut Object {
        self.0
            .as_mut()
            .expect("it is given back only by the one that owns it")
    }

    pub(super) async fn query(&self, sql: &str, given: Given<'_>) -> Result<Vec<Row>, Fault> {
        let object = self
            .0
            .as_ref()
            .expect("it is given back only by the one that owns it");
        let statement = object.prepare_cached(sql).await.map_err(Fault::of)?;
        object.query(&statement, given).await.map_err(Fault::of)
    }

    pub(super) fn give_back(mut self) {
        self.0.take();
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}
