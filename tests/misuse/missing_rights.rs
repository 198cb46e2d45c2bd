// Each handle here lacks the right that is used: it must not compile.

use mcp_supervisor::{LentConnection, OwnedConnection, SharedConnection};

fn restart_lent(handle: &LentConnection) {
    drop(handle.reconnect());
}

fn close_shared(handle: SharedConnection) {
    drop(handle.close());
}

fn close_lent(handle: LentConnection) {
    drop(handle.close());
}

fn clone_owned(handle: OwnedConnection) {
    drop(Clone::clone(&handle));
}

pub(crate) fn main() {
    let _ = (restart_lent, close_shared, close_lent, clone_owned);
    let _: [Option<LentConnection>; 0] = [];
    let _: [Option<OwnedConnection>; 0] = [];
    let _: [Option<SharedConnection>; 0] = [];
}
