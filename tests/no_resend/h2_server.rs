//! An MCP server over HTTP/2 that runs a tool and then refuses the request that asked for it.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use h2::{Reason, RecvStream, server::SendResponse};
use http::{Request, Response};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

/// How `charge` is refused after it ran. Any other tool is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// RST_STREAM with REFUSED_STREAM.
    Stream,
    /// GOAWAY without an error, which says that no stream was processed.
    GoAway,
}

/// A GOAWAY frame with the last stream 0 and NO_ERROR.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

pub(crate) struct H2Server {
    pub(crate) url: String,
    charged: Arc<AtomicUsize>,
}

impl H2Server {
    pub(crate) async fn start(refusal: Refusal) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let charged = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&charged);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, refusal, Arc::clone(&counter)));
            }
        });
        Self { url, charged }
    }

    /// How often the tool ran.
    pub(crate) fn charged(&self) -> usize {
        self.charged.load(Ordering::SeqCst)
    }
}

async fn connection(stream: TcpStream, refusal: Refusal, charged: Arc<AtomicUsize>) {
    // A second handle of the socket, for the one frame that `h2` does not write.
    let stream = stream.into_std().unwrap();
    let raw = Arc::new(stream.try_clone().unwrap());
    let stream = TcpStream::from_std(stream).unwrap();
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (raw, charged) = (Arc::clone(&raw), Arc::clone(&charged));
        tokio::spawn(async move {
            // A client that has gone needs no answer.
            let _ = exchange(request, respond, refusal, &raw, &charged).await;
        });
    }
}

async fn exchange(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    refusal: Refusal,
    raw: &std::net::TcpStream,
    charged: &AtomicUsize,
) -> Result<(), h2::Error> {
    if request.method() != "POST" {
        let answer = Response::builder().status(405).body(()).unwrap();
        return respond.send_response(answer, true).map(drop);
    }
    let mut body = Vec::new();
    let mut chunks = request.into_body();
    while let Some(chunk) = chunks.data().await {
        let chunk = chunk?;
        chunks.flow_control().release_capacity(chunk.len())?;
        body.extend_from_slice(&chunk);
    }
    let message: Value = serde_json::from_slice(&body).unwrap();
    if message["params"]["name"] == "charge" {
        charged.fetch_add(1, Ordering::SeqCst);
        match refusal {
            Refusal::Stream => respond.send_reset(Reason::REFUSED_STREAM),
            Refusal::GoAway => {
                // Nothing else is being written: the client waits for this answer.
                (&*raw).write_all(&GOAWAY).unwrap();
                std::future::pending::<()>().await;
            }
        }
        return Ok(());
    }
    let Some(result) = result_of(&message) else {
        let answer = Response::builder().status(202).body(()).unwrap();
        return respond.send_response(answer, true).map(drop);
    };
    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    let head = Response::builder()
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let mut stream = respond.send_response(head, false)?;
    stream.send_data(Bytes::from(answer.to_string()), true)
}

fn result_of(message: &Value) -> Option<Value> {
    let about = json!({"name": "h2", "version": "0"});
    Some(match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": about,
        }),
        "server/discover" => json!({
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            "serverInfo": about,
            "ttlMs": 0,
            "cacheScope": "private",
        }),
        "tools/call" => json!({"resultType": "complete", "content": [], "isError": false}),
        _ => return None,
    })
}
