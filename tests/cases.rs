//! The cases of the field: how connections fail in production, each with the right behaviour as its
//! assertion. `docs/cases.md` lists them.

mod support;

#[path = "cases/cancel.rs"]
mod cancel;
#[path = "cases/processes.rs"]
mod processes;
#[path = "cases/sessions.rs"]
mod sessions;
