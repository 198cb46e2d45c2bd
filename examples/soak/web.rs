//! A server over HTTP, by hand, so that what it does to an exchange is exact.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{
    fate::Fate,
    lines::{LATE, SLOW, reset},
    shop::{self, Done, Shop},
};

/// How long an exchange that is never answered is held.
const HELD: Duration = Duration::from_secs(8);
/// The most that a head or a body may have.
const MOST: usize = 1024 * 1024;

/// The sessions that this process knows.
#[derive(Default)]
pub(crate) struct Sessions {
    known: Mutex<(HashSet<String>, u64)>,
}

impl Sessions {
    fn known(&self) -> MutexGuard<'_, (HashSet<String>, u64)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, start: u64) -> String {
        let mut known = self.known();
        known.1 += 1;
        let id = format!("session-{start}-{}", known.1);
        known.0.insert(id.clone());
        id
    }

    fn forget(&self, id: &str) {
        self.known().0.remove(id);
    }
}

struct Request {
    method: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    /// The next request of a connection, or nothing where it ends.
    async fn read(stream: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<Self>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 || lines.len() > 100 {
                return Ok(None);
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        let method = first.split(' ').next().unwrap_or_default().to_owned();
        let header = |line: String| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers: HashMap<_, _> = lines.filter_map(header).collect();
        let length = headers.get("content-length");
        let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
        if length > MOST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok(Some(Self {
            method,
            headers,
            body,
        }))
    }
}

/// The answering half of a connection.
struct Answering(OwnedWriteHalf);

impl Answering {
    async fn whole(&mut self, status: &str, more: &str, kind: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\n{more}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.0.write_all(answer.as_bytes()).await
    }

    async fn empty(&mut self, status: &str, more: &str) -> io::Result<()> {
        let answer = format!("HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\n\r\n");
        self.0.write_all(answer.as_bytes()).await
    }

    /// The head of an event stream, and its first bytes.
    async fn stream(&mut self, more: &str, events: &str) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 200 OK\r\n{more}Content-Type: text/event-stream\r\nConnection: close\r\n\r\n{events}"
        );
        self.0.write_all(head.as_bytes()).await
    }
}

/// Whether the connection takes another request.
enum After {
    Keep,
    Close,
    Reset,
}

/// Serves one connection.
pub(crate) async fn socket(stream: TcpStream, shop: Arc<Shop>, sessions: Arc<Sessions>) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    let (mut read, mut write) = (BufReader::new(read), Answering(write));
    while let Ok(Some(request)) = Request::read(&mut read).await {
        // Whoever goes while an answer is made takes the exchange with it.
        let gone = async { read.fill_buf().await.is_ok_and(|more| !more.is_empty()) };
        let after = tokio::select! {
            after = exchange(&request, &mut write, &shop, &sessions) => after,
            false = gone => return,
        };
        match after {
            Ok(After::Keep) => {}
            Ok(After::Close) | Err(_) => return,
            Ok(After::Reset) => return reset(write.0),
        }
    }
}

async fn exchange(
    request: &Request,
    write: &mut Answering,
    shop: &Shop,
    sessions: &Sessions,
) -> io::Result<After> {
    let session = request.headers.get("mcp-session-id");
    if let Some(session) = session
        && !sessions.known().0.contains(session)
    {
        write.empty("404 Not Found", "").await?;
        return Ok(After::Keep);
    }
    match request.method.as_str() {
        "POST" => {}
        // Every other server has a stream of its own.
        "GET" if shop.schedule().server.is_multiple_of(2) => {
            write.stream("", ": here\n\n").await?;
            std::future::pending::<()>().await;
        }
        "DELETE" => {
            session.into_iter().for_each(|id| sessions.forget(id));
            write.empty("200 OK", "").await?;
            return Ok(After::Keep);
        }
        _ => {
            write
                .empty("405 Method Not Allowed", "Allow: POST, DELETE\r\n")
                .await?;
            return Ok(After::Keep);
        }
    }
    let Ok(message) = serde_json::from_slice::<Value>(&request.body) else {
        write.empty("400 Bad Request", "").await?;
        return Ok(After::Close);
    };
    if message["method"] == "tools/call" {
        return call(&message, session.map(String::as_str), write, shop, sessions).await;
    }
    let more = match message["method"] == "initialize" {
        true => format!(
            "Mcp-Session-Id: {}\r\n",
            sessions.open(shop.schedule().start)
        ),
        false => String::new(),
    };
    match shop::other(&message) {
        None => write.empty("202 Accepted", "").await?,
        Some(answer) => {
            let answer = answer.to_string();
            write
                .whole("200 OK", &more, "application/json", &answer)
                .await?;
        }
    }
    Ok(After::Keep)
}

async fn call(
    message: &Value,
    session: Option<&str>,
    write: &mut Answering,
    shop: &Shop,
    sessions: &Sessions,
) -> io::Result<After> {
    let Done { fate, answer } = shop.call(message).map_err(io::Error::other)?;
    let answer = answer.to_string();
    // One of two ways to answer, by what is not the same for any two calls.
    let as_stream = message["id"].as_u64().unwrap_or_default().is_multiple_of(2);
    match fate {
        Fate::DieBefore | Fate::DieAfter => return Ok(After::Reset),
        Fate::Exit => return Ok(After::Close),
        Fate::StallBefore | Fate::StallAfter => {
            tokio::time::sleep(HELD).await;
            return Ok(After::Close);
        }
        Fate::Refuse if as_stream => {
            write
                .empty("429 Too Many Requests", "Retry-After: 1\r\n")
                .await?;
            return Ok(After::Keep);
        }
        Fate::Fail if as_stream => {
            write
                .whole("502 Bad Gateway", "", "text/html", "<h1>sorry</h1>")
                .await?;
            return Ok(After::Keep);
        }
        // Where there is no session, a 404 says that it did not run.
        Fate::HangUp => {
            let Some(session) = session else {
                return Ok(After::Reset);
            };
            sessions.forget(session);
            write.empty("404 Not Found", "").await?;
            return Ok(After::Keep);
        }
        Fate::Garbage => {
            let kind = if as_stream {
                "text/plain"
            } else {
                "application/json"
            };
            write
                .whole("200 OK", "", kind, "{\"jsonrpc\": \"2.0\", ...")
                .await?;
            return Ok(After::Keep);
        }
        Fate::Half if as_stream => {
            write
                .stream("", &format!("data: {}", &answer[..answer.len() / 2]))
                .await?;
            return Ok(After::Close);
        }
        Fate::Half => {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            let half = format!("{head}{}", &answer[..answer.len() / 2]);
            write.0.write_all(half.as_bytes()).await?;
            return Ok(After::Close);
        }
        Fate::Twice => {
            write
                .stream("", &format!("data: {answer}\n\ndata: {answer}\n\n"))
                .await?;
            return Ok(After::Close);
        }
        Fate::Slow => tokio::time::sleep(SLOW).await,
        Fate::Late => tokio::time::sleep(LATE).await,
        Fate::Good | Fate::Refuse | Fate::Fail => {}
    }
    if as_stream {
        write.stream("", &format!("data: {answer}\n\n")).await?;
        return Ok(After::Close);
    }
    write
        .whole("200 OK", "", "application/json", &answer)
        .await?;
    Ok(After::Keep)
}
