//! What rmcp says where its own client sends, and not ours: below a lent connection or a factory's.

use rmcp::ServiceError;

use crate::evidence::WireReport;

/// How rmcp says that a live session was answered 404. Its type names the HTTP client below, which
/// may be any of the caller's, so there is only the text to know it by.
#[cfg(feature = "http")]
const SESSION_EXPIRED: &str = "Session expired (HTTP 404)";

/// What rmcp's own HTTP client, below a lent connection or a factory's, keeps of a status.
#[cfg(feature = "http")]
pub(super) fn foreign_status(error: &ServiceError) -> Option<(u16, WireReport)> {
    use rmcp::transport::streamable_http_client::{
        AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpError,
    };
    type OverReqwest = StreamableHttpError<reqwest::Error>;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = match error {
        ServiceError::TransportSend(error) => Some(&*error.error),
        _ => None,
    };
    while let Some(error) = cause {
        let mut report = WireReport {
            in_session: true,
            ..WireReport::default()
        };
        // This one is transparent: it passes its own source off as the whole error's.
        let over_reqwest = error.downcast_ref::<OverReqwest>();
        let status = match over_reqwest {
            Some(StreamableHttpError::HttpStatus(status)) => Some(status),
            _ => error.downcast_ref::<HttpStatusError>(),
        };
        if let Some(status) = status {
            report.status = Some(status.status);
            report.retry_after.clone_from(&status.retry_after);
        } else if matches!(over_reqwest, Some(StreamableHttpError::SessionExpired)) {
            report.status = Some(404);
        } else if let Some(auth) = error.downcast_ref::<AuthRequiredError>() {
            report.status = Some(401);
            report.challenge = Some(auth.www_authenticate_header.clone());
        } else if let Some(scope) = error.downcast_ref::<InsufficientScopeError>() {
            report.status = Some(403);
            report.challenge = Some(scope.www_authenticate_header.clone());
        } else if error.to_string() == SESSION_EXPIRED {
            report.status = Some(404);
        }
        if let Some(status) = report.status {
            return Some((status, report));
        }
        cause = error.source();
    }
    None
}

#[cfg(not(feature = "http"))]
pub(super) fn foreign_status(_: &ServiceError) -> Option<(u16, WireReport)> {
    None
}

/// The error that rmcp invents for other calls when it re-initialises a session under them. Ours
/// never does, but a lent client service may.
pub(super) fn made_up(error: &rmcp::model::ErrorData) -> bool {
    error.code.0 == -32603
        && error
            .message
            .starts_with("streamable HTTP session was re-initialized")
}
