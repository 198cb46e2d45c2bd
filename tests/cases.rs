//! The cases of the field, each against a real server that fails in the way that the case tells.

#[path = "cases/bad_input.rs"]
mod bad_input;
#[path = "cases/framing.rs"]
mod framing;
#[path = "cases/hangs.rs"]
mod hangs;
#[path = "cases/outcomes.rs"]
mod outcomes;
mod support;
