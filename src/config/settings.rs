//! The settings of this crate's own: the object `mcp-supervisor`, in a server or for all of them.

use std::time::Duration;

use super::{
    fields::{Field, Object},
    oauth,
    problem::{ConfigProblem, Fault},
};
use crate::{
    evidence::{NotFoundMeans, SessionEndedList},
    policy::{Backoff, Contracts, Repeats, ToolContract},
    spec::{Era, KeepAlive, Limits, Overload, Recovery, Revision, Settings, Start, TraceContext},
};

/// The name of the object.
pub(super) const NAMESPACE: &str = "mcp-supervisor";

/// Settings that a server has and that may also stand at the top, as defaults for all.
pub(super) const COMMON: [&str; 12] = [
    "limits",
    "recovery",
    "era",
    "start",
    "contracts",
    "repeats",
    "keepAlive",
    "sessionEnded",
    "notFoundMeans",
    "traceContext",
    "tasks",
    "inheritEnvironment",
];

/// Settings of single servers: a credential is nobody's default.
pub(super) const ONE_SERVER: [&str; 4] =
    ["bearerToken", "credentials", "oauth", "http2PriorKnowledge"];

pub(super) const LIMITS: [&str; 17] = [
    "total",
    "attempt",
    "start",
    "discover",
    "maxInFlight",
    "maxQueued",
    "overload",
    "maxAnswerBytes",
    "stderrTailBytes",
    "maxResumes",
    "hold",
    "maxRounds",
    "maxPages",
    "maxAsked",
    "stdinGrace",
    "termGrace",
    "reconnectGrace",
];
pub(super) const RECOVERY: [&str; 4] = ["maxRestarts", "period", "coolDown", "backoff"];
pub(super) const BACKOFF: [&str; 2] = ["base", "cap"];
pub(super) const REPEATS: [&str; 2] = ["maxAttempts", "backoff"];
pub(super) const KEEP_ALIVE: [&str; 2] = ["every", "timeout"];
pub(super) const SESSION_ENDED: [&str; 3] = ["builtIn", "phrases", "codes"];
pub(super) const CREDENTIALS: [&str; 2] = ["owner", "resendAfter401"];
pub(super) const CONTRACT: [&str; 2] = ["keyed", "status"];
pub(super) const KEYED: [&str; 1] = ["argument"];
pub(super) const STATUS: [&str; 3] = ["tool", "argument", "absenceFinalAfter"];

/// Which of the host's variables a child is given.
#[derive(Clone, Default)]
pub(super) enum Inherited {
    /// Those that every child gets.
    #[default]
    Minimal,
    /// All.
    All,
    /// Those that every child gets, and these.
    Named(Vec<String>),
}

/// What the object says.
#[derive(Clone, Default)]
pub(super) struct Own {
    pub(super) settings: Settings,
    pub(super) inherited: Inherited,
    pub(super) bearer: Option<String>,
    pub(super) oauth: Option<oauth::Said>,
    pub(super) http2_prior_knowledge: bool,
    /// The host supplies the tokens.
    pub(super) tokens_of_host: bool,
    pub(super) resend_after_401: bool,
}

impl Own {
    /// The defaults for all servers.
    pub(super) fn for_all(field: &Field<'_>) -> Result<Self, Fault> {
        let object = field.object()?;
        for name in ONE_SERVER {
            if let Some(misplaced) = object.find(name) {
                return Err(misplaced.fault_of_name(ConfigProblem::OnlyForOneServer));
            }
        }
        object.only(&COMMON)?;
        let mut own = Self::default();
        own.read(&object)?;
        own.settings.check().map_err(|error| Fault {
            field: Some(format!(
                "{}{}",
                field.path(),
                super::server::setting_of(&error)
            )),
            ..field.fault(ConfigProblem::Spec(error))
        })?;
        Ok(own)
    }

    /// The settings of one server, on top of the defaults in `self`.
    pub(super) fn refine(&mut self, field: &Field<'_>) -> Result<(), Fault> {
        let object = field.object()?;
        let known: Vec<&str> = COMMON.into_iter().chain(ONE_SERVER).collect();
        object.only(&known)?;
        self.read(&object)
    }

    fn read(&mut self, object: &Object<'_>) -> Result<(), Fault> {
        let settings = &mut self.settings;
        if let Some(field) = object.find("limits") {
            limits(&field.object()?, &mut settings.limits)?;
        }
        if let Some(field) = object.find("recovery") {
            recovery(&field.object()?, &mut settings.recovery)?;
        }
        if let Some(field) = object.find("repeats") {
            repeats(&field.object()?, &mut settings.repeats)?;
        }
        object.set("era", &mut settings.era, era)?;
        object.set("start", &mut settings.start, |field| {
            field.one_of(&[("lazy", Start::Lazy), ("eager", Start::Eager)])
        })?;
        if let Some(field) = object.find("contracts") {
            // The server's own come first, and the first match wins.
            settings.contracts = contracts(field)?.then(&settings.contracts);
        }
        object.set("keepAlive", &mut settings.keep_alive, keep_alive)?;
        object.set(
            "sessionEnded",
            &mut settings.rules.session_ended,
            session_ended,
        )?;
        object.set("notFoundMeans", &mut settings.rules.not_found, |field| {
            field.one_of(&[
                ("unknown", NotFoundMeans::Unknown),
                ("notExecuted", NotFoundMeans::NotExecuted),
            ])
        })?;
        object.set("traceContext", &mut settings.trace_context, |field| {
            field.one_of(&[
                ("withheld", TraceContext::Withheld),
                ("sent", TraceContext::Sent),
                ("sentWithBaggage", TraceContext::SentWithBaggage),
            ])
        })?;
        object.set("tasks", &mut settings.tasks, Field::flag)?;
        object.set("inheritEnvironment", &mut self.inherited, inherited)?;
        object.set("bearerToken", &mut self.bearer, |field| {
            field.text().map(Some)
        })?;
        object.set("oauth", &mut self.oauth, oauth::said)?;
        if let Some(field) = object.find("credentials") {
            let object = field.object()?;
            object.only(&CREDENTIALS)?;
            object.set("owner", &mut self.tokens_of_host, |field| {
                field.one_of(&[("file", false), ("host", true)])
            })?;
            object.set("resendAfter401", &mut self.resend_after_401, Field::flag)?;
        }
        object.set(
            "http2PriorKnowledge",
            &mut self.http2_prior_knowledge,
            Field::flag,
        )
    }
}

fn size(field: &Field<'_>) -> Result<usize, Fault> {
    usize::try_from(field.count()?).map_err(|_| field.fault(ConfigProblem::TooLarge))
}

fn number(field: &Field<'_>) -> Result<u32, Fault> {
    u32::try_from(field.count()?).map_err(|_| field.fault(ConfigProblem::TooLarge))
}

/// A duration, or null for none.
fn optional(field: &Field<'_>) -> Result<Option<Duration>, Fault> {
    if field.is_null() {
        return Ok(None);
    }
    field.duration().map(Some)
}

fn limits(object: &Object<'_>, limits: &mut Limits) -> Result<(), Fault> {
    object.only(&LIMITS)?;
    object.set("total", &mut limits.total, Field::duration)?;
    object.set("attempt", &mut limits.attempt, optional)?;
    object.set("start", &mut limits.start, Field::duration)?;
    object.set("discover", &mut limits.discover, Field::duration)?;
    object.set("maxInFlight", &mut limits.max_in_flight, size)?;
    object.set("maxQueued", &mut limits.max_queued, size)?;
    object.set("overload", &mut limits.overload, |field| {
        field.one_of(&[("refuse", Overload::Refuse), ("wait", Overload::Wait)])
    })?;
    object.set("maxAnswerBytes", &mut limits.max_answer_bytes, size)?;
    object.set("stderrTailBytes", &mut limits.stderr_tail_bytes, size)?;
    object.set("maxResumes", &mut limits.max_resumes, number)?;
    object.set("hold", &mut limits.hold, Field::duration)?;
    object.set("maxRounds", &mut limits.max_rounds, size)?;
    object.set("maxPages", &mut limits.max_pages, size)?;
    object.set("maxAsked", &mut limits.max_asked, size)?;
    object.set("stdinGrace", &mut limits.stdin_grace, Field::duration)?;
    object.set("termGrace", &mut limits.term_grace, Field::duration)?;
    object.set(
        "reconnectGrace",
        &mut limits.reconnect_grace,
        Field::duration,
    )
}

fn recovery(object: &Object<'_>, recovery: &mut Recovery) -> Result<(), Fault> {
    object.only(&RECOVERY)?;
    object.set("maxRestarts", &mut recovery.max_restarts, number)?;
    object.set("period", &mut recovery.period, Field::duration)?;
    object.set("coolDown", &mut recovery.cool_down, Field::duration)?;
    backoff(object, &mut recovery.backoff)
}

fn repeats(object: &Object<'_>, repeats: &mut Repeats) -> Result<(), Fault> {
    object.only(&REPEATS)?;
    object.set("maxAttempts", &mut repeats.max_attempts, number)?;
    backoff(object, &mut repeats.backoff)
}

fn backoff(object: &Object<'_>, backoff: &mut Backoff) -> Result<(), Fault> {
    let Some(field) = object.find("backoff") else {
        return Ok(());
    };
    let object = field.object()?;
    object.only(&BACKOFF)?;
    object.set("base", &mut backoff.base, Field::duration)?;
    object.set("cap", &mut backoff.cap, Field::duration)
}

/// The words for the eras and revisions.
pub(super) fn eras() -> [(&'static str, Era); 6] {
    [
        ("automatic", Era::Automatic),
        ("discover", Era::Discover),
        ("2026-07-28", Era::Discover),
        ("2025-11-25", Era::Initialize(Revision::V2025_11_25)),
        ("2025-06-18", Era::Initialize(Revision::V2025_06_18)),
        ("2025-03-26", Era::Initialize(Revision::V2025_03_26)),
    ]
}

fn era(field: &Field<'_>) -> Result<Era, Fault> {
    field.one_of(&eras())
}

fn contracts(field: &Field<'_>) -> Result<Contracts, Fault> {
    field
        .object()?
        .iter()
        .try_fold(Contracts::none(), |contracts, (pattern, field)| {
            Ok(contracts.with(pattern, contract(field)?))
        })
}

fn contract(field: &Field<'_>) -> Result<ToolContract, Fault> {
    if field.is_text() {
        return field.one_of(&[
            ("atMostOnce", ToolContract::AtMostOnce),
            ("readOnly", ToolContract::ReadOnly),
            ("idempotent", ToolContract::Idempotent),
            ("receipts", ToolContract::Receipts),
        ]);
    }
    let object = field.object()?;
    object.only(&CONTRACT)?;
    match (object.find("keyed"), object.find("status")) {
        (Some(keyed), None) => {
            let keyed_object = keyed.object()?;
            keyed_object.only(&KEYED)?;
            Ok(ToolContract::keyed(needed(
                keyed,
                &keyed_object,
                "argument",
            )?))
        }
        (None, Some(status)) => {
            let object = status.object()?;
            object.only(&STATUS)?;
            let mut absence_final_after = None;
            object.set("absenceFinalAfter", &mut absence_final_after, optional)?;
            Ok(ToolContract::Status {
                tool: needed(status, &object, "tool")?,
                argument: needed(status, &object, "argument")?,
                absence_final_after,
            })
        }
        (Some(keyed), Some(_)) => {
            Err(keyed.fault_of_name(ConfigProblem::Conflict { other: "status" }))
        }
        (None, None) => Err(field.fault(ConfigProblem::Missing)),
    }
}

fn needed(of: &Field<'_>, object: &Object<'_>, name: &str) -> Result<String, Fault> {
    match object.find(name) {
        Some(field) => field.text(),
        None => Err(Fault {
            field: Some(format!("{}/{name}", of.path())),
            ..of.fault(ConfigProblem::Missing)
        }),
    }
}

/// `false` is none, also where the defaults have one.
fn keep_alive(field: &Field<'_>) -> Result<Option<KeepAlive>, Fault> {
    if field.is_false() {
        return Ok(None);
    }
    let object = field.object()?;
    object.only(&KEEP_ALIVE)?;
    let need = |name: &str| match object.find(name) {
        Some(field) => field.duration(),
        None => Err(Fault {
            field: Some(format!("{}/{name}", field.path())),
            ..field.fault(ConfigProblem::Missing)
        }),
    };
    Ok(Some(KeepAlive {
        every: need("every")?,
        timeout: need("timeout")?,
    }))
}

fn session_ended(field: &Field<'_>) -> Result<SessionEndedList, Fault> {
    let object = field.object()?;
    object.only(&SESSION_ENDED)?;
    let mut built_in = true;
    object.set("builtIn", &mut built_in, Field::flag)?;
    let mut list = if built_in {
        SessionEndedList::default()
    } else {
        SessionEndedList::none()
    };
    if let Some(phrases) = object.find("phrases") {
        for phrase in phrases.list()? {
            list = list.with_phrase(phrase.text()?);
        }
    }
    if let Some(codes) = object.find("codes") {
        for code in codes.list()? {
            list = list.with_code(code.whole()?);
        }
    }
    Ok(list)
}

fn inherited(field: &Field<'_>) -> Result<Inherited, Fault> {
    if field.is_list() {
        let names = field.list()?.into_iter().map(|name| name.text());
        return Ok(Inherited::Named(names.collect::<Result<_, _>>()?));
    }
    Ok(if field.flag()? {
        Inherited::All
    } else {
        Inherited::Minimal
    })
}
