//! Every interleaving of what decides between "sent" and "not sent".
//!
//! The sources of the dispatch cell and of the ticket are compiled here a second time, word for word,
//! on top of loom's atomics and locks. loom runs each model once for every order in which its threads
//! can meet, and with every value that a weakly ordered load may return.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

#[path = "interleavings/stand_ins.rs"]
mod stand_ins;

#[path = "interleavings/cell.rs"]
mod cell;
#[path = "interleavings/ticket.rs"]
mod ticket;

/// The rooms that the two sources name, by their names in the crate.
#[path = "interleavings"]
mod evidence {
    pub(crate) use crate::stand_ins::sync;
    pub(crate) use cell::DispatchCell;
    pub(crate) use mcp_supervisor::evidence::WireReport;
    pub(crate) use raw::RawResult;

    #[allow(
        dead_code,
        unreachable_pub,
        reason = "what of it is not in question here, and public in the crate alone"
    )]
    #[path = "../../src/evidence/cell.rs"]
    mod cell;
    #[allow(dead_code, reason = "what of it is not in question here")]
    #[path = "../../src/evidence/raw.rs"]
    mod raw;
}

#[path = "interleavings"]
mod connection {
    #[allow(dead_code, reason = "what of it is not in question here")]
    #[path = "../../src/connection/ticket.rs"]
    pub(crate) mod ticket;
}

mod error {
    pub(crate) use mcp_supervisor::error::NotSentReason;
}

mod event {
    pub(crate) use mcp_supervisor::event::Ground;
}

mod operation {
    pub(crate) use mcp_supervisor::operation::{AttemptId, Generation, OperationId, OperationKind};
}

mod session {
    pub(crate) use crate::stand_ins::{Along, NotTaken, Pending, Session, Told};
}

mod telemetry {
    pub(crate) use crate::stand_ins::Seen;
}

/// Runs a model, and says in how many orders it ran: fewer than two would prove nothing.
fn in_every_order(what: &str, model: impl Fn() + Sync + Send + 'static) {
    run(what, None, model);
}

/// The same for a model whose orders are too many for every day: those in which a thread is stopped
/// in the middle of something at most twice. `LOOM_WHOLE=1` tries all, which takes minutes.
fn with_two_preemptions(what: &str, model: impl Fn() + Sync + Send + 'static) {
    let whole = std::env::var_os("LOOM_WHOLE").is_some();
    run(what, (!whole).then_some(2), model);
}

fn run(what: &str, preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let orders = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&orders);
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.preemption_bound = preemptions;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{what}: {orders} interleavings");
    assert!(orders > 1, "{what}: nothing was interleaved");
}
