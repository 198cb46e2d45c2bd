//! One life of a host: a runtime with a paused clock, the real supervisor, the connections, and the
//! callers.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_supervisor::{
    CallError, CancellationToken, Connection, ConnectionSpec, CustomCall, LentConnection,
    OwnedConnection, Ping, Resolve, ResourceRead, Supervisor, ToolAnswer, ToolCall,
    journal::{Journal, JournalSettings},
};
use rmcp::{RoleClient, ServiceExt as _, service::RunningService};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use super::{
    plan::{Ask, Plan, Planned},
    store::GameStore,
    trace::{End, What},
    wire::{Reading, Writing},
    world::{CONNECTIONS, Due, LENT, Shared, World, id_of},
};

/// No life takes longer, by its own clock: every wait in it has a limit.
const LONGEST: Duration = Duration::from_secs(120);

/// What callers hold.
struct Host {
    world: Shared,
    plan: Arc<Plan>,
    owned: Vec<OwnedConnection>,
    lent: Mutex<Option<LentConnection>>,
    calls: Mutex<Calls>,
    supervisor: Supervisor,
}

#[derive(Default)]
struct Calls {
    running: BTreeMap<usize, (JoinHandle<()>, CancellationToken)>,
    /// What else was asked for.
    others: JoinSet<()>,
}

type Client = RunningService<RoleClient, ()>;

/// Lives one life, on a clock of its own.
pub(super) fn live(world: &Shared, plan: &Arc<Plan>, life: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs nothing");
    let killed = runtime.block_on(async {
        world.with(|world| {
            world.begin_life();
            world.record(What::HostStarted);
        });
        let whole = tokio::time::timeout(LONGEST, whole_life(world, plan, life));
        match whole.await {
            Ok(killed) => killed,
            Err(_) => {
                world.with(|world| world.break_promise("something hangs"));
                true
            }
        }
    });
    runtime.block_on(async {
        world.with(|world| {
            world.host_goes(killed);
            world.end_life(plan.lives[life].pause);
        });
    });
    // Without a word to anybody: whatever still runs is dropped where it stands.
    drop(runtime);
}

/// Whether it was killed.
async fn whole_life(world: &Shared, plan: &Arc<Plan>, life: usize) -> bool {
    let host = Arc::new(Host::start(world, plan).await);
    host.schedule(life);
    let last = life + 1 == plan.lives.len();
    let body = async {
        let client = host.lend().await;
        host.all_called(life).await;
        if last {
            host.in_the_end(client.as_ref()).await;
        }
        // What was asked for since.
        host.others_done().await;
        client
    };
    let Some(client) = world.go_on(|due| host.does(due), body).await else {
        return true;
    };
    let host = Arc::into_inner(host).expect("its callers are done");
    let stopping = async {
        let _report = host.supervisor.shutdown(Duration::from_millis(501)).await;
        drop(host.owned);
        if let Some(client) = client {
            still_works(world, client).await;
        }
    };
    let stopped = world.go_on(|due| world.with(|world| world.comes_about(due)), stopping);
    stopped.await.is_none()
}

/// A caller's own client is as the runtime found it.
async fn still_works(world: &Shared, client: Client) {
    let link = world.with(|world| {
        let mut links = world.links.iter().enumerate().rev();
        let (link, pipe) = links.find(|(_, pipe)| pipe.connection == LENT)?;
        (world.healed && !pipe.broken).then_some(link)
    });
    if link.is_some() {
        let listed = tokio::time::timeout(Duration::from_secs(5), client.list_tools(None)).await;
        if !matches!(listed, Ok(Ok(_))) {
            world.with(|world| {
                let broken = world.links[link.unwrap_or_default()].broken;
                if !broken {
                    world.break_promise("what was lent does not work any more");
                }
            });
        }
    }
    world.with(|world| {
        for pipe in &mut world.links {
            pipe.may_be_closed = true;
        }
    });
    let _ = client.cancel().await;
}

impl World {
    /// What is due and concerns no caller.
    pub(super) fn comes_about(&mut self, due: Due) {
        match due {
            Due::Up { link, upto } => self.arrives(link, upto),
            Due::Down { link } => self.comes_down(link),
            Due::Unblock { link } => self.unblock(link),
            Due::Break { link } => self.breaks(link, "cut"),
            Due::BreakWriter { link } => self.breaks_for_the_writer(link),
            Due::Work(work) => self.work(work),
            Due::KillServer { server } => self.kill_server(server),
            Due::ServerBack { server } => self.servers[server].up = true,
            Due::Ask { .. }
            | Due::Cancel { .. }
            | Due::Drop { .. }
            | Due::Reconnect { .. }
            | Due::Resolve { .. }
            | Due::Crash => {}
        }
    }
}

impl Host {
    async fn start(world: &Shared, plan: &Arc<Plan>) -> Self {
        let mut builder = Supervisor::builder();
        if plan.journal {
            let store = GameStore::open(world);
            builder = builder.journal(Journal::new(store, JournalSettings::default()));
        }
        let supervisor = builder.start().await.expect("it starts");
        world.with(|world| world.events = Some(supervisor.events()));
        let mut owned = Vec::new();
        for (connection, name) in CONNECTIONS.iter().enumerate().take(LENT) {
            let world = world.clone();
            let spec = ConnectionSpec::byte_stream(move || {
                let opened = pipe(&world, connection);
                async move { opened }
            });
            let opened = supervisor.open(name, plan.owned(connection, spec)).await;
            owned.push(opened.expect("the spec is sound"));
        }
        Self {
            world: world.clone(),
            plan: Arc::clone(plan),
            owned,
            lent: Mutex::default(),
            calls: Mutex::default(),
            supervisor,
        }
    }

    /// Puts what this life has in store on the agenda.
    fn schedule(&self, life: usize) {
        let plan = &self.plan;
        self.world.with(|world| {
            let at = |after: &u64| *after;
            for (operation, planned) in plan.operations.iter().enumerate() {
                if planned.life == life {
                    world.schedule(at(&planned.at), Due::Ask { operation });
                }
            }
            let life = &plan.lives[life];
            for (after, connection) in &life.reconnects {
                let connection = *connection;
                world.schedule(at(after), Due::Reconnect { connection });
            }
            for (after, server) in &life.kills {
                let server = *server;
                world.schedule(at(after), Due::KillServer { server });
            }
            for (after, operation) in &life.resolves {
                let operation = *operation;
                world.schedule(at(after), Due::Resolve { operation });
            }
            if let Some(after) = &life.crash {
                world.schedule(at(after), Due::Crash);
            }
        });
    }

    /// A caller builds a client and lends it.
    async fn lend(&self) -> Option<Client> {
        let (read, write) = pipe(&self.world, LENT).ok()?;
        let link = write.1;
        let may_be_closed = |may| {
            self.world
                .with(|world| world.links[link].may_be_closed = may)
        };
        may_be_closed(true);
        let greeting = tokio::time::timeout(Duration::from_millis(901), ().serve((read, write)));
        let client = greeting.await.ok()?.ok()?;
        may_be_closed(false);
        let lent = self
            .supervisor
            .lend_service(CONNECTIONS[LENT], &client, self.plan.lent())
            .await;
        *self.lent.lock().expect("no caller panics") = lent.ok();
        Some(client)
    }

    fn does(self: &Arc<Self>, due: Due) {
        match due {
            Due::Ask { operation } => self.ask(operation),
            Due::Cancel { operation } => {
                let calls = self.calls.lock().expect("no caller panics");
                if let Some((_, token)) = calls.running.get(&operation) {
                    self.world
                        .with(|world| world.record(What::Cancelled { operation }));
                    token.cancel();
                }
            }
            Due::Drop { operation } => {
                let calls = self.calls.lock().expect("no caller panics");
                if let Some((call, _)) = calls.running.get(&operation)
                    && !call.is_finished()
                {
                    self.world
                        .with(|world| world.record(What::Left { operation }));
                    call.abort();
                }
            }
            Due::Reconnect { connection } => {
                let host = Arc::clone(self);
                let asked = async move {
                    let _ = host.owned[connection].reconnect().await;
                };
                self.calls
                    .lock()
                    .expect("no caller panics")
                    .others
                    .spawn(asked);
            }
            Due::Resolve { operation } => {
                let host = Arc::clone(self);
                let asked = async move { host.resolve(operation).await };
                self.calls
                    .lock()
                    .expect("no caller panics")
                    .others
                    .spawn(asked);
            }
            due => self.world.with(|world| world.comes_about(due)),
        }
    }

    fn connection(&self, connection: usize) -> Option<Box<dyn AsRef<Connection> + Send + Sync>> {
        match connection {
            LENT => {
                let lent = self.lent.lock().expect("no caller panics").clone();
                Some(Box::new(lent?))
            }
            owned => Some(Box::new(self.owned[owned].share())),
        }
    }

    fn ask(self: &Arc<Self>, operation: usize) {
        let planned = self.plan.operations[operation].clone();
        let Some(connection) = self.connection(planned.connection) else {
            return;
        };
        let token = CancellationToken::new();
        self.world.with(|world| {
            world.record(What::Asked { operation });
            if let Some(after) = planned.cancel {
                world.schedule(after, Due::Cancel { operation });
            }
            if let Some(after) = planned.leave {
                world.schedule(after, Due::Drop { operation });
            }
        });
        let world = self.world.clone();
        let given = token.clone();
        let call = tokio::spawn(async move {
            let end = perform((*connection).as_ref(), operation, &planned, given).await;
            world.with(|world| world.record(What::Told { operation, end }));
        });
        let mut calls = self.calls.lock().expect("no caller panics");
        calls.running.insert(operation, (call, token));
    }

    async fn resolve(&self, operation: usize) {
        self.world
            .with(|world| world.record(What::Resolving { operation }));
        let order = Resolve::new(id_of(operation)).deadline(Duration::from_millis(3_001));
        let order = match self.plan.operations[operation].keeps_arguments {
            true => order,
            false => order.with_arguments(arguments(&self.plan.operations[operation])),
        };
        let how = match self.supervisor.resolve(order).await {
            Ok(resolution) => format!("{:?}", resolution.by),
            Err(error) => {
                let error = format!("{error:?}");
                error
                    .split([' ', '(', '{'])
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            }
        };
        self.world
            .with(|world| world.record(What::Resolved { operation, how }));
    }

    /// Until every caller of this life has its outcome, or went away.
    async fn all_called(&self, life: usize) {
        let planned = self.plan.operations.iter().filter(|it| it.life == life);
        let asked = planned.map(|it| it.at).max().unwrap_or_default();
        let life = &self.plan.lives[life];
        let all = life
            .resolves
            .iter()
            .map(|(at, _)| *at)
            .max()
            .max(Some(asked));
        // The agenda may be a little late, for each thing on it.
        tokio::time::sleep(Duration::from_millis(all.unwrap_or_default() + 201)).await;
        loop {
            let next = {
                let mut calls = self.calls.lock().expect("no caller panics");
                calls.running.pop_first()
            };
            let Some((_, (call, _))) = next else { break };
            // An error is a caller that went away.
            let _ = call.await;
        }
        self.others_done().await;
    }

    async fn others_done(&self) {
        loop {
            let mut others = {
                let mut calls = self.calls.lock().expect("no caller panics");
                std::mem::take(&mut calls.others)
            };
            if others.is_empty() {
                return;
            }
            while others.join_next().await.is_some() {}
        }
    }

    /// With a healthy server the next operation succeeds, and what may be found out is.
    async fn in_the_end(&self, _client: Option<&Client>) {
        self.world.with(World::heal);
        // Longer than failures are counted, and than a circuit stays open.
        tokio::time::sleep(Duration::from_millis(6_001)).await;
        for connection in 0..LENT {
            let call = ToolCall::new("pay", json!({"mark": 1_000 + connection}));
            let call = call.deadline(Duration::from_millis(20_001));
            if let Err(error) = self.owned[connection].call_tool(call).await {
                self.world.with(|world| {
                    world.break_promise(format_args!(
                        "with a healthy server the next operation ends with {error}"
                    ));
                });
            }
        }
        if self.plan.journal {
            for operation in 0..self.plan.operations.len() {
                self.resolve(operation).await;
            }
        }
    }
}

fn pipe(world: &Shared, connection: usize) -> io::Result<(Reading, Writing)> {
    let link = world.with(|world| world.open(connection));
    let link = link.ok_or(io::ErrorKind::ConnectionRefused)?;
    Ok((Reading(world.clone(), link), Writing(world.clone(), link)))
}

fn arguments(planned: &Planned) -> Value {
    let mut arguments = json!({"mark": planned.mark});
    if let (Ask::PayStatus, Some(key)) = (planned.ask, &planned.key) {
        arguments["key"] = json!(key);
    }
    arguments
}

/// Gives an operation what a caller gives it.
macro_rules! with_options {
    ($asked:expr, $operation:expr, $planned:expr, $token:expr) => {{
        let mut asked = $asked
            .operation_id(id_of($operation))
            .deadline($planned.deadline)
            .meta("sim/operation", json!($operation))
            .cancelled_by($token);
        if let Some(attempt) = $planned.attempt {
            asked = asked.attempt_limit(attempt);
        }
        if let Some(idle) = $planned.idle {
            asked = asked.idle_limit(idle);
        }
        asked
    }};
}

async fn perform(
    connection: &Connection,
    operation: usize,
    planned: &Planned,
    token: CancellationToken,
) -> End {
    let read = |done: Result<(), CallError>| match done {
        Ok(()) => End::Read,
        Err(error) => End::without(&error),
    };
    match planned.ask {
        Ask::Ping => {
            let ping = with_options!(Ping::default(), operation, planned, token);
            read(connection.ping(ping).await)
        }
        Ask::ReadResource => {
            let asked = ResourceRead::new("sim://it");
            let asked = with_options!(asked, operation, planned, token);
            read(connection.read_resource(asked).await.map(|_| ()))
        }
        Ask::Custom => {
            let asked = CustomCall::new("sim/do", Some(json!({})));
            let asked = with_options!(asked, operation, planned, token);
            read(connection.request(asked).await.map(|_| ()))
        }
        _ => {
            let tool = planned.ask.tool().expect("what is left is a tool");
            let call = ToolCall::new(tool, arguments(planned));
            let mut call = with_options!(call, operation, planned, token);
            if let Some(key) = &planned.key {
                call = call.idempotency_key(key.parse().expect("a sound key"));
            }
            if planned.keeps_arguments {
                call = call.keep_arguments();
            }
            match connection.call_tool(call).await {
                Ok(answer) => answered(&answer),
                Err(error) => End::without(&error),
            }
        }
    }
}

fn answered(answer: &ToolAnswer) -> End {
    let text = answer.text();
    End::Answered {
        mark: text
            .strip_prefix("mark ")
            .and_then(|mark| mark.parse().ok()),
        is_error: answer.is_error(),
        replayed: answer.replayed(),
        looked_up: answer.was_looked_up(),
        attempts: answer.attempts(),
    }
}
