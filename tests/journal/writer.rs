//! A process that writes a journal and says what was acknowledged, one line each: so that a test can
//! take its disk away, its lock, or its life.
//!
//! ```text
//! journal_writer write PATH TASKS            opens, and writes until it is killed or refused
//! journal_writer ballast PATH TASKS FILE     the same; once refused it removes FILE and goes on
//! journal_writer hold PATH                   opens, and ends when its stdin does
//! journal_writer read PATH                   opens for reading, and says what is there
//! ```

use std::{
    io::{Read as _, Write as _},
    path::Path,
    sync::Arc,
};

use mcp_supervisor::{
    journal::{Accepted, Fact, Filter, Intent, Kept, Settler, SqliteStore, Store, StoreError},
    operation::{AttemptId, Fingerprint, IdempotencyKey, OperationId},
};
use serde_json::{Map, json};

/// How many operations each task writes after the disk has room again.
const AFTER: usize = 5;

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (path, tasks, ballast) = match arguments[..] {
        ["hold", path] => return hold(path).await,
        ["read", path] => return read(path).await,
        ["write", path, tasks] => (path, tasks, None),
        ["ballast", path, tasks, file] => (path, tasks, Some(file)),
        _ => panic!("see the head of tests/journal/writer.rs"),
    };
    let store = match SqliteStore::open(path).await {
        Ok(store) => Arc::new(store),
        Err(error) => return say(&format!("refused {}", word(&error))),
    };
    say("open");
    let tasks: usize = tasks.parse().expect("a number");
    all(tasks, &store, usize::MAX).await;
    if let Some(file) = ballast {
        std::fs::remove_file(file).expect("the ballast is there");
        say("room");
        all(tasks, &store, AFTER).await;
    }
    store.close().await.expect("it closes");
    say("closed");
}

async fn hold(path: &str) {
    let store = SqliteStore::open(path).await.expect("nobody else has it");
    say("open");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(store);
}

async fn read(path: &str) {
    let store = SqliteStore::open_read_only(path)
        .await
        .expect("it can be read");
    for record in store
        .list(&Filter::default())
        .await
        .expect("it can be read")
    {
        say(&format!("accepted {}", record.intent.operation));
    }
}

async fn all(tasks: usize, store: &Arc<SqliteStore>, at_most: usize) {
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let store = Arc::clone(store);
        running.spawn(async move {
            for _ in 0..at_most {
                if let Err(error) = one(&*store).await {
                    return say(&format!("refused {}", word(&error)));
                }
            }
        });
    }
    running.join_all().await;
}

/// One operation: accepted and dispatched in one write, settled in a second.
async fn one(store: &dyn Store) -> Result<(), StoreError> {
    let operation = OperationId::mint();
    let connection = "billing".parse().expect("a name");
    let print = Fingerprint::of("charge", &Map::new());
    let mut intent = Intent::new(operation, connection, "charge", print);
    intent.key = Some(
        operation
            .to_string()
            .parse::<IdempotencyKey>()
            .expect("a key"),
    );
    let Accepted::New(held) = store.accept(intent, Some(AttemptId::mint())).await? else {
        panic!("nobody else has this key")
    };
    say(&format!("accepted {operation}"));
    let text = operation.to_string().repeat(20);
    let fact = Fact::Answered {
        is_error: false,
        answer: Kept::Whole(json!({"content": [{"type": "text", "text": text}]})),
        by: Settler::Call {
            generation: None,
            attempts: 1,
        },
    };
    store.append(&held, fact).await?;
    say(&format!("settled {operation}"));
    Ok(())
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The test may have gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn word(error: &StoreError) -> &'static str {
    match error {
        StoreError::Full(_) => "full",
        StoreError::ReadOnly(_) => "read-only",
        StoreError::Locked(_) => "locked",
        StoreError::Corrupt(_) => "corrupt",
        StoreError::Unavailable(text) if Path::new(&**text).is_absolute() => {
            "unavailable, with its path"
        }
        _ => "something else",
    }
}
