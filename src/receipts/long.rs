//! Work that takes longer than a call should: its start is answered at once with a handle, which is in
//! the ledger, and its end is one transaction with its last writes.
//!
//! A [`LongTool`] is three tools: the start, which runs once per key as every tool with receipts does;
//! one that reads, and one that asks to cancel. Where the client declared MCP's tasks, the start is
//! answered with a task, which a [`Desk`](super::Desk) serves from the same ledger. rmcp's own task
//! manager is no help there: it is in memory, knows no principals, and ends what takes five minutes.
//!
//! Cancelling stops nothing by itself. The work hears of it and decides, and what is committed is what
//! happened: a work that was done first is done.
//!
//! A work whose process is gone is not run again. Its outcome is unknown, unless its author
//! [says](LongWork::resumes) that it can be resumed from its last checkpoint.

mod drive;
mod host;
mod rows;
mod state;
mod tool;
mod work;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use rmcp::schemars::JsonSchema;
use rusqlite::Transaction;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

pub(super) use state::Seen;
pub use tool::LongTool;
pub(super) use tool::has_tasks;
pub use work::{End, LastWrites, Work};

use self::{drive::Driver, rows::Rows};
use super::{
    Call, Definition, DefinitionError, Failure, LedgerError, Principal, SqliteLedger, tool::parse,
};

/// What of a long work runs in the transaction of its start.
type Start<A> = Arc<dyn Fn(&Transaction<'_>, &A, &Call) -> Result<(), Failure> + Send + Sync>;

/// The work itself.
type Run<A, O> = Arc<dyn Fn(Work<A>) -> Running<O> + Send + Sync>;

/// A work under way.
type Running<O> = Pin<Box<dyn Future<Output = Result<End<O>, Failure>> + Send>>;

/// A long work, before it is run on a ledger.
///
/// ```
/// use mcp_supervisor::receipts::{Definition, End, FixedScope, LongTool, LongWork, LongWorkError, SqliteLedger};
/// use rmcp::schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize, JsonSchema)]
/// #[schemars(crate = "rmcp::schemars")]
/// struct Year {
///     year: u16,
/// }
///
/// #[derive(Serialize, JsonSchema)]
/// #[schemars(crate = "rmcp::schemars")]
/// struct Report {
///     orders: i64,
/// }
///
/// async fn yearly(ledger: &SqliteLedger, who: FixedScope) -> Result<LongTool, LongWorkError> {
///     let definition = Definition::<Year, Report>::new("yearly_report", "Counts the orders of a year.");
///     LongWork::new(definition)
///         .on(ledger, who, async |work| {
///             for month in 1..=12 {
///                 if work.cancel_requested() {
///                     return Ok(End::Stopped);
///                 }
///                 work.progress(f64::from(month) / 12.0, format!("month {month}")).await?;
///             }
///             let year = work.arguments.year;
///             Ok(End::done(move |tx| {
///                 let count = "SELECT count(*) FROM orders WHERE year = ?1";
///                 let orders = tx.query_row(count, [year], |row| row.get(0))?;
///                 Ok(Report { orders })
///             }))
///         })
///         .await
/// }
/// ```
pub struct LongWork<A, O> {
    definition: Definition<A, O>,
    start: Start<A>,
    resumes: bool,
}

impl<A, O> LongWork<A, O> {
    /// A work with this start. Reading and cancelling are tools of the same name with `_status` and
    /// `_cancel` behind it.
    #[must_use]
    pub fn new(definition: Definition<A, O>) -> Self {
        Self {
            definition,
            start: Arc::new(|_, _, _| Ok(())),
            resumes: false,
        }
    }

    /// What is written with the start, in one transaction with the handle. Where it fails, nothing is
    /// begun.
    #[must_use]
    pub fn begins_with(
        mut self,
        start: impl Fn(&Transaction<'_>, &A, &Call) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Self {
        self.start = Arc::new(start);
        self
    }

    /// Work whose process was lost is run again, with its last [checkpoint](Work::checkpoint). Only who
    /// wrote the work can say so: what it did outside of the ledger since that checkpoint may be done
    /// again.
    #[must_use]
    pub fn resumes(mut self) -> Self {
        self.resumes = true;
        self
    }

    /// Puts it on a ledger, and takes over what a process that is gone has left of it: resumed, or
    /// unknown.
    ///
    /// # Errors
    ///
    /// [`LongWorkError`], where the tool cannot be, or the ledger cannot be read and written.
    ///
    /// # Cancel safety
    ///
    /// What was left behind may be taken over all the same, and nobody runs it until the next start.
    pub async fn on<F>(
        mut self,
        ledger: &SqliteLedger,
        principal: impl Principal,
        run: impl Fn(Work<A>) -> F + Send + Sync + 'static,
    ) -> Result<LongTool, LongWorkError>
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize + JsonSchema + Send + 'static,
        F: Future<Output = Result<End<O>, Failure>> + Send + 'static,
    {
        let name = Arc::clone(&self.definition.terms.name);
        let wording = &mut self.definition.terms.wording;
        if wording.while_running.is_none() {
            wording.while_running = Some(format!(
                "It runs in the background. Ask `{name}_status` with the `operation_id`; \
                 `{name}_cancel` asks it to stop."
            ));
        }
        let rows = Arc::new(Rows::open(ledger, &self.definition.terms).await?);
        let driver = Arc::new(Driver {
            rows: Arc::clone(&rows),
            run: Arc::new(move |work| Box::pin(run(work)) as Running<O>),
            live: Arc::default(),
        });
        let (start, begin) = (self.start, Arc::clone(&rows));
        let handler = move |tx: &Transaction<'_>, arguments: Map<String, Value>, call: &Call| {
            let parsed = parse::<A>(&arguments).map_err(Failure::Invalid)?;
            start(tx, &parsed, call)?;
            begin.begin(tx, call, arguments)
        };
        let starter = Arc::clone(&driver);
        let start = ledger
            .tool_that_begins(&self.definition, principal, handler)?
            .followed_by(Arc::new(move |arrival, answer| {
                starter.begun(arrival, answer)
            }));
        let tool = LongTool::new::<O>(start, rows, Arc::clone(&driver.live));
        driver.take_over(self.resumes).await?;
        Ok(tool)
    }
}

impl<A, O> fmt::Debug for LongWork<A, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongWork")
            .field("definition", &self.definition)
            .field("resumes", &self.resumes)
            .finish_non_exhaustive()
    }
}

/// Why a long work is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LongWorkError {
    /// Its tool cannot be.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// The ledger cannot be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The place beside the ledger's file where its hosts are told apart cannot be written.
    #[error("the directory beside the ledger's file in which its processes hold locks: {0}")]
    Host(#[from] std::io::Error),
}
