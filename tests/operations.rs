//! What a client can ask of a server and tell it, beyond calls of tools, in both eras and over both
//! transports: against the fault server as a real process.

mod support;

#[path = "operations/large.rs"]
mod large;
#[path = "operations/lent.rs"]
mod lent;
#[path = "operations/notices.rs"]
mod notices;
#[path = "operations/progress.rs"]
mod progress;
#[path = "operations/requests.rs"]
mod requests;
#[path = "operations/rounds.rs"]
mod rounds;
#[path = "operations/tasks.rs"]
mod tasks;
