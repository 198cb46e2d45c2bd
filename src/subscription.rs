//! What a server tells unasked: which of its lists changed, and which resources.

use tokio::sync::watch;

use crate::operation::{Generation, ListKind};

/// What one connection's server told, over all its sessions.
pub(crate) struct Notices {
    /// By the kind of list. What a server says of its resources holds for their templates too.
    changed: [watch::Sender<Changed>; 4],
}

/// How often the server said that a list changed, and on which session it did so last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) generation: Option<Generation>,
    pub(crate) times: u64,
}

impl Notices {
    pub(crate) fn new() -> Self {
        Self {
            changed: std::array::from_fn(|_| watch::Sender::new(Changed::default())),
        }
    }

    /// The changes of a list, from now on. What is seen is the newest; bursts are one.
    #[allow(dead_code, reason = "the catalog takes it")]
    pub(crate) fn changes(&self, list: ListKind) -> watch::Receiver<Changed> {
        self.changed[list as usize].subscribe()
    }

    pub(crate) fn list_changed(&self, generation: Generation, list: ListKind) {
        self.changed[list as usize].send_modify(|changed| {
            changed.generation = Some(generation);
            changed.times += 1;
        });
    }
}
