//! What the contract [`ToolContract::Receipts`] adds: the key in the request's `_meta`, and the question
//! for the receipt before a repeat.

use std::{sync::Arc, time::Duration};

use rmcp::model::{
    CallToolResult, ClientRequest, CreateTaskResult, CustomRequest, GetExtensions as _,
    GetMeta as _, ServerResult, Task,
};
use serde_json::Value;

use super::{
    Caller,
    attempt::Without,
    operation::{Done, Operation},
};
use crate::{
    error::{CallError, InvalidRequest, Unsettled},
    event::What,
    evidence::Outcome,
    extension::{IDEMPOTENCY_KEY, LOOK_UP, LookUp, Open, Receipt, ReceiptState, UNSETTLED},
    journal::{Fact, Failure, Settler},
    operation::{Budget, Generation, IdempotencyKey, OperationKind},
    policy::{Receipts, ToolContract},
    session::IfDeclared,
};

/// Puts the key where a server that keeps receipts looks for it.
pub(super) fn put_key(request: &mut ClientRequest, key: &IdempotencyKey) {
    let key = Value::String(key.as_str().to_owned());
    request
        .get_meta_mut()
        .insert(IDEMPOTENCY_KEY.to_owned(), key);
}

/// A key that the caller has put there by hand is the operation's key, or a mistake.
pub(super) fn check_meta(
    contract: &ToolContract,
    key: Option<&IdempotencyKey>,
    budget: &Budget,
) -> Result<(), InvalidRequest> {
    let by_hand = budget.meta.get(IDEMPOTENCY_KEY);
    let same = by_hand.is_none_or(|it| it.as_str() == key.map(IdempotencyKey::as_str));
    match contract {
        ToolContract::Receipts if !same => Err(InvalidRequest::KeyConflict),
        _ => Ok(()),
    }
}

/// Why a result does not end its operation, where the contract relies on what the server says of that.
pub(super) fn open(contract: &ToolContract, result: &ServerResult) -> Option<Open> {
    let (ToolContract::Receipts, ServerResult::CallToolResult(result)) = (contract, result) else {
        return None;
    };
    let said = result.meta.as_ref()?.get(UNSETTLED)?;
    Some(serde_json::from_value(said.clone()).unwrap_or(Open::Other))
}

/// What is recorded of a result that does not end its operation.
pub(super) fn open_fact(open: Open, attempts: u32, by: Settler) -> Fact {
    let outcome = match open {
        // Of the only attempt the server says that it changed nothing.
        Open::Busy if attempts <= 1 => Outcome::Rejected,
        Open::Busy | Open::Working | Open::OutcomeUnknown | Open::Other => Outcome::Unknown,
    };
    Fact::Without {
        outcome,
        failure: Failure::new(open.as_str()),
        by,
    }
}

impl Caller<'_> {
    /// Asks for the receipt of a tool and a key. It is not sent to a server that does not offer that.
    pub(crate) async fn receipt(
        &self,
        tool: &str,
        key: &IdempotencyKey,
        budget: &Budget,
    ) -> Result<(Receipt, Generation), CallError> {
        let kind = OperationKind::Custom;
        let params = LookUp {
            tool: tool.to_owned(),
            key: key.as_str().to_owned(),
        };
        let params = serde_json::to_value(params).ok();
        let mut request: ClientRequest = CustomRequest::new(LOOK_UP, params).into();
        request.extensions_mut().insert(IfDeclared);
        let mut operation =
            self.operation(budget.operation(), kind, Ok(Arc::new(request)), budget)?;
        let done = operation.run().await?;
        let said = match *done.result {
            ServerResult::CustomResult(result) => result.0,
            other => serde_json::to_value(other).unwrap_or_default(),
        };
        let receipt = serde_json::from_value(said).unwrap_or(Receipt::of(ReceiptState::Other));
        Ok((receipt, done.generation))
    }
}

impl Operation<'_> {
    /// What is known of the receipts that this call may rely on, after an attempt.
    pub(super) fn receipts<'a>(&'a self, without: &'a Without) -> Receipts<'a> {
        Receipts {
            tool: self.tool.as_deref().unwrap_or_default(),
            offer: without.pulse.as_ref().and_then(|pulse| pulse.receipts()),
            first_attempt_ago: self.first_attempt_ago(),
        }
    }

    /// How long ago its first attempt was made, by this process or by one before it.
    fn first_attempt_ago(&self) -> Duration {
        let here = self.first_attempt.map(|at| at.elapsed());
        self.attempted_before
            .saturating_add(here.unwrap_or_default())
    }

    /// Why receipts did not settle it, where they could not be relied on at all.
    pub(super) fn without_receipts(&self, without: &Without) -> Option<Unsettled> {
        let receipts = self.receipts(without);
        if !receipts
            .offer
            .is_some_and(|offer| offer.keeps(receipts.tool))
        {
            return Some(Unsettled::NoReceipts);
        }
        (!receipts.cover(Duration::ZERO)).then_some(Unsettled::ReceiptExpired)
    }

    /// Asks for the receipt before it repeats, where the session of the attempt offered that.
    /// `Ok(None)`: nothing is settled by it, and the repeat may go on.
    pub(super) async fn ask_for_receipt(
        &self,
        contract: &ToolContract,
        without: &Without,
    ) -> Result<Option<Done>, Unsettled> {
        if !matches!(contract, ToolContract::Receipts) {
            return Ok(None);
        }
        let offer = self.receipts(without).offer;
        match offer.is_some_and(|offer| offer.look_up) {
            true => self.ask_for_it().await,
            false => Ok(None),
        }
    }

    /// Asks for the receipt before it is sent again after its own process is gone: the session that it
    /// would be sent on is the only one whose offer is known. `Ok(None)` as above.
    pub(super) async fn ask_again_for_receipt(
        &self,
        contract: &ToolContract,
        generation: Option<Generation>,
    ) -> Result<Option<Done>, Unsettled> {
        if !matches!(contract, ToolContract::Receipts) {
            return Ok(None);
        }
        self.receipts_hold(contract, generation)?;
        let offer = generation.and_then(|generation| self.line.receipts(generation));
        match offer.is_some_and(|offer| offer.look_up) {
            true => self.ask_for_it().await,
            false => Ok(None),
        }
    }

    async fn ask_for_it(&self) -> Result<Option<Done>, Unsettled> {
        let (Some(tool), Some(key)) = (&self.tool, &self.key) else {
            return Ok(None);
        };
        let budget = Budget {
            // Zero would be a mistake of the caller's; this is only late.
            total: Some(self.times.left().max(Duration::from_millis(1))),
            cancel: self.times.cancel.clone(),
            ..Budget::default()
        };
        let asked = Box::pin(self.caller().receipt(tool, key, &budget)).await;
        // Whoever cannot be asked may still be sent the repeat, which is checked for itself.
        let Ok((receipt, generation)) = asked else {
            return Ok(None);
        };
        let result = settled_by(receipt)?;
        self.line.tell(What::LookedUp {
            operation: self.id,
            found: result.is_some(),
        });
        Ok(result.map(|result| Done {
            result: Box::new(result),
            raw: None,
            generation,
            asked: None,
            attempts: self.attempts,
            looked_up: true,
        }))
    }

    /// Whether the session that a repeat is to go to offers receipts for the tool, for long enough.
    pub(super) fn receipts_hold(
        &self,
        contract: &ToolContract,
        generation: Option<Generation>,
    ) -> Result<(), Unsettled> {
        if !matches!(contract, ToolContract::Receipts) {
            return Ok(());
        }
        let offer = generation.and_then(|generation| self.line.receipts(generation));
        let tool = self.tool.as_deref().unwrap_or_default();
        let ago = self.first_attempt_ago();
        match offer {
            Some(offer) if offer.covers(tool, ago) => Ok(()),
            Some(offer) if offer.keeps(tool) => Err(Unsettled::ReceiptExpired),
            _ => Err(Unsettled::NoReceipts),
        }
    }
}

/// What a receipt settles. `Ok(None)`: nothing, and a repeat may find out more.
fn settled_by(receipt: Receipt) -> Result<Option<ServerResult>, Unsettled> {
    let Receipt {
        state,
        result,
        task,
        ..
    } = receipt;
    match state {
        ReceiptState::OutcomeUnknown => return Err(Unsettled::ReceiptUnknown),
        ReceiptState::Expired => return Err(Unsettled::ReceiptExpired),
        _ => {}
    }
    let whole = result.and_then(|result| serde_json::from_value::<CallToolResult>(result).ok());
    if let Some(result) = whole {
        return Ok(Some(ServerResult::CallToolResult(result)));
    }
    let task = task.and_then(|task| serde_json::from_value::<Task>(task).ok());
    Ok(task.map(|task| ServerResult::CreateTaskResult(CreateTaskResult::new(task))))
}
