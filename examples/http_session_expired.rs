//! A session that expires under a call, over HTTP.
//!
//! The server books a room, forgets the session, and answers 404. A client that starts a new session
//! and posts the call again books a second room. Here the caller is told that nobody knows, and the
//! new session is for the next call.
//!
//! ```text
//! cargo run --example http_session_expired
//! ```
//!
//! The server runs in the same process, on a port of 127.0.0.1 that the system picks.

mod support;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use mcp_supervisor::{HttpSpec, Outcome, Supervisor, ToolCall};
use serde_json::{Value, json};
use support::{Ending, answer, check, story};
use tokio::net::TcpListener;

const SESSION: &str = "mcp-session-id";

/// What the hotel's server remembers.
#[derive(Default)]
struct Hotel {
    /// The session that it knows, if it knows one.
    session: Option<String>,
    sessions: usize,
    /// The method of every request, in the order of arrival.
    log: Vec<String>,
    rooms_booked: usize,
}

impl Hotel {
    fn count(&self, method: &str) -> usize {
        self.log.iter().filter(|m| *m == method).count()
    }

    fn post(&mut self, session: Option<&str>, message: &Value) -> Reply {
        let method = message["method"].as_str().unwrap_or_default();
        self.log.push(method.to_owned());
        if method == "initialize" {
            self.sessions += 1;
            self.session = Some(format!("session-{}", self.sessions));
        } else if session.is_some() && session != self.session.as_deref() {
            return Reply::NotFound;
        }
        let answer = answer(message, &["book", "rooms"], |tool, _| {
            if tool == "book" {
                self.rooms_booked += 1;
                // Booking took so long that the session is forgotten.
                self.session = None;
            }
            format!("rooms booked so far: {}", self.rooms_booked)
        });
        match answer {
            Some(_) if self.session.is_none() && session.is_some() => Reply::NotFound,
            Some(answer) => Reply::Json(answer),
            None => Reply::Accepted,
        }
    }
}

enum Reply {
    Json(Value),
    Accepted,
    NotFound,
}

type Shared = Arc<Mutex<Hotel>>;

fn lock(hotel: &Shared) -> MutexGuard<'_, Hotel> {
    hotel.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(hotel: Shared, request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    let mut response = Response::new(Full::default());
    if request.method() != Method::POST {
        // No stream of its own, and nothing to say when a session is deleted.
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return Ok(response);
    }
    let session = request.headers().get(SESSION).cloned();
    let session = session.as_ref().and_then(|id| id.to_str().ok());
    let body = request.into_body().collect().await?.to_bytes();
    let message = serde_json::from_slice(&body).unwrap_or_default();
    let mut hotel = lock(&hotel);
    match hotel.post(session, &message) {
        Reply::NotFound => *response.status_mut() = StatusCode::NOT_FOUND,
        Reply::Accepted => *response.status_mut() = StatusCode::ACCEPTED,
        Reply::Json(answer) => {
            let headers = response.headers_mut();
            headers.insert(
                CONTENT_TYPE,
                "application/json".parse().expect("a header value"),
            );
            if let Some(id) = &hotel.session {
                headers.insert(SESSION, id.parse().expect("a header value"));
            }
            *response.body_mut() = Full::new(answer.to_string().into());
        }
    }
    Ok(response)
}

/// Serves on a port of its own; returns its URL.
async fn start(hotel: &Shared) -> Ending<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/mcp", listener.local_addr()?);
    let hotel = Arc::clone(hotel);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let hotel = Arc::clone(&hotel);
            let service = service_fn(move |request| serve(Arc::clone(&hotel), request));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(url)
}

#[tokio::main]
async fn main() -> Ending {
    story(async {
        let hotel = Shared::default();
        let supervisor = Supervisor::builder().start().await?;
        let connection = supervisor
            .open("hotel", HttpSpec::new(start(&hotel).await?))
            .await?;

        println!("We book a room. The server books it, forgets our session, and answers 404.");
        let call = ToolCall::new("book", json!({ "nights": 2 }));
        let error = connection
            .call_tool(call)
            .await
            .expect_err("the answer is a 404");
        println!("   {error}");
        check(
            error.outcome() == Outcome::Unknown,
            "the outcome is unknown",
        )?;
        check(
            error.http_status() == Some(404),
            "the error keeps the status",
        )?;
        check(lock(&hotel).rooms_booked == 1, "one room is booked")?;
        check(
            lock(&hotel).count("tools/call") == 1,
            "the call was posted once",
        )?;
        check(
            lock(&hotel).sessions == 1,
            "and no session was started for it",
        )?;

        println!("The next call is another matter. It gets a session of its own.");
        let answer = connection
            .call_tool(ToolCall::new("rooms", json!({})))
            .await?;
        println!("   {} says: {}", answer.generation(), answer.text());
        check(
            answer.generation().number() == 2,
            "it ran on the second session",
        )?;
        check(
            lock(&hotel).sessions == 2,
            "which is the second one that the server gave",
        )?;
        check(
            lock(&hotel).count("tools/call") == 2,
            "each call was posted once",
        )?;
        check(lock(&hotel).rooms_booked == 1, "there is still one room")?;

        let _ = supervisor.shutdown(Duration::from_secs(2)).await;
        Ok(())
    })
    .await
}
