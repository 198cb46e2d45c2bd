//! A wire to the server that a test can cut where it likes: at once, or just when the server has told
//! that something is committed.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use deadpool_postgres::tokio_postgres::{self, config::Host};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
    sync::watch,
};

#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) url: String,
    state: Arc<State>,
}

struct State {
    target: Target,
    /// The answer to swallow, by its command tag, and how often that was done.
    armed: Mutex<Option<String>>,
    /// Whether the server is away once an answer was swallowed.
    falls: AtomicBool,
    cuts: watch::Sender<usize>,
    up: watch::Sender<bool>,
}

#[derive(Clone)]
enum Target {
    Unix(PathBuf),
    Tcp(String),
}

impl Proxy {
    pub(crate) async fn to(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let target = match &config.get_hosts()[0] {
            Host::Unix(dir) => Target::Unix(dir.join(format!(".s.PGSQL.{port}"))),
            Host::Tcp(host) => Target::Tcp(format!("{host}:{port}")),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("it is bound");
        let login = match (config.get_user(), config.get_password()) {
            (Some(user), Some(password)) => {
                format!(
                    "user={user} password='{}'",
                    String::from_utf8_lossy(password)
                )
            }
            (Some(user), None) => format!("user={user}"),
            (None, _) => "user=postgres".to_owned(),
        };
        let database = config.get_dbname().unwrap_or("postgres");
        let url = format!(
            "host=127.0.0.1 port={} {login} dbname={database}",
            at.port()
        );
        let state = Arc::new(State {
            target,
            armed: Mutex::new(None),
            falls: AtomicBool::new(false),
            cuts: watch::Sender::new(0),
            up: watch::Sender::new(true),
        });
        let serving = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(client, Arc::clone(&serving)));
            }
        });
        Self { url, state }
    }

    /// Swallows the next answer that says that a statement with this tag is done and committed, and
    /// cuts the connection.
    pub(crate) fn swallow(&self, tag: &str) {
        *self.state.armed.lock().expect("nobody panics in there") = Some(tag.to_owned());
    }

    /// As [`swallow`](Self::swallow), and the server is away after that.
    pub(crate) fn swallow_and_fall(&self, tag: &str) {
        self.state.falls.store(true, Ordering::SeqCst);
        self.swallow(tag);
    }

    /// How many answers were swallowed.
    pub(crate) fn swallowed(&self) -> usize {
        *self.state.cuts.borrow()
    }

    /// Cuts all connections and takes no new ones, or takes them again.
    pub(crate) fn set_up(&self, up: bool) {
        self.state.up.send_replace(up);
    }
}

async fn serve(client: TcpStream, state: Arc<State>) {
    let mut up = state.up.subscribe();
    if !*up.borrow_and_update() {
        return;
    }
    let passing = async {
        match &state.target {
            Target::Unix(path) => match UnixStream::connect(path).await {
                Ok(server) => pass(client, server, &state).await,
                Err(error) => eprintln!("the proxy does not reach the server: {error}"),
            },
            Target::Tcp(at) => match TcpStream::connect(at).await {
                Ok(server) => pass(client, server, &state).await,
                Err(error) => eprintln!("the proxy does not reach the server: {error}"),
            },
        }
    };
    tokio::select! {
        () = passing => {}
        _ = up.wait_for(|up| !up) => {}
    }
}

async fn pass(client: TcpStream, server: impl AsyncRead + AsyncWrite, state: &State) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut frames = Vec::new();
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = from_server.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                return;
            }
            frames.extend_from_slice(&buffer[..read]);
            // Whole answers only: one ends with ReadyForQuery, or asks for a password.
            while let Some(length) = whole_answer(&frames) {
                let answer: Vec<u8> = frames.drain(..length).collect();
                if swallows(&answer, state) {
                    state.cuts.send_modify(|cuts| *cuts += 1);
                    if state.falls.swap(false, Ordering::SeqCst) {
                        state.up.send_replace(false);
                    }
                    return;
                }
                if to_client.write_all(&answer).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}

/// The messages at the beginning: type, start and end of each.
fn messages(frames: &[u8]) -> impl Iterator<Item = (u8, &[u8], usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = frames.get(at..at + 5)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let body = frames.get(at + 5..at + 1 + length)?;
        at += 1 + length;
        Some((head[0], body, at))
    })
}

fn whole_answer(frames: &[u8]) -> Option<usize> {
    messages(frames)
        .find(|(kind, ..)| matches!(kind, b'Z' | b'R' | b'E'))
        .map(|(.., end)| end)
}

fn swallows(answer: &[u8], state: &State) -> bool {
    let mut armed = state.armed.lock().expect("nobody panics in there");
    let tagged = armed.as_ref().is_some_and(|tag| {
        messages(answer).any(|(kind, body, _)| kind == b'C' && body.starts_with(tag.as_bytes()))
    });
    if tagged {
        *armed = None;
    }
    tagged
}
