//! Hosts that die, stand still, and come back.

use super::{
    Caller, Cell, Job, Journal, Life, Machine, Passage, Phase, State,
    step::{Refused, rule},
};

impl<const N: usize> Machine<N> {
    pub(super) fn crashed(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        rule(state.is_up(host), "it does not run")?;
        let at = usize::from(host);
        for operation in &mut state.ops {
            if operation.caller == Caller::Waits && operation.home == host {
                operation.caller = Caller::Gone;
            }
            operation.jobs[at] = Job::default();
            for sending in &mut operation.sendings {
                if sending.session.host != host {
                    continue;
                }
                if sending.cell == Cell::Queued {
                    // What was in its memory is gone.
                    sending.cell = Cell::Free;
                }
                if sending.answer == Passage::UnderWay {
                    sending.answer = Passage::Lost;
                }
            }
        }
        let connection = state.host(host);
        connection.life = Life::Down;
        connection.phase = Phase::Idle;
        connection.alive = 0;
        connection.suspect = false;
        Ok(())
    }

    pub(super) fn lease_over(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        rule(
            self.setting.journal == Journal::Shared,
            "only hosts that share a journal have leases",
        )?;
        match state.host(host).life {
            Life::Down => state.host(host).life = Life::Buried,
            // From now on it has another name, which has nothing.
            Life::Up if self.setting.stalls => {}
            Life::Up => return Err(Refused("it speaks in time")),
            Life::Buried => return Err(Refused("it is over already")),
        }
        self.orphan(state, host);
        Ok(())
    }

    pub(super) fn restarted(&self, state: &mut State<N>, host: u8) -> Result<(), Refused> {
        let life = state.host(host).life;
        match (self.setting.journal, life) {
            (_, Life::Up) => return Err(Refused("it runs")),
            // One that comes back sooner is to the journal as another host.
            (Journal::Shared, Life::Down) => return Err(Refused("its lease is not over")),
            (Journal::Alone, Life::Down) => self.orphan(state, host),
            (_, Life::Down | Life::Buried) => {}
        }
        state.host(host).life = Life::Up;
        Ok(())
    }
}

impl<const N: usize> State<N> {
    pub(super) fn is_up(&self, host: u8) -> bool {
        self.hosts[usize::from(host)].life == Life::Up
    }
}
