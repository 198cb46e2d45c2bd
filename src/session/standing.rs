//! The subscriptions of a connection, on one session of it.
//!
//! The session's own task asks the server for what is wanted before the session is told to be
//! there, so that on a byte stream nothing of the operations comes before it. Whatever becomes of a
//! standing request, it says nothing about the session.
#![allow(
    deprecated,
    reason = "the revisions before 2026-07-28 have no other way to subscribe to a resource"
)]

use std::{sync::Arc, time::Duration};

use rmcp::{
    ServiceError,
    model::{
        ClientRequest, RequestId, ServerCapabilities, ServerResult, SubscribeRequest,
        SubscribeRequestParams, SubscriptionsListenRequest, SubscriptionsListenRequestParams,
        UnsubscribeRequest, UnsubscribeRequestParams,
    },
};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{Along, NotTaken, Pending, Session};
use crate::{
    credentials::Challenge,
    evidence::{DispatchCell, WireReport},
    operation::{Generation, ListKind},
    subscription::{GapCause, Notices, Refusal, Subscriber, Subscription},
    transport::server_error,
};

/// The wait before a standing request that ended is made again, and how far it grows while it does
/// not last.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A standing request that lasted this long begins with the first wait again.
const LASTED: Duration = Duration::from_secs(60);

/// How many resources are subscribed to side by side. rmcp's channel, which the calls share, takes
/// 1,024 messages.
const AT_ONCE: usize = 32;

/// All subscriptions on one session. Dropped, they are over there.
pub(super) struct Standing {
    session: Arc<Session>,
    notices: Arc<Notices>,
    /// How long the server may take for an answer.
    limit: Duration,
    known: Vec<Arc<Subscriber>>,
    version: watch::Receiver<u64>,
    tasks: JoinSet<()>,
}

impl Standing {
    /// Hands over the requests for everything that is wanted now.
    pub(super) fn begin(session: &Arc<Session>, notices: &Arc<Notices>, limit: Duration) -> Self {
        let mut standing = Self {
            session: Arc::clone(session),
            notices: Arc::clone(notices),
            limit,
            known: Vec::new(),
            version: notices.watch(),
            tasks: JoinSet::new(),
        };
        standing.take_up();
        standing
    }

    /// Goes on for whoever comes later. Never returns.
    pub(super) async fn tend(&mut self) {
        loop {
            tokio::select! {
                // The sender lives in the notices, which are held here.
                _ = self.version.changed() => self.take_up(),
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
        }
    }

    fn take_up(&mut self) {
        self.version.mark_unchanged();
        self.known.retain(|known| !known.gone.is_cancelled());
        for subscriber in self.notices.all() {
            if self
                .known
                .iter()
                .any(|known| Arc::ptr_eq(known, &subscriber))
            {
                continue;
            }
            self.known.push(Arc::clone(&subscriber));
            let one = One {
                session: Arc::clone(&self.session),
                notices: Arc::clone(&self.notices),
                subscriber,
                limit: self.limit,
            };
            one.begin(&mut self.tasks);
        }
    }
}

/// One subscriber on one session.
struct One {
    session: Arc<Session>,
    notices: Arc<Notices>,
    subscriber: Arc<Subscriber>,
    limit: Duration,
}

/// Dropped when the subscription is over on this session, however that comes.
struct Over<'a> {
    one: &'a One,
    id: Option<RequestId>,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.one.notices.forget(self.one.generation(), id);
        }
        self.one.gap(GapCause::SessionOver);
    }
}

/// A standing request that was handed over.
struct Listening {
    pending: Pending,
    id: RequestId,
}

/// The server's no, if that is what came.
fn refusal(error: ServiceError, report: &WireReport) -> Option<Refusal> {
    let error = match error {
        ServiceError::McpError(error) if report.fault.is_none() => Some(server_error(error)),
        _ => None,
    };
    match (report.failed_status(), error) {
        // Its body may well be an error of the server's; the status is what a host acts on.
        (Some(status @ (401 | 403)), error) => Some(Refusal::Http {
            status,
            challenge: report.challenge.as_deref().and_then(Challenge::parse),
            error,
        }),
        (_, Some(error)) => Some(Refusal::Error(error)),
        (Some(status @ 400..500), None) => Some(Refusal::Http {
            status,
            challenge: None,
            error: None,
        }),
        _ => None,
    }
}

/// What a resource's server said.
type Asked = (String, Result<Pending, NotTaken>);

impl One {
    fn begin(self, tasks: &mut JoinSet<()>) {
        if self.session.revision.has_initialize() {
            if !self.subscriber.for_lists {
                let asked = self.ask_for_resources();
                tasks.spawn(async move { self.subscribed(asked).await });
            }
            return;
        }
        let wanted = match self.subscriber.for_lists {
            true => self
                .subscriber
                .wanted
                .lists_where(|list| self.declares(list)),
            false => self.subscriber.wanted.clone(),
        };
        if !wanted.is_empty() {
            let first = self.listen(&wanted);
            tasks.spawn(async move { self.listening(wanted, first).await });
        }
    }

    fn generation(&self) -> Generation {
        self.session.pulse.generation
    }

    fn gap(&self, why: GapCause) {
        self.subscriber.queue.gap(self.generation(), why);
    }

    fn refused(&self, what: Subscription, why: Refusal) {
        let queue = &self.subscriber.queue;
        queue.refused(self.generation(), what, why);
    }

    fn capabilities(&self) -> ServerCapabilities {
        let info = self.session.peer.peer_info();
        info.map(|info| info.capabilities.clone())
            .unwrap_or_default()
    }

    /// Whether the server says that it tells of changes of this list.
    fn declares(&self, list: ListKind) -> bool {
        let capabilities = self.capabilities();
        let declared = match list {
            ListKind::Tools => capabilities.tools.and_then(|c| c.list_changed),
            ListKind::Prompts => capabilities.prompts.and_then(|c| c.list_changed),
            ListKind::Resources | ListKind::ResourceTemplates => {
                capabilities.resources.and_then(|c| c.list_changed)
            }
            ListKind::Skills => None,
        };
        declared == Some(true)
    }

    /// Hands over a request that stands beside the operations.
    fn ask(&self, request: ClientRequest) -> Result<Pending, NotTaken> {
        let cell = Arc::new(DispatchCell::new());
        let along = Along {
            standing: true,
            ..Along::default()
        };
        self.session
            .hand_over(&Arc::new(request), &cell, &along, Instant::now())
    }

    /// Waits until nobody wants it any more on this session.
    async fn unwanted(&self) {
        tokio::select! {
            () = self.subscriber.gone.cancelled() => {}
            () = self.session.pulse.ended() => {}
        }
    }
}

// 2026-07-28: one standing request for all.
impl One {
    fn listen(&self, wanted: &Subscription) -> Result<Listening, NotTaken> {
        let params = SubscriptionsListenRequestParams::new(wanted.to_filter());
        let request = SubscriptionsListenRequest::new(params).into();
        // What the server tells at once waits until it is known whose it is.
        let mut routes = self.notices.routes();
        let pending = self.ask(request)?;
        let id = pending.id().clone();
        routes.add(self.generation(), id.clone(), &self.subscriber);
        Ok(Listening { pending, id })
    }

    async fn listening(self, wanted: Subscription, first: Result<Listening, NotTaken>) {
        let mut next = Some(first);
        let mut wait = FIRST_WAIT;
        loop {
            let listening = match next.take() {
                Some(listening) => listening,
                None => self.listen(&wanted),
            };
            match listening {
                Ok(listening) => {
                    let began = Instant::now();
                    let Some(why) = self.hear_out(&wanted, listening).await else {
                        return;
                    };
                    self.gap(why);
                    if why == GapCause::Cancelled {
                        return;
                    }
                    if began.elapsed() > LASTED {
                        wait = FIRST_WAIT;
                    }
                }
                Err(NotTaken::Full) => {}
                Err(_) => return,
            }
            let jittered = wait.mul_f64(0.5 + rand::random::<f64>() / 2.0);
            tokio::select! {
                biased;
                () = self.unwanted() => return,
                () = tokio::time::sleep(jittered) => {}
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Waits until it ends. `None`: it is not to be made again here.
    async fn hear_out(&self, wanted: &Subscription, listening: Listening) -> Option<GapCause> {
        let Listening { mut pending, id } = listening;
        let over = Over {
            one: self,
            id: Some(id),
        };
        let answer = tokio::select! {
            biased;
            answer = pending.answer() => answer,
            // Its drop tells the server, where there is one to be told.
            () = self.unwanted() => return None,
        };
        let report = pending.cell().reported().cloned().unwrap_or_default();
        pending.settle();
        let why = match answer {
            Ok(result) if matches!(*result, ServerResult::SubscriptionsListenResult(_)) => {
                GapCause::Ended
            }
            Ok(_) => {
                self.refused(wanted.clone(), Refusal::NoAnswer);
                return None;
            }
            Err(ServiceError::Cancelled { .. }) => GapCause::Cancelled,
            Err(_) if self.session.pulse.is_ended() => return None,
            Err(error) => match refusal(error, &report) {
                Some(why) => {
                    self.refused(wanted.clone(), why);
                    return None;
                }
                None => GapCause::BrokeOff,
            },
        };
        self.gap(why);
        drop(over);
        Some(why)
    }
}

// Older revisions: a request for each resource, and lists are told of unasked.
impl One {
    fn ask_for_resources(&self) -> Vec<Asked> {
        let wanted = &self.subscriber.wanted;
        let declared = self.capabilities().resources.and_then(|c| c.subscribe);
        if wanted.uris().next().is_some() && declared != Some(true) {
            self.refused(wanted.lists_where(|_| false), Refusal::NotDeclared);
            return Vec::new();
        }
        wanted
            .uris()
            .take(AT_ONCE)
            .map(|uri| self.ask_for(uri))
            .collect()
    }

    fn ask_for(&self, uri: &str) -> Asked {
        let params = SubscribeRequestParams::new(uri);
        (
            uri.to_owned(),
            self.ask(SubscribeRequest::new(params).into()),
        )
    }

    async fn subscribed(self, first: Vec<Asked>) {
        let over = Over {
            one: &self,
            id: None,
        };
        let mut accepted = self
            .subscriber
            .wanted
            .only_lists()
            .lists_where(|list| self.declares(list));
        let mut asked = first;
        let mut rest: Vec<_> = self.subscriber.wanted.uris().skip(asked.len()).collect();
        if asked.is_empty() {
            // Not declared, or there is nothing to ask for.
            rest.clear();
        }
        let mut rest = rest.into_iter();
        loop {
            for (uri, asked) in std::mem::take(&mut asked) {
                let Some(refusal) = self.answer(asked).await else {
                    self.unsubscribe().await;
                    return;
                };
                match refusal {
                    None => accepted = accepted.resource(uri),
                    Some(why) => self.refused(Subscription::only_resource(&uri), why),
                }
            }
            asked.extend(rest.by_ref().take(AT_ONCE).map(|uri| self.ask_for(uri)));
            if asked.is_empty() {
                break;
            }
        }
        if !accepted.is_empty() {
            self.notices
                .in_force(&self.subscriber, self.generation(), accepted);
        }
        self.unwanted().await;
        drop(over);
        self.unsubscribe().await;
    }

    /// The answer to one request; `Some(None)` is a yes. `None`: it is not wanted any more here.
    async fn answer(&self, asked: Result<Pending, NotTaken>) -> Option<Option<Refusal>> {
        let Ok(mut pending) = asked else {
            return Some(Some(Refusal::NoAnswer));
        };
        let answer = tokio::select! {
            biased;
            answer = pending.answer() => answer,
            () = self.unwanted() => return None,
            () = tokio::time::sleep(self.limit) => return Some(Some(Refusal::NoAnswer)),
        };
        let report = pending.cell().reported().cloned().unwrap_or_default();
        pending.settle();
        Some(match answer {
            Ok(_) => None,
            Err(error) => Some(refusal(error, &report).unwrap_or(Refusal::NoAnswer)),
        })
    }

    /// Tells the server what nobody wants any more.
    async fn unsubscribe(&self) {
        if self.session.pulse.is_ended() {
            return;
        }
        let mut told = Vec::new();
        for uri in self.subscriber.wanted.uris() {
            self.notices.give_up(uri, || {
                let params = UnsubscribeRequestParams::new(uri);
                told.extend(self.ask(UnsubscribeRequest::new(params).into()));
            });
        }
        for mut pending in told {
            // Whatever it says, nobody is told of changes any more.
            let _ = tokio::time::timeout(self.limit, pending.answer()).await;
            pending.settle();
        }
    }
}
