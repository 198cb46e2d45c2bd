//! Telling a server something that it does not answer.

use std::sync::Arc;

use rmcp::model::{ClientNotification, CustomNotification, RootsListChangedNotification};

use super::{
    Caller, HandedOver,
    attempt::{Verdict, Without, no_mailbox},
    operation::admit,
    times,
};
use crate::{
    connection::{Attempt, GiveUpOnDrop, Progress, Ticket},
    error::{CallError, InvalidRequest, NotSentReason, UnknownCause, Wait},
    operation::{AttemptId, Generation, Notice, OperationKind, check_name},
    telemetry::Seen,
};

impl Caller<'_> {
    pub(crate) async fn notify(&self, notice: Notice) -> Result<HandedOver, CallError> {
        let kind = OperationKind::Notification;
        let Notice {
            method,
            params,
            budget,
        } = notice;
        let id = budget.operation();
        let line = self.line;
        let error = |without: Without| super::operation::error_of(line, id, kind, without, None, 0);
        let not_sent = |reason: NotSentReason| error(reason.into());
        let notification = notification(method, params).map_err(|e| not_sent(e.into()))?;
        let times = times(&budget, &line.settings.limits).map_err(|e| not_sent(e.into()))?;
        if line.closing.is_cancelled() {
            return Err(not_sent(NotSentReason::Closed));
        }
        let _permit = admit(line, &times).await.map_err(not_sent)?;
        let attempt = Attempt::first(id, kind, AttemptId::mint());
        let ticket = Arc::new(Ticket::of_notification(attempt, notification));
        let Some(alive) = line.submit(Arc::clone(&ticket)) else {
            return Err(not_sent(no_mailbox(line)));
        };
        let mut seen = Seen::default();
        let _give_up = GiveUpOnDrop {
            ticket: &ticket,
            seen: &mut seen,
        };
        let progress = tokio::select! {
            biased;
            progress = ticket.progress() => progress,
            () = alive.cancelled() => return Err(not_sent(NotSentReason::ActorFailed)),
            () = times.spent() => {
                let wait = NotSentReason::DeadlinePassed(Wait::Session);
                // Handed over in this very moment, it may be sent.
                return Err(match ticket.give_up() {
                    true => not_sent(wait),
                    false => error(unknown(UnknownCause::DeadlinePassed(Wait::Session), None)),
                });
            }
        };
        let mut told = match progress {
            Progress::Told(told) => told,
            Progress::Refused(reason) => return Err(not_sent(reason)),
            Progress::Handed(_) | Progress::Misplaced | Progress::Lost => {
                return Err(error(unknown(UnknownCause::CallEnded, None)));
            }
        };
        let generation = told.pulse.generation;
        let taken = tokio::select! {
            biased;
            taken = &mut told.taken => taken.is_ok(),
            () = told.pulse.ended() => false,
            () = times.spent() => {
                let cause = UnknownCause::DeadlinePassed(Wait::Total);
                return Err(error(unknown(cause, Some(generation))));
            }
        };
        match taken {
            true => Ok(HandedOver { generation }),
            false => Err(error(unknown(UnknownCause::CallEnded, Some(generation)))),
        }
    }
}

fn unknown(cause: UnknownCause, generation: Option<Generation>) -> Without {
    let mut without = Without::new(Verdict::Unknown(cause));
    without.generation = generation;
    without
}

fn notification(
    method: String,
    params: Option<serde_json::Value>,
) -> Result<ClientNotification, InvalidRequest> {
    match method.as_str() {
        "notifications/initialized" | "notifications/cancelled" => {
            Err(InvalidRequest::ReservedMethod)
        }
        "notifications/roots/list_changed" if params.is_none() => {
            Ok(RootsListChangedNotification::default().into())
        }
        _ => {
            check_name("method", &method)?;
            Ok(CustomNotification::new(method, params).into())
        }
    }
}
