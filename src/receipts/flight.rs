//! Calls under one key that come while the first one runs, within one process. Between processes the
//! database decides.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::watch;

use super::{
    answer::Answer,
    identity::{Arrival, Identity},
};
use crate::operation::{Fingerprint, OperationId};

/// The calls that are under way.
#[derive(Default)]
pub(crate) struct Flights(Mutex<HashMap<Identity, Flight>>);

/// One that is.
#[derive(Clone)]
pub(crate) struct Flight {
    pub(crate) id: OperationId,
    pub(crate) fingerprint: Fingerprint,
    answer: watch::Receiver<Option<Answer>>,
}

/// What a call finds.
pub(crate) enum Entered {
    /// It is the first, and has to land.
    First(Landing),
    /// Another one is under way.
    Behind(Flight),
}

/// The duty to tell those behind. Dropped without a word, it lets them look for themselves.
pub(crate) struct Landing {
    flights: Arc<Flights>,
    identity: Identity,
    answer: watch::Sender<Option<Answer>>,
}

impl Flights {
    pub(crate) fn enter(self: &Arc<Self>, arrival: &Arrival) -> Entered {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match flights.entry(arrival.identity.clone()) {
            Entry::Occupied(flight) => Entered::Behind(flight.get().clone()),
            Entry::Vacant(place) => {
                let (sender, answer) = watch::channel(None);
                place.insert(Flight {
                    id: arrival.id,
                    fingerprint: arrival.fingerprint,
                    answer,
                });
                Entered::First(Landing {
                    flights: Arc::clone(self),
                    identity: arrival.identity.clone(),
                    answer: sender,
                })
            }
        }
    }
}

impl Flight {
    /// What the first one came to, or nothing where it ended without a word.
    pub(crate) async fn landed(mut self) -> Option<Answer> {
        let landed = self.answer.wait_for(Option::is_some).await;
        landed.ok().and_then(|answer| answer.clone())
    }
}

impl Landing {
    pub(crate) fn land(self, answer: &Answer) {
        self.answer.send_replace(Some(answer.clone()));
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        let mut flights = self
            .flights
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        flights.remove(&self.identity);
    }
}
