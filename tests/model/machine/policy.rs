//! What the client's policy allows after an unknown outcome. The crate's own function says it.

use std::time::Duration;

use mcp_supervisor::{
    Outcome, ToolContract,
    evidence::SessionAfter,
    extension::Offer,
    operation::OperationKind,
    policy::{Decision, Receipts, Repeats, Situation, decide},
};

use super::{
    Contract, Ending, Fault, Job, Look, Machine, Passage, State, Work,
    step::{Refused, rule},
};

impl<const N: usize> Machine<N> {
    pub(super) fn repeated(&self, state: &mut State<N>, op: u8, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let job = *state.job(op, host);
        rule(
            job.work == Work::Known(Ending::Unknown) && !job.spent && job.look == Look::None,
            "only an unknown outcome is a reason to send again",
        )?;
        let contract = self.setting.contracts[usize::from(op)];
        let policy = self.decide(contract, &job) == Decision::Repeat(Duration::ZERO);
        let fault = match (contract, self.fault) {
            (Contract::AtMostOnce, Some(Fault::ReplayOnLoss)) => job.session_lost,
            (Contract::AtMostOnce, Some(Fault::HintTakenForContract)) => !job.session_lost,
            (Contract::Read, Some(Fault::ReadAskedAThirdTime)) => job.attempts == 2,
            _ => false,
        };
        rule(policy || fault, "the policy does not allow it")?;
        state.op(op).authorised += u8::from(policy);
        let job = state.job(op, host);
        job.attempts += 1;
        job.before = true;
        match self.setting.records(op) {
            false => state.queue(op, host),
            true => job.work = Work::Due,
        }
        Ok(())
    }

    pub(super) fn look_up_asked(
        &self,
        state: &mut State<N>,
        op: u8,
        host: u8,
    ) -> Result<(), Refused> {
        rule(state.is_up(host), "its host does not run")?;
        let job = *state.job(op, host);
        let most = self.setting.max_attempts;
        rule(
            job.work == Work::Known(Ending::Unknown)
                && !job.spent
                && job.look == Look::None
                && job.looks < most,
            "only an unknown outcome is looked up, and so often",
        )?;
        let contract = self.setting.contracts[usize::from(op)];
        let wanted = match contract {
            Contract::Receipts => Decision::Repeat(Duration::ZERO),
            _ => Decision::LookUp(Duration::ZERO),
        };
        rule(
            self.decide(contract, &job) == wanted,
            "the policy does not allow it",
        )?;
        let late = state.op(op).absence_final;
        let job = state.job(op, host);
        job.look = Look::Asked { late };
        job.looks += 1;
        Ok(())
    }

    pub(super) fn look_up_served(
        &self,
        state: &mut State<N>,
        op: u8,
        host: u8,
    ) -> Result<(), Refused> {
        let found = state.op(op).effects > 0;
        let job = state.job(op, host);
        let Look::Asked { late } = job.look else {
            return Err(Refused("nobody asks"));
        };
        job.look = Look::Served { late, found };
        Ok(())
    }

    pub(super) fn look_up_heard(
        &self,
        state: &mut State<N>,
        op: u8,
        host: u8,
    ) -> Result<(), Refused> {
        let passed = state.op(op).absence_final;
        let job = state.job(op, host);
        let Look::Served { late, found } = job.look else {
            return Err(Refused("the server has not looked"));
        };
        job.look = Look::None;
        if found {
            job.work = Work::Known(Ending::Answered);
            job.spent = true;
            return Ok(());
        }
        // Final only for a look-up that was itself asked after that moment.
        let is_final = late || passed && self.broken(Fault::AbsenceAskedTooEarly);
        if is_final || self.broken(Fault::AbsenceTakenForNotSent) {
            job.work = Work::Known(Ending::NotSent);
            job.spent = true;
        }
        Ok(())
    }

    pub(super) fn look_up_lost(
        &self,
        state: &mut State<N>,
        op: u8,
        host: u8,
    ) -> Result<(), Refused> {
        let contract = self.setting.contracts[usize::from(op)];
        let job = state.job(op, host);
        rule(job.look != Look::None, "nobody asks")?;
        job.look = Look::None;
        // Where receipts cannot be asked for, the repeat is still allowed.
        job.spent |= contract != Contract::Receipts;
        Ok(())
    }

    /// The operator of the client has stated that no request arrives later than this.
    pub(super) fn absence_final(&self, state: &mut State<N>, op: u8) -> Result<(), Refused> {
        let contract = self.setting.contracts[usize::from(op)];
        rule(
            contract == Contract::StatusFinal,
            "its contract says of no time that absence is final after it",
        )?;
        let operation = *state.op(op);
        rule(!operation.absence_final, "it is final already")?;
        let unknown = |job: &Job| job.work == Work::Known(Ending::Unknown);
        rule(
            operation.jobs.iter().any(unknown),
            "nobody wants to know whether it ran",
        )?;
        // Of a host that is taken for dead, nobody asks whether its sessions are over.
        let mut sent = operation.sendings.iter();
        let over = sent.all(|s| !state.lives(s.session)) || operation.record.abandoned;
        rule(over, "the time counts from the end of the session")?;
        let lives: Vec<bool> = operation
            .sendings
            .iter()
            .map(|s| state.lives(s.session))
            .collect();
        let operation = state.op(op);
        operation.absence_final = true;
        for (sending, lives) in operation.sendings.iter_mut().zip(lives) {
            if !lives && sending.request == Passage::UnderWay {
                sending.request = Passage::Lost;
            }
        }
        Ok(())
    }

    /// What the crate decides.
    pub(super) fn decide(&self, contract: Contract, job: &Job) -> Decision {
        let of_tool = match contract {
            Contract::AtMostOnce | Contract::Read | Contract::Request => ToolContract::AtMostOnce,
            Contract::Idempotent => ToolContract::Idempotent,
            Contract::Keyed => ToolContract::keyed("key"),
            Contract::Receipts => ToolContract::Receipts,
            Contract::Status => ToolContract::status("status", "key"),
            Contract::StatusFinal => ToolContract::Status {
                tool: "status".to_owned(),
                argument: "key".to_owned(),
                absence_final_after: Some(Duration::from_secs(60)),
            },
        };
        let offer = Offer::new(Duration::from_secs(3_600), ["tool"]);
        let situation = Situation {
            kind: match contract {
                Contract::Read => OperationKind::ListTools,
                Contract::Request => OperationKind::Custom,
                _ => OperationKind::ToolCall,
            },
            contract: &of_tool,
            outcome: Outcome::Unknown,
            session: match job.session_lost {
                true => SessionAfter::Lost,
                false => SessionAfter::Suspect,
            },
            lent: self.setting.lent,
            has_key: true,
            receipts: Receipts {
                tool: "tool",
                offer: Some(&offer),
                ..Receipts::default()
            },
            attempts: u32::from(job.attempts),
            remaining: Duration::from_secs(60),
            retry_after: None,
            jitter: 0.0,
        };
        let repeats = Repeats {
            max_attempts: u32::from(self.setting.max_attempts),
            ..Repeats::default()
        };
        decide(&situation, &repeats)
    }
}
