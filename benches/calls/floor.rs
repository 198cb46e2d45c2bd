//! The floor: the bytes of a call through the same pipes and sockets, with no protocol around them.

use std::{collections::VecDeque, process::Stdio, time::Instant};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

use crate::{
    clients::Place,
    servers::{self, Answer},
};

type Read = Box<dyn AsyncRead + Send + Unpin>;
type Write = Box<dyn AsyncWrite + Send + Unpin>;

/// What takes the place of a client.
pub(crate) enum Floor {
    /// A stream of lines.
    Lines(Box<Lines>),
    /// So many HTTP connections, which are kept.
    Http {
        address: String,
        streams: Vec<TcpStream>,
    },
}

pub(crate) struct Lines {
    read: Read,
    write: Write,
    got: Vec<u8>,
    next: u64,
    /// Kept, because its end would kill it.
    _child: Option<tokio::process::Child>,
}

impl Floor {
    pub(crate) async fn at(place: &Place) -> Self {
        let (read, write, child): (Read, Write, _) = match place {
            Place::Memory(answer) => {
                let (read, write) = tokio::io::split(servers::in_memory(*answer));
                (Box::new(read), Box::new(write), None)
            }
            // The floor of a call is the pipe, whoever answers.
            Place::MemoryRmcp => {
                let (read, write) = tokio::io::split(servers::in_memory(Answer::Small));
                (Box::new(read), Box::new(write), None)
            }
            Place::Stdio(answer) => {
                let mut child = tokio::process::Command::new(servers::this_program())
                    .arg(servers::SERVE)
                    .arg(answer.word())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .kill_on_drop(true)
                    .spawn()
                    .expect("this program starts");
                let read = child.stdout.take().expect("it is piped");
                let write = child.stdin.take().expect("it is piped");
                (Box::new(read), Box::new(write), Some(child))
            }
            Place::Http(address) => {
                return Self::Http {
                    address: address.clone(),
                    streams: Vec::new(),
                };
            }
        };
        let mut lines = Box::new(Lines {
            read,
            write,
            got: Vec::new(),
            next: 1,
            _child: child,
        });
        lines.greet().await;
        Self::Lines(lines)
    }

    /// So many calls with so many under way at a time, and what each of them took.
    pub(crate) async fn calls(&mut self, callers: usize, calls: usize) -> Vec<f64> {
        match self {
            Self::Lines(lines) => lines.calls(callers, calls).await,
            Self::Http { address, streams } => {
                while streams.len() < callers {
                    let stream = TcpStream::connect(&*address).await.expect("a server");
                    stream.set_nodelay(true).expect("a socket");
                    streams.push(stream);
                }
                let request = post(address);
                let mut tasks = JoinSet::new();
                for stream in streams.drain(..) {
                    tasks.spawn(exchanges(stream, request.clone(), calls / callers));
                }
                let mut took = Vec::with_capacity(calls);
                for (stream, these) in tasks.join_all().await {
                    streams.push(stream);
                    took.extend(these);
                }
                took
            }
        }
    }
}

impl Lines {
    /// Once, so that what follows is answered as a call is.
    async fn greet(&mut self) {
        let greeting = b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{}}\n";
        self.write.write_all(greeting).await.expect("a server");
        self.write.flush().await.expect("a server");
        self.answers().await;
    }

    async fn calls(&mut self, callers: usize, calls: usize) -> Vec<f64> {
        let mut under_way = VecDeque::with_capacity(callers);
        let (mut took, mut out) = (Vec::with_capacity(calls), Vec::new());
        let mut sent = 0;
        while took.len() < calls {
            while under_way.len() < callers && sent < calls {
                call(self.next, &mut out);
                out.push(b'\n');
                self.next += 1;
                sent += 1;
                under_way.push_back(Instant::now());
            }
            if !out.is_empty() {
                self.write.write_all(&out).await.expect("a server");
                self.write.flush().await.expect("a server");
                out.clear();
            }
            for _ in 0..self.answers().await {
                let started: Instant = under_way.pop_front().expect("an answer to a call");
                took.push(started.elapsed().as_secs_f64());
            }
        }
        took
    }

    /// Waits for at least one answer, and returns how many there were.
    async fn answers(&mut self) -> usize {
        loop {
            let old = self.got.len();
            let read = self.read.read_buf(&mut self.got).await.expect("a server");
            assert!(read > 0, "the server ended");
            let lines = self.got[old..].iter().filter(|b| **b == b'\n').count();
            if lines > 0 {
                let end = self
                    .got
                    .iter()
                    .rposition(|b| *b == b'\n')
                    .map_or(0, |p| p + 1);
                self.got.drain(..end);
                return lines;
            }
        }
    }
}

/// The request that both clients send.
fn call(id: u64, out: &mut Vec<u8>) {
    use std::io::Write as _;
    write!(
        out,
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_meta":{{"progressToken":{id}}},"name":"charge","arguments":{{"cents":1999,"customer":"c-42"}}}}}}"#
    )
    .expect("memory");
}

fn post(address: &str) -> Vec<u8> {
    let mut body = Vec::new();
    call(7, &mut body);
    let mut request = format!(
        "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body);
    request
}

/// Posts so often, and reads as many bytes as the first answer had.
async fn exchanges(mut stream: TcpStream, request: Vec<u8>, calls: usize) -> (TcpStream, Vec<f64>) {
    let (mut took, mut got) = (Vec::with_capacity(calls), Vec::new());
    let mut whole = None;
    for _ in 0..calls {
        let started = Instant::now();
        stream.write_all(&request).await.expect("a server");
        got.clear();
        while whole.is_none_or(|length| got.len() < length) {
            let read = stream.read_buf(&mut got).await.expect("a server");
            assert!(read > 0, "the server ended");
            whole = whole.or_else(|| response_length(&got));
        }
        took.push(started.elapsed().as_secs_f64());
    }
    (stream, took)
}

/// How long a response is whose head is there.
fn response_length(got: &[u8]) -> Option<usize> {
    let head = got.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&got[..head]).expect("a head is text");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().expect("a number"))
    });
    Some(head + length.expect("a content-length"))
}
