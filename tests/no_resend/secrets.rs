//! Credentials go to the server with every request, and nowhere else.

use std::{collections::BTreeMap, error::Error, fmt::Write as _, time::Duration};

use mcp_supervisor::{
    CallError, ConnectionSpec, Era, HttpSpec, Limits, Received, Supervisor, ToolCall,
};
use serde_json::{Value, json};

use super::{
    both,
    clients::Ours,
    logs::capture,
    support::{Bed, HttpServer, bounded, initialize},
};

/// Each planted secret holds this.
const SECRET: &str = "planted-secret";

fn guarded(server: &HttpServer) -> HttpSpec {
    let url = format!(
        "http://user:{SECRET}-password@{}/mcp?key={SECRET}-query",
        server.addr
    );
    HttpSpec::new(url)
        .header("x-api-key", format!("{SECRET}-header"))
        .bearer(format!("{SECRET}-token"))
}

fn messages(bed: &Bed) -> Vec<Value> {
    let text = std::fs::read_to_string(bed.file("messages")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn credentials_go_with_every_post_get_resume_and_delete() {
    bounded(async {
        let bed = Bed::new(json!({"log_messages": true, "rules": [
            {"on": "tools/call", "do": ["ledger", {"sse": [{"id": "e1", "retry": 1, "data": ""}, "cut"]}]},
        ]}));
        let server = bed.http().await;
        let limits = Limits { max_resumes: 1, ..Limits::default() };
        let spec = ConnectionSpec::from(guarded(&server)).era(initialize()).limits(limits);
        let ours = Ours::open(spec).await;
        ours.call("charge").await.unwrap_err();
        ours.close().await;
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let messages = messages(&bed);
        for message in &messages {
            let headers = &message["http"]["headers"];
            assert_eq!(headers["authorization"], format!("Bearer {SECRET}-token"), "{message}");
            assert_eq!(headers["x-api-key"], format!("{SECRET}-header"), "{message}");
            let path = message["http"]["path"].as_str().unwrap();
            assert_eq!(path, format!("/mcp?key={SECRET}-query"));
            let what = match headers["last-event-id"].as_str() {
                Some(_) => "resume",
                None => message["http"]["method"].as_str().unwrap(),
            };
            *seen.entry(what).or_default() += 1;
        }
        let kinds: Vec<_> = seen.keys().copied().collect();
        assert_eq!(kinds, ["DELETE", "GET", "POST", "resume"]);
    })
    .await;
}

#[tokio::test]
async fn the_url_may_hold_the_credentials() {
    bounded(async {
        let bed = Bed::new(json!({"log_messages": true}));
        let server = bed.http().await;
        let spec = HttpSpec::new(format!("http://user:pass@{}/mcp", server.addr));
        let ours = Ours::open(ConnectionSpec::from(spec).era(initialize())).await;
        ours.call("charge").await.unwrap();
        ours.close().await;
        for message in messages(&bed) {
            assert_eq!(
                message["http"]["headers"]["authorization"],
                "Basic dXNlcjpwYXNz"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn headers_that_frame_the_message_cannot_be_set() {
    let supervisor = Supervisor::builder().start().await.unwrap();
    for name in [
        "Content-Length",
        "transfer-encoding",
        "Mcp-Session-Id",
        "Accept",
        "content-type",
    ] {
        let spec = HttpSpec::new("http://127.0.0.1:9/mcp").header(name, "1");
        let refused = supervisor.open("server", spec).await.map(drop).unwrap_err();
        assert!(
            refused.to_string().contains("is set by the protocol"),
            "{refused}"
        );
    }
    let _ = supervisor.shutdown(Duration::from_secs(1)).await;
}

/// All that an error says, to a person and to a debugger.
fn all_of(error: &CallError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, " {cause} {cause:?}").unwrap();
        source = cause.source();
    }
    text
}

/// What a call on a spec leaves behind: errors and events.
async fn traces_of(spec: ConnectionSpec) -> String {
    let supervisor = Supervisor::builder().start().await.unwrap();
    let mut events = supervisor.events();
    let connection = supervisor.open("server", spec.clone()).await.unwrap();
    let arguments = json!({"card": format!("{SECRET}-argument")});
    let mut text = format!("{spec:?} {connection:?}");
    for _ in 0..2 {
        if let Err(error) = connection
            .call_tool(ToolCall::new("charge", arguments.clone()))
            .await
        {
            text.push_str(&all_of(&error));
        }
    }
    let report = supervisor.shutdown(Duration::from_secs(2)).await;
    write!(text, "{report:?}").unwrap();
    while let Some(Received::Event(event)) = events.next().await {
        write!(text, " {event:?}").unwrap();
        if matches!(event.what, mcp_supervisor::What::SessionStopped { .. }) {
            break;
        }
        if matches!(event.what, mcp_supervisor::What::StartFailed { .. }) {
            break;
        }
    }
    text
}

#[tokio::test]
async fn no_secret_is_in_any_error_event_or_log() {
    let logs = capture();
    let mut traces = String::new();
    let location = json!({"Location": format!("/mcp?key={SECRET}-elsewhere")});
    for steps in [
        json!(["ledger", "answer"]),
        json!([{"http": {"status": 404}}]),
        json!([{"http": {"status": 307, "headers": location}}]),
        json!([{"http": {"status": 401, "headers": {"WWW-Authenticate": "Bearer"}}}]),
        json!([{"http": {"status": 500, "body": "oops"}}]),
        json!([{"http": {"content_type": "text/html", "body": "oops"}}]),
        json!(["reset"]),
        json!([{"short_body": {"declared": 100, "send": 10}}]),
        json!([{"sse": [{"id": "e1", "retry": 1, "data": ""}, "reset"]}]),
        json!([{"error": {"code": -32603, "message": "no"}}]),
    ] {
        for era in both() {
            let bed = Bed::new(json!({"rules": [{"on": "tools/call", "do": steps}]}));
            let server = bed.http().await;
            traces += &bounded(traces_of(ConnectionSpec::from(guarded(&server)).era(era))).await;
        }
    }
    for steps in [
        json!([{"http": {"status": 401}}]),
        json!(["reset"]),
        json!([{"http": {}}]),
    ] {
        let bed = Bed::new(json!({"rules": [{"on": "POST", "do": steps}]}));
        let server = bed.http().await;
        let spec = ConnectionSpec::from(guarded(&server)).era(Era::Automatic);
        traces += &bounded(traces_of(spec)).await;
    }
    let mut nobody = Bed::new(json!({})).http().await;
    nobody.kill();
    traces += &bounded(traces_of(ConnectionSpec::from(guarded(&nobody)))).await;
    for steps in [
        json!(["ledger", "answer"]),
        json!([{"exit": 1}]),
        json!([{"raw": "{oops\n"}, "close_stdout"]),
    ] {
        for era in both() {
            let bed = Bed::new(json!({"rules": [{"on": "tools/call", "do": steps}]}));
            let stdio = bed.stdio().env("TOKEN", format!("{SECRET}-variable"));
            let stdio = stdio.arg(format!("--key={SECRET}-parameter"));
            traces += &bounded(traces_of(ConnectionSpec::from(stdio).era(era))).await;
        }
    }
    let logs = logs.text();
    for seen in [
        "session started",
        "DEBUG hyper_util",
        "session starting",
        "rmcp::",
    ] {
        assert!(logs.contains(seen), "{seen} is captured");
    }
    for (what, text) in [("the errors and events", &traces), ("the logs", &logs)] {
        let found: Vec<_> = text
            .match_indices(SECRET)
            .map(|(at, _)| &text[at..])
            .collect();
        let found: Vec<_> = found
            .iter()
            .map(|t| t.chars().take(60).collect::<String>())
            .collect();
        assert!(found.is_empty(), "{what} hold {found:#?}");
    }
}
