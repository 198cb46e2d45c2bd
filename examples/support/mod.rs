//! What the examples share: the smallest MCP server there can be, a ledger in which effects are
//! counted, and a deadline.

#![allow(dead_code, reason = "no example needs all of it")]

use std::{
    error::Error,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::PathBuf,
    time::Duration,
};

use serde_json::{Value, json};

/// How a story or a server ends: well, or with the reason why not.
pub(crate) type Ending<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// A server's answer to one JSON-RPC message, if it is one that has an answer. Each call of a tool
/// is given to `run`, by the tool's name and arguments.
pub(crate) fn answer(
    message: &Value,
    tools: &[&str],
    mut run: impl FnMut(&str, &Value) -> String,
) -> Option<Value> {
    let id = message.get("id")?;
    let params = &message["params"];
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": params["protocolVersion"],
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "example", "version": "1.0.0" }
        }),
        "tools/list" => {
            let tool = |name| json!({ "name": name, "inputSchema": { "type": "object" } });
            json!({ "tools": tools.iter().map(tool).collect::<Vec<_>>() })
        }
        "tools/call" => {
            let text = run(params["name"].as_str()?, &params["arguments"]);
            json!({ "content": [{ "type": "text", "text": text }] })
        }
        _ => {
            let error = json!({ "code": -32601, "message": "no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// Serves on stdin and stdout until stdin ends: one message a line, each answered with [`answer`].
pub(crate) fn serve(tools: &[&str], mut run: impl FnMut(&str, &Value) -> String) -> Ending {
    for line in io::stdin().lines() {
        let message = serde_json::from_str(&line?)?;
        if let Some(answer) = answer(&message, tools, &mut run) {
            println!("{answer}");
        }
    }
    Ok(())
}

/// A file that outlives the servers that write to it: one line for each thing that happened.
pub(crate) struct Ledger(pub(crate) PathBuf);

impl Ledger {
    /// Writes a line down, before anything else happens.
    pub(crate) fn add(&self, line: &str) {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.0)
            .expect("the ledger can be opened");
        writeln!(file, "{line}").expect("the ledger can be written");
    }

    /// How many lines begin like this.
    pub(crate) fn count(&self, beginning: &str) -> usize {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter(|l| l.starts_with(beginning)).count()
    }
}

/// Says that something was seen to be so, or ends the example because it was not.
pub(crate) fn check(holds: bool, claim: &str) -> Ending {
    if !holds {
        return Err(format!("NOT TRUE: {claim}").into());
    }
    println!("   checked: {claim}");
    Ok(())
}

/// Runs a story to its end, which must come before long.
pub(crate) async fn story(told: impl Future<Output = Ending>) -> Ending {
    const LIMIT: Duration = Duration::from_secs(60);
    match tokio::time::timeout(LIMIT, told).await {
        Ok(ended) => ended,
        Err(_) => Err(format!("the story did not end within {LIMIT:?}").into()),
    }
}
