//! The schema and its versions, and what else the database must be like.

use deadpool_postgres::Transaction;

use super::{
    database::{Database, Lent},
    fault::Fault,
    sql::{MIGRATIONS, NEWEST},
};
use crate::journal::StoreError;

/// The oldest server with all that the statements use.
const OLDEST_SERVER: i32 = 130_000;

/// Checks the server, and brings the schema to the newest version. One host at a time does that.
pub(super) async fn prepare(database: &Database, schema: &str) -> Result<(), StoreError> {
    let mut tries = database.tries();
    loop {
        let mut lent = tries.connection().await?;
        match once(&mut lent, schema).await {
            Ok(()) => {
                lent.give_back();
                return Ok(());
            }
            // Two hosts that both make the schema: the second one finds it.
            Err(Fault::Twice) => tries.after(Fault::Broken)?,
            Err(fault) => tries.after(fault)?,
        }
    }
}

async fn once(lent: &mut Lent, schema: &str) -> Result<(), Fault> {
    check_server(lent).await?;
    let transaction = lent.object().transaction().await.map_err(Fault::of)?;
    let done = migrate(&transaction, schema).await;
    match done {
        Ok(()) => transaction.commit().await.map_err(Fault::of),
        Err(fault) => Err(fault),
    }
}

async fn check_server(lent: &Lent) -> Result<(), Fault> {
    let rows = lent
        .query(
            "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'),
                 current_setting('synchronous_commit')",
            &[],
        )
        .await?;
    let refused = |why: &str| Err(Fault::Refused(StoreError::Settings(why.into())));
    let row = rows.first().ok_or(Fault::Broken)?;
    let version: i32 = row.try_get(0).map_err(Fault::of)?;
    let encoding: &str = row.try_get(1).map_err(Fault::of)?;
    let commit: &str = row.try_get(2).map_err(Fault::of)?;
    if version < OLDEST_SERVER {
        return refused("the journal needs PostgreSQL 13 or newer");
    }
    if encoding != "UTF8" {
        return refused("the database's encoding is not UTF8; make the journal's database with it");
    }
    if commit == "off" {
        return refused(
            "synchronous_commit is off for this role, so what is acknowledged can be lost; set it to on",
        );
    }
    Ok(())
}

async fn migrate(transaction: &Transaction<'_>, schema: &str) -> Result<(), Fault> {
    let batch = async |sql: String| transaction.batch_execute(&sql).await.map_err(Fault::of);
    batch("SET LOCAL lock_timeout = '5s'".to_owned()).await?;
    let lock = format!("mcp-supervisor journal {schema}");
    transaction
        .execute(
            "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
            &[&lock],
        )
        .await
        .map_err(Fault::of)?;
    // Only what is missing is made: a role that may not make schemas can use one that is there.
    let table = format!("\"{schema}\".journal");
    let rows = transaction
        .query(
            "SELECT to_regnamespace(quote_ident($1)) IS NOT NULL, to_regclass($2) IS NOT NULL",
            &[&schema, &table],
        )
        .await
        .map_err(Fault::of)?;
    let row = rows.first().ok_or(Fault::Broken)?;
    if !row.try_get::<_, bool>(0).map_err(Fault::of)? {
        batch(format!("CREATE SCHEMA \"{schema}\"")).await?;
    }
    if !row.try_get::<_, bool>(1).map_err(Fault::of)? {
        batch(format!(
            "CREATE TABLE {table} (version bigint NOT NULL); INSERT INTO {table} VALUES (0)"
        ))
        .await?;
    }
    let rows = transaction
        .query(&format!("SELECT max(version) FROM {table}"), &[])
        .await
        .map_err(Fault::of)?;
    let found: Option<i64> = match rows.first() {
        Some(row) => row.try_get(0).map_err(Fault::of)?,
        None => None,
    };
    let damaged = || {
        Fault::Refused(StoreError::Corrupt(
            "the schema's version is missing".into(),
        ))
    };
    let found = found.ok_or_else(damaged)?;
    if found > NEWEST {
        let known = NEWEST;
        return Err(Fault::Refused(StoreError::Newer { found, known }));
    }
    let done = usize::try_from(found).map_err(|_| damaged())?;
    for step in MIGRATIONS.iter().skip(done) {
        batch(step.replace("{s}", &format!("\"{schema}\""))).await?;
    }
    if found < NEWEST {
        batch(format!("UPDATE {table} SET version = {NEWEST}")).await?;
    }
    Ok(())
}
