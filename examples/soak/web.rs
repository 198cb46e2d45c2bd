//! The same server over HTTP: `/NAME` is a shop with a ledger of its own.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rand::{SeedableRng as _, rngs::StdRng};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::server::{Mood, effect, error, plain_answer};

pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

struct Shops {
    directory: PathBuf,
    dice: Mutex<StdRng>,
}

impl Web {
    pub(crate) async fn start(directory: &Path, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shops = Arc::new(Shops {
            directory: directory.to_owned(),
            dice: Mutex::new(StdRng::seed_from_u64(seed)),
        });
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    Some(_) = connections.join_next() => continue,
                    () = stopped.cancelled() => return,
                };
                let Ok((stream, _)) = accepted else { continue };
                let shops = Arc::clone(&shops);
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&shops), request));
                    // A service that fails closes the connection, which is what some moods want.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(Self {
            address,
            stop,
            task,
        })
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

fn with(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

async fn answer(
    shops: Arc<Shops>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, io::Error> {
    if request.method() != Method::POST {
        return Ok(with(StatusCode::METHOD_NOT_ALLOWED, ""));
    }
    let ledger = shops.directory.join(&request.uri().path()[1..]);
    let body = request.into_body().collect().await;
    let body = body.map_err(io::Error::other)?.to_bytes();
    let message: Value = serde_json::from_slice(&body)?;
    let Some(answer) = plain_answer(&message) else {
        return Ok(with(StatusCode::ACCEPTED, ""));
    };
    if message["method"] != "tools/call" {
        return Ok(with(StatusCode::OK, answer.to_string()));
    }
    let mood = {
        let mut dice = shops.dice.lock().unwrap_or_else(PoisonError::into_inner);
        Mood::next(&mut dice)
    };
    if !matches!(mood, Mood::DieBefore | Mood::Refuse) {
        effect(&ledger, &message["params"]["arguments"]);
    }
    match mood {
        Mood::Answer | Mood::Flood => {}
        Mood::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
        Mood::Error => return Ok(with(StatusCode::OK, error(&message, -32000).to_string())),
        Mood::Refuse => return Ok(with(StatusCode::OK, error(&message, -32602).to_string())),
        Mood::DieAfter | Mood::DieBefore => {
            return Err(io::Error::other("the shop closes the door"));
        }
        Mood::Cut => {
            let whole = answer.to_string();
            return Ok(with(StatusCode::OK, whole[..whole.len() / 2].to_owned()));
        }
        Mood::Hang => {
            let never: Infallible = std::future::pending().await;
            match never {}
        }
        Mood::Garbage => return Ok(with(StatusCode::BAD_GATEWAY, "<html>oops</html>")),
    }
    Ok(with(StatusCode::OK, answer.to_string()))
}
