//! A store that lasts as long as its process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use super::{
    record::{Entry, Fact, Holder, Intent, Record},
    store::{Accepted, By, Claimed, Filter, Held, Store, StoreError, Stored, Swept},
    table::State,
};
use crate::operation::{AttemptId, ConnectionName, IdempotencyKey, OperationId};

/// Who has the operations of a store that no other process sees.
const HOST: &str = "this process";

/// Keeps operations in memory.
#[derive(Default)]
pub struct MemoryStore(Mutex<Book>);

#[derive(Default)]
struct Book {
    pages: BTreeMap<OperationId, Page>,
    /// The last operation that was accepted under a key.
    keys: HashMap<(ConnectionName, IdempotencyKey), OperationId>,
    closed: bool,
}

struct Page {
    record: Record,
    /// One more each time that the operation changes hands.
    fence: u64,
    /// Whether somebody is resolving it.
    claimed: bool,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Book) -> Result<T, StoreError>) -> Stored<'_, T>
    where
        T: Send + 'static,
    {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let done = match book.closed {
            true => Err(StoreError::Closed),
            false => act(&mut book),
        };
        Box::pin(std::future::ready(done))
    }
}

impl Page {
    fn pass_on(&mut self) {
        self.fence += 1;
        self.record.owner = Some(Holder::new(HOST, self.fence));
    }

    fn held(&self) -> Held {
        Held {
            operation: self.record.intent.operation,
            row: 0,
            fence: self.fence,
        }
    }
}

impl Book {
    fn held(&mut self, held: &Held) -> Result<&mut Page, StoreError> {
        let page = self.pages.get_mut(&held.operation);
        page.filter(|page| page.fence == held.fence)
            .ok_or(StoreError::Fenced)
    }

    /// The operation that has the id, or the key and has not freed it.
    fn rival(&self, intent: &Intent) -> Option<&Record> {
        let under_key = || {
            let key = (intent.connection.clone(), intent.key.clone()?);
            let page = self.pages.get(self.keys.get(&key)?)?;
            (!page.record.state.frees_its_key()).then_some(page)
        };
        let page = self.pages.get(&intent.operation).or_else(under_key)?;
        Some(&page.record)
    }

    /// The operations that `chosen` lets through, at most so many.
    fn pick(&self, at_most: usize, chosen: impl Fn(&Record) -> bool) -> Vec<OperationId> {
        let records = self.pages.iter().filter(|(_, page)| chosen(&page.record));
        records.take(at_most).map(|(id, _)| *id).collect()
    }

    fn remove(&mut self, operation: OperationId) {
        let Some(Page { record, .. }) = self.pages.remove(&operation) else {
            return;
        };
        if let Some(key) = record.intent.key {
            let key = (record.intent.connection, key);
            // Another may have taken the key since.
            if self.keys.get(&key) == Some(&operation) {
                self.keys.remove(&key);
            }
        }
    }
}

impl Store for MemoryStore {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        self.with(|book| {
            if let Some(found) = book.rival(&intent) {
                return Ok(Accepted::Found(Box::new(found.clone())));
            }
            let id = intent.operation;
            if let Some(key) = &intent.key {
                book.keys
                    .insert((intent.connection.clone(), key.clone()), id);
            }
            let mut record = Record::new(intent);
            if let Some(attempt) = first {
                record.apply(Entry::now(Fact::Dispatching { attempt }))?;
            }
            let mut page = Page {
                record,
                fence: 0,
                claimed: false,
            };
            page.pass_on();
            let held = page.held();
            book.pages.insert(id, page);
            Ok(Accepted::New(held))
        })
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        self.with(|book| Ok(book.held(held)?.record.apply(Entry::now(fact))?))
    }

    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>> {
        self.with(|book| {
            let id = match by {
                By::Operation(id) => Some(id),
                By::Key(connection, key) => {
                    let key = (connection.clone(), key.clone());
                    book.keys.get(&key).copied()
                }
            };
            let page = id.and_then(|id| book.pages.get(&id));
            Ok(page.map(|page| page.record.clone()))
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        self.with(|book| {
            let ids = book.pick(filter.limit, |record| {
                let Intent {
                    operation,
                    connection,
                    ..
                } = &record.intent;
                filter.after.is_none_or(|after| *operation > after)
                    && filter
                        .states
                        .as_ref()
                        .is_none_or(|states| states.contains(&record.state))
                    && filter
                        .connection
                        .as_ref()
                        .is_none_or(|name| name == connection)
            });
            let pages = ids.iter().filter_map(|id| book.pages.get(id));
            Ok(pages.map(|page| page.record.clone()).collect())
        })
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.with(|book| {
            let Some(page) = book.pages.get_mut(&operation) else {
                return Ok(Claimed::Missing);
            };
            let state = page.record.state;
            if state.is_settled() {
                return Ok(Claimed::Settled(Box::new(page.record.clone())));
            }
            if state != State::OutcomeUnknown || page.claimed {
                return Ok(Claimed::Elsewhere(Box::new(page.record.clone())));
            }
            page.claimed = true;
            page.pass_on();
            Ok(Claimed::Yes(page.held(), Box::new(page.record.clone())))
        })
    }

    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()> {
        self.with(|book| {
            let page = book.held(held)?;
            if page.record.state == State::OutcomeUnknown {
                page.claimed = false;
                page.pass_on();
            }
            Ok(())
        })
    }

    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept> {
        self.with(|book| {
            let before = |record: &Record, bound| record.settled_at().is_some_and(|at| at < bound);
            let to_remove = book.pick(at_most, |record| {
                let state = record.state;
                state == State::Forgotten && before(record, tombstones)
                    || state.frees_its_key() && before(record, answers)
            });
            let to_forget = book.pick(at_most, |record| {
                let state = record.state;
                state != State::Forgotten && !state.frees_its_key() && before(record, answers)
            });
            for id in &to_remove {
                book.remove(*id);
            }
            for id in &to_forget {
                if let Some(page) = book.pages.get_mut(id) {
                    page.record.apply(Entry::now(Fact::Forgotten))?;
                }
            }
            Ok(Swept {
                forgotten: to_forget.len(),
                removed: to_remove.len(),
            })
        })
    }

    fn close(&self) -> Stored<'_, ()> {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        book.closed = true;
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_shared(&self) -> bool {
        false
    }
}
