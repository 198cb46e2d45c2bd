//! What is known when a wait is over.

use std::sync::Arc;

use rmcp::{ServiceError, model::ServerResult};

use super::{
    Handed, Stop, Waited,
    foreign::{foreign_status, made_up},
    known::{Answered, AskedBy, Verdict, Without},
    no_mailbox,
    result::{asks, fits},
};
use crate::{
    connection::{Line, Ticket},
    error::{NotSentReason, Source, UnknownCause, Wait},
    evidence::{CameBack, Loss, Outcome, SessionAfter, WireFault, WireReport, judge},
    operation::OperationKind,
    session::Pending,
    transport::{Pulse, server_error},
};

/// The session ended, and no answer was read before.
pub(super) fn after_the_end(line: &Line, pending: Pending) -> Waited {
    let pulse = Arc::clone(&pending.pulse);
    let reported = pending.cell().reported().cloned();
    if let Some(report) = reported.filter(|r| r.fault.is_some() || r.status.is_some()) {
        // This very exchange ended the session, and says more than its end does.
        let came_back = match (&report.fault, &report.error, report.failed_status()) {
            (Some(fault), _, _) => CameBack::Fault(fault.clone()),
            (None, Some(error), _) => CameBack::Error(error.clone()),
            (None, None, Some(status)) => CameBack::Status(status),
            _ => CameBack::SessionEnded,
        };
        return concluded(line, pending, &came_back, Some(&report), None);
    }
    if !line.ownership.is_lent() && !pending.cell().was_begun() {
        // Perhaps still in a queue: the connection takes it back, or finds that it went out.
        return Waited::Moved(Handed { pulse });
    }
    concluded(line, pending, &CameBack::SessionEnded, None, None)
}

pub(super) fn give_up(line: &Line, ticket: &Ticket, pending: Pending, why: Stop) -> Waited {
    let generation = pending.pulse.generation;
    if ticket.give_up() {
        let waits_for_token = pending.cell().waits_for_token();
        let reason = match why {
            Stop::Cancelled => NotSentReason::Cancelled,
            Stop::Deadline(_) if waits_for_token => {
                NotSentReason::DeadlinePassed(Wait::Credentials)
            }
            Stop::Deadline(wait) => NotSentReason::DeadlinePassed(wait),
        };
        // The server has no part in the wait for a token.
        if matches!(why, Stop::Deadline(_)) && !waits_for_token && !pending.heard() {
            pending.pulse.suspect();
        }
        let mut without = Without::from(reason);
        without.generation = Some(generation);
        without.cancelled = matches!(why, Stop::Cancelled);
        return Waited::Without(Box::new(without));
    }
    let heard = pending.heard();
    let (came_back, cause) = match why {
        Stop::Cancelled => (CameBack::GaveUp, UnknownCause::Cancelled),
        Stop::Deadline(wait) => (
            CameBack::DeadlinePassed { heard },
            UnknownCause::DeadlinePassed(wait),
        ),
    };
    let (_, session) = judge(&came_back, None, &line.settings.rules);
    if session == SessionAfter::Suspect {
        pending.pulse.suspect();
    }
    let mut without = Without::new(Verdict::Unknown(cause));
    without.generation = Some(generation);
    without.session = session;
    without.cancelled = matches!(why, Stop::Cancelled);
    without.pulse = Some(Arc::clone(&pending.pulse));
    // Not settled: the server is told that nobody waits any more.
    without.late = pending.give_up().map(Box::new);
    Waited::Without(Box::new(without))
}

/// rmcp ended the wait, with an answer or without.
pub(super) fn came_back(
    line: &Line,
    kind: OperationKind,
    ticket: &Ticket,
    pending: Pending,
    answer: Result<Box<ServerResult>, ServiceError>,
) -> Waited {
    if pending.cell().was_recalled() {
        // The writer made the answer up to release rmcp: the connection took the request back, and
        // hands it over again.
        return Waited::Moved(Handed {
            pulse: Arc::clone(&pending.pulse),
        });
    }
    let report = pending.cell().reported().cloned();
    let fault = report.as_ref().and_then(|r| r.fault.clone());
    if let (Some(fault), Err(_)) = (fault, &answer) {
        // What rmcp made of it says less. A result is one all the same: it came another way.
        return concluded(
            line,
            pending,
            &CameBack::Fault(fault),
            report.as_ref(),
            None,
        );
    }
    match answer {
        Ok(result) => {
            let generation = pending.pulse.generation;
            pending.pulse.answered();
            let asked = asks(&result).then(|| {
                Box::new(AskedBy {
                    peer: pending.peer().clone(),
                    pulse: Arc::clone(&pending.pulse),
                })
            });
            let raw = pending.cell().kept();
            pending.settle();
            if !fits(kind, &result) {
                let mut without =
                    Without::new(Verdict::Unknown(UnknownCause::WrongType(kind.method())));
                without.generation = Some(generation);
                return Waited::Without(Box::new(without));
            }
            Waited::Answered(Answered {
                result,
                raw,
                generation,
                asked,
            })
        }
        Err(ServiceError::McpError(error)) if made_up(&error) => {
            concluded(line, pending, &CameBack::MadeUp, report.as_ref(), None)
        }
        Err(ServiceError::McpError(error)) => {
            pending.pulse.answered();
            concluded(
                line,
                pending,
                &CameBack::Error(server_error(error)),
                report.as_ref(),
                None,
            )
        }
        Err(ServiceError::Timeout { .. }) => {
            give_up(line, ticket, pending, Stop::Deadline(Wait::Idle))
        }
        Err(error) => without_an_answer(line, pending, error, report),
    }
}

/// rmcp says that the transport failed or closed under this call.
fn without_an_answer(
    line: &Line,
    pending: Pending,
    error: ServiceError,
    report: Option<WireReport>,
) -> Waited {
    if let Some(status) = report.as_ref().and_then(WireReport::failed_status) {
        let source = Some(Arc::new(error) as Source);
        return concluded(
            line,
            pending,
            &CameBack::Status(status),
            report.as_ref(),
            source,
        );
    }
    if let Some((status, report)) = foreign_status(&error) {
        let source = Some(Arc::new(error) as Source);
        return concluded(
            line,
            pending,
            &CameBack::Status(status),
            Some(&report),
            source,
        );
    }
    if !line.ownership.is_lent() && !pending.cell().was_begun() {
        return Waited::Moved(Handed {
            pulse: Arc::clone(&pending.pulse),
        });
    }
    let closed = matches!(error, ServiceError::TransportClosed);
    let source = Some(Arc::new(error) as Source);
    if pending.session_is_over() {
        return concluded(
            line,
            pending,
            &CameBack::SessionEnded,
            report.as_ref(),
            source,
        );
    }
    let came_back = if closed {
        CameBack::MadeUp
    } else {
        CameBack::Fault(WireFault::ExchangeBroke(
            "the transport failed to send it".into(),
        ))
    };
    concluded(line, pending, &came_back, report.as_ref(), source)
}

/// Applies the outcome table.
fn concluded(
    line: &Line,
    pending: Pending,
    came_back: &CameBack,
    report: Option<&WireReport>,
    source: Option<Source>,
) -> Waited {
    let rules = &line.settings.rules;
    let (outcome, session) = judge(came_back, report, rules);
    let pulse = Arc::clone(&pending.pulse);
    match session {
        SessionAfter::Kept => {}
        SessionAfter::Suspect => pulse.suspect(),
        SessionAfter::Lost => {
            let status = report.and_then(|r| r.status);
            pulse.end(Loss::Terminated { status });
        }
    }
    let verdict = match (outcome, came_back) {
        (Outcome::NotSent, CameBack::Fault(WireFault::NoToken(error))) => {
            Verdict::NotSent(NotSentReason::Credentials(error.clone()))
        }
        (Outcome::NotSent, CameBack::Fault(fault)) => {
            Verdict::NotSent(NotSentReason::Transport(fault.clone()))
        }
        (Outcome::Failed, CameBack::Error(error)) => Verdict::Failed(error.clone()),
        (Outcome::Rejected, CameBack::Error(error)) => Verdict::Rejected(Some(error.clone())),
        (Outcome::Rejected, _) => Verdict::Rejected(None),
        (_, came_back) => Verdict::Unknown(cause_of(came_back, &pulse)),
    };
    let without = Without {
        verdict,
        generation: Some(pulse.generation),
        session,
        report: report.cloned().unwrap_or_default(),
        source,
        cancelled: false,
        misplaced: false,
        pulse: Some(pulse),
        late: None,
    };
    pending.settle();
    Waited::Without(Box::new(without))
}

fn cause_of(came_back: &CameBack, pulse: &Pulse) -> UnknownCause {
    let loss = || {
        let loss = pulse.loss().cloned();
        loss.unwrap_or(Loss::Closed {
            exit: None,
            stderr: String::new(),
        })
    };
    match came_back {
        CameBack::Fault(fault) => UnknownCause::Wire(fault.clone()),
        CameBack::Status(404) => UnknownCause::SessionEnded(loss()),
        CameBack::Status(status) => UnknownCause::Status(*status),
        CameBack::Error(error) => UnknownCause::SessionEndedByServer(error.clone()),
        CameBack::SessionEnded => UnknownCause::SessionEnded(loss()),
        CameBack::DeadlinePassed { .. } => UnknownCause::DeadlinePassed(Wait::Total),
        CameBack::GaveUp => UnknownCause::Cancelled,
        CameBack::MadeUp | CameBack::WrongType => UnknownCause::CallEnded,
    }
}

/// The connection found, after the session's end, that writing had begun.
pub(super) fn lost(last: Option<Handed>) -> Without {
    let loss = last.as_ref().and_then(|h| h.pulse.loss().cloned());
    let loss = loss.unwrap_or(Loss::Closed {
        exit: None,
        stderr: String::new(),
    });
    let mut without = Without::new(Verdict::Unknown(UnknownCause::SessionEnded(loss)));
    without.session = SessionAfter::Lost;
    without.generation = last.as_ref().map(|h| h.pulse.generation);
    without.pulse = last.map(|h| h.pulse);
    without
}

pub(super) fn stop(why: Stop, ticket: &Ticket, last: Option<Handed>) -> Without {
    if !ticket.give_up() {
        let cause = match why {
            Stop::Cancelled => UnknownCause::Cancelled,
            Stop::Deadline(wait) => UnknownCause::DeadlinePassed(wait),
        };
        let mut without = lost(last);
        without.verdict = Verdict::Unknown(cause);
        without.cancelled = matches!(why, Stop::Cancelled);
        return without;
    }
    let mut without = Without::from(match why {
        Stop::Cancelled => NotSentReason::Cancelled,
        Stop::Deadline(wait) => NotSentReason::DeadlinePassed(wait),
    });
    without.cancelled = matches!(why, Stop::Cancelled);
    without
}

pub(super) fn actor_failed(line: &Line, ticket: &Ticket, last: Option<Handed>) -> Without {
    if ticket.give_up() {
        return no_mailbox(line).into();
    }
    let mut without = lost(last);
    without.verdict = Verdict::Unknown(UnknownCause::ActorFailed);
    without
}
