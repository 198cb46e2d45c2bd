//! What threads share a cell or a ticket through.
//!
//! It has a name of its own, so that a test can put the same source on top of types whose every
//! interleaving can be tried.

pub(crate) use std::sync::{
    Mutex, MutexGuard, OnceLock,
    atomic::{AtomicBool, AtomicU8, Ordering},
};
