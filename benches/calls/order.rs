//! Whether calls arrive in the order in which they were made.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use mcp_supervisor::ToolCall;
use rmcp::model::CallToolRequestParams;
use serde_json::{Map, json};
use tokio::task::JoinSet;

use crate::{
    clients::{self, Caller, Client, Place},
    options::Options,
    servers::Answer,
    speed::Flavour,
    table::{Bar, Sides, Table},
};

const CALLS: u64 = 20_000;
const ABREAST: usize = 128;

/// A child process counts the calls that arrive behind one that was made later.
pub(crate) fn order(table: &mut Table, _: &Options) {
    let place = Place::Stdio(Answer::Inversions);
    let runtime = Flavour::Multi.runtime();
    let (rmcp, ours) = runtime.block_on(async {
        let rmcp = inversions(clients::rmcp(&place).await).await;
        let supervisor = clients::supervisor().await;
        let ours = inversions(clients::ours(&supervisor, "bench", &place).await).await;
        clients::end(supervisor).await;
        (rmcp, ours)
    });
    runtime.shutdown_background();
    let sides = Sides {
        rmcp: rmcp.to_string(),
        ours: ours.to_string(),
        floor: String::new(),
    };
    let name = format!("inversions on the wire in {CALLS} calls, count");
    table.exact(&name, ours as f64, Bar::AtMost(0.0), &sides);
}

/// Makes the calls one after another, each handed over before the next, and asks at the end.
async fn inversions(caller: Caller) -> u64 {
    let mut under_way = JoinSet::new();
    for number in 1..=CALLS {
        while under_way.len() >= ABREAST {
            under_way
                .join_next()
                .await
                .expect("one is there")
                .expect("no panic");
        }
        let caller = caller.clone();
        let mut call: Pin<Box<dyn Future<Output = u64> + Send>> =
            Box::pin(async move { numbered(&caller, number).await });
        // A call is made when it is first polled.
        let first = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        if first.is_pending() {
            under_way.spawn(call);
        }
    }
    while let Some(done) = under_way.join_next().await {
        done.expect("no panic");
    }
    numbered(&caller, CALLS + 1).await
}

/// One call with a number, and how many were out of order so far, by the server's count.
async fn numbered(caller: &Caller, number: u64) -> u64 {
    let arguments = json!({ "number": number });
    let text = match &caller.client {
        Client::Ours(connection) => {
            let answer = connection
                .call_tool(ToolCall::new("count", arguments))
                .await;
            answer.expect("an answer").text()
        }
        Client::Rmcp(service) => {
            let arguments: Map<_, _> = serde_json::from_value(arguments).expect("an object");
            let params = CallToolRequestParams::new("count").with_arguments(arguments);
            let answer = service.peer().call_tool(params).await.expect("an answer");
            answer.content[0].as_text().expect("a text").text.clone()
        }
    };
    text.parse().expect("a number")
}
