//! An operation is handed over by its id alone: the journal says whose it is.

use super::Supervisor;
use crate::{
    call::{Resolution, ResolveError},
    handle::Connection,
    operation::Resolve,
};

impl Supervisor {
    /// Finds out what became of an operation whose outcome is unknown, on the connection of the name
    /// that the journal has with it: of this supervisor or of one before it, of this process or of
    /// another one. See [`Connection::resolve`].
    ///
    /// ```no_run
    /// # use mcp_supervisor::{Supervisor, journal::Journal};
    /// # async fn start(supervisor: &Supervisor, journal: &Journal)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// for record in journal.unknown().await? {
    ///     match supervisor.resolve(record.intent.operation).await {
    ///         Ok(resolution) => println!("known now: {:?}", resolution.known),
    ///         Err(error) => eprintln!("{error}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ResolveError`] says what to do next.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it goes on until its deadline and records what comes.
    pub async fn resolve(&self, order: impl Into<Resolve>) -> Result<Resolution, ResolveError> {
        let order = order.into();
        let Some(journal) = &self.branch.journal else {
            return Err(ResolveError::NoJournal);
        };
        let id = order.operation;
        let record = journal.show(id).await?.ok_or(ResolveError::NotKnown(id))?;
        if record.state.is_settled() {
            return Err(ResolveError::Settled(Box::new(record)));
        }
        let connection = record.intent.connection;
        let Some(line) = self.branch.registry.find(&connection) else {
            return Err(ResolveError::NoConnection { connection });
        };
        let connection = Connection::over(line, Some(journal.clone()));
        connection.resolve(order).await
    }
}
