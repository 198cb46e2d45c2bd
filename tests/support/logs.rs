//! What the crate logs in a test. Only this thread is heard, which is all of a test's own runtime.

use std::{
    io,
    sync::{Arc, LazyLock, Mutex},
};

use tracing_subscriber::fmt::MakeWriter;

/// The lines logged so far.
#[derive(Clone, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

impl Logs {
    /// Listens, in everything but `trace`, until the guard is dropped.
    pub fn listen() -> (Self, tracing::subscriber::DefaultGuard) {
        let logs = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter("mcp_supervisor=debug")
            .with_ansi(false)
            .with_writer(logs.clone())
            .finish();
        (logs, tracing::subscriber::set_default(subscriber))
    }

    /// All that this process logs, of whatever crate, in everything but `trace`. One subscriber for
    /// all tests: a place in the code that logs first under none, in another test, may stay silent.
    pub fn everything() -> Self {
        static EVERYTHING: LazyLock<Logs> = LazyLock::new(|| {
            let logs = Logs::default();
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::DEBUG)
                .with_ansi(false)
                .with_writer(logs.clone())
                .finish();
            tracing::subscriber::set_global_default(subscriber).expect("it is the first one");
            logs
        });
        EVERYTHING.clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("nobody panics in there").clone())
            .expect("logs are text")
    }

    pub fn count(&self) -> usize {
        self.text().lines().count()
    }
}

impl io::Write for Logs {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().expect("nobody panics in there");
        all.extend_from_slice(bytes);
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
