//! What a connection is to be: which server, which limits, which revision, which contracts.
//!
//! A spec is data. It is checked once, when it is given to a supervisor; after that the rest of the
//! crate takes it for granted.

mod factory;
mod handler;
mod http;
mod same;
mod stdio;
mod wrong;

use std::{fmt, sync::Arc, time::Duration};

pub(crate) use factory::{AnyTransport, BoxError, BoxFuture, OpenStream, OpenTransport};
pub(crate) use handler::{Handler, Panicked};
pub use http::HttpSpec;
pub(crate) use http::Tokens;
use rmcp::ClientHandler;
pub use stdio::StdioSpec;
pub use wrong::SpecError;

use crate::{
    credentials::TokenSource,
    evidence::{JudgeRules, NotFoundMeans, SessionEndedList},
    policy::{Backoff, Contracts, Repeats, ToolContract},
};

/// Which protocol revision a connection negotiates, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Era {
    /// `server/discover` first; a server that does not know it gets `initialize`.
    #[default]
    Automatic,
    /// `initialize`, offering this revision. A counter-offer of another one is an error.
    Initialize(Revision),
    /// 2026-07-28 with `server/discover`, and nothing else.
    Discover,
}

/// The revisions that have an `initialize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Revision {
    /// 2025-03-26.
    V2025_03_26,
    /// 2025-06-18.
    V2025_06_18,
    /// 2025-11-25.
    V2025_11_25,
}

impl Revision {
    /// The revision as it stands on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }
}

/// What happens to an operation that finds the connection full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overload {
    /// It is refused at once, as not sent.
    #[default]
    Refuse,
    /// It waits within its own deadline.
    Wait,
}

/// A liveness probe. There is none by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// How long the server may be silent before it is probed.
    pub every: Duration,
    /// How long a probe may take. A second miss in a row, with nothing heard in between, is a loss.
    pub timeout: Duration,
}

/// The limits of a connection. All times are monotonic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The total budget of an operation that sets none. Nothing waits for ever.
    pub total: Duration,
    /// The cap of an attempt, where an operation sets none.
    pub attempt: Option<Duration>,
    /// How long starting a session may take: process, handshake and all.
    pub start: Duration,
    /// How long `server/discover` may take before the server is taken for an older one. At most
    /// nine seconds, because the layer below gives up by itself at ten.
    pub discover: Duration,
    /// The most operations that are handed over and unanswered at a time, at most 1,000.
    pub max_in_flight: usize,
    /// The most operations that wait behind those.
    pub max_queued: usize,
    /// What happens to the next one.
    pub overload: Overload,
    /// The largest frame, body or event that is read from the server, in bytes.
    pub max_answer_bytes: usize,
    /// How much of a process's stderr is kept, in bytes.
    pub stderr_tail_bytes: usize,
    /// How often the stream of one answer is resumed, where the revision can.
    pub max_resumes: u32,
    /// How long an operation's limits are put off, at most, while the host's handler answers what
    /// the server asks about it: the person behind it may take her time. Zero puts nothing off.
    pub hold: Duration,
    /// The most requests that are sent for one operation whose server asks for input before it goes
    /// on, the first one included.
    pub max_rounds: usize,
    /// The most pages of a list that are read before the walk over it ends in an error.
    pub max_pages: usize,
    /// The most requests of the server's that are with the host's handler at a time, on one session.
    /// The next one is refused at once, with a JSON-RPC error; the questions of one `input_required`
    /// answer wait for each other instead. Pings have as many places of their own,
    /// and are never refused.
    pub max_asked: usize,
    /// How long a server is given to exit after its stdin was closed, before it gets SIGTERM.
    pub stdin_grace: Duration,
    /// How long its process group is given after SIGTERM, before it gets SIGKILL.
    pub term_grace: Duration,
    /// How long `reconnect` waits for the calls in front of it before it starts the new session.
    pub reconnect_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(60),
            attempt: None,
            start: Duration::from_secs(30),
            discover: Duration::from_secs(3),
            max_in_flight: 256,
            max_queued: 1_024,
            overload: Overload::Refuse,
            max_answer_bytes: 16 * 1024 * 1024,
            stderr_tail_bytes: 8 * 1024,
            max_resumes: 3,
            hold: Duration::from_secs(600),
            max_rounds: rmcp::model::DEFAULT_MRTR_MAX_ROUNDS,
            max_pages: 1_000,
            max_asked: 64,
            stdin_grace: Duration::from_secs(2),
            term_grace: Duration::from_secs(2),
            reconnect_grace: Duration::from_secs(2),
        }
    }
}

/// What of the host's trace a server is told, in the `_meta` of each request.
///
/// It takes the feature `otel`. A request's own `_meta` wins: what a caller has put under these
/// names is sent as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceContext {
    /// Nothing, because a server is as likely as not somebody else's, and the identities of the
    /// host's traces are no business of theirs until the host says so.
    #[default]
    Withheld,
    /// `traceparent` and `tracestate`, by which the server's spans join the host's trace.
    Sent,
    /// Those, and the `baggage` that the host's global propagator makes of its own values, which
    /// may name users.
    SentWithBaggage,
}

/// When a connection is given up for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// How many failed starts, or sessions that ended before they answered anything, are borne in
    /// [`period`](Self::period) before the circuit opens.
    pub max_restarts: u32,
    /// The window in which they are counted.
    pub period: Duration,
    /// How long an open circuit refuses before one start probes.
    pub cool_down: Duration,
    /// The wait before a start that follows a failed one.
    pub backoff: Backoff,
}

impl Default for Recovery {
    /// Five in thirty seconds, then ten seconds of rest: a server that crashes on start is tried
    /// often enough to survive a deployment, and not often enough to be a load.
    fn default() -> Self {
        Self {
            max_restarts: 5,
            period: Duration::from_secs(30),
            cool_down: Duration::from_secs(10),
            backoff: Backoff::default(),
        }
    }
}

/// When a connection starts its first session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With its first operation.
    #[default]
    Lazy,
    /// At once.
    Eager,
}

/// In which order a user's transport puts requests on its wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireOrder {
    /// In the order in which it is given them; the runtime gives it one at a time.
    Ordered,
    /// Side by side; the runtime does not wait for one before it gives the next.
    Concurrent,
}

#[derive(Clone)]
pub(crate) enum TransportSpec {
    Stdio(StdioSpec),
    Http(HttpSpec),
    Custom(Arc<dyn OpenTransport>, WireOrder),
    Stream(Arc<dyn OpenStream>),
}

/// A framework-owned connection: how to build its transport, and the rules it runs under.
#[derive(Clone)]
pub struct ConnectionSpec {
    pub(crate) transport: TransportSpec,
    pub(crate) settings: Settings,
}

/// The rules of a connection, whoever owns it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) recovery: Recovery,
    pub(crate) era: Era,
    pub(crate) start: Start,
    pub(crate) contracts: Contracts,
    pub(crate) repeats: Repeats,
    pub(crate) rules: JudgeRules,
    pub(crate) keep_alive: Option<KeepAlive>,
    pub(crate) trace_context: TraceContext,
    /// Where fresh credentials come from, where a refused operation may then be sent once more.
    pub(crate) resend_with: Option<Tokens>,
    pub(crate) handler: Handler,
    /// Whether the handler is one of the host's.
    pub(crate) handled: bool,
    /// Whether the host takes tasks for answers.
    pub(crate) tasks: bool,
}

impl From<StdioSpec> for ConnectionSpec {
    fn from(spec: StdioSpec) -> Self {
        Self {
            transport: TransportSpec::Stdio(spec),
            settings: Settings::default(),
        }
    }
}

impl From<HttpSpec> for ConnectionSpec {
    fn from(spec: HttpSpec) -> Self {
        let resend_with = spec.tokens.clone().filter(|_| spec.resend_after_401);
        Self {
            transport: TransportSpec::Http(spec),
            settings: Settings {
                resend_with,
                ..Settings::default()
            },
        }
    }
}

impl fmt::Debug for ConnectionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            TransportSpec::Stdio(spec) => spec.fmt(f),
            TransportSpec::Http(spec) => spec.fmt(f),
            TransportSpec::Custom(..) | TransportSpec::Stream(_) => f.write_str("factory"),
        }
    }
}

macro_rules! settings_setters {
    ($name:ident) => {
        impl $name {
            /// The connection's limits.
            #[must_use]
            pub fn limits(mut self, limits: Limits) -> Self {
                self.settings.limits = limits;
                self
            }

            /// What the client vouches for about the tools that `pattern` names (`*` stands for
            /// any run of characters). The first match wins.
            #[must_use]
            pub fn contract(mut self, pattern: impl Into<String>, contract: ToolContract) -> Self {
                self.settings.contracts = self.settings.contracts.with(pattern, contract);
                self
            }

            /// How often and how patiently a contract repeats.
            #[must_use]
            pub fn repeats(mut self, repeats: Repeats) -> Self {
                self.settings.repeats = repeats;
                self
            }

            /// What of the host's trace the server is told.
            #[must_use]
            pub fn trace_context(mut self, trace_context: $crate::spec::TraceContext) -> Self {
                self.settings.trace_context = trace_context;
                self
            }

            /// The JSON-RPC errors by which this server says that the session is over.
            #[must_use]
            pub fn session_ended(mut self, list: SessionEndedList) -> Self {
                self.settings.rules.session_ended = list;
                self
            }
        }
    };
}
pub(crate) use settings_setters;
settings_setters!(ConnectionSpec);

impl ConnectionSpec {
    /// When the circuit opens, and for how long.
    #[must_use]
    pub fn recovery(mut self, recovery: Recovery) -> Self {
        self.settings.recovery = recovery;
        self
    }

    /// Which revision is negotiated.
    #[must_use]
    pub fn era(mut self, era: Era) -> Self {
        self.settings.era = era;
        self
    }

    /// When the first session starts.
    #[must_use]
    pub fn start(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// What a 404 to a live session says about the request.
    #[must_use]
    pub fn not_found_means(mut self, meaning: NotFoundMeans) -> Self {
        self.settings.rules.not_found = meaning;
        self
    }

    /// Answers what the server asks, and hears what it tells: sampling, elicitation, roots, requests
    /// of its own, and notifications. `handler`, or what an `Arc` of it points to, is the same for
    /// all sessions of the connection.
    ///
    /// What its `get_info` returns is what each handshake offers; the revision is the connection's.
    /// Without a handler nothing is offered: pings are answered, and all else is refused or empty.
    ///
    /// Its methods run in tasks of their own, beside the calls. It may call through the same
    /// connection. A panic in it is answered as an internal error. When its session ends, or the
    /// server cancels the request, the context's token is cancelled; what it answers after that
    /// goes nowhere, and two seconds later its future is dropped. While it has a request, the clock of
    /// the call stands, up to [`Limits::hold`].
    ///
    /// ```
    /// use mcp_supervisor::{ConnectionSpec, StdioSpec};
    /// use rmcp::{
    ///     ClientHandler, RoleClient,
    ///     model::{
    ///         ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
    ///         ElicitationAction, ErrorData, Implementation,
    ///     },
    ///     service::RequestContext,
    /// };
    ///
    /// struct Host;
    ///
    /// impl ClientHandler for Host {
    ///     async fn create_elicitation(
    ///         &self,
    ///         _asked: ElicitRequestParams,
    ///         _context: RequestContext<RoleClient>,
    ///     ) -> Result<ElicitResult, ErrorData> {
    ///         // Ask a person here; there is time.
    ///         Ok(ElicitResult::new(ElicitationAction::Decline))
    ///     }
    ///
    ///     fn get_info(&self) -> ClientConfig {
    ///         let capabilities = ClientCapabilities::builder().enable_elicitation().build();
    ///         ClientConfig::new(capabilities, Implementation::new("my-host", "1.0"))
    ///     }
    /// }
    ///
    /// let spec = ConnectionSpec::from(StdioSpec::new("billing-server")).handler(Host);
    /// # let _ = spec;
    /// ```
    #[must_use]
    pub fn handler(mut self, handler: impl ClientHandler) -> Self {
        self.settings.handler = Handler::new(handler);
        self.settings.handled = true;
        self
    }

    /// Offers the tasks extension to the server, which may then answer a tool call with a task
    /// ([`ToolAnswer::task`](crate::ToolAnswer::task)) that goes on after the answer.
    #[must_use]
    pub fn tasks(mut self) -> Self {
        self.settings.tasks = true;
        self
    }

    /// Gets the token of each request from this source, as [`HttpSpec::credentials`]: for a
    /// connection over HTTP that a configuration file describes. Any other has no use for it.
    #[must_use]
    pub fn credentials(mut self, source: impl TokenSource + 'static) -> Self {
        if let TransportSpec::Http(spec) = self.transport {
            let spec = spec.credentials(source);
            self.settings.resend_with = spec.tokens.clone().filter(|_| spec.resend_after_401);
            self.transport = TransportSpec::Http(spec);
        }
        self
    }

    /// Whether all that only the host can supply is there.
    pub(crate) fn is_complete(&self) -> Result<(), SpecError> {
        match &self.transport {
            TransportSpec::Http(spec) if spec.tokens_of_host && spec.tokens.is_none() => {
                Err(SpecError::Http {
                    what: "credentials",
                    why: "they are the host's to supply, and it has supplied none".into(),
                })
            }
            _ => Ok(()),
        }
    }

    /// Probes a silent server.
    #[must_use]
    pub fn keep_alive(mut self, keep_alive: KeepAlive) -> Self {
        self.settings.keep_alive = Some(keep_alive);
        self
    }

    pub(crate) fn check(&self) -> Result<(), SpecError> {
        self.settings.check()?;
        match &self.transport {
            TransportSpec::Stdio(spec) => spec.check(),
            TransportSpec::Http(spec) => spec.check(),
            TransportSpec::Custom(..) | TransportSpec::Stream(_) => Ok(()),
        }
    }
}

impl Settings {
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let l = &self.limits;
        let zero = |what| Err(SpecError::Zero { what });
        if l.total.is_zero() {
            return zero("total");
        }
        if l.attempt.is_some_and(|a| a.is_zero()) {
            return zero("attempt");
        }
        if l.start.is_zero() {
            return zero("start");
        }
        if l.discover.is_zero() {
            return zero("discover");
        }
        if l.max_in_flight == 0 {
            return zero("max_in_flight");
        }
        if l.max_answer_bytes == 0 {
            return zero("max_answer_bytes");
        }
        if l.max_rounds == 0 {
            return zero("max_rounds");
        }
        if l.max_pages == 0 {
            return zero("max_pages");
        }
        if l.max_asked == 0 {
            return zero("max_asked");
        }
        if self.repeats.max_attempts == 0 {
            return zero("repeats.max_attempts");
        }
        if self
            .keep_alive
            .is_some_and(|k| k.every.is_zero() || k.timeout.is_zero())
        {
            return zero("keep_alive");
        }
        if let Some(attempt) = l.attempt.filter(|a| *a > l.total) {
            return Err(SpecError::Inverted {
                attempt,
                total: l.total,
            });
        }
        if cfg!(not(feature = "otel")) && self.trace_context != TraceContext::Withheld {
            return Err(SpecError::NotCompiled { feature: "otel" });
        }
        if l.max_in_flight > 1_000 {
            return Err(SpecError::TooManyInFlight {
                asked: l.max_in_flight,
            });
        }
        if l.discover > Duration::from_secs(9) {
            return Err(SpecError::DiscoverTooLong { asked: l.discover });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_inverted_limits_are_named() {
        let spec = |limits| {
            ConnectionSpec::from(StdioSpec::new("x"))
                .limits(limits)
                .check()
        };
        let total = Limits {
            total: Duration::ZERO,
            ..Limits::default()
        };
        assert_eq!(spec(total), Err(SpecError::Zero { what: "total" }));
        let inverted = Limits {
            attempt: Some(Duration::from_secs(61)),
            ..Limits::default()
        };
        assert!(matches!(spec(inverted), Err(SpecError::Inverted { .. })));
        let many = Limits {
            max_in_flight: 5_000,
            ..Limits::default()
        };
        assert!(matches!(
            spec(many),
            Err(SpecError::TooManyInFlight { asked: 5_000 })
        ));
        assert_eq!(spec(Limits::default()), Ok(()));
    }

    #[test]
    fn a_secret_in_the_place_of_a_scheme_is_not_repeated() {
        let refused = |url| {
            let spec = ConnectionSpec::from(HttpSpec::new(url));
            spec.check().unwrap_err().to_string()
        };
        assert!(refused("ws://h/").contains("\"ws\""));
        assert!(!refused("hunter2://h/").contains("hunter2"));
    }

    #[test]
    fn a_url_with_another_scheme_is_refused() {
        for url in ["ftp://h/", "file:///etc/passwd", "localhost:80", ""] {
            let spec = ConnectionSpec::from(HttpSpec::new(url));
            assert!(
                matches!(spec.check(), Err(SpecError::Scheme { .. })),
                "{url}"
            );
        }
    }

    #[test]
    fn debug_output_of_a_spec_holds_no_secret() {
        let http = HttpSpec::new("https://user:pw-secret@h/p?token=q-secret")
            .header("x-key", "h-secret")
            .bearer("b-secret");
        let stdio = StdioSpec::new("server")
            .arg("--key=a-secret")
            .env("TOKEN", "e-secret");
        let shown = format!(
            "{:?} {:?}",
            ConnectionSpec::from(http),
            ConnectionSpec::from(stdio)
        );
        assert!(!shown.contains("secret"), "{shown}");
    }
}
