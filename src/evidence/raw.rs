//! An answer as it came, for whoever reads it later or passes it on.

use std::{fmt, ops::Range};

/// The result of a tool, in the frame that it came in.
///
/// Whoever makes one has walked over the frame and found that the result can be read.
pub(crate) struct RawResult {
    frame: String,
    result: Range<usize>,
    structured: Option<Range<usize>>,
}

impl RawResult {
    pub(crate) fn new(
        frame: String,
        result: Range<usize>,
        structured: Option<Range<usize>>,
    ) -> Self {
        Self {
            frame,
            result,
            structured,
        }
    }

    /// The JSON of the result.
    pub(crate) fn text(&self) -> &str {
        self.frame.get(self.result.clone()).unwrap_or_default()
    }

    /// The JSON of its structured content.
    pub(crate) fn structured_text(&self) -> Option<&str> {
        self.frame.get(self.structured.clone()?)
    }
}

impl fmt::Debug for RawResult {
    /// Shows how large it is, and nothing of what the tool said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawResult")
            .field("bytes", &self.frame.len())
            .finish_non_exhaustive()
    }
}
