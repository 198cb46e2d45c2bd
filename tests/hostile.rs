//! What people, disks and other programs hand to the crate: configuration files, journals, lines of an
//! export, keys and headers that are cut, changed or made up. They are refused with a reason or read;
//! nothing panics, and nothing is taken for what it is not.
//!
//! `FUZZ_CASES` sets the number of cases. What failed once is a test with a name.

#[path = "hostile/checks.rs"]
mod checks;
#[path = "hostile/files.rs"]
mod files;
#[path = "hostile/texts.rs"]
mod texts;

use proptest::prelude::*;

/// How many cases; of those that cost a file, a twentieth.
fn cases(usual: u32, costs: u32) -> ProptestConfig {
    let wanted = std::env::var("FUZZ_CASES").ok();
    let wanted: Option<u32> = wanted.map(|n| n.parse().expect("FUZZ_CASES is a number"));
    ProptestConfig {
        cases: wanted.map_or(usual, |cases| (cases / costs).max(1)),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Some change of a text or a file.
#[derive(Clone, Debug)]
enum Change {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Gone(prop::sample::Index, usize),
    Twice(prop::sample::Index, usize),
    Piece(prop::sample::Index, &'static [u8]),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), 0_u8..8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), 1_usize..600).prop_map(|(at, length)| Change::Gone(at, length)),
        1 => (at(), 1_usize..600).prop_map(|(at, length)| Change::Twice(at, length)),
        2 => (at(), prop::sample::select(vec![
            &b"\""[..], b"{", b"}", b"[", b"]", b",", b":", b"${", b"\\u", b"\xff", b"\0", b"//", b"/*",
            b"-1", b"1e999", b"null", b"\xef\xbb\xbf", b"\xff\xfe",
        ])).prop_map(|(at, piece)| Change::Piece(at, piece)),
    ]
}

fn changed(bytes: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes {
        let length = bytes.len();
        let place = |at: &prop::sample::Index| at.index(length + 1);
        match change {
            Change::Flip(at, bit) if length > 0 => bytes[at.index(length)] ^= 1 << bit,
            Change::Flip(..) => {}
            Change::Cut(at) => bytes.truncate(place(at)),
            Change::Gone(at, gone) => {
                let at = place(at);
                bytes.drain(at..(at + gone).min(length));
            }
            Change::Twice(at, again) => {
                let at = place(at);
                let again = bytes[at..(at + again).min(length)].to_vec();
                bytes.splice(at..at, again);
            }
            Change::Piece(at, piece) => {
                let at = place(at);
                bytes.splice(at..at, piece.iter().copied());
            }
        }
    }
    bytes
}
