//! What happened in a game, step by step. Two games of one seed have the same.
//!
//! Of what differs from run to run nothing is in it: operations are named by their numbers, and no
//! time but the game's own occurs.

use std::fmt;

use mcp_supervisor::{
    CallError, Event, Outcome,
    event::{Ended, Ground, What as Happened},
    journal::State,
};

use super::world::{CONNECTIONS, number_of, place_of};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// In milliseconds.
    pub(super) at: u64,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// A host starts.
    HostStarted,
    /// A host is gone.
    HostGone {
        killed: bool,
    },
    /// A caller begins an operation.
    Asked {
        operation: usize,
    },
    /// A caller cancels.
    Cancelled {
        operation: usize,
    },
    /// A caller goes away.
    Left {
        operation: usize,
    },
    /// A caller is told.
    Told {
        operation: usize,
        end: End,
    },
    /// The journal has a fact about an operation now, and it stands so.
    Recorded {
        operation: usize,
        fact: &'static str,
        /// How it became known, if it did.
        by: &'static str,
        state: State,
    },
    /// An operation whose outcome is unknown is taken in order to resolve it, or given up again.
    Claimed {
        operation: usize,
    },
    Released {
        operation: usize,
    },
    /// Somebody wants to know what became of an operation.
    Resolving {
        operation: usize,
    },
    /// What became of finding out what became of an operation.
    Resolved {
        operation: usize,
        how: String,
    },
    /// What the host tells of itself.
    Event(Box<Told>),
    /// A pipe is opened to a server.
    Opened {
        link: usize,
        connection: usize,
    },
    /// A server takes no pipe.
    OpenFailed {
        connection: usize,
    },
    /// The first byte of a frame goes into a pipe.
    Begun {
        link: usize,
        frame: Frame,
    },
    /// A frame is whole in a pipe.
    Written {
        link: usize,
        frame: Frame,
    },
    /// The client's end of a pipe is let go.
    Closed {
        link: usize,
    },
    /// A pipe is broken.
    Broken {
        link: usize,
        why: &'static str,
    },
    /// A server has a whole frame.
    Arrived {
        link: usize,
        frame: Frame,
    },
    /// A server does what it was asked for.
    Effect {
        link: usize,
        frame: Frame,
    },
    /// A server sends an answer.
    Answers {
        link: usize,
        frame: Frame,
        how: &'static str,
    },
    /// A server's process is killed.
    ServerKilled {
        connection: usize,
    },
    /// The end of all troubles.
    Healed,
}

/// What an effect is recognised by. Operations that stand for one intent share it.
pub(super) type Mark = usize;

/// A frame of the client's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) method: String,
    /// Whose request it is. `None`: the runtime's own.
    pub(super) operation: Option<usize>,
    /// Whose outcome it is to find out, by being sent again.
    pub(super) resolves: Option<usize>,
    /// What its effect would be recognised by.
    pub(super) mark: Option<Mark>,
    pub(super) key: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) id: Option<i64>,
}

/// How an operation ended for its caller.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    Answered {
        /// The mark that the server's answer tells.
        mark: Option<Mark>,
        is_error: bool,
        replayed: bool,
        looked_up: bool,
        attempts: u32,
    },
    /// A read, or a request that has no effect.
    Read,
    Without {
        outcome: Outcome,
        why: &'static str,
    },
}

impl End {
    pub(super) fn without(error: &CallError) -> Self {
        let why = match error {
            CallError::NotSent(not_sent) => not_sent.reason.as_str(),
            CallError::Unknown(unknown) => unknown.cause.as_str(),
            CallError::Rejected(_) => "rejected",
            CallError::Failed(_) => "failed",
        };
        Self::Without {
            outcome: error.outcome(),
            why,
        }
    }
}

/// A host's event.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) connection: usize,
    pub(super) what: Fact,
}

/// Of an event, what matters here.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fact {
    Starting {
        generation: u64,
    },
    Started {
        generation: u64,
    },
    StartFailed {
        generation: u64,
    },
    Lost {
        generation: u64,
        unanswered: usize,
    },
    Retired {
        generation: u64,
    },
    Stopped {
        generation: u64,
    },
    CircuitOpened,
    CircuitProbed,
    CircuitClosed,
    LentLost,
    Attempt {
        operation: Option<usize>,
        method: &'static str,
        generation: u64,
        number: u32,
        repeats: Option<Ground>,
        moved: bool,
    },
    Finished {
        operation: Option<usize>,
        ended: Ended,
        attempts: u32,
    },
    Unknown {
        operation: Option<usize>,
        cause: &'static str,
    },
    Late {
        operation: Option<usize>,
        ended: Ended,
    },
    LookedUp {
        operation: Option<usize>,
        found: bool,
    },
    Resolved {
        operation: Option<usize>,
        by: &'static str,
    },
    FramesDropped {
        generation: u64,
    },
    Other,
}

impl Told {
    /// The caller's operation that is handed over by this, and to which generation.
    pub(super) fn hands_over(&self) -> Option<(usize, u64)> {
        match self.what {
            Fact::Attempt {
                operation,
                generation,
                ..
            } => operation.map(|operation| (operation, generation)),
            _ => None,
        }
    }

    pub(super) fn of(event: &Event) -> Self {
        let what = match &event.what {
            Happened::SessionStarting { generation } => Fact::Starting {
                generation: generation.number(),
            },
            Happened::SessionStarted { generation, .. } => Fact::Started {
                generation: generation.number(),
            },
            Happened::StartFailed { generation, .. } => Fact::StartFailed {
                generation: generation.number(),
            },
            Happened::SessionLost {
                generation,
                unanswered,
                ..
            } => Fact::Lost {
                generation: generation.number(),
                unanswered: *unanswered,
            },
            Happened::SessionRetired { generation, .. } => Fact::Retired {
                generation: generation.number(),
            },
            Happened::SessionStopped { generation, .. } => Fact::Stopped {
                generation: generation.number(),
            },
            Happened::CircuitOpened { .. } => Fact::CircuitOpened,
            Happened::CircuitProbed => Fact::CircuitProbed,
            Happened::CircuitClosed => Fact::CircuitClosed,
            Happened::LentLost => Fact::LentLost,
            Happened::AttemptStarted {
                operation,
                kind,
                generation,
                number,
                repeats,
                moved,
                ..
            } => Fact::Attempt {
                operation: number_of(*operation),
                method: kind.method(),
                generation: generation.number(),
                number: *number,
                repeats: *repeats,
                moved: *moved,
            },
            Happened::OperationFinished {
                operation,
                ended,
                attempts,
                ..
            } => Fact::Finished {
                operation: number_of(*operation),
                ended: *ended,
                attempts: *attempts,
            },
            Happened::OutcomeUnknown {
                operation, cause, ..
            } => Fact::Unknown {
                operation: number_of(*operation),
                cause,
            },
            Happened::LateAnswer {
                operation, ended, ..
            } => Fact::Late {
                operation: number_of(*operation),
                ended: *ended,
            },
            Happened::LookedUp { operation, found } => Fact::LookedUp {
                operation: number_of(*operation),
                found: *found,
            },
            Happened::Resolved { operation, by } => Fact::Resolved {
                operation: number_of(*operation),
                by,
            },
            Happened::FramesDropped { generation, .. } => Fact::FramesDropped {
                generation: generation.number(),
            },
            _ => Fact::Other,
        };
        Self {
            connection: place_of(event.connection.as_str()),
            what,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>7} ms  ", self.at)?;
        match &self.what {
            What::Event(told) => write!(f, "{}: {:?}", CONNECTIONS[told.connection], told.what),
            what => write!(f, "{what:?}"),
        }
    }
}
