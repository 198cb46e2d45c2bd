//! The main job: a server charges a customer and dies before it can answer.
//!
//! Was the customer charged? The caller cannot know, so it is told exactly that, and nothing is
//! sent a second time. The next call gets a new server.
//!
//! ```text
//! cargo run --example supervised_restart
//! ```
//!
//! The program starts itself a second time, as the billing server.

mod support;

use std::{env, error::Error, process, time::Duration};

use mcp_supervisor::{Generation, Outcome, StdioSpec, Supervisor, ToolCall};
use serde_json::json;
use support::{Ending, Ledger, check, serve, story};

/// The billing server. It writes each charge into the ledger, and its first charge is its last act.
fn billing_server(ledger: &Ledger) -> Ending {
    serve(&["charge", "charges"], |tool, arguments| match tool {
        "charge" => {
            ledger.add(&format!("charged {arguments}"));
            if ledger.count("charged") == 1 {
                eprintln!("billing: out of memory");
                process::exit(1);
            }
            "charged".to_owned()
        }
        _ => format!("charges so far: {}", ledger.count("charged")),
    })
}

// README.md shows this function, word for word.
async fn charge(server: StdioSpec) -> Result<Generation, Box<dyn Error + Send + Sync>> {
    let supervisor = Supervisor::builder().start().await?;
    let billing = supervisor.open("billing", server).await?;

    let charge = ToolCall::new("charge", json!({ "customer": "c-42", "cents": 1999 }));
    match billing.call_tool(charge).await {
        Ok(answer) => println!("the server says: {}", answer.text()),
        Err(error) if error.outcome() == Outcome::Unknown => println!("{error}"),
        Err(error) => return Err(error.into()),
    }

    // Another operation. It finds no session, so it gets a new one.
    let answer = billing
        .call_tool(ToolCall::new("charges", json!({})))
        .await?;
    println!("{} says: {}", answer.generation(), answer.text());

    let report = supervisor.shutdown(Duration::from_secs(2)).await;
    println!(
        "operations that the shutdown left in doubt: {}",
        report.unknown().count()
    );
    Ok(answer.generation())
}

#[tokio::main]
async fn main() -> Ending {
    let mut arguments = env::args_os().skip(1);
    if let Some(ledger) = arguments.next() {
        return billing_server(&Ledger(ledger.into()));
    }
    let directory = tempfile::tempdir()?;
    let ledger = Ledger(directory.path().join("ledger"));
    let server = StdioSpec::new(env::current_exe()?).arg(&ledger.0);
    story(async {
        println!("We ask the billing server to charge a customer. It dies on the job.");
        let generation = charge(server).await?;

        println!("The caller knows that nobody knows, and the next call was served.");
        check(
            ledger.count("charged") == 1,
            "the ledger holds exactly one charge",
        )?;
        check(
            generation.number() == 2,
            "the second call ran on the second session",
        )
    })
    .await
}
