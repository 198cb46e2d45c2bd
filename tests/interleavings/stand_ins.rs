//! What the cell and the ticket stand on here: loom's types, and a session that is a queue of cells.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use rmcp::model::{ClientNotification, ClientRequest};
use tokio::time::Instant;

use crate::{evidence::DispatchCell, operation::Generation};

pub(crate) mod sync {
    pub(crate) use loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, Ordering},
    };

    /// loom has none. The value is set once, and whoever sees that it is set sees all that was done
    /// before: a store that releases and a load that acquires, as the documentation of std's says.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        set: AtomicBool,
        value: std::sync::OnceLock<T>,
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self {
                set: AtomicBool::new(false),
                value: std::sync::OnceLock::new(),
            }
        }
    }

    impl<T> OnceLock<T> {
        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            let set = self.value.set(value);
            if set.is_ok() {
                self.set.store(true, Ordering::Release);
            }
            set
        }

        pub(crate) fn get(&self) -> Option<&T> {
            match self.set.load(Ordering::Acquire) {
                true => self.value.get(),
                false => None,
            }
        }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Along {
    pub(crate) idle: Option<Duration>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) generation: Option<Generation>,
    pub(crate) perhaps_sent: bool,
}

pub(crate) struct Pulse {
    pub(crate) generation: Generation,
}

pub(crate) struct Told {
    pub(crate) pulse: Arc<Pulse>,
}

#[allow(dead_code, reason = "this session is in force and takes everything")]
pub(crate) enum NotTaken {
    Recalled,
    Full,
    Ended,
    NotInRevision(&'static str),
    NotDeclared(&'static str),
}

pub(crate) struct Revision;

impl Revision {
    pub(crate) fn as_str(&self) -> &str {
        "2025-11-25"
    }
}

/// The writer's queue of one session, and who waits for an answer of it.
pub(crate) struct Session {
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) revision: Revision,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    cells: sync::Mutex<Vec<Arc<DispatchCell>>>,
    answer: Signal,
    end: Signal,
}

/// Something that happens once, for one who waits.
#[derive(Default)]
struct Signal(sync::Mutex<(bool, Option<Waker>)>);

impl Signal {
    fn give(&self) {
        let mut signal = self.0.lock().unwrap();
        signal.0 = true;
        let waits = signal.1.take();
        drop(signal);
        if let Some(waits) = waits {
            waits.wake();
        }
    }

    fn poll(&self, waker: &Waker) -> bool {
        let mut signal = self.0.lock().unwrap();
        if !signal.0 {
            signal.1 = Some(waker.clone());
        }
        signal.0
    }
}

impl Session {
    pub(crate) fn new(generation: Generation) -> Arc<Self> {
        Arc::new(Self {
            pulse: Arc::new(Pulse { generation }),
            revision: Revision,
            queue: Arc::default(),
        })
    }

    pub(crate) fn tell(&self, _: ClientNotification) -> Result<Told, NotTaken> {
        Err(NotTaken::Ended)
    }

    pub(crate) fn hand_over(
        &self,
        _: &Arc<ClientRequest>,
        cell: &Arc<DispatchCell>,
        _: &Along,
        _: Instant,
    ) -> Result<Pending, NotTaken> {
        self.queue.cells.lock().unwrap().push(Arc::clone(cell));
        Ok(Pending {
            pulse: Arc::clone(&self.pulse),
            cell: Arc::clone(cell),
            queue: Arc::clone(&self.queue),
        })
    }

    /// What the session's writer does: it writes what is in its queue, unless it was recalled. How
    /// much it wrote.
    pub(crate) fn write_all(&self) -> usize {
        let queued = std::mem::take(&mut *self.queue.cells.lock().unwrap());
        let written = queued.iter().filter(|cell| cell.begin_write());
        written.map(|cell| cell.finish_write()).count()
    }

    /// The server answers what was written.
    pub(crate) fn answer(&self) {
        self.queue.answer.give();
    }

    /// The session ends.
    pub(crate) fn end(&self) {
        self.queue.end.give();
    }
}

/// Like the crate's: dropped, it recalls its request.
pub(crate) struct Pending {
    pub(crate) pulse: Arc<Pulse>,
    cell: Arc<DispatchCell>,
    queue: Arc<Queue>,
}

impl Pending {
    pub(crate) fn will_wake(&mut self, caller: &Waker) -> bool {
        !self.queue.answer.poll(caller)
    }

    /// Whether its session is over; if not, its end wakes `caller`.
    pub(crate) fn is_over(&self, caller: &Waker) -> bool {
        self.queue.end.poll(caller)
    }

    pub(crate) fn was_begun(&self) -> bool {
        self.cell.was_begun()
    }

    pub(crate) fn seen(&self, seen: &mut Seen) {
        seen.generation = Some(self.pulse.generation);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let _ = self.cell.recall();
    }
}

/// Wakes a thread of a model. loom fails a model in which a thread waits for ever.
#[derive(Default)]
struct Bell(loom::sync::Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Polls with a waker of a model's thread until it is ready.
pub(crate) fn wait_for<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        match poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ready) => return ready,
            Poll::Pending => bell.0.wait(),
        }
    }
}

/// Polls once, for nobody.
pub(crate) fn look<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(ready) => Some(ready),
        Poll::Pending => None,
    }
}
