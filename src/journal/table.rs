//! What may follow what in the life of an operation. Recovery replays records through the same
//! function that wrote them, so a journal that says something impossible is an error.

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
        (state, event) => return Err(Illegal { state, event }),
    })
}
