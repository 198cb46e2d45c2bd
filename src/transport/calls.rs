//! The unanswered calls of a session, as far as the server may speak of them: by the id of the
//! request, or by its progress token.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
};

use rmcp::model::{
    ErrorData, JsonRpcMessage, ProgressToken, RequestId, ServerJsonRpcMessage, ServerNotification,
    ServerResult,
};
use tokio::sync::{oneshot, watch};

use super::{
    clock::{Clock, Held},
    lane::Lane,
};
use crate::operation::{Progress, ProgressSink};

/// Whoever wants to hear of one operation's progress: its reader, its idle limit, or both.
#[derive(Debug)]
pub(crate) struct Listener {
    sink: Mutex<Option<ProgressSink>>,
    beats: watch::Sender<()>,
}

impl Listener {
    pub(crate) fn new(sink: Option<ProgressSink>) -> Self {
        Self {
            sink: Mutex::new(sink),
            beats: watch::Sender::new(()),
        }
    }

    /// Changes with each progress from now on.
    pub(crate) fn beats(&self) -> watch::Receiver<()> {
        self.beats.subscribe()
    }

    fn hear(&self, progress: Progress) {
        self.beats.send_replace(());
        let sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = &*sink {
            sink.push(progress);
        }
    }

    /// The operation is over, and with it what its caller reads.
    pub(crate) fn close(&self) {
        let sink = self
            .sink
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // Not under the lock: it wakes the reader.
        drop(sink);
    }
}

/// The unanswered calls of a session.
#[derive(Default)]
pub(crate) struct Calls {
    table: Mutex<Table>,
    /// Those that go by the lane have their clocks there.
    lane: OnceLock<Weak<Lane>>,
}

#[derive(Debug, Default)]
struct Table {
    clocks: HashMap<RequestId, Arc<Clock>>,
    listeners: HashMap<ProgressToken, Arc<Listener>>,
    /// Whoever waits for the answer to a call that was given up.
    late: HashMap<RequestId, oneshot::Sender<Result<ServerResult, ErrorData>>>,
}

/// The clocks of some calls, all of which stand while this lives.
#[derive(Debug)]
#[expect(dead_code, reason = "it is held for the sake of its drop")]
pub(crate) struct AllHeld(Vec<Held>);

/// Keeps the server from being heard while a call is handed over, so that nothing that it says
/// about the call can come before the call is listed.
pub(crate) struct Listing<'a>(MutexGuard<'a, Table>);

impl Listing<'_> {
    /// Lists the call that was handed over.
    pub(crate) fn list(
        mut self,
        id: &RequestId,
        token: &ProgressToken,
        clock: Option<&Arc<Clock>>,
        listener: Option<&Arc<Listener>>,
    ) {
        if let Some(clock) = clock {
            self.0.clocks.insert(id.clone(), Arc::clone(clock));
        }
        if let Some(listener) = listener {
            self.0.listeners.insert(token.clone(), Arc::clone(listener));
        }
    }
}

impl Calls {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some of the session's calls go by this lane.
    pub(crate) fn also_on(&self, lane: &Arc<Lane>) {
        let _ = self.lane.set(Arc::downgrade(lane));
    }

    pub(crate) fn listing(&self) -> Listing<'_> {
        Listing(self.table())
    }

    /// The call has its outcome.
    pub(crate) fn strike(&self, id: &RequestId, token: &ProgressToken) {
        let mut table = self.table();
        let clock = table.clocks.remove(id);
        let listener = table.listeners.remove(token);
        drop(table);
        // Not under the lock: the last one wakes a reader.
        drop((clock, listener));
    }

    /// From now on the answer to this call, which is given up, goes to `tell`.
    pub(crate) fn expect_late(
        &self,
        id: &RequestId,
        tell: oneshot::Sender<Result<ServerResult, ErrorData>>,
    ) {
        self.table().late.insert(id.clone(), tell);
    }

    pub(crate) fn expect_no_more(&self, id: &RequestId) {
        let tell = self.table().late.remove(id);
        // Not under the lock: it may wake.
        drop(tell);
    }

    /// Whether somebody waits for the answer to this call, which was given up.
    pub(crate) fn expects(&self, id: &RequestId) -> bool {
        self.table().late.contains_key(id)
    }

    /// Whether somebody waits for the answer to any call that was given up.
    pub(crate) fn expects_any(&self) -> bool {
        !self.table().late.is_empty()
    }

    /// Gives the answer to this call, which came too late, to whoever waits for it all the same. What
    /// nobody waits for comes back.
    pub(crate) fn hear_late(
        &self,
        id: &RequestId,
        message: ServerJsonRpcMessage,
    ) -> Option<ServerJsonRpcMessage> {
        if !self.expects(id) {
            return Some(message);
        }
        let answer = match message {
            JsonRpcMessage::Response(response) => Ok(response.result),
            JsonRpcMessage::Error(error) => Err(error.error),
            other => return Some(other),
        };
        if let Some(tell) = self.table().late.remove(id) {
            // Whoever waited may just have gone.
            let _ = tell.send(answer);
        }
        None
    }

    /// Lets the clock of one call stand, or of all of them where it is not known which one the
    /// server speaks about. Calls that are handed over later are not among them.
    pub(crate) fn hold(&self, call: Option<&RequestId>) -> AllHeld {
        let lane = self.lane.get().and_then(Weak::upgrade);
        let on_lane = lane.map(|lane| match call {
            Some(call) => lane.hold_one(call).into_iter().collect(),
            None => lane.hold(),
        });
        let table = self.table();
        let mut held: Vec<_> = match call {
            Some(call) => table
                .clocks
                .get(call)
                .map(Clock::hold)
                .into_iter()
                .collect(),
            None => table.clocks.values().map(Clock::hold).collect(),
        };
        held.extend(on_lane.into_iter().flatten());
        AllHeld(held)
    }

    /// Hears what the server says, before anybody above does.
    pub(crate) fn hear(&self, message: &ServerJsonRpcMessage) {
        let JsonRpcMessage::Notification(notification) = message else {
            return;
        };
        let ServerNotification::ProgressNotification(progress) = &notification.notification else {
            return;
        };
        let params = &progress.params;
        let listener = self.table().listeners.get(&params.progress_token).cloned();
        if let Some(listener) = listener {
            listener.hear(Progress::new(
                params.progress,
                params.total,
                params.message.clone(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rmcp::model::NumberOrString;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_call_that_the_server_speaks_about_is_held_where_it_is_known() {
        let calls = Calls::default();
        let clocks: Vec<_> = (0..2)
            .map(|n| {
                let clock = Arc::new(Clock::new(Duration::from_secs(60)));
                let id = NumberOrString::Number(n);
                let token = ProgressToken(id.clone());
                calls.listing().list(&id, &token, Some(&clock), None);
                let due = clock.after(Duration::from_secs(10), tokio::time::Instant::now());
                (clock, due)
            })
            .collect();
        let left = |n: usize| clocks[n].0.left(clocks[n].1).as_secs();
        let held = calls.hold(Some(&NumberOrString::Number(1)));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((left(0), left(1)), (5, 10));
        drop(held);
        let held = calls.hold(None);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!((left(0), left(1)), (5, 10));
        drop(held);
    }
}
