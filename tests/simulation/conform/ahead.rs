//! What comes later in a trace.

use std::collections::{BTreeMap, BTreeSet};

use mcp_supervisor::{Outcome, extension::LOOK_UP, journal::State};

use super::{
    super::{
        machine::Reply,
        plan::Plan,
        trace::{End, Fact, Frame, Step, What},
    },
    ending,
};

pub(super) struct Ahead<'a> {
    pub(super) trace: &'a [Step],
    /// What becomes of requests, by their pipes and ids.
    fates: BTreeMap<(usize, i64), Fate>,
    /// The operations that have a key.
    keys: BTreeMap<&'a str, Vec<usize>>,
    recorded: BTreeSet<usize>,
    looked_up: BTreeSet<usize>,
}

/// What a server makes of a request.
#[derive(Clone, Copy)]
pub(super) struct Fate {
    /// Where in the trace the first of it is.
    pub(super) at: usize,
    pub(super) reply: Reply,
    /// Whether it sends an answer that says so.
    pub(super) answers: bool,
}

/// What somebody has claimed an operation for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Claim {
    /// To resolve it.
    Resolver,
    /// To record an answer that came late.
    LateAnswer,
    /// For nothing that can be seen.
    Nothing,
}

impl<'a> Ahead<'a> {
    pub(super) fn of(trace: &'a [Step], plan: &'a Plan) -> Self {
        let mut ahead = Self {
            trace,
            fates: fates(trace),
            keys: BTreeMap::new(),
            recorded: BTreeSet::new(),
            looked_up: BTreeSet::new(),
        };
        for (operation, planned) in plan.operations.iter().enumerate() {
            if let Some(key) = &planned.key {
                ahead.keys.entry(key).or_default().push(operation);
            }
        }
        for step in trace {
            match &step.what {
                What::Begun { frame, .. } => {
                    if let (Some(key), Some(operation)) = (&frame.key, frame.operation) {
                        let of_key = ahead.keys.entry(key.as_str()).or_default();
                        if !of_key.contains(&operation) {
                            of_key.push(operation);
                        }
                    }
                }
                What::Recorded { operation, .. } => drop(ahead.recorded.insert(*operation)),
                _ => {}
            }
        }
        for step in trace {
            if let What::Begun { frame, .. } = &step.what {
                let of_key = ahead.looked_up(frame).to_vec();
                ahead.looked_up.extend(of_key);
            }
        }
        ahead
    }

    /// The operations that were asked for on a connection, in that order.
    pub(super) fn asked_of(&self, plan: &Plan, connection: usize) -> Vec<usize> {
        let asked = self.trace.iter().filter_map(|step| match &step.what {
            What::Asked { operation } => Some(*operation),
            _ => None,
        });
        asked
            .filter(|it| plan.operations[*it].connection == connection)
            .collect()
    }

    pub(super) fn has_record(&self, operation: usize) -> bool {
        self.recorded.contains(&operation)
    }

    pub(super) fn was_looked_up(&self, operation: usize) -> bool {
        self.looked_up.contains(&operation)
    }

    pub(super) fn fate(&self, link: usize, frame: &Frame) -> Option<Fate> {
        self.fates.get(&(link, frame.id?)).copied()
    }

    /// The rest of this life.
    fn rest(&self, at: usize) -> impl Iterator<Item = &'a What> + '_ {
        let rest = self.trace[at + 1..].iter().map(|step| &step.what);
        rest.take_while(|what| !matches!(what, What::HostGone { .. }))
    }

    /// Whether an operation is handed over once more in this life, and then as one that moved.
    pub(super) fn next_attempt(&self, at: usize, operation: usize) -> Option<bool> {
        self.rest(at).find_map(|what| match what {
            What::Event(told) => match &told.what {
                Fact::Attempt {
                    operation: Some(it),
                    moved,
                    ..
                } if *it == operation => Some(*moved),
                _ => None,
            },
            _ => None,
        })
    }

    /// Whether a request of an operation goes into this pipe still.
    pub(super) fn begins(&self, at: usize, operation: usize, pipe: usize) -> bool {
        self.rest(at).any(|what| {
            matches!(what, What::Begun { link, frame }
                if *link == pipe && frame.operation.or(frame.resolves) == Some(operation))
        })
    }

    /// What the caller of an operation is told in this life.
    pub(super) fn told(&self, at: usize, operation: usize) -> Option<&'a End> {
        self.rest(at).find_map(|what| match what {
            What::Told { operation: it, end } if *it == operation => Some(end),
            _ => None,
        })
    }

    /// As what the call itself records how it ended, if it still does.
    pub(super) fn settled_as(&self, at: usize, operation: usize) -> Option<State> {
        self.rest(at).find_map(|what| match what {
            What::Recorded {
                operation: it,
                fact: "answered" | "without",
                by,
                state,
            } if *it == operation && *by != "late answer" => Some(*state),
            _ => None,
        })
    }

    /// Whether an operation comes to nothing that was sent, next.
    pub(super) fn is_not_sent(&self, at: usize, operation: usize) -> bool {
        let next = self.rest(at).find_map(|what| match what {
            What::Told { operation: it, end } if *it == operation => {
                Some(ending(end) == super::machine::Ending::NotSent)
            }
            What::Recorded {
                operation: it,
                fact: "without" | "answered",
                state,
                ..
            } if *it == operation => Some(*state == State::NotSent),
            _ => None,
        });
        next.unwrap_or(true)
    }

    /// Whether the look-up that begins here is the last one, and its finding nothing is final.
    pub(super) fn is_final(&self, at: usize, operation: usize) -> bool {
        let mut heard = false;
        for what in self.rest(at) {
            match what {
                What::Begun { frame, .. } if self.looks_up(frame, operation) => return false,
                What::Event(told) => match told.what {
                    Fact::LookedUp {
                        operation: Some(it),
                        found,
                    } if it == operation => match found {
                        true => return false,
                        false => heard = true,
                    },
                    _ => {}
                },
                What::Told { operation: it, end } if *it == operation => {
                    let absent = matches!(
                        end,
                        End::Without {
                            outcome: Outcome::NotSent,
                            ..
                        }
                    );
                    return heard && absent;
                }
                What::Recorded {
                    operation: it,
                    state,
                    fact: "without" | "answered",
                    ..
                } if *it == operation => return heard && *state == State::NotSent,
                _ => {}
            }
        }
        false
    }

    /// Whether a request asks what became of an operation.
    pub(super) fn looks_up(&self, frame: &Frame, operation: usize) -> bool {
        self.looked_up(frame).contains(&operation)
    }

    /// The operations that a request may ask about.
    pub(super) fn looked_up(&self, frame: &Frame) -> &[usize] {
        let asks = frame.method == LOOK_UP || frame.tool.as_deref() == Some("lookup");
        let key = frame.key.as_deref().filter(|_| asks);
        let of_key = key.and_then(|key| self.keys.get(key));
        of_key.map_or(&[], Vec::as_slice)
    }

    /// What an operation was claimed for, here.
    pub(super) fn claim(&self, at: usize, operation: usize) -> Claim {
        for what in self.rest(at) {
            match what {
                What::Released { operation: it } if *it == operation => return Claim::Nothing,
                What::Recorded {
                    operation: it, by, ..
                } if *it == operation => {
                    return match *by {
                        "late answer" => Claim::LateAnswer,
                        // An intent is withdrawn that its store may have taken.
                        "call" => Claim::Nothing,
                        _ => Claim::Resolver,
                    };
                }
                What::Begun { frame, .. }
                    if self.looks_up(frame, operation) || frame.resolves == Some(operation) =>
                {
                    return Claim::Resolver;
                }
                What::Event(told) => match told.what {
                    Fact::LookedUp {
                        operation: Some(it),
                        ..
                    } if it == operation => return Claim::Resolver,
                    _ => {}
                },
                _ => {}
            }
        }
        Claim::Nothing
    }
}

fn fates(trace: &[Step]) -> BTreeMap<(usize, i64), Fate> {
    let mut fates: BTreeMap<(usize, i64), Fate> = BTreeMap::new();
    for (at, step) in trace.iter().enumerate() {
        match &step.what {
            What::Effect { link, frame } => {
                let Some(id) = frame.id else { continue };
                fates.entry((*link, id)).or_insert(Fate {
                    at,
                    reply: Reply::Result,
                    answers: false,
                });
            }
            What::Answers { link, frame, how } => {
                let Some(id) = frame.id else { continue };
                let known = fates.get(&(*link, id)).copied();
                let ran = known.is_some();
                let reply = match *how {
                    "answer" => Reply::Result,
                    "tool error" => Reply::Error,
                    "failed" if ran => Reply::Error,
                    "failed" => Reply::Failure,
                    "rejected" => Reply::Refusal,
                    _ => continue,
                };
                if known.is_some_and(|known| known.answers) {
                    continue;
                }
                let fate = Fate {
                    at: known.map_or(at, |known| known.at),
                    reply,
                    answers: true,
                };
                fates.insert((*link, id), fate);
            }
            _ => {}
        }
    }
    fates
}
