//! One walk over a JSON text: what it is valid by, and where its parts stand.
//!
//! A walk takes what serde_json takes when it reads every value, and nothing else: the same grammar, the
//! same depth, no number that no `f64` can hold, no lone surrogate. What it was walked over can be read
//! later, and will be found good.

/// How deep serde_json lets values be nested.
const DEEPEST: u32 = 127;

/// The number of digits from which on a number without an exponent may be too large for an `f64`.
const MANY_DIGITS: usize = 300;

/// A string as it stands between its quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text<'a> {
    /// With its quotes.
    quoted: &'a str,
    escapes: bool,
}

impl<'a> Text<'a> {
    /// The string, where it holds no escape.
    pub(super) fn plain(self) -> Option<&'a str> {
        let inner = self.quoted.get(1..self.quoted.len() - 1)?;
        (!self.escapes).then_some(inner)
    }

    pub(super) fn to_owned(self) -> Option<String> {
        match self.plain() {
            Some(plain) => Some(plain.to_owned()),
            None => serde_json::from_str(self.quoted).ok(),
        }
    }
}

/// A place in a JSON text. `None` of any step: from here on it is no JSON, or none that a short way is
/// for.
pub(super) struct Walk<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Walk<'a> {
    pub(super) fn over(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
        }
    }

    /// The first byte of what comes next, behind any white space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let (byte, at) = behind_space(self.text.as_bytes(), self.at)?;
        self.at = at;
        Some(byte)
    }

    /// Nothing but white space is left.
    pub(super) fn end(&mut self) -> Option<()> {
        let left = behind_space(self.text.as_bytes(), self.at);
        left.is_none().then_some(())
    }

    /// The members of an object. `member` has to walk over each value. A key with an escape in it is
    /// none that is looked for, and could be one all the same.
    pub(super) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &'a str) -> Option<()>,
    ) -> Option<()> {
        self.open(b'{')?;
        if self.peek()? == b'}' {
            return self.close();
        }
        loop {
            let key = self.key()?.plain()?;
            member(self, key)?;
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => return self.close(),
                _ => return None,
            }
        }
    }

    /// The elements of an array. `element` has to walk over each.
    pub(super) fn array(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.open(b'[')?;
        if self.peek()? == b']' {
            return self.close();
        }
        loop {
            element(self)?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => return self.close(),
                _ => return None,
            }
        }
    }

    fn open(&mut self, bracket: u8) -> Option<()> {
        if self.peek()? != bracket || self.depth == DEEPEST {
            return None;
        }
        self.at += 1;
        self.depth += 1;
        Some(())
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "it is the end of steps that can fail"
    )]
    fn close(&mut self) -> Option<()> {
        self.at += 1;
        self.depth -= 1;
        Some(())
    }

    fn key(&mut self) -> Option<Text<'a>> {
        let key = self.string()?;
        if self.peek()? != b':' {
            return None;
        }
        self.at += 1;
        Some(key)
    }

    /// The text of the next value, over which `walked` walks.
    pub(super) fn part(&mut self, walked: impl FnOnce(&mut Self) -> Option<()>) -> Option<&'a str> {
        self.peek()?;
        let from = self.at;
        walked(self)?;
        self.text.get(from..self.at)
    }

    /// Walks over the next value, whatever it is, and gives its text.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        self.peek()?;
        let from = self.at;
        self.pass()?;
        self.text.get(from..self.at)
    }

    fn pass(&mut self) -> Option<()> {
        self.at = behind_value(self.text.as_bytes(), self.at, self.depth)?;
        Some(())
    }

    /// Walks over a string.
    pub(super) fn string(&mut self) -> Option<Text<'a>> {
        if self.peek()? != b'"' {
            return None;
        }
        let from = self.at;
        let (to, escapes) = behind_string(self.text.as_bytes(), from + 1)?;
        self.at = to;
        let quoted = self.text.get(from..to)?;
        Some(Text { quoted, escapes })
    }
}

/// Where the next byte that is no white space stands.
#[inline]
fn behind_space(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        match *bytes.get(at)? {
            b' ' | b'\n' | b'\t' | b'\r' => at += 1,
            byte => return Some((byte, at)),
        }
    }
}

/// The end of a value that begins at `at` or behind white space there, within `depth` others.
fn behind_value(bytes: &[u8], mut at: usize, depth: u32) -> Option<usize> {
    // Of each value that is open, from the lowest bit on, whether it is an object.
    let mut objects = 0_u128;
    let mut open = depth;
    loop {
        let (first, from) = behind_space(bytes, at)?;
        at = match first {
            b'"' => behind_string(bytes, from + 1)?.0,
            b'{' | b'[' => {
                if open == DEEPEST {
                    return None;
                }
                let is_object = first == b'{';
                match behind_space(bytes, from + 1)? {
                    (b'}', end) if is_object => end + 1,
                    (b']', end) if !is_object => end + 1,
                    (_, next) => {
                        open += 1;
                        objects = objects << 1 | u128::from(is_object);
                        at = match is_object {
                            true => behind_key(bytes, next)?,
                            false => next,
                        };
                        continue;
                    }
                }
            }
            b'-' | b'0'..=b'9' => behind_number(bytes, from)?,
            b't' => behind_word(bytes, from, b"true")?,
            b'f' => behind_word(bytes, from, b"false")?,
            b'n' => behind_word(bytes, from, b"null")?,
            _ => return None,
        };
        loop {
            if open == depth {
                return Some(at);
            }
            let in_object = objects & 1 == 1;
            match behind_space(bytes, at)? {
                (b',', next) => {
                    at = match in_object {
                        true => behind_key(bytes, next + 1)?,
                        false => next + 1,
                    };
                    break;
                }
                (b'}', end) if in_object => at = end + 1,
                (b']', end) if !in_object => at = end + 1,
                _ => return None,
            }
            open -= 1;
            objects >>= 1;
        }
    }
}

/// The end of a key and its colon.
#[inline]
fn behind_key(bytes: &[u8], at: usize) -> Option<usize> {
    let (b'"', from) = behind_space(bytes, at)? else {
        return None;
    };
    let (to, _) = behind_string(bytes, from + 1)?;
    match behind_space(bytes, to)? {
        (b':', colon) => Some(colon + 1),
        _ => None,
    }
}

fn behind_word(bytes: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    let rest = bytes.get(at..)?;
    rest.starts_with(word).then_some(at + word.len())
}

fn behind_digits(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    while bytes.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    (at > from).then_some(at)
}

fn behind_number(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    if bytes.get(at) == Some(&b'-') {
        at += 1;
    }
    let digits = at;
    at = behind_digits(bytes, at)?;
    if bytes.get(digits) == Some(&b'0') && at > digits + 1 {
        return None;
    }
    if bytes.get(at) == Some(&b'.') {
        at = behind_digits(bytes, at + 1)?;
    }
    let exponent = matches!(bytes.get(at), Some(b'e' | b'E'));
    if exponent {
        at += 1;
        if matches!(bytes.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        at = behind_digits(bytes, at)?;
    }
    if exponent || at - from > MANY_DIGITS {
        let number: f64 = str::from_utf8(bytes.get(from..at)?).ok()?.parse().ok()?;
        return number.is_finite().then_some(at);
    }
    Some(at)
}

/// The end of a string whose first byte stands at `at`, and whether it holds escapes.
#[inline]
fn behind_string(bytes: &[u8], mut at: usize) -> Option<(usize, bool)> {
    let mut escapes = false;
    loop {
        at = next_of_note(bytes, at)?;
        match *bytes.get(at)? {
            b'"' => return Some((at + 1, escapes)),
            b'\\' => {
                escapes = true;
                at = behind_escape(bytes, at + 1)?;
            }
            // A control character.
            _ => return None,
        }
    }
}

fn is_of_note(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..0x20)
}

/// Where the first quote, backslash or control character stands from `at` on.
#[inline]
fn next_of_note(bytes: &[u8], mut at: usize) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let mut steps = 0;
    // Eight bytes at a time: of each, its highest bit tells. A byte below that borrows from is one itself,
    // so that the lowest one that is found is one.
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let eight = u64::from_le_bytes(*eight);
        let quote = eight ^ (ONES * b'"' as u64);
        let backslash = eight ^ (ONES * b'\\' as u64);
        let found = (quote.wrapping_sub(ONES) & !quote
            | backslash.wrapping_sub(ONES) & !backslash
            | eight.wrapping_sub(ONES * 0x20) & !eight)
            & HIGH;
        if found != 0 {
            return Some(at + (found.trailing_zeros() / 8) as usize);
        }
        at += 8;
        steps += 1;
        if steps == 4 {
            steps = 0;
            at = behind_blocks(bytes, at);
        }
    }
    let rest = bytes.get(at..)?;
    let found = rest.iter().position(|byte| is_of_note(*byte));
    found.map(|found| at + found)
}

/// Where the first block with a byte of note begins, or the last one that is not whole. Long strings are
/// passed by blocks that a compiler turns into wide instructions.
#[inline(never)]
fn behind_blocks(bytes: &[u8], mut at: usize) -> usize {
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk::<64>) {
        if block
            .iter()
            .fold(false, |any, byte| any | is_of_note(*byte))
        {
            break;
        }
        at += block.len();
    }
    at
}

fn behind_escape(bytes: &[u8], at: usize) -> Option<usize> {
    match bytes.get(at)? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(at + 1),
        b'u' => match four_digits(bytes, at + 1)? {
            0xDC00..=0xDFFF => None,
            0xD800..=0xDBFF => {
                let pair = bytes.get(at + 5..at + 7)?;
                let second = four_digits(bytes, at + 7)?;
                (pair == b"\\u" && (0xDC00..=0xDFFF).contains(&second)).then_some(at + 11)
            }
            _ => Some(at + 5),
        },
        _ => None,
    }
}

fn four_digits(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |sum, digit| {
        Some(sum << 4 | char::from(*digit).to_digit(16)?)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn is_walkable(text: &str) -> bool {
        let mut walk = Walk::over(text);
        walk.value().is_some() && walk.end().is_some()
    }

    fn same(text: &str) {
        let read = serde_json::from_str::<Value>(text).is_ok();
        assert_eq!(is_walkable(text), read, "{text:?}");
    }

    #[test]
    fn what_serde_json_reads_is_walked_over_and_nothing_else() {
        for text in [
            "",
            " ",
            "1",
            "-1",
            "-",
            "01",
            "-0",
            "1.",
            ".5",
            "1.5",
            "1e5",
            "1e",
            "1E+5",
            "1e400",
            "-1e400",
            "1e-400",
            "0e999999999999",
            "1e999999999999",
            "1e-999999999999",
            "true",
            "tru",
            "nulll",
            "null",
            "[]",
            "[1,]",
            "[,]",
            "[1 2]",
            "[1, 2 ]",
            "{}",
            "{\"a\":1}",
            "{\"a\":1,}",
            "{\"a\"}",
            "{a:1}",
            "{\"a\":1]",
            "[1}",
            "\"\"",
            "\"a",
            "\"\\n\"",
            "\"\\x\"",
            "\"\\u00e9\"",
            "\"\\u00e\"",
            "\"\\ud83d\\ude00\"",
            "\"\\ud83d\"",
            "\"\\ude00\"",
            "\"\\ud83dx\"",
            "\"\\ud83d\\n\"",
            "\"\\ud83d\\u0041\"",
            "\"\u{1}\"",
            "\"1234567\u{1f}\"",
            "\"12345678\\\"9\"",
            "\"é é é é é é\"",
            "[[[[]]]]",
            "[[]",
            "{\"a\":{\"b\":[1,{\"c\":null}]},\"d\":[]}",
            "1 1",
            "\u{feff}1",
            "[\"a\",\"b\"",
        ] {
            same(text);
        }
        for digits in [299, 300, 301, 308, 309, 310, 400] {
            same(&"9".repeat(digits));
            same(&format!("0.{}", "9".repeat(digits)));
        }
        for depth in [126, 127, 128, 129, 130] {
            same(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
            same(&format!(
                "{}1{}",
                "{\"a\":".repeat(depth),
                "}".repeat(depth)
            ));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_value_of_a_hostile_server_is_walked_over_if_serde_json_reads_it(
            text in crate::transport::hostile::made::value()
        ) {
            same(&text);
        }

        #[test]
        fn any_text_is_walked_over_if_serde_json_reads_it(
            text in r#"[\[\]{},:"\\ue0-9.+\-tfnrlsa \n\u{1}éd]{0,24}"#
        ) {
            same(&text);
        }

        #[test]
        fn any_string_is_walked_over_and_read(string in any::<String>()) {
            let text = serde_json::to_string(&string).unwrap();
            let read = Walk::over(&text).string().and_then(Text::to_owned);
            prop_assert_eq!(read, Some(string));
        }
    }
}
