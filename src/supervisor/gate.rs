//! The circuit, as a connection knows it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::circuit::{Change, Circuit, Permission};
use crate::{
    connection::{Admission, Gate},
    event::What,
};

/// A connection's circuit behind the question that the connection asks.
pub(super) struct CircuitGate {
    pub(super) circuit: Mutex<Circuit>,
    pub(super) cool_down: Duration,
    pub(super) tell: Box<dyn Fn(What) + Send + Sync>,
}

impl CircuitGate {
    fn told(&self, change: Option<Change>) {
        match change {
            None => {}
            Some(Change::Opened) => (self.tell)(What::CircuitOpened {
                cool_down: self.cool_down,
            }),
            Some(Change::Probed) => (self.tell)(What::CircuitProbed),
            Some(Change::Closed) => (self.tell)(What::CircuitClosed),
        }
    }

    fn circuit(&self) -> std::sync::MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for CircuitGate {
    fn may_start(&self, now: std::time::Instant) -> Admission {
        let (permission, change) = self.circuit().may_start(now, rand::random());
        self.told(change);
        match permission {
            Permission::Start { after, probe } => Admission::Start { after, probe },
            Permission::Refused { retry_in } => Admission::Open { retry_in },
        }
    }

    fn open_for(&self, now: std::time::Instant) -> Option<Duration> {
        self.circuit().open_for(now)
    }

    fn failed(&self, now: std::time::Instant) {
        let change = self.circuit().failed(now);
        self.told(change);
    }

    fn proved(&self, _: std::time::Instant) {
        let change = self.circuit().proved();
        self.told(change);
    }
}
