//! What was kept long enough. Rows that somebody is at are left for the next time.

use std::time::SystemTime;

use super::{
    database::{Database, Lent},
    fault::Fault,
    read::{self, column, found, written},
    sql::Sql,
};
use crate::journal::{Entry, Fact, StoreError, Swept};

/// So many answers are in memory at a time: each may be as large as a journal keeps.
const AT_ONCE: usize = 32;

pub(super) async fn sweep(
    database: &Database,
    sql: &Sql,
    answers: SystemTime,
    tombstones: SystemTime,
    at_most: usize,
) -> Result<Swept, StoreError> {
    let mut swept = Swept::default();
    let most = i64::try_from(at_most).unwrap_or(i64::MAX);
    let rows = database
        .ask(&sql.remove, &[&tombstones, &answers, &most])
        .await?;
    if let Some(row) = rows.first() {
        let gone: i64 = column(row, "gone")?;
        swept.removed = usize::try_from(gone).unwrap_or(0);
    }
    while swept.forgotten < at_most {
        let wanted = AT_ONCE.min(at_most - swept.forgotten);
        let forgotten = forget(database, sql, answers, wanted).await?;
        swept.forgotten += forgotten;
        if forgotten < wanted {
            break;
        }
    }
    Ok(swept)
}

/// Forgets a few answers in one transaction.
async fn forget(
    database: &Database,
    sql: &Sql,
    answers: SystemTime,
    wanted: usize,
) -> Result<usize, StoreError> {
    let mut tries = database.tries();
    loop {
        let mut lent = tries.connection().await?;
        match forget_once(&mut lent, sql, answers, wanted).await {
            Ok(forgotten) => {
                lent.give_back();
                return Ok(forgotten);
            }
            Err(fault) => tries.after(fault)?,
        }
    }
}

async fn forget_once(
    lent: &mut Lent,
    sql: &Sql,
    answers: SystemTime,
    wanted: usize,
) -> Result<usize, Fault> {
    let transaction = lent.object().transaction().await.map_err(Fault::of)?;
    let wanted = i64::try_from(wanted).unwrap_or(i64::MAX);
    let rows = transaction
        .query(&sql.answers, &[&answers, &wanted])
        .await
        .map_err(Fault::of)?;
    let mut tombs = Tombs::default();
    for row in &rows {
        tombs.add(found(row).map_err(Fault::Refused)?)?;
    }
    if !rows.is_empty() {
        transaction
            .execute(&sql.forget, &[&tombs.rows, &tombs.intents, &tombs.lengths])
            .await
            .map_err(Fault::of)?;
        transaction
            .execute(
                &sql.forget_entries,
                &[&tombs.of_entries, &tombs.numbers, &tombs.entries],
            )
            .await
            .map_err(Fault::of)?;
    }
    transaction.commit().await.map_err(Fault::of)?;
    Ok(rows.len())
}

/// Tombstones as the columns that a statement takes.
#[derive(Default)]
struct Tombs {
    rows: Vec<i64>,
    intents: Vec<String>,
    lengths: Vec<i32>,
    of_entries: Vec<i64>,
    numbers: Vec<i32>,
    entries: Vec<String>,
}

impl Tombs {
    fn add(&mut self, found: read::Found) -> Result<(), Fault> {
        let mut record = found.record;
        let entry = Entry {
            at: SystemTime::now(),
            fact: Fact::Forgotten,
        };
        let illegal = |illegal| Fault::Refused(StoreError::Illegal(illegal));
        record.apply(entry).map_err(illegal)?;
        self.rows.push(found.row);
        self.intents
            .push(written(&record.intent).map_err(Fault::Refused)?);
        self.lengths
            .push(i32::try_from(record.history.len()).unwrap_or(i32::MAX));
        for (number, entry) in (1..).zip(&record.history) {
            self.of_entries.push(found.row);
            self.numbers.push(number);
            self.entries.push(written(entry).map_err(Fault::Refused)?);
        }
        Ok(())
    }
}
