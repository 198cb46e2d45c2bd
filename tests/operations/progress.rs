//! The progress of one's own call.

use std::time::Duration;

use mcp_supervisor::ToolCall;
use serde_json::{Value, json};

use crate::support::{
    bounded, initialize,
    lane::{BOTH, Over, Rig, lanes},
    logs::Logs,
};

fn progress(token: Value, at: u32) -> Value {
    json!({"notify": {"method": "notifications/progress",
        "params": {"progressToken": token, "progress": at, "total": 3, "message": format!("step {at}")}}})
}

#[tokio::test]
async fn a_caller_reads_the_progress_of_its_own_call_in_order_and_all_of_it_before_the_end() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            // The answer follows the last progress at once: none of it may be lost behind it.
            let mine = [1, 2, 3].map(|at| progress(json!("$token"), at));
            let other = progress(json!(4711), 99);
            let steps = json!(["ledger", mine[0], other, mine[1], mine[2], "answer"]);
            let rig = Rig::new(
                over,
                era.clone(),
                json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": steps}]}),
            )
            .await;
            for _ in 0..20 {
                let mut call = ToolCall::new("charge", json!({}));
                let mut stream = call.progress();
                let unheard = ToolCall::new("charge", json!({}));
                let (mine, _) = tokio::join!(
                    rig.connection.call_tool(call),
                    rig.connection.call_tool(unheard)
                );
                mine.unwrap();
                let mut seen = Vec::new();
                while let Some(step) = stream.next().await {
                    assert_eq!((step.total, step.missed), (Some(3.0), 0));
                    assert_eq!(step.message, Some(format!("step {}", step.progress)));
                    seen.push(step.progress);
                }
                assert_eq!(seen, [1.0, 2.0, 3.0], "{over:?} {era:?}");
            }
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_nobody_reads_blocks_nothing_and_tells_what_was_dropped() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let mut steps: Vec<_> = (1..=500).map(|at| progress(json!("$token"), at)).collect();
            steps.push(json!("answer"));
            let rig = Rig::new(
                over,
                era,
                json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": steps}]}),
            )
            .await;
            let mut call = ToolCall::new("charge", json!({}));
            let mut stream = call.progress();
            rig.connection.call_tool(call).await.unwrap();
            rig.echo().await;
            let first = stream.next().await.unwrap();
            assert_eq!((first.progress, first.missed), (437.0, 436));
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_dropped_call_ends_its_stream() {
    bounded(async {
        let rig = Rig::new(crate::support::lane::Over::Stdio, mcp_supervisor::Era::Discover, json!({
            "rules": [{"on": "tools/call", "tool": "charge", "do": [progress(json!("$token"), 1), "hang"]}]}))
        .await;
        let mut call = ToolCall::new("charge", json!({}));
        let mut stream = call.progress();
        let calling = tokio::time::timeout(Duration::from_secs(10), async {
            tokio::select! {
                _ = rig.connection.call_tool(call) => panic!("it is never answered"),
                step = stream.next() => step,
            }
        });
        assert_eq!(calling.await.unwrap().unwrap().progress, 1.0);
        assert!(stream.next().await.is_none());
        rig.finish().await;
    })
    .await;
}

#[tokio::test]
async fn progress_that_no_handler_hears_is_no_line_in_the_log_of_rmcp() {
    bounded(async {
        let logs = Logs::everything();
        // Other tests of this process log too: the number tells whose line it is.
        let at_rmcps = |number: u32| {
            let text = logs.text();
            let mut lines = text.lines().filter(|l| l.contains("received notification"));
            lines.any(|line| line.contains(&format!("progress: {number}.0")))
        };
        for (handled, number) in [(false, 4711), (true, 4712)] {
            let steps = json!(["ledger", progress(json!("$token"), number), "answer"]);
            let rig = Rig::with(
                Over::Stdio,
                initialize(),
                json!({"rules": [{"on": "tools/call", "tool": "charge", "do": steps}]}),
                |spec| match handled {
                    true => spec.handler(()),
                    false => spec,
                },
            )
            .await;
            let mut call = ToolCall::new("charge", json!({}));
            let mut stream = call.progress();
            rig.connection.call_tool(call).await.unwrap();
            assert_eq!(stream.next().await.unwrap().progress, f64::from(number));
            // rmcp, where it is given it, deals with it before it reads the answer.
            assert_eq!(at_rmcps(number), handled);
            rig.finish().await;
        }
    })
    .await;
}
