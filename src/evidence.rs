//! What is known about a request, and what may be concluded from it.
//!
//! Two things live here. The [`DispatchCell`] decides, by one compare-exchange, between the side
//! that writes a request and the side that gives it up. [`judge`] is the outcome table as a pure
//! function: from what came back to what the caller may be told and what becomes of the session.

mod cell;
mod judge;
mod raw;
pub(crate) mod sync;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::credentials::{AccessToken, CredentialsError, Refusal};

pub use cell::DispatchCell;
pub use judge::{
    CameBack, JudgeRules, NotFoundMeans, SessionAfter, SessionEndedList, judge, retry_after_seconds,
};
pub(crate) use raw::RawResult;

/// What is known about an operation that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// The token of a request that was refused with 401 or 403.
    pub refused_token: Option<AccessToken>,
}

impl WireReport {
    /// The HTTP status, if it is not one of success.
    #[must_use]
    pub fn failed_status(&self) -> Option<u16> {
        self.status.filter(|status| !(200..300).contains(status))
    }

    /// The server's refusal of the request's credentials, if that is what came.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let status = self.status.filter(|status| matches!(status, 401 | 403))?;
        Some(Refusal {
            token: self.refused_token.clone(),
            status,
            header: self.challenge.clone(),
        })
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
    /// There is no access token for the request, so no byte of it was sent.
    #[error("there is no access token: {0}")]
    NoToken(CredentialsError),
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
/// Its [`Display`](fmt::Display) and its [`Debug`](fmt::Debug) show the code alone: a server's message
/// may repeat arguments, and the text of an error ends up in logs. The message is in
/// [`message`](Self::message).
#[derive(Clone, PartialEq, thiserror::Error)]
#[error("the server answered with JSON-RPC error {code}")]
pub struct ServerError {
    /// The JSON-RPC code.
    pub code: i64,
    /// The server's message, as sent.
    pub message: String,
    /// The server's data, as sent.
    pub data: Option<serde_json::Value>,
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerError")
            .field("code", &self.code)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_writer_and_recall_exactly_one_wins() {
        let cell = DispatchCell::new();
        assert!(cell.begin_write());
        assert!(!cell.recall());
        assert!(cell.was_begun() && !cell.was_written());
        cell.finish_write();
        assert!(!cell.recall());
        assert!(cell.was_begun() && cell.was_written());

        let cell = DispatchCell::new();
        assert!(cell.recall());
        assert!(!cell.begin_write());
        cell.finish_write();
        assert!(cell.recall(), "a won recall stays won");
        assert!(!cell.was_begun() && !cell.was_written());
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
    fn a_servers_message_is_kept_and_not_displayed() {
        let e = ServerError {
            code: -32602,
            message: "bad card 4242".into(),
            data: None,
        };
        assert!(!e.to_string().contains("4242"));
        assert_eq!(e.message, "bad card 4242");
    }

    #[test]
    fn an_outcome_a_loss_and_an_error_say_what_they_are() {
        let said = [
            Outcome::NotSent,
            Outcome::Rejected,
            Outcome::Failed,
            Outcome::Unknown,
        ]
        .map(|outcome| outcome.to_string());
        assert_eq!(said, ["not sent", "rejected", "failed", "outcome unknown"]);

        let terminated = |status| Loss::Terminated { status }.to_string();
        assert_eq!(terminated(None), "the server says that the session is over");
        assert!(terminated(Some(404)).ends_with("(HTTP status 404)"));

        let exited = |exit: Option<&str>, stderr: &str| {
            let (exit, stderr) = (exit.map(str::to_owned), stderr.to_owned());
            Loss::Exited { exit, stderr }.to_string()
        };
        assert_eq!(exited(None, ""), "the server's process exited");
        assert_eq!(
            exited(Some("exit status: 3"), "no key\n"),
            "the server's process exited (exit status: 3); its stderr ended with: no key"
        );

        let error = ServerError {
            code: 7,
            message: "4242".into(),
            data: None,
        };
        let shown = format!("{error:?}");
        assert!(
            shown.contains("ServerError") && shown.contains('7'),
            "{shown}"
        );
        assert!(!shown.contains("4242"), "{shown}");
    }

    #[test]
    fn a_status_of_success_is_no_failure_and_a_refusal_is_one_of_two() {
        let with = |status| WireReport {
            status,
            challenge: Some("Bearer".into()),
            refused_token: Some(AccessToken::new("secret")),
            ..WireReport::default()
        };
        for status in [None, Some(200), Some(204), Some(299)] {
            assert_eq!(with(status).failed_status(), None, "{status:?}");
            assert_eq!(with(status).refusal(), None, "{status:?}");
        }
        for status in [199, 300, 401, 403, 500] {
            assert_eq!(with(Some(status)).failed_status(), Some(status));
            let refusal = matches!(status, 401 | 403).then(|| Refusal {
                token: Some(AccessToken::new("secret")),
                status,
                header: Some("Bearer".into()),
            });
            assert_eq!(with(Some(status)).refusal(), refusal);
        }
    }

    #[test]
    fn a_cell_tells_what_it_was_told() {
        let cell = DispatchCell::new();
        assert!(!cell.was_recalled() && !cell.was_begun() && !cell.waits_for_token());
        cell.note_wait_for_token(true);
        assert!(cell.waits_for_token());
        cell.note_wait_for_token(false);
        assert!(!cell.waits_for_token());
        assert_eq!(cell.reported(), None);
        for status in [401, 200] {
            cell.report(WireReport {
                status: Some(status),
                ..WireReport::default()
            });
        }
        let status = cell.reported().and_then(|report| report.status);
        assert_eq!(status, Some(401), "the first report stays");
        assert!(cell.recall());
        assert!(cell.was_recalled() && !cell.was_begun());
    }

    #[test]
    fn the_answer_that_was_kept_first_stays_and_is_not_shown() {
        let cell = DispatchCell::new();
        assert!(cell.kept().is_none());
        let frame = r#"{"id":1,"result":{"structuredContent":{"card":4242}}}"#;
        let part = |part: &str| {
            let at = frame.find(part).unwrap();
            at..at + part.len()
        };
        let result = r#"{"structuredContent":{"card":4242}}"#;
        let structured = r#"{"card":4242}"#;
        let (result_at, structured_at) = (part(result), part(structured));
        cell.keep(RawResult::new(
            frame.into(),
            result_at.clone(),
            Some(structured_at),
        ));
        cell.keep(RawResult::new("{}".into(), 0..2, None));
        let kept = cell.kept().unwrap();
        assert_eq!(kept.text(), result);
        assert_eq!(kept.structured_text(), Some(structured));
        let shown = format!("{kept:?}");
        let bytes = frame.len().to_string();
        assert!(
            shown.contains("RawResult") && shown.contains(&bytes),
            "{shown}"
        );
        assert!(!shown.contains("4242"), "{shown}");
        let without = RawResult::new(frame.into(), result_at, None);
        assert_eq!(without.structured_text(), None);
    }
}
