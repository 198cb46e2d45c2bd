//! The client's own word: what it takes for a call to be sent twice.
//!
//! A server's hints widen nothing. What the operator of the client knows about a tool is another
//! matter, and is written down as a contract. Each tool here does its work and then dies on its
//! first call. Each is called twice: on a connection without a contract, and on one with it.
//!
//! ```text
//! cargo run --example trusted_replay
//! ```
//!
//! The program starts itself again, as the warehouse's server.

mod support;

use std::{env, path::Path, process, time::Duration};

use mcp_supervisor::{
    ConnectionSpec, Outcome, StdioSpec, Supervisor, ToolAnswer, ToolCall, ToolContract,
};
use serde_json::json;
use support::{Ending, Ledger, check, serve, story};

/// The warehouse's server. The ledger holds what it received and what it did about it.
fn warehouse_server(ledger: &Ledger) -> Ending {
    serve(
        &["set_price", "order", "ship", "find_parcel"],
        |tool, arguments| {
            let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
            ledger.add(&format!("received {tool}"));
            let (effect, answer) = match tool {
                // Setting a price that is set already is no effect.
                "set_price" => (
                    format!("effect price {}", arguments["cents"]),
                    "the price is set",
                ),
                // Remembers the keys of the orders that it has.
                "order" => (format!("effect order {}", text("request_id")), "ordered"),
                // Knows no keys, and would ship again.
                "ship" => (format!("effect parcel {}", text("parcel")), "shipped"),
                _ => {
                    let shipped = ledger.count(&format!("effect parcel {}", text("parcel"))) > 0;
                    return if shipped { "it is on its way" } else { "" }.to_owned();
                }
            };
            if tool == "ship" || ledger.count(&effect) == 0 {
                ledger.add(&effect);
            }
            if ledger.count(&format!("received {tool}")) == 1 {
                process::exit(1);
            }
            answer.to_owned()
        },
    )
}

fn server(ledger: &Ledger) -> Ending<ConnectionSpec> {
    Ok(StdioSpec::new(env::current_exe()?).arg(&ledger.0).into())
}

/// A call, and the contract under which it may be settled.
fn cases() -> Ending<[(ToolCall, ToolContract, &'static str); 3]> {
    let set_price = ToolCall::new("set_price", json!({ "item": "lamp", "cents": 4900 }));
    let order =
        ToolCall::new("order", json!({ "item": "lamp" })).idempotency_key("order-1001".parse()?);
    let ship = ToolCall::new("ship", json!({ "parcel": "p-9" })).idempotency_key("p-9".parse()?);
    Ok([
        (
            set_price,
            ToolContract::Idempotent,
            "a price that is set twice is set once, so the call may be sent again",
        ),
        (
            order,
            ToolContract::keyed("request_id"),
            "the server knows an order by its key, so it may be sent again with the same key",
        ),
        (
            ship,
            ToolContract::status("find_parcel", "parcel"),
            "a parcel must not be shipped twice, but it can be looked up",
        ),
    ])
}

#[tokio::main]
async fn main() -> Ending {
    if let Some(ledger) = env::args_os().nth(1) {
        return warehouse_server(&Ledger(ledger.into()));
    }
    let directory = tempfile::tempdir()?;
    story(tell(directory.path())).await
}

async fn tell(directory: &Path) -> Ending {
    let supervisor = Supervisor::builder().start().await?;
    for (call, contract, reason) in cases()? {
        let tool = call.name().to_owned();
        println!("{tool}: {reason}.");

        let alone = Ledger(directory.join(format!("{tool}-alone")));
        let connection = supervisor
            .open(&format!("{tool}-alone"), server(&alone)?)
            .await?;
        let error = connection
            .call_tool(call.clone())
            .await
            .expect_err("the server died");
        println!("   without a contract: {error}");
        check(
            error.outcome() == Outcome::Unknown,
            "the outcome is unknown",
        )?;
        check(received(&alone, &tool) == 1, "the call was sent once")?;

        let trusted = Ledger(directory.join(format!("{tool}-trusted")));
        let spec = server(&trusted)?.contract(&tool, contract.clone());
        let connection = supervisor.open(&format!("{tool}-trusted"), spec).await?;
        let answer = connection.call_tool(call).await?;
        println!("   with the contract: {}", answer.text());
        settled(&contract, &answer, received(&trusted, &tool))?;
        check(trusted.count("effect") == 1, "and its effect stands once")?;
    }
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

fn received(ledger: &Ledger, tool: &str) -> usize {
    ledger.count(&format!("received {tool}"))
}

/// How a contract settled what its first attempt left open.
fn settled(contract: &ToolContract, answer: &ToolAnswer, received: usize) -> Ending {
    if matches!(contract, ToolContract::Status { .. }) {
        check(answer.was_looked_up(), "the answer is that of the look-up")?;
        check(received == 1, "the call itself was sent once")
    } else {
        check(
            answer.attempts() == 2,
            "the answer is that of the second attempt",
        )?;
        check(received == 2, "the call was sent twice")
    }
}
