//! What always holds of one operation, and when everything about it is over.

use mcp_supervisor::journal::table;

use super::machine::{Caller, Contract, Ending, Operation};

pub(crate) fn authorised(op: &Operation, _: Contract) -> bool {
    op.effects <= op.authorised
}

pub(crate) fn once_per_key(op: &Operation, contract: Contract) -> bool {
    contract != Contract::Keyed || op.effects <= 1
}

pub(crate) fn not_sent(op: &Operation, _: Contract) -> bool {
    let said = op.caller == Caller::Told(Ending::NotSent) || op.record.said_not_sent;
    !said || op.effects == 0
}

pub(crate) fn rejected(op: &Operation, contract: Contract) -> bool {
    // The answer to a read is the last one, also if it is a refusal.
    !said(op, Ending::Rejected, table::State::Rejected)
        || op.effects == 0
        || contract == Contract::Read
}

pub(crate) fn one_outcome(op: &Operation, _: Contract) -> bool {
    op.outcomes <= 1
}

pub(crate) fn own_answer(op: &Operation, _: Contract) -> bool {
    let said = said(op, Ending::Answered, table::State::Succeeded);
    !op.foreign_answer && (!said || op.effects > 0)
}

/// Whether its caller was told so, or the journal has it so.
fn said(op: &Operation, ending: Ending, state: table::State) -> bool {
    op.caller == Caller::Told(ending) || op.record.state == Some(state)
}

/// Whether the promises about a single operation hold.
pub(crate) fn kept(op: &Operation, contract: Contract, receipts: bool) -> bool {
    authorised(op, contract)
        && (!receipts || once_per_key(op, contract))
        && not_sent(op, contract)
        && rejected(op, contract)
        && one_outcome(op, contract)
        && own_answer(op, contract)
}
