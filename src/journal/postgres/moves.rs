//! The journal's table as a statement takes it: lists of the same length.

use crate::journal::table::{Event, Illegal, State, next};

/// From where an event leads where.
pub(super) struct Moves {
    /// The states in which it can happen.
    pub(super) from: Vec<String>,
    /// What each of them becomes.
    pub(super) to: Vec<String>,
    /// Whether the key is free then.
    pub(super) frees: Vec<bool>,
    /// Whether its host is done with it then.
    pub(super) lets_go: Vec<bool>,
    /// Whether it is settled by that.
    pub(super) settles: Vec<bool>,
}

impl Moves {
    pub(super) fn of(event: Event) -> Self {
        let possible = || {
            State::ALL
                .into_iter()
                .filter_map(|from| Some((from, next(from, event).ok()?)))
        };
        // One that resolves an unknown outcome keeps it in hand until it gives it up.
        let lets_go = |(from, to): (State, State)| {
            let lost_sight = to == State::OutcomeUnknown
                && (from != State::OutcomeUnknown || event == Event::Abandon);
            to.is_settled() || lost_sight
        };
        Self {
            from: possible().map(|(from, _)| word(from)).collect(),
            to: possible().map(|(_, to)| word(to)).collect(),
            frees: possible().map(|(_, to)| to.frees_its_key()).collect(),
            lets_go: possible().map(lets_go).collect(),
            settles: possible()
                .map(|(from, to)| to.is_settled() && !from.is_settled())
                .collect(),
        }
    }
}

/// How a state is written.
pub(super) fn word(state: State) -> String {
    match state {
        State::Accepted => "accepted",
        State::Dispatching => "dispatching",
        State::CancelRequested => "cancel_requested",
        State::OutcomeUnknown => "outcome_unknown",
        State::Succeeded => "succeeded",
        State::Failed => "failed",
        State::Rejected => "rejected",
        State::NotSent => "not_sent",
        State::Cancelled => "cancelled",
        State::Forgotten => "forgotten",
    }
    .to_owned()
}

/// The state that is written so.
pub(super) fn state(written: &str) -> Option<State> {
    State::ALL.into_iter().find(|state| word(*state) == written)
}

/// What the table says to an event that a statement found impossible: nothing, where another write came
/// between.
pub(super) fn judge(now: State, event: Event) -> Result<(), Illegal> {
    next(now, event).map(|_| ())
}
