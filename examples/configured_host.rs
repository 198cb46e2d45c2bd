//! A host whose servers stand in a configuration file, as other hosts write them. The file changes
//! while the host runs, and only what changed is restarted.
//!
//! ```text
//! cargo run --example configured_host
//! ```
//!
//! The program starts itself again, as the servers of the file.

mod support;

use std::{env, fs, path::Path, time::Duration};

use mcp_supervisor::{Configuration, Supervisor, ToolCall};
use serde_json::json;
use support::{Ending, check, serve, story};

/// A server that greets as it was told by its environment.
fn greeter() -> Ending {
    let greeting = env::var("GREETING")?;
    serve(&["greet"], |_, _| greeting.clone())
}

/// What a person would write: comments, variables, defaults, and a mistake.
fn file(greeting: &str, with_second: bool) -> String {
    let second = r#""second": { "command": "${EXE}", "args": ["serve"], "env": { "GREETING": "${NAME:-nobody} is here" } },"#;
    format!(
        r#"{{
            // For all servers.
            "mcp-supervisor": {{ "limits": {{ "total": "20s" }} }},
            "mcpServers": {{
                "first": {{ "command": "${{EXE}}", "args": ["serve"], "env": {{ "GREETING": "{greeting}" }} }},
                {}
                "broken": {{ "url": "https://example.invalid/mcp", "headers": {{ "Authorization": "Bearer ${{NO_SUCH_TOKEN}}" }} }},
            }}
        }}"#,
        if with_second { second } else { "" }
    )
}

async fn apply(supervisor: &Supervisor, path: &Path) -> Ending {
    let executable = env::current_exe()?.to_string_lossy().into_owned();
    let variables = move |name: &str| (name == "EXE").then(|| executable.clone());
    let reader = Configuration::reader().environment(variables);
    let report = supervisor.apply(&reader.read(path)?).await;
    for (name, change) in &report.changes {
        println!("{name}: {change}");
    }
    Ok(())
}

async fn greet(supervisor: &Supervisor, name: &str) -> Ending<(String, u64)> {
    let connection = supervisor.connection(name).ok_or("no such server")?;
    let answer = connection
        .call_tool(ToolCall::new("greet", json!({})))
        .await?;
    println!("{name} says: {} ({})", answer.text(), answer.generation());
    Ok((answer.text(), answer.generation().number()))
}

#[tokio::main]
async fn main() -> Ending {
    if env::args_os().len() > 1 {
        return greeter();
    }
    let directory = tempfile::tempdir()?;
    // A short name in the errors.
    env::set_current_dir(directory.path())?;
    let path = Path::new("mcp.json");
    story(async {
        let supervisor = Supervisor::builder().start().await?;

        println!("The host reads its file. One server lacks a variable; the others run.");
        fs::write(path, file("good morning", true))?;
        apply(&supervisor, path).await?;
        greet(&supervisor, "first").await?;
        let (second, _) = greet(&supervisor, "second").await?;
        check(
            second == "nobody is here",
            "a variable that is not set has its default",
        )?;
        check(
            supervisor.connection("broken").is_none(),
            "the broken server is down, alone",
        )?;

        println!("Somebody changes the greeting of the first, and the host reads the file again.");
        fs::write(path, file("good evening", true))?;
        apply(&supervisor, path).await?;
        let first = greet(&supervisor, "first").await?;
        check(
            first == ("good evening".into(), 2),
            "the first was restarted",
        )?;
        let (_, generation) = greet(&supervisor, "second").await?;
        check(generation == 1, "the second was not touched")?;

        println!("Somebody removes the second.");
        fs::write(path, file("good evening", false))?;
        apply(&supervisor, path).await?;
        check(
            supervisor.connection("second").is_none(),
            "the second is gone",
        )?;
        let (_, generation) = greet(&supervisor, "first").await?;
        check(generation == 2, "the first was not touched this time")?;

        let _ = supervisor.shutdown(Duration::from_secs(2)).await;
        Ok(())
    })
    .await
}
