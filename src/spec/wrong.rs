//! What is wrong with a spec.

use std::time::Duration;

/// A spec that cannot be run, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No command.
    #[error("the stdio command is empty; name the program to run")]
    EmptyCommand,
    /// A NUL byte, which no process can be given.
    #[error("the stdio {what} holds a NUL byte; remove it")]
    Nul {
        /// Where.
        what: &'static str,
    },
    /// Not an HTTP URL.
    #[error(
        "the URL has {}; write http:// or https://",
        if .scheme.is_empty() { "no scheme that is known".to_owned() } else { format!("the scheme {scheme:?}") }
    )]
    Scheme {
        /// What stands there instead, if it is the name of a scheme. Any other text may be a secret that
        /// got there by mistake, and is not repeated.
        scheme: String,
    },
    /// The URL, a header or the token cannot be sent.
    #[error("the HTTP {what} cannot be used: {why}")]
    Http {
        /// What: "url", "header", "bearer token", "resend_after_401".
        what: &'static str,
        /// Why, without the value.
        why: String,
    },
    /// A limit of zero.
    #[error("the limit `{what}` is zero; give it at least one")]
    Zero {
        /// Which limit.
        what: &'static str,
    },
    /// The cap of an attempt is longer than the total.
    #[error(
        "the limit `attempt` ({attempt:?}) exceeds `total` ({total:?}); lower the one or raise the other"
    )]
    Inverted {
        /// The attempt's cap.
        attempt: Duration,
        /// The total.
        total: Duration,
    },
    /// More in flight than the layer below takes without waiting.
    #[error("the limit `max_in_flight` is {asked}; the most is 1000")]
    TooManyInFlight {
        /// What was asked for.
        asked: usize,
    },
    /// A probe limit that the layer below would cut short.
    #[error("the limit `discover` is {asked:?}; the most is 9 s")]
    DiscoverTooLong {
        /// What was asked for.
        asked: Duration,
    },
    /// The crate was compiled without the feature that this needs.
    #[error("this build has no `{feature}` feature; enable it in Cargo.toml")]
    NotCompiled {
        /// The missing feature.
        feature: &'static str,
    },
}
