//! What is known of a handshake over HTTP while it goes on.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::evidence::WireReport;

/// How long a session's first request waits, at most, for the answer to its standing stream. There
/// are servers that keep the head of that answer until they have something to say.
const STANDING_LIMIT: Duration = Duration::from_millis(300);

/// What the handshake's HTTP exchanges said, for the error of a session that does not start, and how
/// far its standing stream is.
#[derive(Default)]
pub(crate) struct Handshake {
    last: Mutex<Option<WireReport>>,
    /// The session that the server assigned. Where there is one, a standing stream follows.
    session_id: Mutex<Option<Arc<str>>>,
    /// The standing stream was answered, whatever the answer.
    pub(super) standing: CancellationToken,
}

impl Handshake {
    /// Waits until the server has the standing stream, or will not have one. What it asks of its
    /// client goes there, and before that it has no way: a tool that asks somebody would wait for
    /// ever.
    pub(crate) async fn standing_stream(&self) {
        if self.session_id().is_some() {
            let _ = tokio::time::timeout(STANDING_LIMIT, self.standing.cancelled()).await;
        }
    }

    fn assigned(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.session_id
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assign(&self, session_id: &str) {
        *self.assigned() = Some(Arc::from(session_id));
    }

    pub(super) fn session_id(&self) -> Option<Arc<str>> {
        self.assigned().clone()
    }

    /// Another exchange begins: what the one before it said is not about this one.
    pub(super) fn begin_exchange(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn note(&self, report: &WireReport) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(report.clone());
    }

    pub(crate) fn last(&self) -> Option<WireReport> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
