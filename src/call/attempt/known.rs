//! What came of an attempt.

use std::sync::Arc;

use rmcp::{Peer, RoleClient, model::ServerResult};

use crate::{
    error::{NotSentReason, Source, UnknownCause},
    evidence::{Outcome, RawResult, ServerError, SessionAfter, WireReport},
    operation::Generation,
    session::Late,
    transport::{Pulse, read},
};

/// An attempt that was answered.
pub(in crate::call) struct Answered {
    pub(in crate::call) result: Box<ServerResult>,
    /// What the tool said, where it was left as it came: the result is all but that.
    pub(in crate::call) raw: Option<Arc<RawResult>>,
    pub(in crate::call) generation: Generation,
    pub(in crate::call) asked: Option<Box<AskedBy>>,
}

impl Answered {
    /// Reads what was left as it came.
    pub(in crate::call) fn read(&mut self) {
        if let Some(raw) = self.raw.take() {
            *self.result = ServerResult::CallToolResult(read(&raw));
        }
    }
}

/// The session that asks for input.
#[derive(Clone)]
pub(in crate::call) struct AskedBy {
    pub(in crate::call) peer: Peer<RoleClient>,
    pub(in crate::call) pulse: Arc<Pulse>,
}

/// An attempt that has no answer.
pub(in crate::call) struct Without {
    pub(in crate::call) verdict: Verdict,
    pub(in crate::call) generation: Option<Generation>,
    pub(in crate::call) session: SessionAfter,
    pub(in crate::call) report: WireReport,
    pub(in crate::call) source: Option<Source>,
    /// The caller cancelled: no policy goes on from here.
    pub(in crate::call) cancelled: bool,
    /// Nothing was sent, because the one session that it may go to is not the one in force.
    pub(in crate::call) misplaced: bool,
    /// When the session of the attempt ended can be read here.
    pub(in crate::call) pulse: Option<Arc<Pulse>>,
    /// Its answer may still come, and is listened for.
    pub(in crate::call) late: Option<Box<Late>>,
}

/// What is known, with the reason.
pub(in crate::call) enum Verdict {
    NotSent(NotSentReason),
    Rejected(Option<ServerError>),
    Failed(ServerError),
    Unknown(UnknownCause),
}

impl Verdict {
    pub(in crate::call) fn outcome(&self) -> Outcome {
        match self {
            Self::NotSent(_) => Outcome::NotSent,
            Self::Rejected(_) => Outcome::Rejected,
            Self::Failed(_) => Outcome::Failed,
            Self::Unknown(_) => Outcome::Unknown,
        }
    }
}

impl From<NotSentReason> for Without {
    fn from(reason: NotSentReason) -> Self {
        Self::new(Verdict::NotSent(reason))
    }
}

impl Without {
    pub(in crate::call) fn new(verdict: Verdict) -> Self {
        Self {
            verdict,
            generation: None,
            session: SessionAfter::Kept,
            report: WireReport::default(),
            source: None,
            cancelled: false,
            misplaced: false,
            pulse: None,
            late: None,
        }
    }

    pub(super) fn misplaced() -> Self {
        Self {
            misplaced: true,
            // Never told: there is an attempt before this one, and that one is what is known.
            ..NotSentReason::Cancelled.into()
        }
    }
}
