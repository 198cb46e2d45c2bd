//! The durable half of a tool: its effect and a receipt for it are one transaction, so that a call
//! which comes again under the same key is answered and not run.
//!
//! For servers made with rmcp. A tool is [declared](Definition), given a handler by a ledger
//! ([`Ledger`]), and behaves by one [table](table::row). Its identity is a [`Scope`], which
//! comes from the authenticated request through a [`Principal`], its name, and the caller's key,
//! which is an argument that the tool documents.
#![cfg_attr(
    not(any(feature = "sqlite", feature = "postgres")),
    allow(dead_code, reason = "what a ledger needs is there, and no ledger")
)]

mod answer;
mod bounds;
mod call;
mod definition;
mod desk;
mod failure;
mod flight;
mod identity;
mod ledger;
#[cfg(feature = "sqlite")]
mod long;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub mod outbox;
#[cfg(feature = "postgres")]
mod postgres;
mod principal;
mod receipt;
mod run;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod table;
mod tool;

pub use answer::{Answer, NotKept, Status};
pub use bounds::{Bounds, OutOfBounds};
pub use call::Call;
pub use definition::{Definition, DefinitionError, Retention, Wording};
pub use desk::Desk;
pub use failure::{Failure, Refusal};
pub use identity::{Arrival, Identity, Scope, ScopeError};
pub use ledger::{Ledger, LedgerError, LedgerFuture, Settled, Swept};
#[cfg(feature = "sqlite")]
pub use long::{End, LastWrites, LongTool, LongWork, LongWorkError, Work};
#[cfg(feature = "postgres")]
pub use postgres::{PostgresHandling, PostgresLedger, PostgresSettings};
pub use principal::{Asked, Authorised, Denial, FixedScope, OverHttp, Principal, bearer};
pub use receipt::{Conflict, Receipt, Standing};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteLedger, SqliteSettings};
pub use tool::ReceiptTool;
