//! What a dead host leaves: what it had accepted was never sent, what it had dispatched nobody knows.

use std::time::SystemTime;

use super::{database::Database, moves::Moves, read::written, sql::Sql};
use crate::journal::{Entry, Fact, StoreError, table::Event};

/// So many operations in one transaction: their rows are locked while it lasts.
const AT_ONCE: i64 = 500;

/// Ends every lease that ran out, and takes over what has no living host.
///
/// The three steps are transactions of their own. A write of a host that is ended between may come
/// after the second step has looked; it is found the next time.
pub(super) async fn all(database: &Database, sql: &Sql) -> Result<(), StoreError> {
    database.ask(&sql.bury, &[]).await?;
    for row in database.ask(&sql.orphaned, &[]).await? {
        let host: String = row.try_get(0).map_err(|_| super::read::odd())?;
        of(database, sql, &host).await?;
    }
    Ok(())
}

/// Takes over what one dead host left.
async fn of(database: &Database, sql: &Sql, host: &str) -> Result<(), StoreError> {
    let at = SystemTime::now();
    let moves = Moves::of(Event::Abandon);
    let entry = written(&Entry {
        at,
        fact: Fact::Abandoned {
            host: host.to_owned(),
        },
    })?;
    loop {
        let rows = database
            .ask(
                &sql.abandon,
                &[
                    &host,
                    &AT_ONCE,
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
        let moved: i64 = match rows.first() {
            Some(row) => row.try_get(0).map_err(|_| super::read::odd())?,
            None => 0,
        };
        if moved < AT_ONCE {
            return Ok(());
        }
    }
}
