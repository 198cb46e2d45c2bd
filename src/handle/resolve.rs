//! Finding out what became of an operation.

use super::Connection;
use crate::{
    call::{Resolution, ResolveError, resolve},
    operation::Resolve,
};

impl Connection {
    /// Finds out what became of an operation of this connection whose outcome is unknown, and records
    /// it in the journal: by the task that the server made of it, which is asked for; else by the tool's
    /// contract, which repeats the call under the same key and with the same arguments, or looks it up.
    ///
    /// The contract in force must be the one that the call was made under, and a tool that is called
    /// again must be what it was. Each attempt is durable before it is handed over, and its number goes
    /// on from those before. An order to resolve is a decision of the caller's: it has as many attempts
    /// as a call of this connection has ([`Repeats`](crate::policy::Repeats)), and its own deadline.
    ///
    /// Absence is final for a look-up only where the session of the last attempt is known to be over:
    /// that of a host that is gone, counted from when this process opened the journal, or, where hosts
    /// share one, from this order.
    ///
    /// On a caller-owned connection a task is asked for, and nothing else is done.
    ///
    /// ```
    /// use mcp_supervisor::{Connection, OperationId, ResolveError};
    ///
    /// async fn find_out(orders: &Connection, operation: OperationId) -> Result<(), ResolveError> {
    ///     match orders.resolve(operation).await {
    ///         Ok(resolution) => println!("known now: {:?}", resolution.known),
    ///         Err(ResolveError::NothingAllowed { .. }) => println!("look on the server"),
    ///         Err(error) => return Err(error),
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResolveError`] says what to do next. Where nobody knows still, the operation can be resolved
    /// again.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it goes on until its deadline and records what comes.
    pub async fn resolve(&self, order: impl Into<Resolve>) -> Result<Resolution, ResolveError> {
        let order = order.into();
        match &self.journal {
            Some(journal) => resolve(&self.line, journal, order).await,
            None => Err(ResolveError::NoJournal),
        }
    }
}
