//! The connections of the host: what each is over, whose it is, and what its client vouches for.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use mcp_supervisor::{
    Connection, ConnectionSpec, Era, HttpSpec, LentConnection, LentSpec, Limits, OwnedConnection,
    SharedConnection, StdioSpec, Supervisor, ToolContract,
    policy::Backoff,
    spec::{Recovery, Revision, WireOrder},
};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleClient, ServiceExt as _, service::RunningService};
use tokio::net::TcpStream;

use crate::{
    Ending,
    shop::{FOUND, KEYED, LOOKED_UP, ONCE, ORDER, PEEK, SAME},
};

/// The whole time of an operation, and that of an attempt.
pub(crate) const TOTAL: Duration = Duration::from_secs(4);
const ATTEMPT: Duration = Duration::from_millis(1_500);
/// How long a client that is to be lent may take to begin or to end.
const OWN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Over {
    Child,
    /// A child with receipts.
    Desk,
    Http,
    Stream,
    Factory,
    LentService,
    LentPeer,
}

impl Over {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Child => "child",
            Self::Desk => "receipts",
            Self::Http => "http",
            Self::Stream => "stream",
            Self::Factory => "factory",
            Self::LentService => "lent",
            Self::LentPeer => "lent-peer",
        }
    }

    /// Whether its server is a process of its own.
    pub(crate) fn is_child(self) -> bool {
        matches!(self, Self::Child | Self::Desk)
    }

    pub(crate) fn is_lent(self) -> bool {
        matches!(self, Self::LentService | Self::LentPeer)
    }

    pub(crate) fn tools(self) -> &'static [&'static str] {
        match self {
            Self::Desk => &[ORDER],
            _ => &[ONCE, KEYED, LOOKED_UP, SAME, PEEK],
        }
    }
}

/// One connection of many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) number: usize,
    pub(crate) over: Over,
    pub(crate) journaled: bool,
}

impl Place {
    /// Of twenty, six are children, two are children with receipts, seven go over HTTP, two are byte
    /// streams, one comes from a factory and two are lent.
    pub(crate) fn of(number: usize) -> Self {
        let over = match number % 20 {
            0..=5 => Over::Child,
            6..=12 => Over::Http,
            13 | 14 => Over::Stream,
            15 => Over::Factory,
            16 | 17 => Over::Desk,
            18 => Over::LentService,
            _ => Over::LentPeer,
        };
        Self {
            number,
            over,
            journaled: (number + number / 20).is_multiple_of(2),
        }
    }

    fn era(&self) -> Era {
        match (self.number / 2) % 3 {
            0 => Era::Initialize(Revision::V2025_11_25),
            1 => Era::Discover,
            _ => Era::Automatic,
        }
    }
}

pub(crate) fn contract(tool: &str) -> ToolContract {
    match tool {
        KEYED => ToolContract::keyed("key"),
        LOOKED_UP => ToolContract::status(FOUND, "mark"),
        SAME => ToolContract::Idempotent,
        PEEK => ToolContract::ReadOnly,
        ORDER => ToolContract::Receipts,
        _ => ToolContract::AtMostOnce,
    }
}

/// A connection as its caller has it.
pub(crate) enum Link {
    Owned(OwnedConnection),
    Lent(LentConnection, RunningService<RoleClient, ()>),
    /// Its client could not be started yet.
    None,
}

impl Link {
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Owned(owned) => Some(owned),
            Self::Lent(lent, _) => Some(lent),
            Self::None => None,
        }
    }

    /// What is lent is closed by whoever built it.
    pub(crate) async fn give_up(self) {
        if let Self::Lent(lent, mut service) = self {
            lent.detach();
            let _ = service.close_with_timeout(OWN).await;
        }
    }
}

pub(crate) struct Town {
    pub(crate) run: PathBuf,
    pub(crate) seed: u64,
    /// The names and the ports of the servers at sockets.
    pub(crate) halls: Vec<(String, [u16; 2])>,
    /// With a journal and without, each with one of an agent's below it.
    pub(crate) journaled: [Supervisor; 2],
    pub(crate) plain: [Supervisor; 2],
    /// What can be resolved on, by its name.
    pub(crate) shared: Mutex<HashMap<String, SharedConnection>>,
}

impl Town {
    /// The server of a place, by its name.
    pub(crate) fn server(&self, place: &Place) -> String {
        match place.over.is_child() {
            true => format!("child-{}", place.number),
            false => self.hall(place).0.clone(),
        }
    }

    /// The server of the connection of this name.
    pub(crate) fn server_of(&self, name: &str) -> Option<String> {
        let number = name.split('-').nth(1)?;
        Some(self.server(&Place::of(number.parse().ok()?)))
    }

    fn hall(&self, place: &Place) -> &(String, [u16; 2]) {
        &self.halls[place.number % self.halls.len()]
    }

    pub(crate) fn shared(&self, name: &str) -> Option<SharedConnection> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.get(name).cloned()
    }

    fn limits() -> Limits {
        Limits {
            total: TOTAL,
            attempt: Some(ATTEMPT),
            start: Duration::from_secs(5),
            discover: Duration::from_secs(2),
            max_in_flight: 16,
            stdin_grace: Duration::from_millis(300),
            term_grace: Duration::from_millis(300),
            reconnect_grace: Duration::from_millis(500),
            ..Limits::default()
        }
    }

    fn spec(&self, place: &Place) -> Ending<ConnectionSpec> {
        let [web, plain] = self.hall(place).1;
        let server = self.server(place);
        let child = |role: &str| -> Ending<ConnectionSpec> {
            let spec = StdioSpec::new(std::env::current_exe()?)
                .arg(role)
                .arg(&self.run)
                .args([server.clone(), self.seed.to_string()]);
            Ok(spec.into())
        };
        Ok(match place.over {
            Over::Child => child("serve-lines")?,
            Over::Desk => child("serve-receipts")?,
            Over::Http => HttpSpec::new(format!("http://127.0.0.1:{web}/mcp")).into(),
            Over::Stream => ConnectionSpec::byte_stream(move || async move {
                let stream = TcpStream::connect(("127.0.0.1", plain)).await?;
                Ok::<_, std::io::Error>(stream.into_split())
            }),
            Over::Factory | Over::LentService | Over::LentPeer => {
                ConnectionSpec::factory(WireOrder::Ordered, move || async move {
                    let stream = TcpStream::connect(("127.0.0.1", plain)).await?;
                    let (read, write) = stream.into_split();
                    Ok::<_, std::io::Error>(AsyncRwTransport::new_client(read, write))
                })
            }
        })
    }

    /// Opens a connection, or lends one for the `time`th time.
    pub(crate) async fn open(&self, place: &Place, time: u64) -> Ending<Link> {
        let supervisors = if place.journaled {
            &self.journaled
        } else {
            &self.plain
        };
        let supervisor = &supervisors[place.number / 3 % 2];
        let mut name = format!("{}-{}", place.over.as_str().replace('-', ""), place.number);
        if place.over.is_lent() {
            // Its owner may take some time to go.
            name = format!("{name}-{time}");
            return self.lend(place, supervisor, &name).await;
        }
        let mut spec = self
            .spec(place)?
            .limits(Self::limits())
            .era(place.era())
            // Servers that die are what this is about, so they are tried again soon.
            .recovery(Recovery {
                max_restarts: 8,
                period: Duration::from_secs(4),
                cool_down: Duration::from_millis(800),
                backoff: Backoff {
                    base: Duration::from_millis(20),
                    cap: Duration::from_millis(400),
                },
            });
        for tool in place.over.tools() {
            spec = spec.contract(*tool, contract(tool));
        }
        let owned = supervisor.open(&name, spec).await?;
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.insert(name, owned.share());
        Ok(Link::Owned(owned))
    }

    async fn lend(&self, place: &Place, supervisor: &Supervisor, name: &str) -> Ending<Link> {
        let mut spec = LentSpec::new().limits(Self::limits());
        for tool in place.over.tools() {
            spec = spec.contract(*tool, contract(tool));
        }
        let [_, plain] = self.hall(place).1;
        let begin = async {
            let stream = TcpStream::connect(("127.0.0.1", plain)).await?;
            let (read, write) = stream.into_split();
            Ending::Ok(().serve(AsyncRwTransport::new_client(read, write)).await?)
        };
        let service = tokio::time::timeout(OWN, begin).await??;
        let lent = match place.over {
            Over::LentPeer => {
                supervisor
                    .lend_peer(name, service.peer().clone(), spec)
                    .await?
            }
            _ => supervisor.lend_service(name, &service, spec).await?,
        };
        Ok(Link::Lent(lent, service))
    }
}
