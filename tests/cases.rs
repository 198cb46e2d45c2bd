//! The cases of the field: how connections fail in production, each against a real server that
//! fails in that way, with the right behaviour as its assertion. `docs/cases.md` lists them.

mod support;

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
