//! One attempt: from the mailbox to an answer or to what is known without one.

mod foreign;
mod judged;
mod known;
mod result;
mod times;

use std::sync::Arc;

use judged::{actor_failed, after_the_end, came_back, give_up, lost, stop};
pub(super) use known::{Answered, AskedBy, Verdict, Without};
use rmcp::model::ClientRequest;
pub(super) use times::{HeardToTheEnd, Times, cancelled};
use times::{at, silent};
use tokio::time::Instant;

use crate::{
    connection::{Attempt, GiveUpOnDrop, Line, Progress, Ticket},
    error::{NotSentReason, Wait},
    operation::OperationKind,
    session::{Along, Pending},
    telemetry::Seen,
    transport::Pulse,
};

/// Why a caller's wait ended before anything came.
#[derive(Clone, Copy)]
enum Stop {
    Deadline(Wait),
    Cancelled,
}

/// Sends the request once, at most, and waits; on this one session, if it is given. `late`: whether an
/// answer is wanted that comes after the wait.
pub(super) async fn attempt(
    line: &Line,
    kind: OperationKind,
    attempt: Attempt,
    request: Arc<ClientRequest>,
    times: &Times,
    late: bool,
    seen: &mut Seen,
) -> Result<Answered, Without> {
    let along = Along {
        idle: times.idle,
        clock: Some(Arc::clone(&times.clock)),
        listener: times.listener.clone(),
        standing: false,
        late,
    };
    let ticket = Arc::new(Ticket::new(attempt, request, times.attempt, along));
    let Some(alive) = line.submit(Arc::clone(&ticket)) else {
        return Err(no_mailbox(line).into());
    };
    let give_up = GiveUpOnDrop {
        ticket: &ticket,
        seen,
    };
    let mut last: Option<Handed> = None;
    loop {
        let session_over = line.session_over();
        let progress = tokio::select! {
            biased;
            progress = ticket.progress() => progress,
            // Perhaps the one that it was handed over to.
            () = session_over => continue,
            () = alive.cancelled() => return Err(actor_failed(line, &ticket, last)),
            () = cancelled(times) => return Err(stop(Stop::Cancelled, &ticket, last)),
            () = times.spent() => {
                return Err(stop(Stop::Deadline(Wait::Session), &ticket, last));
            }
        };
        let pending = match progress {
            Progress::Handed(pending) => pending,
            Progress::Refused(reason) => return Err(refused(line, reason).into()),
            Progress::Misplaced => return Err(Without::misplaced()),
            Progress::Lost | Progress::Told(_) => return Err(lost(last)),
        };
        pending.seen(give_up.seen);
        match wait(line, kind, &ticket, pending, times).await {
            Waited::Answered(answered) => return Ok(answered),
            Waited::Without(without) => return Err(*without),
            Waited::Moved(handed) => last = Some(handed),
        }
    }
}

/// What is left of a hand-over whose request was taken back, or may be.
struct Handed {
    pulse: Arc<Pulse>,
}

enum Waited {
    Answered(Answered),
    Without(Box<Without>),
    /// The connection decides: the request was still in a queue when its session ended.
    Moved(Handed),
}

async fn wait(
    line: &Line,
    kind: OperationKind,
    ticket: &Ticket,
    mut pending: Pending,
    times: &Times,
) -> Waited {
    let attempt_end = times
        .attempt
        .map(|limit| times.clock.after(limit, Instant::now()));
    let pulse = Arc::clone(&pending.pulse);
    let ended = pulse.ended();
    let answer = tokio::select! {
        biased;
        answer = pending.answer() => answer,
        () = ended => match pending.answer_now() {
            Some(answer) => answer,
            None => return after_the_end(line, pending),
        },
        () = ticket.moved() => return Waited::Moved(Handed { pulse: Arc::clone(&pulse) }),
        () = cancelled(times) => return give_up(line, ticket, pending, Stop::Cancelled),
        () = at(times, attempt_end) => {
            return give_up(line, ticket, pending, Stop::Deadline(Wait::Attempt));
        }
        () = silent(line, times) => {
            return give_up(line, ticket, pending, Stop::Deadline(Wait::Idle));
        }
        () = times.spent() => {
            return give_up(line, ticket, pending, Stop::Deadline(Wait::Total));
        }
    };
    came_back(line, kind, ticket, pending, answer)
}

pub(super) fn no_mailbox(line: &Line) -> NotSentReason {
    if line.closing.is_cancelled() {
        NotSentReason::Closed
    } else {
        NotSentReason::ActorFailed
    }
}

/// Puts the connection's numbers into a refusal that was made without them.
fn refused(line: &Line, reason: NotSentReason) -> NotSentReason {
    match reason {
        NotSentReason::Overloaded { .. } => overloaded(line),
        reason => reason,
    }
}

pub(super) fn overloaded(line: &Line) -> NotSentReason {
    let limits = &line.settings.limits;
    NotSentReason::Overloaded {
        in_flight: limits.max_in_flight,
        queued: limits.max_queued,
    }
}
