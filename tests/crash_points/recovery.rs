//! A start that is killed while it takes over what the host before it left.

use std::{collections::BTreeSet, path::Path, time::Duration};

use mcp_supervisor::{
    Era, OperationId, ToolContract,
    journal::{Fact, State},
};
use rusqlite::Connection;
use serde_json::json;

use super::{all, ids};
use crate::support::{
    bounded,
    host::{HostProcess, journal_of, options},
    until,
    world::{Wire, World},
};

/// More than are taken over in one transaction.
const OPERATIONS: usize = 1_100;
/// How many of them have a place in the connection, and so an attempt.
const SENT: usize = 60;

/// A trigger that never ends holds a start where the journal is written for the first time, in its first
/// group, and in its second one.
const HOLDS: [(&str, Reached); 3] = [
    ("INSERT ON hosts", |_, busy| busy),
    ("UPDATE ON operations WHEN NEW.row = 500", |file, busy| {
        busy && hosts(file) > 1 && taken_over(file) == 0
    }),
    ("UPDATE ON operations WHEN NEW.row = 1050", |file, _| {
        taken_over(file) == 1_000
    }),
];

/// Whether a start has come so far, by what the file says and by whether somebody writes to it.
type Reached = fn(&Connection, bool) -> bool;

fn number(file: &Connection, sql: &str) -> usize {
    let number: i64 = file
        .query_row(sql, [], |row| row.get(0))
        .expect("it can be read");
    usize::try_from(number).expect("a count")
}

fn hosts(file: &Connection) -> usize {
    number(file, "SELECT count(*) FROM hosts")
}

fn taken_over(file: &Connection) -> usize {
    let sql = "SELECT count(*) FROM operations WHERE history LIKE '%abandoned%'";
    number(file, sql)
}

#[tokio::test]
async fn a_start_that_is_killed_changes_nothing_that_the_next_one_says() {
    bounded(async {
        let script = json!({"rules": [
            {"on": "tools/call", "tool": "charge", "generation": 1, "do": ["ledger", "hang"]}]});
        let world = World::new(Wire::Stdio, Era::Discover, script).await;
        let mut options = options(&world, &ToolContract::AtMostOnce);
        options["max_in_flight"] = json!(SENT);
        options["no_queue"] = json!(true);
        let journal = journal_of(&world);
        let planned = leave_many(&world, &options, &journal).await;

        for (place, reached) in HOLDS {
            killed_there(&options, &journal, place, reached).await;
        }

        let mut host = HostProcess::start(&options);
        let found = all(&journal).await;
        assert_eq!(ids(&found).into_iter().collect::<BTreeSet<_>>(), planned);
        for (state, many) in [
            (State::OutcomeUnknown, SENT),
            (State::NotSent, OPERATIONS - SENT),
        ] {
            let there = found.iter().filter(|record| record.state == state).count();
            assert_eq!(there, many, "{state}");
        }
        for record in &found {
            let facts = record.history.iter().map(|entry| &entry.fact);
            let taken = facts.filter(|fact| matches!(fact, Fact::Abandoned { .. }));
            assert_eq!(taken.count(), 1, "it is taken over once: {record:?}");
        }
        assert_eq!(world.bed.ran("charge"), SENT, "none is run again");
        let one = found.iter().find(|r| r.state == State::OutcomeUnknown);
        let one = one.expect("there are some").intent.operation;
        let refused = host.ask(json!({"do": "resolve", "operation": one}));
        let error = refused["error"].as_str().expect("nothing is allowed");
        assert!(error.contains("give a verdict"), "{error}");
        host.close();
    })
    .await;
}

/// Has a host begin all of them, and kills it.
async fn leave_many(
    world: &World,
    options: &serde_json::Value,
    journal: &Path,
) -> BTreeSet<OperationId> {
    let mut host = HostProcess::start(options);
    let mut planned = BTreeSet::new();
    for number in 0..OPERATIONS {
        let id = OperationId::mint();
        planned.insert(id);
        host.order(
            &json!({"do": "call", "tool": "charge", "arguments": {"number": number},
            "key": format!("order-{number}"), "id": id}),
        );
    }
    let file = Connection::open(journal).expect("it is there");
    until("all are recorded, and some have run", || {
        let recorded = number(&file, "SELECT count(*) FROM operations");
        recorded == OPERATIONS && world.bed.ran("charge") == SENT
    })
    .await;
    drop(file);
    host.kill();
    planned
}

/// Kills a start while it is at `place`.
async fn killed_there(options: &serde_json::Value, journal: &Path, place: &str, reached: Reached) {
    let file = Connection::open(journal).expect("it is there");
    let endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                   SELECT count(*) FROM n";
    let hold = format!("CREATE TRIGGER hold BEFORE {place} BEGIN SELECT ({endless}); END");
    file.execute_batch(&hold).expect("a trigger");
    file.busy_timeout(Duration::ZERO).expect("it is set");
    let host = HostProcess::begin(options);
    until(place, || {
        let busy = file.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_err();
        reached(&file, busy)
    })
    .await;
    host.kill();
    file.busy_timeout(Duration::from_secs(10))
        .expect("it is set");
    file.execute_batch("DROP TRIGGER hold")
        .expect("the trigger");
}
