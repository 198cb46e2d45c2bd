//! The witness: the one place where a request goes from "ours" to "perhaps theirs".
//!
//! A request carries its dispatch cell in rmcp's typed extensions, which are not serialised. The
//! wrapper in here guards a transport of the user's; the ordered writer and the HTTP client ask the
//! cell themselves.

use std::{future::Future, io, sync::Arc};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::sync::mpsc;

use super::Pulse;
use crate::{
    evidence::{DispatchCell, Loss, WireFault, WireReport},
    spec::{AnyTransport, BoxError, BoxFuture, WireOrder},
};

/// The dispatch cell as it travels in a request's extensions.
#[derive(Clone)]
pub(crate) struct Witnessed(pub(crate) Arc<DispatchCell>);

/// The cell of a message, if it is a request of ours that has one.
pub(crate) fn cell_of(message: &ClientJsonRpcMessage) -> Option<Arc<DispatchCell>> {
    match message {
        JsonRpcMessage::Request(r) => r
            .request
            .extensions()
            .get::<Witnessed>()
            .map(|w| Arc::clone(&w.0)),
        _ => None,
    }
}

/// The error of a message that was recalled, or whose session is over.
pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the session is over")
}

fn recalled() -> io::Error {
    io::Error::other("the request was recalled before it was written")
}

/// A transport of the user's behind the witness.
///
/// What it does with a message cannot be seen, so a request counts as begun at the moment at which
/// the transport is given it.
pub(crate) struct WitnessTransport {
    inner: Box<dyn AnyTransport>,
    pulse: Arc<Pulse>,
    in_turn: Option<mpsc::UnboundedSender<InTurn>>,
}

struct InTurn {
    sending: BoxFuture<'static, Result<(), BoxError>>,
    cell: Option<Arc<DispatchCell>>,
}

impl WitnessTransport {
    pub(crate) fn new(inner: Box<dyn AnyTransport>, order: WireOrder, pulse: Arc<Pulse>) -> Self {
        let in_turn = (order == WireOrder::Ordered).then(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            tokio::spawn(one_after_another(receiver, Arc::clone(&pulse)));
            sender
        });
        Self {
            inner,
            pulse,
            in_turn,
        }
    }
}

async fn one_after_another(mut queue: mpsc::UnboundedReceiver<InTurn>, pulse: Arc<Pulse>) {
    while let Some(InTurn { sending, cell }) = queue.recv().await {
        tokio::select! {
            biased;
            () = pulse.ended() => return,
            sent = sending => finish(cell.as_deref(), sent.as_ref().err()),
        }
    }
}

fn finish(cell: Option<&DispatchCell>, error: Option<&BoxError>) {
    let Some(cell) = cell else { return };
    match error {
        None => cell.finish_write(),
        Some(error) => {
            let fault = Some(WireFault::ExchangeBroke(error.to_string()));
            cell.report(WireReport {
                fault,
                ..WireReport::default()
            });
        }
    }
}

impl Transport<RoleClient> for WitnessTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let cell = cell_of(&message);
        let begun = cell.as_ref().is_none_or(|cell| cell.begin_write());
        // The transport must see nothing of a recalled message, not even an unpolled future.
        let sending = begun.then(|| self.inner.send(message));
        let direct = match (sending, &self.in_turn) {
            (None, _) => Err(recalled()),
            (Some(sending), None) => Ok(Some(sending)),
            (Some(sending), Some(queue)) => queue
                .send(InTurn {
                    sending,
                    cell: cell.clone(),
                })
                .map(|()| None)
                .map_err(|_| closed()),
        };
        async move {
            let Some(sending) = direct? else {
                return Ok(());
            };
            let sent = sending.await;
            finish(cell.as_deref(), sent.as_ref().err());
            sent.map_err(io::Error::other)
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.inner.receive().await;
        match message {
            Some(_) => self.pulse.hear(),
            None => self.pulse.end(Loss::Closed {
                exit: None,
                stderr: String::new(),
            }),
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        self.inner.close().await;
        Ok(())
    }
}

impl Drop for WitnessTransport {
    fn drop(&mut self) {
        self.pulse.end(Loss::Ended("its client service stopped"));
    }
}
