//! What a handshake offered, which decides what the server may answer.
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

use crate::spec::Era;

/// A transport that notes whether an `initialize` went through it.
pub(super) struct Offering<T> {
    inner: T,
    initialize: Arc<AtomicBool>,
}

/// What went through an [`Offering`].
pub(super) struct Offer(Arc<AtomicBool>);

impl<T> Offering<T> {
    pub(super) fn new(inner: T) -> (Self, Offer) {
        let initialize = Arc::new(AtomicBool::new(false));
        let offer = Offer(Arc::clone(&initialize));
        (Self { inner, initialize }, offer)
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

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.inner.receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.inner.close()
    }
}
