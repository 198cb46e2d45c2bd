//! What the bench is asked to do.

/// How much of everything is measured.
#[derive(Clone)]
pub(crate) struct Options {
    /// Fail where a bar is missed.
    pub(crate) check: bool,
    /// The names of the parts to measure; none is all of them.
    words: Vec<String>,
    /// Turns that the sides take.
    pub(crate) rounds: usize,
    /// Calls in a block.
    pub(crate) calls: usize,
    /// Calls in a block, where one carries 1 MiB.
    pub(crate) large_calls: usize,
    /// How often a thing is done that takes seconds.
    pub(crate) repeats: usize,
    /// Connections that are called at once.
    pub(crate) connections: usize,
}

impl Options {
    pub(crate) fn of(words: Vec<String>) -> Self {
        let quick = words.iter().any(|w| w == "--quick");
        let whole = Self {
            check: false,
            words: Vec::new(),
            rounds: 40,
            calls: 1_000,
            large_calls: 40,
            repeats: 3,
            connections: 10_000,
        };
        let size = match quick {
            false => whole,
            true => Self {
                rounds: 8,
                calls: 400,
                large_calls: 20,
                repeats: 1,
                connections: 1_000,
                ..whole
            },
        };
        Self {
            check: words.iter().any(|w| w == "--check"),
            words: words.into_iter().filter(|w| !w.starts_with("--")).collect(),
            ..size
        }
    }

    pub(crate) fn wants(&self, part: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|w| part.starts_with(w.as_str()))
    }

    pub(crate) fn with_blocks_of(&self, calls: usize) -> Self {
        Self {
            calls,
            ..self.clone()
        }
    }
}
