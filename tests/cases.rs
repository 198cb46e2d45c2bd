//! The cases of the field, one function for each, named in `docs/cases.md`.

#[path = "cases/outcomes.rs"]
mod outcomes;
mod support;
