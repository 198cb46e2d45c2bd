//! Who looks after what nobody knows: an operation is resolved as its contract allows, or it is looked
//! for where the server counts its effects, and a verdict is given.

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use mcp_supervisor::{
    Known, Resolve, ResolveError, ToolContract,
    journal::{Filter, Journal, Record, Ruling, State, Verdict},
};
use rusqlite::{OpenFlags, OptionalExtension as _};
use tokio_util::sync::CancellationToken;

use crate::{
    Ending,
    caller::NEVER,
    shop,
    told::{Became, Told},
    town::{TOTAL, Town},
};

/// How many it resolves at a time.
const AT_ONCE: usize = 8;
const PAGE: usize = 128;

pub(crate) struct Clerk {
    pub(crate) town: Arc<Town>,
    pub(crate) journal: Journal,
    pub(crate) told: Arc<Told>,
}

/// What an operation's effect is recognised by.
pub(crate) fn mark(record: &Record) -> Option<&str> {
    record.intent.arguments.as_ref()?.get("mark")?.as_str()
}

/// Whether its contract can find out what became of it. Of a tool whose schema could not be read before
/// the call nobody can say that it is the same.
pub(crate) fn can_find_out(record: &Record) -> bool {
    match record.intent.contract {
        ToolContract::AtMostOnce => false,
        ToolContract::Status { .. } => true,
        _ => record.intent.schema.is_some(),
    }
}

impl Clerk {
    pub(crate) async fn work_until(&self, over: CancellationToken) -> Ending {
        while !over.is_cancelled() {
            self.round().await?;
            tokio::select! {
                () = over.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(700)) => {}
            }
        }
        Ok(())
    }

    /// Goes once over all that is unknown. Gives back how many it found out.
    pub(crate) async fn round(&self) -> Ending<usize> {
        let mut filter = Filter {
            states: Some(vec![State::OutcomeUnknown]),
            limit: PAGE,
            ..Filter::default()
        };
        let mut found_out = 0;
        loop {
            let page = self.journal.list(&filter).await?;
            let Some(last) = page.last() else {
                return Ok(found_out);
            };
            filter.after = Some(last.intent.operation);
            let each =
                futures::stream::iter(page).map(|record| async move { self.one(&record).await });
            let each: Vec<_> = each.buffer_unordered(AT_ONCE).collect().await;
            for one in each {
                found_out += usize::from(one?);
            }
        }
    }

    async fn one(&self, record: &Record) -> Ending<bool> {
        let intent = &record.intent;
        let mark = mark(record).ok_or("a call without a mark")?;
        let name = intent.connection.as_str();
        if can_find_out(record)
            && let Some(connection) = self.town.shared(name)
        {
            let order = Resolve::new(intent.operation).deadline(TOTAL);
            let became = match tokio::time::timeout(NEVER, connection.resolve(order)).await {
                Ok(Ok(resolution)) => match resolution.known {
                    Known::Answered(answer) if !answer.is_error() => Became::Answered,
                    Known::DidNotRun(_) => Became::NotSent,
                    _ => Became::Failed,
                },
                // A caller came with the same key meanwhile.
                Ok(Err(ResolveError::Settled(_) | ResolveError::Elsewhere(_))) => return Ok(false),
                Ok(Err(ResolveError::StillUnknown(_))) => Became::Unknown,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => Became::Never,
            };
            self.told.of("resolved", mark, &intent.tool, became);
            return Ok(became != Became::Unknown);
        }
        // An effect that is there says that it ran. One that is not says nothing: the request may be on its
        // way.
        let server = self
            .town
            .server_of(name)
            .ok_or("a connection without a server")?;
        let path = shop::effects(&self.town.run, &server);
        let ran = path.exists() && ran(&path, mark)?;
        if ran {
            let verdict = Verdict {
                who: "soak".to_owned(),
                why: "its effect is in the server's log".to_owned(),
                outcome: Ruling::Succeeded(None),
            };
            // Of one that is told late, the answer was faster.
            let judged = self.journal.verdict(intent.operation, verdict).await;
            self.told.count(
                "verdicts",
                if judged.is_ok() {
                    Became::Answered
                } else {
                    Became::Failed
                },
            );
        }
        Ok(ran)
    }
}

fn ran(path: &std::path::Path, mark: &str) -> Ending<bool> {
    let log = rusqlite::Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    log.busy_timeout(Duration::from_secs(10))?;
    let select = "SELECT 1 FROM log WHERE mark = ?1 AND seen = 2";
    let found = log.query_row(select, [mark], |_| Ok(())).optional()?;
    Ok(found.is_some())
}
