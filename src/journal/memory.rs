//! A store that lasts as long as its process.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use super::{
    record::{Entry, Fact, Intent, Owner, Record},
    store::{Accepted, By, Claimed, Filter, Held, Store, StoreError, Stored, Swept},
    table::State,
};
use crate::operation::{AttemptId, ConnectionName, IdempotencyKey, OperationId};

/// Keeps operations in memory.
#[derive(Default)]
pub struct MemoryStore(Mutex<Book>);

#[derive(Default)]
struct Book {
    records: BTreeMap<OperationId, Record>,
    keys: HashMap<(ConnectionName, IdempotencyKey), OperationId>,
    closed: bool,
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

impl Book {
    fn held(&mut self, held: &Held) -> Result<&mut Record, StoreError> {
        let record = self.records.get_mut(&held.operation);
        record
            .filter(|record| record.owner.as_ref().map(|owner| owner.fence) == Some(held.fence))
            .ok_or(StoreError::Fenced)
    }
}

fn now(fact: Fact) -> Entry {
    Entry {
        at: SystemTime::now(),
        fact,
    }
}

impl Store for MemoryStore {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        self.with(|book| {
            let id = intent.operation;
            let key = intent
                .key
                .clone()
                .map(|key| (intent.connection.clone(), key));
            let by_key = key.as_ref().and_then(|key| book.keys.get(key)).copied();
            if let Some(found) = book.records.get(&id).or_else(|| {
                book.records
                    .get(&by_key?)
                    .filter(|record| !record.state.frees_its_key())
            }) {
                return Ok(Accepted::Found(Box::new(found.clone())));
            }
            let mut record = Record::new(intent);
            record.owner = Some(Owner {
                host: "this process".to_owned(),
                fence: 1,
            });
            if let Some(attempt) = first {
                record.apply(now(Fact::Dispatching { attempt }))?;
            }
            book.records.insert(id, record);
            if let Some(key) = key {
                book.keys.insert(key, id);
            }
            Ok(Accepted::New(Held {
                operation: id,
                row: 0,
                fence: 1,
            }))
        })
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        self.with(|book| Ok(book.held(held)?.apply(now(fact))?))
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
            Ok(id.and_then(|id| book.records.get(&id)).cloned())
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        self.with(|book| {
            let chosen = book.records.iter().filter(|(id, record)| {
                let states = filter.states.as_ref();
                filter.after.is_none_or(|after| **id > after)
                    && states.is_none_or(|states| states.contains(&record.state))
                    && filter
                        .connection
                        .as_ref()
                        .is_none_or(|name| *name == record.intent.connection)
            });
            Ok(chosen
                .take(filter.limit)
                .map(|(_, record)| record.clone())
                .collect())
        })
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.with(|book| {
            let Some(record) = book.records.get_mut(&operation) else {
                return Ok(Claimed::Missing);
            };
            if record.state.is_settled() {
                return Ok(Claimed::Settled(Box::new(record.clone())));
            }
            if record.state != State::OutcomeUnknown {
                return Ok(Claimed::Elsewhere(Box::new(record.clone())));
            }
            let fence = record.owner.as_ref().map_or(0, |owner| owner.fence) + 1;
            record.owner = Some(Owner {
                host: "this process".to_owned(),
                fence,
            });
            let held = Held {
                operation,
                row: 0,
                fence,
            };
            Ok(Claimed::Yes(held, Box::new(record.clone())))
        })
    }

    fn release<'a>(&'a self, _: &'a Held) -> Stored<'a, ()> {
        self.with(|_| Ok(()))
    }

    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept> {
        self.with(|book| {
            let _ = (answers, tombstones, at_most, book);
            Ok(Swept::default())
        })
    }

    fn close(&self) -> Stored<'_, ()> {
        self.with(|book| {
            book.closed = true;
            Ok(())
        })
    }

    fn is_shared(&self) -> bool {
        false
    }
}
