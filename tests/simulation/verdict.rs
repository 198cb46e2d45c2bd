//! What has to be true of any game.

use std::collections::BTreeMap;

use mcp_supervisor::{
    Outcome,
    event::Ended,
    journal::{Fact as Recorded, Record, Settler, State},
};

use super::{
    plan::{Ask, MOST_ATTEMPTS, Plan},
    trace::{End, Fact, Frame, Mark, Told, What},
    world::{LENT, World, id_of, number_of},
};

/// Reasons of a call that sends nothing because another one stands for the same intent: what was sent
/// is the other one's.
const ANOTHERS: [&str; 8] = [
    "absent",
    "still_runs",
    "other_arguments",
    "identity_taken",
    "answer_not_kept",
    "settled_by_verdict",
    "answer_forgotten",
    "was_stopped",
];

/// What a trace says of one operation.
#[derive(Default)]
struct Seen<'a> {
    asked: usize,
    told: Vec<&'a End>,
    left: bool,
    /// Its host was killed before its caller was told.
    killed: bool,
    /// Frames of it that were begun.
    begun: Vec<&'a Frame>,
    /// How often it was begun in order to resolve it.
    resent: usize,
    /// Hand-overs of an attempt that was not handed over before.
    attempts: usize,
    /// The number of the last attempt of the call itself, without those of whoever resolves it.
    highest: u32,
    finished: Vec<Ended>,
    /// How often it was told as over before its caller was told, and how often somebody had it in hand
    /// who resolves it: its record is there sooner than its caller hears of it.
    finished_first: usize,
    claimed_first: usize,
    /// How often somebody wanted to know what became of it.
    resolving: usize,
    /// How often it was asked for again, under its key, which finds it out as well.
    again: usize,
}

/// The first promise that a game broke.
pub(super) fn judge(world: &World, plan: &Plan) -> Result<(), String> {
    if let Some(broken) = &world.broken {
        return Err(broken.clone());
    }
    let seen = gather(world, plan);
    for (operation, seen) in seen.iter().enumerate() {
        let whose = |what: &str| format!("operation {operation}: {what}");
        one_outcome(seen).map_err(|what| whose(&what))?;
        what_was_not_sent(seen).map_err(|what| whose(&what))?;
        what_was_sent(seen, plan, operation).map_err(|what| whose(&what))?;
        the_truth(world, plan, seen, operation).map_err(|what| whose(&what))?;
    }
    effects(world, plan, &seen)?;
    in_order(world, plan)?;
    sessions(world)?;
    if plan.journal {
        the_journal(world, plan, &seen)?;
    }
    Ok(())
}

fn gather<'a>(world: &'a World, plan: &Plan) -> Vec<Seen<'a>> {
    let mut all: Vec<Seen<'a>> = plan.operations.iter().map(|_| Seen::default()).collect();
    let mut running = Vec::new();
    for step in &world.trace {
        match &step.what {
            What::Asked { operation } => {
                all[*operation].asked += 1;
                let key = &plan.operations[*operation].key;
                for (other, planned) in plan.operations.iter().enumerate() {
                    all[other].again += usize::from(key.is_some() && planned.key == *key);
                }
                running.push(*operation);
            }
            What::Told { operation, end } => {
                all[*operation].told.push(end);
                all[*operation].finished_first = all[*operation].finished.len();
                running.retain(|it| it != operation);
            }
            What::Claimed { operation } if all[*operation].told.is_empty() => {
                all[*operation].claimed_first += 1;
            }
            What::Left { operation } => {
                all[*operation].left = true;
                running.retain(|it| it != operation);
            }
            What::Resolving { operation } => all[*operation].resolving += 1,
            What::HostGone { killed: true } => {
                for operation in running.drain(..) {
                    all[operation].killed = true;
                }
            }
            What::Begun { frame, .. } => {
                if let Some(operation) = frame.operation {
                    all[operation].begun.push(frame);
                }
                if let Some(operation) = frame.resolves {
                    all[operation].resent += 1;
                }
            }
            What::Event(told) => match &told.what {
                Fact::Attempt {
                    operation: Some(operation),
                    moved: false,
                    number,
                    ..
                } => {
                    let seen = &mut all[*operation];
                    seen.attempts += 1;
                    if seen.told.is_empty() && seen.claimed_first == 0 {
                        seen.highest = seen.highest.max(*number);
                    }
                }
                Fact::Finished {
                    operation: Some(operation),
                    ended,
                    ..
                } => all[*operation].finished.push(*ended),
                _ => {}
            },
            _ => {}
        }
    }
    all
}

type Verdict = Result<(), String>;

fn that(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Who asks is told once, or went away, or their host was killed; and it is told as over once.
fn one_outcome(seen: &Seen<'_>) -> Verdict {
    let ends = seen.told.len() + usize::from(seen.left) + usize::from(seen.killed);
    that(ends == seen.asked, || {
        format!("asked for {} times, and ended {ends} times", seen.asked)
    })?;
    // Of one that goes on without its caller, a host that is killed tells no end.
    let finished = seen.finished.len();
    let told_first = 1..=1 + seen.claimed_first;
    let once = seen.told.is_empty() || told_first.contains(&seen.finished_first);
    that(
        once && finished <= seen.asked + seen.resolving + seen.again,
        || format!("told as over {finished} times: {:?}", seen.finished),
    )?;
    let Some(end) = seen.told.first() else {
        return Ok(());
    };
    let agrees = |ended: &Ended| match (end, ended) {
        (End::Answered { is_error, .. }, Ended::ToolError) => *is_error,
        (End::Answered { is_error, .. }, Ended::Answered) => !is_error,
        (End::Read, Ended::Answered) => true,
        (End::Without { outcome, .. }, Ended::Without(ended)) => outcome == ended,
        _ => false,
    };
    let first = &seen.finished[..seen.finished_first];
    that(first.iter().any(agrees), || {
        format!("its caller was told {end:?}, and everybody else {first:?}")
    })
}

/// Not sent is not sent, ever; and unknown is what may have been.
fn what_was_not_sent(seen: &Seen<'_>) -> Verdict {
    for end in &seen.told {
        let End::Without { outcome, why } = end else {
            continue;
        };
        if *outcome == Outcome::NotSent && !ANOTHERS.contains(why) {
            that(seen.begun.is_empty() && seen.resent == 0, || {
                format!("not sent ({why}), and it was on the wire")
            })?;
        }
        // Of what is not recorded as unsent nobody here knows what whoever takes it over makes of it.
        if *outcome == Outcome::Unknown && !matches!(*why, "in_journal" | "unrecorded") {
            that(seen.attempts > 0, || {
                format!("unknown ({why}), and nothing of it was handed over")
            })?;
        }
    }
    let kept_back = seen.finished.iter().any(|ended| {
        matches!(
            ended,
            Ended::Abandoned {
                perhaps_sent: false
            }
        )
    });
    that(!kept_back || seen.begun.is_empty(), || {
        "abandoned before it was sent, and it was on the wire".to_owned()
    })
}

/// At most once, unless the client's own policy allows more; and never more often than is told.
fn what_was_sent(seen: &Seen<'_>, plan: &Plan, operation: usize) -> Verdict {
    let planned = &plan.operations[operation];
    let calls = seen.begun.len();
    let most = match planned.ask {
        _ if planned.connection == LENT => 1,
        Ask::Pay | Ask::PayStatus | Ask::Custom => 1,
        Ask::Ping | Ask::ReadResource => 2,
        Ask::Peek | Ask::PayKeyed | Ask::Order => MOST_ATTEMPTS as usize,
    };
    that(calls <= most, || {
        format!("{:?} was on the wire {calls} times", planned.ask)
    })?;
    let highest = seen.highest;
    that(highest <= MOST_ATTEMPTS, || {
        format!("handed over as attempt {highest}")
    })?;
    that(calls <= seen.attempts, || {
        format!("on the wire {calls} times, by {} attempts", seen.attempts)
    })?;
    let keys: Vec<_> = seen.begun.iter().map(|frame| &frame.key).collect();
    that(keys.windows(2).all(|two| two[0] == two[1]), || {
        "it went out under two keys".to_owned()
    })
}

/// What callers are told is what the servers did and said.
fn the_truth(world: &World, plan: &Plan, seen: &Seen<'_>, operation: usize) -> Verdict {
    let planned = &plan.operations[operation];
    let server = &world.servers[planned.connection];
    let said = |what| {
        let said = server.said.get(&operation);
        said.is_some_and(|said| said.contains(what))
    };
    for end in &seen.told {
        match end {
            End::Answered { mark, is_error, .. } => {
                that(*mark == Some(planned.mark), || {
                    format!("answered with another's answer: {end:?}")
                })?;
                let ran = server.effects.contains_key(&planned.mark);
                that(ran || *is_error, || "answered, and it never ran".to_owned())?;
            }
            End::Without { outcome, why } => {
                // What the journal has from an earlier call with the same key was said to that one.
                let own = planned.key.is_none() || !plan.journal;
                let honest = match outcome {
                    Outcome::Rejected => said("rejected") || said("answer"),
                    Outcome::Failed => said("failed") || said("session over"),
                    Outcome::NotSent | Outcome::Unknown => true,
                };
                that(honest || !own, || {
                    format!("{outcome} ({why}), and nobody said so")
                })?;
            }
            End::Read => {}
        }
    }
    Ok(())
}

/// How many attempts were told of the operations that stand for one intent.
fn attempts(plan: &Plan, seen: &[Seen<'_>], mark: Mark) -> u32 {
    let of_mark = plan
        .operations
        .iter()
        .zip(seen)
        .filter(|(it, _)| it.mark == mark);
    let attempts: usize = of_mark.map(|(_, seen)| seen.attempts).sum();
    u32::try_from(attempts).unwrap_or(u32::MAX)
}

/// No effect more often than the client's policy authorised attempts.
fn effects(world: &World, plan: &Plan, seen: &[Seen<'_>]) -> Verdict {
    for planned in &plan.operations {
        let server = &world.servers[planned.connection];
        let many = server
            .effects
            .get(&planned.mark)
            .copied()
            .unwrap_or_default();
        let most = match planned.ask {
            Ask::Peek => attempts(plan, seen, planned.mark),
            // Asked for twice by callers that give it a key, where no journal knows that.
            Ask::PayStatus if !plan.journal => {
                let same = plan.operations.iter().filter(|it| it.mark == planned.mark);
                u32::try_from(same.count()).unwrap_or(u32::MAX)
            }
            _ => 1,
        };
        that(many <= most, || {
            format!(
                "{:?}, mark {}, has {many} effects",
                planned.ask, planned.mark
            )
        })?;
        let mut keys = server.asked.get(&planned.mark).into_iter().flatten();
        let first = keys.next();
        that(keys.all(|key| Some(key) == first), || {
            format!("mark {} was asked for under two keys", planned.mark)
        })?;
    }
    let invented = world
        .servers
        .iter()
        .flat_map(|server| server.effects.keys());
    let mut invented = invented.filter(|mark| **mark < 1_000);
    that(
        invented.all(|mark| plan.operations.iter().any(|it| it.mark == *mark)),
        || "an effect that nobody asked for".to_owned(),
    )
}

/// Calls go into a mailbox in the order in which they are made, out of it in the same, and onto the
/// wire in the same. What is taken back from a lost session keeps its place.
fn in_order(world: &World, plan: &Plan) -> Verdict {
    let mut life = 0;
    let mut newest: BTreeMap<usize, u64> = BTreeMap::new();
    let mut of_link: BTreeMap<usize, (usize, usize, u64)> = BTreeMap::new();
    let mut handed: BTreeMap<(usize, usize, u64), Vec<usize>> = BTreeMap::new();
    let mut asked: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut first: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    let mut places: BTreeMap<usize, u64> = BTreeMap::new();
    let mut last_place: BTreeMap<(usize, usize, u64), (u64, usize)> = BTreeMap::new();
    let mut next_place = 0;
    for step in &world.trace {
        match &step.what {
            What::HostStarted => {
                life += 1;
                asked.clear();
                first.clear();
            }
            What::Asked { operation } => {
                let connection = plan.operations[*operation].connection;
                asked.entry(connection).or_default().push(*operation);
            }
            What::Event(told) => match &told.what {
                Fact::Starting { generation } => {
                    newest.insert(told.connection, *generation);
                }
                Fact::Attempt {
                    operation: Some(operation),
                    generation,
                    number,
                    moved,
                    ..
                } => {
                    let place = (life, told.connection, *generation);
                    handed.entry(place).or_default().push(*operation);
                    if !moved {
                        next_place += 1;
                        places.insert(*operation, next_place);
                    }
                    let here = places.get(operation).copied().unwrap_or_default();
                    let before = last_place.insert(place, (here, *operation));
                    that(before.is_none_or(|(before, _)| before < here), || {
                        format!("operation {operation} moved, and behind {before:?}")
                    })?;
                    if *number == 1 && !moved && goes_straight(plan, *operation) {
                        let first = first.entry(told.connection).or_default();
                        let order = asked.entry(told.connection).or_default();
                        let at = |of: &usize| order.iter().position(|it| it == of);
                        let overtaken = first.iter().find(|it| at(it) > at(operation));
                        that(overtaken.is_none(), || {
                            format!("operation {operation} was overtaken by {overtaken:?}")
                        })?;
                        first.push(*operation);
                    }
                }
                _ => {}
            },
            What::Opened { link, connection } if *connection != LENT => {
                let generation = newest.get(connection).copied().unwrap_or_default();
                of_link.insert(*link, (life, *connection, generation));
            }
            What::Begun { link, frame } => {
                let (Some(place), Some(operation)) = (of_link.get(link), frame.operation) else {
                    continue;
                };
                let waiting = handed.entry(*place).or_default();
                let Some(at) = waiting.iter().position(|it| *it == operation) else {
                    return Err(format!(
                        "operation {operation} is on the wire of a session that it was not handed \
                         to, or behind one that was handed over after it"
                    ));
                };
                // Those before it were taken back: they come no more on this session.
                waiting.drain(..=at);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether an operation goes into its mailbox in the moment in which it is asked for, or waits for a
/// place with all others.
fn goes_straight(plan: &Plan, operation: usize) -> bool {
    let planned = &plan.operations[operation];
    match planned.ask {
        Ask::Pay | Ask::PayStatus => !plan.journal,
        Ask::Ping | Ask::ReadResource | Ask::Custom => true,
        // Their schemas are read first.
        Ask::Peek | Ask::PayKeyed | Ask::Order => false,
    }
}

/// No session is told of that no server has greeted.
fn sessions(world: &World) -> Verdict {
    let mut newest: BTreeMap<(usize, u64), usize> = BTreeMap::new();
    let mut starting = BTreeMap::new();
    let mut greeted = Vec::new();
    for step in &world.trace {
        match &step.what {
            What::HostStarted => newest.clear(),
            What::Opened { link, connection } => {
                if let Some(generation) = starting.get(connection) {
                    newest.insert((*connection, *generation), *link);
                }
            }
            What::Answers { link, frame, .. } if is_greeting(frame) => greeted.push(*link),
            What::Event(told) => match told.what {
                Fact::Starting { generation } => {
                    starting.insert(told.connection, generation);
                }
                Fact::Started { generation } => {
                    let link = newest.get(&(told.connection, generation));
                    that(link.is_some_and(|link| greeted.contains(link)), || {
                        format!("session {generation} was never greeted")
                    })?;
                }
                _ => {}
            },
            _ => {}
        }
    }
    Ok(())
}

fn is_greeting(frame: &Frame) -> bool {
    matches!(frame.method.as_str(), "initialize" | "server/discover")
}

/// The journal has what was asked for and nothing else, and each of it is settled, or unknown for a
/// reason.
fn the_journal(world: &World, plan: &Plan, seen: &[Seen<'_>]) -> Verdict {
    let mut holders: BTreeMap<String, usize> = BTreeMap::new();
    for record in world.book.records() {
        let Some(operation) = number_of(record.intent.operation) else {
            // The look-ups and calls in the end have ids of their own.
            continue;
        };
        let whose = |what: &str| format!("the journal, operation {operation}: {what}");
        let asked = seen.get(operation).is_some_and(|seen| seen.asked > 0);
        that(asked, || whose("nobody asked for it"))?;
        that(is_settled_or_says_why_not(record), || {
            whose(&format!("unsettled without a reason: {record:?}"))
        })?;
        let never = is_proof(record) && !seen[operation].begun.is_empty();
        that(!never, || whose("not sent, and it was on the wire"))?;
        if let Some(key) = record
            .intent
            .key
            .as_ref()
            .filter(|_| !record.state.frees_its_key())
        {
            let key = format!("{} {}", record.intent.connection, key.as_str());
            let other = holders.insert(key, operation);
            that(other.is_none(), || whose(&format!("{other:?} has its key")))?;
        }
    }
    for (operation, seen) in seen.iter().enumerate() {
        let mut found = world.book.records();
        let found = found.find(|record| record.intent.operation == id_of(operation));
        let state = found.map(|record| record.state);
        let whose = |what: &str| format!("the journal, operation {operation}, {state:?}: {what}");
        let is_call = plan.operations[operation].ask.tool().is_some();
        that(!is_call || seen.begun.is_empty() || state.is_some(), || {
            whose("it was on the wire, and is forgotten")
        })?;
        let Some(end) = seen.told.first().filter(|_| is_call && state.is_some()) else {
            continue;
        };
        // Of what the store would not take, it knows less than was told, and may have been told to find
        // it out. Of what was given up before its first write was done, too, where the host ends
        // before that is put right.
        let given_up = matches!(
            end,
            End::Without {
                outcome: Outcome::NotSent,
                why: "deadline" | "cancelled"
            }
        );
        let left_open = given_up && state == Some(State::OutcomeUnknown);
        let refused = left_open || world.book.refused.contains(&id_of(operation));
        let agrees = refused
            || match end {
                End::Answered { replayed: true, .. } | End::Read => true,
                End::Answered {
                    is_error: false, ..
                } => state == Some(State::Succeeded),
                End::Answered { is_error: true, .. } => state == Some(State::Failed),
                End::Without { outcome, why } => match outcome {
                    Outcome::Rejected => state == Some(State::Rejected),
                    Outcome::Failed => state == Some(State::Failed),
                    Outcome::NotSent if *why == "journal" => true,
                    Outcome::NotSent => state.is_some_and(State::frees_its_key),
                    Outcome::Unknown => true,
                },
            };
        that(agrees, || whose(&format!("its caller was told {end:?}")))?;
    }
    Ok(())
}

fn is_settled_or_says_why_not(record: &Record) -> bool {
    record.state.is_settled()
        || record.state == State::OutcomeUnknown
            && record.history.iter().any(|entry| match &entry.fact {
                Recorded::Without {
                    outcome, failure, ..
                } => *outcome == Outcome::Unknown && !failure.cause.is_empty(),
                Recorded::Abandoned { host } => !host.is_empty(),
                _ => false,
            })
}

/// Whether it is recorded as proven that nothing of it was sent; a look-up proves no such thing.
fn is_proof(record: &Record) -> bool {
    let by_look_up = record.history.iter().any(|entry| match &entry.fact {
        Recorded::Without { by, failure, .. } => {
            *by == Settler::LookUp || failure.cause == "absent"
        }
        _ => false,
    });
    record.state == State::NotSent && !by_look_up
}

/// What happened in a game, for the eyes of whoever runs many.
pub(super) fn tally(world: &World, tally: &mut BTreeMap<String, u64>) {
    let mut count = |what: String| *tally.entry(what).or_default() += 1;
    for step in &world.trace {
        match &step.what {
            What::Told { end, .. } => count(match end {
                End::Answered {
                    looked_up: true, ..
                } => "told: answered by a look-up".to_owned(),
                End::Answered { replayed: true, .. } => "told: answered by the journal".to_owned(),
                End::Answered { attempts: 2.., .. } => "told: answered after a repeat".to_owned(),
                End::Answered { .. } => "told: answered".to_owned(),
                End::Read => "told: a read or request".to_owned(),
                End::Without { outcome, why } => format!("told: {outcome} ({why})"),
            }),
            What::Left { .. } => count("a caller left".to_owned()),
            What::HostGone { killed: true } => count("a host was killed".to_owned()),
            What::ServerKilled { .. } => count("a server was killed".to_owned()),
            What::Broken { .. } => count("a pipe broke".to_owned()),
            What::Effect { .. } => count("an effect".to_owned()),
            What::Resolved { how, .. } => count(format!("resolved: {how}")),
            What::Event(told) => count(event_word(told)),
            _ => {}
        }
    }
}

fn event_word(told: &Told) -> String {
    let word = format!("{:?}", told.what);
    let word = word.split([' ', '{']).next().unwrap_or_default();
    match &told.what {
        Fact::Attempt { moved: true, .. } => "event: an attempt moved".to_owned(),
        Fact::Attempt {
            repeats: Some(ground),
            ..
        } => format!("event: a repeat ({})", ground.as_str()),
        _ => format!("event: {word}"),
    }
}
