//! What a server asks and tells: it reaches the host's handler and the subscribers, whatever becomes
//! of the handler, the calls and the sessions meanwhile.

mod support;

#[path = "server_asks/handler.rs"]
mod handler;
#[path = "server_asks/host.rs"]
mod host;
#[path = "server_asks/lifetimes.rs"]
mod lifetimes;
#[path = "server_asks/subscriptions.rs"]
mod subscriptions;
