//! What is logged, as text that can be searched.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
};

use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, filter_fn},
    fmt::MakeWriter,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use super::pooled::AtTheCheckout;

/// Everything that was logged so far, by all tests.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<u8>>>);

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

impl Logs {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Logs {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
