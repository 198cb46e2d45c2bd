//! The name under which a model sees a tool: a pure function of the connection's name and the
//! tool's.
//!
//! Where both are made of letters, digits, `_` and `-`, and are short, the name is
//! `connection__tool`. The first `__` is the border then: the connection holds none and does not end
//! in `_`. All other names lose something on the way, so what both were is kept in a digest at the
//! end: `connection__tool_` and twenty hexadecimal digits. A plain name that happens to look like
//! that is given a digest as well, so the two sorts have nothing in common.
//!
//! So two names can only be equal where two digests of 80 bits are. That is looked for.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The most that the APIs of language models take.
pub(super) const LONGEST: usize = 64;
const BORDER: &str = "__";
/// Hexadecimal digits of a digest.
const DIGITS: usize = 20;
/// The most of a connection's name that is shown before a digest, so that some of the tool's is too.
const CONNECTION: usize = 16;

/// What is kept of two names that are not shown whole.
pub(super) type Digest = fn(connection: &str, tool: &str) -> [u8; DIGITS / 2];

/// The one in use. It is the same on every machine and in every release.
pub(super) fn digest(connection: &str, tool: &str) -> [u8; DIGITS / 2] {
    let mut hash = Sha256::new();
    // The length is the border here.
    hash.update((connection.len() as u64).to_be_bytes());
    hash.update(connection);
    hash.update(tool);
    let hash = hash.finalize();
    std::array::from_fn(|i| hash[i])
}

/// The name of `tool` of `connection`.
pub(super) fn offered(connection: &str, tool: &str, digest: Digest) -> String {
    plain(connection, tool).unwrap_or_else(|| digested(connection, tool, digest))
}

/// The connection and the tool of a plain name. `None`: it is not one.
pub(super) fn parse(name: &str) -> Option<(&str, &str)> {
    let (connection, tool) = name.split_once(BORDER)?;
    (plain(connection, tool)? == name).then_some((connection, tool))
}

fn plain(connection: &str, tool: &str) -> Option<String> {
    let shown = |name: &str| !name.is_empty() && name.chars().all(is_allowed);
    if !shown(connection) || !shown(tool) {
        return None;
    }
    if connection.contains(BORDER) || connection.ends_with('_') {
        return None;
    }
    let name = format!("{connection}{BORDER}{tool}");
    (name.len() <= LONGEST && !looks_digested(&name)).then_some(name)
}

fn digested(connection: &str, tool: &str, digest: Digest) -> String {
    let mut name = shown(connection, CONNECTION);
    name.push_str(BORDER);
    name.push_str(&shown(tool, LONGEST - name.len() - 1 - DIGITS));
    name.push('_');
    for byte in digest(connection, tool) {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// As much as may be shown of a name.
fn shown(name: &str, most: usize) -> String {
    let shown = name.chars().map(|c| if is_allowed(c) { c } else { '_' });
    shown.take(most).collect()
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

fn looks_digested(name: &str) -> bool {
    let Some((_, end)) = name.rsplit_once('_') else {
        return false;
    };
    end.len() == DIGITS && end.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

    use super::*;

    fn name(connection: &str, tool: &str) -> String {
        offered(connection, tool, digest)
    }

    #[test]
    fn what_is_short_and_plain_is_shown_as_it_is() {
        assert_eq!(name("github", "create_issue"), "github__create_issue");
        assert_eq!(name("git-hub", "a__b"), "git-hub__a__b");
        assert_eq!(name("a", "_b"), "a___b");
        assert_eq!(parse("a___b"), Some(("a", "_b")));
        assert_eq!(
            parse("github__create_issue"),
            Some(("github", "create_issue"))
        );
    }

    /// Whoever stored a name finds the tool by it in any later release.
    #[test]
    fn names_with_a_digest_are_the_same_in_every_release() {
        assert_eq!(
            name("crm", "find customer"),
            "crm__find_customer_80d48d11974fbfe6a02e"
        );
        let long = name(&"c".repeat(40), &"t".repeat(80));
        assert_eq!(
            long,
            "cccccccccccccccc__ttttttttttttttttttttttttt_841b501fb22175dab0f1"
        );
        assert_eq!(long.len(), LONGEST);
    }

    #[test]
    fn a_plain_name_that_looks_like_one_with_a_digest_gets_a_digest() {
        let other = name("crm", "find customer");
        let tool = other.strip_prefix("crm__").unwrap();
        assert_ne!(name("crm", tool), other);
        assert_eq!(parse(&other), None);
    }

    /// L5.
    #[test]
    fn long_names_that_begin_alike_stay_apart() {
        let long = "an_internal_service_with_quite_a_long_name_that_says_what_it_does";
        let (one, two) = (format!("{long}_one"), format!("{long}_two"));
        assert_ne!(name("crm", &one), name("crm", &two));
        assert_eq!(name("crm", &one), name("crm", &one));
    }

    #[test]
    fn where_the_border_is_not_clear_names_stay_apart() {
        let pairs = [
            ("a", "b__c"),
            ("a__b", "c"),
            ("a_", "b"),
            ("a", "_b"),
            ("a__", "b"),
            ("a", "__b"),
            ("_", "b"),
            ("__", "b"),
            ("", "a__b"),
            ("a__b", ""),
            ("a b", "c"),
            ("a_b", "c"),
            ("a", "b c"),
            ("a", "b_c"),
            ("A", "b"),
            ("a", "B"),
            ("a", "b"),
            ("日本", "東京"),
            ("東京", "日本"),
            ("", ""),
        ];
        let names: BTreeSet<String> = pairs.iter().map(|(c, t)| name(c, t)).collect();
        assert_eq!(names.len(), pairs.len());
    }

    /// Names that are hard to keep apart: few characters, many borders, all lengths, and each
    /// other's offered names.
    #[test]
    fn any_names_give_names_that_a_model_may_see_and_no_two_the_same() {
        const PIECES: [&str; 14] = [
            "a",
            "A",
            "b",
            "_",
            "__",
            "-",
            ".",
            " ",
            "é",
            "日本",
            "\u{0}",
            "🦀",
            "0123456789abcdef0123",
            "a_rather_long_word_that_fills_the_name_up",
        ];
        let mut rng = StdRng::seed_from_u64(5);
        let mut seen: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut made: Vec<String> = Vec::new();
        for _ in 0..20_000 {
            let mut some = |most: usize| -> String {
                let pieces = rng.random_range(0..=most);
                (0..pieces)
                    .filter_map(|_| PIECES.choose(&mut rng).copied())
                    .collect()
            };
            let connection = some(4);
            let tool = match made.last() {
                // What was offered before, as a tool's own name.
                Some(made) if connection.len() % 3 == 0 => made
                    .split_once(BORDER)
                    .map_or(String::new(), |(_, t)| t.to_owned()),
                _ => some(6),
            };
            let name = name(&connection, &tool);
            assert!(!name.is_empty() && name.len() <= LONGEST, "{name}");
            assert!(name.chars().all(is_allowed), "{name}");
            if let Some((c, t)) = parse(&name) {
                assert_eq!((c, t), (&*connection, &*tool), "a plain name is read back");
            }
            let pair = (connection, tool);
            let there = seen.entry(name.clone()).or_insert_with(|| pair.clone());
            assert_eq!(*there, pair, "{name} is two tools");
            made.push(name);
        }
        assert!(seen.len() > 5_000, "{} pairs say little", seen.len());
    }
}
