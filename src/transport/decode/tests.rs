use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    agree::{ALL, agree, ours},
    *,
};
use crate::transport::hostile::made::{bytes, cases, message, name, sound};

/// One of each kind that servers send, of both eras.
fn corpus() -> Vec<Value> {
    let task = json!({"taskId": "t", "status": "working", "createdAt": "2026-01-01T00:00:00Z",
        "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": null, "pollIntervalMs": 5});
    let mut done = task.clone();
    done["status"] = json!("completed");
    done["result"] = json!({"content": []});
    let mut created = task.clone();
    created["resultType"] = json!("task");
    vec![
        json!({}),
        json!({"resultType": "complete"}),
        json!({"_meta": {}}),
        json!({"content": [{"type": "text", "text": "a\u{e9}\"b\\ \u{1F600}\n"}]}),
        json!({"content": [{"type": "text", "text": "a", "_meta": {"k": [1]},
            "annotations": {"audience": ["user"], "priority": 0.8, "lastModified": "x"}}]}),
        json!({"content": [{"type": "image", "data": "AA==", "mimeType": "image/png"},
            {"type": "audio", "data": "AA==", "mimeType": "audio/wav", "_meta": null},
            {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AA=="}},
            {"type": "text", "text": "", "annotations": null, "more": 1}], "isError": true}),
        json!({"content": [], "structuredContent": {"deep": [1, 2.5, null, -3, 1e30, u64::MAX]},
            "resultType": "complete", "_meta": {"a": {"b": "c"}}}),
        json!({"structuredContent": null}),
        json!({"isError": false}),
        json!({"content": [], "isError": null, "resultType": null, "_meta": null}),
        json!({"content": [], "tools": []}),
        json!({"content": [], "later": {"x": [1]}}),
        json!({"content": [], "_meta": {"io.modelcontextprotocol/subscriptionId": 7},
            "resultType": "complete"}),
        json!({"content": [], "resultType": "input_required"}),
        json!({"resultType": "input_required", "requestState": "s", "content": []}),
        json!({"content": [], "requestState": "s"}),
        json!({"content": null}),
        json!({"content": [{"type": "text"}]}),
        json!({"content": [{"text": "no type"}]}),
        json!({"content": [{"type": "image", "data": "AA=="}]}),
        json!({"content": ["text"]}),
        json!({"content": [{"type": "text", "text": "a", "annotations": {"priority": "high"}}]}),
        json!({"content": {}}),
        json!({"isError": "yes"}),
        json!({"tools": [{"name": "t", "description": "d", "inputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": true}}], "nextCursor": "n", "ttlMs": -5,
            "cacheScope": "", "resultType": "complete"}),
        json!({"tools": [{"name": "t"}]}),
        json!({"tools": {}}),
        json!({"prompts": [{"name": "p", "arguments": [{"name": "a", "required": true}]}]}),
        json!({"prompts": [], "tools": []}),
        json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}],
            "description": "d"}),
        json!({"resources": [{"uri": "file:///a", "name": "a"}], "_meta": {"x": 1}}),
        json!({"resourceTemplates": [{"uriTemplate": "file:///{a}", "name": "a"}]}),
        json!({"contents": [{"uri": "file:///a", "text": "a"}, {"uri": "b", "blob": "AA=="}]}),
        json!({"completion": {"values": ["a"], "total": 1, "hasMore": false}}),
        json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "s", "version": "1"}, "instructions": "i"}),
        json!({"supportedVersions": ["2026-07-28"], "capabilities": {}, "resultType": "complete",
            "ttlMs": 0, "cacheScope": "private"}),
        json!({"skills": []}),
        json!({"action": "accept", "content": {}}),
        created,
        task,
        done,
    ]
}

fn frame(result: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": 7, "result": result}).to_string()
}

#[test]
fn every_kind_of_answer_is_decoded_as_rmcp_decodes_it() {
    let short = corpus().iter().filter(|r| agree(&frame(r))).count();
    assert!(short >= 20, "only {short} went the short way");
}

#[test]
fn of_each_type_that_has_a_short_way_an_answer_takes_it() {
    let taken = |wanted| corpus().iter().any(|r| ours(&frame(r), wanted).is_some());
    for wanted in ALL {
        assert!(taken(wanted), "{wanted:?}");
    }
    let left = |r: &Value| {
        let frame = frame(r);
        Answer::walk(&frame).is_some_and(|a| a.left_raw(&frame).is_some())
    };
    assert!(corpus().iter().filter(|r| left(r)).count() >= 7);
}

#[test]
fn frames_of_every_make_are_decoded_as_rmcp_decodes_them() {
    let content = r#""result":{"content":[]}"#;
    for frame in [
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"m","data":{"a":1}}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":1.0,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":5}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":null}"#,
        r#"{"jsonrpc":"2.0","id":7}"#,
        r#"{"jsonrpc":"2.0","method":"ping","id":7}"#,
        r#"[{"jsonrpc":"2.0","id":7,"result":{}}]"#,
        "7",
        "",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([
        format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":1,"message":""}},{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ping",{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"7",{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7.0,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7e0,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":-0,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":-7,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":9223372036854775808,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":true,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7,"id":8,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","jsonrpc":"2.0","id":7,{content}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":7,{content},{content}}}"#),
        format!(r#"{{"jsonrpc":"1.0","id":7,{content}}}"#),
        format!(r#"{{"id":7,{content}}}"#),
        format!(r#"{{"\u0069d":8,"id":7,"jsonrpc":"2.0",{content}}}"#),
        format!(r#"{{"id":7,"jsonrpc":"2.0","more":1e400,{content}}}"#),
        format!(r#"{{"id":7,"jsonrpc":"2.0","more":"\ud800",{content}}}"#),
        format!(r#"{{"id":7,"jsonrpc":"2.0","more":[1,{{"id":9}}],{content}}}"#),
        format!(" {{ \"id\" : 7 ,\t\"jsonrpc\":\"2.0\"\n, {content} }} \r\n"),
        format!(r#"{{"id":7,"jsonrpc":"2.0",{content}}} 1"#),
        format!(r#"{{"id":7,"jsonrpc":"2.0",{content}"#),
    ]) {
        agree(&frame);
    }
    for result in [
        r#"{"content":[],"content":[]}"#,
        r#"{"content":[],"isError":true,"isError":true}"#,
        r#"{"content":[],"a":1,"a":2}"#,
        r#"{"content":[{"type":"text","text":"a","text":"b"}]}"#,
        r#"{"content":[{"type":"text","type":"text","text":"b"}]}"#,
        r#"{"content":[{"type":"text","text":"b","x":1,"x":2}]}"#,
        r#"{"content":[{"te\u0078t":"a","type":"text"}]}"#,
        r#"{"content":[{"type":"te\u0078t","text":"a"}]}"#,
        r#"{"con\u0074ent":[],"isError":true}"#,
        r#"{"content":[{"type":"text","text":"\ud83d\ude00 \u0000"}]}"#,
        r#"{"content":[{"type":"text","text":"\ud83d"}]}"#,
        r#"{"structuredContent":{"a":1,"a":2}}"#,
        r#"{"structuredContent":-0}"#,
        r#"{"structuredContent":1e999}"#,
        r#"{"structuredContent":0.1000000000000000055511151231257827021181583404541015625}"#,
        r#"{"isError":true,"_meta":{"a\u0062":1}}"#,
        r#"{"isError":true,"resultType":"comple\u0074e"}"#,
        r#"{"isError":true,"resultType":5}"#,
        r#"{"isError":true,"_meta":[]}"#,
    ] {
        agree(&format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#));
    }
    for depth in [120, 123, 124, 125, 126, 127, 128, 200] {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        agree(
            &frame(&json!(null))
                .replace("null", &format!(r#"{{"structuredContent":{open}{close}}}"#)),
        );
        agree(&format!(
            r#"{{"jsonrpc":"2.0","id":7,"more":{open}{close},"result":{{"isError":true}}}}"#
        ));
    }
}

/// A result of the corpus with some members put in, taken out or replaced, at any depth.
fn changed() -> impl Strategy<Value = Value> {
    let change = (any::<prop::sample::Index>(), name(), sound());
    let changes = prop::collection::vec((change, any::<bool>()), 0..4);
    (prop::sample::select(corpus()), changes).prop_map(|(mut result, changes)| {
        for ((place, key, value), takes_out) in changes {
            let mut places = 0;
            objects(&mut result, &mut |_| places += 1);
            let at = place.index(places.max(1));
            let mut seen = 0;
            objects(&mut result, &mut |members| {
                if seen == at {
                    match takes_out {
                        true => drop(members.remove(key)),
                        false => drop(members.insert(key.to_owned(), value.clone())),
                    }
                }
                seen += 1;
            });
        }
        result
    })
}

fn objects(value: &mut Value, visit: &mut impl FnMut(&mut serde_json::Map<String, Value>)) {
    match value {
        Value::Object(members) => {
            visit(members);
            for value in members.values_mut() {
                objects(value, visit);
            }
        }
        Value::Array(elements) => {
            for value in elements {
                objects(value, visit);
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn a_changed_answer_is_decoded_as_rmcp_decodes_it(result in changed()) {
        agree(&frame(&result));
    }

    #[test]
    fn a_damaged_frame_is_decoded_as_rmcp_decodes_it(
        result in changed(),
        at in any::<prop::sample::Index>(),
        damage in prop::sample::select(vec!["", "\"", "{", "}", "[", "]", ",", ":", "\\", "0", "e", " ", "\u{1}"]),
        cut in 0_usize..3,
    ) {
        let mut frame = frame(&result);
        let mut from = at.index(frame.len());
        while !frame.is_char_boundary(from) {
            from -= 1;
        }
        let mut to = (from + cut).min(frame.len());
        while !frame.is_char_boundary(to) {
            to += 1;
        }
        frame.replace_range(from..to, damage);
        agree(&frame);
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn a_message_of_a_hostile_server_is_decoded_as_rmcp_decodes_it(message in message()) {
        agree(&message);
    }

    #[test]
    fn bytes_of_a_hostile_server_are_decoded_as_rmcp_decodes_them(bytes in bytes()) {
        crate::transport::hostile::message(&bytes);
    }
}
