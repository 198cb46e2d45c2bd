//! The whole journal as JSON lines.

use std::{io, sync::Arc, time::SystemTime};

use serde_json::json;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::{Filter, Journal, JournalError, PAGE, Record, StoreError, moment};

/// The version of the format. It changes when a reader of the one before would misread it.
const VERSION: u32 = 1;

impl Journal {
    /// Writes every operation as a line of JSON, in the order of their ids, and says how many there
    /// were.
    ///
    /// The first line is the header: `{"format":"mcp-supervisor journal","version":1,"exported_at":…}`.
    /// Each line after it is a [`Record`]: `intent`, `state`, `history` and `owner`. Times are RFC 3339
    /// in UTC. A reader takes members that it does not know as absent. There is no footer: the number
    /// that is given back says whether a file is whole.
    ///
    /// What was not kept is not in it. What was kept is: keys, the arguments of calls that allow it, and
    /// answers. It is as confidential as the journal.
    ///
    /// Operations that are accepted while it is written may be in it or not.
    ///
    /// # Errors
    ///
    /// [`Export`](JournalError::Export) when it cannot be written, and what keeps the store from being
    /// read. Lines that were written stay.
    ///
    /// # Cancel safety
    ///
    /// A part may have been written, and that part may end in the middle of a line.
    pub async fn export<W>(&self, into: &mut W) -> Result<u64, JournalError>
    where
        W: AsyncWrite + Unpin + ?Sized,
    {
        let header = json!({
            "format": "mcp-supervisor journal",
            "version": VERSION,
            "exported_at": moment::written(SystemTime::now()),
        });
        let unwritten = |error: io::Error| JournalError::Export(Arc::new(error));
        let header = format!("{header}\n");
        into.write_all(header.as_bytes()).await.map_err(unwritten)?;
        let mut filter = Filter {
            limit: PAGE,
            ..Filter::default()
        };
        let mut records = 0;
        loop {
            let page = self.list(&filter).await?;
            let Some(last) = page.last() else { break };
            filter.after = Some(last.intent.operation);
            for record in &page {
                into.write_all(&line(record)?).await.map_err(unwritten)?;
                records += 1;
            }
        }
        into.flush().await.map_err(unwritten)?;
        Ok(records)
    }
}

/// serde_json breaks no line outside of strings, and in strings it writes `\n`.
fn line(record: &Record) -> Result<Vec<u8>, StoreError> {
    let mut line = serde_json::to_vec(record).map_err(|error| {
        let operation = record.intent.operation;
        StoreError::Corrupt(format!("operation {operation} is no JSON: {error}").into())
    })?;
    line.push(b'\n');
    Ok(line)
}
