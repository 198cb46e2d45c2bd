//! A store that tells what it was asked, and fails where it is told to.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use mcp_supervisor::{
    Outcome, Supervisor,
    journal::{
        Accepted, By, Claimed, Fact, Filter, Held, Intent, Journal, JournalSettings, MemoryStore,
        Record, State, Store, StoreError, Stored, Swept,
    },
    operation::{AttemptId, OperationId},
};
use tokio::sync::watch;

/// One question to the store.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// To accept an intent, with the first attempt or without.
    Accept(OperationId, Option<AttemptId>),
    /// To record an attempt.
    Dispatching(OperationId, AttemptId),
    /// To record that the caller cancelled.
    CancelRequested(OperationId),
    /// To record an answer, by whether it says that the tool failed.
    Answered(OperationId, bool),
    /// To record an end without an answer.
    Without(OperationId, Outcome),
    /// To record a task.
    Task(OperationId),
    /// To find an operation.
    Find,
    /// To let somebody resolve an operation.
    Claim(OperationId),
    /// To let somebody else resolve it.
    Release(OperationId),
}

/// What is to fail.
#[derive(Default)]
pub struct Fails {
    pub accept: AtomicBool,
    pub dispatching: AtomicBool,
    pub outcome: AtomicBool,
    /// Whether another host has taken over what is written.
    pub fenced: AtomicBool,
}

/// A store in memory that is watched.
#[derive(Default)]
pub struct Watched {
    kept: MemoryStore,
    asked: Mutex<Vec<Asked>>,
    pub fails: Fails,
    /// Whether writes hang. What was asked goes on when they do not any more, whoever waits for it.
    pub hangs: watch::Sender<bool>,
}

fn full<T: Send + 'static>() -> Stored<'static, T> {
    Box::pin(async { Err(StoreError::Full("the disk is full".into())) })
}

impl Watched {
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, asked: Asked) {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(asked);
    }

    async fn moves(&self) {
        // It fails only without a sender, and that is here.
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
    }
}

/// The store as a journal has it; the test has the same one.
#[derive(Clone, Default)]
pub struct Shared(pub Arc<Watched>);

impl Shared {
    fn once_it_moves<T, F>(&self, write: F) -> Stored<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(Arc<Watched>) -> Stored<'static, T> + Send + 'static,
    {
        let store = Arc::clone(&self.0);
        if !*store.hangs.borrow() {
            return write(store);
        }
        let written = tokio::spawn(async move {
            store.moves().await;
            write(store).await
        });
        Box::pin(async move { written.await.expect("it does not panic") })
    }
}

impl Store for Shared {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        self.0.note(Asked::Accept(intent.operation, first));
        if self.0.fails.accept.load(Ordering::SeqCst) {
            return full();
        }
        self.once_it_moves(move |store| {
            Box::pin(async move { store.kept.accept(intent, first).await })
        })
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        let id = held.operation;
        let (asked, fails) = match &fact {
            Fact::Dispatching { attempt } => {
                (Asked::Dispatching(id, *attempt), &self.0.fails.dispatching)
            }
            Fact::CancelRequested => (Asked::CancelRequested(id), &self.0.fails.outcome),
            Fact::Answered { is_error, .. } => {
                (Asked::Answered(id, *is_error), &self.0.fails.outcome)
            }
            Fact::Without { outcome, .. } => (Asked::Without(id, *outcome), &self.0.fails.outcome),
            Fact::Task { .. } => (Asked::Task(id), &self.0.fails.outcome),
            other => panic!("a call records no {other:?}"),
        };
        self.0.note(asked);
        if self.0.fails.fenced.load(Ordering::SeqCst) {
            return Box::pin(async { Err(StoreError::Fenced) });
        }
        if fails.load(Ordering::SeqCst) {
            return full();
        }
        let held = Held { ..*held };
        self.once_it_moves(move |store| {
            Box::pin(async move { store.kept.append(&held, fact).await })
        })
    }

    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>> {
        self.0.note(Asked::Find);
        self.0.kept.find(by)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        self.0.kept.list(filter)
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.0.note(Asked::Claim(operation));
        self.once_it_moves(move |store| Box::pin(async move { store.kept.claim(operation).await }))
    }

    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()> {
        self.0.note(Asked::Release(held.operation));
        self.0.kept.release(held)
    }

    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept> {
        self.0.kept.sweep(answers, tombstones, at_most)
    }

    fn close(&self) -> Stored<'_, ()> {
        self.0.kept.close()
    }

    fn is_shared(&self) -> bool {
        self.0.kept.is_shared()
    }
}

/// A supervisor with a watched journal.
pub async fn watched() -> (Supervisor, Journal, Arc<Watched>) {
    watched_with(JournalSettings::default()).await
}

pub async fn watched_with(settings: JournalSettings) -> (Supervisor, Journal, Arc<Watched>) {
    let store = Shared::default();
    let journal = Journal::new(store.clone(), settings);
    let supervisor = Supervisor::builder()
        .journal(journal.clone())
        .start()
        .await
        .expect("it starts");
    (supervisor, journal, store.0)
}
