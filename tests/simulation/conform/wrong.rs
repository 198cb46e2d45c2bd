//! Games with one thing in them that must not be, each made of one that was played.

use super::{
    super::{
        plan::{Ask, Plan},
        trace::{End, Fact, Frame, Step, Told, What},
        world::LENT,
    },
    Ahead, is_modelled,
};

use mcp_supervisor::Outcome;

/// A game that was played.
pub(in super::super) struct Game<'a> {
    pub(in super::super) trace: &'a [Step],
    pub(in super::super) plan: &'a Plan,
}

/// What is wrong, and how a game is made so. `None`: nothing in the game lends itself to it.
type Wrong = (&'static str, fn(&Game<'_>) -> Option<Vec<Step>>);

pub(in super::super) const ALL: [Wrong; 10] = [
    ("a second attempt that nothing allows", second_attempt),
    ("an effect of what was not sent", effect_of_unsent),
    ("an answer that nobody gave", answer_of_nobody),
    ("a hand-over before its record", record_after_hand_over),
    ("a session on what its caller owns", session_on_lent),
    ("not sent, of what was begun", not_sent_of_begun),
    ("a look-up that finds what is not there", look_up_of_nothing),
    (
        "a request on the wire before one that goes first",
        overtaken,
    ),
    ("a hand-over to a session that is lost", lost_session),
    ("what moved behind what came later", moved_behind),
];

impl Game<'_> {
    fn is_followed(&self, operation: usize) -> bool {
        let ahead = Ahead::of(self.trace, self.plan);
        is_modelled(&ahead, self.plan, operation)
    }

    /// With one more step behind this one.
    fn with(&self, at: usize, what: What) -> Vec<Step> {
        let mut trace = self.trace.to_vec();
        let at_ms = trace[at].at;
        trace.insert(at + 1, Step { at: at_ms, what });
        trace
    }

    /// With a step elsewhere, behind that one.
    fn moved(&self, from: usize, behind: usize) -> Vec<Step> {
        let mut trace = self.trace.to_vec();
        let step = trace.remove(from);
        trace.insert(behind, step);
        trace
    }

    /// The steps with their places.
    fn steps(&self) -> impl Iterator<Item = (usize, &What)> {
        self.trace.iter().map(|step| &step.what).enumerate()
    }

    /// The steps behind this one, until its host is gone.
    fn rest(&self, at: usize) -> impl Iterator<Item = (usize, &What)> {
        let rest = self.steps().skip(at + 1);
        rest.take_while(|(_, what)| !matches!(what, What::HostGone { .. }))
    }

    fn owned(&self, operation: usize) -> bool {
        self.plan.operations[operation].connection != LENT
    }
}

/// The hand-over of a caller's operation: which, to which generation, and whether it moved.
fn attempt(what: &What) -> Option<(usize, u64, bool)> {
    match what {
        What::Event(told) => match told.what {
            Fact::Attempt {
                operation: Some(operation),
                generation,
                moved,
                ..
            } => Some((operation, generation, moved)),
            _ => None,
        },
        _ => None,
    }
}

fn begun(what: &What) -> Option<(usize, usize, &Frame)> {
    match what {
        What::Begun { link, frame } => Some((*link, frame.operation?, frame)),
        _ => None,
    }
}

fn second_attempt(game: &Game<'_>) -> Option<Vec<Step>> {
    game.steps().find_map(|(at, what)| {
        let (operation, ..) = attempt(what)?;
        let once = game.plan.operations[operation].ask == Ask::Pay;
        let (begun, _) = game
            .rest(at)
            .find(|(_, what)| begun(what).is_some_and(|(_, it, _)| it == operation))?;
        let may = once && game.owned(operation) && game.is_followed(operation);
        may.then(|| game.with(begun, what.clone()))
    })
}

fn effect_of_unsent(game: &Game<'_>) -> Option<Vec<Step>> {
    let (there, link, like) = game.steps().find_map(|(at, what)| {
        let (link, _, frame) = begun(what)?;
        Some((at, link, frame.clone()))
    })?;
    let connection = game.plan.operations[like.operation?].connection;
    game.steps().find_map(|(at, what)| {
        let What::Told { operation, end } = what else {
            return None;
        };
        let unsent = matches!(
            end,
            End::Without {
                outcome: Outcome::NotSent,
                ..
            }
        );
        let here = game.plan.operations[*operation].connection == connection;
        let frame = Frame {
            operation: Some(*operation),
            id: Some(i64::MAX),
            ..like.clone()
        };
        let may = unsent && here && game.is_followed(*operation);
        may.then(|| game.with(at.max(there), What::Effect { link, frame }))
    })
}

fn answer_of_nobody(game: &Game<'_>) -> Option<Vec<Step>> {
    let operation = game.steps().find_map(|(_, what)| match what {
        What::Told {
            operation,
            end:
                End::Read
                | End::Answered {
                    replayed: false,
                    looked_up: false,
                    ..
                },
        } => game.is_followed(*operation).then_some(*operation),
        _ => None,
    })?;
    let mut trace = game.trace.to_vec();
    trace.retain(|step| {
        !matches!(&step.what, What::Answers { frame, .. }
            if frame.operation.or(frame.resolves) == Some(operation))
    });
    Some(trace)
}

fn record_after_hand_over(game: &Game<'_>) -> Option<Vec<Step>> {
    game.steps().find_map(|(at, what)| {
        let What::Recorded {
            operation,
            fact: "dispatching",
            ..
        } = what
        else {
            return None;
        };
        let handed = game.rest(at).find(|(_, what)| {
            let known = matches!(what, What::Recorded { operation: it, .. } if it == operation);
            known || attempt(what).is_some_and(|(it, ..)| it == *operation)
        });
        let (handed, _) = handed.filter(|(_, what)| attempt(what).is_some())?;
        game.is_followed(*operation).then(|| game.moved(at, handed))
    })
}

fn session_on_lent(game: &Game<'_>) -> Option<Vec<Step>> {
    let lent = |what: &What| matches!(what, What::Opened { connection, .. } if *connection == LENT);
    let (at, _) = game.steps().find(|(_, what)| lent(what))?;
    let told = Told {
        connection: LENT,
        what: Fact::Starting { generation: 2 },
    };
    Some(game.with(at, What::Event(Box::new(told))))
}

fn not_sent_of_begun(game: &Game<'_>) -> Option<Vec<Step>> {
    let (at, _) = game.steps().find(|(_, what)| {
        let What::Told {
            operation,
            end:
                End::Without {
                    outcome: Outcome::Unknown,
                    ..
                },
        } = what
        else {
            return false;
        };
        let mut before = game.steps().filter_map(|(_, what)| begun(what));
        before.any(|(_, it, _)| it == *operation) && game.is_followed(*operation)
    })?;
    let mut trace = game.trace.to_vec();
    if let What::Told { end, .. } = &mut trace[at].what {
        *end = End::Without {
            outcome: Outcome::NotSent,
            why: "deadline",
        };
    }
    Some(trace)
}

fn look_up_of_nothing(game: &Game<'_>) -> Option<Vec<Step>> {
    let (at, _) = game.steps().find(|(_, what)| match what {
        What::Event(told) => match told.what {
            Fact::LookedUp {
                operation: Some(operation),
                found: false,
            } => game.is_followed(operation),
            _ => false,
        },
        _ => false,
    })?;
    let mut trace = game.trace.to_vec();
    if let What::Event(told) = &mut trace[at].what
        && let Fact::LookedUp { found, .. } = &mut told.what
    {
        *found = true;
    }
    Some(trace)
}

/// Two requests that were in one queue begin the other way round.
fn overtaken(game: &Game<'_>) -> Option<Vec<Step>> {
    game.steps().find_map(|(at, what)| {
        let (link, first, _) = begun(what)?;
        if !game.owned(first) || !game.is_followed(first) {
            return None;
        }
        let next = |(at, what)| begun(what).map(|begun| (at, begun));
        let mut later = game.rest(at).filter_map(next);
        let (later, (.., second, _)) = later.find(|(_, (it, ..))| *it == link)?;
        let handed = game.steps().take(at).filter_map(|(_, what)| attempt(what));
        let both = handed.filter(|(it, ..)| *it == second).count() > 0;
        let mut between = game.rest(at).take_while(|(at, _)| *at < later);
        let served = between.any(|(_, what)| match what {
            What::Effect { frame, .. } | What::Answers { frame, .. } => {
                frame.operation == Some(first)
            }
            _ => false,
        });
        let may = both && !served && first != second && game.is_followed(second);
        may.then(|| game.moved(at, later))
    })
}

fn lost_session(game: &Game<'_>) -> Option<Vec<Step>> {
    game.steps().find_map(|(at, what)| {
        let (operation, generation, _) = attempt(what)?;
        let connection = game.plan.operations[operation].connection;
        let lost = game.rest(at).find(|(_, what)| match what {
            What::Event(told) if told.connection == connection => {
                matches!(told.what, Fact::Lost { generation: it, .. } if it == generation)
            }
            _ => false,
        });
        let (lost, _) = lost?;
        let begins =
            |(_, what): (usize, &What)| begun(what).is_some_and(|(_, it, _)| it == operation);
        let may = game.owned(operation)
            && game.is_followed(operation)
            && !game.rest(at).take_while(|(at, _)| *at < lost).any(begins);
        may.then(|| game.moved(at, lost))
    })
}

/// What moved to the next session is handed over there behind one that was not.
fn moved_behind(game: &Game<'_>) -> Option<Vec<Step>> {
    game.steps().find_map(|(at, what)| {
        let (first, generation, true) = attempt(what)? else {
            return None;
        };
        let connection = game.plan.operations[first].connection;
        let next = |(at, what)| attempt(what).map(|attempt| (at, attempt));
        let mut later = game.rest(at).filter_map(next);
        let (later, (second, ..)) = later.find(|(_, (it, in_session, _))| {
            game.plan.operations[*it].connection == connection && *in_session == generation
        })?;
        let may = first != second && game.is_followed(first) && game.is_followed(second);
        may.then(|| game.moved(at, later))
    })
}
