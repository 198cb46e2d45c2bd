//! Three servers, one list of tools: what an agent host shows to its model, and how it gets from the
//! name that the model picked back to the server.
//!
//! ```text
//! cargo run --example tool_namespace
//! ```
//!
//! The program starts itself three times more, as the servers.

mod support;

use std::{env, time::Duration};

use mcp_supervisor::{StdioSpec, Supervisor, toolbox::ToolboxError};
use serde_json::json;
use support::{Ending, check, serve, story};

/// A server with these tools, which say who ran.
fn server(name: &str, tools: &[&str]) -> Ending {
    serve(tools, |tool, _| format!("{tool} ran at {name}"))
}

const SERVERS: [(&str, &[&str]); 3] = [
    ("tickets", &["search", "open"]),
    ("wiki", &["search"]),
    // No model's API takes such names as they are.
    (
        "customer relations",
        &[
            "search",
            "find customer (by region, with all of their open orders)",
        ],
    ),
];

async fn host() -> Ending {
    let supervisor = Supervisor::builder().start().await?;
    for (name, _) in SERVERS {
        let server = StdioSpec::new(env::current_exe()?).arg(name);
        supervisor.open(name, server).await?;
    }

    let toolbox = supervisor.toolbox();
    let offer = toolbox.tools().await;
    println!("The model is shown:");
    for tool in offer.for_model() {
        println!("   {}", tool.name);
    }
    check(
        offer.tools.len() == 5,
        "five tools, and each has a name of its own",
    )?;

    println!("It picks each of them in turn:");
    for tool in &offer.tools {
        let answer = toolbox.call(&tool.name, json!({})).await?.text();
        println!("   {answer}");
        let expected = format!("{} ran at {}", tool.tool.name, tool.connection);
        if answer != expected {
            return Err(format!("{} led elsewhere: {answer}", tool.name).into());
        }
    }
    check(
        true,
        "each call reached the server and the tool that its name stands for",
    )?;

    println!("And then it makes one up:");
    let error = toolbox.call("wiki__delete_everything", json!({})).await;
    let error = error.err().ok_or("a tool that nobody has was called")?;
    println!("   {error}");
    check(
        matches!(error, ToolboxError::NoSuchTool),
        "no server has heard of it",
    )?;

    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
    Ok(())
}

#[tokio::main]
async fn main() -> Ending {
    if let Some(name) = env::args().nth(1) {
        let (name, tools) = SERVERS
            .iter()
            .find(|(n, _)| *n == name)
            .ok_or("no such server")?;
        return server(name, tools);
    }
    story(host()).await
}
