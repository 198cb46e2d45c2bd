//! The steps, and why one is refused.

use std::fmt;

use super::state::{Ending, Reply};

/// One session: the host that has it, and its generation there, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session {
    /// The host.
    pub host: u8,
    /// The generation.
    pub generation: u8,
}

/// One thing that happens. `op` is an operation's number, `host` the number of the host in which it
/// happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    // The caller.
    /// A caller asks. Without a journal the operation is in the mailbox with that; with one, its intent
    /// has to be recorded first.
    Called { op: u8, host: u8 },
    /// An attempt that is durable is put into the mailbox.
    Mailed { op: u8, host: u8 },
    /// What waits in the mailbox or behind it is refused: closed, circuit open, start failed, no room, or
    /// its deadline passed there.
    Refused { op: u8, host: u8 },
    /// A repeat that was compared with the tools of one session waits, and that session is not in force
    /// any more. It was not sent, and that is no answer.
    Misplaced { op: u8, host: u8 },
    /// The wait for what was handed over ends, and the recall is won: it was not and will not be sent.
    GivenUp { op: u8, host: u8 },
    /// The wait for what was handed over ends, and writing had begun: nobody knows. The session ended, a
    /// deadline passed, the exchange broke, or what came is no answer.
    LostSight { op: u8, host: u8 },
    /// The caller stops waiting. What is not in the journal is recalled or cancelled with that.
    Left { op: u8 },
    /// The caller is told.
    Told { op: u8, ending: Ending },
    /// The caller is told, although the store has not taken that in time.
    ToldUnrecorded { op: u8, ending: Ending },

    // The connection.
    /// A session is being started: for what waits, or because its owner `asked`.
    Opening { host: u8, asked: bool },
    /// It takes operations.
    Opened { host: u8 },
    /// It could not be started.
    OpenFailed { host: u8 },
    /// The session in force may be dead.
    Suspected { host: u8 },
    /// A session ended.
    Ended { session: Session },
    /// The connection was closed by its owner, or taken from the supervisor.
    Closed { host: u8 },
    /// The first of what waits is handed over to the session in force.
    HandedOver { op: u8, session: Session },
    /// The connection won the recall of what a session that ended, or takes nothing any more, had not
    /// written. It waits again, in its old place.
    TakenBack { op: u8, host: u8 },

    // The wire and the server.
    /// The first byte goes out.
    Begun { op: u8, session: Session },
    /// The request goes astray.
    RequestLost { op: u8, session: Session },
    /// The server has the whole request, and does with it what its reply says.
    Arrived {
        op: u8,
        session: Session,
        reply: Reply,
    },
    /// The answer goes astray.
    AnswerLost { op: u8, session: Session },
    /// The answer is read by who waits for it.
    AnswerRead { op: u8, session: Session },
    /// The answer comes after its caller was told that nobody knows, and is recorded.
    LateAnswer { op: u8, session: Session },

    // The policy.
    /// The policy allows the operation to be sent once more.
    Repeated { op: u8, host: u8 },
    /// The status tool is asked.
    LookUpAsked { op: u8, host: u8 },
    /// The server looks, and says what it sees.
    LookUpServed { op: u8, host: u8 },
    /// What it said is read, and concluded from.
    LookUpHeard { op: u8, host: u8 },
    /// The look-up itself fails.
    LookUpLost { op: u8, host: u8 },
    /// The time passes after which, the contract says, what has not arrived never will.
    AbsenceFinal { op: u8 },

    // The journal.
    /// A fact is durable.
    Recorded { op: u8, host: u8, fact: Fact },
    /// An intent or an attempt cannot be recorded.
    RecordFailed { op: u8, host: u8 },
    /// What a host left that is gone, or whose lease is over, is marked: accepted as not sent, dispatching
    /// as unknown.
    TakenOver { op: u8, host: u8 },
    /// An operation whose outcome is unknown is taken in order to resolve it.
    Claimed { op: u8, host: u8 },
    /// It was not resolved, and is given up.
    Released { op: u8, host: u8 },

    // The hosts.
    /// The host's process ends, with all that was in its memory.
    Crashed { host: u8 },
    /// Other hosts take the host for dead: it crashed, or it stood still for too long.
    LeaseOver { host: u8 },
    /// It starts again.
    Restarted { host: u8 },
    /// A caller of a host that started again lends it another session.
    Lent { host: u8 },
}

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The intent.
    Accepted,
    /// The intent and its first attempt, in one write.
    AcceptedWithAttempt,
    /// An attempt, before it is handed over.
    Dispatching,
    /// How it ended, as far as anybody knows.
    Ended(Ending),
}

/// Why a step cannot happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Refused {}

/// Refuses, unless the rule holds.
pub(super) fn rule(holds: bool, why: &'static str) -> Result<(), Refused> {
    match holds {
        true => Ok(()),
        false => Err(Refused(why)),
    }
}
