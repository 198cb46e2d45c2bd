//! Finding out what became of an operation whose outcome is unknown: by its task, by a repeat under its
//! own key, or by a look-up, in the process that lost the answer and in the one after it.

mod support;

#[path = "resolving/restarts.rs"]
mod restarts;
#[path = "resolving/shared.rs"]
mod shared;
#[path = "resolving/tasks.rs"]
mod tasks;
#[path = "resolving/within.rs"]
mod within;

use std::time::Duration;

use mcp_supervisor::{
    ConnectionSpec, OperationId, OwnedConnection, Supervisor, ToolCall, ToolContract,
    journal::{Journal, JournalSettings, MemoryStore},
    policy::Repeats,
};
use serde_json::json;
use support::world::{World, unknown};

fn keyed() -> ToolContract {
    ToolContract::keyed("key")
}

fn looked_up(absence_final_after: Option<Duration>) -> ToolContract {
    ToolContract::Status {
        tool: "lookup".into(),
        argument: "key".into(),
        absence_final_after,
    }
}

/// A journal in memory that keeps arguments, or does not.
fn journal(keep_arguments: bool) -> Journal {
    let settings = JournalSettings {
        keep_arguments,
        ..JournalSettings::default()
    };
    Journal::new(MemoryStore::new(), settings)
}

/// One attempt, so that a call leaves what it lost to whoever resolves it.
fn once(spec: ConnectionSpec, contract: ToolContract) -> ConnectionSpec {
    spec.contract("charge", contract).repeats(Repeats {
        max_attempts: 1,
        ..Repeats::default()
    })
}

async fn open(
    world: &World,
    journal: &Journal,
    contract: ToolContract,
) -> (Supervisor, OwnedConnection) {
    let builder = Supervisor::builder().journal(journal.clone());
    let supervisor = builder.start().await.expect("it starts");
    let spec = once(world.spec(), contract).tasks();
    let connection = supervisor.open("server", spec).await.expect("it opens");
    (supervisor, connection)
}

fn charge() -> ToolCall {
    let arguments = json!({"amount": 1999, "nested": {"b": 1, "a": [2.5, null]}});
    ToolCall::new("charge", arguments).idempotency_key("order-1001".parse().expect("a key"))
}

/// Calls, and loses the answer.
async fn lose(connection: &OwnedConnection, call: ToolCall) -> OperationId {
    let error = connection
        .call_tool(call)
        .await
        .expect_err("its answer is lost");
    unknown(&error);
    error.operation()
}
