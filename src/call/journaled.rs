//! A call with a durable identity: it is recorded before anything of it is sent, goes on when its caller
//! stops waiting, and records what comes.
//!
//! It runs in a task of its own. The order is always the same: the record is durable, then the request
//! is handed over; the outcome is durable, then the caller hears of it.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::{Map, Value};
use tokio::{
    sync::{SemaphorePermit, oneshot},
    task::JoinHandle,
};
use tracing::{Instrument as _, Span};

use super::{
    Caller, ToolAnswer,
    attempt::{Times, Verdict, Without, cancelled, overloaded},
    contract::repeats,
    found::Found,
    lasting::{Asked, LAST_WRITE, Unwritten, claiming, give_back, release, within},
    late::settle_late,
    operation::{Done, Operation, admit, error_of},
    recorded::half_way,
    rounds::Rounds,
};
use crate::{
    connection::Line,
    error::{CallError, NotSentReason, UnknownCause, Wait},
    evidence::Outcome,
    journal::{
        Accepted, Claimed, Fact, Failure, Held, Intent, Journal, Settler, State, StoreError,
    },
    operation::{AttemptId, Fingerprint, OperationId, OperationKind, ToolCall},
    policy::ToolContract,
    session::Late,
    spec::Overload,
};

/// The waits before an intent is tidied up whose write failed, so that nobody knows whether it is there.
const TIDYING: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];

/// The right to write the history of a call that runs.
pub(super) struct Journaled {
    journal: Journal,
    held: Held,
    /// The attempt that became durable together with the intent.
    ahead: Option<AttemptId>,
    /// An attempt is recorded, or may be, so that whoever takes the operation over has to take it for sent.
    may_be_taken_for_sent: bool,
    /// A round before this call stands at the server, whatever becomes of this one.
    goes_on: bool,
    /// Attempts that were given up, and whose answers may still come.
    pub(super) late: Vec<Late>,
}

/// What the journal has to know of a call beside the operation.
pub(super) struct Asks {
    pub(super) fingerprint: Fingerprint,
    arguments: Option<Map<String, Value>>,
    pub(super) id_given: bool,
    pub(super) key_given: bool,
    pub(super) has_input: bool,
}

impl Asks {
    fn of(call: &ToolCall, id_given: bool, contract: &ToolContract, journal: &Journal) -> Self {
        let none = Map::new();
        let arguments = call.arguments.as_object().unwrap_or(&none);
        let filled = match contract {
            ToolContract::Keyed { argument } if arguments.contains_key(argument) => Some(argument),
            _ => None,
        };
        let fingerprint = match filled {
            None => Fingerprint::of(&call.name, arguments),
            Some(argument) => {
                let mut others = arguments.clone();
                others.remove(argument);
                Fingerprint::of(&call.name, &others)
            }
        };
        let kept = call.keep_arguments || journal.settings().keep_arguments;
        Self {
            fingerprint,
            arguments: kept.then(|| arguments.clone()),
            id_given,
            key_given: call.key.is_some(),
            has_input: call.input.responses.is_some() || call.input.state.is_some(),
        }
    }
}

/// How a call starts.
enum Start<'a> {
    /// It is recorded, and has a place in the connection.
    Go(SemaphorePermit<'a>),
    /// It is one that was made before.
    Known(Box<Result<ToolAnswer, CallError>>),
}

/// How a caller waits for a task, and is told.
type Waiting<'a> = Pin<Box<dyn Future<Output = Result<ToolAnswer, CallError>> + Send + 'a>>;
type Tell = oneshot::Sender<Result<ToolAnswer, CallError>>;

/// Calls in a task of its own and waits for it. Whoever drops this stops waiting, and nothing else.
///
/// In a box, so that a call without a journal is not the larger for it.
pub(super) fn call<'a>(caller: &Caller<'a>, journal: &Journal, mut call: ToolCall) -> Waiting<'a> {
    let line = caller.line;
    let id_given = call.budget.id.is_some();
    let id = call.budget.operation();
    call.budget.id = Some(id);
    let (tell, told) = oneshot::channel();
    let task = Task {
        line: Arc::clone(line),
        journal: journal.clone(),
        rounds: caller.rounds,
        id_given,
    };
    let within = Span::current();
    tokio::spawn(async move { task.run(call, within, tell).await });
    Box::pin(async move {
        let mut done = told.await.unwrap_or_else(|_| {
            // It panicked, or the runtime is shutting down.
            let without = Without::new(Verdict::Unknown(UnknownCause::CallEnded));
            let kind = OperationKind::ToolCall;
            Err(error_of(line, id, kind, without, None, 0))
        });
        if let Err(CallError::Unknown(unknown)) = &mut done {
            unknown.journaled = true;
        }
        done
    })
}

struct Task {
    line: Arc<Line>,
    journal: Journal,
    rounds: Rounds,
    id_given: bool,
}

impl Task {
    async fn run(self, call: ToolCall, within: Span, tell: Tell) {
        let Self { line, journal, .. } = &self;
        let caller = Caller {
            line,
            journal: None,
            admitted: false,
            rounds: self.rounds,
        };
        let contract = line.settings.contracts.for_tool(&call.name);
        let asks = Asks::of(&call, self.id_given, contract, journal);
        let may_be_resent = may_be_resent(line, contract);
        let tool = call.name.clone();
        let operation = within.in_scope(|| caller.tool_operation(call));
        drop(within);
        let mut operation = match operation {
            Ok(operation) => operation,
            Err(error) => return drop(tell.send(Err(error))),
        };
        let span = operation.begin();
        let start = operation.start(journal, asks).instrument(span.clone());
        let permit = match start.await {
            Ok(Start::Go(permit)) => permit,
            Ok(Start::Known(known)) => {
                operation.end_known(&known);
                return drop(tell.send(*known));
            }
            Err(error) => {
                operation.end(&Err(error.clone()));
                return drop(tell.send(Err(error)));
            }
        };
        let done = operation.all_rounds().instrument(span).await;
        let Some(journaled) = operation.journaled.take() else {
            unreachable!("what starts is journaled");
        };
        let id = operation.id;
        let facts = journaled.facts(&operation, &done);
        let in_task = matches!(facts.last(), Some(Fact::Task { .. }));
        let mut permit = Some(permit);
        let mut unwritten = Unwritten::new(journal, &journaled.held, facts);
        let offered = {
            let mut offer = std::pin::pin!(unwritten.offer());
            let patience = operation.times.left() + LAST_WRITE;
            let offered = tokio::time::timeout(patience, &mut offer).await;
            let done = match (&offered, &done) {
                // Not sent from here: whoever has it now knows nothing of that, and may send it.
                (Ok(Err(StoreError::Fenced)), Err(CallError::NotSent(_)))
                    if journaled.may_be_taken_for_sent =>
                {
                    let unknown = Verdict::Unknown(UnknownCause::ChangedHands);
                    Err(operation.error(Without::new(unknown), None))
                }
                // Nor does its record say so yet, and this host may end before it does.
                (Ok(Err(_)) | Err(_), Err(CallError::NotSent(_)))
                    if journaled.may_be_taken_for_sent && may_be_resent =>
                {
                    let unknown = Verdict::Unknown(UnknownCause::Unrecorded);
                    Err(operation.error(Without::new(unknown), None))
                }
                _ => done,
            };
            operation.end(&done);
            if in_task {
                // Before its caller can ask for the task.
                journal.hold_task(Held { ..journaled.held });
            }
            // Whoever asked may have stopped waiting.
            let _ = tell.send(done.map(|done| operation.answer(done)));
            match offered {
                Ok(offered) => offered,
                Err(_) => {
                    // A store that hangs keeps no other call from the connection.
                    permit = None;
                    offer.await
                }
            }
        };
        drop(operation);
        // Only now: a shutdown that waits for the connection to be idle waits for the record, too.
        drop(permit);
        let state = unwritten.persist(offered).await;
        let late = match state {
            Some(State::OutcomeUnknown) if !in_task => journaled.leave_unknown().await,
            None => return drop(journaled.leave_unknown().await),
            _ => return,
        };
        settle_late(line, journal, id, &tool, late).await;
    }
}

impl<'a> Operation<'a> {
    /// Records the call and gets it a place in the connection, or finds that it was made before.
    async fn start(&mut self, journal: &Journal, asks: Asks) -> Result<Start<'a>, CallError> {
        let line = self.line;
        loop {
            if line.closing.is_cancelled() {
                return Err(self.error(NotSentReason::Closed.into(), None));
            }
            let mut found = self.look(journal, &asks).await?;
            if found.is_none() {
                match self.accept(journal, &asks).await? {
                    Taken::New(permit) => return Ok(Start::Go(permit)),
                    Taken::Found(record) => found = Some(*record),
                }
            }
            let Some(record) = found else { continue };
            match self.found(journal, &asks, record).await? {
                Found::Outcome(known) => return Ok(Start::Known(known)),
                Found::NextRound(held) => {
                    let mut journaled = Journaled::new(journal, held, None);
                    journaled.goes_on = true;
                    self.journaled = Some(Box::new(journaled));
                    return Ok(Start::Go(self.admit_recorded().await?));
                }
                Found::Free => {}
            }
        }
    }

    /// Makes the intent durable. Where there is a place in the connection at once, the first attempt goes
    /// into the same write.
    async fn accept(&mut self, journal: &Journal, asks: &Asks) -> Result<Taken<'a>, CallError> {
        let line = self.line;
        let contract = self.contract().clone();
        // Before the intent, which holds it. The server may be asked for its list for that, and for
        // nothing else.
        self.schema = self.schema_before(&contract).await;
        let place = line.admission.try_acquire().ok();
        if place.is_none() && line.settings.limits.overload == Overload::Refuse {
            return Err(self.error(overloaded(line).into(), None));
        }
        let first = place.as_ref().map(|_| AttemptId::mint());
        let tool = self.tool.clone().unwrap_or_default();
        let schema = self.schema.as_ref().filter(|_| repeats(&contract));
        let intent = Intent {
            operation: self.id,
            connection: line.name.clone(),
            schema: schema.map(|schema| Fingerprint::of(&tool, schema)),
            tool,
            key: self.key.clone(),
            fingerprint: asks.fingerprint,
            arguments: asks.arguments.clone(),
            contract,
            accepted_at: SystemTime::now(),
        };
        let mut asked = accepting(journal, intent.clone(), first);
        let held = match in_time(&self.times, &mut asked).await {
            Ok(Ok(Accepted::New(held))) => held,
            Ok(Ok(Accepted::Found(record))) => return Ok(Taken::Found(record)),
            Ok(Err(error)) => {
                tokio::spawn(tidy_up(journal.clone(), intent));
                return Err(self.error(unrecorded(error).into(), None));
            }
            Err(reason) => {
                let may_be_resent = first.is_some() && may_be_resent(line, &intent.contract);
                let tidied = tokio::spawn(withdraw_late(journal.clone(), intent, asked));
                // With an attempt in it, whoever finds it when this host is gone takes it for sent.
                let unrecorded = may_be_resent && !is_tidy(tidied).await;
                let without = match unrecorded {
                    true => Without::new(Verdict::Unknown(UnknownCause::Unrecorded)),
                    false => reason.into(),
                };
                return Err(self.error(without, None));
            }
        };
        self.journaled = Some(Box::new(Journaled::new(journal, held, first)));
        let place = match place {
            Some(place) => place,
            None => self.admit_recorded().await?,
        };
        Ok(Taken::New(place))
    }

    /// Gets a recorded call a place in the connection. Where there is none, that is recorded as well.
    async fn admit_recorded(&mut self) -> Result<SemaphorePermit<'a>, CallError> {
        let reason = match admit(self.line, &self.times).await {
            Ok(place) => return Ok(place),
            Err(reason) => reason,
        };
        let error = self.error(reason.into(), None);
        if let Some(journaled) = self.journaled.take() {
            let facts = journaled.facts(self, &Err(error.clone()));
            let writing = tokio::spawn(async move {
                let mut unwritten = Unwritten::new(&journaled.journal, &journaled.held, facts);
                let offered = unwritten.offer().await;
                unwritten.persist(offered).await;
                journaled.leave_unknown().await;
            });
            // What is not durable by then is told all the same.
            let _ = tokio::time::timeout(LAST_WRITE, writing).await;
        }
        Err(error)
    }

    /// Claims an operation in the time of this call. What is claimed later is given up again.
    pub(super) async fn claim(
        &self,
        journal: &Journal,
        operation: OperationId,
    ) -> Result<Claimed, CallError> {
        let mut asked = claiming(journal, operation);
        let reason = match in_time(&self.times, &mut asked).await {
            Ok(done) => return done.map_err(|error| self.error(unrecorded(error).into(), None)),
            Err(reason) => reason,
        };
        tokio::spawn(give_back(journal.clone(), asked));
        Err(self.error(reason.into(), None))
    }

    /// The end of a call that was made before.
    fn end_known(&mut self, known: &Result<ToolAnswer, CallError>) {
        match known {
            Ok(answer) => self.watch.answered(answer.is_error(), || None),
            Err(error) => self.watch.failed(error, || None),
        }
    }

    /// Waits for the journal as long as for anything else.
    pub(super) async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, CallError> {
        let done = in_time(&self.times, asked).await;
        let done = done.and_then(|done| done.map_err(unrecorded));
        done.map_err(|reason| self.error(reason.into(), None))
    }
}

/// What became of an intent.
enum Taken<'a> {
    New(SemaphorePermit<'a>),
    Found(Box<crate::journal::Record>),
}

pub(super) fn unrecorded(error: StoreError) -> NotSentReason {
    NotSentReason::Journal(Arc::new(error))
}

/// What the store says within the time of a call, or why that is not waited for any longer.
async fn in_time<T>(
    times: &Times,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<Result<T, StoreError>, NotSentReason> {
    tokio::select! {
        biased;
        done = asked => Ok(done),
        () = cancelled(times) => Err(NotSentReason::Cancelled),
        () = times.spent() => Err(NotSentReason::DeadlinePassed(Wait::Journal)),
    }
}

fn accepting(journal: &Journal, intent: Intent, first: Option<AttemptId>) -> Asked<Accepted> {
    let journal = journal.clone();
    Box::pin(async move { journal.accept(intent, first).await })
}

impl Journaled {
    pub(super) fn new(journal: &Journal, held: Held, ahead: Option<AttemptId>) -> Self {
        Self {
            journal: journal.clone(),
            held,
            may_be_taken_for_sent: ahead.is_some(),
            ahead,
            goes_on: false,
            late: Vec::new(),
        }
    }

    /// Adds what happened, and waits for that not much longer than `left`.
    pub(super) async fn append(&self, fact: Fact, left: Duration) -> Result<State, StoreError> {
        within(left + LAST_WRITE, self.journal.append(&self.held, fact)).await
    }

    /// Goes on to record what became known, in a task of its own, after a write that failed.
    pub(super) fn append_later(&self, fact: Fact, failed: StoreError) {
        let unwritten = Unwritten::new(&self.journal, &self.held, vec![fact]);
        let (journal, held) = (self.journal.clone(), Held { ..self.held });
        tokio::spawn(async move {
            if unwritten.persist(Err(failed)).await.is_none() {
                release(&journal, &held).await;
            }
        });
    }

    /// Makes the next attempt durable. What is not durable is not handed over.
    pub(super) async fn dispatching(&mut self, times: &Times) -> Result<AttemptId, NotSentReason> {
        if let Some(attempt) = self.ahead.take() {
            return Ok(attempt);
        }
        let attempt = AttemptId::mint();
        let fact = Fact::Dispatching { attempt };
        let before = std::mem::replace(&mut self.may_be_taken_for_sent, true);
        let durable = in_time(times, self.journal.append(&self.held, fact)).await?;
        if let Err(error) = durable {
            self.may_be_taken_for_sent = before;
            return Err(unrecorded(error));
        }
        Ok(attempt)
    }

    /// What is to be recorded of a call that is over.
    fn facts(&self, operation: &Operation<'_>, done: &Result<Done, CallError>) -> Vec<Fact> {
        let mut facts = Vec::with_capacity(2);
        let cancel = operation.times.cancel.as_ref();
        if done.is_err() && cancel.is_some_and(|cancel| cancel.is_cancelled()) {
            facts.push(Fact::CancelRequested);
        }
        let last = operation.fact(&self.journal, done);
        facts.push(match last {
            Fact::Without {
                outcome: Outcome::NotSent,
                by,
                ..
            } if self.goes_on => half_way(by),
            last => last,
        });
        facts
    }

    /// Lets others resolve the operation, and gives what may still be heard of it.
    async fn leave_unknown(self: Box<Self>) -> Vec<Late> {
        // One that was claimed for its next round. Whoever ran it from the start is in nobody's way.
        if self.goes_on {
            release(&self.journal, &self.held).await;
        }
        self.late
    }
}

/// Whether something may be sent in order to resolve an operation under this contract.
fn may_be_resent(line: &Line, contract: &ToolContract) -> bool {
    repeats(contract) && !line.ownership.is_lent()
}

/// Whether an intent was tidied up as long as a caller waits for such a thing.
async fn is_tidy(tidied: JoinHandle<bool>) -> bool {
    matches!(tokio::time::timeout(LAST_WRITE, tidied).await, Ok(Ok(true)))
}

/// Records an intent as not sent that becomes durable later than anybody waits for it. `true`: it is
/// recorded so, or the store says that it was not accepted.
async fn withdraw_late(journal: Journal, intent: Intent, comes: Asked<Accepted>) -> bool {
    match comes.await {
        Ok(Accepted::New(held)) => record_unsent(&journal, &held).await,
        // It is another one that is there.
        Ok(Accepted::Found(_)) => true,
        Err(_) => {
            tokio::spawn(tidy_up(journal, intent));
            true
        }
    }
}

/// Records an intent as not sent whose caller was told so, because its first write failed. Perhaps it is
/// there all the same, and its key with it. Where that does not succeed, the next start of the host does
/// it.
async fn tidy_up(journal: Journal, intent: Intent) {
    if let Some(held) = withdraw(&journal, intent).await {
        record_unsent(&journal, &held).await;
    }
}

/// `true`: that is durable.
async fn record_unsent(journal: &Journal, held: &Held) -> bool {
    let fact = Fact::Without {
        outcome: Outcome::NotSent,
        failure: Failure::new("journal"),
        by: Settler::Call {
            generation: None,
            attempts: 0,
        },
    };
    let mut unwritten = Unwritten::new(journal, held, vec![fact]);
    let offered = unwritten.offer().await;
    let recorded = unwritten.persist(offered).await.is_some();
    if !recorded {
        release(journal, held).await;
    }
    recorded
}

/// The right to write an intent that perhaps is there.
async fn withdraw(journal: &Journal, intent: Intent) -> Option<Held> {
    for wait in TIDYING {
        tokio::time::sleep(wait).await;
        match journal.accept(intent.clone(), None).await {
            Ok(Accepted::New(held)) => return Some(held),
            Ok(Accepted::Found(record)) if record.intent.operation != intent.operation => {
                return None;
            }
            Ok(Accepted::Found(_)) => match journal.claim(intent.operation).await {
                Ok(Claimed::Yes(held, _)) => return Some(held),
                Ok(_) => return None,
                Err(_) => {}
            },
            Err(_) => {}
        }
    }
    None
}
