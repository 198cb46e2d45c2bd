//! What is there whatever becomes of a host: the time, what is due, the pipes, the servers, and the
//! trace of all that happened.
//!
//! Everything that moves a game from outside is due at a moment of its own, an even millisecond. In
//! between, the runtime comes to rest; and the limits that callers set are odd. So nothing of the
//! game's own meets anything else in the same moment, and what rmcp leaves to chance, which of two
//! ready things it looks at first, has nothing to choose from.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use mcp_supervisor::{EventStream, OperationId, Received};
use tokio::{sync::Notify, time::Instant};

use super::{
    dice::Dice,
    server::{Server, Work},
    store::Book,
    trace::{Fact, Step, Told, What},
    wire::Link,
};

/// The servers, and the connections to them. The last one is the caller's own.
pub(super) const CONNECTIONS: [&str; 3] = ["bank", "shop", "crm"];
/// The one that the caller lends.
pub(super) const LENT: usize = 2;

/// Something that is due.
#[derive(Clone, Debug)]
pub(super) enum Due {
    /// Bytes of the client's, up to this one, arrive at the server.
    Up { link: usize, upto: u64 },
    /// The next bytes of the server's arrive at the client.
    Down { link: usize },
    /// The writer may go on.
    Unblock { link: usize },
    /// The pipe breaks, for the reader and then for the writer.
    Break { link: usize },
    /// What the writer has still to learn of that.
    BreakWriter { link: usize },
    /// A server goes on with a request.
    Work(Work),
    /// A server's process is killed.
    KillServer { server: usize },
    /// A server that was killed is there again.
    ServerBack { server: usize },
    /// A caller begins an operation.
    Ask { operation: usize },
    /// A caller's token is cancelled.
    Cancel { operation: usize },
    /// A caller's future is dropped.
    Drop { operation: usize },
    /// A caller asks for a new session.
    Reconnect { connection: usize },
    /// A caller finds out what became of what nobody knows.
    Resolve { operation: usize },
    /// The host is killed.
    Crash,
}

impl Due {
    /// Whether it goes with the host.
    fn is_the_hosts(&self) -> bool {
        matches!(
            self,
            Self::Unblock { .. }
                | Self::Ask { .. }
                | Self::Cancel { .. }
                | Self::Drop { .. }
                | Self::Reconnect { .. }
                | Self::Resolve { .. }
                | Self::Crash
        )
    }
}

/// An operation, and the generation of the session that it is handed over to.
type HandOver = (usize, u64);

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) trace: Vec<Step>,
    pub(super) links: Vec<Link>,
    pub(super) servers: [Server; CONNECTIONS.len()],
    pub(super) book: Book,
    /// What the faults of a pipe and of a server are drawn from; healed, there are none.
    pub(super) healed: bool,
    pub(super) wakes: Vec<Waker>,
    pub(super) events: Option<EventStream>,
    /// The keys that the runtime minted, as they came.
    pub(super) minted: BTreeMap<String, usize>,
    /// The marks of all operations, and those operations that are being resolved.
    pub(super) marks: Vec<usize>,
    pub(super) claimed: BTreeSet<usize>,
    /// The operations whose hand-over is told and whose frame is not begun; and the other way round,
    /// with where that stands in the trace.
    handed: BTreeSet<HandOver>,
    begun: BTreeMap<HandOver, usize>,
    /// The newest generation of each connection. What is lent has only the first.
    pub(super) newest: [u64; CONNECTIONS.len()],
    /// The first promise that was broken.
    pub(super) broken: Option<String>,
    agenda: BTreeMap<u64, Due>,
    /// When the host that is now was started, in the world's time and in its own.
    base: u64,
    began: Option<Instant>,
    /// No host: what its parts do while they are dropped is nobody's doing.
    pub(super) dying: bool,
    stir: Arc<Notify>,
}

/// All of a game that outlives its hosts, shared by everything in it.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<World>>);

impl Shared {
    pub(super) fn new(dice: Dice) -> Self {
        Self(Arc::new(Mutex::new(World {
            dice,
            trace: Vec::new(),
            links: Vec::new(),
            servers: Default::default(),
            book: Book::default(),
            healed: false,
            wakes: Vec::new(),
            events: None,
            minted: BTreeMap::new(),
            marks: Vec::new(),
            claimed: BTreeSet::new(),
            handed: BTreeSet::new(),
            begun: BTreeMap::new(),
            newest: [1; CONNECTIONS.len()],
            broken: None,
            agenda: BTreeMap::new(),
            base: 0,
            began: None,
            dying: false,
            stir: Arc::new(Notify::new()),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the world, or changes it, and then wakes whom that concerns.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.lock();
        let done = act(&mut world);
        let wakes = std::mem::take(&mut world.wakes);
        drop(world);
        for waker in wakes {
            waker.wake();
        }
        done
    }

    /// Lets the world go on until `body` is done. `None`: the host was killed before.
    pub(super) async fn go_on<T>(
        &self,
        act: impl Fn(Due),
        body: impl Future<Output = T>,
    ) -> Option<T> {
        let mut body = std::pin::pin!(body);
        let stir = self.with(|world| Arc::clone(&world.stir));
        loop {
            let stirred = stir.notified();
            let next = self.with(|world| world.next_moment());
            let wait = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                done = &mut body => return Some(done),
                () = wait => {
                    let due = self.with(World::take_due);
                    match due {
                        Some(Due::Crash) => {
                            // Before anything of it is dropped.
                            self.with(|world| world.host_goes(true));
                            return None;
                        }
                        Some(due) => act(due),
                        None => {}
                    }
                }
                () = stirred => {}
            }
        }
    }
}

impl World {
    /// Milliseconds since the game began.
    pub(super) fn now(&self) -> u64 {
        let since = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.base + u64::try_from(since.as_millis()).expect("a game is short")
    }

    /// A host begins to live.
    pub(super) fn begin_life(&mut self) {
        self.began = Some(Instant::now());
        self.dying = false;
    }

    /// Nothing more comes to grief: of what is due, only that goes on which is no trouble.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.record(What::Healed);
        let links = &self.links;
        self.agenda.retain(|_, due| match due {
            Due::KillServer { .. } => false,
            Due::Break { link } => links[*link].is_cut(),
            _ => true,
        });
        self.book.heal();
        self.heal_links();
        for server in &mut self.servers {
            server.up = true;
        }
    }

    /// The host goes. What its parts do from now on is their being dropped.
    pub(super) fn host_goes(&mut self, killed: bool) {
        if self.dying {
            return;
        }
        self.record(What::HostGone { killed });
        self.claimed.clear();
        self.handed.clear();
        self.begun.clear();
        self.all_let_go();
        self.dying = true;
    }

    /// The host is gone, and so much time passes.
    pub(super) fn end_life(&mut self, pause: u64) {
        self.base = self.now() + pause;
        self.began = None;
        self.agenda.retain(|_, due| !due.is_the_hosts());
        self.events = None;
    }

    /// In so many milliseconds, or a little later: each thing has its own moment.
    pub(super) fn schedule(&mut self, after: u64, due: Due) -> u64 {
        self.schedule_at(self.now() + after, due)
    }

    pub(super) fn schedule_at(&mut self, at: u64, due: Due) -> u64 {
        let mut at = at.max(self.now() + 1).next_multiple_of(2);
        while self.agenda.contains_key(&at) {
            at += 2;
        }
        self.agenda.insert(at, due);
        self.stir.notify_one();
        at
    }

    fn next_moment(&self) -> Option<Instant> {
        let at = *self.agenda.keys().next()?;
        let began = self.began.expect("a host lives");
        Some(began + Duration::from_millis(at.saturating_sub(self.base)))
    }

    fn take_due(&mut self) -> Option<Due> {
        self.hear();
        let at = *self.agenda.keys().next()?;
        (at <= self.now()).then(|| self.agenda.remove(&at))?
    }

    /// Writes down what happened, behind what the host has told until now.
    pub(super) fn record(&mut self, what: What) {
        if self.dying {
            return;
        }
        self.hear();
        match &what {
            What::Claimed { operation } => drop(self.claimed.insert(*operation)),
            What::Released { operation } => drop(self.claimed.remove(operation)),
            // Whoever had it is through, and its key may be another one's.
            What::Recorded {
                operation, state, ..
            } if state.is_settled() => drop(self.claimed.remove(operation)),
            _ => {}
        }
        if let What::Begun { link, frame } = &what
            && let Some(operation) = frame.operation.or(frame.resolves)
        {
            let this = (operation, self.links[*link].generation);
            if !self.handed.remove(&this) {
                self.begun.insert(this, self.trace.len());
            }
        }
        let at = self.now();
        self.trace.push(Step { at, what });
    }

    /// Writes down what the host has told.
    pub(super) fn hear(&mut self) {
        let at = self.now();
        let Some(events) = &mut self.events else {
            return;
        };
        loop {
            // Beside the budget of the task that happens to be at work.
            let next = tokio::task::coop::unconstrained(events.next());
            match futures::FutureExt::now_or_never(next) {
                Some(Some(Received::Event(event))) => {
                    let told = Told::of(&event);
                    match told.what {
                        Fact::Starting { generation } => self.newest[told.connection] = generation,
                        // What of it was not begun never is.
                        Fact::Finished {
                            operation: Some(over),
                            ..
                        } => self.handed.retain(|(it, _)| *it != over),
                        _ => {}
                    }
                    let hands_over = told.hands_over();
                    let begun = hands_over.and_then(|it| self.begun.remove(&it));
                    if begun.is_none() {
                        self.handed.extend(hands_over);
                    }
                    let what = What::Event(Box::new(told));
                    match begun {
                        // An idle writer writes in the very hand-over, before that is told.
                        Some(begun) => {
                            let at = self.trace[begun].at;
                            self.trace.insert(begun, Step { at, what });
                            for later in self.begun.values_mut() {
                                *later += usize::from(*later >= begun);
                            }
                        }
                        None => self.trace.push(Step { at, what }),
                    }
                }
                Some(Some(Received::Missed(many))) => {
                    let broken = format!("{many} events were missed");
                    self.broken.get_or_insert(broken);
                }
                Some(None) | None => return,
            }
        }
    }

    /// Something that must never be.
    pub(super) fn break_promise(&mut self, what: impl fmt::Display) {
        let at = self.now();
        self.broken
            .get_or_insert_with(|| format!("at {at} ms: {what}"));
    }
}

/// The id of an operation that a caller asks for: its number, in an order that the journal keeps.
pub(super) fn id_of(operation: usize) -> OperationId {
    let mut bytes = [0; 16];
    bytes[6] = 0x70;
    bytes[8] = 0x80;
    bytes[12..].copy_from_slice(&(operation as u32 + 1).to_be_bytes());
    OperationId::from_bytes(bytes)
}

/// The number of an operation that a caller asks for. `None`: it is one of the runtime's own.
pub(super) fn number_of(id: OperationId) -> Option<usize> {
    let bytes = id.as_bytes();
    let number = u32::from_be_bytes(bytes[12..].try_into().expect("four bytes"));
    (bytes[..6] == [0; 6]).then(|| number as usize - 1)
}

/// The number of a connection.
pub(super) fn place_of(connection: &str) -> usize {
    let place = CONNECTIONS.iter().position(|name| *name == connection);
    place.expect("only those are opened")
}
