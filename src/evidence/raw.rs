//! An answer as it came, for whoever reads it later or passes it on.

use std::{ops::Range, sync::OnceLock};

use rmcp::model::CallToolResult;

/// The result of a tool, in the frame that it came in.
///
/// Whoever makes one has walked over the frame and found that the result can be read.
pub(crate) struct RawResult {
    frame: String,
    result: Range<usize>,
    structured: Option<Range<usize>>,
    read: OnceLock<CallToolResult>,
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
            read: OnceLock::new(),
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

    fn parse(&self) -> CallToolResult {
        serde_json::from_str(self.text()).expect("its shape was checked when it came")
    }

    /// The result, read at the first call.
    pub(crate) fn read(&self) -> &CallToolResult {
        self.read.get_or_init(|| self.parse())
    }

    /// The result, with a copy of it only where somebody has read it here.
    pub(crate) fn whole(&self) -> CallToolResult {
        match self.read.get() {
            Some(read) => read.clone(),
            None => self.parse(),
        }
    }
}

impl std::fmt::Debug for RawResult {
    /// Shows how large it is, and nothing of what the tool said.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawResult")
            .field("bytes", &self.frame.len())
            .finish_non_exhaustive()
    }
}
