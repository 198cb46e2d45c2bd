//! The short way from an answer's bytes to its type.
//!
//! rmcp decodes a result as whatever it may be: it tries fifteen types before that of a tool call,
//! which is most of the work of a call. Whoever knows what was asked can go straight there.

use rmcp::model::{
    CallToolResult, JsonRpcVersion2_0, RequestId, ServerJsonRpcMessage, ServerResult,
};
use serde::Deserialize;

/// The answer to a tool call and nothing beside it. What has other members, or another kind of
/// result, is for rmcp's decoder to judge.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolFrame {
    #[serde(rename = "jsonrpc")]
    _version: JsonRpcVersion2_0,
    id: i64,
    result: CallToolResult,
}

/// Decodes an answer to a tool call, and tells the id that it answers. `None` is no verdict: rmcp's
/// decoder has the last word.
pub(super) fn tool_answer(bytes: &[u8]) -> Option<(i64, ServerJsonRpcMessage)> {
    let frame = serde_json::from_slice::<ToolFrame>(bytes).ok()?;
    let result = ServerResult::CallToolResult(frame.result);
    let id = RequestId::Number(frame.id);
    Some((frame.id, ServerJsonRpcMessage::response(result, id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(frame: &str) -> Option<CallToolResult> {
        let (id, message) = tool_answer(frame.as_bytes())?;
        assert_eq!(id, 7);
        result_of(message)
    }

    fn rmcps(frame: &str) -> Option<CallToolResult> {
        result_of(serde_json::from_str(frame).ok()?)
    }

    fn result_of(message: ServerJsonRpcMessage) -> Option<CallToolResult> {
        match message {
            ServerJsonRpcMessage::Response(response) => match response.result {
                ServerResult::CallToolResult(result) => Some(result),
                _ => None,
            },
            _ => None,
        }
    }

    #[test]
    fn a_tool_answer_is_decoded_as_rmcp_decodes_it() {
        for result in [
            r#"{"content":[{"type":"text","text":"a\u00e9\"b"}]}"#,
            r#"{"content":[],"isError":true,"_meta":{"a":1}}"#,
            r#"{"structuredContent":null}"#,
            r#"{"content":[],"structuredContent":{"deep":[1,2.5,null]},"resultType":"complete"}"#,
            r#"{"content":[{"type":"image","data":"AA==","mimeType":"image/png"}],"later":1}"#,
        ] {
            let frame = format!(r#"{{"id":7,"result":{result},"jsonrpc":"2.0"}}"#);
            assert!(ours(&frame).is_some(), "{frame}");
            assert_eq!(ours(&frame), rmcps(&frame), "{frame}");
        }
    }

    #[test]
    fn what_is_no_plain_tool_answer_is_left_to_rmcp() {
        for frame in [
            r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"tools":[]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"input_required","content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"resultType":"task","content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":""},"result":{"content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"ping","result":{"content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{"content":[]}}"#,
            r#"{"jsonrpc":"1.0","id":7,"result":{"content":[]}}"#,
            r#"{"id":7,"result":{"content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text"}]}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}"#,
        ] {
            assert_eq!(ours(frame), None, "{frame}");
        }
    }
}
