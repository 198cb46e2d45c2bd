//! Transports that the user builds: how they are opened, with their types erased.
//!
//! rmcp's `Transport` cannot be a trait object, so it is wrapped in one that can. Opening is a
//! function of the user's, called once for each session.

use std::{error::Error, future::Future, pin::Pin, sync::Arc};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{IntoTransport, Transport},
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{ConnectionSpec, Settings, TransportSpec, WireOrder};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
pub(crate) type BoxError = Box<dyn Error + Send + Sync>;
pub(crate) type ByteStream = (
    Box<dyn AsyncRead + Send + Unpin>,
    Box<dyn AsyncWrite + Send + Unpin>,
);

/// Opens one transport of the user's.
pub(crate) trait OpenTransport: Send + Sync {
    fn open(&self) -> BoxFuture<'static, Result<Box<dyn AnyTransport>, BoxError>>;
}

/// Opens one byte stream of the user's.
pub(crate) trait OpenStream: Send + Sync {
    fn open(&self) -> BoxFuture<'static, Result<ByteStream, BoxError>>;
}

/// rmcp's `Transport<RoleClient>` as a trait object.
pub(crate) trait AnyTransport: Send {
    fn send(&mut self, message: ClientJsonRpcMessage) -> BoxFuture<'static, Result<(), BoxError>>;
    fn receive(&mut self) -> BoxFuture<'_, Option<ServerJsonRpcMessage>>;
    fn close(&mut self) -> BoxFuture<'_, ()>;
}

impl<T: Transport<RoleClient>> AnyTransport for T {
    fn send(&mut self, message: ClientJsonRpcMessage) -> BoxFuture<'static, Result<(), BoxError>> {
        let sending = Transport::send(self, message);
        Box::pin(async move { sending.await.map_err(BoxError::from) })
    }
    fn receive(&mut self) -> BoxFuture<'_, Option<ServerJsonRpcMessage>> {
        Box::pin(Transport::receive(self))
    }
    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The session is over whatever `close` says.
            let _ = Transport::close(self).await;
        })
    }
}

struct FromFn<F>(F);

impl<F, Fut, T, E, Error_, A> OpenTransport for FromFn<(F, std::marker::PhantomData<fn(Error_, A)>)>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = Result<T, E>> + Send + 'static,
    T: IntoTransport<RoleClient, Error_, A>,
    E: Into<BoxError>,
    Error_: Error + Send + Sync + 'static,
    A: 'static,
{
    fn open(&self) -> BoxFuture<'static, Result<Box<dyn AnyTransport>, BoxError>> {
        let opening = (self.0.0)();
        Box::pin(async move {
            let transport = opening.await.map_err(Into::into)?.into_transport();
            Ok(Box::new(transport) as Box<dyn AnyTransport>)
        })
    }
}

impl<F, Fut, R, W, E> OpenStream for FromFn<F>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = Result<(R, W), E>> + Send + 'static,
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
    E: Into<BoxError>,
{
    fn open(&self) -> BoxFuture<'static, Result<ByteStream, BoxError>> {
        let opening = (self.0)();
        Box::pin(async move {
            let (read, write) = opening.await.map_err(Into::into)?;
            Ok((Box::new(read) as _, Box::new(write) as _))
        })
    }
}

impl ConnectionSpec {
    /// A connection over any rmcp transport: `open` is called once for each session.
    ///
    /// The connection is framework-owned: the runtime closes what `open` returned and calls it
    /// again. A request counts as perhaps sent from the moment at which the transport is given it,
    /// because what the transport does with it cannot be seen.
    pub fn factory<F, Fut, T, E, TransportError, A>(order: WireOrder, open: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: IntoTransport<RoleClient, TransportError, A>,
        E: Into<Box<dyn Error + Send + Sync>> + 'static,
        TransportError: Error + Send + Sync + 'static,
        A: 'static,
    {
        let open = Arc::new(FromFn((open, std::marker::PhantomData)));
        Self {
            transport: TransportSpec::Custom(open, order),
            settings: Settings::default(),
        }
    }

    /// A connection over any byte stream that carries newline-delimited JSON-RPC, such as a Unix
    /// socket or an in-memory pipe: `open` is called once for each session and returns the side to
    /// read from and the side to write to.
    ///
    /// Requests go through the same ordered writer as those to a child process: wire order is
    /// mailbox order, and what still waits in it can be recalled.
    pub fn byte_stream<F, Fut, R, W, E>(open: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(R, W), E>> + Send + 'static,
        R: AsyncRead + Send + Unpin + 'static,
        W: AsyncWrite + Send + Unpin + 'static,
        E: Into<Box<dyn Error + Send + Sync>> + 'static,
    {
        let open = Arc::new(FromFn(open));
        Self {
            transport: TransportSpec::Stream(open),
            settings: Settings::default(),
        }
    }
}
