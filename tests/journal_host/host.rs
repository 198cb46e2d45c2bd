//! A host with a journal, for tests that kill it: it does what lines of JSON on stdin say, and tells
//! what happened in lines of JSON on stdout.
//!
//! ```text
//! journal_host '{"journal":PATH | {"url":URL,"schema":NAME,"label":LABEL,"lease_ms":N},
//!                "url":URL | "server":[PROGRAM,ARG,..], "era":"initialize"|"discover",
//!                "contracts":{TOOL:CONTRACT}, "keep_arguments":BOOL, "max_attempts":N, "tasks":BOOL,
//!                "max_in_flight":N, "no_queue":BOOL, "only_keyed":BOOL, "stop_at":POINT,
//!                "more":{NAME:URL | [PROGRAM,ARG,..]}}'
//! ```
//!
//! The journal is an SQLite file, or one in PostgreSQL that other hosts share; the first connection is called `server`, and `more` opens others. A
//! contract is a `ToolContract` as JSON. What the runtime tells is written as `{"event":WORD,..}`; each
//! order is answered by one line with its `did`, and orders run side by side. At `stop_at` (see
//! `stop.rs`) the journal tells `{"event":"stopped"}` and answers nothing from there on.
//!
//! | order | answer |
//! |---|---|
//! | `{"do":"call","tool":T,"arguments":{..},"key":K,"id":ID,"connection":NAME,"deadline_ms":N}` | `{"did":"call","operation":ID,"text":..}` or with `"outcome"` and `"error"` |
//! | `{"do":"list"}` | `{"did":"list","operations":[RECORD,..]}`, of those that are not settled |
//! | `{"do":"show","operation":ID}` | `{"did":"show","record":RECORD}` |
//! | `{"do":"resolve","operation":ID,"arguments":{..},"deadline_ms":N}` | `{"did":"resolve","by":..,"text":..}` or with `"error"` |
//! | `{"do":"await","task":HANDLE}` | `{"did":"await","text":..}` or with `"error"` |
//! | `{"do":"close"}` | `{"did":"close"}`, and the host ends in good order |
//!
//! The first line is `{"event":"open"}`. A host that cannot open its journal ends with 2, and says why
//! on stderr.

mod stop;

use std::{collections::BTreeMap, io::Write as _, path::PathBuf, sync::Arc, time::Duration};

#[cfg(feature = "postgres")]
use mcp_supervisor::journal::{PostgresSettings, PostgresStore};
use mcp_supervisor::{
    ConnectionSpec, Era, HttpSpec, Limits, Received, Resolve, StdioSpec, Supervisor, TaskAwait,
    TaskHandle, ToolCall, ToolContract, What,
    journal::{Filter, Journal, JournalSettings, SqliteStore, State},
    policy::Repeats,
    spec::{Overload, Revision},
};
use serde::Deserialize;
use serde_json::{Value, json};
use stop::{Point, Stopping};
use tokio::io::{AsyncBufReadExt as _, BufReader};

#[derive(Deserialize)]
#[serde(untagged)]
enum JournalAt {
    File(PathBuf),
    #[cfg(feature = "postgres")]
    Shared {
        url: String,
        schema: String,
        label: String,
        lease_ms: u64,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    journal: JournalAt,
    url: Option<String>,
    server: Option<Vec<String>>,
    era: String,
    #[serde(default)]
    contracts: BTreeMap<String, ToolContract>,
    #[serde(default)]
    keep_arguments: bool,
    max_attempts: Option<u32>,
    #[serde(default)]
    tasks: bool,
    max_in_flight: Option<usize>,
    /// No operation waits behind those in flight; one that comes waits before it has a place.
    #[serde(default)]
    no_queue: bool,
    stop_at: Option<Point>,
    #[serde(default)]
    only_keyed: bool,
    #[serde(default)]
    more: BTreeMap<String, Place>,
}

/// Where a server is.
#[derive(Deserialize)]
#[serde(untagged)]
enum Place {
    Url(String),
    Program(Vec<String>),
}

#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Order {
    Call {
        tool: String,
        arguments: Value,
        key: Option<String>,
        id: Option<String>,
        connection: Option<String>,
        deadline_ms: Option<u64>,
    },
    List {},
    Show {
        operation: String,
    },
    Resolve {
        operation: String,
        arguments: Option<Value>,
        deadline_ms: Option<u64>,
    },
    Await {
        task: TaskHandle,
    },
    Close {},
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

struct Host {
    supervisor: Supervisor,
    journal: Journal,
}

/// One line is one write, so that lines of side by side do not mix.
fn tell(line: &Value) {
    let mut out = std::io::stdout().lock();
    let told = writeln!(out, "{line}").and_then(|()| out.flush());
    if told.is_err() {
        // Nobody reads any more: the test is over.
        std::process::exit(1);
    }
}

/// The servers, by the names of their connections.
fn places(options: &mut Options) -> Result<BTreeMap<String, Place>, Failed> {
    let first = match (options.url.take(), options.server.take()) {
        (Some(url), None) => Place::Url(url),
        (None, Some(program)) => Place::Program(program),
        _ => return Err("one of url and server".into()),
    };
    let mut places = std::mem::take(&mut options.more);
    places.insert("server".to_owned(), first);
    Ok(places)
}

fn spec(options: &Options, place: Place) -> Result<ConnectionSpec, Failed> {
    let era = match options.era.as_str() {
        "initialize" => Era::Initialize(Revision::V2025_11_25),
        "discover" => Era::Discover,
        other => return Err(format!("no era {other:?}").into()),
    };
    let mut limits = Limits::default();
    limits.max_in_flight = options.max_in_flight.unwrap_or(limits.max_in_flight);
    if options.no_queue {
        (limits.max_queued, limits.overload) = (0, Overload::Wait);
    }
    let mut spec = match place {
        Place::Url(url) => ConnectionSpec::from(HttpSpec::new(url)),
        Place::Program(words) => {
            let (program, arguments) = words.split_first().ok_or("no program")?;
            let stdio = StdioSpec::new(program);
            ConnectionSpec::from(arguments.iter().fold(stdio, StdioSpec::arg))
        }
    };
    spec = spec.era(era).limits(limits);
    for (tool, contract) in &options.contracts {
        spec = spec.contract(tool, contract.clone());
    }
    if let Some(max_attempts) = options.max_attempts {
        spec = spec.repeats(Repeats {
            max_attempts,
            ..Repeats::default()
        });
    }
    Ok(match options.tasks {
        true => spec.tasks(),
        false => spec,
    })
}

impl Host {
    async fn open(mut options: Options) -> Result<Self, Failed> {
        let settings = JournalSettings {
            keep_arguments: options.keep_arguments,
            only_keyed: options.only_keyed,
            ..JournalSettings::default()
        };
        let journal = match (&options.journal, options.stop_at) {
            (JournalAt::File(path), Some(at)) => {
                Journal::new(Stopping::at(at, SqliteStore::open(path).await?), settings)
            }
            (JournalAt::File(path), None) => Journal::new(SqliteStore::open(path).await?, settings),
            #[cfg(feature = "postgres")]
            (JournalAt::Shared { .. }, Some(_)) => return Err("only a file stops".into()),
            #[cfg(feature = "postgres")]
            (
                JournalAt::Shared {
                    url,
                    schema,
                    label,
                    lease_ms,
                },
                None,
            ) => {
                let mut shared = PostgresSettings::default();
                (shared.schema, shared.label) = (schema.clone(), label.clone());
                shared.lease = Duration::from_millis(*lease_ms);
                shared.margin = shared.lease / 5;
                Journal::new(PostgresStore::connect_url(url, shared).await?, settings)
            }
        };
        let builder = Supervisor::builder().journal(journal.clone());
        let supervisor = builder.start().await?;
        let mut events = supervisor.events();
        tokio::spawn(async move {
            while let Some(Received::Event(event)) = events.next().await {
                if let Some(line) = shown(&event.what) {
                    tell(&line);
                }
            }
        });
        for (name, place) in places(&mut options)? {
            supervisor.open(&name, spec(&options, place)?).await?;
        }
        Ok(Self {
            supervisor,
            journal,
        })
    }

    async fn obey(&self, order: Order) -> Result<Value, Failed> {
        let ms = Duration::from_millis;
        let open = |name: &str| self.supervisor.connection(name).ok_or("it is closed");
        Ok(match order {
            Order::Call {
                tool,
                arguments,
                key,
                id,
                connection,
                deadline_ms,
            } => {
                let mut call = ToolCall::new(tool, arguments);
                if let Some(id) = id {
                    call = call.operation_id(id.parse()?);
                }
                if let Some(key) = key {
                    call = call.idempotency_key(key.parse()?);
                }
                if let Some(deadline) = deadline_ms {
                    call = call.deadline(ms(deadline));
                }
                let connection = open(connection.as_deref().unwrap_or("server"))?;
                match connection.call_tool(call).await {
                    Ok(answer) => json!({"did": "call", "operation": answer.operation(),
                        "text": answer.text(), "task": answer.task(), "attempts": answer.attempts(),
                        "structured": answer.structured(), "replayed": answer.replayed()}),
                    Err(error) => json!({"did": "call", "operation": error.operation(),
                        "outcome": error.outcome(), "error": error.to_string()}),
                }
            }
            Order::List {} => {
                let mut filter = Filter::default();
                let settled = |state: &State| state.is_settled();
                filter.states = Some(State::ALL.into_iter().filter(|s| !settled(s)).collect());
                json!({"did": "list", "operations": self.journal.list(&filter).await?})
            }
            Order::Show { operation } => {
                json!({"did": "show", "record": self.journal.show(operation.parse()?).await?})
            }
            Order::Resolve {
                operation,
                arguments,
                deadline_ms,
            } => {
                let mut order = Resolve::new(operation.parse()?);
                if let Some(arguments) = arguments {
                    order = order.with_arguments(arguments);
                }
                if let Some(deadline) = deadline_ms {
                    order = order.deadline(ms(deadline));
                }
                match self.supervisor.resolve(order).await {
                    Ok(done) => json!({"did": "resolve", "by": done.by,
                        "attempts": done.answer().map(|a| a.attempts()),
                        "text": done.answer().map(|a| a.text()),
                        "structured": done.answer().and_then(|a| a.structured().cloned())}),
                    Err(error) => json!({"did": "resolve", "error": error.to_string()}),
                }
            }
            Order::Await { task } => {
                match open("server")?.await_task(TaskAwait::new(&task)).await {
                    Ok(answer) => json!({"did": "await", "text": answer.text()}),
                    Err(error) => json!({"did": "await", "error": error.to_string()}),
                }
            }
            Order::Close {} => json!({"did": "close"}),
        })
    }
}

/// What of the events a test waits for.
fn shown(what: &What) -> Option<Value> {
    Some(match what {
        What::AttemptStarted {
            operation,
            kind,
            number,
            ..
        } => {
            json!({"event": "attempt_started", "operation": operation, "method": kind.method(),
            "number": number})
        }
        What::OutcomeUnknown {
            operation, cause, ..
        } => json!({"event": "outcome_unknown", "operation": operation, "cause": cause}),
        What::LookedUp { operation, found } => {
            json!({"event": "looked_up", "operation": operation, "found": found})
        }
        What::Resolved { operation, by } => {
            json!({"event": "resolved", "operation": operation, "by": by})
        }
        _ => return None,
    })
}

async fn run(options: Options) -> Result<(), Failed> {
    let host = Arc::new(Host::open(options).await?);
    tell(&json!({"event": "open"}));
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let order: Order = serde_json::from_str(&line)?;
        let last = matches!(order, Order::Close {});
        let host = Arc::clone(&host);
        let work = tokio::spawn(async move {
            let told = host.obey(order).await;
            tell(&told.unwrap_or_else(|error| json!({"did": "fail", "error": error.to_string()})));
        });
        if last {
            work.await?;
            break;
        }
    }
    if let Some(host) = Arc::into_inner(host) {
        let _ = host.supervisor.shutdown(Duration::from_secs(2)).await;
        host.journal.close().await?;
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> std::process::ExitCode {
    let options = std::env::args().nth(1).ok_or("no options".to_owned());
    let options = options.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()));
    let ran = match options {
        Ok(options) => run(options).await.map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    match ran {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("journal_host: {error}");
            std::process::ExitCode::from(2)
        }
    }
}
