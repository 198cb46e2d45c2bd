//! How long, how many and how fast: from the arguments, or from the environment.

use std::{env, time::Duration};

use rand::RngExt as _;

use crate::Ending;

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How long servers misbehave, in all.
    pub(crate) seconds: u64,
    pub(crate) connections: usize,
    /// How long a caller rests between calls, on the average.
    pub(crate) pace_ms: u64,
    pub(crate) seed: u64,
}

/// Each option: its name, the variable that is read where it is missing, and what holds without both.
const OPTIONS: [(&str, &str, u64); 3] = [
    ("--seconds", "SOAK_SECONDS", 8),
    ("--connections", "SOAK_CONNECTIONS", 40),
    ("--pace-ms", "SOAK_PACE_MS", 400),
];
const SEED: (&str, &str) = ("--seed", "SOAK_SEED");

impl Plan {
    pub(crate) fn read(arguments: &[String]) -> Ending<Self> {
        let mut given = Vec::new();
        for pair in arguments.chunks(2) {
            let known = OPTIONS.iter().map(|(name, ..)| *name).chain([SEED.0]);
            if !known.clone().any(|name| name == pair[0]) {
                let known = known.collect::<Vec<_>>().join(", ");
                return Err(format!("no option {}; there are {known}", pair[0]).into());
            }
            let value = pair
                .get(1)
                .ok_or_else(|| format!("{} wants a number", pair[0]))?;
            given.push((pair[0].as_str(), value.clone()));
        }
        let number = |name: &str, variable: &str| -> Ending<Option<u64>> {
            let argument = given.iter().find(|(given, _)| *given == name);
            let value = argument.map(|(_, value)| value.clone());
            let Some(value) = value.or_else(|| env::var(variable).ok()) else {
                return Ok(None);
            };
            let number = value.parse();
            Ok(Some(number.map_err(|_| {
                format!("{name} is {value:?}, which is no number")
            })?))
        };
        let mut values = [0; OPTIONS.len()];
        for (value, (name, variable, usual)) in values.iter_mut().zip(OPTIONS) {
            *value = number(name, variable)?.unwrap_or(usual);
        }
        let [seconds, connections, pace_ms] = values;
        if seconds < 4 || connections < 20 || pace_ms == 0 {
            return Err("it takes four seconds, twenty connections and some pace at least".into());
        }
        let seed = number(SEED.0, SEED.1)?;
        Ok(Self {
            seconds,
            connections: usize::try_from(connections)?,
            pace_ms,
            seed: seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000)),
        })
    }

    /// The same plan as arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let values = [self.seconds, self.connections as u64, self.pace_ms];
        let names = OPTIONS.iter().map(|(name, ..)| *name);
        names
            .zip(values)
            .chain([(SEED.0, self.seed)])
            .flat_map(|(name, value)| [name.to_owned(), value.to_string()])
            .collect()
    }

    /// How long callers call before the first measurement.
    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_secs((self.seconds / 4).clamp(2, 60))
    }

    /// How long they call after it.
    pub(crate) fn storm(&self) -> Duration {
        Duration::from_secs(self.seconds) - self.warm_up()
    }

    /// The outer deadline of the run: the time it has, time for the quiet at its ends, in which each
    /// connection is seen to work, and for a machine that is busy.
    pub(crate) fn hard(&self) -> Duration {
        Duration::from_secs(self.seconds + 80 + self.connections as u64 / 2)
    }
}
