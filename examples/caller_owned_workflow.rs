//! A workflow on a connection that it does not own.
//!
//! The caller has a client of its own, with a session that matters: a login, a basket, a lock. It
//! lends that client to the steps of a workflow. When the server dies, nobody replaces the client
//! behind the caller's back: the steps learn that the connection is caller-owned and closed, and
//! the caller supplies a replacement, as a new lent handle.
//!
//! ```text
//! cargo run --example caller_owned_workflow
//! ```
//!
//! The program starts itself again, as the shop's server.

mod support;

use std::{env, ffi::OsString, process, time::Duration};

use mcp_supervisor::{
    CallError, Connection, LentSpec, Outcome, Supervisor, ToolCall, error::NotSentReason,
};
use rmcp::{RoleClient, ServiceExt as _, service::RunningService, transport::TokioChildProcess};
use serde_json::json;
use support::{Ending, Ledger, check, serve, story};

/// The shop's server. It takes the first payment and dies before it can say so.
fn shop_server(ledger: &Ledger) -> Ending {
    ledger.add("server started");
    serve(&["reserve", "pay", "payments", "ship"], |tool, _| {
        if tool == "payments" {
            return ledger.count("pay").to_string();
        }
        ledger.add(tool);
        if tool == "pay" {
            process::exit(1);
        }
        format!("{tool}: done")
    })
}

// The steps. Each takes `&Connection`: whoever owns it, and however it came about.

async fn reserve(shop: &Connection) -> Result<String, CallError> {
    let call = ToolCall::new("reserve", json!({ "item": "lamp" }));
    Ok(shop.call_tool(call).await?.text())
}

async fn pay(shop: &Connection) -> Result<String, CallError> {
    let call = ToolCall::new("pay", json!({ "order": "o-7", "cents": 4900 }));
    Ok(shop.call_tool(call).await?.text())
}

async fn payments(shop: &Connection) -> Result<String, CallError> {
    let call = ToolCall::new("payments", json!({ "order": "o-7" }));
    Ok(shop.call_tool(call).await?.text())
}

async fn ship(shop: &Connection) -> Result<String, CallError> {
    let call = ToolCall::new("ship", json!({ "order": "o-7" }));
    Ok(shop.call_tool(call).await?.text())
}

/// The caller's own client, built with plain rmcp. Only the caller starts and closes one.
async fn new_client(ledger: &Ledger) -> Ending<RunningService<RoleClient, ()>> {
    let mut command = tokio::process::Command::new(env::current_exe()?);
    command.arg(&ledger.0);
    Ok(().serve(TokioChildProcess::new(command)?).await?)
}

#[tokio::main]
async fn main() -> Ending {
    if let Some(ledger) = env::args_os().nth(1) {
        return shop_server(&Ledger(OsString::into(ledger)));
    }
    let directory = tempfile::tempdir()?;
    let ledger = Ledger(directory.path().join("ledger"));
    story(workflow(&ledger)).await
}

async fn workflow(ledger: &Ledger) -> Ending {
    let supervisor = Supervisor::builder().start().await?;
    let client = new_client(ledger).await?;
    let shop = supervisor
        .lend_service("shop", &client, LentSpec::new())
        .await?;

    println!(
        "The caller lends its client. The first step: {}",
        reserve(&shop).await?
    );

    println!("The second step pays, and the server dies before it answers.");
    let error = pay(&shop).await.expect_err("the server is dead");
    println!("   {error}");
    check(
        error.outcome() == Outcome::Unknown,
        "whether it was paid is unknown",
    )?;
    check(ledger.count("pay") == 1, "the payment was asked for once")?;

    println!("The third step runs on the same handle.");
    let error = ship(&shop).await.expect_err("the connection is closed");
    println!("   {error}");
    let refused = matches!(&error, CallError::NotSent(e)
        if matches!(e.reason, NotSentReason::CallerOwnedClosed));
    check(
        refused,
        "it was refused because the caller's connection is closed",
    )?;
    check(ledger.count("ship") == 0, "nothing was sent")?;
    check(
        ledger.count("server started") == 1,
        "no server was started behind the caller's back",
    )?;

    println!("The caller supplies a replacement, as a new lent handle.");
    let replacement = new_client(ledger).await?;
    let shop = supervisor
        .lend_service("shop-2", &replacement, LentSpec::new())
        .await?;

    println!(
        "It looks up what nobody knew: {} payment(s).",
        payments(&shop).await?
    );
    println!(
        "So it does not pay again. The same last step: {}",
        ship(&shop).await?
    );
    check(ledger.count("pay") == 1, "the customer paid once")?;
    check(ledger.count("ship") == 1, "the parcel left once")?;

    // The end of the supervisor is not the end of what it was lent.
    let report = supervisor.shutdown(Duration::from_secs(2)).await;
    check(
        report.unknown().next().is_none(),
        "the shutdown left nothing in doubt",
    )?;
    check(!replacement.is_closed(), "the caller's client still runs")?;
    replacement.list_tools(None).await?;
    println!("The caller uses its client once more, and closes it itself.");
    replacement.cancel().await?;
    Ok(())
}
