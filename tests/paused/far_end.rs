//! The server's end of an in-memory pipe, driven by the test line by line.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcp_supervisor::Era;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines},
    sync::mpsc,
};

use crate::support::initialize;

/// How much fits into a pipe before its writer waits.
pub(crate) const PIPE: usize = 4 * 1024;

/// The client's ends: what it reads from, and what it writes to.
type Ends = (DuplexStream, DuplexStream);
type Opening = Pin<Box<dyn Future<Output = io::Result<Ends>> + Send>>;

pub(crate) fn eras() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// Also the one that finds out by itself, which has a time limit of its own.
pub(crate) fn eras_and_automatic() -> [Era; 3] {
    [initialize(), Era::Discover, Era::Automatic]
}

/// Where the test gets the server's end of each pipe that is opened.
pub(crate) struct Near {
    sessions: mpsc::UnboundedReceiver<FarEnd>,
    opened: Arc<AtomicUsize>,
}

/// A factory of pipes, and where their other ends come out.
pub(crate) fn pipes() -> (Near, impl Fn() -> Opening + Send + Sync + 'static) {
    let (far_ends, sessions) = mpsc::unbounded_channel();
    let opened = Arc::new(AtomicUsize::new(0));
    let near = Near {
        sessions,
        opened: Arc::clone(&opened),
    };
    let open = move || {
        opened.fetch_add(1, Ordering::SeqCst);
        let (up, read) = tokio::io::duplex(PIPE);
        let (write, down) = tokio::io::duplex(PIPE);
        let lines = Some(BufReader::new(read).lines());
        // The test may have let go of the near end by now.
        let _ = far_ends.send(FarEnd { lines, write });
        let opening: Opening = Box::pin(async { Ok((down, up)) });
        opening
    };
    (near, open)
}

impl Near {
    /// The server's end of the next session.
    pub(crate) async fn session(&mut self) -> FarEnd {
        self.sessions.recv().await.expect("the factory lives")
    }

    /// How many sessions were opened so far.
    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

pub(crate) struct FarEnd {
    lines: Option<Lines<BufReader<DuplexStream>>>,
    write: DuplexStream,
}

impl FarEnd {
    async fn read(&mut self) -> Option<Value> {
        let line = self.lines.as_mut()?.next_line().await.ok()??;
        Some(serde_json::from_str(&line).expect("the client writes JSON"))
    }

    /// Reads nothing more, and goes on writing.
    pub(crate) fn stop_reading(&mut self) {
        self.lines = None;
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Value {
        self.read().await.expect("the client is there")
    }

    /// The next message that wants an answer.
    pub(crate) async fn next_request(&mut self) -> Value {
        loop {
            let message = self.next().await;
            if message.get("id").is_some() && message.get("method").is_some() {
                return message;
            }
        }
    }

    /// Answers the handshake, whichever it is. `false`: nobody began one.
    pub(crate) async fn greet(&mut self) -> bool {
        let Some(hello) = self.read().await else {
            return false;
        };
        self.answer(&hello).await;
        if hello["method"] == "initialize" {
            let initialized = self.next().await;
            assert_eq!(initialized["method"], "notifications/initialized");
        }
        true
    }

    /// Answers the next message, which must be a call of this tool.
    pub(crate) async fn answer_next(&mut self, tool: &str) {
        let mut request = self.next().await;
        if request["method"] == "notifications/initialized" {
            request = self.next().await;
        }
        assert_eq!(
            request["params"]["name"],
            json!(tool),
            "{}",
            request["method"]
        );
        self.answer(&request).await;
    }

    /// The healthy answer.
    pub(crate) async fn answer(&mut self, request: &Value) {
        let info = json!({"name": "far end", "version": "1"});
        let mut result = match request["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {}}, "serverInfo": info,
            }),
            Some("server/discover") => json!({
                "supportedVersions": ["2025-11-25", "2026-07-28"],
                "capabilities": {"tools": {}}, "serverInfo": info,
                "ttlMs": 0, "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": info},
            }),
            Some("ping") => json!({}),
            Some("tools/list") => json!({
                "tools": [{"name": "peek", "inputSchema": {"type": "object"}}],
                "ttlMs": 0, "cacheScope": "private",
            }),
            _ => json!({"content": [{"type": "text", "text": "done"}], "isError": false}),
        };
        let meta = &request["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"];
        if meta.is_string() {
            result["resultType"] = json!("complete");
        }
        self.send(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
            .await;
    }

    /// A progress notification of this request.
    pub(crate) async fn progress(&mut self, request: &Value, n: u32) {
        let token = &request["params"]["_meta"]["progressToken"];
        assert!(!token.is_null(), "the call asks for progress");
        let params = json!({"progressToken": token, "progress": n, "total": 1_000});
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
            .await;
    }

    /// Asks the host's person something.
    pub(crate) async fn ask(&mut self, id: &str) {
        let schema = json!({"type": "object", "properties": {}});
        let params = json!({"mode": "form", "message": "who?", "requestedSchema": schema});
        let method = "elicitation/create";
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .await;
    }

    /// Something that is about no call.
    pub(crate) async fn notify(&mut self) {
        let method = "notifications/tools/list_changed";
        self.send(json!({"jsonrpc": "2.0", "method": method})).await;
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        // A client that has gone hears nothing.
        let _ = self.write.write_all(line.as_bytes()).await;
    }
}
