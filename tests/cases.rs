//! The cases of the field, each against a real server that fails in the way that the case tells.
//! `docs/cases.md` lists them.

#[path = "cases/bad_input.rs"]
mod bad_input;
#[path = "cases/cancel.rs"]
mod cancel;
#[path = "cases/framing.rs"]
mod framing;
#[path = "cases/hangs.rs"]
mod hangs;
#[path = "cases/outcomes.rs"]
mod outcomes;
#[path = "cases/processes.rs"]
mod processes;
#[path = "cases/sessions.rs"]
mod sessions;
mod support;
