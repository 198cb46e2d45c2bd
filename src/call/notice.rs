//! Telling a server something that it does not answer.

use std::sync::Arc;

use rmcp::model::{ClientNotification, CustomNotification, RootsListChangedNotification};
use tracing::Instrument as _;

use super::{
    Caller, HandedOver,
    attempt::{Verdict, Without, no_mailbox},
    operation::admit,
    times,
};
use crate::{
    connection::{Attempt, GiveUpOnDrop, Progress, Ticket},
    error::{CallError, InvalidRequest, NotSentReason, UnknownCause, Wait},
    event::Ended,
    evidence::Outcome,
    operation::{AttemptId, Budget, Generation, Notice, OperationId, OperationKind, check_name},
    telemetry::{Subject, Watch},
};

impl Caller<'_> {
    pub(crate) async fn notify(&self, notice: Notice) -> Result<HandedOver, CallError> {
        let Notice {
            method,
            params,
            budget,
        } = notice;
        let line = self.line;
        let notification = notification(&method, params);
        let subject = Subject {
            teller: &line.teller,
            operation: budget.operation(),
            kind: OperationKind::Notification,
            connection: &line.name,
            ownership: line.ownership,
            far_end: &line.far_end,
            // One that cannot be sent is shown nowhere.
            method: notification.is_ok().then_some(&*method),
        };
        let id = subject.operation;
        let mut watch = Watch::begin(subject, None);
        let span = watch.span();
        let telling = self.tell(id, notification, &budget, &mut watch);
        let told = telling.instrument(span).await;
        let revision = || line.status().revision;
        match &told {
            Ok(_) => watch.handed_over(revision),
            Err(error) => watch.failed(error, revision),
        }
        told
    }

    async fn tell(
        &self,
        id: OperationId,
        notification: Result<ClientNotification, InvalidRequest>,
        budget: &Budget,
        watch: &mut Watch<'_>,
    ) -> Result<HandedOver, CallError> {
        let kind = OperationKind::Notification;
        let line = self.line;
        let error = |without: Without| super::operation::error_of(line, id, kind, without, None, 0);
        let not_sent = |reason: NotSentReason| error(reason.into());
        let notification = notification.map_err(|e| not_sent(e.into()))?;
        let times =
            times(budget, &line.settings.limits, watch.began).map_err(|e| not_sent(e.into()))?;
        if line.closing.is_cancelled() {
            return Err(not_sent(NotSentReason::Closed));
        }
        let _permit = admit(line, &times).await.map_err(not_sent)?;
        let mut attempt = Attempt::first(id, kind, AttemptId::mint());
        attempt.since = watch.waits_since();
        let attempt_id = attempt.id;
        let ticket = Arc::new(Ticket::of_notification(attempt, notification));
        let Some(alive) = line.submit(Arc::clone(&ticket)) else {
            return Err(not_sent(no_mailbox(line)));
        };
        let progress = {
            let _give_up = GiveUpOnDrop {
                ticket: &ticket,
                seen: watch.attempt_begins(),
            };
            tokio::select! {
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
            }
        };
        let mut told = match progress {
            Progress::Told(told) => told,
            Progress::Refused(reason) => {
                watch.attempt_stayed_here(None);
                return Err(not_sent(reason));
            }
            Progress::Handed(_) | Progress::Misplaced | Progress::Lost => {
                return Err(error(unknown(UnknownCause::CallEnded, None)));
            }
        };
        let generation = told.pulse.generation;
        watch.seen.generation = Some(generation);
        watch.seen.perhaps_sent = true;
        let taken = tokio::select! {
            biased;
            taken = &mut told.taken => match taken {
                Ok(()) => Ok(HandedOver { generation }),
                Err(_) => Err(UnknownCause::CallEnded),
            },
            () = told.pulse.ended() => Err(UnknownCause::CallEnded),
            () = times.spent() => Err(UnknownCause::DeadlinePassed(Wait::Total)),
        };
        let ended = match &taken {
            Ok(_) => Ended::HandedOver,
            Err(_) => Ended::Without(Outcome::Unknown),
        };
        watch.attempt_ended(attempt_id, 1, ended);
        taken.map_err(|cause| error(unknown(cause, Some(generation))))
    }
}

fn unknown(cause: UnknownCause, generation: Option<Generation>) -> Without {
    let mut without = Without::new(Verdict::Unknown(cause));
    without.generation = generation;
    without
}

fn notification(
    method: &str,
    params: Option<serde_json::Value>,
) -> Result<ClientNotification, InvalidRequest> {
    match method {
        "notifications/initialized" | "notifications/cancelled" => {
            Err(InvalidRequest::ReservedMethod)
        }
        "notifications/roots/list_changed" if params.is_none() => {
            Ok(RootsListChangedNotification::default().into())
        }
        _ => {
            check_name("method", method)?;
            Ok(CustomNotification::new(method.to_owned(), params).into())
        }
    }
}
