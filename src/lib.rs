//! Supervised connections to MCP servers, for callers that must know whether a call ran.
//!
//! A server can die, hang or forget its session between doing something and saying so. This crate
//! never sends a `tools/call` twice on its own, tells its caller what is known when the answer is
//! lost, and has a new session for the call after it.
//!
//! # A tour
//!
//! A [`Supervisor`] opens connections. A connection has a name, outlives its sessions, and starts
//! the first one with its first operation.
//!
//! ```no_run
//! use mcp_supervisor::{StdioSpec, Supervisor, ToolCall};
//! use serde_json::json;
//!
//! # async fn tour() -> Result<(), Box<dyn std::error::Error>> {
//! let supervisor = Supervisor::builder().start().await?;
//! let billing = supervisor.open("billing", StdioSpec::new("billing-server")).await?;
//! let answer = billing.call_tool(ToolCall::new("balance", json!({ "customer": "c-42" }))).await?;
//! println!("{}", answer.text());
//! # Ok(())
//! # }
//! ```
//!
//! A call without an answer is a [`CallError`], whose four variants are the four things that can be
//! known. What to do about each is the caller's decision.
//!
//! ```
//! use mcp_supervisor::{CallError, Connection, ToolCall};
//! use serde_json::json;
//!
//! async fn charge(billing: &Connection) -> String {
//!     match billing.call_tool(ToolCall::new("charge", json!({ "cents": 1999 }))).await {
//!         Ok(answer) => answer.text(),
//!         Err(CallError::NotSent(e)) => format!("nothing was sent: {}", e.reason),
//!         Err(CallError::Rejected(_)) => "the server refused it".into(),
//!         Err(CallError::Failed(e)) => format!("the server failed: {}", e.error.message),
//!         Err(CallError::Unknown(e)) => format!("look it up on the server: {}", e.cause),
//!     }
//! }
//! ```
//!
//! A function like this takes a [`Connection`], and so it runs with a connection of the runtime's
//! as well as with one that somebody lends. The handles differ in what else they may do:
//!
//! ```no_run
//! use mcp_supervisor::{LentSpec, OwnedConnection, Supervisor};
//! # use mcp_supervisor::Connection;
//! # async fn charge(_: &Connection) {}
//! use rmcp::{RoleClient, service::RunningService};
//!
//! # async fn both(
//! #     supervisor: &Supervisor,
//! #     owned: OwnedConnection,
//! #     client: RunningService<RoleClient, ()>,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! // The runtime's own: shared with others, who cannot close it.
//! let shared = owned.share();
//! charge(&shared).await;
//! shared.reconnect().await?;
//! owned.close().await;
//!
//! // The caller's own: used, and never restarted or closed.
//! let lent = supervisor.lend_service("crm", &client, LentSpec::new()).await?;
//! charge(&lent).await;
//! # Ok(())
//! # }
//! ```
//!
//! What a server says about its tools widens nothing. What the client's operator knows about a tool
//! is a [`ToolContract`], and may: here a lost answer is asked for again with the same key.
//!
//! ```
//! use std::time::Duration;
//! use mcp_supervisor::{ConnectionSpec, HttpSpec, Limits, ToolCall, ToolContract};
//! use serde_json::json;
//!
//! let spec = ConnectionSpec::from(HttpSpec::new("https://orders.example/mcp"))
//!     .limits(Limits { total: Duration::from_secs(20), ..Limits::default() })
//!     .contract("create_order", ToolContract::keyed("request_id"));
//! let call = ToolCall::new("create_order", json!({ "item": "lamp" }))
//!     .idempotency_key("order-1001".parse()?);
//! # let _ = (spec, call);
//! # Ok::<(), mcp_supervisor::KeyError>(())
//! ```
//!
//! # Words
//!
//! - **operation**: one request of a caller's, with an [`OperationId`] and a deadline.
//! - **attempt**: an operation's request going out on a session. Most operations need one.
//! - **session**: one negotiated lifetime on one transport. A connection numbers them by
//!   [`Generation`], and at most one of them takes operations.
//! - **connection**: a name and a mailbox that stay, whatever becomes of the sessions.
//! - **framework-owned**: opened by the runtime from a spec, and so the runtime's to close and to
//!   open anew.
//! - **caller-owned**, or **lent**: opened by a caller, who lets the runtime call through it. All
//!   else stays with the caller.
//! - **loss**: a session ended. The next operation starts another one.
//! - **suspect**: a session may be dead. It goes on for what is in flight; the next operation gets
//!   another one, unless something is heard before.
//! - **unknown**: nobody here can tell whether the server ran a request.
//! - **recall**: taking back a request that still waits in this process. Winning it is the proof
//!   that nothing was sent.
//! - **contract**: what the client's operator vouches for, per tool.
//! - **key**: a caller's name for one intended effect. All attempts of an operation have the same.
//! - **journal**: the client's record of operations, written before they are sent.
//! - **receipt**: the server's record of a key's result, written with the effect.
//!
//! # Modules
//!
//! In reading order; each knows only those above it.
//!
//! | module | holds |
//! |---|---|
//! | [`operation`] | what can be asked, by whom it is identified, how long it may take |
//! | [`credentials`] | where a request's access token comes from, and what a refusal asks for |
//! | [`evidence`] | what is known about a request, and the outcome table as a function |
//! | [`extension`] | the words of the protocol extension for receipts |
//! | [`policy`] | contracts, backoff, and the decision whether to repeat |
//! | [`spec`] | what a connection is to be |
//! | [`event`] | what happened, as facts to subscribe to |
//! | [`error`] | what went wrong, and what to do next |
//! | [`journal`] | operations on disk before they are sent, and how a lost outcome is found out |
//! | `auth` | OAuth: access tokens, with the feature `oauth` |
//! | [`config`] | what a file says connections are to be |
//! | [`subscription`] | what a server tells unasked, and who wants to know |
//! | [`catalog`] | what a server has on offer, as it was last read whole |
//! | [`connection`] | what a connection is doing |
//! | [`call`] | what a tool answered |
//! | [`handle`] | what users hold, and the rights that come with it |
//! | [`toolbox`] | one namespace of tools over many connections |
//! | [`supervisor`] | opening, lending, shutting down |
//! | `receipts` | the durable half of a server's tool, with the feature `receipts` |
//! | [`link`] | a supervisor below an actor of the host's own |
//!
//! Three more show nothing: `telemetry` (one span for each operation), `transport` (bytes, HTTP and
//! processes) and `session` (one generation's life).
//!
//! The crate is for Unix. OAuth is the feature `oauth`, off by default; [`credentials`] is the seam for a
//! source of tokens of the host's own. The features `stdio`, `http`, `tls`, `metrics`, `sqlite` and `receipts`
//! are on by default; `postgres` keeps both halves for many hosts, and `otel` sends the trace context of an operation's span to the servers that a host
//! trusts with it.
//!
//! TLS is rustls. Where the program has installed no crypto provider of its own by the time the first
//! HTTP connection is opened, ring is installed for the process. A program that also builds `reqwest`
//! clients of its own, rmcp's HTTP client among them, installs a provider first: with `tls` on,
//! `reqwest` is built without one and would panic.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

#[cfg(feature = "oauth")]
pub mod auth;
pub mod call;
pub mod catalog;
pub mod config;
pub mod connection;
pub mod credentials;
pub mod error;
pub mod event;
pub mod evidence;
pub mod extension;
pub mod handle;
pub mod journal;
pub mod link;
pub mod operation;
pub mod policy;
#[cfg(feature = "receipts")]
pub mod receipts;
mod session;
pub mod spec;
pub mod subscription;
pub mod supervisor;
mod telemetry;
pub mod toolbox;
mod transport;

pub use call::{AnswerKind, HandedOver, Known, Resolution, ResolveError, ToolAnswer};
pub use config::Configuration;
pub use error::CallError;
pub use event::{Event, EventStream, Received, What};
pub use evidence::Outcome;
pub use handle::{Catalog, Connection, LentConnection, OwnedConnection, SharedConnection};
pub use operation::{
    Completion, ConnectionName, CustomCall, DirectoryRead, Generation, IdempotencyKey, KeyError,
    LogLevel, Notice, OperationId, Ownership, Page, Ping, Progress, ProgressStream, PromptGet,
    Resolve, ResourceRead, SkillGet, SupervisorPath, TaskAwait, TaskCancel, TaskGet, TaskHandle,
    TaskUpdate, ToolCall,
};
pub use policy::ToolContract;
pub use spec::{ConnectionSpec, Era, HttpSpec, Limits, StdioSpec};
pub use subscription::{Subscription, Update, Updates};
pub use supervisor::{LentSpec, ShutdownReport, Supervisor};
pub use tokio_util::sync::CancellationToken;
pub use toolbox::Toolbox;

/// What the fuzzer in `tests/fuzz` calls. It is there in a build for it alone.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing {
    use crate::transport::hostile;

    /// A stream of frames, behind two bytes that say how it is cut and where the limit is.
    pub fn frames(bytes: &[u8]) {
        hostile::frames(bytes);
    }

    /// One message of a server.
    pub fn message(bytes: &[u8]) {
        hostile::message(bytes);
    }

    /// An answer over HTTP, behind two bytes that say what was asked and where the limit is.
    #[cfg(feature = "http")]
    pub fn exchange(bytes: &[u8]) {
        hostile::exchange(bytes);
    }
}

// The programs in the documents, compiled.

#[cfg(doctest)]
#[doc = include_str!("../docs/agents.md")]
struct Agents;

#[cfg(all(doctest, feature = "oauth"))]
#[doc = include_str!("../docs/authorisation.md")]
struct Authorisation;

#[cfg(doctest)]
#[doc = include_str!("../docs/configuration.md")]
struct ConfigurationFiles;

#[cfg(all(doctest, feature = "receipts", feature = "sqlite"))]
#[doc = include_str!("../docs/extension.md")]
struct Extension;

#[cfg(doctest)]
#[doc = include_str!("../docs/handlers.md")]
struct Handlers;

#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../docs/observability.md")]
struct Observability;

#[cfg(all(doctest, feature = "receipts", feature = "sqlite"))]
#[doc = include_str!("../docs/operations.md")]
struct Operations;

#[cfg(all(doctest, feature = "receipts", feature = "sqlite"))]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/semantics.md")]
struct Semantics;
