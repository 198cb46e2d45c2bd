//! What may have been written although its caller was told that it was not: the answer was lost and the
//! time was over. Nothing of it is sent, so once the database can be reached again it is recorded as
//! not sent.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Instant, SystemTime},
};

use super::{
    database::Database, moves::Moves, read::written, settings::PostgresSettings, sql::Sql,
};
use crate::{
    evidence::Outcome,
    journal::{Entry, Fact, Failure, Settler, StoreError, table::Event},
    operation::OperationId,
};

/// The writes in doubt. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Doubts(Arc<Mutex<Vec<Doubt>>>);

struct Doubt {
    operation: OperationId,
    host: Arc<str>,
    token: String,
    since: Instant,
}

/// A write that lets something be sent, while it is under way. Dropped before it was answered, it is in
/// doubt.
pub(super) struct Dispatch<'a> {
    doubts: &'a Doubts,
    doubt: Option<Doubt>,
}

impl Doubts {
    /// Before the statement goes out.
    pub(super) fn dispatch(
        &self,
        operation: OperationId,
        host: &Arc<str>,
        token: &str,
    ) -> Dispatch<'_> {
        Dispatch {
            doubts: self,
            doubt: Some(Doubt {
                operation,
                host: Arc::clone(host),
                token: token.to_owned(),
                since: Instant::now(),
            }),
        }
    }

    fn take(&self) -> Vec<Doubt> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, doubt: Doubt) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(doubt);
    }
}

impl Dispatch<'_> {
    /// The database has told what became of it.
    pub(super) fn answered(mut self) {
        self.doubt = None;
    }
}

impl Drop for Dispatch<'_> {
    fn drop(&mut self) {
        if let Some(doubt) = self.doubt.take() {
            self.doubts.add(doubt);
        }
    }
}

/// Records as not sent what was written after all. What is not there is looked for again until a lease
/// has passed: the statement may come late.
pub(super) async fn settle(
    doubts: &Doubts,
    database: &Database,
    sql: &Sql,
    settings: &PostgresSettings,
) {
    for doubt in doubts.take() {
        let withdrawn = database.bounded(withdraw(&doubt, database, sql)).await;
        let over = doubt.since.elapsed() > settings.lease;
        match withdrawn {
            Ok(false) if over => {}
            Ok(true) => {}
            Ok(false) | Err(_) => doubts.add(doubt),
        }
    }
}

/// Only a first attempt, and only as long as nothing was recorded after it: then nobody sends it.
async fn withdraw(doubt: &Doubt, database: &Database, sql: &Sql) -> Result<bool, StoreError> {
    let at = SystemTime::now();
    let moves = Moves::of(Event::NotSend);
    let entry = written(&Entry {
        at,
        fact: Fact::Without {
            outcome: Outcome::NotSent,
            failure: Failure::new("journal"),
            by: Settler::Call {
                generation: None,
                attempts: 0,
            },
        },
    })?;
    let rows = database
        .ask(
            &sql.withdraw,
            &[
                &doubt.operation.to_string(),
                &&*doubt.host,
                &doubt.token,
                &entry,
                &moves.from,
                &moves.to,
                &moves.frees,
                &moves.lets_go,
                &moves.settles,
                &at,
            ],
        )
        .await?;
    Ok(!rows.is_empty())
}
