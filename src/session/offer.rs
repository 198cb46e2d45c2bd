//! What a handshake offered, which decides what the server may answer; what the server says, in its
//! order; and what of it rmcp is not shown.
//!
//! rmcp tells which revision was negotiated and not by which request. A server that answers an
//! `initialize` with a revision that has none would be taken for one of the newer era.

use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientRequest, GetMeta as _, JsonRpcMessage, ProtocolVersion,
        RequestId, ServerJsonRpcMessage, ServerNotification,
    },
    transport::Transport,
};

use super::{
    host_side::{Ear, HostSide},
    withheld::{Withheld, withhold_notification, withhold_request},
};
use crate::{spec::Era, transport::witness::cell_of};

/// A transport that notes whether an `initialize` went through it, hears what the server says, and
/// withholds it from rmcp.
pub(super) struct Offering<T> {
    inner: T,
    initialize: Arc<AtomicBool>,
    ear: Ear,
    withheld: Arc<Withheld>,
    /// The host has a handler that hears of notifications.
    handled: bool,
    /// The server has said who it is.
    greeted: bool,
    /// Subscriptions that the handler has opened by itself, with rmcp's handle of the session. What
    /// comes on them rmcp gives to the handler directly, and so it must be whole.
    of_the_handler: HashSet<RequestId>,
}

/// Whether a notification is for the handler alone, once the ear has heard it.
fn is_for_a_handler(notification: &ServerNotification) -> bool {
    matches!(
        notification,
        ServerNotification::ProgressNotification(_)
            | ServerNotification::LoggingMessageNotification(_)
    )
}

/// What went through an [`Offering`].
pub(super) struct Offer(Arc<AtomicBool>);

impl<T> Offering<T> {
    pub(super) fn new(inner: T, host: &HostSide) -> (Self, Offer) {
        let initialize = Arc::new(AtomicBool::new(false));
        let offer = Offer(Arc::clone(&initialize));
        let offering = Self {
            inner,
            initialize,
            ear: host.ear(),
            withheld: Arc::clone(&host.withheld),
            handled: host.handled,
            greeted: false,
            of_the_handler: HashSet::new(),
        };
        (offering, offer)
    }

    /// Leaves rmcp of a message what it acts upon. `None`: there is nothing it could do with it.
    ///
    /// Of progress and of what a server logs rmcp only tells the handler, each in a task of its own and
    /// after a line in its own log at INFO. Where there is no handler, neither is paid for.
    fn for_rmcp(&mut self, mut message: ServerJsonRpcMessage) -> Option<ServerJsonRpcMessage> {
        match &mut message {
            JsonRpcMessage::Notification(notification)
                if !self.handled && is_for_a_handler(&notification.notification) =>
            {
                return None;
            }
            JsonRpcMessage::Notification(notification) => {
                let notification = &mut notification.notification;
                if !self.goes_to_the_handler_directly(notification) {
                    withhold_notification(notification);
                }
            }
            JsonRpcMessage::Request(request) => withhold_request(&mut request.request),
            JsonRpcMessage::Response(response) if !self.greeted => {
                self.greeted = self.withheld.withhold_greeting(&mut response.result);
            }
            JsonRpcMessage::Error(error) if self.greeted && error.id.is_none() => return None,
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        Some(message)
    }

    fn goes_to_the_handler_directly(&self, notification: &ServerNotification) -> bool {
        !self.of_the_handler.is_empty()
            && notification
                .get_meta()
                .subscription_id()
                .is_some_and(|id| self.of_the_handler.contains(&id))
    }
}

impl Offer {
    /// The revisions that may be the answer.
    pub(super) fn allowed(&self, era: &Era) -> Vec<ProtocolVersion> {
        let initialized = self.0.load(Ordering::Acquire);
        allowed(era)
            .into_iter()
            .filter(|version| version.has_initialize() == initialized)
            .collect()
    }
}

/// The revisions that an era allows.
fn allowed(era: &Era) -> Vec<ProtocolVersion> {
    match era {
        Era::Automatic => ProtocolVersion::KNOWN_VERSIONS.to_vec(),
        Era::Discover => vec![ProtocolVersion::V_2026_07_28],
        Era::Initialize(revision) => vec![version(revision.as_str())],
    }
}

/// A revision by its name on the wire.
pub(super) fn version(text: &str) -> ProtocolVersion {
    ProtocolVersion::KNOWN_VERSIONS
        .iter()
        .find(|known| known.as_str() == text)
        .cloned()
        .unwrap_or_default()
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Offering<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        if let JsonRpcMessage::Request(request) = &message {
            match request.request {
                ClientRequest::InitializeRequest(_) => {
                    self.initialize.store(true, Ordering::Release);
                }
                ClientRequest::SubscriptionsListenRequest(_) if cell_of(&message).is_none() => {
                    self.of_the_handler.insert(request.id.clone());
                }
                _ => {}
            }
        }
        self.inner.send(self.withheld.whole_answer(message))
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        self.withheld.forget_unwanted();
        loop {
            let message = self.inner.receive().await?;
            self.ear.hear(&message);
            if let Some(message) = self.for_rmcp(message) {
                return Some(message);
            }
        }
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.inner.close()
    }
}
