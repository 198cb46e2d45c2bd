//! Moments that differ in nothing that can still matter are one moment. What is left out here is out of
//! reach of every step, and was held against every promise before.

use mcp_supervisor::journal::table;

use super::{
    kept,
    machine::{Caller, Cell, Contract, Fault, Journal, Operation, Passage, Sending, State, Work},
    promises,
    world::{Moment, World},
};

impl<const N: usize> World<N> {
    pub(crate) fn forget_what_is_over(&self, moment: &mut Moment<N>) {
        self.drop_unheard_answers(&mut moment.state);
        let resolves = moment.luck.resolves > 0;
        for op in 0..N {
            let contract = self.machine.setting.contracts[op];
            let operation = &mut moment.state.ops[op];
            let counts = self.calm_at_last && op == N - 1;
            if !counts && is_over(operation, contract, resolves) && self.keeps(op, operation) {
                *operation = Operation {
                    caller: Caller::Gone,
                    ..Operation::default()
                };
            }
        }
        number_places_anew(&mut moment.state);
    }

    /// Answers for which nobody waits, and nobody ever will.
    fn drop_unheard_answers(&self, state: &mut State<N>) {
        let hears = |fault| self.machine.fault == Some(fault);
        if hears(Fault::SecondOutcome) || hears(Fault::AnswerOfAnotherSession) {
            return;
        }
        let journaled = self.machine.setting.journal != Journal::Off;
        for op in 0..N {
            for at in 0..state.ops[op].sendings.len() {
                let sending = state.ops[op].sendings[at];
                if sending.cell == Cell::Free || sending.answer != Passage::UnderWay {
                    continue;
                }
                let host = sending.session.host;
                let waits = state.ops[op].in_hand(host) == Some(&sending);
                // A late answer is heard as long as its session lives.
                let late = journaled && state.lives(sending.session);
                if !waits && !late {
                    state.ops[op].sendings[at].answer = Passage::Lost;
                }
            }
        }
        state.tidy();
    }

    fn keeps(&self, op: usize, operation: &Operation) -> bool {
        let receipts = self.machine.setting.receipts;
        kept::kept(operation, self.machine.setting.contracts[op], receipts)
    }
}

/// Whether nothing can happen to an operation any more.
fn is_over(operation: &Operation, contract: Contract, resolves: bool) -> bool {
    let nothing = |s: &Sending| s.cell == Cell::Free;
    let unknown = operation.record.state == Some(table::State::OutcomeUnknown);
    let resolvable = resolves && unknown && contract.resolves();
    promises::rests(operation) && operation.sendings.iter().all(nothing) && !resolvable
}

/// Places count from the oldest that still matters.
fn number_places_anew<const N: usize>(state: &mut State<N>) {
    for host in 0..state.hosts.len() {
        let next = state.hosts[host].next_place;
        let mut oldest = next;
        for operation in &state.ops {
            let job = &operation.jobs[host];
            if matches!(job.work, Work::Waiting | Work::Handed) {
                oldest = oldest.min(job.place);
            }
            for sending in &operation.sendings {
                if sending.cell == Cell::Queued && usize::from(sending.session.host) == host {
                    oldest = oldest.min(sending.place);
                }
            }
        }
        let shift = oldest - 1;
        let connection = &mut state.hosts[host];
        connection.next_place -= shift;
        connection.begun_up_to = connection.begun_up_to.saturating_sub(shift);
        for operation in &mut state.ops {
            let job = &mut operation.jobs[host];
            job.place = match job.work {
                Work::Waiting | Work::Handed => job.place - shift,
                _ => 0,
            };
            for sending in &mut operation.sendings {
                if usize::from(sending.session.host) != host {
                    continue;
                }
                sending.place = match sending.cell {
                    Cell::Queued => sending.place - shift,
                    // It was written, and its place is over.
                    _ => 0,
                };
            }
        }
    }
}
