//! Frames: lines of bytes in, JSON-RPC messages out, and what can be told of a broken one.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// One frame as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A whole line, without its end.
    Line(Vec<u8>),
    /// A line over the limit, dropped; with the id that it answers, where one could be found.
    TooLarge(Option<i64>),
    /// The stream ended; with what stood behind the last line end.
    End(Vec<u8>),
}

/// Reads lines within a limit. Every read can be dropped and taken up again.
pub(super) struct FrameReader<R> {
    stream: R,
    buffer: Vec<u8>,
    /// Up to where `buffer` is known to hold no line end.
    scanned: usize,
    limit: usize,
    skipping: Option<IdScanner>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(stream: R, limit: usize) -> Self {
        Self {
            stream,
            buffer: Vec::with_capacity(8 * 1024),
            scanned: 0,
            limit,
            skipping: None,
        }
    }

    pub(super) async fn next(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.take_buffered() {
                return Ok(frame);
            }
            self.buffer.reserve(8 * 1024);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                self.scanned = 0;
                return Ok(match self.skipping.take() {
                    Some(scanner) => Frame::TooLarge(scanner.found()),
                    None => Frame::End(std::mem::take(&mut self.buffer)),
                });
            }
        }
    }

    /// How much memory it holds.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.buffer.capacity()
    }

    fn take_buffered(&mut self) -> Option<Frame> {
        let end = self.buffer[self.scanned..].iter().position(|b| *b == b'\n');
        let Some(end) = end.map(|at| self.scanned + at) else {
            self.scanned = self.buffer.len();
            // The last byte may be the first one of the line's end.
            let line = self.buffer.strip_suffix(b"\r").unwrap_or(&self.buffer);
            if self.skipping.is_some() || line.len() > self.limit {
                let scanner = self.skipping.get_or_insert_default();
                scanner.feed(&self.buffer);
                self.buffer.clear();
                self.scanned = 0;
            }
            return None;
        };
        let rest = self.buffer.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        self.scanned = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if let Some(mut scanner) = self.skipping.take() {
            scanner.feed(&line);
            return Some(Frame::TooLarge(scanner.found()));
        }
        if line.len() > self.limit {
            return Some(Frame::TooLarge(id_in(&line)));
        }
        Some(Frame::Line(line))
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

    async fn frames(bytes: &[u8], limit: usize) -> Vec<Frame> {
        let mut reader = FrameReader::new(bytes, limit);
        let mut all = Vec::new();
        loop {
            let frame = reader.next().await.unwrap();
            let end = matches!(frame, Frame::End(_));
            all.push(frame);
            if end {
                return all;
            }
        }
    }

    #[tokio::test]
    async fn lines_are_split_wherever_the_bytes_are_cut() {
        let text = b"one\r\n\ntwo\nrest";
        for cut in 0..text.len() {
            let stream = tokio::io::AsyncReadExt::chain(&text[..cut], &text[cut..]);
            let mut reader = FrameReader::new(stream, 100);
            assert_eq!(reader.next().await.unwrap(), Frame::Line(b"one".to_vec()));
            assert_eq!(reader.next().await.unwrap(), Frame::Line(vec![]));
            assert_eq!(reader.next().await.unwrap(), Frame::Line(b"two".to_vec()));
            assert_eq!(reader.next().await.unwrap(), Frame::End(b"rest".to_vec()));
        }
    }

    #[tokio::test]
    async fn a_line_over_the_limit_is_dropped_and_its_id_is_known() {
        let big = format!(
            "{{\"result\":{{\"id\":1,\"t\":\"{}\"}},\"id\":42}}\nnext\n",
            "x\\\"}".repeat(20_000)
        );
        let all = frames(big.as_bytes(), 1_000).await;
        assert_eq!(all[0], Frame::TooLarge(Some(42)));
        assert_eq!(all[1], Frame::Line(b"next".to_vec()));
    }

    #[tokio::test]
    async fn a_line_of_the_limit_is_read_wherever_its_end_is_cut() {
        let text = b"12345\r\nrest";
        for cut in 0..text.len() {
            let stream = tokio::io::AsyncReadExt::chain(&text[..cut], &text[cut..]);
            let mut reader = FrameReader::new(stream, 5);
            assert_eq!(reader.next().await.unwrap(), Frame::Line(b"12345".to_vec()));
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
