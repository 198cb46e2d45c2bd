//! What the clients call: as little server as there can be, so that a bench measures the client.

pub(crate) mod http;
pub(crate) mod rmcp;

use std::io::{Read as _, Write as _};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};

/// Large enough that an in-memory pipe is never what waits.
pub(crate) const PIPE: usize = 4 << 20;
/// What a server reads at a time.
const CHUNK: usize = 64 << 10;

/// What a tool answers with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Answer {
    /// One short text.
    Small,
    /// So many KiB of text.
    Text(usize),
    /// 40 kB of structured content, and a short text.
    Structured,
    /// Calls are read and never answered.
    Never,
    /// The id of the server's process.
    Process,
    /// How many calls came behind one with a higher number.
    Inversions,
}

impl Answer {
    /// How a child process is told of it.
    pub(crate) fn word(self) -> String {
        match self {
            Self::Small => "small".to_owned(),
            Self::Text(kib) => kib.to_string(),
            Self::Structured => "structured".to_owned(),
            Self::Never => "never".to_owned(),
            Self::Process => "process".to_owned(),
            Self::Inversions => "inversions".to_owned(),
        }
    }

    pub(crate) fn of(word: &str) -> Self {
        match word {
            "small" => Self::Small,
            "structured" => Self::Structured,
            "never" => Self::Never,
            "process" => Self::Process,
            "inversions" => Self::Inversions,
            kib => Self::Text(kib.parse().expect("a kind of answer")),
        }
    }

    /// The result, as it is in a response.
    pub(crate) fn result(self) -> String {
        match self {
            Self::Small | Self::Never => text("charged"),
            Self::Process => text(std::process::id()),
            Self::Inversions => text(0),
            Self::Text(kib) => {
                let line = "All work and no play makes a dull answer, says \\\"the shop\\\".\\n";
                let text = line.repeat(kib * 1024 / line.len());
                self::text(text)
            }
            Self::Structured => {
                let rows: Vec<_> = (0..450)
                    .map(|n| {
                        format!(
                            r#"{{"order":"o-{n:05}","customer":"c-{}","cents":{},"paid":{},"rate":{}.25,"tags":["a","b"]}}"#,
                            n % 97,
                            n * 37,
                            n % 2 == 0,
                            n % 11
                        )
                    })
                    .collect();
                let rows = rows.join(",");
                format!(
                    r#"{{"content":[{{"type":"text","text":"450 orders"}}],"structuredContent":{{"orders":[{rows}]}}}}"#
                )
            }
        }
    }
}

/// A result that is one text, which is given as it is in JSON.
fn text(text: impl std::fmt::Display) -> String {
    format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#)
}

/// The calls that came out of their order.
#[derive(Default)]
struct Order {
    highest: u64,
    inversions: u64,
}

impl Order {
    fn arrived(&mut self, message: &[u8]) -> u64 {
        const NAME: &[u8] = br#""number":"#;
        let start = message.windows(NAME.len()).position(|w| w == NAME);
        let start = start.expect("a numbered call") + NAME.len();
        let digits = message[start..].iter().take_while(|b| b.is_ascii_digit());
        let number = digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        if number < self.highest {
            self.inversions += 1;
        }
        self.highest = self.highest.max(number);
        self.inversions
    }
}

/// Answers lines without reading more of them than their id.
pub(crate) struct Script {
    greeted: bool,
    answer: Answer,
    result: Vec<u8>,
    order: Order,
}

impl Script {
    pub(crate) fn new(answer: Answer) -> Self {
        Self {
            greeted: false,
            answer,
            result: answer.result().into_bytes(),
            order: Order::default(),
        }
    }

    /// Writes the answer to a message, unless it has none.
    pub(crate) fn answer(&mut self, message: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(id) = id(message) else { return false };
        let greeting = !self.greeted && holds(message, br#""method":"initialize""#);
        if !greeting {
            match self.answer {
                Answer::Never => return false,
                Answer::Inversions => {
                    self.result = text(self.order.arrived(message)).into_bytes();
                }
                _ => {}
            }
        }
        out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        out.extend_from_slice(id);
        out.extend_from_slice(br#","result":"#);
        out.extend_from_slice(if greeting { GREETING } else { &self.result });
        out.extend_from_slice(b"}");
        true
    }

    /// Answers every whole line, and keeps the rest of `read` for the next time.
    fn answer_lines(&mut self, read: &mut Vec<u8>, out: &mut Vec<u8>) {
        let mut done = 0;
        while let Some(length) = read[done..].iter().position(|b| *b == b'\n') {
            if self.answer(&read[done..done + length], out) {
                out.push(b'\n');
                // One greeting is all that a connection has.
                self.greeted = true;
            }
            done += length + 1;
        }
        read.drain(..done);
    }
}

const GREETING: &[u8] = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}"#;

/// The bytes of a message's id. The clients write it before anything that could hold the like.
fn id(message: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = br#""id":"#;
    let start = message.windows(NAME.len()).position(|w| w == NAME)? + NAME.len();
    let length = message[start..]
        .iter()
        .position(|b| matches!(b, b',' | b'}'))?;
    Some(&message[start..start + length])
}

fn holds(message: &[u8], part: &[u8]) -> bool {
    message.windows(part.len()).any(|w| w == part)
}

/// The client's end of an in-memory pipe, at whose other end a task answers.
///
/// The task is on the client's runtime. A thread of its own would make every call wait for two
/// wake-ups of a thread, which are the kernel's and the same for both sides.
pub(crate) fn in_memory(answer: Answer) -> DuplexStream {
    let (client, server) = tokio::io::duplex(PIPE);
    let (read, write) = tokio::io::split(server);
    tokio::spawn(respond(read, write, Script::new(answer)));
    client
}

async fn respond(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    mut script: Script,
) {
    let (mut lines, mut out) = (Vec::new(), Vec::new());
    while matches!(read.read_buf(&mut lines).await, Ok(1..)) {
        script.answer_lines(&mut lines, &mut out);
        if !out.is_empty() && write.write_all(&out).await.is_err() {
            return;
        }
        out.clear();
    }
}

/// The argument with which this program is a server on its standard streams.
pub(crate) const SERVE: &str = "--serve-stdio";

/// Serves on the standard streams of this process, without a runtime.
pub(crate) fn serve_stdio(answer: Answer) {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut script = Script::new(answer);
    let (mut chunk, mut lines, mut out) = (vec![0; CHUNK], Vec::new(), Vec::new());
    while let Ok(length @ 1..) = input.read(&mut chunk) {
        lines.extend_from_slice(&chunk[..length]);
        script.answer_lines(&mut lines, &mut out);
        if output
            .write_all(&out)
            .and_then(|()| output.flush())
            .is_err()
        {
            return;
        }
        out.clear();
    }
}

pub(crate) fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("this program has a path")
}
