//! The outcome table, and the client's own declarations that it takes into account.

use std::time::Duration;

use super::{Outcome, ServerError, WireFault, WireReport};

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
        C::Fault(WireFault::Unencodable(_) | WireFault::NoToken(_)) => return (NotSent, Kept),
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
    use crate::credentials::CredentialsError;

    fn error(code: i64, message: &str) -> CameBack {
        CameBack::Error(ServerError {
            code,
            message: message.into(),
            data: None,
        })
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
        ] {
            assert_eq!(http(CameBack::Fault(fault), 200, true), (Unknown, Suspect));
        }
        assert_eq!(
            plain(CameBack::Fault(WireFault::ConnectFailed("refused".into()))),
            (NotSent, Suspect)
        );
        let no_token =
            WireFault::NoToken(CredentialsError::AuthorizationRequired { challenge: None });
        assert_eq!(plain(CameBack::Fault(no_token)), (NotSent, Kept));
        assert_eq!(
            plain(CameBack::DeadlinePassed { heard: false }),
            (Unknown, Suspect)
        );
        assert_eq!(
            plain(CameBack::DeadlinePassed { heard: true }),
            (Unknown, Kept)
        );
        assert_eq!(plain(CameBack::GaveUp), (Unknown, Kept));
        assert_eq!(plain(CameBack::WrongType), (Unknown, Kept));
        assert_eq!(
            plain(CameBack::Fault(WireFault::Unencodable("NaN".into()))),
            (NotSent, Kept)
        );
        // A frame that is no answer leaves a byte stream in its place, and an HTTP exchange in doubt.
        let garbage = CameBack::Fault(WireFault::BadAnswer("not JSON".into()));
        assert_eq!(plain(garbage.clone()), (Unknown, Kept));
        assert_eq!(http(garbage, 200, true), (Unknown, Suspect));
        for too_large in [None, Some(200)] {
            let fault = CameBack::Fault(WireFault::AnswerTooLarge { limit: 1 });
            let judged = match too_large {
                None => plain(fault),
                Some(status) => http(fault, status, true),
            };
            assert_eq!(judged, (Unknown, Kept));
        }
    }

    #[test]
    fn a_status_is_judged_the_same_without_a_report() {
        let judged = |status| judge(&CameBack::Status(status), None, &JudgeRules::default());
        for status in [401, 403, 429, 404] {
            let rejected = (Outcome::Rejected, SessionAfter::Kept);
            assert_eq!(judged(status), rejected, "{status}");
        }
    }

    #[test]
    fn an_error_that_comes_with_404_where_there_is_no_session_is_the_servers_answer() {
        let report = WireReport {
            status: Some(404),
            ..WireReport::default()
        };
        let judged = |code| {
            let rules = JudgeRules::default();
            judge(&error(code, "no such order"), Some(&report), &rules)
        };
        assert_eq!(judged(-32000), (Outcome::Failed, SessionAfter::Kept));
        assert_eq!(judged(-32602), (Outcome::Rejected, SessionAfter::Kept));
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_nothing_else() {
        for seconds in ["7", " 7 ", "007"] {
            let seven = Some(Duration::from_secs(7));
            assert_eq!(retry_after_seconds(seconds), seven, "{seconds:?}");
        }
        assert_eq!(retry_after_seconds("0"), Some(Duration::ZERO));
        for other in [
            "",
            "-1",
            "1.5",
            "Fri, 31 Dec 1999 23:59:59 GMT",
            "4294967296",
        ] {
            assert_eq!(retry_after_seconds(other), None, "{other:?}");
        }
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
}
