//! Events as log lines: what a person who watches one process wants to read, and no more.

use super::{Ground, What};
use crate::operation::Ownership;

pub(super) fn log(name: &str, ownership: Ownership, what: &What) {
    match what {
        What::SessionStarting { generation } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                "session starting"
            );
        }
        What::SessionStarted {
            generation,
            revision,
        } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                revision,
                "session started"
            );
        }
        What::StartFailed { generation, why } => {
            tracing::warn!(
                connection = name,
                generation = generation.0,
                why,
                "start failed"
            );
        }
        What::SessionLost {
            generation,
            why,
            unanswered,
        } => {
            tracing::warn!(
                connection = name,
                generation = generation.0,
                why,
                unanswered,
                "session lost"
            );
        }
        What::SessionRetired { generation, why } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                why,
                "session retired"
            );
        }
        What::SessionStopped { generation, how } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                ?how,
                "session stopped"
            );
        }
        What::CircuitOpened { cool_down } => {
            tracing::warn!(connection = name, ?cool_down, "circuit opened");
        }
        What::CircuitProbed => tracing::info!(connection = name, "circuit probed"),
        What::CircuitClosed => tracing::info!(connection = name, "circuit closed"),
        What::ActorRestarted => tracing::error!(connection = name, "connection actor restarted"),
        What::LentLost => {
            tracing::warn!(connection = name, %ownership, "caller-owned connection is closed");
        }
        What::AttemptStarted {
            operation,
            kind,
            attempt,
            generation,
            number,
            repeats,
            moved,
            waited,
        } => {
            tracing::trace!(
                connection = name,
                %operation,
                method = kind.method(),
                %attempt,
                generation = generation.0,
                number,
                repeats = repeats.map(Ground::as_str),
                moved,
                ?waited,
                "attempt started"
            );
        }
        What::OperationFinished {
            operation,
            kind,
            ended,
            attempts,
            elapsed,
            ..
        } => {
            tracing::trace!(
                connection = name,
                %operation,
                method = kind.method(),
                ended = ended.as_str(),
                attempts,
                ?elapsed,
                "operation finished"
            );
        }
        What::LateAnswer {
            operation,
            generation,
            ended,
        } => {
            tracing::info!(
                connection = name,
                %operation,
                generation = generation.0,
                ended = ended.as_str(),
                "late answer"
            );
        }
        What::KeyNotTaken {
            operation,
            argument,
        } => {
            tracing::warn!(
                connection = name,
                %operation,
                argument,
                "the tool's schema has no such argument for the key: without an answer this call will not be repeated"
            );
        }
        What::LookedUp { operation, found } => {
            tracing::info!(connection = name, %operation, found, "outcome looked up");
        }
        What::Resolved { operation, by } => {
            tracing::info!(connection = name, %operation, by, "outcome resolved");
        }
        What::OutcomeUnknown {
            operation,
            generation,
            cause,
        } => {
            tracing::warn!(
                connection = name,
                %ownership,
                %operation,
                generation = generation.0,
                cause,
                "outcome unknown"
            );
        }
        What::ListChanged { generation, list } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                ?list,
                "list changed"
            );
        }
        What::ResourceUpdated { generation } => {
            tracing::trace!(
                connection = name,
                generation = generation.0,
                "resource updated"
            );
        }
        What::LogReceived { generation, total } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                total,
                "log messages received"
            );
        }
        What::HandlerAsked { generation, what } => {
            tracing::debug!(
                connection = name,
                generation = generation.0,
                ?what,
                "handler asked"
            );
        }
        What::CatalogChanged {
            generation,
            list,
            added,
            removed,
            changed,
            unnamed,
        } => {
            tracing::info!(
                connection = name,
                generation = generation.0,
                ?list,
                added = added.len(),
                removed = removed.len(),
                changed = changed.len(),
                unnamed,
                "catalog changed"
            );
        }
        What::CatalogKept { list, why } => {
            tracing::warn!(connection = name, ?list, why, "a list could not be read");
        }
        What::FramesDropped {
            generation,
            why,
            total,
        } => {
            // One line for the first of a kind, then one at each doubling: no flood.
            if total.is_power_of_two() {
                tracing::warn!(
                    connection = name,
                    generation = generation.0,
                    ?why,
                    total,
                    "frames dropped"
                );
            }
        }
    }
}
