//! x
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod call;
mod catalog;
pub mod connection;
pub mod error;
pub mod event;
pub mod evidence;
pub mod handle;
pub mod journal;
pub mod link;
pub mod operation;
pub mod policy;
mod session;
pub mod spec;
pub mod supervisor;
mod transport;
pub use call::{AnswerKind, ToolAnswer};
pub use error::CallError;
pub use event::{Event, EventStream, Received, What};
pub use evidence::Outcome;
pub use handle::{Connection, LentConnection, OwnedConnection, SharedConnection};
pub use operation::{
    ConnectionName, CustomCall, Generation, IdempotencyKey, KeyError, OperationId, Ownership, Page,
    Ping, PromptGet, ResourceRead, ToolCall,
};
pub use policy::ToolContract;
pub use spec::{ConnectionSpec, Era, HttpSpec, Limits, StdioSpec};
pub use supervisor::{LentSpec, ShutdownReport, Supervisor};
pub use tokio_util::sync::CancellationToken;
