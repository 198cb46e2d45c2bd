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
use tokio::sync::{SemaphorePermit, oneshot};
use tracing::{Instrument as _, Span};

use super::{
    Caller, ToolAnswer,
    attempt::{Times, Verdict, Without, cancelled, overloaded},
    contract::repeats,
    found::Found,
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
    operation::{AttemptId, Fingerprint, OperationKind, ToolCall},
    policy::ToolContract,
    session::Late,
    spec::Overload,
};

/// How much longer than its deadline a caller waits for the record of its outcome. What is not durable
/// by then is told all the same.
const LAST_WRITE: Duration = Duration::from_secs(1);

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
    /// A round before this call stands at the server, whatever becomes of this one.
    goes_on: bool,
    /// Attempts that were given up, and whose answers may still come.
    pub(super) late: Vec<Box<Late>>,
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
    Known(Result<ToolAnswer, CallError>),
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
        told.await.unwrap_or_else(|_| {
            // It panicked, or the runtime is shutting down.
            let without = Without::new(Verdict::Unknown(UnknownCause::CallEnded));
            let kind = OperationKind::ToolCall;
            Err(error_of(line, id, kind, without, None, 0))
        })
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
                return drop(tell.send(known));
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
        let state = {
            let mut recording = std::pin::pin!(journaled.record(facts));
            let patience = operation.times.left() + LAST_WRITE;
            let recorded = tokio::time::timeout(patience, &mut recording).await;
            operation.end(&done);
            if in_task {
                // Before its caller can ask for the task.
                journal.hold_task(Held { ..journaled.held });
            }
            // Whoever asked may have stopped waiting.
            let _ = tell.send(done.map(|done| operation.answer(done)));
            match recorded {
                Ok(state) => state,
                Err(_) => recording.await,
            }
        };
        drop(operation);
        // Only now: a shutdown that waits for the connection to be idle waits for the record, too.
        drop(permit);
        let late = match state {
            Some(State::OutcomeUnknown) if !in_task => journaled.leave_unknown().await,
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
                    let permit = admit(line, &self.times).await;
                    let permit = permit.map_err(|reason| self.error(reason.into(), None))?;
                    let mut journaled = Journaled::new(journal, held, None);
                    journaled.goes_on = true;
                    self.journaled = Some(Box::new(journaled));
                    return Ok(Start::Go(permit));
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
        let held = match self.in_time(journal.accept(intent.clone(), first)).await {
            Ok(Accepted::New(held)) => held,
            Ok(Accepted::Found(record)) => return Ok(Taken::Found(record)),
            Err(error) => {
                // Perhaps it is there all the same, or comes to be.
                tokio::spawn(tidy_up(journal.clone(), intent));
                return Err(error);
            }
        };
        self.journaled = Some(Box::new(Journaled::new(journal, held, first)));
        if let Some(place) = place {
            return Ok(Taken::New(place));
        }
        match admit(line, &self.times).await {
            Ok(place) => Ok(Taken::New(place)),
            Err(reason) => {
                let error = self.error(reason.into(), None);
                if let Some(journaled) = self.journaled.take() {
                    let error = Err(error.clone());
                    let last = journaled.facts(self, &error);
                    journaled.record(last).await;
                }
                Err(error)
            }
        }
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

async fn in_time<T>(
    times: &Times,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, NotSentReason> {
    tokio::select! {
        biased;
        done = asked => done.map_err(unrecorded),
        () = cancelled(times) => Err(NotSentReason::Cancelled),
        () = times.spent() => Err(NotSentReason::DeadlinePassed(Wait::Journal)),
    }
}

impl Journaled {
    pub(super) fn new(journal: &Journal, held: Held, ahead: Option<AttemptId>) -> Self {
        Self {
            journal: journal.clone(),
            held,
            ahead,
            goes_on: false,
            late: Vec::new(),
        }
    }

    /// Adds what happened.
    pub(super) async fn append(&self, fact: Fact) -> Result<State, StoreError> {
        self.journal.append(&self.held, fact).await
    }

    /// Makes the next attempt durable. What is not durable is not handed over.
    pub(super) async fn dispatching(&mut self, times: &Times) -> Result<AttemptId, NotSentReason> {
        if let Some(attempt) = self.ahead.take() {
            return Ok(attempt);
        }
        let attempt = AttemptId::mint();
        let fact = Fact::Dispatching { attempt };
        in_time(times, self.journal.append(&self.held, fact)).await?;
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

    /// Records what is known, and says where the operation stands. What cannot be recorded is logged: the
    /// caller hears of it all the same.
    async fn record(&self, facts: Vec<Fact>) -> Option<State> {
        let mut state = None;
        for fact in facts {
            match self.journal.append(&self.held, fact).await {
                Ok(now) => state = Some(now),
                Err(error) => {
                    let operation = self.held.operation;
                    tracing::error!(%operation, %error, "the outcome could not be recorded");
                    return None;
                }
            }
        }
        state
    }

    /// Lets others resolve the operation, and gives what may still be heard of it.
    async fn leave_unknown(self: Box<Self>) -> Vec<Box<Late>> {
        // One that was claimed for its next round. Whoever ran it from the start is in nobody's way.
        if self.goes_on
            && let Err(error) = self.journal.release(&self.held).await
        {
            let operation = self.held.operation;
            tracing::error!(%operation, %error, "an unknown outcome could not be released");
        }
        self.late
    }
}

/// Records an intent as not sent whose first write failed: perhaps it is there all the same, and its key
/// with it. Where that does not succeed, the next start of the host does it.
async fn tidy_up(journal: Journal, intent: Intent) {
    for wait in TIDYING {
        tokio::time::sleep(wait).await;
        let held = match journal.accept(intent.clone(), None).await {
            Ok(Accepted::New(held)) => held,
            Ok(Accepted::Found(record)) if record.intent.operation != intent.operation => return,
            Ok(Accepted::Found(_)) => match journal.claim(intent.operation).await {
                Ok(Claimed::Yes(held, _)) => held,
                Ok(Claimed::Elsewhere(_) | Claimed::Settled(_) | Claimed::Missing) => return,
                Err(_) => continue,
            },
            Err(_) => continue,
        };
        let fact = Fact::Without {
            outcome: Outcome::NotSent,
            failure: Failure::new("journal"),
            by: Settler::Call {
                generation: None,
                attempts: 0,
            },
        };
        if journal.append(&held, fact).await.is_ok() {
            return;
        }
    }
}
