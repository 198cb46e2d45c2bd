//! A scripted MCP server that can fail at any named point, for the tests of this crate.
//!
//! ```text
//! fault_server stdio [--dir DIR] [--script FILE_OR_INLINE_JSON] [anything else is ignored]
//! fault_server http [--addr 127.0.0.1:0] [--dir DIR] [--script FILE_OR_INLINE_JSON]
//! ```
//! `FAULT_DIR` and `FAULT_SCRIPT` are the fall-backs of `--dir` and `--script`; without a directory
//! nothing is recorded and every generation is 1. A script that does not parse (also an unknown
//! step or option) ends the process with 2 and the reason on stderr.
//!
//! It speaks both eras at once: `initialize` (the offered version is echoed; over HTTP a session id
//! is assigned and demanded) and `server/discover` with self-contained requests of 2026-07-28 (known
//! by `_meta` or, over HTTP, by `MCP-Protocol-Version`; no session). Messages are handled side by
//! side, one task each; one frame is one write.
//!
//! # Files in the directory
//!
//! | file | content |
//! |---|---|
//! | `ledger` | one line per tool call, written before its effect: `generation request-id tool sha256-of-arguments key-or-dash`. The hash is of compact JSON with sorted members; absent arguments are `{}` |
//! | `wire` | one line per received message, before anything else: `generation method id`. Over HTTP more columns: the verb, the session id or `-`, and `Last-Event-ID` if it was sent; GET and DELETE have the method `-`. The id of `notifications/cancelled` is its `requestId`. The method is `response` for a client's answer, `invalid` for what is no JSON, `disconnect` when an HTTP client went away before its answer was complete |
//! | `pids/PID` | one per process start (it is there after the signal handlers), and one per `fork_child` (content `child`) |
//! | `generations/N`, `sessions/N` | one per process start and per HTTP session, content the pid |
//! | `addr` | HTTP: the address, renamed into place once it listens (also printed on stdout) |
//! | `connects` | HTTP: one line per accepted TCP connection |
//! | `signals` | `PID TERM`, `PID INT`, `PID EOF`: what was received and (TERM, EOF) ignored; SIGINT ends the process with 130 |
//! | `messages` | with `log_messages`: one JSON line per message, over HTTP with its headers |
//!
//! Blanks inside a column become `_`. The generation is, on stdio and for requests of 2026-07-28,
//! the number of the process start in this directory. For older revisions over HTTP it is the
//! number of the session (for `initialize`: the number that it would get; 0 for an unknown session).
//!
//! # The script
//!
//! A JSON object. All members are optional:
//!
//! | member | meaning |
//! |---|---|
//! | `rules` | list of rules, see below |
//! | `at_start` | steps before anything is read or listened to, in every generation (a rule on `start` is for one generation) |
//! | `background` | steps that run beside everything from the start: `[{"wait_file":"die"},"kill"]` |
//! | `eras` | `both` (default), `legacy` (`server/discover` gets -32601), `modern` (`initialize` gets -32601) |
//! | `ignore_eof`, `ignore_term` | `true`: goes on after end of file on stdin, after SIGTERM |
//! | `tools` | definitions merged by `name` into the built-in ones; own members: `"remove":true`, `"generation":N` or list (only then), `"like":"charge"` (behaves like that built-in tool; otherwise new tools behave like `echo`), `"if_file":NAME`, `"unless_file":NAME` (only while that file is in the directory, or is not) |
//! | `tools_only` | `true`: no built-in tools |
//! | `page_size`, `ttl_ms` | every list comes in pages of so many entries, whose cursors are `2`, `3`, ..; every page carries that `ttlMs` (default 0; only in 2026-07-28) |
//! | `prompts`, `resources`, `resource_templates`, `capabilities`, `server_info`, `instructions`, `protocol_version`, `supported_versions` | replace that part of the default answers |
//! | `sessions` | `false`: HTTP without session ids; the generation is then the process start |
//! | `unknown_session` | HTTP answer (see `http`) to a session id that this process does not know, as after a restart; default an empty 404 |
//! | `http_answer` | `json` (default) or `sse` |
//! | `http_chunked` | `true`: JSON bodies are chunked |
//! | `http_close` | `true`: each answer closes its connection, so that no client keeps one that a restart breaks |
//! | `log_messages` | `true`: see `messages` above |
//!
//! ## Rules
//!
//! `{"on":EVENT,"tool":NAME,"args":{..},"params":{..},"generation":N,"nth":N,"do":[STEP,..]}`; only `on`
//! and `do` are needed. The first rule that matches wins; without one the default happens.
//!
//! - `on`: one name or a list of: a method; `*` (every JSON-RPC message); `request` (every message
//!   with an id); `response`; `POST`, `GET`, `DELETE`; `resume` (a GET with `Last-Event-ID`);
//!   `connect` (a TCP connection was accepted; on stdio the same as `start`); `start`.
//! - `args`, `params`: members that the arguments or params must have (a subset; null also matches absence).
//! - `generation`: a number or a list. `nth`: a number, a list, `"3+"` or `"any"`: counts, per rule and
//!   process, the events that match all the rest of the rule, whichever rule wins. Requests
//!   that are refused for their session reach no rule and are not counted.
//!
//! The default for a known tool is `["ledger","answer"]`, for all else `"answer"` (GET: 405, DELETE: 200
//! and the session is gone, notifications: nothing, over HTTP 202). A rule replaces it whole: with
//! `"do":["answer"]` there is no ledger line. A request that no step answers is never answered; over
//! HTTP it is held open until the client goes.
//!
//! ## Steps, in order
//!
//! | step | what it does |
//! |---|---|
//! | `"ledger"`, `"answer"`, `"default"` | the ledger line of this call; the default answer (`slow` and `progress` take their time here); what would happen without a rule |
//! | `"ledger_once"` | the ledger line of this call, unless there is one of this tool with its `key`: a server that deduplicates |
//! | `{"result":V}`, `{"error":{"code":..,"message":..,"data":..}}` | answers that (in 2026-07-28 `resultType` is added if absent). An answer ends the event stream that it is in |
//! | `{"notify":{"method":..,"params":..}}`, `{"send":MESSAGE}` | sends a message; over HTTP as an event, so that the answer becomes an event stream |
//! | `{"answer_to":ID}`, `{"answer_to":"last_gen"}`, `{"answer_to":"last_call"}` | answers another id; the last `tools/call` id of the generation before, or of this one |
//! | `"duplicate_answer"` | the default answer twice |
//! | `{"truncate_answer":BYTES}` | the first bytes of the default answer (over HTTP with its whole `Content-Length`) |
//! | `"answer_no_newline"`, `"bad_utf8_answer"` | the default answer without its newline; with `ff fe` inside its last string |
//! | `{"raw":TEXT}`, `{"raw_hex":"ff fe"}` | bytes as they are, in one write |
//! | `"hang"` | never answers and ends the list; other messages are served. At `start`: serves nothing, ever |
//! | `{"hold":N}` | waits until N calls of this rule wait here; then they go on one after the other, last one first |
//! | `{"sleep_ms":N}`, `{"wait_file":NAME}`, `{"touch":NAME}` | waits; waits for a file; makes an empty file (in the directory) |
//! | `{"stderr":TEXT}`, `{"stderr_bytes":N}` | writes there; N bytes without a newline |
//! | `{"exit":CODE}`, `"kill"` | ends the process; by SIGKILL. Frames handed over before are written first |
//! | `"close_stdout"`, `"close_stdin"`, `"stop_reading"` | really closes the pipe and goes on; never reads stdin again (what these follow runs before the next message is read) |
//! | `"ignore_term"` | as the option, from now on |
//! | `{"fork_child":{"inherit":false,"ignore_term":true}}` | starts a child in the same process group that sleeps; `inherit`: it keeps stdout and stderr open |
//! | `{"expire_session":true}` | HTTP: later requests with this session id get an empty 404. With `status`, `headers`, `body`, `content_type` that answer instead; `"all":true`: every session |
//! | `{"http":{"status":N,"headers":{..},"body":..,"content_type":..}}` | a whole HTTP answer. A header may be a list; `body` is text, JSON or `"$answer"`; also `"chunked":true`, `"close":true` (`Connection: close`), `"session":true` (answer to `initialize` that assigns a session) |
//! | `"no_answer_202"` | 202 to a request |
//! | `{"short_body":{"declared":N,"send":M}}` | `Content-Length: N`, then M bytes (of the default answer, padded with blanks), then the next steps; at the end FIN |
//! | `"reset"` (also `"reset_before_headers"`) | RST (30 ms later if something was written, so that it arrives) |
//! | `"close"`, `"cut"` | FIN; `close` ends an open event stream properly before, `cut` does not |
//! | `{"sse":[ENTRY,..]}` | opens an event stream. An entry is an event (`{"id":..,"event":..,"retry":..,"data":..,"comment":..}`, `data` JSON, text as it is, or `"answer"`) or any step (`"close"`, `"cut"`, `"reset"`, `"hang"`, `{"sleep_ms":..}`, ..). At the end of all steps an open stream is ended properly, the connection stays |
//! | `"stop_listening"` | closes the listening socket; open connections stay |
//!
//! Over HTTP the steps after a complete answer go on; they do not delay the next request on that
//! connection. Steps also go on when the client has gone.
//!
//! In values, a string that is exactly `$id`, `$generation`, `$session`, `$pid`, `$token` (the progress
//! token) or `$arguments` is replaced by that JSON value; in any text `${id}` and so on by its JSON text
//! (`${session}` bare).
//!
//! # Tools
//!
//! `charge` (text `charged`, structured `{"charged":true,"generation":G}`), `echo`, `lookup` (`key`; structured
//! `{"found":..}`, out of the ledger, in any generation), `slow` (`ms`), `big` (`bytes` of text, or
//! `frame_bytes` of the whole frame without its newline), `progress` (`every_ms`, `count`), and, callable
//! but not listed, `env` (arguments, environment, directory, pid of the process). A call of an unknown
//! tool gets -32602 and no ledger line. `x/echo` returns its params.

mod engine;
mod http;
mod ledger;
mod protocol;
mod script;
mod stdio;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::Value;

use crate::engine::{Context, Out, Server};
use crate::ledger::Dir;
use crate::script::{Event, Script};
use crate::stdio::StdioOut;

const USAGE: &str =
    "fault_server stdio|http [--addr HOST:PORT] [--dir DIR] [--script FILE_OR_JSON]";

struct Options {
    http: bool,
    addr: String,
    dir: Option<PathBuf>,
    script: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut words = std::env::args().skip(1);
    let http = match words.next().as_deref() {
        Some("stdio") => false,
        Some("http") => true,
        _ => return Err(USAGE.to_owned()),
    };
    let mut options = Options {
        http,
        addr: "127.0.0.1:0".to_owned(),
        dir: std::env::var_os("FAULT_DIR").map(PathBuf::from),
        script: std::env::var("FAULT_SCRIPT").ok(),
    };
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .ok_or_else(|| format!("{word}: no value; {USAGE}"))
        };
        match word.as_str() {
            "--addr" => options.addr = value()?,
            "--dir" => options.dir = Some(PathBuf::from(value()?)),
            "--script" => options.script = Some(value()?),
            // Anything else is for the host's own tests: it shows in the `env` tool.
            _ => {}
        }
    }
    Ok(options)
}

async fn run(options: Options, script: Script) -> std::io::Result<()> {
    let dir = Dir::open(options.dir)?;
    let pid = std::process::id();
    let start = dir.claim("generations", &pid.to_string());
    let out = match options.http {
        true => None,
        false => Some(StdioOut::start()?),
    };
    let server = Arc::new(Server::new(script, dir, start, out.clone()));
    server.watch_int();
    if server.script.ignore_term {
        server.ignore_term();
    }
    // Whoever sees this file may rely on the signal handlers.
    server.dir.pid(pid, &format!("generation {start}"));

    let at_start = Arc::clone(&server.script.at_start);
    begin(&server, "at_start", usize::MAX, &at_start, out.clone()).await;
    let names: &[&str] = if options.http {
        &["start"]
    } else {
        &["start", "connect"]
    };
    let event = Event {
        names,
        generation: start,
        params: &Value::Null,
    };
    if let Some((rule, steps)) = server.script.pick(&event) {
        begin(&server, "start", rule, &steps, out.clone()).await;
    }
    if !server.script.background.is_empty() {
        let (server, out) = (Arc::clone(&server), out.clone());
        tokio::spawn(async move {
            let steps = Arc::clone(&server.script.background);
            begin(&server, "background", usize::MAX, &steps, out).await;
        });
    }
    match out {
        Some(out) => stdio::serve(server, out).await,
        None => http::serve(server, &options.addr).await,
    }
}

async fn begin(
    server: &Arc<Server>,
    name: &str,
    rule: usize,
    steps: &[script::Step],
    out: Option<StdioOut>,
) {
    let out = out.map_or(Out::Nowhere, Out::Stdio);
    let mut context = Context::event(server, name, server.start, out);
    context.rule = rule;
    context.run(steps).await;
}

fn main() -> ExitCode {
    let loaded = options().and_then(|options| {
        let script = Script::load(options.script.as_deref())?;
        Ok((options, script))
    });
    let (options, script) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("fault_server: {error}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let ended = runtime.and_then(|runtime| runtime.block_on(run(options, script)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fault_server: {error}");
            ExitCode::from(1)
        }
    }
}
