//! Sweeping in the background: a task that begins with the first use of a journal and ends with its
//! last clone.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{JournalSettings, Shared, StoreError};

/// What one sweep takes at most, so that what is written beside it waits for milliseconds.
const AT_ONCE: usize = 256;

/// Between sweeps while there is more: room for those who write.
const BETWEEN: Duration = Duration::from_millis(100);

/// Between sweeps at most: little beside the days for which things are kept, and nothing to notice.
const LONGEST: Duration = Duration::from_secs(5 * 60);

/// Between sweeps at least, where things are kept for a few seconds only.
const SHORTEST: Duration = Duration::from_secs(1);

/// Whether a journal has its task, and the way to end it.
#[derive(Default)]
pub(super) struct Sweeper {
    runs: Arc<AtomicBool>,
    ends: CancellationToken,
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.ends.cancel();
    }
}

/// Takes the mark away when its task is dropped, as it is with its runtime: the next use, on another
/// one, begins anew.
struct Runs(Arc<AtomicBool>);

impl Drop for Runs {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Sweeper {
    /// Sees to it that the journal is swept. Costs one load where it is.
    pub(super) fn begin(shared: &Arc<Shared>) {
        let Self { runs, ends } = &shared.sweeper;
        if runs.load(Ordering::Acquire) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if !runs.swap(true, Ordering::AcqRel) {
            let mark = Runs(Arc::clone(runs));
            runtime.spawn(sweep(Arc::downgrade(shared), ends.clone(), mark));
        }
    }
}

async fn sweep(journal: Weak<Shared>, ends: CancellationToken, _mark: Runs) {
    let mut pause = match journal.upgrade() {
        Some(shared) => pause_of(&shared.settings),
        None => return,
    };
    loop {
        tokio::select! {
            () = ends.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        let Some(shared) = journal.upgrade() else {
            return;
        };
        pause = match shared.sweep(AT_ONCE).await {
            Ok(swept) if swept.forgotten.max(swept.removed) == AT_ONCE => BETWEEN,
            Ok(_) => pause_of(&shared.settings),
            // Whoever may write sweeps it.
            Err(StoreError::Closed | StoreError::ReadOnly(_)) => return,
            Err(error) => {
                tracing::warn!(%error, "the journal could not be swept");
                pause_of(&shared.settings)
            }
        };
    }
}

/// A quarter of the shorter window, so that nothing is kept for much longer than was said.
fn pause_of(settings: &JournalSettings) -> Duration {
    let window = settings.answers_kept_for.min(settings.tombstones_kept_for);
    (window / 4).clamp(SHORTEST, LONGEST)
}
