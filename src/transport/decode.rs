//! The short way from an answer's bytes to its type.
//!
//! rmcp decodes a result as whatever it may be: it tries one type after another, and a tool's result is
//! the sixteenth. Whoever knows what was asked can go straight there.
//!
//! What comes out is what rmcp's decoder would have given, or nothing: `None` is no verdict, and then
//! rmcp's decoder has the last word. So a frame that the short way takes is never one that rmcp refuses:
//!
//! - It is JSON by the rules of serde_json when it reads every value ([`json`](super::json)), also in members that nobody
//!   looks at. UTF-8 is checked over the whole frame.
//! - Its id is a whole number without a fraction or an exponent. Other ids, and numbers in quotes, take
//!   the long way.
//! - A member that is known and comes twice takes the long way, where it is an error or the result is of
//!   no type.
//! - A result with a member by which rmcp would have found another type first takes the long way.
//! - A result without content is the empty result, whatever was asked.

mod tool;

use std::ops::Range;

use rmcp::model::{
    CallToolResult, ClientRequest, CompleteResult, DiscoverResult, EmptyResult, ErrorData,
    GetPromptResult, GetTaskResult, InitializeResult, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, ReadResourceResult,
    RequestId, ServerJsonRpcMessage, ServerResult,
};
use serde::de::DeserializeOwned;

use super::json::Walk;
use crate::evidence::RawResult;
use tool::ToolResult;

/// From how many bytes on a tool's result stays as it came until somebody reads it. Below that, one walk
/// and one decoding cost less than two walks and a frame of one's own.
pub(super) const LARGE: usize = 16 * 1024;

/// The type of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Tool,
    Tools,
    Prompts,
    Prompt,
    Resources,
    Templates,
    Resource,
    Completion,
    Initialize,
    Discover,
    Task,
    /// One for which there is no short way.
    Other,
}

impl Wanted {
    pub(super) fn by(request: &ClientRequest) -> Self {
        use ClientRequest as R;
        match request {
            R::CallToolRequest(_) => Self::Tool,
            R::ListToolsRequest(_) => Self::Tools,
            R::ListPromptsRequest(_) => Self::Prompts,
            R::GetPromptRequest(_) => Self::Prompt,
            R::ListResourcesRequest(_) => Self::Resources,
            R::ListResourceTemplatesRequest(_) => Self::Templates,
            R::ReadResourceRequest(_) => Self::Resource,
            R::CompleteRequest(_) => Self::Completion,
            R::InitializeRequest(_) => Self::Initialize,
            R::DiscoverRequest(_) => Self::Discover,
            R::GetTaskRequest(_) => Self::Task,
            _ => Self::Other,
        }
    }
}

/// The members by which rmcp knows a result's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Marks(u16);

impl Marks {
    const TOOL: Self = Self(1);
    const OTHERS: [(&'static str, Wanted); 13] = [
        ("tools", Wanted::Tools),
        ("prompts", Wanted::Prompts),
        ("messages", Wanted::Prompt),
        ("resources", Wanted::Resources),
        ("resourceTemplates", Wanted::Templates),
        ("contents", Wanted::Resource),
        ("completion", Wanted::Completion),
        ("protocolVersion", Wanted::Initialize),
        ("supportedVersions", Wanted::Discover),
        ("taskId", Wanted::Task),
        ("skills", Wanted::Other),
        ("skill", Wanted::Other),
        ("action", Wanted::Other),
    ];

    fn of(key: &str) -> Self {
        let other = Self::OTHERS.iter().position(|(mark, _)| *mark == key);
        other.map_or(Self::default(), |at| Self(2 << at))
    }

    fn add(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Whether these are the marks of a result of this type, and of no other.
    fn are_of(self, wanted: Wanted) -> bool {
        match wanted {
            Wanted::Tool => self == Self::TOOL,
            _ => Self::OTHERS
                .iter()
                .any(|(mark, of)| *of == wanted && self == Self::of(mark)),
        }
    }
}

/// A result that was walked over.
struct Found<'a> {
    text: &'a str,
    marks: Marks,
    is_empty: bool,
    tool: ToolResult<'a>,
}

impl<'a> Found<'a> {
    fn walk(walk: &mut Walk<'a>) -> Option<Self> {
        let mut found = Self {
            text: "",
            marks: Marks::default(),
            is_empty: true,
            tool: ToolResult::default(),
        };
        let whole = walk.part(|walk| {
            walk.object(|walk, key| {
                found.is_empty = false;
                if found.tool.member(walk, key)? {
                    return Some(());
                }
                found.marks.add(Marks::of(key));
                walk.value().map(drop)
            })
        })?;
        if found.tool.is_marked() {
            found.marks.add(Marks::TOOL);
        }
        found.text = whole;
        Some(found)
    }

    /// Another type of result says this of itself, or rmcp looks for one in here.
    fn is_special(&self) -> bool {
        !self.tool.is_complete() || self.tool.is_about_a_subscription()
    }

    fn decode(&self, wanted: Wanted) -> Option<ServerResult> {
        if self.is_empty {
            return Some(ServerResult::EmptyResult(EmptyResult {}));
        }
        if self.is_special() || !self.marks.are_of(wanted) {
            return None;
        }
        match wanted {
            Wanted::Tool => self.tool.decode().map(ServerResult::CallToolResult),
            Wanted::Tools => self.typed::<ListToolsResult>(),
            Wanted::Prompts => self.typed::<ListPromptsResult>(),
            Wanted::Prompt => self.typed::<GetPromptResult>(),
            Wanted::Resources => self.typed::<ListResourcesResult>(),
            Wanted::Templates => self.typed::<ListResourceTemplatesResult>(),
            Wanted::Resource => self.typed::<ReadResourceResult>(),
            Wanted::Completion => self.typed::<CompleteResult>(),
            Wanted::Initialize => self.typed::<InitializeResult>(),
            Wanted::Discover => self.typed::<DiscoverResult>(),
            Wanted::Task => self.typed::<GetTaskResult>(),
            Wanted::Other => None,
        }
    }

    fn typed<T: DeserializeOwned + Into<ServerResult>>(&self) -> Option<ServerResult> {
        serde_json::from_str::<T>(self.text).ok().map(Into::into)
    }
}

enum Said<'a> {
    Result(Found<'a>),
    Error(&'a str),
}

/// A frame that answers a request, walked over and not decoded yet.
pub(super) struct Answer<'a> {
    /// The request that it answers.
    pub(super) id: i64,
    said: Said<'a>,
}

impl<'a> Answer<'a> {
    /// Walks over a frame, which may be an answer.
    pub(super) fn walk(frame: &'a str) -> Option<Self> {
        let mut walk = Walk::over(frame);
        let (mut version, mut id, mut said) = (false, None, None);
        walk.object(|walk, key| match key {
            "jsonrpc" if !version => {
                version = true;
                (walk.string()?.plain()? == "2.0").then_some(())
            }
            "id" if id.is_none() => {
                // "-0" is a float to serde_json, and the same id.
                id = Some(walk.value()?.parse().ok()?);
                Some(())
            }
            "result" if said.is_none() => {
                said = Some(Said::Result(Found::walk(walk)?));
                Some(())
            }
            "error" if said.is_none() => {
                said = Some(Said::Error(walk.value()?));
                Some(())
            }
            "jsonrpc" | "id" | "result" | "error" | "method" => None,
            _ => walk.value().map(drop),
        })?;
        walk.end()?;
        Some(Self {
            id: id.filter(|_| version)?,
            said: said?,
        })
    }

    /// The message, as rmcp would have decoded it, with `id` for its id.
    pub(super) fn decode(&self, wanted: Wanted, id: i64) -> Option<ServerJsonRpcMessage> {
        let id = RequestId::Number(id);
        Some(match self.said(wanted)? {
            Ok(result) => ServerJsonRpcMessage::response(*result, id),
            Err(error) => ServerJsonRpcMessage::error(error, Some(id)),
        })
    }

    /// What it answers.
    pub(super) fn said(&self, wanted: Wanted) -> Option<Result<Box<ServerResult>, ErrorData>> {
        match &self.said {
            Said::Result(found) => found.decode(wanted).map(Box::new).map(Ok),
            Said::Error(error) => serde_json::from_str(error).ok().map(Err),
        }
    }

    pub(super) fn is_result(&self) -> bool {
        matches!(self.said, Said::Result(_))
    }

    /// The answer to a tool call, as it can stay in its frame. `None` where it cannot be told without
    /// decoding that it is one.
    pub(super) fn left_raw(&self, frame: &str) -> Option<LeftRaw> {
        let Said::Result(found) = &self.said else {
            return None;
        };
        if found.is_empty || found.is_special() || !found.marks.are_of(Wanted::Tool) {
            return None;
        }
        let tool = &found.tool;
        if !tool.is_sound() {
            return None;
        }
        let head = ServerResult::CallToolResult(tool.head()?);
        Some(LeftRaw {
            stub: ServerJsonRpcMessage::response(head, RequestId::Number(self.id)),
            result: place(frame, found.text),
            structured: tool.structured().map(|part| place(frame, part)),
        })
    }
}

/// A tool's result that stays in its frame.
pub(super) struct LeftRaw {
    /// What rmcp gets to see: all but what the tool has to say.
    pub(super) stub: ServerJsonRpcMessage,
    pub(super) result: Range<usize>,
    pub(super) structured: Option<Range<usize>>,
}

/// Reads what was left raw.
pub(crate) fn read(raw: &RawResult) -> CallToolResult {
    serde_json::from_str(raw.text()).expect("its shape was checked when it came")
}

/// Where a part of a frame stands in it.
fn place(frame: &str, part: &str) -> Range<usize> {
    let from = part.as_ptr().addr() - frame.as_ptr().addr();
    from..from + part.len()
}

#[cfg(test)]
mod tests;
