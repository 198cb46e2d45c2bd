//! A journal's store that lasts as long as the game: it takes its time, refuses a write now and then,
//! and is opened again by the next host, as the durable stores are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use mcp_supervisor::{
    OperationId,
    journal::{
        Accepted, By, Claimed, Entry, Fact, Filter, Held, Holder, Intent, Record, Settler, State,
        Store, StoreError, Stored, Swept,
    },
    operation::AttemptId,
};

use super::{
    trace::What,
    world::{Shared, World, number_of},
};

/// What is durable.
#[derive(Default)]
pub(super) struct Book {
    pages: BTreeMap<OperationId, Page>,
    /// Whether the game has a journal.
    pub(super) kept: bool,
    /// The host that has it open.
    host: u64,
    /// The operations of which a write was refused.
    pub(super) refused: BTreeSet<OperationId>,
    /// In how many of a hundred writes nothing is written.
    refuses: u64,
    slowest: u64,
}

struct Page {
    record: Record,
    /// In which order they were accepted.
    row: usize,
    fence: u64,
    claimed: bool,
}

impl Page {
    fn pass_on(&mut self, host: u64) {
        self.fence += 1;
        self.record.owner = Some(Holder::new(format!("host {host}"), self.fence));
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
    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.pages.values().map(|page| &page.record)
    }

    /// The troubles of this game.
    pub(super) fn begin(&mut self, kept: bool, refuses: u64, slowest: u64) {
        (self.kept, self.refuses, self.slowest) = (kept, refuses, slowest);
    }

    pub(super) fn heal(&mut self) {
        self.refuses = 0;
    }

    /// Whether a tool call is about to leave of which no attempt is durable.
    pub(super) fn lacks_dispatch(&self, operation: usize) -> bool {
        let page = self.pages.get(&super::world::id_of(operation));
        self.kept && page.is_none_or(|page| page.record.attempts() == 0)
    }
}

impl World {
    /// A host opens the journal: what the one before left is unknown, or was never sent.
    pub(super) fn open_book(&mut self) {
        self.book.host += 1;
        let host = self.book.host;
        let left: Vec<OperationId> = self
            .book
            .pages
            .iter()
            .filter(|(_, page)| !page.record.state.is_settled())
            .map(|(id, _)| *id)
            .collect();
        for id in left {
            let page = self.book.pages.get_mut(&id).expect("it was just there");
            page.claimed = false;
            page.pass_on(host);
            if page.record.state != State::OutcomeUnknown {
                let before = format!("host {}", host - 1);
                let fact = Fact::Abandoned { host: before };
                self.write(id, fact)
                    .expect("what is not settled can be abandoned");
            }
        }
    }

    fn write(&mut self, id: OperationId, fact: Fact) -> Result<State, StoreError> {
        let page = self.book.pages.get_mut(&id).ok_or(StoreError::Fenced)?;
        let (word, by) = (word(&fact), known_by(&fact));
        let state = page.record.apply(Entry::now(fact))?;
        if let Some(operation) = number_of(id) {
            self.record(What::Recorded {
                operation,
                fact: word,
                by,
                state,
            });
        }
        Ok(state)
    }

    /// The right of whoever holds an operation, if it is worth anything still.
    fn held(&mut self, held: &Held) -> Result<&mut Page, StoreError> {
        let page = self.book.pages.get_mut(&held.operation);
        page.filter(|page| page.fence == held.fence)
            .ok_or(StoreError::Fenced)
    }

    fn accept(&mut self, intent: Intent, first: Option<AttemptId>) -> Result<Accepted, StoreError> {
        let id = intent.operation;
        let rival = self.book.pages.get(&id).or_else(|| {
            let key = intent.key.as_ref()?;
            self.book.pages.values().find(|page| {
                let other = &page.record.intent;
                other.connection == intent.connection
                    && other.key.as_ref() == Some(key)
                    && !page.record.state.frees_its_key()
            })
        });
        if let Some(page) = rival {
            return Ok(Accepted::Found(Box::new(page.record.clone())));
        }
        let mut page = Page {
            record: Record::new(intent),
            row: self.book.pages.len(),
            fence: 0,
            claimed: false,
        };
        page.pass_on(self.book.host);
        let held = page.held();
        self.book.pages.insert(id, page);
        if let Some(attempt) = first {
            self.write(id, Fact::Dispatching { attempt })?;
        } else if let Some(operation) = number_of(id) {
            self.record(What::Recorded {
                operation,
                fact: "accepted",
                by: "",
                state: State::Accepted,
            });
        }
        Ok(Accepted::New(held))
    }

    fn claim(&mut self, id: OperationId) -> Claimed {
        let host = self.book.host;
        let Some(page) = self.book.pages.get_mut(&id) else {
            return Claimed::Missing;
        };
        let state = page.record.state;
        if state.is_settled() {
            return Claimed::Settled(Box::new(page.record.clone()));
        }
        if state != State::OutcomeUnknown || page.claimed {
            return Claimed::Elsewhere(Box::new(page.record.clone()));
        }
        page.claimed = true;
        page.pass_on(host);
        let claimed = Claimed::Yes(page.held(), Box::new(page.record.clone()));
        if let Some(operation) = number_of(id) {
            self.record(What::Claimed { operation });
        }
        claimed
    }
}

/// A fact, as a word.
fn word(fact: &Fact) -> &'static str {
    match fact {
        Fact::Dispatching { .. } => "dispatching",
        Fact::CancelRequested => "cancel requested",
        Fact::Task { .. } => "task",
        Fact::Answered { .. } => "answered",
        Fact::Without { .. } => "without",
        Fact::Abandoned { .. } => "abandoned",
        Fact::Cancelled { .. } => "cancelled",
        Fact::Forgotten => "forgotten",
        _ => "another",
    }
}

/// How a fact became known, as a word; of one that nobody had to find out, none.
fn known_by(fact: &Fact) -> &'static str {
    let (Fact::Answered { by, .. } | Fact::Without { by, .. }) = fact else {
        return "";
    };
    match by {
        Settler::Call { .. } => "call",
        Settler::LateAnswer { .. } => "late answer",
        Settler::Repeat => "repeat",
        Settler::LookUp => "look-up",
        _ => "somebody",
    }
}

/// The store, as one host has it open.
pub(super) struct GameStore {
    world: Shared,
    host: u64,
    /// So that two that begin together do not end together.
    turns: AtomicU64,
}

impl GameStore {
    pub(super) fn open(world: &Shared) -> Self {
        let host = world.with(|world| {
            world.open_book();
            world.book.host
        });
        Self {
            world: world.clone(),
            host,
            turns: AtomicU64::new(0),
        }
    }

    /// Writes, before or after the time that it takes; or refuses to.
    fn do_write<'a, T: Send + 'a>(
        &'a self,
        operation: OperationId,
        act: impl FnOnce(&mut World) -> Result<T, StoreError> + Send + 'a,
    ) -> Stored<'a, T> {
        Box::pin(async move {
            let (wait, first, refused) = self.world.with(|world| {
                let (refuses, slowest) = (world.book.refuses, world.book.slowest);
                let wait = if slowest == 0 {
                    0
                } else {
                    world.dice.range(0, slowest)
                };
                (wait, world.dice.percent(50), world.dice.percent(refuses))
            });
            if refused {
                self.world
                    .with(|world| world.book.refused.insert(operation));
                self.take(wait).await;
                return Err(StoreError::Unavailable("the disk is not there".into()));
            }
            if first {
                let done = self.now(act);
                self.take(wait).await;
                return done;
            }
            self.take(wait).await;
            self.now(act)
        })
    }

    fn now<T>(
        &self,
        act: impl FnOnce(&mut World) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.world.with(|world| match world.book.host == self.host {
            true => act(world),
            false => Err(StoreError::Closed),
        })
    }

    async fn take(&self, wait: u64) {
        if wait > 0 {
            let turn = self.turns.fetch_add(1, Ordering::Relaxed) % 4;
            tokio::time::sleep(Duration::from_millis(wait + turn)).await;
        }
    }
}

impl Store for GameStore {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        self.do_write(intent.operation, move |world| world.accept(intent, first))
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        self.do_write(held.operation, move |world| {
            world.held(held)?;
            world.write(held.operation, fact)
        })
    }

    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>> {
        let found = self.now(|world| {
            let pages = world.book.pages.values();
            let page = match by {
                By::Operation(id) => world.book.pages.get(&id),
                By::Key(connection, key) => pages
                    .filter(|page| {
                        let intent = &page.record.intent;
                        intent.connection == *connection && intent.key.as_ref() == Some(key)
                    })
                    .max_by_key(|page| page.row),
            };
            Ok(page.map(|page| page.record.clone()))
        });
        Box::pin(std::future::ready(found))
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        let found = self.now(|world| {
            let records = world.book.records().filter(|record| {
                let states = filter.states.as_ref();
                filter
                    .after
                    .is_none_or(|after| record.intent.operation > after)
                    && states.is_none_or(|states| states.contains(&record.state))
            });
            Ok(records.take(filter.limit).cloned().collect())
        });
        Box::pin(std::future::ready(found))
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.do_write(operation, move |world| Ok(world.claim(operation)))
    }

    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()> {
        self.do_write(held.operation, move |world| {
            let host = world.book.host;
            let page = world.held(held)?;
            if page.record.state == State::OutcomeUnknown {
                page.claimed = false;
                page.pass_on(host);
                if let Some(operation) = number_of(held.operation) {
                    world.record(What::Released { operation });
                }
            }
            Ok(())
        })
    }

    fn sweep(&self, _: SystemTime, _: SystemTime, _: usize) -> Stored<'_, Swept> {
        Box::pin(std::future::ready(Ok(Swept::default())))
    }

    fn close(&self) -> Stored<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn is_shared(&self) -> bool {
        false
    }
}
