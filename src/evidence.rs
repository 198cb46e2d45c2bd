//! What is known about a request, and what may be concluded from it.
//!
//! Two things live here. The [`DispatchCell`] decides, by one compare-exchange, between the side
//! that writes a request and the side that gives it up. [`judge`] is the outcome table as a pure
//! function: from what came back to what the caller may be told and what becomes of the session.

use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

/// What is known about an operation that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// There is proof that no byte of the request left this process.
    NotSent,
    /// The server says that it did not run the request.
    Rejected,
    /// The server answered with an error; an effect may stand.
    Failed,
    /// The request may have reached the server, and no answer came.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotSent => "not sent",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Unknown => "outcome unknown",
        })
    }
}

const QUEUED: u8 = 0;
const WRITING: u8 = 1;
const WRITTEN: u8 = 2;
const RECALLED: u8 = 3;

/// The state of one request on its way out, shared by the writer and whoever may give it up.
///
/// ```text
/// Queued ──begin_write──▶ Writing ──finish_write──▶ Written
///    └─────recall───────▶ Recalled
/// ```
///
/// `begin_write` and `recall` are rivals on one compare-exchange, so exactly one of them wins. Only
/// a won `recall` proves that nothing was sent; reading the state proves nothing, because the
/// writer may act a moment later.
#[derive(Debug, Default)]
pub struct DispatchCell {
    state: AtomicU8,
    report: OnceLock<WireReport>,
}

impl DispatchCell {
    /// A cell in `Queued`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The witness is about to put the first byte on the wire. `false`: it was recalled, and must
    /// not be written.
    #[must_use]
    pub fn begin_write(&self) -> bool {
        self.state
            .compare_exchange(QUEUED, WRITING, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The whole request was given to the transport below.
    pub fn finish_write(&self) {
        // From any other state this is a no-op: a recalled request is never written.
        let _ = self
            .state
            .compare_exchange(WRITING, WRITTEN, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Gives the request up. `true` is proof that it was not and will not be sent.
    #[must_use]
    pub fn recall(&self) -> bool {
        match self
            .state
            .compare_exchange(QUEUED, RECALLED, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => true,
            Err(state) => state == RECALLED,
        }
    }

    /// Whether writing began. Once true it stays true; `false` proves nothing.
    #[must_use]
    pub fn was_begun(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), WRITING | WRITTEN)
    }

    /// Whether it was given up before it was written. Once true it stays true, and it is proof.
    #[must_use]
    pub(crate) fn was_recalled(&self) -> bool {
        self.state.load(Ordering::Acquire) == RECALLED
    }

    /// Notes what the transport saw. The first report stays.
    pub fn report(&self, report: WireReport) {
        let _ = self.report.set(report);
    }

    /// What the transport saw, if it saw anything worth telling.
    #[must_use]
    pub fn reported(&self) -> Option<&WireReport> {
        self.report.get()
    }
}

/// What the transport saw of one request beside the JSON-RPC answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WireReport {
    /// The HTTP status, where there was one.
    pub status: Option<u16>,
    /// The `WWW-Authenticate` challenge of a 401 or 403, as sent.
    pub challenge: Option<String>,
    /// The `Retry-After` header, as sent.
    pub retry_after: Option<String>,
    /// Whether the request carried a session id.
    pub in_session: bool,
    /// What went wrong below JSON-RPC.
    pub fault: Option<WireFault>,
    /// The JSON-RPC error that came with a status that is not one of success.
    pub error: Option<ServerError>,
}

impl WireReport {
    /// The HTTP status, if it is not one of success.
    #[must_use]
    pub fn failed_status(&self) -> Option<u16> {
        self.status.filter(|status| !(200..300).contains(status))
    }
}

/// What can go wrong with one request below JSON-RPC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireFault {
    /// No connection could be made for the request, so no byte of it was sent.
    #[error("no connection could be made: {0}")]
    ConnectFailed(String),
    /// The request could not be put into bytes.
    #[error("the request could not be encoded: {0}")]
    Unencodable(String),
    /// The HTTP exchange broke after it may have begun.
    #[error("the HTTP exchange broke: {0}")]
    ExchangeBroke(String),
    /// The stream that was to carry the answer ended without it.
    #[error("the answer's stream ended without the answer, after {resumes} resumptions")]
    StreamEnded {
        /// How often the stream was resumed.
        resumes: u32,
    },
    /// The answer is larger than the connection's limit.
    #[error("the answer is larger than the limit of {limit} bytes")]
    AnswerTooLarge {
        /// The limit.
        limit: usize,
    },
    /// An answer came that is not JSON-RPC, or not the answer's type.
    #[error("the answer cannot be understood: {0}")]
    BadAnswer(String),
    /// The request was accepted (202) and the answer was to come elsewhere.
    #[error("the server accepted the request without answering it")]
    AcceptedOnly,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server closed its side.
    #[error("the server closed the connection{}", Trailer(.exit, .stderr))]
    Closed {
        /// How the process exited, if it is one and did so.
        exit: Option<String>,
        /// The last lines that it wrote to stderr.
        stderr: String,
    },
    /// The server's process exited.
    #[error("the server's process exited{}", Trailer(.exit, .stderr))]
    Exited {
        /// How it exited.
        exit: Option<String>,
        /// The last lines that it wrote to stderr.
        stderr: String,
    },
    /// Writing to the server failed.
    #[error("writing to the server failed: {0}")]
    WriteFailed(String),
    /// The server says that the session is over.
    #[error("the server says that the session is over{}", OfStatus(*.status))]
    Terminated {
        /// The HTTP status that said so, if one did.
        status: Option<u16>,
    },
    /// The runtime ended it: on request, at shutdown, or to make room for a healthier one.
    #[error("the runtime ended the session: {0}")]
    Ended(&'static str),
}

struct OfStatus(Option<u16>);

impl fmt::Display for OfStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => write!(f, " (HTTP status {status})"),
            None => Ok(()),
        }
    }
}

struct Trailer<'a>(&'a Option<String>, &'a str);

impl fmt::Display for Trailer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(exit) = self.0 {
            write!(f, " ({exit})")?;
        }
        if !self.1.is_empty() {
            write!(f, "; its stderr ended with: {}", self.1.trim_end())?;
        }
        Ok(())
    }
}

/// An error that the server answered with, whole.
///
/// Its [`Display`](fmt::Display) shows the code alone: a server's message may repeat arguments, and
/// the text of an error ends up in logs. The message is in [`message`](Self::message).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the server answered with JSON-RPC error {code}")]
pub struct ServerError {
    /// The JSON-RPC code.
    pub code: i64,
    /// The server's message, as sent.
    pub message: String,
    /// The server's data, as sent.
    pub data: Option<serde_json::Value>,
}

/// The closed list by which a JSON-RPC error is taken for "this session is over".
///
/// A message counts when it begins with one of the phrases, after lower-casing and after dropping
/// a leading `bad request:`, `not found:` or `error:`. Beginning, not containing: a tool that fails
/// with "could not save: session not found in the database" is a tool that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEndedList {
    phrases: Vec<String>,
    codes: Vec<i64>,
}

impl Default for SessionEndedList {
    /// The phrases that the public SDKs and servers are known to send, and no code: the codes they
    /// send them with (-32000, -32001, -32600) mean other things elsewhere.
    fn default() -> Self {
        Self {
            phrases: [
                "session terminated",
                "session has been terminated",
                "session not found",
                "session expired",
                "session closed",
                "no valid session",
                "invalid session id",
                "invalid or expired session",
                "unknown session",
                "missing session id",
                "mcp-session-id header is required",
                "connection closed",
                "server not initialized",
            ]
            .map(String::from)
            .to_vec(),
            codes: Vec::new(),
        }
    }
}

impl SessionEndedList {
    /// Adds a phrase, matched without regard to case at the beginning of the message.
    #[must_use]
    pub fn with_phrase(mut self, phrase: impl AsRef<str>) -> Self {
        self.phrases.push(phrase.as_ref().to_lowercase());
        self
    }

    /// Adds a code that by itself means that the session is over, whatever the message.
    #[must_use]
    pub fn with_code(mut self, code: i64) -> Self {
        self.codes.push(code);
        self
    }

    /// An empty list: no JSON-RPC error ends a session.
    #[must_use]
    pub fn none() -> Self {
        Self {
            phrases: Vec::new(),
            codes: Vec::new(),
        }
    }

    /// Whether the error says that the session is over.
    #[must_use]
    pub fn matches(&self, code: i64, message: &str) -> bool {
        if self.codes.contains(&code) {
            return true;
        }
        let message = message.trim_start().to_lowercase();
        let message = ["bad request:", "not found:", "error:"]
            .iter()
            .find_map(|prefix| message.strip_prefix(prefix))
            .unwrap_or(&message)
            .trim_start();
        self.phrases
            .iter()
            .any(|phrase| message.starts_with(phrase.as_str()))
    }
}

/// What an HTTP 404 to a live session id says about the request itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotFoundMeans {
    /// The session is gone; the request may have run before that was noticed.
    #[default]
    Unknown,
    /// The client vouches that this server checks the session before it runs anything.
    NotExecuted,
}

/// What a connection's client declares about the server when an answer is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JudgeRules {
    /// The JSON-RPC errors that end a session.
    pub session_ended: SessionEndedList,
    /// How a 404 to a live session is read.
    pub not_found: NotFoundMeans,
}

/// What came back for a request that was handed over, apart from a result.
#[derive(Clone, Debug, PartialEq)]
pub enum CameBack {
    /// The layer below made the answer up when its session changed under the call.
    MadeUp,
    /// The transport told of a fault; see the report.
    Fault(WireFault),
    /// An HTTP status without a JSON-RPC error.
    Status(u16),
    /// A JSON-RPC error, with the HTTP status that carried it, if one did.
    Error(ServerError),
    /// The session ended.
    SessionEnded,
    /// A deadline passed. `heard` tells whether anything came from the server since the hand-over.
    DeadlinePassed {
        /// Whether anything was heard since the hand-over.
        heard: bool,
    },
    /// The caller cancelled or stopped waiting.
    GaveUp,
    /// A result of another type than the request asks for.
    WrongType,
}

/// What becomes of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAfter {
    /// It goes on.
    Kept,
    /// It may be dead: the next operation gets another one, unless something is heard before.
    Suspect,
    /// It is over.
    Lost,
}

/// The outcome table: what the caller is told, and what becomes of the session.
///
/// The rows are decided in the table's order: what was made up locally, the session-ended list,
/// HTTP 401, 403, 429 and 404, a JSON-RPC error, the HTTP status.
#[must_use]
pub fn judge(
    came_back: &CameBack,
    report: Option<&WireReport>,
    rules: &JudgeRules,
) -> (Outcome, SessionAfter) {
    use CameBack as C;
    use Outcome::{Failed, NotSent, Rejected, Unknown};
    use SessionAfter::{Kept, Lost, Suspect};

    let in_session = report.is_some_and(|r| r.in_session);
    match came_back {
        C::MadeUp => return (Unknown, Kept),
        C::Fault(WireFault::ConnectFailed(_)) => return (NotSent, Suspect),
        C::Fault(WireFault::Unencodable(_)) => return (NotSent, Kept),
        C::SessionEnded => return (Unknown, Lost),
        C::GaveUp | C::WrongType => return (Unknown, Kept),
        C::DeadlinePassed { heard } => return (Unknown, if *heard { Kept } else { Suspect }),
        C::Error(e) if rules.session_ended.matches(e.code, &e.message) => return (Unknown, Lost),
        _ => {}
    }
    let status = match came_back {
        C::Status(status) => Some(*status),
        _ => report.and_then(|r| r.status),
    };
    match status {
        Some(401 | 403 | 429) => return (Rejected, Kept),
        Some(404) if in_session => {
            return match rules.not_found {
                NotFoundMeans::Unknown => (Unknown, Lost),
                NotFoundMeans::NotExecuted => (Rejected, Lost),
            };
        }
        Some(404) if matches!(came_back, C::Status(_)) => return (Rejected, Kept),
        _ => {}
    }
    match came_back {
        C::Error(e) if matches!(e.code, -32700 | -32602..=-32600) => (Rejected, Kept),
        C::Error(_) => (Failed, Kept),
        C::Status(400 | 405 | 406 | 413 | 415) => (Rejected, Kept),
        C::Status(410) => (Rejected, Lost),
        C::Fault(WireFault::AnswerTooLarge { .. }) => (Unknown, Kept),
        C::Fault(WireFault::BadAnswer(_)) if status.is_none() => (Unknown, Kept),
        _ => (Unknown, Suspect),
    }
}

/// Reads a `Retry-After` value that is a number of seconds. A date is not read: it would need a
/// clock, and the header stays available as sent.
#[must_use]
pub fn retry_after_seconds(value: &str) -> Option<Duration> {
    value
        .trim()
        .parse::<u32>()
        .ok()
        .map(|s| Duration::from_secs(u64::from(s)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i64, message: &str) -> CameBack {
        CameBack::Error(ServerError {
            code,
            message: message.into(),
            data: None,
        })
    }

    #[test]
    fn of_writer_and_recall_exactly_one_wins() {
        let cell = DispatchCell::new();
        assert!(cell.begin_write());
        assert!(!cell.recall());
        cell.finish_write();
        assert!(!cell.recall());
        assert!(cell.was_begun());

        let cell = DispatchCell::new();
        assert!(cell.recall());
        assert!(!cell.begin_write());
        cell.finish_write();
        assert!(cell.recall(), "a won recall stays won");
        assert!(!cell.was_begun());
    }

    #[test]
    fn rivals_on_many_threads_never_both_win() {
        for _ in 0..2_000 {
            let cell = DispatchCell::new();
            let (wrote, recalled) = std::thread::scope(|s| {
                let writer = s.spawn(|| cell.begin_write());
                let recaller = s.spawn(|| cell.recall());
                (writer.join().unwrap(), recaller.join().unwrap())
            });
            assert!(wrote ^ recalled);
        }
    }

    #[test]
    fn the_outcome_table_row_by_row() {
        use Outcome::*;
        use SessionAfter::*;
        let rules = JudgeRules::default();
        let plain = |c: CameBack| judge(&c, None, &rules);
        let http = |c: CameBack, status, in_session| {
            let report = WireReport {
                status: Some(status),
                in_session,
                ..WireReport::default()
            };
            judge(&c, Some(&report), &rules)
        };
        assert_eq!(plain(CameBack::MadeUp), (Unknown, Kept));
        assert_eq!(plain(CameBack::SessionEnded), (Unknown, Lost));
        for said in [
            "Session terminated",
            "Bad Request: No valid session ID provided",
        ] {
            assert_eq!(plain(error(-32600, said)), (Unknown, Lost), "{said}");
            assert_eq!(
                http(error(-32000, said), 400, true),
                (Unknown, Lost),
                "{said}"
            );
        }
        for status in [401, 403, 429] {
            assert_eq!(
                http(CameBack::Status(status), status, true),
                (Rejected, Kept)
            );
            assert_eq!(
                http(error(-32000, "denied"), status, true),
                (Rejected, Kept)
            );
        }
        assert_eq!(http(CameBack::Status(404), 404, true), (Unknown, Lost));
        assert_eq!(http(CameBack::Status(404), 404, false), (Rejected, Kept));
        for code in [-32700, -32600, -32601, -32602] {
            assert_eq!(plain(error(code, "no")), (Rejected, Kept));
            assert_eq!(http(error(code, "no"), 500, true), (Rejected, Kept));
        }
        for code in [-32603, -32000, 7] {
            assert_eq!(plain(error(code, "no")), (Failed, Kept));
            assert_eq!(http(error(code, "no"), 500, true), (Failed, Kept));
        }
        for status in [400, 405, 406, 413, 415] {
            assert_eq!(
                http(CameBack::Status(status), status, true),
                (Rejected, Kept)
            );
        }
        assert_eq!(http(CameBack::Status(410), 410, true), (Rejected, Lost));
        for status in [408, 500, 502, 503, 504, 307, 308, 204, 418] {
            assert_eq!(
                http(CameBack::Status(status), status, true),
                (Unknown, Suspect)
            );
        }
        for fault in [
            WireFault::ExchangeBroke("reset".into()),
            WireFault::StreamEnded { resumes: 0 },
            WireFault::AcceptedOnly,
        ] {
            assert_eq!(http(CameBack::Fault(fault), 200, true), (Unknown, Suspect));
        }
        assert_eq!(
            plain(CameBack::Fault(WireFault::ConnectFailed("refused".into()))).0,
            NotSent
        );
        assert_eq!(
            plain(CameBack::DeadlinePassed { heard: false }),
            (Unknown, Suspect)
        );
        assert_eq!(
            plain(CameBack::DeadlinePassed { heard: true }),
            (Unknown, Kept)
        );
        assert_eq!(plain(CameBack::GaveUp), (Unknown, Kept));
    }

    #[test]
    fn a_client_may_declare_that_404_means_not_executed() {
        let rules = JudgeRules {
            not_found: NotFoundMeans::NotExecuted,
            ..JudgeRules::default()
        };
        let report = WireReport {
            status: Some(404),
            in_session: true,
            ..WireReport::default()
        };
        assert_eq!(
            judge(&CameBack::Status(404), Some(&report), &rules),
            (Outcome::Rejected, SessionAfter::Lost)
        );
    }

    #[test]
    fn a_tool_that_only_mentions_a_session_has_failed_by_itself() {
        let list = SessionEndedList::default();
        assert!(!list.matches(-32603, "could not save: session not found in the database"));
        assert!(list.matches(-32001, "Session not found"));
        assert!(!list.matches(-32001, "order not found"));
        assert!(list.clone().with_code(-32001).matches(-32001, "whatever"));
        assert!(
            list.with_phrase("Seance terminée")
                .matches(1, "SEANCE TERMINÉE.")
        );
        assert!(!SessionEndedList::none().matches(-32001, "Session not found"));
    }

    #[test]
    fn a_servers_message_is_kept_and_not_displayed() {
        let e = ServerError {
            code: -32602,
            message: "bad card 4242".into(),
            data: None,
        };
        assert!(!e.to_string().contains("4242"));
        assert_eq!(e.message, "bad card 4242");
    }
}
