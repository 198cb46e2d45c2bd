//! Answers that are large.

use mcp_supervisor::{CallError, Era, error::UnknownCause};
use rmcp::model::{CallToolResponse, CallToolResult};
use serde_json::{Value, json};

use crate::support::{
    bounded,
    lane::{BOTH, Over, Rig, lanes},
};

/// Scripts of servers that answer so; over HTTP once as one body, and once in an event stream.
fn answering(result: &Value) -> [Value; 2] {
    let rule = json!({"on": "tools/call", "tool": "charge", "do": ["ledger", {"result": result}]});
    ["json", "sse"].map(|kind| json!({"http_answer": kind, "rules": [&rule]}))
}

/// Each lane with each of the scripts.
fn cases(scripts: [Value; 2]) -> impl Iterator<Item = (Over, Era, Value)> {
    let of = move |(over, era): (Over, Era)| {
        let scripts = scripts.clone().into_iter();
        scripts.map(move |script| (over, era.clone(), script))
    };
    lanes(&BOTH).into_iter().flat_map(of)
}

fn rows() -> Value {
    (0..400)
        .map(|row| json!({"row": row, "name": format!("é \"{row}\"\n"), "price": 0.5}))
        .collect()
}

#[tokio::test]
async fn a_large_answer_stays_as_it_came_until_somebody_reads_it() {
    bounded(async {
        let result = json!({"content": [{"type": "text", "text": "x".repeat(50_000)},
            {"type": "resource_link", "uri": "file:///a", "name": "a"}],
            "structuredContent": {"rows": rows()}, "isError": true, "_meta": {"k": 1}});
        for (over, era, script) in cases(answering(&result)) {
            let rig = Rig::new(over, era, script).await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            assert!(answer.is_error());
            let read = serde_json::from_str::<CallToolResult>(answer.raw().unwrap()).unwrap();
            let rows: Value = serde_json::from_str(answer.raw_structured().unwrap()).unwrap();
            assert_eq!(rows, result["structuredContent"]);
            let other = answer.clone();
            assert_eq!(answer.content(), read.content);
            assert_eq!(answer.text().len(), 50_000);
            assert_eq!(answer.structured(), Some(&rows));
            for answer in [answer, other] {
                let CallToolResponse::Complete(whole) = answer.into_rmcp() else {
                    panic!("it is complete");
                };
                assert_eq!(whole, read);
            }
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_small_answer_is_read_at_once() {
    bounded(async {
        let result = json!({"content": [{"type": "text", "text": "a"}], "structuredContent": [1]});
        for (over, era, script) in cases(answering(&result)) {
            let rig = Rig::new(over, era, script).await;
            let answer = rig.call("charge", json!({})).await.unwrap();
            assert_eq!((answer.raw(), answer.raw_structured()), (None, None));
            assert_eq!(answer.text(), "a");
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_answer_that_cannot_be_read_is_found_out_when_it_comes() {
    bounded(async {
        let padding = "x".repeat(100_000);
        for broken in [
            json!({"content": [{"type": "text", "text": padding}, {"type": "text"}]}),
            json!({"content": [{"type": "text", "text": padding,
                "annotations": {"priority": "high"}}]}),
            json!({"content": [{"type": "resource", "resource": {"uri": 5}, "padding": padding}]}),
            json!({"content": [], "isError": "yes", "structuredContent": padding}),
        ] {
            for (over, era, script) in cases(answering(&broken)) {
                let rig = Rig::new(over, era, script).await;
                let error = rig.call("charge", json!({})).await.unwrap_err();
                let CallError::Unknown(unknown) = error else {
                    panic!("it ran, and nobody knows how: {error:?}");
                };
                assert!(matches!(unknown.cause, UnknownCause::WrongType(_)));
                rig.finish().await;
            }
        }
    })
    .await;
}
