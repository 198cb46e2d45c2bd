//! The host's side of a session: what the server asks goes to the host's handler, and what it tells
//! goes there and to the connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::{
    Peer, RoleClient, Service,
    model::{
        ClientConfig, ClientResult, ErrorCode, ErrorData, GetExtensions as _, GetMeta as _,
        InputRequest, RequestId, ServerNotification, ServerRequest,
    },
    service::{NotificationContext, RequestContext},
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::SessionArgs;
use crate::{
    event::{Asked, What},
    operation::ListKind,
    spec::{Handler, Panicked},
    subscription::Notices,
    transport::Pulse,
};

/// How long a handler may go on after it was told that nobody waits for its answer.
const GRACE: Duration = Duration::from_secs(2);

/// What rmcp runs for a session.
pub(crate) struct HostSide {
    handler: Handler,
    /// What the handshake offers: the handler's, with the connection's revision.
    pub(super) offered: ClientConfig,
    pulse: Arc<Pulse>,
    notices: Arc<Notices>,
    tell: Arc<dyn Fn(What) + Send + Sync>,
    logged: AtomicU64,
}

impl Service<RoleClient> for HostSide {
    async fn handle_request(
        &self,
        request: ServerRequest,
        mut context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        let generation = self.pulse.generation;
        if let Some(what) = asked(&request) {
            (self.tell)(What::HandlerAsked { generation, what });
        }
        let cancelled = context.ct.clone();
        // rmcp cancels its own only after it has waited for the answer.
        let told = cancelled.child_token();
        context.ct = told.clone();
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
        });
        Err(ErrorData::internal_error(
            "nobody waits for this any more",
            None,
        ))
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        self.note(&notification);
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
    pub(super) fn new(args: &SessionArgs) -> Result<Self, Panicked> {
        Ok(Self {
            handler: args.settings.handler.clone(),
            offered: args.settings.handler.info()?,
            pulse: Arc::clone(&args.pulse),
            notices: Arc::clone(&args.notices),
            tell: Arc::clone(&args.tell),
            logged: AtomicU64::new(0),
        })
    }

    /// Tells the connection what the server told.
    fn note(&self, notification: &ServerNotification) {
        use ServerNotification as N;
        let generation = self.pulse.generation;
        let list = match notification {
            N::ToolListChangedNotification(_) => Some(ListKind::Tools),
            N::PromptListChangedNotification(_) => Some(ListKind::Prompts),
            N::ResourceListChangedNotification(_) => Some(ListKind::Resources),
            _ => None,
        };
        if let Some(list) = list {
            self.notices.list_changed(generation, list);
            (self.tell)(What::ListChanged { generation, list });
        }
        match notification {
            N::ResourceUpdatedNotification(_) => (self.tell)(What::ResourceUpdated { generation }),
            N::LoggingMessageNotification(_) => {
                let total = self.logged.fetch_add(1, Ordering::Relaxed) + 1;
                if total.is_power_of_two() {
                    (self.tell)(What::LogReceived { generation, total });
                }
            }
            _ => {}
        }
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
#[allow(dead_code, reason = "the rounds of `input_required` take it")]
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
