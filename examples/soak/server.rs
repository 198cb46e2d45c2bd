//! A server that misbehaves by a schedule, over any byte stream.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

/// What a server does with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mood {
    Answer,
    /// Takes a third of a second.
    Slow,
    /// Says that it failed, after it did it.
    Error,
    /// Refuses before it does anything.
    Refuse,
    /// Does it, and is gone.
    DieAfter,
    /// Is gone.
    DieBefore,
    /// Does it, and says half of the answer.
    Cut,
    /// Does it, and says nothing.
    Hang,
    /// Sends what is no message, and then the answer.
    Garbage,
    /// Sends a thousand messages for the log and one very long line, and then the answer.
    Flood,
}

impl Mood {
    /// Three of four calls go well.
    pub(crate) fn next(dice: &mut StdRng) -> Self {
        match dice.random_range(0..40) {
            0 | 1 => Self::DieAfter,
            2 => Self::DieBefore,
            3 => Self::Cut,
            4 => Self::Hang,
            5 => Self::Garbage,
            6 => Self::Flood,
            7 | 8 => Self::Slow,
            9 => Self::Error,
            10 => Self::Refuse,
            _ => Self::Answer,
        }
    }
}

/// Does what an order asks for: a line in the ledger, unless the order has a key that is there.
pub(crate) fn effect(ledger: &Path, arguments: &Value) {
    let order = arguments["order"].as_str().unwrap_or_default();
    let line = match arguments["key"].as_str() {
        None => format!("{order}\n"),
        Some(key) => {
            let line = format!("{order} {key}\n");
            let done = fs::read_to_string(ledger).unwrap_or_default();
            if done.contains(&line) {
                return;
            }
            line
        }
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(ledger)
        .expect("the ledger can be opened");
    file.write_all(line.as_bytes())
        .expect("the ledger can be written");
}

/// The answers that need no mood.
pub(crate) fn plain_answer(message: &Value) -> Option<Value> {
    let id = message.get("id")?;
    let result = match message["method"].as_str()? {
        "initialize" => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "soak", "version": "1.0.0" }
        }),
        "tools/list" => json!({ "tools": [
            { "name": "order", "inputSchema": { "type": "object" } }
        ] }),
        "tools/call" => json!({ "content": [{ "type": "text", "text": "ordered" }] }),
        _ => {
            let error = json!({ "code": -32601, "message": "no such method" });
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": error }));
        }
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

pub(crate) fn error(message: &Value, code: i64) -> Value {
    let error = json!({ "code": code, "message": "the shop is cross" });
    json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })
}

/// Serves until the stream ends, or until it is in the mood to die.
pub(crate) async fn serve(
    read: impl AsyncRead + Unpin,
    write: impl AsyncWrite + Unpin,
    ledger: &Path,
    seed: u64,
) {
    // A stream that breaks is the end of a server, and no concern of its.
    let _ = serve_by(read, write, ledger, StdRng::seed_from_u64(seed)).await;
}

async fn serve_by(
    read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    ledger: &Path,
    mut dice: StdRng,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let Some(answer) = plain_answer(&message) else {
            continue;
        };
        let mut said = format!("{answer}\n");
        if message["method"] == "tools/call" {
            let mood = Mood::next(&mut dice);
            if !matches!(mood, Mood::DieBefore | Mood::Refuse) {
                effect(ledger, &message["params"]["arguments"]);
            }
            match mood {
                Mood::Answer => {}
                Mood::Slow => tokio::time::sleep(Duration::from_millis(300)).await,
                Mood::Error => said = format!("{}\n", error(&message, -32000)),
                Mood::Refuse => said = format!("{}\n", error(&message, -32602)),
                Mood::DieAfter | Mood::DieBefore => return Ok(()),
                Mood::Cut => {
                    write.write_all(&said.as_bytes()[..said.len() / 2]).await?;
                    return write.flush().await;
                }
                Mood::Hang => continue,
                Mood::Garbage => write.write_all(b"{\"jsonrpc\": oops\n\xff\xfe\n\n").await?,
                Mood::Flood => flood(&mut write).await?,
            }
        }
        write.write_all(said.as_bytes()).await?;
        write.flush().await?;
    }
    Ok(())
}

async fn flood(write: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
    let note = json!({ "jsonrpc": "2.0", "method": "notifications/message",
        "params": { "level": "info", "data": "the shop is open" } });
    let note = format!("{note}\n");
    for _ in 0..1_000 {
        write.write_all(note.as_bytes()).await?;
    }
    write.write_all(&vec![b'x'; 2 << 20]).await?;
    write.write_all(b"\n").await
}
