//! One negotiated lifetime on one transport: how a request is handed to it, and how it is waited
//! for.
//!
//! Handing over never waits. rmcp's channel takes the request at once or not at all, and what is
//! not taken was not sent.

mod actor;
mod host_side;
mod kept;
mod late;
mod offer;
mod standing;
mod start;
mod withheld;

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientConfig, ClientNotification,
        ClientRequest, GetExtensions as _, GetMeta as _, PingRequest, ProgressToken,
        ProtocolVersion, RequestId, RequestMetaObject, ServerCapabilities, ServerPeerInfo,
        ServerResult,
    },
    service::PeerRequestOptions,
};
use tokio::{sync::oneshot, time::Instant};

pub(crate) use actor::{After, Command, Report, SessionActor, SessionArgs, SessionHandle};
pub(crate) use host_side::answer_input;
pub(crate) use late::Late;
pub(crate) use start::Connector;

use crate::{
    evidence::{DispatchCell, Loss},
    extension::{LOOK_UP, Offer, RECEIPTS},
    operation::{Ownership, rmcp_level},
    telemetry::Seen,
    transport::{
        Listener, Pulse,
        clock::Clock,
        lane::{self, Lane, OnLane, Place, Said},
        witness::{Anchor, Outlives, Witnessed},
    },
};

/// A live session.
pub(crate) struct Session {
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) revision: ProtocolVersion,
    ownership: Ownership,
    peer: Arc<Peer<RoleClient>>,
    /// The way of its operations, where they do not go through rmcp.
    lane: Option<OwnWay>,
    pub(crate) log_level: Arc<WantedLevel>,
}

/// The lane of a session, and what each request on it says of the client, as rmcp would have it.
struct OwnWay {
    lane: Arc<Lane>,
    said: Arc<Said>,
}

/// From which level on the host wants the server's messages for the log, on whatever session.
#[derive(Debug, Default)]
pub(crate) struct WantedLevel(Mutex<Option<rmcp_level::Level>>);

impl WantedLevel {
    pub(crate) fn set(&self, level: rmcp_level::Level) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(level);
    }

    pub(crate) fn current(&self) -> Option<rmcp_level::Level> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A notification that was handed over.
pub(crate) struct Told {
    pub(crate) pulse: Arc<Pulse>,
    /// Ends when the transport has taken it, or not.
    pub(crate) taken: Pin<Box<dyn Future<Output = Result<(), ServiceError>> + Send>>,
}

/// What goes along with a request beside its bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Along {
    /// The longest silence.
    pub(crate) idle: Option<Duration>,
    /// The clock of its operation.
    pub(crate) clock: Option<Arc<Clock>>,
    /// Who hears of its progress.
    pub(crate) listener: Option<Arc<Listener>>,
    /// Whether it stands beside the operations, and is not counted as one.
    pub(crate) standing: bool,
    /// Whether its answer is wanted also after its caller gave up.
    pub(crate) late: bool,
}

/// Rides in a request that is not to be made where the server does not declare that it has what is
/// asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IfDeclared;

/// Why a session did not take a request. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// Its caller gave it up first.
    Recalled,
    /// The channel to rmcp is full.
    Full,
    /// The session is over.
    Ended,
    /// The revision of the session has no such request.
    NotInRevision(&'static str),
    /// The server did not declare that it has what is asked for.
    NotDeclared(&'static str),
}

impl Session {
    pub(crate) fn new(
        peer: Peer<RoleClient>,
        revision: ProtocolVersion,
        ownership: Ownership,
        pulse: Arc<Pulse>,
    ) -> Self {
        if let Some(offer) = peer
            .peer_info()
            .and_then(|info| offered(&info.capabilities))
        {
            pulse.offer_receipts(offer);
        }
        Self {
            pulse,
            revision,
            ownership,
            peer: Arc::new(peer),
            lane: None,
            log_level: Arc::default(),
        }
    }

    /// Has its operations go by the lane. `client` is what the handshake said of the client, and
    /// `lists` hears of each answer that may be a page of a list.
    pub(super) fn go_by(
        &mut self,
        lane: Arc<Lane>,
        client: ClientConfig,
        lists: impl Fn(&ServerResult) + Send + Sync + 'static,
    ) {
        let newer = !self.revision.has_initialize();
        if newer {
            // It is in rmcp's channel before the first request is on the lane.
            let mut anchor = ClientRequest::from(PingRequest::default());
            anchor.extensions_mut().insert(Anchor);
            let sent = self
                .peer
                .send_request_with_option(anchor, PeerRequestOptions::no_options());
            // A channel that is closed is that of a session that is over.
            let _ = poll_once(sent);
        }
        self.pulse.calls.also_on(&lane);
        lane.open(newer, lists);
        let mut said = Said::default();
        if newer {
            // Before that the handshake says it for all.
            let always = &mut said.always;
            always.set_protocol_version(self.revision.clone());
            always.set_client_info(client.client_info);
            always.set_client_capabilities(client.capabilities);
        }
        let said = Arc::new(said);
        self.lane = Some(OwnWay { lane, said });
    }

    /// Hands a notification over, in the caller's order, without waiting.
    pub(crate) fn tell(&self, notification: ClientNotification) -> Result<Told, NotTaken> {
        if self.is_over() {
            return Err(NotTaken::Ended);
        }
        let lane = self.lane.as_ref().map(|way| &way.lane);
        if let Some(lane) = lane.filter(|lane| lane.takes_notifications()) {
            lane.tell(notification).map_err(|_| NotTaken::Ended)?;
            return Ok(Told {
                pulse: Arc::clone(&self.pulse),
                taken: Box::pin(std::future::ready(Ok(()))),
            });
        }
        let peer = Arc::clone(&self.peer);
        let mut taken: Pin<Box<dyn Future<Output = _> + Send>> =
            Box::pin(async move { peer.send_notification(notification).await });
        // The first poll enqueues it; what it waits for then is the transport.
        let early = poll_once(taken.as_mut());
        if let Some(early) = early {
            taken = Box::pin(std::future::ready(early));
        }
        Ok(Told {
            pulse: Arc::clone(&self.pulse),
            taken,
        })
    }

    /// Whether the session is over, as far as can be told without asking the server.
    pub(crate) fn is_over(&self) -> bool {
        if self.peer.is_transport_closed() {
            self.pulse.end(Loss::Closed {
                exit: None,
                stderr: String::new(),
            });
        }
        self.pulse.is_ended()
    }

    /// What the server said about itself in the handshake.
    pub(crate) fn server(&self) -> Option<Arc<ServerPeerInfo>> {
        self.peer.peer_info()
    }

    /// The request that sets the connection's log level, where one is set and the server has logs.
    #[expect(deprecated, reason = "it is what the revisions before 2026-07-28 have")]
    fn level_to_set(&self) -> Option<ClientRequest> {
        use rmcp::model::{SetLevelRequest, SetLevelRequestParams};
        let level = self.log_level.current()?;
        let logs = self
            .peer
            .peer_info()
            .is_some_and(|info| info.capabilities.logging.is_some());
        (logs && self.revision.has_initialize())
            .then(|| SetLevelRequest::new(SetLevelRequestParams::new(level)).into())
    }

    /// Whether the revision and the server have such a request, as far as that can be told.
    fn has(&self, request: &ClientRequest) -> Result<(), NotTaken> {
        use ClientRequest as R;
        let older = self.revision.has_initialize();
        let declared = |has: fn(&ServerCapabilities) -> bool, what| {
            let info = self.peer.peer_info();
            match info.is_some_and(|info| has(&info.capabilities)) {
                true => Ok(()),
                false => Err(NotTaken::NotDeclared(what)),
            }
        };
        if request.extensions().get::<IfDeclared>().is_some() && self.peer.peer_info().is_some() {
            match request {
                R::ListToolsRequest(_) => declared(|c| c.tools.is_some(), "tools")?,
                R::ListPromptsRequest(_) => declared(|c| c.prompts.is_some(), "prompts")?,
                R::ListResourcesRequest(_) | R::ListResourceTemplatesRequest(_) => {
                    declared(|c| c.resources.is_some(), "resources")?;
                }
                R::CustomRequest(request) if request.method == LOOK_UP => {
                    declared(
                        |c| offered(c).is_some_and(|offer| offer.look_up),
                        "receipts",
                    )?;
                }
                _ => {}
            }
        }
        match request {
            R::PingRequest(_) if !older => Err(NotTaken::NotInRevision("ping")),
            R::SetLevelRequest(_) if !older => Err(NotTaken::NotInRevision("logging/setLevel")),
            R::ListSkillsRequest(_) | R::GetSkillRequest(_) => {
                declared(ServerCapabilities::supports_skills, "skills")
            }
            R::ReadResourceDirectoryRequest(_) => declared(
                ServerCapabilities::supports_directory_read,
                "reading directories of resources",
            ),
            _ => Ok(()),
        }
    }

    /// Hands a request over, in the caller's order, without waiting.
    pub(crate) fn hand_over(
        &self,
        request: &Arc<ClientRequest>,
        cell: &Arc<DispatchCell>,
        along: &Along,
        now: Instant,
    ) -> Result<Pending, NotTaken> {
        if self.is_over() {
            return Err(NotTaken::Ended);
        }
        self.has(request)?;
        let by_lane = |way: &&OwnWay| !along.standing && way.lane.takes(request, along.late);
        if let Some(way) = self.lane.as_ref().filter(by_lane) {
            return self.by_the_lane(way, request, cell, along, now);
        }
        // It is kept, because it may be taken back and handed over again.
        let mut request = ClientRequest::clone(request);
        if self.ownership.is_lent() {
            // There is no witness below: from here on it counts as perhaps sent.
            if !cell.begin_write() {
                return Err(NotTaken::Recalled);
            }
            cell.finish_write();
        } else {
            request.extensions_mut().insert(Witnessed(Arc::clone(cell)));
            if along.late && self.revision.has_initialize() {
                request.extensions_mut().insert(Outlives);
            }
        }
        if !self.revision.has_initialize()
            && let Some(level) = self.log_level.current()
            && request.get_meta().log_level().is_none()
        {
            request.get_meta_mut().set_log_level(level);
        }
        // What is lent is not heard by us, and so rmcp minds its silence.
        let idle = along.idle.filter(|_| self.ownership.is_lent());
        let mut options = PeerRequestOptions::no_options();
        if let Some(idle) = idle {
            options = PeerRequestOptions::with_timeout(idle).reset_timeout_on_progress();
        }
        let listing = self.pulse.calls.listing();
        let handle = match poll_once(self.peer.send_request_with_option(request, options)) {
            Some(Ok(handle)) => handle,
            Some(Err(_)) => {
                self.pulse.end(Loss::Closed {
                    exit: None,
                    stderr: String::new(),
                });
                return Err(NotTaken::Ended);
            }
            None => return Err(NotTaken::Full),
        };
        let id = handle.id.clone();
        let token = handle.progress_token.clone();
        listing.list(&id, &token, along.clock.as_ref(), along.listener.as_ref());
        if !along.standing {
            self.pulse.enter();
        }
        let answer = match idle {
            None => Answer::Plain(Way::Rmcp(handle.rx)),
            Some(_) => Answer::WithIdleLimit(Box::pin(handle.await_response())),
        };
        Ok(Pending {
            id,
            token,
            answer,
            handed_over: self.pulse.tick_at(now),
            cell: Arc::clone(cell),
            peer: Arc::clone(&self.peer),
            lane: None,
            listed: true,
            pulse: Arc::clone(&self.pulse),
            standing: along.standing,
            late: along.late,
            witnessed: !self.ownership.is_lent(),
            settled: false,
        })
    }

    /// Hands a request over by the lane.
    fn by_the_lane(
        &self,
        way: &OwnWay,
        request: &Arc<ClientRequest>,
        cell: &Arc<DispatchCell>,
        along: &Along,
        now: Instant,
    ) -> Result<Pending, NotTaken> {
        let place = way.lane.place();
        let level = self.log_level.current();
        let unless_said = level.filter(|_| !self.revision.has_initialize());
        let unless_said = unless_said.map(|level| {
            let mut meta = RequestMetaObject::default();
            meta.set_log_level(level);
            Arc::new(meta)
        });
        let request = OnLane {
            request: Arc::clone(request),
            said: Arc::clone(&way.said),
            unless_said,
            number: place.number,
            token: place.token.clone(),
        };
        let calls = &self.pulse.calls;
        if let Some(listener) = &along.listener {
            // Before it can be written: the server may speak of it from then on.
            calls
                .listing()
                .list(&place.id, &place.token, None, Some(listener));
        }
        self.pulse.enter();
        let Ok(answer) = way.lane.hand_over(request, cell, along.clock.clone()) else {
            calls.strike(&place.id, &place.token);
            self.pulse.leave();
            return Err(NotTaken::Ended);
        };
        let Place { id, token, .. } = place;
        Ok(Pending {
            id,
            token,
            answer: Answer::Plain(Way::Lane(answer)),
            handed_over: self.pulse.tick_at(now),
            cell: Arc::clone(cell),
            peer: Arc::clone(&self.peer),
            lane: Some(Arc::clone(&way.lane)),
            listed: along.listener.is_some(),
            pulse: Arc::clone(&self.pulse),
            standing: false,
            late: along.late,
            witnessed: true,
            settled: false,
        })
    }
}

/// What a server offers by way of receipts: the older revisions have no place for extensions, and some
/// libraries drop what they do not know, so it is looked for in both places.
fn offered(capabilities: &ServerCapabilities) -> Option<Offer> {
    let extension = capabilities
        .extensions
        .as_ref()
        .and_then(|all| all.get(RECEIPTS));
    let experimental = || capabilities.experimental.as_ref()?.get(RECEIPTS);
    Offer::read(extension.or_else(experimental)?)
}

/// Polls a future of rmcp's once, outside of the cooperative budget, and drops it.
///
/// Its sends do their work on the first poll or not at all: a channel that is full hands the
/// message back by the drop.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match poll_for(Waker::noop(), future) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Polls once, whatever the task has done before, and leaves `waker` behind.
fn poll_for<F: Future>(waker: &Waker, future: F) -> Poll<F::Output> {
    let future = tokio::task::coop::unconstrained(future);
    std::pin::pin!(future).poll(&mut Context::from_waker(waker))
}

/// The session ended, and with it the wait.
fn closed<T, Cause>(_: Cause) -> Result<T, ServiceError> {
    Err(ServiceError::TransportClosed)
}

enum Answer {
    Plain(Way),
    /// It came while nobody was waiting yet.
    Come(Option<lane::Answer>),
    WithIdleLimit(Pin<Box<dyn Future<Output = Result<ServerResult, ServiceError>> + Send>>),
}

/// Where an answer comes from.
enum Way {
    Rmcp(oneshot::Receiver<Result<ServerResult, ServiceError>>),
    Lane(oneshot::Receiver<lane::Answer>),
}

impl Way {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<lane::Answer> {
        match self {
            Self::Lane(rx) => {
                let come = Pin::new(rx).poll(context);
                come.map(|come| come.unwrap_or_else(closed))
            }
            Self::Rmcp(rx) => {
                let come = Pin::new(rx).poll(context);
                come.map(|come| come.unwrap_or_else(closed).map(Box::new))
            }
        }
    }

    /// Waits for it. Can be dropped and called again.
    async fn answer(&mut self) -> lane::Answer {
        poll_fn(|context| self.poll(context)).await
    }
}

/// A request that was handed over.
///
/// Dropped before it is settled, it is recalled, or else the server is told that nobody waits for
/// it any more. Neither waits.
pub(crate) struct Pending {
    id: RequestId,
    token: ProgressToken,
    answer: Answer,
    handed_over: u64,
    cell: Arc<DispatchCell>,
    peer: Arc<Peer<RoleClient>>,
    /// Which way it went, if not through rmcp.
    lane: Option<Arc<Lane>>,
    /// The server may speak of it.
    listed: bool,
    pub(crate) pulse: Arc<Pulse>,
    standing: bool,
    late: bool,
    /// Its transport is one of ours.
    witnessed: bool,
    settled: bool,
}

impl Pending {
    /// Waits for the answer. Can be dropped and called again.
    pub(crate) async fn answer(&mut self) -> lane::Answer {
        match &mut self.answer {
            Answer::Plain(way) => way.answer().await,
            Answer::Come(answer) => answer.take().unwrap_or_else(|| closed(())),
            Answer::WithIdleLimit(waiting) => waiting.await.map(Box::new),
        }
    }

    /// Lets the answer wake `caller`. `false`: it cannot, because the answer is there already or
    /// the caller's own waiting has a part in it.
    pub(crate) fn will_wake(&mut self, caller: &Waker) -> bool {
        let Answer::Plain(way) = &mut self.answer else {
            return false;
        };
        let come = poll_for(caller, poll_fn(|context| way.poll(context)));
        match come {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                self.answer = Answer::Come(Some(answer));
                false
            }
        }
    }

    /// The answer, if it is there already.
    pub(crate) fn answer_now(&mut self) -> Option<lane::Answer> {
        match &mut self.answer {
            Answer::Plain(Way::Lane(rx)) => rx.try_recv().ok(),
            Answer::Plain(Way::Rmcp(rx)) => rx.try_recv().ok().map(|come| come.map(Box::new)),
            Answer::Come(answer) => answer.take(),
            Answer::WithIdleLimit(waiting) => {
                poll_once(waiting.as_mut()).map(|come| come.map(Box::new))
            }
        }
    }

    /// Whether anything came from the server since the hand-over.
    pub(crate) fn heard(&self) -> bool {
        self.pulse.heard_since(self.handed_over)
    }

    /// Notes what a caller learns with it.
    pub(crate) fn seen(&self, seen: &mut Seen) {
        seen.generation = Some(self.pulse.generation);
        seen.request = Some(self.id.clone());
    }

    /// rmcp's handle of the session.
    pub(crate) fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    /// rmcp's name for it.
    pub(crate) fn id(&self) -> &RequestId {
        &self.id
    }

    /// The cell that decides whether it was sent.
    pub(crate) fn cell(&self) -> &Arc<DispatchCell> {
        &self.cell
    }

    /// Whether the session is over.
    pub(crate) fn session_is_over(&self) -> bool {
        if self.peer.is_transport_closed() {
            self.pulse.end(Loss::Closed {
                exit: None,
                stderr: String::new(),
            });
        }
        self.pulse.is_ended()
    }

    /// The outcome is known: nobody needs to be told.
    pub(crate) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.listed {
            self.pulse.calls.strike(&self.id, &self.token);
        }
        if !self.standing {
            self.pulse.leave();
        }
        if self.settled {
            return;
        }
        if let Some(lane) = &self.lane
            && !self.late
        {
            lane.forget(&self.id);
        }
        if self.cell.recall() || self.pulse.is_ended() {
            return;
        }
        let reason = "the caller no longer waits for the answer".to_owned();
        let params = CancelledNotificationParam::new(Some(self.id.clone()), Some(reason));
        if let Some(lane) = &self.lane {
            return lane.cancel(params);
        }
        let notification = CancelledNotification::new(params).into();
        // Enqueued by the first poll. Where the channel is full the server is not told, which it
        // must bear anyway: a cancellation is a courtesy.
        let _ = poll_once(self.peer.send_notification(notification));
    }
}
