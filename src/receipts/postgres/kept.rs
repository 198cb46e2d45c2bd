//! What is kept of a call, and what is said where nothing is.

use std::{sync::Arc, time::SystemTime};

use crate::{
    operation::OperationId,
    receipts::{
        answer::{Answer, NotKept},
        definition::Terms,
        failure::Failure,
        identity::Arrival,
        ledger::LedgerError,
        receipt::{Receipt, Standing, later, millis, time},
        table::{Access, Incoming, Row, row},
    },
};

/// What is said of a failure of the tool's own. Why is for the log of whoever wrote it: it can quote
/// what is in the database.
const BROKE: &str = "the tool failed, and nothing was changed";

pub(super) fn now() -> i64 {
    millis(SystemTime::now())
}

/// Until when an answer is given out, and until when its key is refused.
pub(super) fn kept_until(arrival: &Arrival) -> (i64, i64) {
    let answered = later(arrival.at, arrival.retention.answers);
    let refused = later(answered, arrival.retention.tombstones);
    (millis(answered), millis(refused))
}

/// The receipt that was just written.
pub(super) fn receipt(arrival: &Arrival, standing: Standing) -> Receipt {
    let (answered_until, refused_until) = kept_until(arrival);
    Receipt {
        id: arrival.id,
        identity: arrival.identity.clone(),
        version: arrival.version,
        fingerprint: arrival.fingerprint,
        standing,
        at: arrival.at,
        answered_until: time(answered_until),
        refused_until: time(refused_until),
    }
}

/// The answer to a call whose key is there already.
pub(super) fn found(receipt: Receipt, arrival: &Arrival, terms: &Terms) -> Answer {
    let incoming = Incoming {
        access: Access::Granted,
        version: arrival.version,
        fingerprint: arrival.fingerprint,
        other_versions: terms.other_versions,
    };
    let id = receipt.id;
    match row(Some(&receipt.stored()), &incoming, now()) {
        Row::Conflict(with) => Answer::Conflict { id, with },
        Row::Expired => Answer::Kept {
            receipt: Arc::new(Receipt {
                standing: Standing::Expired,
                ..receipt
            }),
            replayed: true,
        },
        Row::Replay | Row::Wait | Row::Unknown => Answer::Kept {
            receipt: Arc::new(receipt),
            replayed: true,
        },
        // The table says neither of a key that is there and of a caller who may.
        Row::Deny | Row::Run => Answer::Busy,
    }
}

/// A result, if it is not more than is kept.
pub(super) fn within(standing: Standing, most: usize) -> Result<Standing, Failure> {
    let Standing::Completed { result } = &standing else {
        return Ok(standing);
    };
    match result.to_string().len() <= most {
        true => Ok(standing),
        false => Err(Failure::failed(format!(
            "the result has more than {most} bytes of JSON, which is what the tool's bounds keep"
        ))),
    }
}

/// What is kept of a failure, or what is said where it is not.
pub(super) fn of_failure(
    failure: Failure,
    terms: &Terms,
    id: OperationId,
) -> Result<Standing, Answer> {
    if let Failure::Failed(error) = &failure {
        tracing::warn!(operation = %id, "a handler failed and was rolled back");
        tracing::trace!(operation = %id, error = %error, "a handler's error");
    }
    let not_kept = match failure {
        Failure::Refused(refusal) if terms.keep_refusals => {
            return Ok(Standing::Refused { refusal });
        }
        Failure::Failed(_) if terms.keep_failures => {
            return Ok(Standing::Failed {
                message: BROKE.to_owned(),
            });
        }
        Failure::Busy => return Err(Answer::Busy),
        Failure::Refused(refusal) => NotKept::Refused(refusal),
        Failure::Invalid(what) => NotKept::Invalid(what),
        Failure::Denied(what) => NotKept::Denied(what),
        Failure::Failed(_) => NotKept::Failed(BROKE.to_owned()),
    };
    Err(Answer::NotKept(not_kept))
}

/// What is said where the ledger failed.
pub(super) fn no_answer(id: OperationId, error: &LedgerError) -> Answer {
    match error {
        LedgerError::Busy => Answer::Busy,
        LedgerError::Unclear(_) => Answer::Unclear { id },
        error => {
            tracing::warn!(operation = %id, %error, "a receipt could not be written");
            Answer::NotKept(NotKept::Failed(
                "the server's database failed, and nothing was changed".to_owned(),
            ))
        }
    }
}
