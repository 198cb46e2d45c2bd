//! The same answers over HTTP.

use std::convert::Infallible;

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
};

use super::{Answer, Script};

/// Serves in a thread of its own, until the program ends, and returns the address.
pub(crate) fn serve(answer: Answer) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let io = hyper_util::rt::TokioIo::new(stream);
                let service = hyper::service::service_fn(move |request| exchange(request, answer));
                let serving = hyper::server::conn::http1::Builder::new();
                tokio::spawn(serving.serve_connection(io, service));
            }
        });
    });
    address.to_string()
}

async fn exchange(
    request: Request<Incoming>,
    answer: Answer,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = |status| {
        let mut response = Response::new(Full::default());
        *response.status_mut() = status;
        Ok(response)
    };
    if request.method() != Method::POST {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let Ok(body) = request.into_body().collect().await else {
        return status(StatusCode::BAD_REQUEST);
    };
    let mut out = Vec::new();
    if !Script::new(answer).answer(&body.to_bytes(), &mut out) {
        return status(StatusCode::ACCEPTED);
    }
    let mut response = Response::new(Full::new(out.into()));
    let json = "application/json".parse().expect("a header");
    response.headers_mut().insert(CONTENT_TYPE, json);
    Ok(response)
}
