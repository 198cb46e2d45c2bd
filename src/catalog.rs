//! What a server listed in one generation.
//!
//! A contract repeats a call only where the tool is still the tool that it was made for. So the
//! input schemas of a generation are kept beside its number, and never mixed with another one's.

#[cfg_attr(not(test), expect(dead_code, reason = "its readers land next"))]
mod pages;

use std::{collections::HashMap, sync::Arc};

use rmcp::model::Tool;
use serde_json::{Map, Value};

use crate::operation::Generation;

/// The input schemas of one generation.
#[derive(Debug)]
pub(crate) struct ToolSchemas {
    pub(crate) generation: Generation,
    by_name: HashMap<String, Arc<Map<String, Value>>>,
}

impl ToolSchemas {
    /// The complete list of `generation`.
    pub(crate) fn new(generation: Generation, tools: Vec<Tool>) -> Self {
        let by_name = tools
            .into_iter()
            .map(|t| (t.name.into_owned(), t.input_schema))
            .collect();
        Self {
            generation,
            by_name,
        }
    }

    /// The schema of a tool, if the server has the tool.
    pub(crate) fn schema(&self, tool: &str) -> Option<Arc<Map<String, Value>>> {
        self.by_name.get(tool).cloned()
    }
}
