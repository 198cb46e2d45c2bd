//! What a hostile server may send, and that no way to read it panics, keeps too much, or takes what it
//! should not: one check for each way to read. Each takes any bytes.
//!
//! The property tests make bytes up; so does the fuzzer in `tests/fuzz`, led by how far they come.

mod frames;
#[cfg(test)]
pub(super) mod made;
#[cfg(test)]
mod tests;

#[cfg(feature = "http")]
pub(crate) use super::http::hostile::exchange;
#[cfg(fuzzing)]
pub(crate) use frames::frames;

/// A message is decoded as rmcp decodes it, whatever was asked.
pub(crate) fn message(bytes: &[u8]) {
    if let Ok(text) = str::from_utf8(bytes) {
        super::decode::agree::agree(text);
    }
}
