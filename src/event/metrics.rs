//! Events as numbers, through the `metrics` facade.
//!
//! Labels are few and their values bounded: the connection's name, which the host gives, and words
//! of this crate's. Never a tool's name, which is the server's to choose.

use std::sync::{Arc, OnceLock};

use metrics::{Key, Label, Level, Metadata, SharedString, Unit, with_recorder};

use super::{Ended, Ground, What};
use crate::operation::OperationKind;

static METADATA: Metadata<'static> =
    Metadata::new("mcp_supervisor", Level::INFO, Some(module_path!()));

const OPERATIONS: &str = "mcp_supervisor.operations";
const IN_FLIGHT: &str = "mcp_supervisor.operations.in_flight";
const DURATION: &str = "mcp.client.operation.duration";
const UNKNOWN: &str = "mcp_supervisor.unknown_outcomes";
const REPLAYS: &str = "mcp_supervisor.replays";
const LOOK_UPS: &str = "mcp_supervisor.look_ups";
const RESOLVED: &str = "mcp_supervisor.resolved";
const LATE_ANSWERS: &str = "mcp_supervisor.late_answers";
const QUEUE_WAIT: &str = "mcp_supervisor.queue.wait";
const STARTED: &str = "mcp_supervisor.sessions.started";
const FAILED: &str = "mcp_supervisor.sessions.failed";
const LOST: &str = "mcp_supervisor.sessions.lost";
const RECONNECTS: &str = "mcp_supervisor.reconnects";
const CIRCUIT: &str = "mcp_supervisor.circuit.changes";
const RESTARTS: &str = "mcp_supervisor.actor_restarts";
const CATALOG_CHANGES: &str = "mcp_supervisor.catalog.changes";
const CATALOG_KEPT: &str = "mcp_supervisor.catalog.kept";
const DROPPED: &str = "mcp_supervisor.frames.dropped";

/// Says to the recorder that is installed now what each metric is.
pub(super) fn describe() {
    let counters = [
        (OPERATIONS, "Operations that ended, by how they ended"),
        (
            UNKNOWN,
            "Operations of which nobody knows whether they ran, by the cause",
        ),
        (
            REPLAYS,
            "Requests sent again that may have been sent before, by what allows it",
        ),
        (
            LOOK_UPS,
            "Questions to a contract's status tool, by whether it knew",
        ),
        (
            RESOLVED,
            "Operations whose outcome was unknown and became known, by how",
        ),
        (
            LATE_ANSWERS,
            "Answers that settled a recorded operation whose outcome was unknown",
        ),
        (STARTED, "Sessions that were negotiated"),
        (FAILED, "Sessions that could not be started"),
        (LOST, "Sessions that were lost"),
        (RECONNECTS, "Sessions that took the place of an earlier one"),
        (CIRCUIT, "Changes of the circuit, by what it became"),
        (
            RESTARTS,
            "Connection actors that failed and got a new mailbox",
        ),
        (
            CATALOG_CHANGES,
            "Lists that were read again and had changed, by which",
        ),
        (CATALOG_KEPT, "Lists that could not be read whole, by which"),
        (
            DROPPED,
            "Frames from the server that were dropped, by the reason",
        ),
    ];
    let histograms = [
        (
            DURATION,
            "From the caller's asking to the end of the operation",
        ),
        (
            QUEUE_WAIT,
            "How long a request waited before it was handed over",
        ),
    ];
    with_recorder(|recorder| {
        for (name, text) in counters {
            recorder.describe_counter(name.into(), Some(Unit::Count), text.into());
        }
        for (name, text) in histograms {
            recorder.describe_histogram(name.into(), Some(Unit::Seconds), text.into());
        }
        let text = "Operations that have begun and not ended";
        recorder.describe_gauge(IN_FLIGHT.into(), Some(Unit::Count), text.into());
    });
}

/// The numbers of one connection.
///
/// The keys that every operation needs are built once, so that an operation allocates nothing for
/// them, whether or not a recorder is installed.
pub(super) struct Counts {
    connection: SharedString,
    in_flight: Key,
    queue_wait: Key,
    of_kind: [OnceLock<Box<[OnceLock<OfKind>; ENDS]>>; KINDS],
}

struct OfKind {
    operations: Key,
    duration: Key,
}

/// How many words [`Ended`] has.
const ENDS: usize = 8;
/// More kinds than there are. One beyond would be counted with a key of its own each time.
const KINDS: usize = 40;

fn place(ended: Ended) -> usize {
    use crate::evidence::Outcome as O;
    match ended {
        Ended::Answered => 0,
        Ended::ToolError => 1,
        Ended::Without(O::NotSent) => 2,
        Ended::Without(O::Rejected) => 3,
        Ended::Without(O::Failed) => 4,
        Ended::Without(O::Unknown) => 5,
        Ended::Abandoned { .. } => 6,
        Ended::HandedOver => 7,
    }
}

impl Counts {
    pub(super) fn new(connection: &Arc<str>) -> Self {
        let connection = SharedString::from(Arc::clone(connection));
        let label = || vec![Label::new("connection", connection.clone())];
        Self {
            in_flight: Key::from_parts(IN_FLIGHT, label()),
            queue_wait: Key::from_parts(QUEUE_WAIT, label()),
            of_kind: [const { OnceLock::new() }; KINDS],
            connection,
        }
    }

    fn key(&self, name: &'static str, label: Option<(&'static str, &'static str)>) -> Key {
        let mut labels = vec![Label::new("connection", self.connection.clone())];
        labels.extend(label.map(|(key, value)| Label::from_static_parts(key, value)));
        Key::from_parts(name, labels)
    }

    fn one(&self, name: &'static str, label: Option<(&'static str, &'static str)>) {
        let key = self.key(name, label);
        with_recorder(|r| r.register_counter(&key, &METADATA).increment(1));
    }

    pub(super) fn operation_began(&self) {
        with_recorder(|r| r.register_gauge(&self.in_flight, &METADATA).increment(1.0));
    }

    fn keys(&self, kind: OperationKind, ended: Ended) -> OfKind {
        let labels = || {
            vec![
                Label::new("connection", self.connection.clone()),
                Label::from_static_parts("mcp.method.name", kind.method()),
                Label::from_static_parts("outcome", ended.as_str()),
            ]
        };
        OfKind {
            operations: Key::from_parts(OPERATIONS, labels()),
            duration: Key::from_parts(DURATION, labels()),
        }
    }

    fn finished(&self, kind: OperationKind, ended: Ended, seconds: f64) {
        let record = |keys: &OfKind| {
            with_recorder(|r| {
                r.register_gauge(&self.in_flight, &METADATA).decrement(1.0);
                r.register_counter(&keys.operations, &METADATA).increment(1);
                r.register_histogram(&keys.duration, &METADATA)
                    .record(seconds);
            });
        };
        match self.of_kind.get(kind as usize) {
            Some(ends) => {
                let ends = ends.get_or_init(|| Box::new([const { OnceLock::new() }; ENDS]));
                record(ends[place(ended)].get_or_init(|| self.keys(kind, ended)));
            }
            None => record(&self.keys(kind, ended)),
        }
    }

    pub(super) fn count(&self, what: &What) {
        match what {
            What::AttemptStarted {
                repeats,
                moved: false,
                waited,
                ..
            } => {
                with_recorder(|r| {
                    r.register_histogram(&self.queue_wait, &METADATA)
                        .record(waited.as_secs_f64());
                });
                if let Some(ground) = repeats.map(Ground::as_str) {
                    self.one(REPLAYS, Some(("contract", ground)));
                }
            }
            What::OperationFinished {
                kind,
                ended,
                elapsed,
                ..
            } => {
                self.finished(*kind, *ended, elapsed.as_secs_f64());
                if *ended == (Ended::Abandoned { perhaps_sent: true }) {
                    self.one(UNKNOWN, Some(("cause", "abandoned")));
                }
            }
            What::OutcomeUnknown { cause, .. } => self.one(UNKNOWN, Some(("cause", cause))),
            What::LateAnswer { ended, .. } => {
                self.one(LATE_ANSWERS, Some(("outcome", ended.as_str())));
            }
            What::LookedUp { found, .. } => {
                let found = if *found { "true" } else { "false" };
                self.one(LOOK_UPS, Some(("found", found)));
            }
            What::Resolved { by, .. } => self.one(RESOLVED, Some(("by", by))),
            What::SessionStarted { generation, .. } => {
                self.one(STARTED, None);
                if generation.number() > 1 {
                    self.one(RECONNECTS, None);
                }
            }
            What::StartFailed { .. } => self.one(FAILED, None),
            What::SessionLost { .. } => self.one(LOST, None),
            What::CircuitOpened { .. } => self.one(CIRCUIT, Some(("state", "open"))),
            What::CircuitProbed => self.one(CIRCUIT, Some(("state", "half_open"))),
            What::CircuitClosed => self.one(CIRCUIT, Some(("state", "closed"))),
            What::ActorRestarted => self.one(RESTARTS, None),
            What::CatalogChanged { list, .. } => {
                self.one(CATALOG_CHANGES, Some(("list", list.as_str())));
            }
            What::CatalogKept { list, .. } => {
                self.one(CATALOG_KEPT, Some(("list", list.as_str())));
            }
            What::FramesDropped { why, .. } => self.one(DROPPED, Some(("reason", why.as_str()))),
            _ => {}
        }
    }
}
