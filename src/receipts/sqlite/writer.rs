//! The thread that writes: what waits together is run in one transaction, each call in a savepoint of
//! its own, and answered when that is committed.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
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

/// What the thread is given to do.
pub(super) enum Job {
    /// A call of a tool.
    Call(Box<Begun>),
    /// Anything else, in a transaction of its own or in none.
    Ask(Box<dyn FnOnce(&mut Connection) + Send>),
}

/// A call that waits for its transaction.
pub(super) struct Begun {
    /// When it is too late to begin.
    pub(super) until: Instant,
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
        settings,
        jobs,
        calls: VecDeque::new(),
        asks: VecDeque::new(),
        swept: Instant::now(),
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
    asks: VecDeque<Box<dyn FnOnce(&mut Connection) + Send>>,
    swept: Instant,
}

impl Writer {
    fn write(mut self) {
        loop {
            if self.calls.is_empty() {
                let next = self
                    .settings
                    .sweep_every
                    .saturating_sub(self.swept.elapsed());
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
            if self.swept.elapsed() >= self.settings.sweep_every {
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
        while let Some(call) = self.calls.pop_front_if(|call| call.until <= now) {
            call.answer(Answer::Busy);
        }
    }

    fn borrow_lock_for(&self, bound: Duration) {
        if let Err(error) = self.connection.busy_timeout(bound) {
            tracing::warn!(%error, "a receipts database takes no bound for its lock");
        }
    }

    /// Runs what waits in one transaction and commits it. Where that fails, each call gets a
    /// transaction of its own, so that one call's fault is its own.
    fn group(&mut self) {
        let began = Instant::now();
        let first = self.calls.front().map(|call| call.until);
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
        let committed = match lost {
            None => transaction.commit().is_ok(),
            Some(_) => {
                drop(transaction);
                false
            }
        };
        if committed {
            for (call, answer) in done {
                call.answer(answer);
            }
            return;
        }
        let again = done.into_iter().map(|(call, _)| call).chain(lost);
        for call in again.collect::<Vec<_>>() {
            let answer = self.alone(&call);
            call.answer(answer);
        }
    }

    /// Runs one call in a transaction of its own. Where an earlier transaction of its was committed
    /// after all, it finds the receipt.
    fn alone(&mut self, call: &Begun) -> Answer {
        self.borrow_lock_for(self.settings.lock);
        let begun = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = match begun.map_err(rows::failed) {
            Ok(transaction) => transaction,
            // An earlier commit of its may have held, and nobody can look.
            Err(_) => {
                return Answer::Unclear {
                    id: call.arrival.id,
                };
            }
        };
        let answer = match perform(&transaction, &self.guard, &call.asking()) {
            Ok(answer) => answer,
            Err(Undone::Ledger(error)) => return unavailable(&error),
            Err(Undone::Lost) => return broke("The tool's own statement ended its transaction."),
        };
        match transaction.commit() {
            Ok(()) => answer,
            Err(error) => self.after_commit(call, &error),
        }
    }

    /// What became of a commit that failed: where the error does not say, the receipt does.
    fn after_commit(&self, call: &Begun, error: &rusqlite::Error) -> Answer {
        let refused = matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::ConstraintViolation
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::DiskFull
                    | ErrorCode::ReadOnly
            )
        );
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

    /// Removes what was kept long enough. A full sweep is followed by another one soon.
    fn sweep(&mut self) {
        self.swept = Instant::now();
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
                }
                tracing::debug!(
                    answers = swept.answers,
                    tombstones = swept.tombstones,
                    "swept"
                );
            }
            Err(error) => tracing::warn!(%error, "expired receipts were not removed"),
        }
    }
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
