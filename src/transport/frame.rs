//! Frames: lines of bytes in, JSON-RPC messages out, and what can be told of a broken one.

use std::{io, ops::Range};

use rmcp::model::RequestId;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// One frame as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole line, without its end.
    Line(Line),
    /// A line over the limit, dropped; with the id that it answers, where one could be found.
    TooLarge(Option<i64>),
    /// The stream ended; with what stood behind the last line end.
    End(Line),
}

/// A line that stands among the [`Lines`] until the next read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line(Range<usize>);

/// How much room there is for the first read. It doubles with each read that fills it, so that a quiet
/// connection holds little, and a busy one reads much at once.
const LEAST_ROOM: usize = 1024;
const MOST_ROOM: usize = 32 * 1024;

/// The most that one read takes. A pipe has room for twice as much (Linux, pipe(7)): who writes into it is
/// woken by this read and goes on beside the next, where a pipe that is read empty has both wait in turns.
const MOST_AT_ONCE: u64 = 32 * 1024;

/// The most that is kept for the next lines when there is none. A line that is longer is taken to be as
/// long as the last such line was, so that its memory is got at once: growing by and by touches half as
/// much again, and memory that is touched for the first time costs more than what is read into it.
const KEPT: usize = 64 * 1024;

/// The longest line that is reckoned with.
const LONGEST: usize = 8 * 1024 * 1024;

/// What was read and not taken yet.
///
/// A line is handed out where it stands. It is moved only where it is [taken](Self::take), or where a
/// read needs the room in front of it.
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// Up to where `buffer` was handed out.
    handed_out: usize,
    /// Up to where it is known to hold no line end.
    scanned: usize,
    /// How much a read may bring, at least.
    room: usize,
    /// How long the last line was that was taken.
    taken: usize,
}

impl Lines {
    pub(super) fn bytes(&self, line: &Line) -> &[u8] {
        self.buffer.get(line.0.clone()).unwrap_or_default()
    }

    /// Takes the last line that was handed out, with the memory in which it stands.
    pub(super) fn take(&mut self, line: Line) -> Vec<u8> {
        let rest = self.buffer.split_off(self.handed_out);
        let mut whole = std::mem::replace(&mut self.buffer, rest);
        self.handed_out = 0;
        self.scanned = 0;
        whole.truncate(line.0.end);
        whole.drain(..line.0.start);
        self.taken = whole.len().min(LONGEST);
        whole
    }

    fn waiting(&self) -> &[u8] {
        self.buffer.get(self.handed_out..).unwrap_or_default()
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.handed_out = 0;
        self.scanned = 0;
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
    }

    /// Has the next read bring more, if the last one brought all that it could.
    fn widen(&mut self) {
        if self.buffer.len() == self.buffer.capacity() {
            self.room = (2 * self.room).min(MOST_ROOM);
        }
    }

    /// The rest of the buffer, to be read into.
    fn room(&mut self) -> &mut Vec<u8> {
        if self.handed_out == self.buffer.len() {
            self.clear();
        } else if self.buffer.capacity() - self.buffer.len() < self.room {
            self.buffer.drain(..self.handed_out);
            self.scanned -= self.handed_out;
            self.handed_out = 0;
        }
        let expected = match self.buffer.len() >= KEPT {
            // And some more, since two are rarely of one length.
            true => (self.taken + self.taken / 8).saturating_sub(self.buffer.len()),
            false => 0,
        };
        self.buffer.reserve(expected.max(self.room));
        &mut self.buffer
    }

    /// The next whole line.
    fn next(&mut self) -> Option<Line> {
        let unread = self.buffer.get(self.scanned..)?;
        let Some(end) = memchr::memchr(b'\n', unread) else {
            self.scanned = self.buffer.len();
            return None;
        };
        let from = self.handed_out;
        let mut to = self.scanned + end;
        self.handed_out = to + 1;
        self.scanned = self.handed_out;
        if to > from && self.buffer.get(to - 1) == Some(&b'\r') {
            to -= 1;
        }
        Some(Line(from..to))
    }

    /// All that is left.
    fn rest(&mut self) -> Line {
        let from = std::mem::replace(&mut self.handed_out, self.buffer.len());
        self.scanned = self.handed_out;
        Line(from..self.handed_out)
    }
}

/// Reads lines within a limit. Every read can be dropped and taken up again.
pub(super) struct FrameReader<R> {
    stream: R,
    pub(super) lines: Lines,
    limit: usize,
    skipping: Option<IdScanner>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R, limit: usize) -> Self {
        let lines = Lines {
            buffer: Vec::new(),
            handed_out: 0,
            scanned: 0,
            room: LEAST_ROOM,
            taken: 0,
        };
        Self {
            stream,
            lines,
            limit,
            skipping: None,
        }
    }

    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.take_buffered() {
                return Ok(frame);
            }
            let mut stream = (&mut self.stream).take(MOST_AT_ONCE);
            if stream.read_buf(self.lines.room()).await? == 0 {
                return Ok(match self.skipping.take() {
                    Some(scanner) => Frame::TooLarge(scanner.found()),
                    None => Frame::End(self.lines.rest()),
                });
            }
            self.lines.widen();
        }
    }

    /// How much memory it holds.
    #[cfg(any(test, fuzzing))]
    pub(super) fn kept(&self) -> usize {
        self.lines.buffer.capacity()
    }

    fn take_buffered(&mut self) -> Option<Frame> {
        let Some(line) = self.lines.next() else {
            let waiting = self.lines.waiting();
            // The last byte may be the first one of the line's end.
            let line = waiting.strip_suffix(b"\r").unwrap_or(waiting);
            if self.skipping.is_some() || line.len() > self.limit {
                self.skipping.get_or_insert_default().feed(waiting);
                self.lines.clear();
            }
            return None;
        };
        let bytes = self.lines.bytes(&line);
        if let Some(mut scanner) = self.skipping.take() {
            scanner.feed(bytes);
            return Some(Frame::TooLarge(scanner.found()));
        }
        if bytes.len() > self.limit {
            return Some(Frame::TooLarge(id_in(bytes)));
        }
        Some(Frame::Line(line))
    }
}

/// An id as a number. Some servers send it back as a text.
pub(super) fn number_of(id: &RequestId) -> Option<i64> {
    match id {
        RequestId::Number(n) => Some(*n),
        RequestId::String(s) => s.parse().ok(),
    }
}

/// The id of the message in `bytes`, although the message as a whole cannot be read.
pub(crate) fn id_in(bytes: &[u8]) -> Option<i64> {
    let mut scanner = IdScanner::default();
    scanner.feed(bytes);
    scanner.found()
}

/// The bytes of `i64::MIN`.
const LONGEST_ID: usize = 20;

/// Finds the numeric `"id"` of a JSON object piece by piece, without keeping the object.
///
/// It looks at the object's own members only, so an `"id"` inside a result is not mistaken for it.
#[derive(Debug, Default)]
struct IdScanner {
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// The string being read at depth 1, or the last one, up to three bytes of it.
    text: Vec<u8>,
    /// Behind the colon of `"id"`.
    in_id: bool,
    number: Vec<u8>,
}

impl IdScanner {
    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.step(byte);
        }
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            if self.in_string && self.depth == 1 {
                if self.in_id {
                    self.digit(byte);
                } else if self.text.len() < 3 {
                    self.text.push(byte);
                }
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if !self.in_id {
                    self.text.clear();
                }
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.text.clear();
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_id = false;
            }
            b':' if self.depth == 1 && self.text == b"id" && self.number.is_empty() => {
                self.in_id = true;
            }
            b',' if self.depth == 1 => {
                self.in_id = false;
                self.text.clear();
            }
            b' ' | b'\t' | b'\r' | b'\n' => self.in_id &= self.number.is_empty(),
            _ if self.in_id && self.depth == 1 => self.digit(byte),
            _ => {}
        }
    }

    /// One more than the longest number has, so that what is no whole number is not cut to one.
    fn digit(&mut self, byte: u8) {
        if self.number.len() <= LONGEST_ID {
            self.number.push(byte);
        }
    }

    fn found(&self) -> Option<i64> {
        let text = std::str::from_utf8(&self.number).ok()?;
        let number: i64 = text.parse().ok()?;
        // Neither "+7" nor "007" is how we write one.
        (number.to_string() == text).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Read {
        Line(Vec<u8>),
        TooLarge(Option<i64>),
        End(Vec<u8>),
    }

    async fn next<R: AsyncRead + Unpin>(reader: &mut FrameReader<R>) -> Read {
        match reader.next().await.unwrap() {
            Frame::Line(line) => Read::Line(reader.lines.bytes(&line).to_vec()),
            Frame::TooLarge(id) => Read::TooLarge(id),
            Frame::End(rest) => Read::End(reader.lines.bytes(&rest).to_vec()),
        }
    }

    #[tokio::test]
    async fn lines_are_split_wherever_the_bytes_are_cut() {
        let text = b"one\r\n\ntwo\nrest";
        for cut in 0..text.len() {
            let stream = tokio::io::AsyncReadExt::chain(&text[..cut], &text[cut..]);
            let mut reader = FrameReader::new(stream, 100);
            assert_eq!(next(&mut reader).await, Read::Line(b"one".to_vec()));
            assert_eq!(next(&mut reader).await, Read::Line(vec![]));
            assert_eq!(next(&mut reader).await, Read::Line(b"two".to_vec()));
            assert_eq!(next(&mut reader).await, Read::End(b"rest".to_vec()));
        }
    }

    /// Reads a line in pieces and takes it. How often its memory grew.
    fn growths(lines: &mut Lines, length: usize) -> usize {
        let line = [vec![b'x'; length], b"\n".to_vec()].concat();
        let mut growths = 0;
        for piece in line.chunks(MOST_ROOM) {
            let before = lines.buffer.capacity();
            lines.room().extend_from_slice(piece);
            growths += usize::from(lines.buffer.capacity() != before);
            lines.widen();
            if let Some(line) = lines.next() {
                assert_eq!(lines.take(line).len(), length);
            }
        }
        growths
    }

    #[test]
    fn the_memory_of_a_long_line_is_got_at_once_where_the_last_one_was_as_long() {
        let mut lines = FrameReader::new(tokio::io::empty(), usize::MAX).lines;
        let short = growths(&mut lines, KEPT);
        assert!(growths(&mut lines, 20 * KEPT) > short + 3);
        for length in [20 * KEPT, 22 * KEPT, 15 * KEPT] {
            assert!(growths(&mut lines, length) <= short + 1, "{length}");
        }
        // No more than that is got, once the lines are shorter.
        growths(&mut lines, 2 * KEPT);
        lines.room().extend_from_slice(&[b'x'; KEPT]);
        assert!(lines.room().capacity() <= 4 * KEPT);
    }

    #[tokio::test]
    async fn a_line_that_is_taken_leaves_the_others_in_place() {
        let big = "x".repeat(3 * KEPT);
        let text = format!("one\n{big}\r\nthree\nfour\n{big}\nsix");
        let mut reader = FrameReader::new(text.as_bytes(), 10 * KEPT);
        assert_eq!(next(&mut reader).await, Read::Line(b"one".to_vec()));
        let Frame::Line(line) = reader.next().await.unwrap() else {
            panic!("it is a line");
        };
        assert_eq!(reader.lines.take(line), big.as_bytes());
        assert_eq!(next(&mut reader).await, Read::Line(b"three".to_vec()));
        let Frame::Line(line) = reader.next().await.unwrap() else {
            panic!("it is a line");
        };
        assert_eq!(reader.lines.take(line), b"four");
        assert_eq!(
            next(&mut reader).await,
            Read::Line(big.clone().into_bytes())
        );
        assert_eq!(next(&mut reader).await, Read::End(b"six".to_vec()));
    }

    #[tokio::test]
    async fn the_room_that_a_large_line_took_is_given_back() {
        let text = format!("{}\n", "x".repeat(4 * KEPT));
        let mut reader = FrameReader::new(text.as_bytes(), 10 * KEPT);
        assert!(matches!(reader.next().await.unwrap(), Frame::Line(_)));
        assert!(matches!(reader.next().await.unwrap(), Frame::End(_)));
        assert!(reader.lines.buffer.capacity() <= KEPT);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_dropped_and_its_id_is_known() {
        let big = format!(
            "{{\"result\":{{\"id\":1,\"t\":\"{}\"}},\"id\":42}}\nnext\n",
            "x\\\"}".repeat(20_000)
        );
        let mut reader = FrameReader::new(big.as_bytes(), 1_000);
        assert_eq!(next(&mut reader).await, Read::TooLarge(Some(42)));
        assert_eq!(next(&mut reader).await, Read::Line(b"next".to_vec()));
    }

    #[tokio::test]
    async fn a_line_of_the_limit_is_read_wherever_its_end_is_cut() {
        let text = b"12345\r\nrest";
        for cut in 0..text.len() {
            let stream = tokio::io::AsyncReadExt::chain(&text[..cut], &text[cut..]);
            let mut reader = FrameReader::new(stream, 5);
            assert_eq!(next(&mut reader).await, Read::Line(b"12345".to_vec()));
        }
    }

    #[test]
    fn the_id_is_found_among_anything() {
        assert_eq!(
            id_in(br#"{"jsonrpc":"2.0","id":7,"result":{"id":9}}"#),
            Some(7)
        );
        assert_eq!(id_in(br#"{"id":"8","x":[{"id":1}]}"#), Some(8));
        assert_eq!(id_in(b"{\"id\":5,\"result\":\"\xff\xfe\"}"), Some(5));
        assert_eq!(id_in(br#"{"ids":7,"result":{"id":9}}"#), None);
        assert_eq!(id_in(br#"{"x":"id","y":7}"#), None);
        assert_eq!(id_in(b"{not json"), None);
        assert_eq!(id_in(b"42"), None);
    }
}
