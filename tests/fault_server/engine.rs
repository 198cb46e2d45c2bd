//! Runs the steps of a rule against one received message.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot, watch};

use crate::http::HttpOut;
use crate::ledger::{Dir, word};
use crate::protocol::{self, MODERN, Question, arguments, behaviour, response, tool_name};
use crate::script::{Event, Script, SseStep, Step};
use crate::stdio::StdioOut;

/// One HTTP session of the older era.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) generation: u64,
    /// What later requests with this id are answered, once it is expired.
    pub(crate) expired: Option<Value>,
}

type Waiter = oneshot::Sender<oneshot::Sender<()>>;

/// What all messages of this process share.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) script: Script,
    pub(crate) dir: Dir,
    /// The number of this process start.
    pub(crate) start: u64,
    pub(crate) sessions: Mutex<HashMap<String, Session>>,
    pub(crate) session_count: AtomicU64,
    pub(crate) stop_reading: watch::Sender<bool>,
    pub(crate) close_stdin: watch::Sender<bool>,
    pub(crate) stop_listening: Notify,
    pub(crate) stdio: Option<StdioOut>,
    holds: Mutex<HashMap<usize, Vec<Waiter>>>,
    once: Mutex<()>,
    term_ignored: AtomicBool,
}

/// Locks; a poisoned lock is as good as another one here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(crate) fn new(script: Script, dir: Dir, start: u64, stdio: Option<StdioOut>) -> Self {
        let session_count = AtomicU64::new(dir.claimed("sessions"));
        Self {
            script,
            dir,
            start,
            sessions: Mutex::default(),
            session_count,
            stop_reading: watch::Sender::new(false),
            close_stdin: watch::Sender::new(false),
            stop_listening: Notify::new(),
            stdio,
            holds: Mutex::default(),
            once: Mutex::default(),
            term_ignored: AtomicBool::new(false),
        }
    }

    /// From now on SIGTERM is only written down, in `signals`.
    pub(crate) fn ignore_term(self: &Arc<Self>) {
        if self.term_ignored.swap(true, Ordering::SeqCst) {
            return;
        }
        match signal(SignalKind::terminate()) {
            Ok(mut terms) => {
                let server = Arc::clone(self);
                tokio::spawn(async move {
                    while terms.recv().await.is_some() {
                        server
                            .dir
                            .line("signals", &format!("{} TERM", std::process::id()));
                    }
                });
            }
            Err(error) => eprintln!("fault_server: SIGTERM: {error}"),
        }
    }

    /// SIGINT is written down in `signals` and ends the process with 130.
    pub(crate) fn watch_int(self: &Arc<Self>) {
        if let Ok(mut ints) = signal(SignalKind::interrupt()) {
            let server = Arc::clone(self);
            tokio::spawn(async move {
                if ints.recv().await.is_some() {
                    server
                        .dir
                        .line("signals", &format!("{} INT", std::process::id()));
                    std::process::exit(130);
                }
            });
        }
    }

    /// Lets frames that were handed over before go out, within reason.
    pub(crate) async fn flush(&self) {
        if let Some(out) = &self.stdio {
            let _ = tokio::time::timeout(Duration::from_millis(500), out.flush()).await;
        }
    }
}

/// Where a message came from, and where its answer goes.
#[derive(Debug)]
pub(crate) enum Out {
    Nowhere,
    Stdio(StdioOut),
    Http(HttpOut),
}

/// One message (or event) with what its steps need.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) server: Arc<Server>,
    pub(crate) rule: usize,
    pub(crate) generation: u64,
    pub(crate) modern: bool,
    /// The method, or for an HTTP GET or DELETE that name, or `start` or `connect`.
    pub(crate) method: String,
    pub(crate) id: Option<Value>,
    pub(crate) params: Value,
    pub(crate) session: Option<String>,
    pub(crate) out: Out,
    held: Option<oneshot::Sender<()>>,
}

enum Flow {
    Next,
    Stop,
}

/// What happens to a message that no rule is about.
pub(crate) fn default_steps(
    server: &Server,
    generation: u64,
    method: &str,
    params: &Value,
) -> Vec<Step> {
    if method == "tools/call" && behaviour(server, generation, tool_name(params)).is_some() {
        vec![Step::Ledger, Step::Answer]
    } else {
        vec![Step::Answer]
    }
}

/// The names under which rules know a JSON-RPC message, beside its method.
pub(crate) fn pick(
    server: &Server,
    generation: u64,
    method: &str,
    is_request: bool,
    params: &Value,
    http: Option<&str>,
) -> Option<(usize, Arc<[Step]>)> {
    let mut names = vec![method, "*"];
    if is_request {
        names.push("request");
    }
    names.extend(http);
    server.script.pick(&Event {
        names: &names,
        generation,
        params,
    })
}

impl Context {
    pub(crate) fn event(server: &Arc<Server>, method: &str, generation: u64, out: Out) -> Self {
        Self {
            server: Arc::clone(server),
            rule: usize::MAX,
            generation,
            modern: false,
            method: method.to_owned(),
            id: None,
            params: Value::Null,
            session: None,
            out,
            held: None,
        }
    }

    pub(crate) fn message(
        server: &Arc<Server>,
        generation: u64,
        modern: bool,
        message: &mut Value,
        out: Out,
    ) -> Self {
        let mut new = Self::event(
            server,
            message["method"].as_str().unwrap_or("response"),
            generation,
            out,
        );
        new.modern = modern;
        new.id = message
            .get("id")
            .filter(|_| message.get("method").is_some())
            .cloned();
        new.params = message
            .get_mut("params")
            .map(Value::take)
            .unwrap_or(Value::Null);
        new
    }

    fn question(&self) -> Question<'_> {
        Question {
            server: &self.server,
            generation: self.generation,
            modern: self.modern,
            method: &self.method,
            id: self.id.as_ref().unwrap_or(&Value::Null),
            params: &self.params,
        }
    }

    /// The default answer as a frame, without its newline.
    pub(crate) fn frame(&self) -> String {
        response(
            self.id.as_ref().unwrap_or(&Value::Null),
            self.question().answer(),
        )
        .to_string()
    }

    /// Writes the ledger line of this call.
    pub(crate) fn ledger(&self) {
        self.server.dir.ledger(
            self.generation,
            self.id.as_ref().unwrap_or(&Value::Null),
            tool_name(&self.params),
            &arguments(&self.params),
        );
    }

    /// As the ledger of a server that deduplicates: one line per tool and key.
    fn ledger_once(&self) {
        let given = arguments(&self.params);
        let tool = tool_name(&self.params).to_owned();
        let _one_at_a_time = lock(&self.server.once);
        if given.get("key").is_none() || self.server.dir.find(&[tool], &given["key"]).is_none() {
            self.ledger();
        }
    }

    /// What the built-in tool of this call takes its time with.
    fn pace(&self) -> Option<String> {
        if self.method != "tools/call" {
            return None;
        }
        behaviour(&self.server, self.generation, tool_name(&self.params))
            .filter(|kind| kind == "slow" || kind == "progress")
    }

    /// Whether the default answer is there at once.
    pub(crate) fn is_quick(&self) -> bool {
        self.pace().is_none()
    }

    /// A client that goes away from now on is no news.
    fn mark_answered(&self) {
        if let Out::Http(out) = &self.out {
            out.answered.store(true, Ordering::SeqCst);
        }
    }

    async fn work(&mut self) {
        let Some(kind) = self.pace() else { return };
        let number = |value: &Value, otherwise: u64| value.as_u64().unwrap_or(otherwise);
        let given = arguments(&self.params);
        if kind == "slow" {
            tokio::time::sleep(Duration::from_millis(number(&given["ms"], 0))).await;
            return;
        }
        let count = number(&given["count"], 0);
        let token = self.params["_meta"]["progressToken"].clone();
        for done in 1..=count {
            tokio::time::sleep(Duration::from_millis(number(&given["every_ms"], 0))).await;
            if !token.is_null() {
                let note = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {
                    "progressToken": token, "progress": done, "total": count,
                    "message": format!("{done} of {count}"),
                }});
                self.send(&note).await;
            }
        }
    }

    /// Runs the steps, then makes sure that what must be answered is.
    pub(crate) async fn run(&mut self, steps: &[Step]) {
        for step in steps {
            if let Flow::Stop = Box::pin(self.step(step)).await {
                return;
            }
        }
        self.finish().await;
    }

    /// Ends an open event stream; a request that the script never answered is held open.
    async fn finish(&mut self) {
        let is_request = self.id.is_some() || matches!(self.method.as_str(), "GET" | "DELETE");
        let Out::Http(out) = &mut self.out else {
            return;
        };
        if out.is_open_stream() {
            out.sse_end().await;
        } else if out.is_fresh() && self.method != "connect" {
            if is_request {
                out.gone().await;
            } else {
                out.respond(202, &[], None, b"").await;
            }
        }
    }

    async fn step(&mut self, step: &Step) -> Flow {
        match step {
            Step::Ledger => self.ledger(),
            Step::LedgerOnce => self.ledger_once(),
            Step::Default => {
                let steps =
                    default_steps(&self.server, self.generation, &self.method, &self.params);
                for step in &steps {
                    Box::pin(self.step(step)).await;
                }
            }
            Step::Answer => self.answer_default().await,
            Step::Result(result) => {
                let result = self.question().dress(self.fill(result));
                self.assign_session();
                self.answer(response(
                    self.id.as_ref().unwrap_or(&Value::Null),
                    Ok(result),
                ))
                .await;
            }
            Step::Error(error) => {
                let error = self.fill(error);
                self.answer(response(
                    self.id.as_ref().unwrap_or(&Value::Null),
                    Err(error),
                ))
                .await;
            }
            Step::Send(message) => {
                let message = self.fill(message);
                self.send(&message).await;
            }
            Step::AnswerTo(id) => self.answer_to(id).await,
            Step::DuplicateAnswer => {
                self.work().await;
                let frame = self.frame();
                self.send_text(&frame).await;
                self.send_text(&frame).await;
                self.mark_answered();
            }
            Step::TruncateAnswer(bytes) => self.truncate(*bytes).await,
            Step::AnswerNoNewline => {
                self.work().await;
                if let Out::Stdio(out) = &self.out {
                    out.write(self.frame().into_bytes()).await;
                } else {
                    self.answer_default().await;
                }
            }
            Step::BadUtf8Answer => self.bad_utf8().await,
            Step::Exit(code) => {
                self.server.flush().await;
                std::process::exit(*code);
            }
            Step::Kill => {
                self.server.flush().await;
                kill_self().await;
            }
            Step::CloseStdout => {
                if let Some(out) = &self.server.stdio {
                    out.close().await;
                }
            }
            Step::CloseStdin => {
                self.server.close_stdin.send_replace(true);
            }
            Step::Hang => {
                if let Out::Http(out) = &mut self.out {
                    out.gone().await;
                } else if matches!(self.method.as_str(), "start" | "at_start") {
                    std::future::pending::<()>().await;
                }
                return Flow::Stop;
            }
            Step::StopReading => {
                self.server.stop_reading.send_replace(true);
            }
            Step::SleepMs(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Step::WaitFile(name) => {
                let path = self.server.dir.path(&self.fill_text(name));
                while !path.exists() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            Step::Touch(name) => {
                let name = self.fill_text(name);
                if let Err(error) = std::fs::write(self.server.dir.path(&name), b"") {
                    eprintln!("fault_server: touch {name}: {error}");
                }
            }
            Step::Stderr(text) => to_stderr(self.fill_text(text).into_bytes()).await,
            Step::StderrBytes(count) => to_stderr(vec![b'e'; *count]).await,
            Step::Raw(text) => self.raw(self.fill_text(text).into_bytes()).await,
            Step::RawHex(bytes) => self.raw(bytes.clone()).await,
            Step::IgnoreTerm => self.server.ignore_term(),
            Step::ForkChild {
                inherit,
                ignore_term,
            } => self.fork(*inherit, *ignore_term),
            Step::Hold(count) => self.hold(*count).await,
            Step::StopListening => self.server.stop_listening.notify_one(),
            Step::ExpireSession(how) => self.expire(how),
            Step::Http(answer) => self.http(answer).await,
            Step::Sse(entries) => {
                self.sse_begin().await;
                for entry in entries {
                    match entry {
                        SseStep::Event(event) => self.sse_event(event).await,
                        SseStep::Then(step) => {
                            if let Flow::Stop = Box::pin(self.step(step)).await {
                                return Flow::Stop;
                            }
                        }
                    }
                }
            }
            Step::Reset | Step::Close | Step::Cut | Step::NoAnswer202 | Step::ShortBody { .. } => {
                self.mangle(step).await;
            }
        }
        Flow::Next
    }

    /// The steps that only HTTP has and that need nothing but the connection.
    async fn mangle(&mut self, step: &Step) {
        let frame = match step {
            Step::ShortBody { .. } => self.frame(),
            _ => String::new(),
        };
        let Out::Http(out) = &mut self.out else {
            return;
        };
        match step {
            Step::Reset => out.reset().await,
            Step::Cut => out.close().await,
            Step::Close => {
                if out.is_open_stream() {
                    out.sse_end().await;
                }
                out.close().await;
            }
            Step::NoAnswer202 => {
                out.respond(202, &[], None, b"").await;
            }
            Step::ShortBody { declared, send } => {
                let mut body = frame.into_bytes();
                body.resize(*send, b' ');
                out.partial(*declared, &body).await;
            }
            _ => {}
        }
    }

    async fn answer_default(&mut self) {
        self.work().await;
        match self.method.as_str() {
            "GET" => {
                if let Out::Http(out) = &mut self.out {
                    let allow = [("Allow".to_owned(), "POST, DELETE".to_owned())];
                    out.respond(405, &allow, None, b"").await;
                }
            }
            "DELETE" => {
                if let Some(id) = &self.session {
                    lock(&self.server.sessions).remove(id);
                }
                if let Out::Http(out) = &mut self.out {
                    out.respond(200, &[], None, b"").await;
                }
            }
            _ if self.id.is_none() => {
                if let Out::Http(out) = &mut self.out
                    && out.is_fresh()
                {
                    out.respond(202, &[], None, b"").await;
                }
            }
            _ => {
                self.assign_session();
                let frame = self.frame();
                self.answer_text(frame).await;
            }
        }
    }

    /// An accepted `initialize` over HTTP gets its session here.
    fn assign_session(&mut self) {
        let eras = self.server.script.eras;
        if self.method != "initialize"
            || self.session.is_some()
            || !self.server.script.sessions
            || eras == crate::script::Eras::Modern
        {
            return;
        }
        let Out::Http(out) = &mut self.out else {
            return;
        };
        let ordinal = self
            .server
            .dir
            .claim("sessions", &std::process::id().to_string());
        let ordinal = match self
            .server
            .session_count
            .fetch_max(ordinal, Ordering::SeqCst)
        {
            // Without a directory every claim is 1.
            before if before >= ordinal => {
                self.server.session_count.fetch_add(1, Ordering::SeqCst) + 1
            }
            _ => ordinal,
        };
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |passed| passed.subsec_nanos());
        let id = format!("session-{ordinal}-{}-{nanos}", std::process::id());
        lock(&self.server.sessions).insert(
            id.clone(),
            Session {
                generation: ordinal,
                expired: None,
            },
        );
        out.session_header = Some(id.clone());
        self.generation = ordinal;
        self.session = Some(id);
    }

    async fn answer(&mut self, frame: Value) {
        self.answer_text(frame.to_string()).await;
    }

    async fn answer_text(&mut self, frame: String) {
        if self.id.is_none() {
            return;
        }
        self.mark_answered();
        let sse = self.server.script.sse_answers;
        match &mut self.out {
            Out::Http(out) if out.is_fresh() && !sse => {
                out.respond(200, &[], Some("application/json"), frame.as_bytes())
                    .await;
            }
            Out::Http(out) => {
                out.sse_begin().await;
                out.sse_data(&frame).await;
                out.sse_end().await;
            }
            _ => self.send_text(&frame).await,
        }
    }

    async fn answer_to(&mut self, id: &Value) {
        let of = match id.as_str() {
            Some("last_gen") => Some(self.generation.saturating_sub(1)),
            Some("last_call") => Some(self.generation),
            _ => None,
        };
        let id = match of {
            Some(generation) => match self.server.dir.last_id(generation, "tools/call") {
                Some(found) => found,
                None => {
                    eprintln!("fault_server: generation {generation} received no call");
                    return;
                }
            },
            None => id.clone(),
        };
        let result = self.question().dress(json!({
            "content": [{"type": "text", "text": "stray"}], "isError": false,
        }));
        let frame = response(&id, Ok(result));
        self.send(&frame).await;
    }

    async fn truncate(&mut self, bytes: usize) {
        self.work().await;
        let whole = self.frame().into_bytes();
        let part = &whole[..bytes.min(whole.len())];
        match &mut self.out {
            Out::Http(out) => out.partial(whole.len(), part).await,
            Out::Stdio(out) => out.write(part.to_vec()).await,
            Out::Nowhere => {}
        }
    }

    async fn bad_utf8(&mut self) {
        self.work().await;
        let mut frame = self.frame().into_bytes();
        // Right after the opening quote of the last string of the frame.
        let quotes: Vec<usize> = (0..frame.len()).filter(|i| frame[*i] == b'"').collect();
        let place = quotes.iter().rev().nth(1).map_or(0, |quote| quote + 1);
        frame.splice(place..place, [0xff, 0xfe]);
        match &mut self.out {
            Out::Http(out) => {
                out.respond(200, &[], Some("application/json"), &frame)
                    .await
            }
            Out::Stdio(out) => {
                frame.push(b'\n');
                out.write(frame).await;
            }
            Out::Nowhere => {}
        }
    }

    async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    /// One whole frame, or one event over HTTP.
    async fn send_text(&mut self, text: &str) {
        match &mut self.out {
            Out::Http(out) => {
                out.sse_begin().await;
                out.sse_data(text).await;
            }
            Out::Stdio(out) => out.write(format!("{text}\n").into_bytes()).await,
            Out::Nowhere => {
                if let Some(out) = &self.server.stdio {
                    out.write(format!("{text}\n").into_bytes()).await;
                }
            }
        }
    }

    async fn raw(&mut self, bytes: Vec<u8>) {
        match &mut self.out {
            Out::Http(out) => out.raw(&bytes).await,
            Out::Stdio(out) => out.write(bytes).await,
            Out::Nowhere => {
                if let Some(out) = &self.server.stdio {
                    out.write(bytes).await;
                }
            }
        }
    }

    async fn sse_begin(&mut self) {
        self.assign_session();
        if let Out::Http(out) = &mut self.out {
            out.sse_begin().await;
        }
    }

    async fn sse_event(&mut self, event: &Value) {
        let mut text = String::new();
        for name in ["comment", "id", "event", "retry", "data"] {
            let Some(value) = event.get(name) else {
                continue;
            };
            let value = match (name, value.as_str()) {
                ("data", Some("answer" | "$answer")) => {
                    self.work().await;
                    self.mark_answered();
                    self.frame()
                }
                ("data", None) => self.fill(value).to_string(),
                (_, Some(bare)) => self.fill_text(bare),
                (_, None) => value.to_string(),
            };
            let name = if name == "comment" { "" } else { name };
            for line in value.split('\n') {
                text.push_str(&format!("{name}: {line}\n"));
            }
        }
        text.push('\n');
        if let Out::Http(out) = &mut self.out {
            out.sse_text(&text).await;
        }
    }

    async fn http(&mut self, answer: &Value) {
        if answer["session"] == json!(true) {
            self.assign_session();
        }
        let body = match answer.get("body") {
            Some(Value::String(text)) if text == "$answer" => self.frame(),
            Some(Value::String(text)) => self.fill_text(text),
            Some(other) => self.fill(other).to_string(),
            None => String::new(),
        };
        let filled = self.fill(&answer["headers"]);
        if let Out::Http(out) = &mut self.out {
            out.scripted(answer, &filled, &body).await;
        }
    }

    fn expire(&self, how: &Value) {
        let all = how["all"] == json!(true);
        let answer = if how.get("status").is_some() {
            how.clone()
        } else {
            json!({"status": 404})
        };
        for (id, session) in lock(&self.server.sessions).iter_mut() {
            if all || Some(id) == self.session.as_ref() {
                session.expired = Some(answer.clone());
            }
        }
    }

    fn fork(&self, inherit: bool, ignore_term: bool) {
        let text = if ignore_term {
            "trap '' TERM; exec sleep 1000"
        } else {
            "exec sleep 1000"
        };
        let mut command = Command::new("sh");
        command.arg("-c").arg(text).stdin(Stdio::null());
        if !inherit {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        match command.spawn() {
            Ok(child) => self.server.dir.pid(child.id(), "child"),
            Err(error) => eprintln!("fault_server: fork_child: {error}"),
        }
    }

    /// Waits for `count` calls of this rule, which then go on in reverse order, one after the other.
    async fn hold(&mut self, count: usize) {
        let (go, wait) = oneshot::channel();
        let full = {
            let mut holds = lock(&self.server.holds);
            let waiting = holds.entry(self.rule).or_default();
            waiting.push(go);
            (waiting.len() >= count).then(|| std::mem::take(waiting))
        };
        // Over HTTP each answer has a connection of its own: only a pause makes their order visible.
        let pause = Duration::from_millis(if matches!(self.out, Out::Http(_)) {
            5
        } else {
            0
        });
        if let Some(waiting) = full {
            tokio::spawn(async move {
                for go in waiting.into_iter().rev() {
                    let (done, ended) = oneshot::channel();
                    if go.send(done).is_ok() {
                        // Ends when the context of that call is dropped.
                        let _ = ended.await;
                        tokio::time::sleep(pause).await;
                    }
                }
            });
        }
        self.held = wait.await.ok();
    }

    /// Replaces the placeholders in a value of the script.
    fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => match self.known(text.strip_prefix('$').unwrap_or("")) {
                Some(known) => known,
                None => Value::from(self.fill_text(text)),
            },
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Value::Object(members) => Value::Object(
                members
                    .iter()
                    .map(|(name, member)| (name.clone(), self.fill(member)))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    fn fill_text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for name in ["id", "generation", "session", "pid", "token", "arguments"] {
            let place = format!("${{{name}}}");
            if text.contains(&place)
                && let Some(known) = self.known(name)
            {
                let known = match known {
                    // An id is needed as JSON, quotes and all.
                    Value::String(bare) if name == "session" => bare,
                    other => other.to_string(),
                };
                text = text.replace(&place, &known);
            }
        }
        text
    }

    fn known(&self, name: &str) -> Option<Value> {
        Some(match name {
            "id" => self.id.clone().unwrap_or(Value::Null),
            "generation" => json!(self.generation),
            "session" => json!(self.session),
            "pid" => json!(std::process::id()),
            "token" => self.params["_meta"]["progressToken"].clone(),
            "arguments" => arguments(&self.params),
            _ => return None,
        })
    }
}

/// The id column of `wire`: for a cancellation the request that it is about.
pub(crate) fn wire_id(message: &Value) -> String {
    let id = match message.get("id") {
        None | Some(Value::Null) => &message["params"]["requestId"],
        Some(id) => id,
    };
    word(id)
}

/// Whether a message over HTTP belongs to the newest era.
pub(crate) fn modern_header(headers: &HashMap<String, String>, message: &Value) -> bool {
    headers.get("mcp-protocol-version").map(String::as_str) == Some(MODERN)
        || protocol::is_modern(message)
}

async fn to_stderr(bytes: Vec<u8>) {
    let _ = tokio::task::spawn_blocking(move || {
        let mut stderr = std::io::stderr().lock();
        let _ = stderr.write_all(&bytes).and_then(|()| stderr.flush());
    })
    .await;
}

async fn kill_self() {
    #[cfg(feature = "stdio")]
    {
        use nix::sys::signal::{Signal, kill};
        let _ = kill(nix::unistd::Pid::this(), Signal::SIGKILL);
    }
    let _ = Command::new("kill")
        .arg("-9")
        .arg(std::process::id().to_string())
        .spawn();
    std::future::pending::<()>().await;
}
