//! A file as a tree in which each value knows its place. JSON, with comments and trailing commas.

use jsonc_parser::{
    CollectOptions, ParseOptions, ast::Value, common::Ranged as _, errors::ParseError, parse_to_ast,
};

use super::problem::{ConfigProblem, Fault, Position};

/// A value. It has no `Debug`, because it may hold credentials.
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) shape: Shape,
}

pub(super) enum Shape {
    Null,
    Flag(bool),
    /// As it is written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, names that stand twice included.
    Object(Vec<Member>),
}

pub(super) struct Member {
    pub(super) name: String,
    /// Where the name stands.
    pub(super) at: Position,
    pub(super) value: Node,
}

impl Shape {
    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Flag(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// JSON and what editors add to it; nothing that only JSON5 has.
const DIALECT: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Reads a file's bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<Node, Fault> {
    let text = decode(bytes).ok_or(ConfigProblem::Encoding)?;
    let places = Places::of(&text);
    let parsed = parse_to_ast(&text, &CollectOptions::default(), &DIALECT);
    let parsed = parsed.map_err(|error| syntax(&error, &places))?;
    let empty = || Fault::from(ConfigProblem::Syntax("the file is empty".into()));
    Ok(node(&parsed.value.ok_or_else(empty)?, &places))
}

fn syntax(error: &ParseError, places: &Places<'_>) -> Fault {
    // What follows a full stop quotes the file.
    let what = error.kind().to_string();
    let mut what = what.split('.').next().unwrap_or_default().to_owned();
    if let Some(first) = what.get_mut(..1) {
        first.make_ascii_lowercase();
    }
    Fault {
        field: None,
        position: Some(places.at(error.range().start)),
        problem: ConfigProblem::Syntax(what),
    }
}

/// UTF-8 with or without a byte order mark, or UTF-16 with one, as some shells write it.
fn decode(bytes: &[u8]) -> Option<String> {
    let units = |from: fn([u8; 2]) -> u16, rest: &[u8]| {
        let (pairs, odd) = rest.as_chunks::<2>();
        let text = String::from_utf16(&pairs.iter().map(|p| from(*p)).collect::<Vec<_>>());
        text.ok().filter(|_| odd.is_empty())
    };
    match bytes {
        [0xFF, 0xFE, rest @ ..] => units(u16::from_le_bytes, rest),
        [0xFE, 0xFF, rest @ ..] => units(u16::from_be_bytes, rest),
        [0xEF, 0xBB, 0xBF, rest @ ..] => Some(std::str::from_utf8(rest).ok()?.to_owned()),
        // NUL is in no JSON text; it is what UTF-16 without a mark looks like.
        _ if bytes.contains(&0) => None,
        _ => Some(std::str::from_utf8(bytes).ok()?.to_owned()),
    }
}

/// From offsets to lines and columns.
struct Places<'a> {
    text: &'a str,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl<'a> Places<'a> {
    fn of(text: &'a str) -> Self {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            lines: std::iter::once(0).chain(breaks).collect(),
        }
    }

    fn at(&self, offset: usize) -> Position {
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = self.lines[line - 1];
        let before = self.text.get(start..offset).unwrap_or_default();
        Position {
            line,
            column: before.chars().count() + 1,
        }
    }
}

fn node(value: &Value<'_>, places: &Places<'_>) -> Node {
    let shape = match value {
        Value::NullKeyword(_) => Shape::Null,
        Value::BooleanLit(flag) => Shape::Flag(flag.value),
        Value::NumberLit(number) => Shape::Number(number.value.to_owned()),
        Value::StringLit(text) => Shape::Text(text.value.to_string()),
        Value::Array(list) => Shape::List(list.elements.iter().map(|v| node(v, places)).collect()),
        Value::Object(object) => Shape::Object(
            object
                .properties
                .iter()
                .map(|property| Member {
                    name: property.name.as_str().to_owned(),
                    at: places.at(property.range.start),
                    value: node(&property.value, places),
                })
                .collect(),
        ),
    };
    Node {
        at: places.at(value.range().start),
        shape,
    }
}
