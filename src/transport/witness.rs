//! The witness: the one place where a request goes from "ours" to "perhaps theirs".
//!
//! A request carries its dispatch cell in rmcp's typed extensions, which are not serialised. The
//! wrapper in here guards a transport of the user's; the ordered writer and the HTTP client ask the
//! cell themselves.

use std::{future::Future, io, sync::Arc};

use rmcp::{
    RoleClient,
    model::{
        ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
    },
    transport::Transport,
};
use tokio::sync::{mpsc, oneshot};

use super::Pulse;
use crate::{
    evidence::{DispatchCell, Loss},
    spec::{AnyTransport, BoxError, BoxFuture, WireOrder},
};

/// The dispatch cell as it travels in a request's extensions.
#[derive(Clone)]
pub(crate) struct Witnessed(pub(crate) Arc<DispatchCell>);

/// Rides in a request whose answer is wanted also after it was cancelled, where a cancel does not end
/// the exchange by the protocol's own definition.
#[derive(Clone, Copy)]
pub(crate) struct Outlives;

/// Rides in a request that is not to be written. rmcp takes a request of the server's to belong to one
/// of its own that waits, and of those on the lane it knows nothing: this one waits for them.
#[derive(Clone, Copy)]
pub(crate) struct Anchor;

/// Rides in a request of the server's: it came on the stream of the answer to this call on the lane.
#[derive(Clone)]
pub(crate) struct OnStreamOf(pub(crate) RequestId);

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
    /// Whoever waits to hear how it went; rmcp, which ends the call of a message that failed.
    sent: oneshot::Sender<Result<(), BoxError>>,
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
    while let Some(InTurn { sending, sent }) = queue.recv().await {
        tokio::select! {
            biased;
            () = pulse.ended() => return,
            // Nobody listens any more when rmcp has stopped, and then it does not matter.
            how = sending => drop(sent.send(how)),
        }
    }
}

/// Queues a message behind those before it, and returns the wait for how it went.
fn in_turn(
    queue: &mpsc::UnboundedSender<InTurn>,
    sending: BoxFuture<'static, Result<(), BoxError>>,
) -> io::Result<BoxFuture<'static, Result<(), BoxError>>> {
    let (sent, how) = oneshot::channel();
    queue.send(InTurn { sending, sent }).map_err(|_| closed())?;
    Ok(Box::pin(async move {
        how.await.unwrap_or_else(|_| Err(closed().into()))
    }))
}

/// Sends, and tells the cell when it is done.
fn noted(
    sending: BoxFuture<'static, Result<(), BoxError>>,
    cell: Option<Arc<DispatchCell>>,
) -> BoxFuture<'static, Result<(), BoxError>> {
    Box::pin(async move {
        sending.await?;
        if let Some(cell) = cell {
            cell.finish_write();
        }
        Ok(())
    })
}

/// A message that a user's transport did not send. What the transport says is the `source` alone:
/// such texts hold URLs, and URLs hold credentials.
#[derive(Debug, thiserror::Error)]
#[error("the transport failed to send it")]
pub(crate) struct NotSentByTransport(#[source] BoxError);

impl Transport<RoleClient> for WitnessTransport {
    type Error = NotSentByTransport;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let cell = cell_of(&message);
        let begun = cell.as_ref().is_none_or(|cell| cell.begin_write());
        // The transport must see nothing of a recalled message, not even an unpolled future.
        let sending = begun.then(|| self.inner.send(message));
        let sending = match (sending, &self.in_turn) {
            (None, _) => Err(recalled()),
            (Some(sending), None) => Ok(noted(sending, cell)),
            (Some(sending), Some(queue)) => in_turn(queue, noted(sending, cell)),
        };
        async move {
            let how = match sending {
                Ok(sending) => sending.await,
                Err(error) => Err(error.into()),
            };
            how.map_err(NotSentByTransport)
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let Some(message) = self.inner.receive().await else {
                self.pulse.end(Loss::Closed {
                    exit: None,
                    stderr: String::new(),
                });
                return None;
            };
            self.pulse.hear();
            let calls = &self.pulse.calls;
            let id = match &message {
                _ if !calls.expects_any() => None,
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                _ => None,
            };
            match id {
                Some(id) => {
                    if let Some(message) = calls.hear_late(&id, message) {
                        return Some(message);
                    }
                }
                None => return Some(message),
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await;
        Ok(())
    }
}

impl Drop for WitnessTransport {
    fn drop(&mut self) {
        self.pulse.end(Loss::Ended("its client service stopped"));
    }
}
