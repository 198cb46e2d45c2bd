//! A model of callers, connections, sessions, wire, server, hosts and journal, and every order in which
//! things can happen to a few operations.

#[path = "model/machine.rs"]
mod machine;
#[path = "model/traces.rs"]
mod traces;
