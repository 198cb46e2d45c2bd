//! A payment service over HTTP, made to lose things, and the provider that speaks to it.
//!
//! One request per connection, read whole and answered whole, so that where it loses something is
//! exact: before the effect, or between the effect and the answer, by a reset of the connection.

#![allow(dead_code, reason = "nobody needs all of it")]

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use mcp_supervisor::receipts::outbox::{
    Answering, Found, Outgoing, Promises, Provider, Reason, Reference, Sent,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// What the service does with the next charge instead of its work. One trick is used up by one
/// charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trick {
    /// Resets the connection, without the effect.
    LoseRequest,
    /// Has the effect and resets the connection.
    LoseAnswer,
    /// Says 503, with no effect, and to come back after this many seconds.
    Busy(u64),
    /// Says 403, with no effect.
    Deny,
    /// Says 500, with no effect; but who gets that cannot know.
    Break,
    /// Has the effect and answers once it is told to.
    HoldAnswer,
}

/// What the service does with keys, and whether it can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Habits {
    pub(crate) deduplicates: bool,
    pub(crate) can_be_asked: bool,
}

/// One effect.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Charge {
    pub(crate) id: usize,
    pub(crate) reference: String,
    pub(crate) body: Value,
}

/// The running service.
pub(crate) struct Payments {
    addr: SocketAddr,
    state: Arc<Service>,
    accepting: tokio::task::JoinHandle<()>,
}

struct Service {
    habits: Habits,
    tricks: Mutex<VecDeque<Trick>>,
    charges: Mutex<Vec<Charge>>,
    /// The lines of all requests, with the reference of each.
    requests: watch::Sender<Vec<String>>,
    held: watch::Sender<bool>,
}

impl Payments {
    pub(crate) async fn start(habits: Habits) -> io::Result<Self> {
        Self::start_at("127.0.0.1:0", habits).await
    }

    pub(crate) async fn start_at(addr: &str, habits: Habits) -> io::Result<Self> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(Service {
            habits,
            tricks: Mutex::default(),
            charges: Mutex::default(),
            requests: watch::channel(Vec::new()).0,
            held: watch::channel(true).0,
        });
        let service = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = Arc::clone(&service);
                tokio::spawn(async move { service.serve(stream).await });
            }
        });
        Ok(Self {
            addr,
            state,
            accepting,
        })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next charges go like this, one each.
    pub(crate) fn will(&self, tricks: impl IntoIterator<Item = Trick>) {
        locked(&self.state.tricks).extend(tricks);
    }

    /// Answers what is held.
    pub(crate) fn let_go(&self) {
        self.state.held.send_replace(false);
    }

    /// A charge that somebody else made under this key.
    pub(crate) fn has(&self, reference: &str, body: Value) {
        let mut charges = locked(&self.state.charges);
        let id = charges.len() + 1;
        let reference = reference.to_owned();
        charges.push(Charge {
            id,
            reference,
            body,
        });
    }

    /// The effects so far.
    pub(crate) fn charges(&self) -> Vec<Charge> {
        locked(&self.state.charges).clone()
    }

    /// The requests so far, such as `POST 0123…`.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.requests.borrow().clone()
    }

    /// Waits until there were so many requests.
    pub(crate) async fn until_asked(&self, times: usize) {
        let mut requests = self.state.requests.subscribe();
        let asked = requests.wait_for(|requests| requests.len() >= times).await;
        asked.expect("the service is there as long as it is watched");
    }
}

impl Drop for Payments {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Service {
    async fn serve(&self, mut stream: TcpStream) {
        let Ok(Some(request)) = Request::read(&mut stream).await else {
            return;
        };
        let answer = match request.method.as_str() {
            "POST" => self.charge(&request).await,
            _ => Some(self.ask(&request)),
        };
        let seen = format!("{} {}", request.method, request.reference);
        let Some((status, retry_after, body)) = answer else {
            let _ = stream.set_zero_linger();
            drop(stream);
            self.requests.send_modify(|requests| requests.push(seen));
            return;
        };
        self.requests.send_modify(|requests| requests.push(seen));
        if retry_after == Some(HELD) {
            let mut held = self.held.subscribe();
            let _ = held.wait_for(|held| !held).await;
        }
        let retry_after = match retry_after {
            Some(seconds) if seconds != HELD => format!("Retry-After: {seconds}\r\n"),
            _ => String::new(),
        };
        let body = body.to_string();
        let answer = format!(
            "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nConnection: close\r\n\
             {retry_after}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }

    /// `None`: the connection is reset.
    async fn charge(&self, request: &Request) -> Option<(u16, Option<u64>, Value)> {
        let trick = locked(&self.tricks).pop_front();
        match trick {
            Some(Trick::LoseRequest) => return None,
            Some(Trick::Busy(seconds)) => {
                return Some((503, Some(seconds), json!({ "error": "busy" })));
            }
            Some(Trick::Deny) => {
                return Some((403, None, json!({ "error": "this account may not charge" })));
            }
            Some(Trick::Break) => return Some((500, None, json!({ "error": "broken" }))),
            Some(Trick::LoseAnswer | Trick::HoldAnswer) | None => {}
        }
        let mut charges = locked(&self.charges);
        let known = charges.iter().find(|c| c.reference == request.reference);
        let charge = match known {
            Some(known) if self.habits.deduplicates => {
                if known.body != request.body {
                    let error = "another request came under this key";
                    return Some((409, None, json!({ "error": error })));
                }
                known.clone()
            }
            _ => {
                let charge = Charge {
                    id: charges.len() + 1,
                    reference: request.reference.clone(),
                    body: request.body.clone(),
                };
                charges.push(charge.clone());
                charge
            }
        };
        let held = (trick == Some(Trick::HoldAnswer)).then_some(HELD);
        (trick != Some(Trick::LoseAnswer)).then(|| (200, held, shown(&charge)))
    }

    fn ask(&self, request: &Request) -> (u16, Option<u64>, Value) {
        if !self.habits.can_be_asked {
            return (405, None, json!({ "error": "charges cannot be looked up" }));
        }
        let charges = locked(&self.charges);
        let known = charges.iter().find(|c| c.reference == request.reference);
        match known {
            Some(charge) => (200, None, shown(charge)),
            None => (404, None, json!({ "error": "no such charge" })),
        }
    }
}

/// In the place of a number of seconds: the answer is held.
const HELD: u64 = u64::MAX;

fn shown(charge: &Charge) -> Value {
    json!({ "charge": format!("ch-{}", charge.id), "cents": charge.body["cents"] })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request, as far as the service looks at it.
struct Request {
    method: String,
    /// The last part of the path for a look-up, the `Idempotency-Key` otherwise.
    reference: String,
    body: Value,
}

impl Request {
    async fn read(stream: &mut TcpStream) -> io::Result<Option<Self>> {
        let Some((head, body)) = read_message(stream).await? else {
            return Ok(None);
        };
        let mut words = head.split_whitespace();
        let method = words.next().unwrap_or_default().to_owned();
        let path = words.next().unwrap_or_default();
        let reference = match header(&head, "idempotency-key") {
            Some(key) => key.to_owned(),
            None => path.rsplit('/').next().unwrap_or_default().to_owned(),
        };
        Ok(Some(Self {
            method,
            reference,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        }))
    }
}

/// The head and the body of one HTTP message with a `Content-Length`, or nothing where the connection
/// ends before it does.
async fn read_message(stream: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end]).into_owned();
            let length = header(&head, "content-length").and_then(|length| length.parse().ok());
            let body = &read[end + 4..];
            if body.len() >= length.unwrap_or(0) {
                return Ok(Some((head, body.to_vec())));
            }
        }
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(None);
        }
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

/// The provider: what a server that charges has of the service.
#[derive(Clone, Debug)]
pub(crate) struct PaymentsApi {
    pub(crate) addr: SocketAddr,
    pub(crate) promises: Promises,
}

/// How long the service knows a key.
const KEYS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

impl PaymentsApi {
    /// What the service with these habits promises. What it has not got is final at once: its requests
    /// come one a connection, and what was not read when the connection ended is never read.
    pub(crate) fn new(addr: SocketAddr, habits: Habits) -> Self {
        let mut promises = Promises::none();
        if habits.deduplicates {
            promises = promises.keys_kept_for(KEYS_KEPT);
        }
        if habits.can_be_asked {
            promises = promises.looked_up(Some(Duration::from_millis(50)));
        }
        Self { addr, promises }
    }

    async fn exchange(&self, mut stream: TcpStream, request: &str) -> io::Result<Heard> {
        stream.write_all(request.as_bytes()).await?;
        let answer = read_message(&mut stream).await?;
        let (head, body) = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.split_whitespace().nth(1);
        Ok(Heard {
            status: status.and_then(|s| s.parse().ok()).unwrap_or(0),
            retry_after: header(&head, "retry-after")
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }
}

struct Heard {
    status: u16,
    retry_after: Option<Duration>,
    body: Value,
}

impl Heard {
    fn reason(&self) -> Reason {
        let error = self.body["error"].as_str().unwrap_or("no reason given");
        let reason = Reason::new(format!("HTTP {}: {error}", self.status));
        match self.retry_after {
            Some(wait) => reason.retry_after(wait),
            None => reason,
        }
    }
}

impl Provider for PaymentsApi {
    fn name(&self) -> &str {
        "payments"
    }

    fn promises(&self) -> Promises {
        self.promises
    }

    fn send<'a>(&'a self, outgoing: &'a Outgoing) -> Answering<'a, Sent> {
        Box::pin(async move {
            let stream = match TcpStream::connect(self.addr).await {
                Ok(stream) => stream,
                // Not a byte of it left.
                Err(error) => {
                    return Sent::Deferred(Reason::new(format!("no connection: {}", error.kind())));
                }
            };
            let body = outgoing.body.to_string();
            let request = format!(
                "POST /charges HTTP/1.1\r\nHost: payments\r\nIdempotency-Key: {}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                outgoing.reference,
                body.len()
            );
            match self.exchange(stream, &request).await {
                Ok(heard) => match heard.status {
                    200 => Sent::Accepted(heard.body),
                    402 | 403 | 422 => Sent::Refused(heard.reason()),
                    409 => Sent::Conflict(heard.reason()),
                    // The service's manual says that it did nothing then.
                    429 | 503 => Sent::Deferred(heard.reason()),
                    _ => Sent::Unclear(heard.reason()),
                },
                Err(error) => {
                    Sent::Unclear(Reason::new(format!("no answer came: {}", error.kind())))
                }
            }
        })
    }

    fn look_up<'a>(&'a self, reference: &'a Reference) -> Answering<'a, Found> {
        Box::pin(async move {
            let request = format!("GET /charges/{reference} HTTP/1.1\r\nHost: payments\r\n\r\n");
            let heard = match TcpStream::connect(self.addr).await {
                Ok(stream) => self.exchange(stream, &request).await,
                Err(error) => Err(error),
            };
            match heard {
                Ok(heard) => match heard.status {
                    200 => Found::Applied(heard.body),
                    404 => Found::Absent,
                    _ => Found::Unclear(heard.reason()),
                },
                Err(error) => Found::Unclear(Reason::new(format!("no answer: {}", error.kind()))),
            }
        })
    }

    fn inspect(&self, reference: &Reference) -> String {
        format!("Look for a charge with the reference {reference} in the payment service's list.")
    }
}
