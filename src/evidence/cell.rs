//! The dispatch cell: who wins, the side that writes a request or the side that gives it up.

use std::sync::Arc;

use super::{
    RawResult, WireReport,
    sync::{AtomicBool, AtomicU8, OnceLock, Ordering},
};

const QUEUED: u8 = 0;
const WRITING: u8 = 1;
const WRITTEN: u8 = 2;
const RECALLED: u8 = 3;

/// The state of one request on its way out, shared by the writer and whoever may give it up.
///
/// ```text
/// Queued ──begin_write──▶ Writing ──finish_write──▶ Written
///    └─────recall───────▶ Recalled
/// ```
///
/// `begin_write` and `recall` are rivals on one compare-exchange, so exactly one of them wins. Only
/// a won `recall` proves that nothing was sent; reading the state proves nothing, because the
/// writer may act a moment later.
#[derive(Debug, Default)]
pub struct DispatchCell {
    state: AtomicU8,
    waits_for_token: AtomicBool,
    report: OnceLock<WireReport>,
    raw: OnceLock<Arc<RawResult>>,
}

impl DispatchCell {
    /// A cell in `Queued`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The witness is about to put the first byte on the wire. `false`: it was recalled, and must
    /// not be written.
    #[must_use]
    pub fn begin_write(&self) -> bool {
        self.state
            .compare_exchange(QUEUED, WRITING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The whole request was given to the transport below.
    pub fn finish_write(&self) {
        // From any other state this is a no-op: a recalled request is never written.
        let _ = self
            .state
            .compare_exchange(WRITING, WRITTEN, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Gives the request up. `true` is proof that it was not and will not be sent.
    #[must_use]
    pub fn recall(&self) -> bool {
        match self
            .state
            .compare_exchange(QUEUED, RECALLED, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => true,
            Err(state) => state == RECALLED,
        }
    }

    /// Whether writing began. Once true it stays true; `false` proves nothing.
    #[must_use]
    pub fn was_begun(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), WRITING | WRITTEN)
    }

    /// Whether the whole request was given to the transport below. Once true it stays true, and says
    /// nothing of the server; `false` proves nothing.
    #[must_use]
    pub fn was_written(&self) -> bool {
        self.state.load(Ordering::Acquire) == WRITTEN
    }

    /// Whether it was given up before it was written. Once true it stays true, and it is proof.
    #[must_use]
    pub(crate) fn was_recalled(&self) -> bool {
        self.state.load(Ordering::Acquire) == RECALLED
    }

    /// Notes whether the request waits for an access token. It decides nothing, and tells which
    /// wait a deadline ended.
    #[cfg_attr(
        not(feature = "http"),
        expect(dead_code, reason = "only HTTP has tokens")
    )]
    pub(crate) fn note_wait_for_token(&self, waits: bool) {
        self.waits_for_token.store(waits, Ordering::Relaxed);
    }

    /// Whether the request waits for an access token.
    pub(crate) fn waits_for_token(&self) -> bool {
        self.waits_for_token.load(Ordering::Relaxed)
    }

    /// Notes what the transport saw. The first report stays.
    pub fn report(&self, report: WireReport) {
        let _ = self.report.set(report);
    }

    /// Keeps the answer as it came, of which the session gets a stub. The first one stays.
    pub(crate) fn keep(&self, raw: RawResult) {
        let _ = self.raw.set(Arc::new(raw));
    }

    /// The answer as it came, where it was kept so.
    pub(crate) fn kept(&self) -> Option<Arc<RawResult>> {
        self.raw.get().cloned()
    }

    /// What the transport saw, if it saw anything worth telling.
    #[must_use]
    pub fn reported(&self) -> Option<&WireReport> {
        self.report.get()
    }
}
