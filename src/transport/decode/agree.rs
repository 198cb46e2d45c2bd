//! Whether the short way gives what rmcp gives, for any text.

use super::*;

/// Every type that may be asked for.
pub(super) const ALL: [Wanted; 12] = [
    Wanted::Tool,
    Wanted::Tools,
    Wanted::Prompts,
    Wanted::Prompt,
    Wanted::Resources,
    Wanted::Templates,
    Wanted::Resource,
    Wanted::Completion,
    Wanted::Initialize,
    Wanted::Discover,
    Wanted::Task,
    Wanted::Other,
];

pub(super) fn ours(frame: &str, wanted: Wanted) -> Option<ServerJsonRpcMessage> {
    let answer = Answer::walk(frame)?;
    answer.decode(wanted, answer.id)
}

/// rmcp's types of results cannot be compared, but what they are made of shows.
fn shown(message: &ServerJsonRpcMessage) -> String {
    format!("{message:?}")
}

/// Whatever was asked, the short way gives what rmcp gives or leaves it to rmcp. Tells whether there was
/// a short way for any type.
pub(in crate::transport) fn agree(frame: &str) -> bool {
    let rmcps = serde_json::from_str::<ServerJsonRpcMessage>(frame).ok();
    let mut short = false;
    for wanted in ALL {
        let Some(ours) = ours(frame, wanted) else {
            continue;
        };
        short = true;
        let rmcps = rmcps.as_ref().map(shown);
        assert_eq!(Some(shown(&ours)), rmcps, "{wanted:?} of {frame}");
    }
    left_raw_agrees(frame, rmcps.as_ref());
    short
}

/// What is left as it came reads, later, as what rmcp would have given.
fn left_raw_agrees(frame: &str, rmcps: Option<&ServerJsonRpcMessage>) {
    let left = Answer::walk(frame).and_then(|answer| answer.left_raw(frame));
    let Some(LeftRaw {
        stub,
        result,
        structured,
    }) = left
    else {
        return;
    };
    let raw = RawResult::new(frame.to_owned(), result, structured);
    let rmcps = tool_result(rmcps.expect("rmcp reads it"));
    assert_eq!(read(&raw), rmcps, "{frame}");
    let structured = raw
        .structured_text()
        .map(|text| text.parse().expect("it was walked over"));
    assert_eq!(structured, rmcps.structured_content, "{frame}");
    let mut head = tool_result(&stub);
    head.content.clone_from(&rmcps.content);
    head.structured_content
        .clone_from(&rmcps.structured_content);
    assert_eq!(head, rmcps, "{frame}");
}

fn tool_result(message: &ServerJsonRpcMessage) -> CallToolResult {
    match message {
        ServerJsonRpcMessage::Response(response) => match &response.result {
            ServerResult::CallToolResult(result) => result.clone(),
            other => panic!("{other:?} is no tool's result"),
        },
        other => panic!("{other:?} is no result"),
    }
}
