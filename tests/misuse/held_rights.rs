// The twin of `missing_rights.rs`: the handles here have the rights that are used.

use mcp_supervisor::{LentConnection, OwnedConnection, SharedConnection};

fn restart_lent(handle: &SharedConnection) {
    drop(handle.reconnect());
}

fn close_shared(handle: OwnedConnection) {
    drop(handle.close());
}

fn close_lent(handle: OwnedConnection) {
    drop(handle.close());
}

fn clone_owned(handle: SharedConnection) {
    drop(Clone::clone(&handle));
}

pub(crate) fn main() {
    let _ = (restart_lent, close_shared, close_lent, clone_owned);
    let _: [Option<LentConnection>; 0] = [];
    let _: [Option<OwnedConnection>; 0] = [];
    let _: [Option<SharedConnection>; 0] = [];
}
