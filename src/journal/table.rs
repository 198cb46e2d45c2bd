//! What may follow what in the life of an operation. Recovery replays records through the same
//! function that wrote them, so a journal that says something impossible is an error.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Its intent is recorded, and nothing was handed over. → dispatching, not sent.
    Accepted,
    /// An attempt may be on its way. → every state but accepted and forgotten.
    Dispatching,
    /// As dispatching; its caller has asked that it be stopped, which stops nothing by itself.
    CancelRequested,
    /// It may have run and nobody knows. Only knowledge moves it, never time. → succeeded, failed,
    /// rejected, not sent, cancelled.
    OutcomeUnknown,
    /// The server answered with a result. → forgotten.
    Succeeded,
    /// The server answered with an error, or with a result that says that the tool failed: an effect
    /// may stand. → forgotten.
    Failed,
    /// The server says that it did not run. The end: its key is free, and once it was kept for the
    /// stated time it is removed whole.
    Rejected,
    /// It provably never left, or its absence is final. The end, as with rejected.
    NotSent,
    /// It is established that it was stopped. → forgotten.
    Cancelled,
    /// Its answer was kept for the stated time and is gone; its key stays refused. The end.
    Forgotten,
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// An attempt is about to be handed over: the first one, a repeat that the contract allows, or one
    /// that resolves an unknown outcome.
    Dispatch,
    /// Its caller asks that it be stopped.
    RequestCancel,
    /// A task of the server's works on it, whose handle is kept.
    KeepTask,
    /// It is known to have succeeded.
    Succeed,
    /// It is known to have failed.
    Fail,
    /// The server says that it did not run.
    Reject,
    /// It is known not to have been sent, or to be absent for good.
    NotSend,
    /// Nobody knows what became of the last attempt.
    LoseSight,
    /// The host that ran it is gone, or its lease ran out.
    Abandon,
    /// It is established that it was stopped.
    Cancel,
    /// The time for which its answer was kept is over. Where the key is free there is nothing left to
    /// refuse, so there is nothing to make a tombstone of.
    Forget,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 10] = [
        Self::Accepted,
        Self::Dispatching,
        Self::CancelRequested,
        Self::OutcomeUnknown,
        Self::Succeeded,
        Self::Failed,
        Self::Rejected,
        Self::NotSent,
        Self::Cancelled,
        Self::Forgotten,
    ];

    /// Whether what became of it is known.
    #[must_use]
    pub fn is_settled(self) -> bool {
        use State::{Cancelled, Failed, Forgotten, NotSent, Rejected, Succeeded};
        matches!(
            self,
            Succeeded | Failed | Rejected | NotSent | Cancelled | Forgotten
        )
    }

    /// Whether its key may be used again for another operation: it did not run, so the intent that the
    /// key stands for is still open.
    #[must_use]
    pub fn frees_its_key(self) -> bool {
        matches!(self, Self::NotSent | Self::Rejected)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::Dispatching => "dispatching",
            Self::CancelRequested => "cancel requested",
            Self::OutcomeUnknown => "outcome unknown",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::NotSent => "not sent",
            Self::Cancelled => "cancelled",
            Self::Forgotten => "forgotten",
        })
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 11] = [
        Self::Dispatch,
        Self::RequestCancel,
        Self::KeepTask,
        Self::Succeed,
        Self::Fail,
        Self::Reject,
        Self::NotSend,
        Self::LoseSight,
        Self::Abandon,
        Self::Cancel,
        Self::Forget,
    ];
}

/// An event that cannot happen in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an operation that is {state:?} cannot {event:?}")]
pub struct Illegal {
    /// The state.
    pub state: State,
    /// The event.
    pub event: Event,
}

/// The state after `event` in `state`.
///
/// # Errors
///
/// [`Illegal`], where the event cannot happen in the state.
pub fn next(state: State, event: Event) -> Result<State, Illegal> {
    use Event as E;
    use State as S;
    Ok(match (state, event) {
        (S::Accepted, E::Dispatch) => S::Dispatching,
        (S::Accepted, E::RequestCancel) => S::Accepted,
        (S::Accepted, E::NotSend | E::Abandon) => S::NotSent,

        (S::Dispatching, E::Dispatch | E::KeepTask) => S::Dispatching,
        (S::Dispatching | S::CancelRequested, E::RequestCancel) => S::CancelRequested,
        (S::CancelRequested, E::KeepTask) => S::CancelRequested,
        (S::Dispatching | S::CancelRequested, E::LoseSight | E::Abandon) => S::OutcomeUnknown,

        // A repeat or a look-up that resolves it leaves it unknown until it is known.
        (
            S::OutcomeUnknown,
            E::Dispatch | E::RequestCancel | E::KeepTask | E::LoseSight | E::Abandon,
        ) => S::OutcomeUnknown,

        (S::Dispatching | S::CancelRequested | S::OutcomeUnknown, E::Succeed) => S::Succeeded,
        (S::Dispatching | S::CancelRequested | S::OutcomeUnknown, E::Fail) => S::Failed,
        (S::Dispatching | S::CancelRequested | S::OutcomeUnknown, E::Reject) => S::Rejected,
        (S::Dispatching | S::CancelRequested | S::OutcomeUnknown, E::NotSend) => S::NotSent,
        (S::Dispatching | S::CancelRequested | S::OutcomeUnknown, E::Cancel) => S::Cancelled,

        (S::Succeeded | S::Failed | S::Cancelled, E::Forget) => S::Forgotten,
        _ => return Err(Illegal { state, event }),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A row for each state and a column for each event, in the order of [`State::ALL`] and
    /// [`Event::ALL`]: where it goes, by the first letters of the state's name; `--` is illegal.
    const TABLE: &str = "
               dispatch cancel? task succeed fail reject not-send lose abandon cancel forget
        accepted     di   ac    --   --      --   --     ns       --   ns      --     --
        dispatching  di   cr    di   su      fa   re     ns       un   un      ca     --
        cancel-req   --   cr    cr   su      fa   re     ns       un   un      ca     --
        unknown      un   un    un   su      fa   re     ns       un   un      ca     --
        succeeded    --   --    --   --      --   --     --       --   --      --     fo
        failed       --   --    --   --      --   --     --       --   --      --     fo
        rejected     --   --    --   --      --   --     --       --   --      --     --
        not-sent     --   --    --   --      --   --     --       --   --      --     --
        cancelled    --   --    --   --      --   --     --       --   --      --     fo
        forgotten    --   --    --   --      --   --     --       --   --      --     --
    ";

    fn short(state: State) -> &'static str {
        match state {
            State::Accepted => "ac",
            State::Dispatching => "di",
            State::CancelRequested => "cr",
            State::OutcomeUnknown => "un",
            State::Succeeded => "su",
            State::Failed => "fa",
            State::Rejected => "re",
            State::NotSent => "ns",
            State::Cancelled => "ca",
            State::Forgotten => "fo",
        }
    }

    fn cells() -> impl Iterator<Item = (State, Event, Result<State, Illegal>)> {
        let events = |state| Event::ALL.map(|event| (state, event, next(state, event)));
        State::ALL.into_iter().flat_map(events)
    }

    fn successors(state: State) -> impl Iterator<Item = State> {
        Event::ALL
            .into_iter()
            .filter_map(move |e| next(state, e).ok())
    }

    #[test]
    fn each_state_has_words_of_its_own() {
        let words = State::ALL.map(|state| state.to_string());
        for (n, word) in words.iter().enumerate() {
            assert!(!word.is_empty() && !words[..n].contains(word), "{word:?}");
        }
        assert_eq!(State::OutcomeUnknown.to_string(), "outcome unknown");
    }

    #[test]
    fn all_110_cells_are_as_they_are_written_here() {
        let rows = TABLE.lines().map(str::trim).filter(|l| !l.is_empty());
        let rows: Vec<Vec<&str>> = rows.map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0].len(), Event::ALL.len());
        assert_eq!(rows.len() - 1, State::ALL.len());
        let mut compared = 0;
        for (state, row) in State::ALL.into_iter().zip(&rows[1..]) {
            assert_eq!(row.len() - 1, Event::ALL.len(), "{row:?}");
            for (event, cell) in Event::ALL.into_iter().zip(&row[1..]) {
                let to = next(state, event);
                assert_eq!(to.map_or("--", short), *cell, "{state:?} {event:?}");
                if let Err(illegal) = to {
                    assert_eq!(illegal, Illegal { state, event });
                }
                compared += 1;
            }
        }
        assert_eq!(compared, 110);
    }

    #[test]
    fn all_names_every_state_and_every_event_once() {
        let states: BTreeSet<_> = State::ALL.map(short).into_iter().collect();
        assert_eq!(states.len(), State::ALL.len());
        let events: BTreeSet<_> = Event::ALL.map(|e| format!("{e:?}")).into_iter().collect();
        assert_eq!(events.len(), Event::ALL.len());
    }

    #[test]
    fn nothing_leads_out_of_the_last_states() {
        for state in [State::Forgotten, State::Rejected, State::NotSent] {
            assert_eq!(successors(state).count(), 0, "{state:?}");
        }
    }

    #[test]
    fn what_is_settled_can_only_be_forgotten() {
        for (state, event, to) in cells().filter(|cell| cell.0.is_settled()) {
            match to {
                Ok(to) => assert_eq!((event, to), (Event::Forget, State::Forgotten)),
                Err(_) => assert!(event != Event::Forget || successors(state).count() == 0),
            }
        }
        for (state, event, to) in cells().filter(|cell| !cell.0.is_settled()) {
            assert!(
                event != Event::Forget || to.is_err(),
                "{state:?} is forgotten"
            );
        }
    }

    #[test]
    fn only_knowledge_leads_out_of_unknown() {
        for event in Event::ALL {
            let to = next(State::OutcomeUnknown, event);
            let knows = [
                Event::Succeed,
                Event::Fail,
                Event::Reject,
                Event::NotSend,
                Event::Cancel,
            ];
            match to {
                Ok(State::OutcomeUnknown) => assert!(!knows.contains(&event), "{event:?}"),
                Ok(to) => assert!(to.is_settled() && knows.contains(&event), "{event:?}"),
                Err(_) => assert_eq!(event, Event::Forget),
            }
        }
    }

    #[test]
    fn nothing_that_may_have_left_is_known_not_to_have_because_its_host_is_gone() {
        for (state, event, to) in cells().filter(|cell| cell.1 == Event::Abandon) {
            let expected = match state {
                // The attempt is recorded before it is handed over: without one, nothing left.
                State::Accepted => Some(State::NotSent),
                State::Dispatching | State::CancelRequested | State::OutcomeUnknown => {
                    Some(State::OutcomeUnknown)
                }
                _ => None,
            };
            assert_eq!(to.ok(), expected, "{state:?} {event:?}");
        }
    }

    #[test]
    fn nothing_is_dispatched_after_a_stop_was_asked_for_and_before_the_outcome_is_known_to_be_unknown()
     {
        assert!(next(State::CancelRequested, Event::Dispatch).is_err());
        assert!(next(State::OutcomeUnknown, Event::Dispatch).is_ok());
    }

    #[test]
    fn every_state_is_reached_from_accepted_and_none_leads_back_to_it() {
        let mut reached = vec![State::Accepted];
        let mut looked_at = 0;
        while let Some(state) = reached.get(looked_at).copied() {
            looked_at += 1;
            for to in successors(state) {
                assert!(to != State::Accepted || state == State::Accepted);
                if !reached.contains(&to) {
                    reached.push(to);
                }
            }
        }
        assert_eq!(reached.len(), State::ALL.len(), "{reached:?}");
    }

    #[test]
    fn a_key_is_free_where_it_is_established_that_nothing_ran() {
        let free: Vec<_> = State::ALL
            .into_iter()
            .filter(|state| state.frees_its_key())
            .collect();
        assert_eq!(free, [State::Rejected, State::NotSent]);
        assert!(free.iter().all(|state| state.is_settled()));
    }
}
