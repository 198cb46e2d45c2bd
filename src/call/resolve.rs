//! Finding out what became of an operation whose outcome is unknown: by its task, by a repeat under
//! its own key, or by a look-up, as its contract allows.

mod settle;
mod task;
mod way;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;
use tracing::Instrument as _;

use self::{settle::Settling, way::Way};
use super::{
    ToolAnswer,
    lasting::{LAST_WRITE, claim_within, release, within},
    late::settle_late,
    times,
};
use crate::{
    connection::Line,
    error::{CallError, Failed, InvalidRequest, NotSent, Unknown, Unsettled},
    journal::{Claimed, FreeOnPanic, Held, Journal, Record, Settler, State, StoreError},
    operation::{ConnectionName, OperationId, Resolve},
};
pub(super) use task::{end_of, gone};

/// What became of an operation whose outcome was unknown. The journal has it too.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Resolution {
    /// The operation.
    pub operation: OperationId,
    /// How it became known.
    pub by: Settler,
    /// What is known.
    pub known: Known,
}

/// What is known now of an operation whose outcome was unknown.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Known {
    /// It was answered, by the tool, by its task, or, as far as a look-up goes, by its status tool.
    Answered(Box<ToolAnswer>),
    /// The server answered with an error; an effect may stand.
    Failed(Box<Failed>),
    /// It did not run: its contract says that its absence is final now.
    DidNotRun(Box<NotSent>),
    /// Its task was stopped. What it had done until then stays done.
    Cancelled,
}

impl Resolution {
    /// The answer, if that is what is known.
    #[must_use]
    pub fn answer(&self) -> Option<&ToolAnswer> {
        match &self.known {
            Known::Answered(answer) => Some(answer),
            Known::Failed(_) | Known::DidNotRun(_) | Known::Cancelled => None,
        }
    }
}

/// Why an operation was not resolved.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The connection has no journal, and so nothing to resolve.
    #[error("the connection has no journal; give its supervisor the one that has the operation")]
    NoJournal,
    /// The journal does not know the operation.
    #[error("the journal does not know operation {0}; is it the journal of the host that ran it?")]
    NotKnown(OperationId),
    /// It is settled already. The record says how.
    #[error(
        "operation {} is settled already: {}; its record says how", .0.intent.operation, .0.state
    )]
    Settled(Box<Record>),
    /// Somebody runs it, or resolves it: another host, or another task of this one.
    #[error(
        "operation {} is run or resolved by {}; wait for it in the journal",
        .0.intent.operation, holder(.0)
    )]
    Elsewhere(Box<Record>),
    /// It is an operation of another connection.
    #[error("the operation belongs to the connection {connection:?}; resolve it there")]
    OtherConnection {
        /// The connection that it belongs to.
        connection: ConnectionName,
    },
    /// No connection of the operation's name is open.
    #[error("no connection {connection:?} is open; open it, and resolve the operation then")]
    NoConnection {
        /// The connection that it belongs to.
        connection: ConnectionName,
    },
    /// Nothing may be sent in order to resolve it. What is left is to find out on the server, and to
    /// give a verdict.
    #[error(
        "nothing may be sent to resolve operation {}: {}; find out on the server, and give a verdict",
        .record.intent.operation, barred(.why.as_ref())
    )]
    NothingAllowed {
        /// The operation.
        record: Box<Record>,
        /// What bars its contract; `None` where there is no contract that could do anything.
        why: Option<Unsettled>,
    },
    /// Its contract allows a repeat, and the journal was not allowed to keep the arguments.
    #[error(
        "the arguments of operation {} were not kept; resolve it with them, or call again with the \
         same key and arguments", .0.intent.operation
    )]
    ArgumentsNotKept(Box<Record>),
    /// The arguments that were given are not those of the operation. Nothing was sent.
    #[error("these are not the arguments of operation {}; nothing was sent", .0.intent.operation)]
    OtherArguments(Box<Record>),
    /// The order cannot be carried out as it is. Nothing was sent.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// All that may be done was done, and nobody knows. It is still listed, and may be resolved again.
    #[error("{}", CallError::Unknown(.0.clone()))]
    StillUnknown(Box<Unknown>),
    /// The journal could not be read or written, so that nothing was sent, or no more.
    #[error("nothing more was sent: {0}")]
    Journal(#[from] StoreError),
}

fn holder(record: &Record) -> &str {
    let holder = record.owner.as_ref();
    holder.map_or("another task of this host", |holder| &holder.host)
}

fn barred(why: Option<&Unsettled>) -> String {
    why.map_or(
        "it was made without a contract".to_owned(),
        ToString::to_string,
    )
}

/// Resolves an operation of this connection.
///
/// What is sent, is sent by a task of its own, which records what comes also when nobody waits.
pub(crate) async fn resolve(
    line: &Arc<Line>,
    journal: &Journal,
    ask: Resolve,
) -> Result<Resolution, ResolveError> {
    let id = ask.operation;
    let times = times(&ask.budget, &line.settings.limits, Instant::now())?;
    let record = within(times.left(), journal.show(id)).await?;
    let record = record.ok_or(ResolveError::NotKnown(id))?;
    if record.intent.connection != line.name {
        let connection = record.intent.connection;
        return Err(ResolveError::OtherConnection { connection });
    }
    if record.state.is_settled() {
        return Err(ResolveError::Settled(Box::new(record)));
    }
    if record.state != State::OutcomeUnknown && !journal.is_in_task(id) {
        return Err(ResolveError::Elsewhere(Box::new(record)));
    }
    Way::of(&record, line, ask.arguments.as_ref())?;
    let (line, journal) = (Arc::clone(line), journal.clone());
    let task = tokio::spawn(claimed(line, journal, ask, times.left()).in_current_span());
    match task.await {
        Ok(done) => done,
        Err(ended) => match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is going, and whoever waits here with it.
            Err(_) => std::future::pending().await,
        },
    }
}

async fn claimed(
    line: Arc<Line>,
    journal: Journal,
    ask: Resolve,
    left: Duration,
) -> Result<Resolution, ResolveError> {
    let id = ask.operation;
    let (held, record) = match claim_within(&journal, id, left).await? {
        Claimed::Yes(held, record) => (held, record),
        Claimed::Elsewhere(record) => return Err(ResolveError::Elsewhere(record)),
        Claimed::Settled(record) => return Err(ResolveError::Settled(record)),
        Claimed::Missing => return Err(ResolveError::NotKnown(id)),
    };
    let _free = FreeOnPanic(journal.clone(), id);
    let copy = Held { ..held };
    let (done, late) = match Way::of(&record, &line, ask.arguments.as_ref()) {
        Ok(way) => {
            Settling::new(&line, &journal, &record, &ask)
                .by(way, held)
                .await
        }
        Err(error) => (Err(error), Vec::new()),
    };
    if done.is_err() {
        let giving_up = journal.clone();
        let giving_up = tokio::spawn(async move { release(&giving_up, &copy).await });
        // Whoever is told may claim it next, unless the store hangs.
        let _ = tokio::time::timeout(LAST_WRITE, giving_up).await;
        if !late.is_empty() {
            let tool = record.intent.tool;
            tokio::spawn(async move { settle_late(&line, &journal, id, &tool, late).await });
        }
    }
    done
}
