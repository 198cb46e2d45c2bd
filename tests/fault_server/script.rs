//! The script: which event is answered by which steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// Which protocol eras the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eras {
    Both,
    Legacy,
    Modern,
}

/// One step of a rule; see the documentation of the program.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Ledger,
    LedgerOnce,
    Answer,
    Default,
    Result(Value),
    Error(Value),
    Send(Value),
    AnswerTo(Value),
    DuplicateAnswer,
    TruncateAnswer(usize),
    AnswerNoNewline,
    BadUtf8Answer,
    Exit(i32),
    Kill,
    CloseStdout,
    CloseStdin,
    Hang,
    StopReading,
    SleepMs(u64),
    WaitFile(String),
    Touch(String),
    Stderr(String),
    StderrBytes(usize),
    Raw(String),
    RawHex(Vec<u8>),
    IgnoreTerm,
    ForkChild { inherit: bool, ignore_term: bool },
    Hold(usize),
    Http(Value),
    Reset,
    Close,
    Cut,
    ShortBody { declared: usize, send: usize },
    Sse(Vec<SseStep>),
    NoAnswer202,
    ExpireSession(Value),
    StopListening,
}

/// One entry of an `sse` step.
#[derive(Debug, Clone)]
pub(crate) enum SseStep {
    Event(Value),
    Then(Step),
}

#[derive(Debug)]
enum Nth {
    Any,
    From(u64),
    In(Vec<u64>),
}

#[derive(Debug)]
struct Rule {
    on: Vec<String>,
    tool: Option<String>,
    nth: Nth,
    generation: Option<Vec<u64>>,
    params: Option<Value>,
    args: Option<Value>,
    steps: Arc<[Step]>,
    seen: AtomicU64,
}

/// What a rule is matched against.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(crate) names: &'a [&'a str],
    pub(crate) generation: u64,
    pub(crate) params: &'a Value,
}

/// The whole script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) eras: Eras,
    pub(crate) at_start: Arc<[Step]>,
    pub(crate) background: Arc<[Step]>,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_term: bool,
    pub(crate) log_messages: bool,
    pub(crate) sessions: bool,
    pub(crate) sse_answers: bool,
    pub(crate) chunked: bool,
    pub(crate) close: bool,
    pub(crate) tools: Vec<Value>,
    /// Options that only shape default answers.
    pub(crate) options: Value,
    rules: Vec<Rule>,
}

const TOP: [&str; 24] = [
    "background",
    "eras",
    "tools",
    "tools_only",
    "rules",
    "at_start",
    "ignore_eof",
    "ignore_term",
    "log_messages",
    "sessions",
    "http_answer",
    "http_chunked",
    "http_close",
    "unknown_session",
    "capabilities",
    "server_info",
    "instructions",
    "protocol_version",
    "supported_versions",
    "prompts",
    "resources",
    "resource_templates",
    "page_size",
    "ttl_ms",
];

impl Script {
    /// Reads a script: inline JSON (starts with `{`) or the path of a file.
    pub(crate) fn load(source: Option<&str>) -> Result<Self, String> {
        let text = match source.map(str::trim) {
            None | Some("") => "{}".to_owned(),
            Some(inline) if inline.starts_with('{') => inline.to_owned(),
            Some(path) => std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?,
        };
        let raw: Value = serde_json::from_str(&text).map_err(|e| format!("script: {e}"))?;
        let members = raw.as_object().ok_or("script: not an object")?;
        if let Some(name) = members.keys().find(|name| !TOP.contains(&name.as_str())) {
            return Err(format!("script: unknown option {name:?}"));
        }
        let rules = match raw.get("rules") {
            None => Vec::new(),
            Some(Value::Array(rules)) => rules.iter().map(rule).collect::<Result<_, _>>()?,
            Some(_) => return Err("script: \"rules\" is not a list".to_owned()),
        };
        Ok(Self {
            eras: match raw.get("eras").and_then(Value::as_str) {
                None if raw.get("eras").is_none() => Eras::Both,
                Some("both") => Eras::Both,
                Some("legacy") => Eras::Legacy,
                Some("modern") => Eras::Modern,
                _ => return Err("script: \"eras\" is both, legacy or modern".to_owned()),
            },
            at_start: raw.get("at_start").map_or(Ok(Arc::from([])), steps)?,
            background: raw.get("background").map_or(Ok(Arc::from([])), steps)?,
            ignore_eof: flag(&raw, "ignore_eof", false)?,
            ignore_term: flag(&raw, "ignore_term", false)?,
            log_messages: flag(&raw, "log_messages", false)?,
            sessions: flag(&raw, "sessions", true)?,
            chunked: flag(&raw, "http_chunked", false)?,
            close: flag(&raw, "http_close", false)?,
            sse_answers: match raw.get("http_answer").map(Value::as_str) {
                None | Some(Some("json")) => false,
                Some(Some("sse")) => true,
                _ => return Err("script: \"http_answer\" is json or sse".to_owned()),
            },
            tools: match raw.get("tools") {
                None => Vec::new(),
                Some(Value::Array(tools)) => tools.clone(),
                Some(_) => return Err("script: \"tools\" is not a list".to_owned()),
            },
            options: raw,
            rules,
        })
    }

    /// The steps of the first rule that matches, and its number. Counts for every rule.
    pub(crate) fn pick(&self, event: &Event<'_>) -> Option<(usize, Arc<[Step]>)> {
        let mut picked = None;
        for (index, rule) in self.rules.iter().enumerate() {
            if !rule.matches(event) {
                continue;
            }
            let count = rule.seen.fetch_add(1, Ordering::SeqCst) + 1;
            let hit = match &rule.nth {
                Nth::Any => true,
                Nth::From(first) => count >= *first,
                Nth::In(list) => list.contains(&count),
            };
            if hit && picked.is_none() {
                picked = Some((index, Arc::clone(&rule.steps)));
            }
        }
        picked
    }
}

impl Rule {
    fn matches(&self, event: &Event<'_>) -> bool {
        let empty = Value::Null;
        self.on.iter().any(|on| event.names.contains(&on.as_str()))
            && self.tool.as_deref().is_none_or(|tool| {
                event.names.contains(&"tools/call")
                    && event.params.get("name").and_then(Value::as_str) == Some(tool)
            })
            && self
                .generation
                .as_ref()
                .is_none_or(|list| list.contains(&event.generation))
            && self
                .params
                .as_ref()
                .is_none_or(|wanted| within(wanted, event.params))
            && self.args.as_ref().is_none_or(|wanted| {
                within(wanted, event.params.get("arguments").unwrap_or(&empty))
            })
    }
}

/// Whether all that is in `wanted` is also in `found`; a wanted null also matches what is absent.
fn within(wanted: &Value, found: &Value) -> bool {
    match wanted {
        Value::Object(members) => members
            .iter()
            .all(|(name, value)| within(value, found.get(name).unwrap_or(&Value::Null))),
        other => other == found,
    }
}

fn flag(raw: &Value, name: &str, otherwise: bool) -> Result<bool, String> {
    match raw.get(name) {
        None => Ok(otherwise),
        Some(Value::Bool(set)) => Ok(*set),
        Some(_) => Err(format!("script: {name:?} is not a boolean")),
    }
}

fn words(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(many) => many.iter().map(|w| w.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

fn numbers(value: &Value) -> Option<Vec<u64>> {
    match value {
        Value::Array(many) => many.iter().map(Value::as_u64).collect(),
        one => one.as_u64().map(|n| vec![n]),
    }
}

/// Whether a `generation` filter (absent, a number, a list) lets a generation pass.
pub(crate) fn in_generation(filter: Option<&Value>, generation: u64) -> bool {
    filter.is_none_or(|f| numbers(f).is_some_and(|list| list.contains(&generation)))
}

fn rule(raw: &Value) -> Result<Rule, String> {
    let bad = |what: &str| format!("script: {what} in rule {raw}");
    let members = raw.as_object().ok_or_else(|| bad("no object"))?;
    for name in members.keys() {
        if ![
            "on",
            "tool",
            "nth",
            "generation",
            "params",
            "args",
            "do",
            "note",
        ]
        .contains(&&**name)
        {
            return Err(bad(&format!("unknown member {name:?}")));
        }
    }
    let nth = match raw.get("nth") {
        None => Nth::Any,
        Some(Value::String(text)) if text == "any" => Nth::Any,
        Some(Value::String(text)) => Nth::From(
            text.strip_suffix('+')
                .and_then(|n| n.parse().ok())
                .ok_or_else(|| bad("bad nth"))?,
        ),
        Some(other) => Nth::In(numbers(other).ok_or_else(|| bad("bad nth"))?),
    };
    Ok(Rule {
        on: raw
            .get("on")
            .and_then(words)
            .ok_or_else(|| bad("no \"on\""))?,
        tool: raw.get("tool").and_then(Value::as_str).map(str::to_owned),
        nth,
        generation: raw
            .get("generation")
            .map(|g| numbers(g).ok_or_else(|| bad("bad generation")))
            .transpose()?,
        params: raw.get("params").cloned(),
        args: raw.get("args").cloned(),
        steps: steps(raw.get("do").ok_or_else(|| bad("no \"do\""))?)?,
        seen: AtomicU64::new(0),
    })
}

fn steps(raw: &Value) -> Result<Arc<[Step]>, String> {
    match raw {
        Value::Array(list) => list.iter().map(step).collect(),
        one => Ok(Arc::from([step(one)?])),
    }
}

fn step(raw: &Value) -> Result<Step, String> {
    let (name, value) = match raw {
        Value::String(name) => (name.as_str(), &Value::Null),
        Value::Object(members) if members.len() == 1 => match members.iter().next() {
            Some((name, value)) => (name.as_str(), value),
            None => return Err("script: empty step".to_owned()),
        },
        other => return Err(format!("script: not a step: {other}")),
    };
    let bad = || format!("script: bad step {raw}");
    let number = |v: &Value| v.as_u64().ok_or_else(bad);
    let size = |v: &Value| number(v).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let text = |v: &Value| v.as_str().map(str::to_owned).ok_or_else(bad);
    Ok(match name {
        "ledger" => Step::Ledger,
        "ledger_once" => Step::LedgerOnce,
        "answer" => Step::Answer,
        "default" => Step::Default,
        "result" => Step::Result(value.clone()),
        "error" => Step::Error(value.clone()),
        "send" => Step::Send(value.clone()),
        "notify" => {
            let mut message = value.clone();
            *message
                .as_object_mut()
                .ok_or_else(bad)?
                .entry("jsonrpc")
                .or_insert(json!(null)) = json!("2.0");
            Step::Send(message)
        }
        "answer_to" => Step::AnswerTo(value.clone()),
        "duplicate_answer" => Step::DuplicateAnswer,
        "truncate_answer" => Step::TruncateAnswer(size(value)?),
        "answer_no_newline" => Step::AnswerNoNewline,
        "bad_utf8_answer" => Step::BadUtf8Answer,
        "exit" => Step::Exit(if value.is_null() {
            0
        } else {
            value
                .as_i64()
                .and_then(|code| i32::try_from(code).ok())
                .ok_or_else(bad)?
        }),
        "kill" => Step::Kill,
        "close_stdout" => Step::CloseStdout,
        "close_stdin" => Step::CloseStdin,
        "hang" => Step::Hang,
        "stop_reading" => Step::StopReading,
        "sleep_ms" => Step::SleepMs(number(value)?),
        "wait_file" => Step::WaitFile(text(value)?),
        "touch" => Step::Touch(text(value)?),
        "stderr" => Step::Stderr(text(value)?),
        "stderr_bytes" => Step::StderrBytes(size(value)?),
        "raw" => Step::Raw(text(value)?),
        "raw_hex" => Step::RawHex(hex(value.as_str().ok_or_else(bad)?).ok_or_else(bad)?),
        "ignore_term" => Step::IgnoreTerm,
        "fork_child" => Step::ForkChild {
            inherit: value
                .get("inherit")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            ignore_term: value
                .get("ignore_term")
                .and_then(Value::as_bool)
                .unwrap_or(true),
        },
        "hold" => Step::Hold(size(value)?),
        "http" => Step::Http(value.as_object().map(|_| value.clone()).ok_or_else(bad)?),
        "reset" | "reset_before_headers" => Step::Reset,
        "close" => Step::Close,
        "cut" => Step::Cut,
        "short_body" => Step::ShortBody {
            declared: size(&value["declared"])?,
            send: size(&value["send"])?,
        },
        "sse" => Step::Sse(
            value
                .as_array()
                .ok_or_else(bad)?
                .iter()
                .map(|entry| {
                    let is_event = entry.as_object().is_some_and(|members| {
                        members.is_empty()
                            || ["id", "retry", "data", "event", "comment"]
                                .iter()
                                .any(|name| members.contains_key(*name))
                    });
                    if is_event {
                        Ok(SseStep::Event(entry.clone()))
                    } else {
                        step(entry).map(SseStep::Then)
                    }
                })
                .collect::<Result<_, String>>()?,
        ),
        "no_answer_202" => Step::NoAnswer202,
        "expire_session" => Step::ExpireSession(value.clone()),
        "stop_listening" => Step::StopListening,
        _ => return Err(format!("script: unknown step {raw}")),
    })
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect::<Option<_>>()?;
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}
