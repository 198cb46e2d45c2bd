//! For hosts that are ractor actors themselves: a supervisor below one of their own.
//!
//! This is the only place where ractor shows.

use ractor::ActorCell;

use crate::supervisor::{Supervisor, SupervisorBuilder, SupervisorError};

/// Starts a supervisor whose actor is a child of `parent`. When the parent stops or dies, the
/// supervisor and everything below it stop too; the parent is told of the supervisor's end as of
/// that of any other child.
///
/// # Errors
///
/// [`SupervisorError`], if the parent no longer runs, or if the supervisor is to be
/// [`under`](SupervisorBuilder::under) another one that is shutting down.
///
/// # Cancel safety
///
/// Dropped, no supervisor is left behind.
pub async fn spawn_linked(
    builder: SupervisorBuilder,
    parent: ActorCell,
) -> Result<Supervisor, SupervisorError> {
    builder.start_under(Some(parent)).await
}
