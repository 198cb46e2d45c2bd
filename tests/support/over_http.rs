//! A server on rmcp, over streamable HTTP.

use std::{convert::Infallible, sync::Arc};

use rmcp::{
    ServerHandler,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use tokio::net::TcpListener;

/// Gives each session on this port a clone of the server, for as long as the process lives.
pub(crate) async fn over_http<S>(server: S, listener: TcpListener)
where
    S: ServerHandler + Clone + Send + Sync + 'static,
{
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(LocalSessionManager::default()),
        StreamableHttpServerConfig::default(),
    );
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            continue;
        };
        let service = service.clone();
        tokio::spawn(async move {
            let answer = hyper::service::service_fn(move |request| {
                let service = service.clone();
                async move { Ok::<_, Infallible>(service.handle(request).await) }
            });
            let socket = hyper_util::rt::TokioIo::new(socket);
            // A client that has gone needs no answer.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(socket, answer)
                .await;
        });
    }
}
