//! What a handshake offered, which decides what the server may answer; and what the server says
//! about calls, in its order.
//!
//! rmcp tells which revision was negotiated and not by which request. A server that answers an
//! `initialize` with a revision that has none would be taken for one of the newer era.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ProtocolVersion, ServerJsonRpcMessage,
    },
    transport::Transport,
};

use super::host_side::Ear;
use crate::spec::Era;

/// A transport that notes whether an `initialize` went through it, and hears what the server says.
pub(super) struct Offering<T> {
    inner: T,
    initialize: Arc<AtomicBool>,
    ear: Ear,
}

/// What went through an [`Offering`].
pub(super) struct Offer(Arc<AtomicBool>);

impl<T> Offering<T> {
    pub(super) fn new(inner: T, ear: Ear) -> (Self, Offer) {
        let initialize = Arc::new(AtomicBool::new(false));
        let offer = Offer(Arc::clone(&initialize));
        let offering = Self {
            inner,
            initialize,
            ear,
        };
        (offering, offer)
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
        if let JsonRpcMessage::Request(request) = &message
            && matches!(request.request, ClientRequest::InitializeRequest(_))
        {
            self.initialize.store(true, Ordering::Release);
        }
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.inner.receive().await?;
        self.ear.hear(&message);
        Some(message)
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.inner.close()
    }
}
