//! What kept a server from getting the input that it asked for.

/// Why a server that asked for input before it goes on did not get it. What it has done until then
/// stays done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputMissing {
    /// The connection has no handler that could give it.
    #[error("the connection has no handler to give it")]
    NoHandler,
    /// The host's handler answered one of the requests with an error.
    #[error("the host's handler answered with JSON-RPC error {code}")]
    HandlerFailed {
        /// The handler's code.
        code: i64,
    },
    /// The server asked again and again.
    #[error("it asked for the {most}th time, which is the connection's limit")]
    TooManyRounds {
        /// The limit of requests for one operation.
        most: usize,
    },
    /// The session that asked is over. Another one is not given what a tool asked for in it.
    #[error("the session that asked is over")]
    SessionGone,
    /// It was ready, and could not be sent.
    #[error("it could not be sent: {why}")]
    NotSent {
        /// Why.
        why: String,
    },
}
