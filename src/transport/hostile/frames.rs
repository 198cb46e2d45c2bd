//! Frames, however the stream is cut.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use proptest::prelude::*;
use serde_json::Value;
use tokio::io::{AsyncRead, ReadBuf};

use super::{bytes, cases, message};
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

fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(std::task::Waker::noop()))
    {
        Poll::Ready(ready) => ready,
        Poll::Pending => panic!("the stream never waits"),
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn frames_are_the_same_however_the_stream_is_cut_and_memory_is_bounded(
        messages in prop::collection::vec(bytes(), 0..6),
        ends in prop::sample::select(vec!["\n", "\r\n", "\n\n"]),
        sizes in prop::collection::vec(1_usize..3_000, 1..6),
        small in prop::collection::vec(1_usize..7, 1..4),
        limit in prop::sample::select(vec![0, 1, 16, 100, 1_000, 100_000]),
    ) {
        let stream = messages.join(ends.as_bytes());
        let expected = lines(&stream, limit);
        for sizes in [&sizes, &small] {
            let (read, kept) = at_once(read(Pieces::of(&stream, sizes), limit));
            prop_assert_eq!(&read, &expected, "a line beside its limit {}", limit);
            prop_assert!(kept <= 2 * limit + 128 * 1024, "{} bytes kept", kept);
        }
    }

    #[test]
    fn an_id_that_is_found_is_the_id(message in message()) {
        let Ok(value) = serde_json::from_str::<Value>(&message) else {
            return Ok(());
        };
        let whole = |value: &Value| match value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        // Of a name that comes twice, and one written with escapes, it may find another or none.
        let names = message.matches("\"id\"").count() + message.matches("i\\u0064").count();
        if let Some(found) = id_in(message.as_bytes())
            && names == 1
        {
            prop_assert_eq!(value.get("id").and_then(whole), Some(found), "{}", message);
        }
    }

    #[test]
    fn no_bytes_make_the_search_for_an_id_panic(bytes in bytes(), cut in any::<prop::sample::Index>()) {
        let _ = id_in(&bytes);
        let _ = id_in(&bytes[..cut.index(bytes.len() + 1)]);
    }
}

#[test]
fn a_line_without_an_end_is_not_kept() {
    let stream = tokio::io::AsyncReadExt::take(tokio::io::repeat(b'x'), 64 << 20);
    let mut reader = FrameReader::new(stream, 10_000);
    let frame = at_once(reader.next()).unwrap();
    assert_eq!(frame, Frame::TooLarge(None));
    assert!(reader.kept() <= 64 * 1024, "{}", reader.kept());
}

#[test]
fn a_number_that_is_no_whole_one_is_no_id() {
    for (frame, id) in [
        (r#"{"id":7}"#, Some(7)),
        (r#"{"id": 7 ,"result":{}}"#, Some(7)),
        (r#"{"id":"7"}"#, Some(7)),
        (r#"{"id":7.5}"#, None),
        (r#"{"id":7e1}"#, None),
        (r#"{"id":"call-7"}"#, None),
        (r#"{"id":"7 5"}"#, None),
        (r#"{"id":"\u0037"}"#, None),
        (r#"{"id":00000000000000000007}"#, None),
        (r#"{"id":-123456789012345678901}"#, None),
        (r#"{"id":null}"#, None),
        (r#"{"id":[7]}"#, None),
        (r#"{"id":{"id":7}}"#, None),
    ] {
        assert_eq!(id_in(frame.as_bytes()), id, "{frame}");
    }
}
