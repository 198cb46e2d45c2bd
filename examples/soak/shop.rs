//! What every server does with a message, whatever it comes over, and where its effects are counted: in
//! a database, which outlives the process.

use std::{
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde_json::{Value, json};

use crate::{
    Ending,
    fate::{Fate, Schedule, Start},
};

/// The only revision without `initialize`.
const MODERN: &str = "2026-07-28";

/// The tools, by what their client vouches for.
pub(crate) const ONCE: &str = "once";
pub(crate) const KEYED: &str = "keyed";
pub(crate) const LOOKED_UP: &str = "looked_up";
pub(crate) const SAME: &str = "same";
pub(crate) const PEEK: &str = "peek";
/// The tool that looks up what [`LOOKED_UP`] did.
pub(crate) const FOUND: &str = "found";
/// The tool of the servers with receipts.
pub(crate) const ORDER: &str = "order";

/// How far a call was seen to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Refused = 0,
    Received = 1,
    /// It had its effect.
    Ran = 2,
}

/// Where a server's effects are.
pub(crate) fn effects(run: &Path, server: &str) -> PathBuf {
    run.join(server).join("effects.db")
}

/// The file that says that servers shall behave.
pub(crate) fn calm(run: &Path) -> PathBuf {
    run.join("calm")
}

/// A server, as far as it is the same over everything.
pub(crate) struct Shop {
    effects: Mutex<Connection>,
    calm: PathBuf,
    schedule: Schedule,
    calls: AtomicU64,
}

/// What is to be sent for a call, and what is to go wrong with that.
pub(crate) struct Done {
    pub(crate) fate: Fate,
    pub(crate) answer: Value,
}

impl Shop {
    /// The server `name`, whose number is the last part of its name.
    pub(crate) fn open(run: &Path, name: &str, seed: u64) -> Ending<Self> {
        let directory = run.join(name);
        std::fs::create_dir_all(&directory)?;
        let mut starts = OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join("starts"))?;
        starts.write_all(b".")?;
        let number = name.rsplit('-').next().unwrap_or_default();
        Ok(Self {
            effects: Mutex::new(open(&effects(run, name))?),
            calm: calm(run),
            schedule: Schedule {
                seed,
                server: number.parse()?,
                start: starts.metadata()?.len(),
            },
            calls: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm.exists()
    }

    pub(crate) fn begins(&self) -> Start {
        match self.is_calm() {
            true => Start::Well,
            false => self.schedule.begins(),
        }
    }

    pub(crate) fn fate(&self) -> Fate {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        match self.is_calm() {
            true => Fate::Good,
            false => self.schedule.call(number),
        }
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.schedule
    }

    fn effects(&self) -> MutexGuard<'_, Connection> {
        self.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a call asks, as far as its fate lets it.
    pub(crate) fn call(&self, message: &Value) -> Ending<Done> {
        let fate = self.fate();
        let params = &message["params"];
        let tool = params["name"].as_str().unwrap_or_default();
        let mark = params["arguments"]["mark"].as_str().unwrap_or_default();
        let answer = match fate {
            Fate::Refuse => {
                self.note(mark, tool, Seen::Refused)?;
                error(message, -32602, "not like this")
            }
            Fate::StallBefore | Fate::DieBefore => {
                self.note(mark, tool, Seen::Received)?;
                Value::Null
            }
            _ => {
                let result = self.run(tool, mark, params)?;
                match fate {
                    Fate::Fail => error(message, -32000, "something broke"),
                    _ => answered(message, result),
                }
            }
        };
        Ok(Done { fate, answer })
    }

    fn note(&self, mark: &str, tool: &str, seen: Seen) -> Ending {
        let effects = self.effects();
        let insert = "INSERT INTO log (mark, tool, seen) VALUES (?1, ?2, ?3)";
        effects.execute(insert, params![mark, tool, seen as i64])?;
        Ok(())
    }

    /// Runs a tool, and gives back its result.
    fn run(&self, tool: &str, mark: &str, params: &Value) -> Ending<Value> {
        if tool == PEEK {
            self.note(mark, tool, Seen::Received)?;
            return Ok(text("nothing new"));
        }
        let mut effects = self.effects();
        let writing = effects.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let known = |column: &str, value: &str| {
            let select = format!("SELECT 1 FROM log WHERE {column} = ?1 AND seen = 2");
            let found = writing.query_row(&select, [value], |_| Ok(()));
            found.optional().map(|found| found.is_some())
        };
        let key = params["arguments"]["key"].as_str();
        // Each server deduplicates by what it was given to tell calls apart.
        let again = match tool {
            FOUND => {
                let found = known("mark", mark)?;
                return Ok(json!({
                    "content": [], "structuredContent": { "found": found }, "isError": false,
                }));
            }
            KEYED => known("key", key.unwrap_or_default())?,
            SAME => known("mark", mark)?,
            _ => false,
        };
        let seen = if again { Seen::Received } else { Seen::Ran };
        let insert = "INSERT INTO log (mark, tool, seen, key) VALUES (?1, ?2, ?3, ?4)";
        writing.execute(insert, params![mark, tool, seen as i64, key])?;
        writing.commit()?;
        Ok(text("done"))
    }
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }], "isError": false })
}

/// The log of a server. What the kernel was given survives the process, and nothing else is asked.
pub(crate) fn open(path: &Path) -> Ending<Connection> {
    let log = Connection::open(path)?;
    log.busy_timeout(Duration::from_secs(10))?;
    log.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
         CREATE TABLE IF NOT EXISTS log
             (mark TEXT NOT NULL, tool TEXT NOT NULL, seen INTEGER NOT NULL, key TEXT);
         CREATE INDEX IF NOT EXISTS by_mark ON log (mark);
         CREATE INDEX IF NOT EXISTS by_key ON log (key);",
    )?;
    Ok(log)
}

/// The answer to any other message than a call, if it is one that has an answer.
pub(crate) fn other(message: &Value) -> Option<Value> {
    message.get("id")?;
    let params = &message["params"];
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "soak", "version": "1.0.0" },
        }),
        "server/discover" => json!({
            "supportedVersions": ["2025-11-25", MODERN],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "soak", "version": "1.0.0" },
            "ttlMs": 0, "cacheScope": "private",
        }),
        "tools/list" => {
            let member = json!({ "type": "string" });
            let tool = |name| {
                json!({ "name": name, "inputSchema": {
                    "type": "object", "properties": { "mark": member, "key": member },
                }})
            };
            let tools: Vec<_> = [ONCE, KEYED, LOOKED_UP, SAME, PEEK, FOUND].map(tool).into();
            match is_modern(message) {
                true => json!({ "tools": tools, "ttlMs": 0, "cacheScope": "private" }),
                false => json!({ "tools": tools }),
            }
        }
        "ping" => json!({}),
        _ => return Some(error(message, -32601, "no such method")),
    };
    Some(answered(message, result))
}

pub(crate) fn is_modern(message: &Value) -> bool {
    message["method"] == "server/discover"
        || message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == MODERN
}

fn answered(message: &Value, mut result: Value) -> Value {
    if is_modern(message) {
        result["resultType"] = "complete".into();
    }
    json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })
}

pub(crate) fn error(message: &Value, code: i64, text: &str) -> Value {
    let error = json!({ "code": code, "message": text });
    json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })
}
