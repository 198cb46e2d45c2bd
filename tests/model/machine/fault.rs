//! The rules that can be broken, one at a time, in order to see that the promises notice.

/// A broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A call whose session was lost is sent once more, without a contract.
    ReplayOnLoss,
    /// What the server says about its tool is taken for a contract.
    HintTakenForContract,
    /// A read is asked a third time.
    ReadAskedAThirdTime,
    /// "Not sent" is concluded from a look at the cell, without winning the recall.
    CellReadForRecall,
    /// A recall that comes after writing began counts as won.
    RecallAfterBegun,
    /// What a session had not written goes to the next one, without winning the recall.
    MovedWithoutRecall,
    /// What a session had not written is taken back from the oldest on.
    OldestTakenBackFirst,
    /// What waits is handed over in another order than it came.
    QueueOutOfOrder,
    /// A session is started on what its caller owns.
    LentReconnected,
    /// What its caller owns is closed with the connection.
    LentClosed,
    /// What its caller owns is used after its loss.
    LentUsedAfterLoss,
    /// An attempt is recorded after it was handed over.
    RecordAfterHandOver,
    /// What is found dispatching after a crash is run again.
    DispatchingRunAgain,
    /// What is found dispatching after a crash is taken for "not sent".
    AbandonedTakenForNotSent,
    /// A repeat gets a key of its own.
    KeyMintedAnew,
    /// A look-up that finds nothing is taken for "not sent".
    AbsenceTakenForNotSent,
    /// An absence is final for a look-up that was asked before it became so.
    AbsenceAskedTooEarly,
    /// A host that was taken for dead goes on writing its records.
    NoFencing,
    /// A host that was taken for dead tells its caller that nothing was sent.
    NotSentByAFencedHost,
    /// "Not sent" is told although the record does not say so yet, and says that it may have been.
    NotSentUnrecorded,
    /// The answer to a request of another session with the same id is taken.
    AnswerOfAnotherSession,
    /// A late answer is told to a caller who was told already.
    SecondOutcome,
    /// The refusal of a repeat is taken for the outcome of the operation.
    RefusedRepeatSettles,
    /// A repeat that was not sent is taken for the outcome of the operation.
    UnsentRepeatSettles,
    /// A late refusal of one attempt is taken for the outcome of an operation that had several.
    LateRefusalSettles,
    /// Two hosts, or two tasks of one, resolve an operation at the same time.
    ClaimedTwice,
    /// A connection takes the session that it lost to be in force.
    LossLeftUnseen,
    /// No deadline ends a wait for an answer.
    DeadlineForgotten,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 28] = [
        Self::ReplayOnLoss,
        Self::HintTakenForContract,
        Self::ReadAskedAThirdTime,
        Self::CellReadForRecall,
        Self::RecallAfterBegun,
        Self::MovedWithoutRecall,
        Self::OldestTakenBackFirst,
        Self::QueueOutOfOrder,
        Self::LentReconnected,
        Self::LentClosed,
        Self::LentUsedAfterLoss,
        Self::RecordAfterHandOver,
        Self::DispatchingRunAgain,
        Self::AbandonedTakenForNotSent,
        Self::KeyMintedAnew,
        Self::AbsenceTakenForNotSent,
        Self::AbsenceAskedTooEarly,
        Self::NoFencing,
        Self::NotSentByAFencedHost,
        Self::NotSentUnrecorded,
        Self::AnswerOfAnotherSession,
        Self::SecondOutcome,
        Self::RefusedRepeatSettles,
        Self::UnsentRepeatSettles,
        Self::LateRefusalSettles,
        Self::ClaimedTwice,
        Self::LossLeftUnseen,
        Self::DeadlineForgotten,
    ];
}
