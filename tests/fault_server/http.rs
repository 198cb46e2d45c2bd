//! Streamable HTTP over a bare TCP stream, so that every byte can go wrong.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, watch};

use crate::engine::{Context, Out, Server, default_steps, lock, modern_header, pick, wire_id};
use crate::ledger::word;
use crate::script::{Eras, Event};

type Reader = BufReader<OwnedReadHalf>;
type Slot = Arc<Mutex<Option<OwnedWriteHalf>>>;
type Running = Pin<Box<dyn Future<Output = Context> + Send>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is written.
    Fresh,
    /// An event stream is open.
    Stream,
    /// The answer is complete.
    Complete,
    /// What was written is no complete answer; the connection cannot be used again.
    Broken,
}

/// The answering half of one HTTP exchange.
#[derive(Debug)]
pub(crate) struct HttpOut {
    /// Empty once the connection is closed, or taken back for its next exchange.
    writer: Slot,
    closed: bool,
    state: State,
    keep: bool,
    wrote: bool,
    chunked: bool,
    pub(crate) session_header: Option<String>,
    gone: watch::Receiver<bool>,
    close_now: Arc<Notify>,
    complete: Arc<AtomicBool>,
    pub(crate) answered: Arc<AtomicBool>,
}

impl HttpOut {
    pub(crate) fn is_fresh(&self) -> bool {
        self.state == State::Fresh && !self.closed
    }

    pub(crate) fn is_open_stream(&self) -> bool {
        self.state == State::Stream && !self.closed
    }

    fn set(&mut self, state: State) {
        self.state = state;
        self.complete
            .store(state == State::Complete, Ordering::SeqCst);
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.wrote = true;
        if let Some(writer) = self.writer.lock().await.as_mut()
            && writer.write_all(bytes).await.is_err()
        {
            self.keep = false;
        }
    }

    /// Waits until the client has gone.
    pub(crate) async fn gone(&mut self) {
        if self.closed {
            return;
        }
        let _ = self.gone.wait_for(|gone| *gone).await;
        self.keep = false;
    }

    fn head(&self, status: u64, headers: &[(String, String)], kind: Option<&str>) -> String {
        let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
        if let Some(kind) = kind {
            head.push_str(&format!("Content-Type: {kind}\r\n"));
        }
        if let Some(session) = &self.session_header {
            head.push_str(&format!("Mcp-Session-Id: {session}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.keep {
            head.push_str("Connection: close\r\n");
        }
        head
    }

    /// A whole answer.
    pub(crate) async fn respond(
        &mut self,
        status: u64,
        headers: &[(String, String)],
        kind: Option<&str>,
        body: &[u8],
    ) {
        if !self.is_fresh() {
            return;
        }
        let mut bytes = self.head(status, headers, kind).into_bytes();
        if status == 204 || status == 304 {
            bytes.extend_from_slice(b"\r\n");
        } else if self.chunked && !body.is_empty() {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            for part in body.chunks(body.len().div_ceil(2)) {
                bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                bytes.extend_from_slice(part);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            bytes.extend_from_slice(body);
        }
        self.write(&bytes).await;
        self.set(State::Complete);
    }

    /// An `http` step.
    pub(crate) async fn scripted(&mut self, answer: &Value, headers: &Value, body: &str) {
        let status = answer["status"].as_u64().unwrap_or(200);
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        let mut list = Vec::new();
        for (name, value) in headers.as_object().into_iter().flatten() {
            match value {
                Value::Array(many) => list.extend(many.iter().map(|v| (name.clone(), text(v)))),
                one => list.push((name.clone(), text(one))),
            }
        }
        let kind = match &answer["content_type"] {
            Value::String(kind) => Some(kind.as_str()),
            _ if body.is_empty() => None,
            _ if answer["body"].is_string() && !body.starts_with('{') => Some("text/plain"),
            _ => Some("application/json"),
        };
        if let Some(chunked) = answer["chunked"].as_bool() {
            self.chunked = chunked;
        }
        if answer["close"] == json!(true) {
            self.keep = false;
        }
        self.respond(status, &list, kind, body.as_bytes()).await;
    }

    /// Headers that promise `declared` bytes, and only `sent`.
    pub(crate) async fn partial(&mut self, declared: usize, sent: &[u8]) {
        if !self.is_fresh() {
            return;
        }
        let mut bytes = self.head(200, &[], Some("application/json")).into_bytes();
        bytes.extend_from_slice(format!("Content-Length: {declared}\r\n\r\n").as_bytes());
        bytes.extend_from_slice(sent);
        self.write(&bytes).await;
        self.set(if sent.len() == declared {
            State::Complete
        } else {
            State::Broken
        });
    }

    pub(crate) async fn raw(&mut self, bytes: &[u8]) {
        self.write(bytes).await;
        if self.state != State::Stream {
            self.set(State::Broken);
        }
    }

    pub(crate) async fn sse_begin(&mut self) {
        if !self.is_fresh() {
            return;
        }
        let headers = [("Cache-Control".to_owned(), "no-cache".to_owned())];
        let mut head = self.head(200, &headers, Some("text/event-stream"));
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        self.write(head.as_bytes()).await;
        self.set(State::Stream);
    }

    /// One event with this data.
    pub(crate) async fn sse_data(&mut self, data: &str) {
        self.sse_text(&format!("data: {data}\n\n")).await;
    }

    /// Bytes of the stream as they are.
    pub(crate) async fn sse_text(&mut self, text: &str) {
        if self.is_open_stream() {
            let chunk = format!("{:x}\r\n{text}\r\n", text.len());
            self.write(chunk.as_bytes()).await;
        }
    }

    pub(crate) async fn sse_end(&mut self) {
        if self.is_open_stream() {
            self.write(b"0\r\n\r\n").await;
            self.set(State::Complete);
        }
    }

    /// Closes with RST.
    pub(crate) async fn reset(&mut self) {
        if self.wrote {
            // What was written must have arrived: a reset throws away what was not yet read.
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        self.closed = true;
        if let Some(writer) = self.writer.lock().await.take() {
            if let Err(error) = writer.as_ref().set_zero_linger() {
                eprintln!("fault_server: linger: {error}");
            }
            writer.forget();
            self.close_now.notify_one();
        }
        tokio::task::yield_now().await;
    }

    /// Closes with FIN.
    pub(crate) async fn close(&mut self) {
        self.closed = true;
        if let Some(mut writer) = self.writer.lock().await.take() {
            let _ = writer.shutdown().await;
            self.close_now.notify_one();
        }
        tokio::task::yield_now().await;
    }
}

fn reason(status: u64) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Scripted",
    }
}

/// Listens, publishes the address, and serves until the process ends.
pub(crate) async fn serve(server: Arc<Server>, addr: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(addr).await?;
    let local = listener.local_addr()?;
    server.dir.put("addr", &local.to_string());
    println!("{local}");
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = server.stop_listening.notified() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let server = Arc::clone(&server);
                tokio::spawn(async move { connection(server, stream).await });
            }
            Err(error) => {
                eprintln!("fault_server: accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    drop(listener);
    std::future::pending().await
}

struct Request {
    verb: String,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
    keep: bool,
}

/// The state of one TCP connection between its exchanges.
struct Connection {
    server: Arc<Server>,
    reader: Option<Reader>,
    writer: Option<OwnedWriteHalf>,
    close_now: Arc<Notify>,
}

async fn connection(server: Arc<Server>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    server.dir.line("connects", &server.start.to_string());
    let mut connection = Connection {
        server: Arc::clone(&server),
        reader: Some(BufReader::with_capacity(64 * 1024, reader)),
        writer: Some(writer),
        close_now: Arc::new(Notify::new()),
    };
    let event = Event {
        names: &["connect"],
        generation: server.start,
        params: &Value::Null,
    };
    if let Some((rule, steps)) = server.script.pick(&event) {
        let (gone, out) = connection.out(true);
        let mut context = Context::event(&server, "connect", server.start, Out::Http(out));
        context.rule = rule;
        if let Some(Context {
            out: Out::Http(out),
            ..
        }) = connection.drive(gone, None, running(context, steps)).await
        {
            connection.writer = out.writer.lock().await.take();
        }
    }
    while let (Some(reader), true) = (&mut connection.reader, connection.writer.is_some()) {
        match read_request(reader).await {
            Ok(Some(request)) => {
                if !connection.exchange(request).await {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                eprintln!("fault_server: request: {error}");
                break;
            }
        }
    }
}

impl Connection {
    fn out(&mut self, keep: bool) -> (Gone, HttpOut) {
        let (sender, gone) = watch::channel(false);
        let complete = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicBool::new(false));
        let writer = Arc::new(Mutex::new(self.writer.take()));
        let out = HttpOut {
            writer: Arc::clone(&writer),
            closed: false,
            state: State::Fresh,
            keep: keep && !self.server.script.close,
            wrote: false,
            chunked: self.server.script.chunked,
            session_header: None,
            gone,
            close_now: Arc::clone(&self.close_now),
            complete: Arc::clone(&complete),
            answered: Arc::clone(&answered),
        };
        (
            Gone {
                sender,
                complete,
                answered,
                writer,
            },
            out,
        )
    }

    /// Runs the steps while it watches whether the client goes away. When the answer is complete and
    /// the client already sends its next request, the steps that are left go on by themselves.
    async fn drive(
        &mut self,
        gone: Gone,
        line: Option<String>,
        mut run: Running,
    ) -> Option<Context> {
        let mut watching = true;
        let close_now = Arc::clone(&self.close_now);
        loop {
            let reader = &mut self.reader;
            let here = async {
                match reader {
                    Some(reader) => reader.fill_buf().await.is_ok_and(|bytes| !bytes.is_empty()),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = close_now.notified() => {
                    watching = false;
                    self.reader = None;
                }
                context = &mut run => return Some(context),
                here = here, if watching => {
                    watching = false;
                    let complete = gone.complete.load(Ordering::SeqCst);
                    if here && complete {
                        self.writer = gone.writer.lock().await.take();
                        tokio::spawn(run);
                        return None;
                    }
                    if !here {
                        if let Some(line) = &line
                            && !complete
                            && !gone.answered.load(Ordering::SeqCst)
                        {
                            self.server.dir.wire(line);
                        }
                        gone.sender.send_replace(true);
                    }
                }
            }
        }
    }

    /// One request and its answer; whether the connection can take another one.
    async fn exchange(&mut self, request: Request) -> bool {
        let server = Arc::clone(&self.server);
        let (gone, out) = self.out(request.keep);
        let mut message = Value::Null;
        let mut parsed = true;
        if request.verb == "POST" {
            match serde_json::from_slice(&request.body) {
                Ok(value) => message = value,
                Err(_) => parsed = false,
            }
            parsed &= message.is_object();
        }
        let method = match request.verb.as_str() {
            "POST" if parsed => message["method"].as_str().unwrap_or("response").to_owned(),
            "POST" => "invalid".to_owned(),
            verb => verb.to_owned(),
        };
        let modern = modern_header(&request.headers, &message);
        let session = request.headers.get("mcp-session-id").cloned();
        let (generation, refused) = self.admit(&method, modern, session.as_deref());
        let word_of = |text: Option<&String>| word(&json!(text));
        let tail = format!("{} {}", request.verb, word_of(session.as_ref()));
        let name = if request.verb == "POST" {
            method.as_str()
        } else {
            "-"
        };
        let id = wire_id(&message);
        let mut line = format!("{generation} {name} {id} {tail}");
        let resume = request.headers.get("last-event-id");
        if resume.is_some() {
            line.push_str(&format!(" {}", word_of(resume)));
        }
        server.dir.wire(&line);
        if server.script.log_messages {
            let entry = json!({
                "generation": generation, "message": message,
                "http": {"method": request.verb, "path": request.path, "headers": request.headers},
            });
            server.dir.line("messages", &entry.to_string());
        }

        let mut context = if request.verb == "POST" && parsed {
            Context::message(&server, generation, modern, &mut message, Out::Http(out))
        } else {
            Context::event(&server, &method, generation, Out::Http(out))
        };
        context.session = session.filter(|_| method != "initialize");
        let disconnect = Some(format!("{generation} disconnect {id} {tail}"));
        let steps: Arc<[crate::script::Step]> = if !parsed {
            Arc::from([crate::script::Step::Http(json!({"status": 400, "body": {
                "jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "Parse error"},
            }}))])
        } else if let Some(refused) = refused {
            Arc::from([crate::script::Step::Http(refused)])
        } else {
            let picked = if request.verb == "POST" {
                let is_request = context.id.is_some();
                pick(
                    &server,
                    generation,
                    &method,
                    is_request,
                    &context.params,
                    Some("POST"),
                )
            } else {
                let mut names = vec![method.as_str()];
                if resume.is_some() {
                    names.push("resume");
                }
                server.script.pick(&Event {
                    names: &names,
                    generation,
                    params: &Value::Null,
                })
            };
            match picked {
                Some((rule, steps)) => {
                    context.rule = rule;
                    steps
                }
                None => Arc::from(default_steps(&server, generation, &method, &context.params)),
            }
        };
        if let Some(context) = self.drive(gone, disconnect, running(context, steps)).await {
            let Out::Http(out) = &context.out else {
                return false;
            };
            let mut writer = out.writer.lock().await.take();
            if out.state != State::Complete || !out.keep {
                if let Some(writer) = &mut writer {
                    let _ = writer.shutdown().await;
                }
                return false;
            }
            self.writer = writer;
        }
        self.writer.is_some()
    }

    /// The generation of a request, and how it is refused when its session is not a live one.
    fn admit(&self, method: &str, modern: bool, session: Option<&str>) -> (u64, Option<Value>) {
        let server = &self.server;
        if modern || server.script.eras == Eras::Modern || !server.script.sessions {
            return (server.start, None);
        }
        if method == "initialize" {
            return (server.session_count.load(Ordering::SeqCst) + 1, None);
        }
        let Some(session) = session else {
            let refused = json!({"status": 400, "body": {"jsonrpc": "2.0", "id": "$id", "error": {
                "code": -32600, "message": "Bad Request: Mcp-Session-Id header is required",
            }}});
            // A standing GET without a session is simply not allowed.
            return (0, (method != "GET").then_some(refused));
        };
        match lock(&server.sessions).get(session) {
            Some(known) => (known.generation, known.expired.clone()),
            None => {
                let scripted = server.script.options.get("unknown_session").cloned();
                (0, Some(scripted.unwrap_or(json!({"status": 404}))))
            }
        }
    }
}

/// What the connection keeps of an exchange while its steps run.
struct Gone {
    sender: watch::Sender<bool>,
    complete: Arc<AtomicBool>,
    answered: Arc<AtomicBool>,
    writer: Slot,
}

fn running(mut context: Context, steps: Arc<[crate::script::Step]>) -> Running {
    Box::pin(async move {
        context.run(&steps).await;
        context
    })
}

async fn read_line(reader: &mut Reader) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    while line
        .last()
        .is_some_and(|byte| matches!(byte, b'\r' | b'\n'))
    {
        line.pop();
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

async fn read_request(reader: &mut Reader) -> std::io::Result<Option<Request>> {
    let Some(first) = read_line(reader).await? else {
        return Ok(None);
    };
    let mut words = first.split(' ');
    let verb = words.next().unwrap_or("").to_owned();
    let path = words.next().unwrap_or("").to_owned();
    let mut keep = words.next() != Some("HTTP/1.0");
    let mut headers = HashMap::new();
    loop {
        match read_line(reader).await? {
            None => return Ok(None),
            Some(line) if line.is_empty() => break,
            Some(line) => {
                if let Some((name, value)) = line.split_once(':') {
                    headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
                }
            }
        }
    }
    if headers
        .get("connection")
        .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    {
        keep = false;
    }
    let mut body = Vec::new();
    if headers
        .get("transfer-encoding")
        .is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    {
        loop {
            let size = read_line(reader).await?.unwrap_or_default();
            let size = size.split(';').next().unwrap_or("").trim();
            let size = u64::from_str_radix(size, 16).map_err(std::io::Error::other)?;
            (&mut *reader).take(size).read_to_end(&mut body).await?;
            if read_line(reader).await?.is_none() {
                return Ok(None);
            }
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = headers.get("content-length") {
        let length: u64 = length.parse().map_err(std::io::Error::other)?;
        (&mut *reader).take(length).read_to_end(&mut body).await?;
        if (body.len() as u64) < length {
            return Ok(None);
        }
    }
    Ok(Some(Request {
        verb,
        path,
        headers,
        body,
        keep,
    }))
}
