//! One server, in whichever dialect it is written.

use super::{
    TimeoutUnit,
    expand::Variables,
    fields::{Field, Object, nearest},
    problem::{ConfigProblem, Fault, Oddity, Position},
    settings::{Inherited, NAMESPACE, ONE_SERVER, Own},
};
use crate::spec::{ConnectionSpec, HttpSpec, SpecError, StdioSpec};

/// Fields that say how a child process is started.
pub(super) const STDIO: [&str; 5] = ["command", "args", "env", "cwd", "envFile"];
/// The names that hosts have for the address.
pub(super) const ADDRESS: [&str; 3] = ["url", "serverUrl", "httpUrl"];
/// Fields that say how a server is reached over HTTP, besides its address.
pub(super) const HTTP: [&str; 1] = ["headers"];
/// Fields of both.
pub(super) const BOTH: [&str; 6] = [
    "type",
    "transport",
    "disabled",
    "enabled",
    "timeout",
    NAMESPACE,
];

/// Every field of a server that is read.
pub(super) fn known() -> Vec<&'static str> {
    let all = STDIO.into_iter().chain(ADDRESS).chain(HTTP).chain(BOTH);
    all.collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stdio,
    Http,
    NotSupported(&'static str),
}

/// The words that hosts write for a transport.
const KINDS: [(&str, Kind); 9] = [
    ("stdio", Kind::Stdio),
    ("http", Kind::Http),
    ("streamable-http", Kind::Http),
    ("streamableHttp", Kind::Http),
    ("streamable_http", Kind::Http),
    ("local", Kind::Stdio),
    ("sse", Kind::NotSupported("sse")),
    ("ws", Kind::NotSupported("ws")),
    ("websocket", Kind::NotSupported("websocket")),
];

/// What is read from a server's object.
pub(super) struct Read {
    /// `None`: it is switched off.
    pub(super) spec: Option<ConnectionSpec>,
    /// The field that holds the address.
    pub(super) address: &'static str,
    /// Where its tokens come from.
    #[cfg(feature = "oauth")]
    pub(super) oauth: Option<crate::auth::OAuth>,
    pub(super) oddities: Vec<(String, Position, Oddity)>,
}

/// Reads a server. `own` holds the defaults.
pub(super) fn read(
    root: &Field<'_>,
    mut own: Own,
    variables: &Variables,
    unit: TimeoutUnit,
) -> Result<Read, Fault> {
    let object = root.object()?;
    let mut read = Read {
        spec: None,
        address: "url",
        #[cfg(feature = "oauth")]
        oauth: None,
        oddities: unread(&object),
    };
    // What is switched off may be half finished.
    if is_off(&object)? {
        return Ok(read);
    }
    if let Some(timeout) = object.find("timeout") {
        let (total, taken_for) = total(timeout, unit)?;
        own.settings.limits.total = total;
        if let Some(unit) = taken_for {
            read.note(timeout, Oddity::Unit(unit));
        }
    }
    if let Some(field) = object.find(NAMESPACE) {
        own.refine(field)?;
    }
    let mut spec = match kind(root, &object)? {
        Kind::Stdio => {
            for name in ADDRESS.into_iter().chain(HTTP) {
                if let Some(field) = object.find(name) {
                    read.note(field, Oddity::OtherTransport);
                }
            }
            ConnectionSpec::from(stdio(root, &object, &own, variables, &mut read)?)
        }
        Kind::Http => {
            for name in STDIO {
                if let Some(field) = object.find(name) {
                    read.note(field, Oddity::OtherTransport);
                }
            }
            ConnectionSpec::from(http(root, &object, &own, &mut read)?)
        }
        Kind::NotSupported(name) => {
            let field = object.find("type").or_else(|| object.find("transport"));
            let problem = ConfigProblem::TransportNotSupported { name };
            return Err(field.unwrap_or(root).fault(problem));
        }
    };
    let resend_with = spec.settings.resend_with.take();
    spec.settings = own.settings;
    spec.settings.resend_with = resend_with;
    spec.check()
        .map_err(|error| spec_fault(root, &object, read.address, error))?;
    read.spec = Some(spec);
    Ok(read)
}

impl Read {
    fn note(&mut self, field: &Field<'_>, oddity: Oddity) {
        self.oddities
            .push((field.path().to_owned(), field.named_at(), oddity));
    }
}

fn unread(object: &Object<'_>) -> Vec<(String, Position, Oddity)> {
    let known = known();
    let oddity = |(name, field): (&str, &Field<'_>)| {
        let did_you_mean = nearest(name, known.iter().copied()).map(str::to_owned);
        (
            field.path().to_owned(),
            field.named_at(),
            Oddity::Unread { did_you_mean },
        )
    };
    object.besides(&known).map(oddity).collect()
}

fn is_off(object: &Object<'_>) -> Result<bool, Fault> {
    let (mut disabled, mut enabled) = (false, true);
    object.set("disabled", &mut disabled, Field::flag)?;
    object.set("enabled", &mut enabled, Field::flag)?;
    Ok(disabled || !enabled)
}

/// The total budget, and which unit the number was taken for, where that was a guess.
fn total(
    field: &Field<'_>,
    unit: TimeoutUnit,
) -> Result<(std::time::Duration, Option<&'static str>), Fault> {
    use std::time::Duration;
    // With a unit it says all by itself.
    if field
        .written()
        .is_some_and(|text| text.ends_with(char::is_alphabetic))
    {
        return Ok((field.duration()?, None));
    }
    let value = field.count()?;
    match unit {
        TimeoutUnit::Seconds => Ok((Duration::from_secs(value), None)),
        TimeoutUnit::Milliseconds => Ok((Duration::from_millis(value), None)),
        // No host that counts milliseconds takes less than a second, and more than an hour is no
        // time limit in seconds.
        TimeoutUnit::ByMagnitude if value < 1_000 => {
            Ok((Duration::from_secs(value), Some("seconds")))
        }
        TimeoutUnit::ByMagnitude if value > 3_600 => {
            Ok((Duration::from_millis(value), Some("milliseconds")))
        }
        TimeoutUnit::ByMagnitude => Err(field.fault(ConfigProblem::WhichUnit { value })),
    }
}

fn kind(root: &Field<'_>, object: &Object<'_>) -> Result<Kind, Fault> {
    let said = object.find("type").or_else(|| object.find("transport"));
    if let Some(said) = said {
        return said.one_of(&KINDS);
    }
    let address = ADDRESS.into_iter().find(|name| object.find(name).is_some());
    match (object.find("command"), address) {
        (Some(_), None) => Ok(Kind::Stdio),
        (None, Some(_)) => Ok(Kind::Http),
        (Some(command), Some(other)) => {
            Err(command.fault_of_name(ConfigProblem::Conflict { other }))
        }
        (None, None) => Err(root.fault(ConfigProblem::NoTransport)),
    }
}

fn missing(root: &Field<'_>, name: &str) -> Fault {
    Fault {
        field: Some(format!("/{name}")),
        ..root.fault(ConfigProblem::Missing)
    }
}

/// The first of the names that stands in one of this crate's own settings and is for the other kind.
fn not_for(object: &Object<'_>, names: &[&str], only: &'static str) -> Result<(), Fault> {
    let Some(own) = object.find(NAMESPACE) else {
        return Ok(());
    };
    let own = own.object()?;
    match names.iter().find_map(|name| own.find(name)) {
        Some(field) => Err(field.fault_of_name(ConfigProblem::OtherTransport { only })),
        None => Ok(()),
    }
}

fn stdio(
    root: &Field<'_>,
    object: &Object<'_>,
    own: &Own,
    variables: &Variables,
    read: &mut Read,
) -> Result<StdioSpec, Fault> {
    not_for(object, &ONE_SERVER, "HTTP")?;
    let command = object
        .find("command")
        .ok_or_else(|| missing(root, "command"))?;
    let mut spec = StdioSpec::new(command.text()?);
    spec.written_command = command.written().map(str::to_owned);
    if let Some(args) = object.find("args") {
        for arg in args.list()? {
            if arg.lacks_braces() {
                read.note(&arg, Oddity::NoBraces);
            }
            spec = spec.arg(arg.word()?);
        }
    }
    match &own.inherited {
        Inherited::Minimal => {}
        Inherited::All => spec = spec.inherit_env(),
        Inherited::Named(names) => {
            for name in names {
                if let Some(value) = (variables.environment)(name) {
                    spec = spec.env(name, value);
                }
            }
        }
    }
    if let Some(env) = object.find("env") {
        for (name, value) in env.object()?.iter() {
            if value.lacks_braces() {
                read.note(value, Oddity::NoBraces);
            }
            spec = spec.env(name, value.word()?);
        }
    }
    if let Some(cwd) = object.find("cwd") {
        spec = spec.cwd(cwd.text()?);
        spec.written_cwd = cwd.written().map(str::to_owned);
    }
    match object.find("envFile") {
        Some(field) if !field.is_null() => Err(field.fault_of_name(ConfigProblem::EnvFile)),
        _ => Ok(spec),
    }
}

fn http(
    root: &Field<'_>,
    object: &Object<'_>,
    own: &Own,
    read: &mut Read,
) -> Result<HttpSpec, Fault> {
    not_for(object, &["inheritEnvironment"], "stdio")?;
    let mut addresses = ADDRESS
        .into_iter()
        .filter_map(|name| Some((name, object.find(name)?)));
    let (name, address) = addresses.next().ok_or_else(|| missing(root, "url"))?;
    if let Some((_, second)) = addresses.next() {
        return Err(second.fault_of_name(ConfigProblem::Conflict { other: name }));
    }
    read.address = name;
    let mut spec = HttpSpec::new(address.text()?);
    spec.written_url = address.written().map(str::to_owned);
    if let Some(headers) = object.find("headers") {
        for (name, value) in headers.object()?.iter() {
            if value.lacks_braces() {
                read.note(value, Oddity::NoBraces);
            }
            spec = spec.header(name, value.word()?);
        }
    }
    if let Some(token) = &own.bearer {
        spec = spec.bearer(token);
    }
    if let Some(said) = &own.oauth {
        if own.tokens_of_host {
            let (what, why) = ("credentials", "`oauth` supplies what is to be the host's");
            let why = why.to_owned();
            return Err(spec_fault(
                root,
                object,
                name,
                SpecError::Http { what, why },
            ));
        }
        let source = said.source(&spec.url);
        let source = source.map_err(|error| spec_fault(root, object, name, error))?;
        #[cfg(feature = "oauth")]
        {
            read.oauth = Some(source.clone());
            spec = spec.credentials(source);
            spec.said_credentials = Some(said.written());
        }
        #[cfg(not(feature = "oauth"))]
        match source {}
    }
    spec.tokens_of_host = own.tokens_of_host;
    spec = spec.resend_after_401(own.resend_after_401);
    if own.http2_prior_knowledge {
        spec = spec.http2_prior_knowledge();
    }
    Ok(spec)
}

/// The field of a server whose value the error is about.
pub(super) fn field_of(error: &SpecError, address: &str) -> Option<String> {
    Some(match error {
        SpecError::EmptyCommand | SpecError::Nul { what: "command" } => "/command".into(),
        SpecError::Nul { what: "arguments" } => "/args".into(),
        SpecError::Nul { .. } => "/env".into(),
        SpecError::Scheme { .. } | SpecError::Http { what: "url", .. } => format!("/{address}"),
        SpecError::Http { what: "header", .. } => "/headers".into(),
        SpecError::Http {
            what: "bearer token",
            ..
        } => format!("/{NAMESPACE}/bearerToken"),
        SpecError::Http {
            what: "credentials" | "resend_after_401",
            ..
        } => format!("/{NAMESPACE}/credentials"),
        SpecError::Http { what: "oauth", .. } | SpecError::NotCompiled { feature: "oauth" } => {
            format!("/{NAMESPACE}/oauth")
        }
        SpecError::Http { .. } | SpecError::NotCompiled { .. } => return None,
        settings => format!("/{NAMESPACE}{}", setting_of(settings)),
    })
}

/// The setting that the error is about, as a pointer from the object of settings.
pub(super) fn setting_of(error: &SpecError) -> String {
    match error {
        SpecError::Zero { what } if what.contains('.') => {
            format!("/{}", camel(what).replace('.', "/"))
        }
        SpecError::Zero { what: "keep_alive" } => "/keepAlive".into(),
        SpecError::Zero { what } => format!("/limits/{}", camel(what)),
        SpecError::Inverted { .. } => "/limits/attempt".into(),
        SpecError::TooManyInFlight { .. } => "/limits/maxInFlight".into(),
        SpecError::DiscoverTooLong { .. } => "/limits/discover".into(),
        _ => String::new(),
    }
}

/// `max_in_flight` as the file writes it: `maxInFlight`.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |mut name, part| {
        let (head, tail) = part.split_at(usize::from(!part.is_empty()));
        name.push_str(&head.to_ascii_uppercase());
        name.push_str(tail);
        name
    })
}

fn spec_fault(root: &Field<'_>, object: &Object<'_>, address: &str, error: SpecError) -> Fault {
    let field = field_of(&error, address);
    let first = field.as_deref().and_then(|field| field.split('/').nth(1));
    let near = first.and_then(|name| object.find(name)).unwrap_or(root);
    Fault {
        field,
        ..near.fault(ConfigProblem::Spec(error))
    }
}
