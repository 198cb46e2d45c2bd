//! What may follow what in the life of an intent to a provider.

use serde::{Deserialize, Serialize};

/// Where an intent stands.
///
/// The difference that matters is between an intent of which nothing stands at the provider and one
/// of which something may. Each has its own states, also while an attempt is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// It is committed with its receipt, and nothing of it stands. → sending, refused, not sent.
    Pending,
    /// An attempt may be on its way, and no earlier one may stand. → answered, refused, conflict,
    /// pending (the attempt had no effect), unclear.
    Sending,
    /// An attempt may have been applied. → resending, answered, refused, conflict, pending (absent
    /// for good), unknown.
    Unclear,
    /// As unclear, with another attempt under the same key on its way. → answered, conflict, unclear.
    Resending,
    /// The provider applied it. The end.
    Answered,
    /// The provider refused it, and nothing stands. The end.
    Refused,
    /// The provider has another request under this key. The end.
    Conflict,
    /// It was given up, and nothing of it stands. The end.
    NotSent,
    /// It may have been applied, and no automatic way is left to find out. Only knowledge moves it.
    /// → answered, refused, not sent.
    Unknown,
}

/// What happens to an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// An attempt is about to be made.
    Send,
    /// It is known to be applied: the provider says so, or a look-up found it.
    Accept,
    /// The provider refuses this attempt.
    Refuse,
    /// A look-up found it, and found that the provider refused it.
    FindRefused,
    /// The provider has another request under the key.
    Conflict,
    /// This attempt had no effect, and another one may be made.
    Defer,
    /// Nobody knows what became of this attempt: no answer, or whoever made it is gone.
    LoseSight,
    /// It is established that nothing stands at the provider, for good.
    FindAbsent,
    /// No way is left that may be tried.
    GiveUp,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Sending,
        Self::Unclear,
        Self::Resending,
        Self::Answered,
        Self::Refused,
        Self::Conflict,
        Self::NotSent,
        Self::Unknown,
    ];

    /// Whether the dispatcher is done with it. An unknown intent is over too: only a verdict or a
    /// look-up that somebody asks for moves it.
    #[must_use]
    pub fn is_over(self) -> bool {
        use State::{Answered, Conflict, NotSent, Refused, Unknown};
        matches!(self, Answered | Refused | Conflict | NotSent | Unknown)
    }

    /// Whether an attempt was on its way when this was written. Found after a crash, it is ambiguous.
    #[must_use]
    pub fn is_on_its_way(self) -> bool {
        matches!(self, Self::Sending | Self::Resending)
    }

    /// The word for it, as it is kept and shown.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Sending => "sending",
            Self::Unclear => "unclear",
            Self::Resending => "resending",
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
            Self::NotSent => "not_sent",
            Self::Unknown => "unknown",
        }
    }

    /// The state that a word stands for.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 9] = [
        Self::Send,
        Self::Accept,
        Self::Refuse,
        Self::FindRefused,
        Self::Conflict,
        Self::Defer,
        Self::LoseSight,
        Self::FindAbsent,
        Self::GiveUp,
    ];
}

/// An event that cannot happen in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an intent that is {state:?} cannot {event:?}")]
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
        (S::Pending, E::Send) => S::Sending,
        // A refusal of a later attempt, told once it was established that no earlier one stands.
        (S::Pending, E::Refuse) => S::Refused,
        (S::Pending, E::GiveUp) => S::NotSent,

        (S::Sending, E::Accept) => S::Answered,
        (S::Sending, E::Refuse) => S::Refused,
        (S::Sending, E::Conflict) => S::Conflict,
        (S::Sending, E::Defer) => S::Pending,
        (S::Sending, E::LoseSight) => S::Unclear,

        (S::Unclear, E::Send) => S::Resending,
        (S::Unclear, E::Accept) => S::Answered,
        (S::Unclear, E::FindRefused) => S::Refused,
        (S::Unclear, E::FindAbsent) => S::Pending,
        (S::Unclear, E::GiveUp) => S::Unknown,

        (S::Resending, E::Accept) => S::Answered,
        (S::Resending, E::Conflict) => S::Conflict,
        // What becomes of this attempt says nothing of the one before it.
        (S::Resending, E::Refuse | E::Defer | E::LoseSight) => S::Unclear,

        (S::Unknown, E::Accept) => S::Answered,
        (S::Unknown, E::FindRefused) => S::Refused,
        (S::Unknown, E::FindAbsent) => S::NotSent,

        _ => return Err(Illegal { state, event }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every legal move, in the order of `State::ALL`; what is not here is illegal.
    const TABLE: &[(State, Event, State)] = &[
        (State::Pending, Event::Send, State::Sending),
        (State::Pending, Event::Refuse, State::Refused),
        (State::Pending, Event::GiveUp, State::NotSent),
        (State::Sending, Event::Accept, State::Answered),
        (State::Sending, Event::Refuse, State::Refused),
        (State::Sending, Event::Conflict, State::Conflict),
        (State::Sending, Event::Defer, State::Pending),
        (State::Sending, Event::LoseSight, State::Unclear),
        (State::Unclear, Event::Send, State::Resending),
        (State::Unclear, Event::Accept, State::Answered),
        (State::Unclear, Event::FindRefused, State::Refused),
        (State::Unclear, Event::FindAbsent, State::Pending),
        (State::Unclear, Event::GiveUp, State::Unknown),
        (State::Resending, Event::Accept, State::Answered),
        (State::Resending, Event::Conflict, State::Conflict),
        (State::Resending, Event::Refuse, State::Unclear),
        (State::Resending, Event::Defer, State::Unclear),
        (State::Resending, Event::LoseSight, State::Unclear),
        (State::Unknown, Event::Accept, State::Answered),
        (State::Unknown, Event::FindRefused, State::Refused),
        (State::Unknown, Event::FindAbsent, State::NotSent),
    ];

    #[test]
    fn the_table_of_an_intent_is_total_and_is_this_one() {
        for state in State::ALL {
            for event in Event::ALL {
                let expected = TABLE
                    .iter()
                    .find(|(from, by, _)| (*from, *by) == (state, event))
                    .map(|(_, _, to)| *to)
                    .ok_or(Illegal { state, event });
                assert_eq!(next(state, event), expected, "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn what_may_stand_is_never_said_not_to_stand_without_knowledge() {
        for state in [State::Unclear, State::Resending] {
            for event in [Event::Refuse, Event::Defer, Event::LoseSight, Event::GiveUp] {
                let after = next(state, event);
                let says_nothing_stands =
                    matches!(after, Ok(State::Pending | State::Refused | State::NotSent));
                assert!(!says_nothing_stands, "{state:?} {event:?} {after:?}");
            }
        }
    }

    #[test]
    fn an_end_is_an_end() {
        for state in [
            State::Answered,
            State::Refused,
            State::Conflict,
            State::NotSent,
        ] {
            assert!(state.is_over());
            assert!(!state.is_on_its_way());
            assert!(Event::ALL.iter().all(|event| next(state, *event).is_err()));
        }
    }

    #[test]
    fn the_dispatcher_goes_on_with_all_but_the_ends_and_the_unknown() {
        let goes_on = [
            State::Pending,
            State::Sending,
            State::Unclear,
            State::Resending,
        ];
        for state in State::ALL {
            assert_eq!(state.is_over(), !goes_on.contains(&state), "{state:?}");
            let is_on_its_way = matches!(state, State::Sending | State::Resending);
            assert_eq!(state.is_on_its_way(), is_on_its_way, "{state:?}");
        }
    }

    /// They are in the databases of those who use it.
    #[test]
    fn a_word_stands_for_one_state_and_stays_what_it_is() {
        let words = State::ALL.map(State::word);
        assert_eq!(
            words,
            [
                "pending",
                "sending",
                "unclear",
                "resending",
                "answered",
                "refused",
                "conflict",
                "not_sent",
                "unknown"
            ]
        );
        for state in State::ALL {
            assert_eq!(State::of_word(state.word()), Some(state));
        }
        assert_eq!(State::of_word("sent"), None);
    }
}
