//! The result of a tool: its content is decoded by hand, because the type of a block stands in the block,
//! and serde keeps a copy of all of it until it has found that.

use rmcp::model::{
    Annotations, AudioContent, CallToolResult, ContentBlock, ImageContent, MetaObject, ResultType,
    TextContent,
};
use serde::de::DeserializeOwned;

use super::super::json::{Text, Walk};

/// What a result says of its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Unsaid,
    Complete,
    Other,
}

/// The members of a tool's result, as they stand.
#[derive(Default)]
pub(super) struct ToolResult<'a> {
    kind: Option<Kind>,
    content: Option<Blocks<'a>>,
    structured: Option<&'a str>,
    is_error: Option<Option<bool>>,
    meta: Option<Option<&'a str>>,
}

/// Content blocks, walked over.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    text: &'a str,
    count: usize,
    /// The last one.
    last: Option<Block<'a>>,
    /// Nothing that was not looked at can be wrong with any of them.
    are_plain: bool,
}

#[derive(Clone, Copy)]
struct Block<'a> {
    kind: BlockKind<'a>,
    meta: Option<&'a str>,
    annotations: Option<&'a str>,
}

#[derive(Clone, Copy)]
enum BlockKind<'a> {
    Text(Text<'a>),
    Image {
        data: Text<'a>,
        mime: Text<'a>,
    },
    Audio {
        data: Text<'a>,
        mime: Text<'a>,
    },
    /// Of another type, as it stands.
    Other(&'a str),
}

impl<'a> ToolResult<'a> {
    /// Takes one member of a result, if it is one of a tool's result.
    pub(super) fn member(&mut self, walk: &mut Walk<'a>, key: &str) -> Option<bool> {
        match key {
            "content" if self.content.is_none() => self.content = Some(Blocks::walk(walk)?),
            "structuredContent" if self.structured.is_none() => {
                self.structured = Some(walk.value()?);
            }
            "isError" if self.is_error.is_none() => {
                self.is_error = Some(match walk.value()? {
                    "true" => Some(true),
                    "false" => Some(false),
                    "null" => None,
                    _ => return None,
                });
            }
            "_meta" if self.meta.is_none() => self.meta = Some(object_or_null(walk)?),
            "resultType" if self.kind.is_none() => {
                self.kind = Some(match walk.peek()? {
                    b'"' if walk.string()?.plain()? == "complete" => Kind::Complete,
                    b'"' => Kind::Other,
                    _ => (walk.value()? == "null").then_some(Kind::Unsaid)?,
                });
            }
            "content" | "structuredContent" | "isError" | "_meta" | "resultType" => return None,
            _ => return Some(false),
        }
        Some(true)
    }
    /// It is a tool's result by at least one member.
    pub(super) fn is_marked(&self) -> bool {
        self.content.is_some()
            || self.structured.is_some()
            || matches!(self.is_error, Some(Some(_)))
    }

    /// It does not say that it is of another type.
    pub(super) fn is_complete(&self) -> bool {
        self.kind != Some(Kind::Other)
    }

    /// It may be the end of a subscription.
    pub(super) fn is_about_a_subscription(&self) -> bool {
        let meta = self.meta.flatten().unwrap_or_default();
        meta.contains("subscriptionId") || meta.contains('\\')
    }

    /// All of it.
    pub(super) fn decode(&self) -> Option<CallToolResult> {
        let mut result = self.head()?;
        if let Some(content) = &self.content {
            result.content = content.decode()?;
        }
        if let Some(structured) = self.structured {
            result.structured_content = Some(serde_json::from_str(structured).ok()?);
        }
        Some(result)
    }

    /// All but what the tool has to say.
    pub(super) fn head(&self) -> Option<CallToolResult> {
        let mut result = CallToolResult::default();
        result.result_type = (self.kind == Some(Kind::Complete)).then_some(ResultType::COMPLETE);
        result.is_error = self.is_error.flatten();
        result.meta = read(self.meta.flatten())?;
        Some(result)
    }

    /// Whether there is nothing left by which its decoding could fail.
    pub(super) fn is_sound(&self) -> bool {
        let content = self.content.as_ref();
        content.is_none_or(|blocks| blocks.are_plain || blocks.are_sound())
    }

    /// Its structured content, as it stands.
    pub(super) fn structured(&self) -> Option<&'a str> {
        self.structured
    }
}

impl<'a> Blocks<'a> {
    fn walk(walk: &mut Walk<'a>) -> Option<Self> {
        let (mut count, mut last, mut are_plain) = (0, None, true);
        let text = walk.part(|walk| {
            walk.array(|walk| {
                let block = Block::walk(walk)?;
                count += 1;
                are_plain &= block.is_plain();
                last = Some(block);
                Some(())
            })
        })?;
        Some(Self {
            text,
            count,
            last,
            are_plain,
        })
    }

    fn each(&self, mut block: impl FnMut(Block<'a>) -> Option<()>) -> Option<()> {
        match self.last {
            Some(only) if self.count == 1 => block(only),
            _ => Walk::over(self.text).array(|walk| block(Block::walk(walk)?)),
        }
    }

    fn decode(&self) -> Option<Vec<ContentBlock>> {
        let mut blocks = Vec::with_capacity(self.count);
        self.each(|block| {
            blocks.push(block.decode()?);
            Some(())
        })?;
        Some(blocks)
    }

    fn are_sound(&self) -> bool {
        self.each(|block| block.is_sound().then_some(())).is_some()
    }
}

impl<'a> Block<'a> {
    fn walk(walk: &mut Walk<'a>) -> Option<Self> {
        let (mut kind, mut text, mut data, mut mime) = (None, None, None, None);
        let (mut meta, mut annotations) = (None, None);
        let whole = walk.part(|walk| {
            walk.object(|walk, key| {
                let string = match key {
                    "type" => &mut kind,
                    "text" => &mut text,
                    "data" => &mut data,
                    "mimeType" => &mut mime,
                    "_meta" if meta.is_none() => {
                        meta = Some(object_or_null(walk)?);
                        return Some(());
                    }
                    "annotations" if annotations.is_none() => {
                        annotations = Some(walk.value()?);
                        return Some(());
                    }
                    "_meta" | "annotations" => return None,
                    _ => return walk.value().map(drop),
                };
                if string.is_some() {
                    return None;
                }
                *string = Some(walk.string()?);
                Some(())
            })
        })?;
        let kind = match kind?.plain()? {
            "text" => BlockKind::Text(text?),
            "image" => BlockKind::Image {
                data: data?,
                mime: mime?,
            },
            "audio" => BlockKind::Audio {
                data: data?,
                mime: mime?,
            },
            _ => BlockKind::Other(whole),
        };
        Some(Self {
            kind,
            meta: meta.flatten(),
            annotations: annotations.filter(|annotations| *annotations != "null"),
        })
    }

    /// Whether nothing in it has to be decoded to know that it can be.
    fn is_plain(&self) -> bool {
        !matches!(self.kind, BlockKind::Other(_)) && self.annotations.is_none()
    }

    fn is_sound(&self) -> bool {
        self.is_plain() || self.decode().is_some()
    }

    fn decode(&self) -> Option<ContentBlock> {
        let meta: Option<MetaObject> = read(self.meta)?;
        let annotations: Option<Annotations> = read(self.annotations)?;
        Some(match self.kind {
            BlockKind::Text(text) => {
                let mut block = TextContent::new(text.to_owned()?);
                (block.meta, block.annotations) = (meta, annotations);
                ContentBlock::Text(block)
            }
            BlockKind::Image { data, mime } => {
                let mut block = ImageContent::new(data.to_owned()?, mime.to_owned()?);
                (block.meta, block.annotations) = (meta, annotations);
                ContentBlock::Image(block)
            }
            BlockKind::Audio { data, mime } => {
                let mut block = AudioContent::new(data.to_owned()?, mime.to_owned()?);
                (block.meta, block.annotations) = (meta, annotations);
                ContentBlock::Audio(block)
            }
            BlockKind::Other(whole) => return serde_json::from_str(whole).ok(),
        })
    }
}

/// Reads what is there. `None`: it is of another type.
fn read<T: DeserializeOwned>(text: Option<&str>) -> Option<Option<T>> {
    match text {
        Some(text) => serde_json::from_str(text).ok().map(Some),
        None => Some(None),
    }
}

fn object_or_null<'a>(walk: &mut Walk<'a>) -> Option<Option<&'a str>> {
    match walk.peek()? {
        b'{' => walk.value().map(Some),
        _ => (walk.value()? == "null").then_some(None),
    }
}
