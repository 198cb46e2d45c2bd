//! The host's handler for what a server asks and tells, with its type erased.
//!
//! A connection has one for all its sessions. Whatever it does, what it is called from goes on: a
//! panic in it is an error of that one request.

use std::{
    fmt,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
};

use rmcp::{
    ClientHandler, RoleClient, Service,
    model::{
        ClientCapabilities, ClientConfig, ClientResult, ErrorData, Implementation,
        ServerNotification, ServerRequest,
    },
    service::{NotificationContext, RequestContext},
};

use super::BoxFuture;

/// What a server may ask of a host, whatever the type that answers.
trait Erased: Send + Sync {
    fn request(
        self: Arc<Self>,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> BoxFuture<'static, Result<ClientResult, ErrorData>>;

    fn notification(
        self: Arc<Self>,
        notification: ServerNotification,
        context: NotificationContext<RoleClient>,
    ) -> BoxFuture<'static, Result<(), ErrorData>>;

    fn info(&self) -> ClientConfig;
}

struct Of<H>(H);

impl<H: ClientHandler> Erased for Of<H> {
    fn request(
        self: Arc<Self>,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> BoxFuture<'static, Result<ClientResult, ErrorData>> {
        Box::pin(async move { self.0.handle_request(request, context).await })
    }

    fn notification(
        self: Arc<Self>,
        notification: ServerNotification,
        context: NotificationContext<RoleClient>,
    ) -> BoxFuture<'static, Result<(), ErrorData>> {
        Box::pin(async move { self.0.handle_notification(notification, context).await })
    }

    fn info(&self) -> ClientConfig {
        self.0.get_info()
    }
}

/// A host's handler. It panicked, or what it gives is given.
#[derive(Clone)]
pub(crate) struct Handler(Arc<dyn Erased>);

/// The handler panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

impl Handler {
    pub(crate) fn new(handler: impl ClientHandler) -> Self {
        Self(Arc::new(Of(handler)))
    }

    /// What it offers to a server: its capabilities, and who the client is.
    pub(crate) fn info(&self) -> Result<ClientConfig, Panicked> {
        catch_unwind(AssertUnwindSafe(|| self.0.info())).map_err(|_| Panicked)
    }

    /// Lets it answer a request. The future holds what it needs, so it can outlive its session.
    pub(crate) fn answer(
        &self,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> BoxFuture<'static, Result<ClientResult, ErrorData>> {
        let handler = Arc::clone(&self.0);
        Box::pin(async move {
            let answering = guarded(handler.request(request, context));
            answering.await.unwrap_or_else(|Panicked| {
                let message = "the client's handler panicked";
                Err(ErrorData::internal_error(message, None))
            })
        })
    }

    /// Lets it hear a notification.
    pub(crate) fn hear(
        &self,
        notification: ServerNotification,
        context: NotificationContext<RoleClient>,
    ) -> BoxFuture<'static, ()> {
        let handler = Arc::clone(&self.0);
        Box::pin(async move {
            // A notification has no answer, so nobody is told.
            let _ = guarded(handler.notification(notification, context)).await;
        })
    }
}

impl Default for Handler {
    /// Offers nothing: pings are answered, and all else is refused or empty.
    fn default() -> Self {
        let identity = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        Self::new(ClientConfig::new(ClientCapabilities::default(), identity))
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

/// Runs a future of the host's; a panic in it is its result. What it borrowed is not used again.
async fn guarded<T>(mut future: BoxFuture<'static, T>) -> Result<T, Panicked> {
    poll_fn(
        move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(Err(Panicked)),
        },
    )
    .await
}
