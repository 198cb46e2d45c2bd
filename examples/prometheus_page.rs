//! The numbers of a bad day, as a page for Prometheus.
//!
//! A billing server answers, dies in the middle of calls, and comes back. The host only reads the
//! numbers: how many calls nobody knows the outcome of, how many were sent again and by whose
//! leave, how often there was a new session.
//!
//! ```text
//! cargo run --example prometheus_page
//! ```
//!
//! The program starts itself again, as the billing server.

mod support;

use std::{env, path::Path, process, time::Duration};

use mcp_supervisor::{Outcome, StdioSpec, Supervisor, ToolCall, ToolContract};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use support::{Ending, Ledger, check, serve, story};

/// The billing server. The first call of a tool whose name says so is its last.
fn billing_server(ledger: &Ledger) -> Ending {
    serve(&["balance", "dies_charging", "dies_pricing"], |tool, _| {
        ledger.add(tool);
        if tool.starts_with("dies") && ledger.count(tool) == 1 {
            process::exit(1);
        }
        "done".to_owned()
    })
}

#[tokio::main]
async fn main() -> Ending {
    if let Some(ledger) = env::args_os().nth(1) {
        return billing_server(&Ledger(ledger.into()));
    }
    let directory = tempfile::tempdir()?;
    story(tell(directory.path())).await
}

async fn tell(directory: &Path) -> Ending {
    // Before the supervisor starts, so that the page has the descriptions.
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    metrics::set_global_recorder(recorder)?;

    let supervisor = Supervisor::builder().start().await?;
    let server = StdioSpec::new(env::current_exe()?).arg(directory.join("ledger"));
    let spec = mcp_supervisor::ConnectionSpec::from(server)
        .contract("dies_pricing", ToolContract::Idempotent);
    let billing = supervisor.open("billing", spec).await?;
    let call = |tool: &str| billing.call_tool(ToolCall::new(tool, json!({})));

    println!("A call is answered.");
    call("balance").await?;
    println!("The server dies in the middle of another, and nobody knows whether it ran.");
    let lost = call("dies_charging").await.expect_err("the server died");
    check(lost.outcome() == Outcome::Unknown, "the outcome is unknown")?;
    println!("The next call finds a new session.");
    check(
        call("balance").await?.generation().number() == 2,
        "the second",
    )?;
    println!("It dies again; the client has said that this tool may be called twice.");
    check(
        call("dies_pricing").await?.attempts() == 2,
        "it was sent twice",
    )?;
    let _ = supervisor.shutdown(Duration::from_secs(2)).await;

    let page = page.render();
    println!("\n{page}");
    for line in [
        "# TYPE mcp_supervisor_operations counter",
        r#"mcp_supervisor_operations{connection="billing",mcp_method_name="tools/call",outcome="answered"} 3"#,
        r#"mcp_supervisor_operations{connection="billing",mcp_method_name="tools/call",outcome="unknown"} 1"#,
        r#"mcp_supervisor_unknown_outcomes{connection="billing",cause="session_ended"} 1"#,
        r#"mcp_supervisor_replays{connection="billing",contract="idempotent"} 1"#,
        r#"mcp_supervisor_sessions_lost{connection="billing"} 2"#,
        r#"mcp_supervisor_reconnects{connection="billing"} 2"#,
        r#"mcp_supervisor_operations_in_flight{connection="billing"} 0"#,
        r#"mcp_client_operation_duration_count{connection="billing",mcp_method_name="tools/call",outcome="unknown"} 1"#,
    ] {
        check(page.lines().any(|l| l == line), line)?;
    }
    Ok(())
}
