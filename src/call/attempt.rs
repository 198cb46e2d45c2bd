//! One attempt: from the mailbox to an answer or to what is known without one.

use std::{future::pending, sync::Arc, time::Duration};

use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{ClientRequest, ServerResult, TaskPayload},
};
use tokio_util::sync::CancellationToken;

use crate::{
    connection::{Attempt, GiveUpOnDrop, Line, Progress, Ticket},
    error::{NotSentReason, Source, UnknownCause, Wait},
    evidence::{CameBack, Loss, Outcome, ServerError, SessionAfter, WireFault, WireReport, judge},
    operation::{Generation, OperationKind},
    session::{Along, Pending},
    telemetry::Seen,
    transport::{
        Listener, Pulse,
        clock::{Clock, Due},
        server_error,
    },
};

/// When an attempt must be over.
#[derive(Clone)]
pub(super) struct Times {
    pub(super) total: Due,
    pub(super) attempt: Option<Duration>,
    pub(super) idle: Option<Duration>,
    pub(super) cancel: Option<CancellationToken>,
    /// By which all of them run.
    pub(super) clock: Arc<Clock>,
    /// Who hears of the operation's progress.
    pub(super) listener: Option<Arc<Listener>>,
}

/// Dropped with its operation, however that ends. The ticket, which has the listener too, may lie
/// about for longer.
pub(super) struct HeardToTheEnd(pub(super) Option<Arc<Listener>>);

impl Drop for HeardToTheEnd {
    fn drop(&mut self) {
        if let Some(listener) = &self.0 {
            listener.close();
        }
    }
}

impl Times {
    /// What is left of the total.
    pub(super) fn left(&self) -> Duration {
        self.clock.left(self.total)
    }

    /// Waits until the total is spent.
    pub(super) async fn spent(&self) {
        self.clock.reaches(self.total).await;
    }
}

/// An attempt that was answered.
pub(super) struct Answered {
    pub(super) result: ServerResult,
    pub(super) generation: Generation,
    pub(super) asked: Option<AskedBy>,
}

/// The session that asks for input.
#[derive(Clone)]
pub(super) struct AskedBy {
    pub(super) peer: Peer<RoleClient>,
    pub(super) pulse: Arc<Pulse>,
}

/// Whether a result asks for input.
fn asks(result: &ServerResult) -> bool {
    match result {
        ServerResult::InputRequiredResult(_) => true,
        ServerResult::GetTaskResult(state) => {
            matches!(state.task.payload, TaskPayload::InputRequired { .. })
        }
        _ => false,
    }
}

/// An attempt that has no answer.
pub(super) struct Without {
    pub(super) verdict: Verdict,
    pub(super) generation: Option<Generation>,
    pub(super) session: SessionAfter,
    pub(super) report: WireReport,
    pub(super) source: Option<Source>,
    /// The caller cancelled: no policy goes on from here.
    pub(super) cancelled: bool,
    /// Nothing was sent, because the one session that it may go to is not the one in force.
    pub(super) misplaced: bool,
    /// When the session of the attempt ended can be read here.
    pub(super) pulse: Option<Arc<Pulse>>,
}

/// What is known, with the reason.
pub(super) enum Verdict {
    NotSent(NotSentReason),
    Rejected(Option<ServerError>),
    Failed(ServerError),
    Unknown(UnknownCause),
}

impl Verdict {
    pub(super) fn outcome(&self) -> Outcome {
        match self {
            Self::NotSent(_) => Outcome::NotSent,
            Self::Rejected(_) => Outcome::Rejected,
            Self::Failed(_) => Outcome::Failed,
            Self::Unknown(_) => Outcome::Unknown,
        }
    }
}

impl From<NotSentReason> for Without {
    fn from(reason: NotSentReason) -> Self {
        Self::new(Verdict::NotSent(reason))
    }
}

impl Without {
    pub(super) fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            generation: None,
            session: SessionAfter::Kept,
            report: WireReport::default(),
            source: None,
            cancelled: false,
            misplaced: false,
            pulse: None,
        }
    }

    fn misplaced() -> Self {
        Self {
            misplaced: true,
            // Never told: there is an attempt before this one, and that one is what is known.
            ..NotSentReason::Cancelled.into()
        }
    }
}

/// Why a caller's wait ended before anything came.
#[derive(Clone, Copy)]
enum Stop {
    Deadline(Wait),
    Cancelled,
}

/// Sends the request once, at most, and waits; on this one session, if it is given.
pub(super) async fn attempt(
    line: &Line,
    kind: OperationKind,
    attempt: Attempt,
    request: Arc<ClientRequest>,
    times: &Times,
    seen: &mut Seen,
) -> Result<Answered, Without> {
    let along = Along {
        idle: times.idle,
        clock: Some(Arc::clone(&times.clock)),
        listener: times.listener.clone(),
        standing: false,
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

#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would cost an allocation for each answer"
)]
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
    let attempt_end = times.attempt.map(|limit| times.clock.after(limit));
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

/// Waits until the caller cancels.
pub(super) async fn cancelled(times: &Times) {
    match &times.cancel {
        Some(token) => token.cancelled().await,
        None => pending().await,
    }
}

async fn at(times: &Times, end: Option<Due>) {
    match end {
        Some(end) => times.clock.reaches(end).await,
        None => pending().await,
    }
}

/// Waits until nothing was heard of this very call for as long as its idle limit.
async fn silent(line: &Line, times: &Times) {
    // What is lent is not heard by us; rmcp minds its silence.
    let idle = times.idle.filter(|_| !line.ownership.is_lent());
    let (Some(idle), Some(listener)) = (idle, &times.listener) else {
        return pending().await;
    };
    let mut beats = listener.beats();
    loop {
        let end = times.clock.after(idle);
        tokio::select! {
            biased;
            // The sender lives in the listener, which lives as long as this.
            _ = beats.changed() => {}
            () = times.clock.reaches(end) => return,
        }
    }
}

/// The session ended, and no answer was read before.
fn after_the_end(line: &Line, pending: Pending) -> Waited {
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

fn give_up(line: &Line, ticket: &Ticket, pending: Pending, why: Stop) -> Waited {
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
    // Not settled: its drop tells the server that nobody waits any more.
    drop(pending);
    Waited::Without(Box::new(without))
}

/// rmcp ended the wait, with an answer or without.
fn came_back(
    line: &Line,
    kind: OperationKind,
    ticket: &Ticket,
    pending: Pending,
    answer: Result<ServerResult, ServiceError>,
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
    if let Some(fault) = fault {
        // What rmcp made of it says less.
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
            let asked = asks(&result).then(|| AskedBy {
                peer: pending.peer().clone(),
                pulse: Arc::clone(&pending.pulse),
            });
            pending.settle();
            if !fits(kind, &result) {
                let mut without =
                    Without::new(Verdict::Unknown(UnknownCause::WrongType(kind.method())));
                without.generation = Some(generation);
                return Waited::Without(Box::new(without));
            }
            Waited::Answered(Answered {
                result,
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

/// How rmcp says that a live session was answered 404. Its type names the HTTP client below, which
/// may be any of the caller's, so there is only the text to know it by.
#[cfg(feature = "http")]
const SESSION_EXPIRED: &str = "Session expired (HTTP 404)";

/// What rmcp's own HTTP client, below a lent connection or a factory's, keeps of a status.
#[cfg(feature = "http")]
fn foreign_status(error: &ServiceError) -> Option<(u16, WireReport)> {
    use rmcp::transport::streamable_http_client::{
        AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpError,
    };
    type OverReqwest = StreamableHttpError<reqwest::Error>;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = match error {
        ServiceError::TransportSend(error) => Some(&*error.error),
        _ => None,
    };
    while let Some(error) = cause {
        let mut report = WireReport {
            in_session: true,
            ..WireReport::default()
        };
        // This one is transparent: it passes its own source off as the whole error's.
        let over_reqwest = error.downcast_ref::<OverReqwest>();
        let status = match over_reqwest {
            Some(StreamableHttpError::HttpStatus(status)) => Some(status),
            _ => error.downcast_ref::<HttpStatusError>(),
        };
        if let Some(status) = status {
            report.status = Some(status.status);
            report.retry_after.clone_from(&status.retry_after);
        } else if matches!(over_reqwest, Some(StreamableHttpError::SessionExpired)) {
            report.status = Some(404);
        } else if let Some(auth) = error.downcast_ref::<AuthRequiredError>() {
            report.status = Some(401);
            report.challenge = Some(auth.www_authenticate_header.clone());
        } else if let Some(scope) = error.downcast_ref::<InsufficientScopeError>() {
            report.status = Some(403);
            report.challenge = Some(scope.www_authenticate_header.clone());
        } else if error.to_string() == SESSION_EXPIRED {
            report.status = Some(404);
        }
        if let Some(status) = report.status {
            return Some((status, report));
        }
        cause = error.source();
    }
    None
}

#[cfg(not(feature = "http"))]
fn foreign_status(_: &ServiceError) -> Option<(u16, WireReport)> {
    None
}

/// The error that rmcp invents for other calls when it re-initialises a session under them. Ours
/// never does, but a lent client service may.
fn made_up(error: &rmcp::model::ErrorData) -> bool {
    error.code.0 == -32603
        && error
            .message
            .starts_with("streamable HTTP session was re-initialized")
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
fn lost(last: Option<Handed>) -> Without {
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

fn stop(why: Stop, ticket: &Ticket, last: Option<Handed>) -> Without {
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

fn actor_failed(line: &Line, ticket: &Ticket, last: Option<Handed>) -> Without {
    if ticket.give_up() {
        return no_mailbox(line).into();
    }
    let mut without = lost(last);
    without.verdict = Verdict::Unknown(UnknownCause::ActorFailed);
    without
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

/// Whether a result is one that the request can have.
fn fits(kind: OperationKind, result: &ServerResult) -> bool {
    use OperationKind as K;
    use ServerResult as R;
    match kind {
        K::ToolCall => matches!(
            result,
            R::CallToolResult(_)
                | R::InputRequiredResult(_)
                | R::CreateTaskResult(_)
                | R::EmptyResult(_)
        ),
        K::ListTools => matches!(result, R::ListToolsResult(_)),
        K::ListPrompts => matches!(result, R::ListPromptsResult(_)),
        K::GetPrompt => matches!(result, R::GetPromptResult(_) | R::InputRequiredResult(_)),
        K::ListResources => matches!(result, R::ListResourcesResult(_)),
        K::ReadResource => {
            matches!(result, R::ReadResourceResult(_) | R::InputRequiredResult(_))
        }
        K::ListResourceTemplates => matches!(result, R::ListResourceTemplatesResult(_)),
        K::Complete => matches!(result, R::CompleteResult(_)),
        K::ListSkills => matches!(result, R::ListSkillsResult(_)),
        K::GetSkill => matches!(result, R::GetSkillResult(_)),
        K::ReadResourceDirectory => matches!(result, R::ListResourcesResult(_)),
        K::GetTask => matches!(result, R::GetTaskResult(_)),
        K::UpdateTask | K::CancelTask => {
            matches!(
                result,
                R::TaskAckResult(_) | R::EmptyResult(_) | R::CustomResult(_)
            )
        }
        // What they mean is in no result.
        K::Ping | K::SetLogLevel | K::Custom | K::Notification => true,
    }
}
