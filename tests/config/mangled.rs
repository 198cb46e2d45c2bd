//! Files that were cut off, or in which bytes changed, are refused or read. They break nothing.

use super::{files, reader};

/// A small generator, so that each run mangles in the same way.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(high).expect("31 bits fit") % sides
    }
}

fn read(bytes: &[u8]) {
    let reader = reader(&[("SECRET", "planted-secret")]).inputs(|_| Some("planted-secret".into()));
    match reader.parse("mcp.json", bytes) {
        Ok(configuration) => {
            let shown = format!("{configuration:?}");
            assert!(!shown.contains("planted-secret"), "{shown}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn a_file_that_is_cut_off_anywhere_breaks_nothing() {
    for text in files().values() {
        for end in 0..text.len() {
            read(&text.as_bytes()[..end]);
        }
    }
}

#[test]
fn a_file_with_changed_bytes_breaks_nothing() {
    const PIECES: [&[u8]; 12] = [
        b"\"", b"{", b"}", b"[", b"]", b",", b":", b"${", b"\\u", b"\xff", b"\0", b"//",
    ];
    let mut dice = Dice(0x5EED);
    for text in files().values() {
        for _ in 0..400 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..=dice.roll(3) {
                let at = dice.roll(bytes.len());
                let piece = PIECES[dice.roll(PIECES.len())];
                let end = (at + dice.roll(4)).min(bytes.len());
                bytes.splice(at..end, piece.iter().copied());
            }
            read(&bytes);
        }
    }
}

#[test]
fn a_file_that_is_nested_deeply_is_refused() {
    for piece in ["[", "{\"a\":"] {
        let error = reader(&[])
            .parse("mcp.json", piece.repeat(100_000))
            .unwrap_err();
        assert!(error.to_string().contains("no JSON"), "{error}");
    }
}
