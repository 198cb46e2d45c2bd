//! Frames, however the stream is cut.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use serde_json::Value;
use tokio::io::{AsyncRead, ReadBuf};

use crate::transport::frame::{Frame, FrameReader, id_in};

/// A stream that gives its bytes in pieces, and now and then nothing yet.
struct Pieces(VecDeque<Vec<u8>>);

impl Pieces {
    fn of(bytes: &[u8], sizes: &[usize]) -> Self {
        let (mut rest, mut pieces) = (bytes, VecDeque::new());
        let mut sizes = sizes.iter().copied().cycle();
        while !rest.is_empty() {
            let size = sizes.next().unwrap_or(1).clamp(1, rest.len());
            let (piece, left) = rest.split_at(size);
            pieces.push_back(piece.to_vec());
            rest = left;
        }
        Self(pieces)
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(mut piece) = self.0.pop_front() {
            let fits = piece.len().min(into.remaining());
            let left = piece.split_off(fits);
            into.put_slice(&piece);
            if !left.is_empty() {
                self.0.push_front(left);
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    Line(Vec<u8>),
    TooLarge(Option<i64>),
}

/// Everything that a reader makes of a stream, and the most that it kept meanwhile.
async fn read(stream: Pieces, limit: usize) -> (Vec<Read>, usize) {
    let mut reader = FrameReader::new(stream, limit);
    let (mut all, mut kept) = (Vec::new(), 0);
    loop {
        let frame = reader.next().await.expect("the stream never fails");
        kept = kept.max(reader.kept());
        match frame {
            Frame::Line(line) => all.push(Read::Line(reader.lines.bytes(&line).to_vec())),
            Frame::TooLarge(id) => all.push(Read::TooLarge(id)),
            Frame::End(rest) => {
                all.push(Read::Line(reader.lines.bytes(&rest).to_vec()));
                return (all, kept);
            }
        }
    }
}

/// The same by the shortest way, from all bytes at once.
fn lines(bytes: &[u8], limit: usize) -> Vec<Read> {
    let mut all: Vec<_> = bytes.split(|b| *b == b'\n').collect();
    let rest = all.pop().unwrap_or_default();
    let mut read: Vec<_> = all
        .into_iter()
        .map(|line| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match line.len() > limit {
                true => Read::TooLarge(id_in(line)),
                false => Read::Line(line.to_vec()),
            }
        })
        .collect();
    match rest.strip_suffix(b"\r").unwrap_or(rest).len() > limit {
        true => read.extend([Read::TooLarge(id_in(rest)), Read::Line(Vec::new())]),
        false => read.push(Read::Line(rest.to_vec())),
    }
    read
}

pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(std::task::Waker::noop()))
    {
        Poll::Ready(ready) => ready,
        Poll::Pending => panic!("the stream never waits"),
    }
}

/// The lines of a stream are the same however it is cut, and what is kept is bounded.
pub(super) fn same_however_cut(stream: &[u8], sizes: &[usize], limit: usize) {
    let expected = lines(stream, limit);
    let (read, kept) = at_once(read(Pieces::of(stream, sizes), limit));
    assert_eq!(read, expected, "a line beside its limit {limit}");
    assert!(kept <= 2 * limit + 128 * 1024, "{kept} bytes kept");
}

/// An id that is found without decoding is the id.
pub(super) fn id_is_the_id(text: &str) {
    let found = id_in(text.as_bytes());
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return;
    };
    let whole = |value: &Value| match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    // Of a name that comes twice, and one written with escapes, it may find another or none.
    let is_once = text.matches("\"id\"").count() == 1 && !text.contains("\\u");
    if let Some(found) = found.filter(|_| is_once && value.is_object()) {
        assert_eq!(value.get("id").and_then(whole), Some(found), "{text}");
    }
}

/// Both, for any bytes: the first two say how the rest is cut, and where the limit is.
pub(crate) fn frames(bytes: &[u8]) {
    let [cut, limit, stream @ ..] = bytes else {
        return;
    };
    let sizes = [
        1 + usize::from(cut & 7),
        1 + usize::from(cut >> 3) * 40,
        3_000,
    ];
    let limit = [0, 1, 16, 100, 1_000, 100_000][usize::from(*limit) % 6];
    same_however_cut(stream, &sizes, limit);
    for line in stream.split(|byte| *byte == b'\n') {
        if let Ok(text) = str::from_utf8(line) {
            id_is_the_id(text);
        }
    }
}
