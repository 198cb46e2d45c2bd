//! The session as a child of its connection: it starts, runs, and ends once.
//!
//! Everything that waits for the server happens in one task that the actor owns. The actor itself
//! exists so that its end reaches the connection as a supervision event, which goes before the
//! messages that are queued there.

use std::{sync::Arc, time::Duration};

use ractor::{Actor, ActorProcessingErr, ActorRef};
use rmcp::model::{ClientRequest, DiscoverRequest, DiscoverRequestParams, PingRequest};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Along, Connector, Session, WantedLevel,
    standing::Standing,
    start::{NotStarted, Running, start},
};
use crate::{
    error::{StartError, StartFailure},
    event::{Stopped, What},
    evidence::{DispatchCell, Loss},
    operation::{ConnectionName, Generation},
    spec::{KeepAlive, Settings},
    subscription::Notices,
    transport::{ExitWatch, Pulse},
};

/// What a connection tells one of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Go on.
    Run,
    /// Take nothing new; end when nothing is in flight any more.
    Retire,
    /// End now, for this reason.
    Close(&'static str),
}

/// What a session tells its connection.
pub(crate) enum Report {
    Started(Arc<Session>),
    Failed(Arc<StartError>),
}

/// A connection's hold on one of its sessions.
pub(crate) struct SessionHandle(pub(crate) watch::Sender<Command>);

impl SessionHandle {
    pub(crate) fn command(&self, command: Command) {
        self.0.send_if_modified(|now| {
            let stronger = !matches!(now, Command::Close(_));
            if stronger {
                *now = command;
            }
            stronger
        });
    }
}

/// What a session needs to start.
pub(crate) struct SessionArgs {
    pub(crate) connection: ConnectionName,
    pub(crate) connector: Arc<Connector>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) log_level: Arc<WantedLevel>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) command: watch::Receiver<Command>,
    /// Cancelled when the process and the transport are gone.
    pub(crate) gone: CancellationToken,
    /// What must be over before anything is started, and how long it is waited for.
    pub(crate) after: Vec<After>,
    /// When to start.
    pub(crate) not_before: Instant,
    /// Whether the server must answer a request before the session counts as started.
    pub(crate) probe: bool,
    pub(crate) report: Box<dyn Fn(Report) + Send + Sync>,
    pub(crate) tell: Arc<dyn Fn(What) + Send + Sync>,
}

/// Something that a session waits for before it starts.
pub(crate) enum After {
    /// An older session's process is gone. Its own stop is bounded, so this is.
    Gone(CancellationToken),
    /// The calls of an older session have their outcomes, or this much time has passed.
    Drained(Arc<Pulse>, Duration),
}

pub(crate) struct SessionActor;

/// Dropped with the actor, however it ends.
pub(crate) struct Life {
    pulse: Arc<Pulse>,
    _abandons: DropGuard,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.pulse.end(Loss::Ended("its actor stopped"));
    }
}

impl Actor for SessionActor {
    type Msg = ();
    type State = Life;
    type Arguments = SessionArgs;

    async fn pre_start(
        &self,
        myself: ActorRef<()>,
        args: SessionArgs,
    ) -> Result<Life, ActorProcessingErr> {
        let args = Arc::new(args);
        let pulse = Arc::clone(&args.pulse);
        let abandoned = CancellationToken::new();
        let life = live(Arc::clone(&args), myself.clone(), abandoned.clone());
        let life = tokio::spawn(life);
        tokio::spawn(async move {
            if life.await.is_err() {
                fallen(&args, &myself);
            }
        });
        Ok(Life {
            pulse,
            _abandons: abandoned.drop_guard(),
        })
    }
}

async fn live(args: Arc<SessionArgs>, myself: ActorRef<()>, abandoned: CancellationToken) {
    let pulse = &args.pulse;
    let mut command = args.command.clone();
    let mut running = Running::default();
    let started = tokio::select! {
        biased;
        () = abandoned.cancelled() => Err(StartFailure::Stopped.into()),
        _ = command.wait_for(|c| *c != Command::Run) => Err(StartFailure::Stopped.into()),
        // In a box, here and below: a task is as large as the largest thing that it ever waits for, and
        // this one spends its life on the smallest.
        started = Box::pin(begin(&args, &mut running)) => started,
    };
    match started {
        Ok(session) => {
            let session = Arc::new(session);
            (args.tell)(What::SessionStarted {
                generation: pulse.generation,
                revision: session.revision.as_str().to_owned(),
            });
            let standing = Standing::begin(&session, &args.notices, args.settings.limits.total);
            (args.report)(Report::Started(Arc::clone(&session)));
            run(&session, standing, args.settings.keep_alive, &mut command).await;
        }
        Err(not_started) => {
            let error = Arc::new(start_error(&args.connection, pulse.generation, not_started));
            (args.tell)(What::StartFailed {
                generation: pulse.generation,
                why: error.why().to_string(),
            });
            (args.report)(Report::Failed(error));
        }
    }
    let why = match *command.borrow() {
        Command::Close(why) => why,
        Command::Retire => "it was retired",
        Command::Run => "it did not start",
    };
    pulse.end(Loss::Ended(why));
    myself.stop(None);
    let how = Box::pin(stop(running, &args.settings)).await;
    (args.tell)(What::SessionStopped {
        generation: pulse.generation,
        how,
    });
    args.gone.cancel();
}

/// The session's own task panicked. What it held was stopped by its drop; nobody waits for it.
fn fallen(args: &SessionArgs, myself: &ActorRef<()>) {
    args.pulse.end(Loss::Ended("its task panicked"));
    let not_started = StartFailure::Stopped.into();
    let error = start_error(&args.connection, args.pulse.generation, not_started);
    (args.report)(Report::Failed(Arc::new(error)));
    args.gone.cancel();
    myself.stop(None);
}

async fn begin(args: &SessionArgs, running: &mut Running) -> Result<Session, NotStarted> {
    for after in &args.after {
        match after {
            After::Gone(gone) => gone.cancelled().await,
            After::Drained(pulse, limit) => {
                // Past the limit the new session starts beside what is still in flight.
                let _ = tokio::time::timeout(*limit, pulse.drained()).await;
            }
        }
    }
    // Only where there is something to wait for: tokio's timer rounds up, so that waiting until now
    // would take a millisecond, which is as long as a start.
    if args.not_before > Instant::now() {
        tokio::time::sleep_until(args.not_before).await;
    }
    let limit = args.settings.limits.start;
    let mut exit = None;
    let starting = async {
        let mut session = start(args, running).await?;
        if args.probe && !probe(&session, limit).await {
            return Err(StartFailure::EndedDuringHandshake.into());
        }
        session.log_level = Arc::clone(&args.log_level);
        set_log_level(&session).await;
        Ok(session)
    };
    match tokio::time::timeout(limit, starting).await {
        Ok(started) => started,
        Err(_) => {
            #[cfg(feature = "stdio")]
            if let Some(process) = &running.process {
                exit = Some(process.exit_watch());
            }
            let failure = StartFailure::TimedOut { limit };
            Err(NotStarted {
                failure,
                source: None,
                exit: exit.take(),
            })
        }
    }
}

fn start_error(
    connection: &ConnectionName,
    generation: Generation,
    not_started: NotStarted,
) -> StartError {
    let NotStarted {
        failure,
        source,
        exit,
    } = not_started;
    StartError {
        connection: connection.clone(),
        generation,
        failure,
        exit: exit.as_ref().and_then(ExitWatch::status),
        stderr: exit.map(|e| e.stderr.text()).unwrap_or_default(),
        source,
    }
}

/// Asks something that changes nothing. Any answer, also an error, is a sign of life.
async fn probe(session: &Session, limit: Duration) -> bool {
    let request = if session.revision.has_initialize() {
        ClientRequest::PingRequest(PingRequest::default())
    } else {
        ClientRequest::DiscoverRequest(DiscoverRequest::new(DiscoverRequestParams {}))
    };
    let cell = Arc::new(DispatchCell::new());
    let Ok(mut pending) =
        session.hand_over(&Arc::new(request), &cell, &Along::default(), Instant::now())
    else {
        return false;
    };
    let answered = tokio::select! {
        biased;
        answer = pending.answer() => {
            !matches!(answer, Err(rmcp::ServiceError::TransportClosed | rmcp::ServiceError::TransportSend(_)))
        }
        () = session.pulse.ended() => false,
        () = tokio::time::sleep(limit) => false,
    };
    if answered {
        pending.settle();
        session.pulse.hear();
    }
    answered
}

/// Lets the log of the new session begin at the level that the connection has. Before any operation,
/// and whatever the server says to it.
async fn set_log_level(session: &Session) {
    /// A server that does not answer keeps nobody for longer.
    const LIMIT: Duration = Duration::from_secs(2);
    let Some(request) = session.level_to_set() else {
        return;
    };
    let cell = Arc::new(DispatchCell::new());
    if let Ok(mut pending) =
        session.hand_over(&Arc::new(request), &cell, &Along::default(), Instant::now())
    {
        tokio::select! {
            biased;
            _ = pending.answer() => {}
            () = session.pulse.ended() => {}
            () = tokio::time::sleep(LIMIT) => {}
        }
        pending.settle();
    }
}

/// Runs until the session ends or may end.
async fn run(
    session: &Session,
    mut standing: Standing,
    keep_alive: Option<KeepAlive>,
    command: &mut watch::Receiver<Command>,
) {
    let pulse = &session.pulse;
    let retired = async {
        // The sender lives as long as the connection's actor does.
        let closed = command.wait_for(|c| *c != Command::Run).await;
        closed.is_ok_and(|c| *c == Command::Retire)
    };
    let retired = tokio::select! {
        biased;
        () = pulse.ended() => return,
        retired = retired => retired,
        () = stay_alive(session, keep_alive) => return,
        () = standing.tend() => return,
    };
    drop(standing);
    if retired {
        tokio::select! {
            biased;
            () = pulse.ended() => {}
            _ = command.wait_for(|c| matches!(c, Command::Close(_))) => {}
            () = pulse.drained() => {}
        }
    }
}

/// Probes a silent server, and returns when it missed twice in a row with nothing heard between.
async fn stay_alive(session: &Session, keep_alive: Option<KeepAlive>) {
    let Some(KeepAlive { every, timeout }) = keep_alive else {
        return std::future::pending().await;
    };
    let mut misses = 0;
    loop {
        let silent = session.pulse.silent_for();
        if silent < every && misses == 0 {
            tokio::time::sleep(every - silent).await;
            continue;
        }
        let asked = session.pulse.tick();
        let answered = Box::pin(probe(session, timeout)).await;
        misses = if answered || session.pulse.heard_since(asked) {
            0
        } else {
            misses + 1
        };
        if misses == 2 {
            session
                .pulse
                .end(Loss::Ended("the server missed two keep-alive probes"));
            return;
        }
    }
}

/// Stops what was begun. Every step is bounded.
async fn stop(mut running: Running, settings: &Settings) -> Stopped {
    let limits = &settings.limits;
    running.stop_writing.cancel();
    let closing = limits.stdin_grace + limits.term_grace + Duration::from_secs(2);
    let service = running.service.take();
    let service_closes = async {
        if let Some(mut service) = service {
            // Past the limit it is dropped, which cancels it.
            let _ = service.close_with_timeout(closing).await;
        }
    };
    #[cfg(feature = "stdio")]
    if let Some(process) = running.process.take() {
        let stops = process.stop(limits.stdin_grace, limits.term_grace);
        let (how, ()) = tokio::join!(stops, service_closes);
        return how;
    }
    service_closes.await;
    Stopped::ByItself
}
