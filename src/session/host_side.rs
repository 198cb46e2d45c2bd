//! The host's side of a session: what the server asks goes to the host's handler, and what it tells
//! goes there and to the connection.

use std::{sync::Arc, time::Duration};

use rmcp::{
    Peer, RoleClient, Service,
    model::{
        ClientConfig, ClientResult, ErrorCode, ErrorData, GetExtensions as _, GetMeta as _,
        InputRequest, JsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerNotification,
        ServerRequest, ServerResult,
    },
    service::{InboundStreamOrigin, NotificationContext, RequestContext},
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    SessionArgs,
    withheld::{Withheld, nobody_waits, whole},
};
use crate::{
    event::{Asked, What},
    operation::ListKind,
    spec::{Handler, Panicked},
    subscription::{Notices, Told},
    transport::{Pulse, witness::OnStreamOf},
};

/// How long a handler may go on after it was told that nobody waits for its answer.
const GRACE: Duration = Duration::from_secs(2);

/// What a server is told that asks more at a time than the host takes. The code is one of those that
/// JSON-RPC leaves to implementations.
const TOO_MANY: ErrorCode = ErrorCode(-32000);
const TOO_MANY_TEXT: &str = "the client is asked more than it answers at a time; ask again later";

/// What rmcp runs for a session.
pub(crate) struct HostSide {
    handler: Handler,
    /// Whether it is one of the host's.
    pub(super) handled: bool,
    /// What the handshake offers: the handler's, with the connection's revision.
    pub(super) offered: ClientConfig,
    /// What rmcp is not shown of all that passes through it.
    pub(super) withheld: Arc<Withheld>,
    pulse: Arc<Pulse>,
    notices: Arc<Notices>,
    tell: Arc<dyn Fn(What) + Send + Sync>,
    /// The places for requests that are with the handler.
    places: Arc<Semaphore>,
    /// Those for pings, which take none from what asks for something.
    pings: Arc<Semaphore>,
}

impl Service<RoleClient> for HostSide {
    async fn handle_request(
        &self,
        request: ServerRequest,
        mut context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        self.withheld.show_greeting(&context.peer);
        let request = whole(request, &mut context.extensions);
        let (id, done) = (context.id.clone(), context.ct.clone());
        let answer = self.answer(request, context).await;
        self.withheld.withhold_answer(id, done, answer)
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        mut context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        self.withheld.show_greeting(&context.peer);
        let notification = whole(notification, &mut context.extensions);
        if matches!(
            notification,
            ServerNotification::ResourceUpdatedNotification(_)
        ) {
            // rmcp does so where it sees which resource it is.
            context.peer.clear_response_cache().await;
        }
        let heard = self.handler.hear(notification, context);
        tokio::select! {
            biased;
            () = heard => {}
            () = async {
                self.pulse.ended().await;
                tokio::time::sleep(GRACE).await;
            } => {}
        }
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        self.offered.clone()
    }
}

impl HostSide {
    /// Lets the handler answer a request of the server's.
    async fn answer(
        &self,
        request: ServerRequest,
        mut context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        let generation = self.pulse.generation;
        let what = asked(&request);
        let asks = what.is_some();
        let places = if asks { &self.places } else { &self.pings };
        let Ok(place) = Arc::clone(places).try_acquire_owned() else {
            return match asks {
                true => Err(ErrorData::new(TOO_MANY, TOO_MANY_TEXT, None)),
                // A sign of life is not refused.
                false => Ok(ClientResult::empty(())),
            };
        };
        if let Some(what) = what.filter(|_| self.handled) {
            (self.tell)(What::HandlerAsked { generation, what });
        }
        let cancelled = context.ct.clone();
        // rmcp cancels its own only after it has waited for the answer.
        let told = cancelled.child_token();
        context.ct = told.clone();
        // Where the transport cannot tell which call it is about, it may be about any.
        let extensions = &context.extensions;
        let call = match extensions.get::<InboundStreamOrigin>() {
            Some(InboundStreamOrigin::OutboundRequest(id)) => Some(id.clone()),
            Some(InboundStreamOrigin::Unassociated) | None => {
                extensions.get::<OnStreamOf>().map(|on| on.0.clone())
            }
        };
        let _held = asks.then(|| self.pulse.calls.hold(call.as_ref()));
        let mut answer = self.handler.answer(request, context);
        tokio::select! {
            biased;
            () = self.pulse.ended() => {}
            () = cancelled.cancelled() => {}
            answer = &mut answer => return answer,
        }
        told.cancel();
        tokio::spawn(async move {
            // What it answers goes nowhere, and past the limit it is dropped.
            let _ = tokio::time::timeout(GRACE, answer).await;
            drop(place);
        });
        Err(nobody_waits())
    }

    pub(super) fn new(args: &SessionArgs) -> Result<Self, Panicked> {
        let most = args.settings.limits.max_asked.min(Semaphore::MAX_PERMITS);
        Ok(Self {
            handler: args.settings.handler.clone(),
            handled: args.settings.handled,
            offered: args.settings.handler.info()?,
            withheld: Arc::default(),
            pulse: Arc::clone(&args.pulse),
            notices: Arc::clone(&args.notices),
            tell: Arc::clone(&args.tell),
            places: Arc::new(Semaphore::new(most)),
            pings: Arc::new(Semaphore::new(most)),
        })
    }

    /// What hears the same server, in its order.
    pub(super) fn ear(&self) -> Ear {
        Ear {
            pulse: Arc::clone(&self.pulse),
            notices: Arc::clone(&self.notices),
            tell: Arc::clone(&self.tell),
            logged: 0,
        }
    }
}

/// Hears what a server says before rmcp does, which gives each notification to a task of its own,
/// and their order to chance.
pub(super) struct Ear {
    pulse: Arc<Pulse>,
    notices: Arc<Notices>,
    tell: Arc<dyn Fn(What) + Send + Sync>,
    logged: u64,
}

/// Hears of the pages of lists among the answers that rmcp does not see.
pub(super) fn lists_to(args: &SessionArgs) -> impl Fn(&ServerResult) + Send + Sync + 'static {
    let (notices, generation) = (Arc::clone(&args.notices), args.pulse.generation);
    move |result| {
        if let Some(list) = listed(result) {
            notices.list_came(generation, list);
        }
    }
}

impl Ear {
    pub(super) fn hear(&mut self, message: &ServerJsonRpcMessage) {
        self.pulse.calls.hear(message);
        match message {
            JsonRpcMessage::Notification(notification) => self.note(&notification.notification),
            JsonRpcMessage::Response(response) => {
                if let Some(list) = listed(&response.result) {
                    self.notices.list_came(self.pulse.generation, list);
                }
            }
            _ => {}
        }
    }

    /// Tells the connection what the server told.
    fn note(&mut self, notification: &ServerNotification) {
        use ServerNotification as N;
        let generation = self.pulse.generation;
        let told = match notification {
            N::ToolListChangedNotification(_) => Told::List(ListKind::Tools),
            N::PromptListChangedNotification(_) => Told::List(ListKind::Prompts),
            N::ResourceListChangedNotification(_) => Told::List(ListKind::Resources),
            N::ResourceUpdatedNotification(updated) => Told::Resource(&updated.params.uri),
            N::SubscriptionsAcknowledgedNotification(acknowledged) => {
                let id = notification.get_meta().subscription_id();
                let part = &acknowledged.params.notifications;
                self.notices.acknowledged(generation, id.as_ref(), part);
                return;
            }
            N::LoggingMessageNotification(_) => {
                self.logged += 1;
                if self.logged.is_power_of_two() {
                    let total = self.logged;
                    (self.tell)(What::LogReceived { generation, total });
                }
                return;
            }
            _ => return,
        };
        let id = notification.get_meta().subscription_id();
        self.notices.told(generation, id.as_ref(), &told);
        (self.tell)(match told {
            Told::List(list) => What::ListChanged { generation, list },
            Told::Resource(_) => What::ResourceUpdated { generation },
        });
    }
}

/// The list that a result is a page of.
fn listed(result: &ServerResult) -> Option<ListKind> {
    match result {
        ServerResult::ListToolsResult(_) => Some(ListKind::Tools),
        ServerResult::ListPromptsResult(_) => Some(ListKind::Prompts),
        ServerResult::ListResourcesResult(_) => Some(ListKind::Resources),
        ServerResult::ListResourceTemplatesResult(_) => Some(ListKind::ResourceTemplates),
        ServerResult::ListSkillsResult(_) => Some(ListKind::Skills),
        _ => None,
    }
}

/// What a request asks for, other than a sign of life.
fn asked(request: &ServerRequest) -> Option<Asked> {
    match request {
        ServerRequest::PingRequest(_) => None,
        ServerRequest::CreateMessageRequest(_) => Some(Asked::Sampling),
        ServerRequest::ElicitRequest(_) => Some(Asked::Elicitation),
        ServerRequest::ListRootsRequest(_) => Some(Asked::Roots),
        _ => Some(Asked::Custom),
    }
}

/// Lets the handler answer one request of an `input_required` round, as if the server had asked for
/// it by itself. `key` is the server's name for it; `ct` is cancelled when nobody waits any more.
///
/// It can be dropped at any time, and the handler's future with it.
pub(crate) async fn answer_input(
    handler: &Handler,
    peer: Peer<RoleClient>,
    key: &str,
    request: InputRequest,
    ct: CancellationToken,
) -> Result<Value, ErrorData> {
    let mut request = match request {
        InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
        InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
        InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
        _ => {
            let message = "the client does not know this kind of input request";
            return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, message, None));
        }
    };
    let mut context = RequestContext::new(RequestId::String(key.into()), peer);
    context.ct = ct;
    std::mem::swap(&mut context.meta, request.get_meta_mut());
    std::mem::swap(&mut context.extensions, request.extensions_mut());
    let answer = handler.answer(request, context).await?;
    serde_json::to_value(answer).map_err(|_| {
        let message = "the handler's answer cannot be written as JSON";
        ErrorData::internal_error(message, None)
    })
}
