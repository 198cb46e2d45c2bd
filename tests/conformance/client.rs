//! A client made with this crate for the conformance suite.
fn main() {}
