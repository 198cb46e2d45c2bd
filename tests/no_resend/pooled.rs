//! The one resend that is permitted: a pooled connection that died before the request was on it.

use std::{
    cell::{Cell, RefCell},
    path::PathBuf,
    time::Duration,
};

use mcp_supervisor::Era;
use serde_json::json;
use tracing::{Event, Subscriber, field::Visit};
use tracing_subscriber::{Layer, layer::Context};

use super::{
    both,
    clients::Ours,
    logs::capture,
    support::{Bed, bounded, until},
};

thread_local! {
    /// What the HTTP client on this thread does with its pool.
    static POOL: Pool = const { Pool {
        pooled: Cell::new(false),
        resent: Cell::new(0),
        close: RefCell::new(None),
    } };
}

struct Pool {
    pooled: Cell<bool>,
    resent: Cell<usize>,
    /// To be done at the next checkout: the file that makes the server close the connection, and
    /// the one that says that it has.
    close: RefCell<Option<(PathBuf, PathBuf)>>,
}

/// Lets the server close the connection at the moment at which the HTTP client has taken it out of
/// its pool and has not yet put the request on it. The client tells of that moment by its log.
pub(crate) struct AtTheCheckout;

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber> Layer<S> for AtTheCheckout {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        POOL.with(|pool| pool.hear(&message.0));
    }
}

impl Pool {
    fn hear(&self, message: &str) {
        if message.starts_with("unstarted request canceled, trying again") {
            self.resent.set(self.resent.get() + 1);
        } else if message.starts_with("pooling idle connection") {
            self.pooled.set(true);
        } else if message.starts_with("reuse idle connection") {
            self.pooled.set(false);
            if let Some((close, closed)) = self.close.take() {
                // This blocks the client's only thread, and the server is another process.
                std::fs::write(close, "").unwrap();
                while !closed.exists() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }
}

/// Two calls, between which the server has closed the pooled connection unseen. How often the HTTP
/// client took the second one back and sent it elsewhere.
fn resends_of_two_calls(era: Era) -> usize {
    // Without sessions there is no standing GET, and so one connection for all.
    let bed = Bed::new(json!({"sessions": false, "rules": [
        {"on": "tools/call", "nth": 1,
            "do": ["ledger", "answer", {"wait_file": "close"}, "close", {"touch": "closed"}]},
    ]}));
    capture();
    let before = POOL.with(|pool| pool.resent.get());
    // One thread that looks at its sockets after every task: the end of the connection is seen
    // before the request is taken from the queue.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(1)
        .build()
        .unwrap();
    runtime.block_on(bounded(async {
        let server = bed.http().await;
        let ours = Ours::open(server.spec(era)).await;
        assert_eq!(ours.generation_of("charge").await, 1);
        until("the connection is pooled", || {
            POOL.with(|pool| pool.pooled.get())
        })
        .await;
        let files = (bed.file("close"), bed.file("closed"));
        POOL.with(|pool| pool.close.replace(Some(files)));
        assert_eq!(ours.generation_of("charge").await, 1);
        ours.close().await;
    }));
    assert_eq!(
        (bed.read("tools/call"), bed.ran("charge")),
        (2, 2),
        "one for each call"
    );
    let connects = std::fs::read_to_string(bed.file("connects")).unwrap();
    assert_eq!(connects.lines().count(), 2);
    POOL.with(|pool| pool.resent.get()) - before
}

#[test]
fn a_call_taken_back_unsent_from_a_dead_pooled_connection_reaches_the_server_once() {
    for era in both() {
        assert_eq!(
            resends_of_two_calls(era),
            1,
            "the HTTP client has sent it elsewhere"
        );
    }
}
