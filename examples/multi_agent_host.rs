//! Three agents, with connections that they share and connections of their own. One crashes in the
//! middle of a call, and the others work on.
//!
//! Each agent is a ractor actor of the host's. Its own connections belong to a supervisor of its own,
//! which is linked below the agent's actor and stands under the host's supervisor: it ends with the
//! agent, and it is part of the host's shutdown.
//!
//! ```text
//! cargo run --example multi_agent_host
//! ```
//!
//! The program starts itself again, as the servers.

mod support;

use std::{
    env,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use mcp_supervisor::{
    EventStream, OwnedConnection, Received, SharedConnection, StdioSpec, Supervisor, ToolCall,
    What, link,
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::{Value, json};
use support::{Ending, Ledger, answer, check, story};
use tokio::sync::{Notify, oneshot};

/// A server that answers its calls side by side. `research` takes until there is a file `published`;
/// `pay` takes forever.
fn server(name: &str, directory: &Path) -> Ending {
    let ledger = Arc::new(Ledger(directory.join(name)));
    let published = directory.join("published");
    ledger.add(&format!("pid {}", process::id()));
    for line in std::io::stdin().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        if message["method"] == "notifications/cancelled" {
            ledger.add("cancelled");
        }
        let (ledger, published) = (Arc::clone(&ledger), published.clone());
        thread::spawn(move || {
            let answered = answer(&message, &["note", "research", "pay"], |tool, _| {
                ledger.add(tool);
                while tool == "pay" || (tool == "research" && !published.exists()) {
                    thread::sleep(Duration::from_millis(5));
                }
                format!("done: {tool}")
            });
            if let Some(answered) = answered {
                println!("{answered}");
            }
        });
    }
    // Without its host it has nothing more to do.
    process::exit(0)
}

/// Starts an agent with a connection of its own: when the agent ends, so does its server.
async fn hire(host: &Host, name: &str, server: StdioSpec) -> Ending<ActorRef<Task>> {
    let (agent, _) =
        Actor::spawn_linked(None, Agent, host.library.share(), host.actor.clone()).await?;
    let builder = Supervisor::builder().under(&host.supervisor, name);
    let own = link::spawn_linked(builder, agent.get_cell()).await?;
    let desk = own.open("desk", server).await?;
    agent.cast(Task::Begin(own, desk))?;
    Ok(agent)
}

struct Host {
    actor: ActorCell,
    supervisor: Supervisor,
    library: OwnedConnection,
}

/// What an agent works with: a connection that all share, and its own.
struct Belongings {
    library: SharedConnection,
    desk: Option<(Supervisor, OwnedConnection)>,
}

enum Task {
    Begin(Supervisor, OwnedConnection),
    /// Calls a tool of the library's, and one of its own server's.
    Work(&'static str, oneshot::Sender<Ending<[String; 2]>>),
    /// Calls both, and crashes while both are being worked on.
    WorkAndCrash(Arc<Notify>),
    /// Gives its handle of the library to another agent.
    Introduce(ActorRef<Task>),
    TakeOver(SharedConnection),
}

struct Agent;

impl Actor for Agent {
    type Msg = Task;
    type State = Belongings;
    type Arguments = SharedConnection;

    async fn pre_start(
        &self,
        _: ActorRef<Task>,
        library: SharedConnection,
    ) -> Result<Belongings, ActorProcessingErr> {
        Ok(Belongings {
            library,
            desk: None,
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Task>,
        task: Task,
        has: &mut Belongings,
    ) -> Result<(), ActorProcessingErr> {
        let call = |tool| ToolCall::new(tool, json!({}));
        match task {
            Task::Begin(own, desk) => has.desk = Some((own, desk)),
            Task::Work(tool, reply) => {
                let (_, desk) = has.desk.as_ref().ok_or("no desk")?;
                let work = async {
                    let found = has.library.call_tool(call(tool)).await?;
                    let noted = desk.call_tool(call("note")).await?;
                    Ok([found, noted].map(|a| format!("{} in {}", a.text(), a.generation())))
                };
                let _ = reply.send(work.await);
            }
            Task::WorkAndCrash(crash) => {
                let (_, desk) = has.desk.as_ref().ok_or("no desk")?;
                tokio::select! {
                    _ = has.library.call_tool(call("research")) => {}
                    _ = desk.call_tool(call("pay")) => {}
                    () = crash.notified() => panic!("a bug of this agent's"),
                }
            }
            Task::Introduce(other) => other.cast(Task::TakeOver(has.library.clone()))?,
            Task::TakeOver(library) => has.library = library,
        }
        Ok(())
    }
}

/// The host's actor: it goes on without an agent that ended.
struct HostActor;

impl Actor for HostActor {
    type Msg = ();
    type State = Arc<Notify>;
    type Arguments = Arc<Notify>;

    async fn pre_start(
        &self,
        _: ActorRef<()>,
        failed: Arc<Notify>,
    ) -> Result<Arc<Notify>, ActorProcessingErr> {
        Ok(failed)
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        failed: &mut Arc<Notify>,
    ) -> Result<(), ActorProcessingErr> {
        if let SupervisionEvent::ActorFailed(..) = event {
            failed.notify_one();
        }
        Ok(())
    }
}

async fn work(agent: &ActorRef<Task>, tool: &'static str) -> Ending<[String; 2]> {
    let (reply, answer) = oneshot::channel();
    agent.cast(Task::Work(tool, reply))?;
    answer.await?
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) -> Ending {
    for _ in 0..4_000 {
        if holds() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("waited in vain until {what}").into())
}

fn runs(ledger: &Ledger) -> bool {
    let text = std::fs::read_to_string(&ledger.0).unwrap_or_default();
    let pid = text.lines().rev().find_map(|l| l.strip_prefix("pid "));
    let Some(pid) = pid else {
        return false;
    };
    let asked = Command::new("kill")
        .args(["-0", pid])
        .stderr(Stdio::null())
        .status();
    asked.is_ok_and(|status| status.success())
}

/// Waits until a session is stopped, and says whose.
async fn stopped(events: &mut EventStream) -> Ending<String> {
    loop {
        match events.next().await {
            Some(Received::Event(e)) if matches!(e.what, What::SessionStopped { .. }) => {
                return Ok(format!("{}/{}", e.supervisor, e.connection));
            }
            Some(_) => {}
            None => return Err("the supervisor is gone".into()),
        }
    }
}

async fn told(directory: PathBuf) -> Ending {
    let spec = |name: &str| -> Ending<StdioSpec> {
        Ok(StdioSpec::new(env::current_exe()?)
            .arg(name)
            .arg(&directory))
    };
    let ledger = |name: &str| Ledger(directory.join(name));
    let in_first = |answers: &[String; 2], tool: &str| {
        *answers
            == [
                format!("done: {tool} in generation 1"),
                "done: note in generation 1".into(),
            ]
    };

    println!("A host has a library for all, and three agents with a desk of their own.");
    let failed = Arc::new(Notify::new());
    let (actor, _) = Actor::spawn(None, HostActor, Arc::clone(&failed)).await?;
    let supervisor = Supervisor::builder().start().await?;
    let library = supervisor.open("library", spec("library")?).await?;
    let mut events = supervisor.events();
    let host = Host {
        actor: actor.get_cell(),
        supervisor,
        library,
    };
    let ada = hire(&host, "ada", spec("desk-ada")?).await?;
    let bob = hire(&host, "bob", spec("desk-bob")?).await?;
    let eve = hire(&host, "eve", spec("desk-eve")?).await?;
    for (name, agent) in [("ada", &ada), ("bob", &bob), ("eve", &eve)] {
        let answers = work(agent, "note").await?;
        check(
            in_first(&answers, "note"),
            &format!("{name} worked with both"),
        )?;
    }
    check(
        ledger("library").count("pid") == 1,
        "the library is one process, which they share",
    )?;

    println!("Ada does research in the library. Eve does too, and pays at her desk.");
    let researching = {
        let ada = ada.clone();
        tokio::spawn(async move { work(&ada, "research").await })
    };
    let crash = Arc::new(Notify::new());
    eve.cast(Task::WorkAndCrash(Arc::clone(&crash)))?;
    until("both calls of hers are worked on", || {
        ledger("library").count("research") == 2 && ledger("desk-eve").count("pay") == 1
    })
    .await?;

    println!("Eve crashes in the middle of both calls.");
    crash.notify_one();
    failed.notified().await;
    println!("   the host hears that an agent failed");
    check(
        stopped(&mut events).await? == "eve/desk",
        "the session that is stopped is the one of Eve's desk",
    )?;
    until("its process is gone", || !runs(&ledger("desk-eve"))).await?;
    check(
        !runs(&ledger("desk-eve")),
        "the process of her desk is gone",
    )?;
    until("her research is cancelled", || {
        ledger("library").count("cancelled") == 1
    })
    .await?;
    check(
        ledger("desk-eve").count("pay") == 1,
        "her payment was sent once, and by nobody again",
    )?;

    println!("The others work on.");
    std::fs::write(directory.join("published"), "")?;
    let answers = researching.await??;
    check(
        in_first(&answers, "research"),
        "Ada's research, in flight all the time, was answered in the same session",
    )?;
    let answers = work(&bob, "note").await?;
    check(in_first(&answers, "note"), "Bob noticed nothing")?;
    check(
        ledger("library").count("cancelled") == 1,
        "the library was told of no other end than that of Eve's call",
    )?;

    println!("A new Eve is hired, and Bob introduces her to the library.");
    let eve = hire(&host, "eve", spec("desk-eve")?).await?;
    bob.cast(Task::Introduce(eve.clone()))?;
    let introduced = work(&bob, "note").await?;
    check(in_first(&introduced, "note"), "Bob keeps his own handle")?;
    let answers = work(&eve, "note").await?;
    check(in_first(&answers, "note"), "she works with both")?;
    check(ledger("desk-eve").count("pid") == 2, "at a new desk")?;

    println!("The host shuts down.");
    let report = host.supervisor.shutdown(Duration::from_secs(2)).await;
    let reported: Vec<_> = report
        .connections
        .iter()
        .map(|c| format!("{}/{}", c.supervisor, c.name))
        .collect();
    check(
        reported == ["/library", "ada/desk", "bob/desk", "eve/desk"],
        "the report tells of the library and of three desks",
    )?;
    check(report.unknown().count() == 0, "nothing is left in doubt")?;
    let all = ["library", "desk-ada", "desk-bob", "desk-eve"];
    check(
        all.iter().all(|name| !runs(&ledger(name))),
        "no process is left",
    )?;
    actor.stop(None);
    Ok(())
}

#[tokio::main]
async fn main() -> Ending {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    if let [name, directory] = arguments.as_slice() {
        return server(&name.to_string_lossy(), Path::new(directory));
    }
    // What the agent that crashes has to say would be printed with the number of a thread.
    std::panic::set_hook(Box::new(|_| println!("   an agent panics")));
    let directory = tempfile::tempdir()?;
    story(told(directory.path().to_owned())).await
}
