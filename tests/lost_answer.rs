//! The regression of the field: the server commits, and the answer is lost.

mod support;

use mcp_supervisor::{Era, Outcome, Supervisor, ToolCall};
use serde_json::json;
use support::{Bed, bounded, initialize};

#[tokio::test]
async fn lost_answer_is_not_replayed_and_the_next_call_recovers() {
    for era in [initialize(), Era::Discover] {
        bounded(async {
            let bed = Bed::new(json!({"rules": [
                {"on": "tools/call", "tool": "charge", "generation": 1, "do": ["ledger", {"exit": 1}]}
            ]}));
            let supervisor = Supervisor::builder().start().await.unwrap();
            let billing =
                supervisor.open("billing", bed.stdio_spec(era.clone())).await.unwrap();
            let error = billing
                .call_tool(ToolCall::new("charge", json!({"cents": 1999})))
                .await
                .unwrap_err();
            println!("{error}");
            assert_eq!(error.outcome(), Outcome::Unknown);
            assert_eq!(bed.ran("charge"), 1);
            let answer =
                billing.call_tool(ToolCall::new("echo", json!({"a": 1}))).await.unwrap();
            assert_eq!(answer.generation().number(), 2);
            assert_eq!(bed.ran("charge"), 1);
            assert_eq!(bed.ran("echo"), 1);
            let report = supervisor.shutdown(std::time::Duration::from_secs(2)).await;
            println!("{report:?}");
            bed.until_all_gone().await;
        })
        .await;
    }
}
