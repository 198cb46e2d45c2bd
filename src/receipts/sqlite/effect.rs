//! One call in an open transaction: what the table says about it, done.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use rusqlite::{
    Connection, Transaction,
    hooks::{AuthAction, AuthContext, Authorization},
};
use serde_json::{Map, Value};

use super::{
    super::{
        answer::{Answer, NotKept},
        call::Call,
        definition::Terms,
        failure::Failure,
        identity::Arrival,
        ledger::LedgerError,
        receipt::{Receipt, Standing, later, millis},
        table::{Access, Incoming, Row, row},
    },
    rows,
};

/// A handler without its types.
pub(super) type Handler = Arc<
    dyn Fn(&Transaction<'_>, &Map<String, Value>, &Call) -> Result<Done, Failure> + Send + Sync,
>;

/// What a handler did.
pub(super) enum Done {
    /// All of it, with this result.
    Complete(Value),
    /// It was begun, and goes on after the transaction.
    Begun,
}

/// What keeps a call from an answer in this transaction.
pub(super) enum Undone {
    /// The transaction is over, or has to be: somebody's statement rolled all of it back, or a part of
    /// it cannot be undone alone.
    Lost,
    /// The ledger's own statements fail. What the call did is rolled back.
    Ledger(LedgerError),
}

const CALL: &str = "mcp_receipts_call";

/// Keeps a handler from ending the transaction that others share.
#[derive(Clone, Default)]
pub(super) struct Guard(Arc<AtomicBool>);

impl Guard {
    pub(super) fn install(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let handling = Arc::clone(&self.0);
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            let ends = match context.action {
                AuthAction::Transaction { .. } => true,
                AuthAction::Savepoint { savepoint_name, .. } => {
                    savepoint_name.eq_ignore_ascii_case(CALL)
                }
                _ => false,
            };
            match ends && handling.load(Ordering::Relaxed) {
                true => Authorization::Deny,
                false => Authorization::Allow,
            }
        }))
    }

    /// Runs a handler. One that panics has failed.
    fn handle(
        &self,
        handler: &Handler,
        transaction: &Transaction<'_>,
        arguments: &Map<String, Value>,
        call: &Call,
    ) -> Result<Done, Failure> {
        self.0.store(true, Ordering::Relaxed);
        let done = catch_unwind(AssertUnwindSafe(|| handler(transaction, arguments, call)));
        self.0.store(false, Ordering::Relaxed);
        done.unwrap_or_else(|_| Err(Failure::failed("the handler panicked")))
    }
}

/// What one call is to a transaction.
pub(super) struct Asking<'a> {
    pub(super) arrival: &'a Arrival,
    pub(super) call: &'a Call,
    pub(super) terms: &'a Terms,
    pub(super) handler: &'a Handler,
}

/// Asks the table and does what it says. The answer is true once the transaction is committed.
pub(super) fn perform(
    transaction: &Transaction<'_>,
    guard: &Guard,
    asking: &Asking<'_>,
) -> Result<Answer, Undone> {
    let arrival = asking.arrival;
    let found = rows::by_key(transaction, &arrival.identity).map_err(Undone::Ledger)?;
    let incoming = Incoming {
        // Who may not has been turned away before the transaction.
        access: Access::Granted,
        version: arrival.version,
        fingerprint: arrival.fingerprint,
        other_versions: asking.terms.other_versions,
    };
    let stored = found.as_ref().map(Receipt::stored);
    let row = row(stored.as_ref(), &incoming, millis(SystemTime::now()));
    let Some(mut receipt) = found else {
        return run(transaction, guard, asking);
    };
    Ok(match row {
        Row::Conflict(with) => Answer::Conflict {
            id: receipt.id,
            with,
        },
        Row::Deny => Answer::NotKept(NotKept::Denied("not allowed".to_owned())),
        Row::Run | Row::Replay | Row::Wait | Row::Unknown | Row::Expired => {
            if row == Row::Expired {
                receipt.standing = Standing::Expired;
            }
            // A repeat of its own transaction finds what that one had committed after all.
            let replayed = receipt.id != arrival.id;
            Answer::Kept {
                receipt: Arc::new(receipt),
                replayed,
            }
        }
    })
}

fn run(
    transaction: &Transaction<'_>,
    guard: &Guard,
    asking: &Asking<'_>,
) -> Result<Answer, Undone> {
    let Asking {
        arrival,
        call,
        terms,
        handler,
    } = *asking;
    let save = || {
        let saved = transaction.execute_batch(&format!("SAVEPOINT {CALL}"));
        saved.map_err(|error| undone(transaction, rows::failed(error)))
    };
    // Where one of these fails, what the call wrote is still in the transaction, and only with all of
    // it does it go.
    let whole = |sql: &str| {
        let ran = transaction.execute_batch(sql);
        ran.map_err(|_| Undone::Lost)
    };
    let undo = || whole(&format!("ROLLBACK TO {CALL}; RELEASE {CALL}"));

    save()?;
    let done = guard.handle(handler, transaction, &arrival.arguments, call);
    if transaction.is_autocommit() {
        return Err(Undone::Lost);
    }
    let standing = match done.and_then(|done| standing(done, terms)) {
        Ok(standing) => standing,
        Err(failure) => {
            undo()?;
            match kept(failure, terms, call) {
                Ok(standing) => {
                    save()?;
                    standing
                }
                Err(answer) => return Ok(answer),
            }
        }
    };
    let receipt = receipt(arrival, standing);
    if let Err(error) = rows::insert(transaction, &receipt) {
        let undone = undone(transaction, error);
        if matches!(undone, Undone::Ledger(_)) {
            undo()?;
        }
        return Err(undone);
    }
    whole(&format!("RELEASE {CALL}"))?;
    Ok(Answer::Kept {
        receipt: Arc::new(receipt),
        replayed: false,
    })
}

fn undone(transaction: &Transaction<'_>, error: LedgerError) -> Undone {
    match transaction.is_autocommit() {
        true => Undone::Lost,
        false => Undone::Ledger(error),
    }
}

fn standing(done: Done, terms: &Terms) -> Result<Standing, Failure> {
    let result = match done {
        Done::Begun => return Ok(Standing::Running),
        Done::Complete(result) => result,
    };
    let bytes = result.to_string().len();
    match bytes <= terms.bounds.max_result_bytes {
        true => Ok(Standing::Completed { result }),
        false => Err(Failure::failed(format!(
            "the result has {bytes} bytes, and {} are kept",
            terms.bounds.max_result_bytes
        ))),
    }
}

/// What is kept of a failure, or the answer where nothing is.
fn kept(failure: Failure, terms: &Terms, call: &Call) -> Result<Standing, Answer> {
    let not = |why| Err(Answer::NotKept(why));
    match failure {
        Failure::Refused(refusal) if terms.keep_refusals => Ok(Standing::Refused { refusal }),
        Failure::Refused(refusal) => not(NotKept::Refused(refusal)),
        Failure::Invalid(message) => not(NotKept::Invalid(message)),
        Failure::Denied(message) => not(NotKept::Denied(message)),
        Failure::Busy => Err(Answer::Busy),
        Failure::Failed(error) => {
            tracing::warn!(operation = %call.id(), "a handler failed and was rolled back");
            tracing::trace!(operation = %call.id(), error = %error, "a handler's error");
            let message = "The tool failed, and what it did was rolled back.".to_owned();
            match terms.keep_failures {
                true => Ok(Standing::Failed { message }),
                false => not(NotKept::Failed(message)),
            }
        }
    }
}

fn receipt(arrival: &Arrival, standing: Standing) -> Receipt {
    let answered_until = later(arrival.at, arrival.retention.answers);
    Receipt {
        id: arrival.id,
        identity: arrival.identity.clone(),
        version: arrival.version,
        fingerprint: arrival.fingerprint,
        standing,
        at: arrival.at,
        answered_until,
        refused_until: later(answered_until, arrival.retention.tombstones),
    }
}
