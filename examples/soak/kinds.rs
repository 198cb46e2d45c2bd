//! The kinds of connections, and how each is opened.

use std::{convert::Infallible, env, net::SocketAddr, path::PathBuf, time::Duration};

use mcp_supervisor::{
    Connection, ConnectionSpec, HttpSpec, LentConnection, LentSpec, Limits, OwnedConnection,
    StdioSpec, Supervisor, ToolContract, policy::Backoff, spec::Recovery,
};
use rmcp::{RoleClient, ServiceExt as _, service::RunningService};
use tokio::io::DuplexStream;

use crate::{Ending, calls::DEADLINE, server};

/// How much an in-memory stream holds: less than a flood.
const PIPE: usize = 64 * 1024;

/// What a connection is over, and what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) over: Over,
    pub(crate) journaled: bool,
    /// It may repeat a call, by the server's key.
    pub(crate) keyed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Over {
    Child,
    Http,
    Memory,
    LentService,
    LentPeer,
}

impl Kind {
    /// The kinds take turns; children, up to their number.
    pub(crate) fn of(number: usize, children: usize) -> Self {
        let over = match number % 5 {
            0 if number / 5 < children / 2 => Over::Child,
            1 if number / 5 < children / 2 => Over::Child,
            0 | 2 => Over::Http,
            1 | 3 => Over::Memory,
            _ if number % 2 == 0 => Over::LentService,
            _ => Over::LentPeer,
        };
        let turn = number / 5;
        Self {
            over,
            journaled: turn % 2 == 1,
            keyed: turn % 3 == 1,
        }
    }
}

pub(crate) struct Hosts {
    pub(crate) plain: Supervisor,
    pub(crate) journaled: Supervisor,
    pub(crate) directory: PathBuf,
    pub(crate) web: SocketAddr,
    pub(crate) seed: u64,
}

/// A connection as its caller has it.
pub(crate) enum Open {
    Owned(OwnedConnection),
    Lent(LentConnection, RunningService<RoleClient, ()>),
}

impl Open {
    pub(crate) fn connection(&self) -> &Connection {
        match self {
            Self::Owned(owned) => owned,
            Self::Lent(lent, _) => lent,
        }
    }

    pub(crate) fn is_lent(&self) -> bool {
        matches!(self, Self::Lent(..))
    }

    /// What is lent is closed by whoever built it.
    pub(crate) async fn close(self) -> Ending {
        match self {
            Self::Owned(owned) => {
                owned.close().await;
            }
            Self::Lent(lent, service) => {
                lent.detach();
                let _ = service.cancel().await;
            }
        }
        Ok(())
    }
}

fn contract(kind: Kind) -> ToolContract {
    match kind.keyed {
        true => ToolContract::keyed("key"),
        false => ToolContract::AtMostOnce,
    }
}

impl Hosts {
    pub(crate) fn ledger(&self, number: usize) -> PathBuf {
        self.directory.join(format!("{number}.ledger"))
    }

    /// The client end of a stream at whose other end a server works.
    fn memory(&self, number: usize) -> impl Fn() -> DuplexStream + Send + Sync + 'static {
        let (ledger, seed) = (self.ledger(number), self.seed ^ number as u64);
        let times = std::sync::atomic::AtomicU64::new(0);
        move || {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            let ledger = ledger.clone();
            let times = times.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let seed = seed.wrapping_add(times << 32);
            tokio::spawn(async move {
                let (read, write) = tokio::io::split(theirs);
                server::serve(read, write, &ledger, seed).await;
            });
            ours
        }
    }

    /// The connection `number`, for the `time`th time.
    pub(crate) async fn open(&self, number: usize, kind: Kind, time: usize) -> Ending<Open> {
        let supervisor = match kind.journaled {
            true => &self.journaled,
            false => &self.plain,
        };
        let name = format!("shop-{number}-{time}");
        let limits = Limits {
            total: DEADLINE,
            start: DEADLINE,
            ..Limits::default()
        };
        // Servers that die are what this is about, and no reason to stop starting them.
        let recovery = Recovery {
            max_restarts: 1_000,
            backoff: Backoff {
                base: Duration::from_millis(5),
                cap: Duration::from_millis(50),
                ..Backoff::default()
            },
            ..Recovery::default()
        };
        let spec: ConnectionSpec = match kind.over {
            Over::Child => {
                let seed = self.seed ^ (number as u64) << 8 ^ time as u64;
                StdioSpec::new(env::current_exe()?)
                    .arg("serve")
                    .arg(self.ledger(number))
                    .arg(seed.to_string())
                    .into()
            }
            Over::Http => HttpSpec::new(format!("http://{}/{number}.ledger", self.web)).into(),
            Over::Memory => {
                let stream = self.memory(number);
                ConnectionSpec::byte_stream(move || {
                    let stream = stream();
                    async move { Ok::<_, Infallible>(tokio::io::split(stream)) }
                })
            }
            Over::LentService | Over::LentPeer => {
                let service = ().serve(self.memory(number)()).await?;
                let spec = LentSpec::new()
                    .limits(limits)
                    .contract("order", contract(kind));
                let lent = match kind.over {
                    Over::LentPeer => {
                        let peer = service.peer().clone();
                        supervisor.lend_peer(&name, peer, spec).await?
                    }
                    _ => supervisor.lend_service(&name, &service, spec).await?,
                };
                return Ok(Open::Lent(lent, service));
            }
        };
        let spec = spec
            .limits(limits)
            .recovery(recovery)
            .contract("order", contract(kind));
        Ok(Open::Owned(supervisor.open(&name, spec).await?))
    }
}
