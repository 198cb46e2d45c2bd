//! By when an attempt must be over, and who may end it before.

use std::{future::pending, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    connection::Line,
    transport::{
        Listener,
        clock::{Clock, Due},
    },
};

/// When an attempt must be over.
#[derive(Clone)]
pub(in crate::call) struct Times {
    pub(in crate::call) total: Due,
    pub(in crate::call) attempt: Option<Duration>,
    pub(in crate::call) idle: Option<Duration>,
    pub(in crate::call) cancel: Option<CancellationToken>,
    /// By which all of them run.
    pub(in crate::call) clock: Arc<Clock>,
    /// Who hears of the operation's progress.
    pub(in crate::call) listener: Option<Arc<Listener>>,
}

/// Dropped with its operation, however that ends. The ticket, which has the listener too, may lie
/// about for longer.
pub(in crate::call) struct HeardToTheEnd(pub(in crate::call) Option<Arc<Listener>>);

impl Drop for HeardToTheEnd {
    fn drop(&mut self) {
        if let Some(listener) = &self.0 {
            listener.close();
        }
    }
}

impl Times {
    /// What is left of the total.
    pub(in crate::call) fn left(&self) -> Duration {
        self.clock.left(self.total)
    }

    /// Waits until the total is spent.
    pub(in crate::call) async fn spent(&self) {
        self.clock.reaches(self.total).await;
    }
}

/// Waits until the caller cancels.
pub(in crate::call) async fn cancelled(times: &Times) {
    match &times.cancel {
        Some(token) => token.cancelled().await,
        None => pending().await,
    }
}

pub(super) async fn at(times: &Times, end: Option<Due>) {
    match end {
        Some(end) => times.clock.reaches(end).await,
        None => pending().await,
    }
}

/// Waits until nothing was heard of this very call for as long as its idle limit.
pub(super) async fn silent(line: &Line, times: &Times) {
    // What is lent is not heard by us; rmcp minds its silence.
    let idle = times.idle.filter(|_| !line.ownership.is_lent());
    let (Some(idle), Some(listener)) = (idle, &times.listener) else {
        return pending().await;
    };
    let mut beats = listener.beats();
    loop {
        let end = times.clock.after(idle, Instant::now());
        tokio::select! {
            biased;
            // The sender lives in the listener, which lives as long as this.
            _ = beats.changed() => {}
            () = times.clock.reaches(end) => return,
        }
    }
}
