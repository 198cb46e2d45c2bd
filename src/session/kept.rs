//! A transport that outlives a handshake that failed on it.

use std::future::Future;

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::sync::oneshot;

/// Lends `transport` to a client service. Dropped by it, it comes back, as long as somebody waits.
pub(super) fn lend<T>(transport: T) -> (Lent<T>, oneshot::Receiver<T>) {
    let (back, returned) = oneshot::channel();
    let hold = Some((transport, back));
    (Lent { hold }, returned)
}

/// A transport in the hands of a client service.
pub(super) struct Lent<T> {
    hold: Option<(T, oneshot::Sender<T>)>,
}

impl<T> Lent<T> {
    fn inner(&mut self) -> &mut T {
        let (transport, _) = self.hold.as_mut().expect("it is held until it is dropped");
        transport
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some((transport, back)) = self.hold.take() {
            // Nobody waits once the handshake is over.
            let _ = back.send(transport);
        }
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Lent<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        self.inner().send(message)
    }

    fn receive(&mut self) -> impl Future<Output = Option<ServerJsonRpcMessage>> + Send {
        self.inner().receive()
    }

    fn close(&mut self) -> impl Future<Output = Result<(), T::Error>> + Send {
        self.inner().close()
    }
}
