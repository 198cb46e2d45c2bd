//! The thread that writes: what waits together is run in one transaction, each call in a savepoint of
//! its own, and answered when that is committed.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::{
    super::{
        answer::{Answer, NotKept},
        call::Call,
        definition::Terms,
        identity::Arrival,
        ledger::LedgerError,
        receipt::Receipt,
    },
    QUEUE, SqliteSettings,
    effect::{Asking, Guard, Handler, Undone, perform},
    rows,
};

/// When a full sweep is followed by another one. In between, calls have the lock.
const SWEEP_AGAIN: Duration = Duration::from_millis(50);

/// A thing to do with the connection.
type Ask = Box<dyn FnOnce(&mut Connection) + Send>;

/// What the thread is given to do.
pub(super) enum Job {
    /// A call of a tool.
    Call(Box<Begun>),
    /// Anything else, in a transaction of its own or in none.
    Ask(Ask),
}

/// Who has a call that waits: the thread that is to run it, or the caller who has waited for long
/// enough. The first one who takes it.
#[derive(Clone, Default)]
pub(super) struct Turn(Arc<AtomicBool>);

impl Turn {
    /// Whether it was still there to be taken.
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// A call that waits for its transaction.
pub(super) struct Begun {
    /// When it is too late to begin.
    pub(super) until: Instant,
    pub(super) turn: Turn,
    pub(super) arrival: Arrival,
    pub(super) call: Call,
    pub(super) terms: Arc<Terms>,
    pub(super) handler: Handler,
    pub(super) reply: oneshot::Sender<Answer>,
}

impl Begun {
    fn answer(self, answer: Answer) {
        // Who asked may be gone: the receipt is there for when it asks again.
        let _ = self.reply.send(answer);
    }

    fn asking(&self) -> Asking<'_> {
        Asking {
            arrival: &self.arrival,
            call: &self.call,
            terms: &self.terms,
            handler: &self.handler,
        }
    }
}

/// Starts the thread. It ends when the last ledger is dropped.
pub(super) fn start(
    mut connection: Connection,
    settings: SqliteSettings,
) -> Result<SyncSender<Job>, LedgerError> {
    let guard = Guard::default();
    guard.install(&mut connection).map_err(rows::failed)?;
    let (sender, jobs) = sync_channel(QUEUE);
    let writer = Writer {
        connection,
        guard,
        jobs,
        calls: VecDeque::new(),
        asks: VecDeque::new(),
        swept: Instant::now(),
        next_sweep: settings.sweep_every,
        settings,
    };
    thread::Builder::new()
        .name("mcp-receipts".to_owned())
        .spawn(move || writer.write())
        .map_err(|error| LedgerError::Unavailable(error.to_string().into()))?;
    Ok(sender)
}

struct Writer {
    connection: Connection,
    guard: Guard,
    settings: SqliteSettings,
    jobs: Receiver<Job>,
    calls: VecDeque<Begun>,
    asks: VecDeque<Ask>,
    swept: Instant,
    /// How long after that the next one is due.
    next_sweep: Duration,
}

impl Writer {
    fn write(mut self) {
        loop {
            if self.calls.is_empty() {
                let next = self.next_sweep.saturating_sub(self.swept.elapsed());
                match self.jobs.recv_timeout(next) {
                    Ok(job) => self.sort(job),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            self.receive();
            for ask in std::mem::take(&mut self.asks) {
                self.borrow_lock_for(self.settings.lock);
                // One that panics drops its reply, and so its asker hears of it.
                let _ = catch_unwind(AssertUnwindSafe(|| ask(&mut self.connection)));
            }
            self.late();
            if !self.calls.is_empty() {
                self.group();
            }
            if self.swept.elapsed() >= self.next_sweep {
                self.sweep();
            }
        }
    }

    fn sort(&mut self, job: Job) {
        match job {
            Job::Call(call) => self.calls.push_back(*call),
            Job::Ask(ask) => self.asks.push_back(ask),
        }
    }

    fn receive(&mut self) {
        while self.calls.len() < QUEUE
            && let Ok(job) = self.jobs.try_recv()
        {
            self.sort(job);
        }
    }

    /// Answers the calls that could not begin in time.
    fn late(&mut self) {
        let now = Instant::now();
        if self.calls.iter().all(|call| call.until > now) {
            return;
        }
        // Tools have bounds of their own: who came first is not who has to begin first.
        let (late, waiting) = self.calls.drain(..).partition(|call| call.until <= now);
        self.calls = waiting;
        let late: VecDeque<Begun> = late;
        for call in late {
            call.answer(Answer::Busy);
        }
    }

    fn borrow_lock_for(&self, bound: Duration) {
        if let Err(error) = rows::wait_for_locks(&self.connection, bound) {
            tracing::warn!(%error, "a receipts database takes no bound for its lock");
        }
    }

    /// Runs what waits in one transaction and commits it. Where that fails, each call gets a
    /// transaction of its own, so that one call's fault is its own.
    fn group(&mut self) {
        let began = Instant::now();
        let first = self.calls.iter().map(|call| call.until).min();
        let bound = first.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(began)
        });
        self.borrow_lock_for(bound);
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = match begun.map_err(rows::failed) {
            Ok(transaction) => transaction,
            // Whoever is late by now is told so; the others may still begin.
            Err(LedgerError::Busy) => return,
            Err(error) => {
                for call in self.calls.drain(..) {
                    call.answer(unavailable(&error));
                }
                return;
            }
        };

        let mut done: Vec<(Begun, Answer)> = Vec::new();
        let mut lost = None;
        while done.len() < self.settings.max_group
            && (done.is_empty() || began.elapsed() < self.settings.max_group_time)
        {
            let next = self.calls.pop_front().or_else(|| {
                loop {
                    match self.jobs.try_recv().ok()? {
                        Job::Call(call) => break Some(*call),
                        Job::Ask(ask) => self.asks.push_back(ask),
                    }
                }
            });
            let Some(call) = next else { break };
            if !call.turn.take() {
                continue;
            }
            match perform(&transaction, &self.guard, &call.asking()) {
                Ok(answer) => done.push((call, answer)),
                Err(Undone::Ledger(error)) => {
                    let answer = unavailable(&error);
                    done.push((call, answer));
                }
                Err(Undone::Lost) => {
                    lost = Some(call);
                    break;
                }
            }
        }
        let before = match lost {
            None => match transaction.commit().map_err(rows::uncommitted) {
                Ok(()) => {
                    for (call, answer) in done {
                        call.answer(answer);
                    }
                    return;
                }
                Err(LedgerError::Unclear(_)) => Before::Unclear,
                Err(_) => Before::RolledBack,
            },
            Some(_) => {
                drop(transaction);
                Before::RolledBack
            }
        };
        let again = done.into_iter().map(|(call, _)| call).chain(lost);
        for call in again.collect::<Vec<_>>() {
            let answer = self.alone(&call, before);
            call.answer(answer);
        }
    }

    /// Runs one call in a transaction of its own. Where an earlier transaction of its was committed
    /// after all, it finds the receipt.
    fn alone(&mut self, call: &Begun, before: Before) -> Answer {
        let id = call.arrival.id;
        // What keeps it from being done now says nothing of what was done then.
        let kept_from = |error: &LedgerError| match before {
            Before::RolledBack => unavailable(error),
            Before::Unclear => Answer::Unclear { id },
        };
        self.borrow_lock_for(self.settings.lock);
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = match begun.map_err(rows::failed) {
            Ok(transaction) => transaction,
            Err(error) => return kept_from(&error),
        };
        let answer = match perform(&transaction, &self.guard, &call.asking()) {
            Ok(answer) => answer,
            Err(Undone::Ledger(error)) => return kept_from(&error),
            Err(Undone::Lost) => return broke("The tool's own statement ended its transaction."),
        };
        match transaction.commit().map_err(rows::uncommitted) {
            Ok(()) => answer,
            Err(error) => self.after_commit(call, &error),
        }
    }

    /// What became of a commit that failed: where the error does not say, the receipt does.
    fn after_commit(&self, call: &Begun, error: &LedgerError) -> Answer {
        let refused = !matches!(error, LedgerError::Unclear(_));
        let id = call.arrival.id;
        tracing::warn!(operation = %id, refused, "a transaction with a receipt was not committed");
        if refused {
            return broke("The tool's changes could not be committed, and were rolled back.");
        }
        let ours = |receipt: &Receipt| receipt.id == id;
        match rows::by_key(&self.connection, &call.arrival.identity) {
            Ok(Some(receipt)) if ours(&receipt) => Answer::Kept {
                receipt: Arc::new(receipt),
                replayed: false,
            },
            // Its frames may be in the log, and a restart would find them.
            _ => Answer::Unclear { id },
        }
    }

    /// Removes what was kept long enough. A full sweep is followed by another one soon, so that it keeps
    /// up with however many calls there are.
    fn sweep(&mut self) {
        self.swept = Instant::now();
        self.next_sweep = self.settings.sweep_every;
        // Whoever has the lock is not disturbed: there is another time.
        self.borrow_lock_for(Duration::ZERO);
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let Ok(transaction) = begun else { return };
        let swept = rows::sweep(&transaction, SystemTime::now(), self.settings.sweep_at_most);
        match swept {
            Ok(swept) => {
                if let Err(error) = transaction.commit() {
                    tracing::warn!(%error, "expired receipts were not removed");
                    return;
                }
                tracing::debug!(
                    answers = swept.answers,
                    tombstones = swept.tombstones,
                    "swept"
                );
                let most = self.settings.sweep_at_most;
                if most > 0 && swept.answers.max(swept.tombstones) >= most {
                    self.next_sweep = self.next_sweep.min(SWEEP_AGAIN);
                }
            }
            Err(error) => tracing::warn!(%error, "expired receipts were not removed"),
        }
    }
}

/// What became of the transaction in which a call was run before.
#[derive(Clone, Copy)]
enum Before {
    RolledBack,
    /// It may have been committed.
    Unclear,
}

fn unavailable(error: &LedgerError) -> Answer {
    match error {
        LedgerError::Busy => Answer::Busy,
        error => {
            tracing::warn!(%error, "a call could not be recorded and was rolled back");
            broke("The tool's ledger cannot be written, and nothing was changed.")
        }
    }
}

fn broke(message: &str) -> Answer {
    Answer::NotKept(NotKept::Failed(message.to_owned()))
}
