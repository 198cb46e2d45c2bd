//! A record as it was written, and what it has to agree with.

use serde::Deserialize;

use super::{Entry, Holder, Impossible, Intent, Record, State};
use crate::operation::OperationId;

/// What stands in a line of an export.
#[derive(Deserialize)]
pub(super) struct Written {
    intent: Intent,
    state: State,
    history: Vec<Entry>,
    #[serde(default)]
    owner: Option<Holder>,
}

/// A record that contradicts itself.
#[derive(Debug, thiserror::Error)]
pub(super) enum Contradiction {
    #[error(transparent)]
    Impossible(#[from] Impossible),
    #[error("operation {operation} is written as {said:?}, and its history comes to {is:?}")]
    State {
        operation: OperationId,
        said: State,
        is: State,
    },
}

impl TryFrom<Written> for Record {
    type Error = Contradiction;

    fn try_from(written: Written) -> Result<Self, Contradiction> {
        let mut record = Self::replay(written.intent, written.history)?;
        if record.state != written.state {
            return Err(Contradiction::State {
                operation: record.intent.operation,
                said: written.state,
                is: record.state,
            });
        }
        record.owner = written.owner;
        Ok(record)
    }
}
