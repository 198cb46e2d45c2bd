//! What a server tells about an operation while it works on it.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

/// How many notifications are kept for a reader that does not keep up.
const KEPT: usize = 64;

/// A server's word on how far an operation is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// How far, in the server's own unit. It grows from one notification to the next.
    pub progress: f64,
    /// How far it is when it is done, where the server knows.
    pub total: Option<f64>,
    /// What the server says about it.
    pub message: Option<String>,
    /// How many notifications before this one were dropped, because nobody read them in time.
    pub missed: u64,
}

impl Progress {
    pub(crate) fn new(progress: f64, total: Option<f64>, message: Option<String>) -> Self {
        Self {
            progress,
            total,
            message,
            missed: 0,
        }
    }
}

/// The progress of one operation, in the order in which the server told it.
///
/// It is bounded: of what nobody reads the oldest is dropped, and the next one that is read says
/// how many. Not reading it delays nobody. It ends with its operation; all progress that came before
/// the answer can be read before the end.
#[derive(Debug)]
pub struct ProgressStream(Arc<Shared>);

/// The operation's end of a [`ProgressStream`].
#[derive(Debug)]
pub(crate) struct ProgressSink(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    kept: VecDeque<Progress>,
    missed: u64,
    sinks: usize,
    reader: Option<Waker>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue();
        change(&mut queue);
        let reader = queue.reader.take();
        // Not under the lock: whoever is woken may look at once.
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// A stream and what feeds it.
pub(crate) fn progress() -> (ProgressSink, ProgressStream) {
    let shared = Arc::new(Shared::default());
    shared.queue().sinks = 1;
    (ProgressSink(Arc::clone(&shared)), ProgressStream(shared))
}

impl ProgressSink {
    /// Never waits.
    pub(crate) fn push(&self, progress: Progress) {
        self.0.change(|queue| {
            if queue.kept.len() == KEPT {
                queue.kept.pop_front();
                queue.missed += 1;
            }
            queue.kept.push_back(progress);
        });
    }
}

impl Clone for ProgressSink {
    fn clone(&self) -> Self {
        self.0.queue().sinks += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for ProgressSink {
    fn drop(&mut self) {
        self.0.change(|queue| queue.sinks -= 1);
    }
}

impl ProgressStream {
    /// The next progress, or `None` once the operation is over and everything was read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn next(&mut self) -> Option<Progress> {
        poll_fn(|context| {
            let mut queue = self.0.queue();
            if let Some(mut progress) = queue.kept.pop_front() {
                progress.missed = std::mem::take(&mut queue.missed);
                return Poll::Ready(Some(progress));
            }
            if queue.sinks == 0 {
                return Poll::Ready(None);
            }
            queue.reader = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(progress: f64) -> Progress {
        Progress::new(progress, None, None)
    }

    #[tokio::test]
    async fn a_stream_that_nobody_read_tells_how_much_it_dropped_and_then_ends() {
        let (sink, mut stream) = progress();
        for n in 0..100_u8 {
            sink.push(at(f64::from(n)));
        }
        drop(sink);
        let first = stream.next().await.unwrap();
        assert_eq!((first.progress, first.missed), (36.0, 36));
        let second = stream.next().await.unwrap();
        assert_eq!((second.progress, second.missed), (37.0, 0));
        let mut rest = 0;
        while stream.next().await.is_some() {
            rest += 1;
        }
        assert_eq!(rest, 62);
    }
}
