//! What is logged, as text that can be searched.

use std::sync::LazyLock;

use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, filter_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use super::{pooled::AtTheCheckout, support::logs::Logs};

/// One subscriber for the whole process: a place in the code that logs first under none, in another
/// test, may stay silent under the scoped one of a single test.
static CAPTURED: LazyLock<Logs> = LazyLock::new(|| {
    let logs = Logs::default();
    let text = tracing_subscriber::fmt::layer()
        .with_writer(logs.clone())
        .with_ansi(false);
    let of_the_pool = filter_fn(|metadata| metadata.target().starts_with("hyper_util"));
    tracing_subscriber::registry()
        .with(text.with_filter(LevelFilter::DEBUG))
        .with(AtTheCheckout.with_filter(of_the_pool))
        .init();
    logs
});

/// Captures what is logged from now on.
pub(crate) fn capture() -> Logs {
    CAPTURED.clone()
}
