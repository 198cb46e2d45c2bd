//! Agents: actors of the host's that share connections, or have some of their own.

mod support;

use std::{sync::Arc, time::Duration};

use mcp_supervisor::{
    CallError, LentConnection, LentSpec, Limits, Outcome, OwnedConnection, Received,
    SharedConnection, Supervisor, ToolAnswer, ToolCall, What, connection::ConnectionState,
    error::AddError, event::Stopped, link, supervisor::SupervisorError,
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::json;
use support::{
    Bed, bounded, initialize, until,
    world::{
        World, charge, echo, eras, everywhere, not_sent, short_graces, shut_down, supervisor,
        until_told,
    },
};
use tokio::sync::{Notify, oneshot};

type Answered = Result<ToolAnswer, CallError>;

/// What an agent has: handles that it was given, and what is its own.
#[derive(Default)]
struct Belongings {
    shared: Option<SharedConnection>,
    lent: Option<LentConnection>,
    private: Option<OwnedConnection>,
    _own: Option<Supervisor>,
}

enum Tell {
    /// Takes a handle, and with it the right to call.
    Share(SharedConnection),
    Lend(LentConnection),
    /// Gives the handles on to another agent.
    PassOn(ActorRef<Tell>, oneshot::Sender<()>),
    /// Calls through what was shared.
    Shared(ToolCall, oneshot::Sender<Answered>),
    /// Calls through what was lent.
    Lent(ToolCall, oneshot::Sender<Answered>),
    /// Calls through everything that it has at once, and fails when it is told to while they run.
    CallUntilItCrashes(ToolCall, Arc<Notify>),
}

struct Agent;

impl Actor for Agent {
    type Msg = Tell;
    type State = Belongings;
    type Arguments = Belongings;

    async fn pre_start(
        &self,
        _: ActorRef<Tell>,
        has: Belongings,
    ) -> Result<Belongings, ActorProcessingErr> {
        Ok(has)
    }

    async fn handle(
        &self,
        _: ActorRef<Tell>,
        message: Tell,
        has: &mut Belongings,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Tell::Share(handle) => has.shared = Some(handle),
            Tell::Lend(handle) => has.lent = Some(handle),
            Tell::PassOn(to, done) => {
                if let Some(handle) = &has.shared {
                    to.cast(Tell::Share(handle.clone()))?;
                }
                if let Some(handle) = &has.lent {
                    to.cast(Tell::Lend(handle.clone()))?;
                }
                let _ = done.send(());
            }
            Tell::Shared(call, reply) => {
                let handle = has.shared.as_ref().ok_or("nothing was shared")?;
                let _ = reply.send(handle.call_tool(call).await);
            }
            Tell::Lent(call, reply) => {
                let handle = has.lent.as_ref().ok_or("nothing was lent")?;
                let _ = reply.send(handle.call_tool(call).await);
            }
            Tell::CallUntilItCrashes(call, crash) => {
                let shared = has.shared.as_ref().ok_or("nothing was shared")?;
                let private = has.private.as_ref().ok_or("it has nothing of its own")?;
                tokio::select! {
                    _ = shared.call_tool(call.clone()) => {}
                    _ = private.call_tool(call) => {}
                    () = crash.notified() => panic!("this agent has a bug"),
                }
            }
        }
        Ok(())
    }
}

/// The actor of the host, which goes on whatever becomes of its agents.
struct Host;

impl Actor for Host {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

async fn host() -> ActorCell {
    let (host, _) = Actor::spawn(None, Host, ()).await.expect("it starts");
    host.get_cell()
}

async fn agent(host: &ActorCell, has: Belongings) -> ActorRef<Tell> {
    let (agent, _) = Actor::spawn_linked(None, Agent, has, host.clone())
        .await
        .expect("it starts");
    agent
}

async fn ask(
    agent: &ActorRef<Tell>,
    tell: fn(ToolCall, oneshot::Sender<Answered>) -> Tell,
    call: ToolCall,
) -> Answered {
    let (reply, answer) = oneshot::channel();
    agent.cast(tell(call, reply)).expect("the agent runs");
    answer.await.expect("the agent answers")
}

/// A server on which `charge` runs until there is a file `go`.
fn waiting() -> serde_json::Value {
    json!({"log_messages": true, "rules": [
        {"on": "tools/call", "tool": "charge", "do": ["ledger", {"wait_file": "go"}, "answer"]},
    ]})
}

async fn until_charged(bed: &Bed, times: usize) {
    until("charge runs", || bed.ran("charge") == times).await;
}

#[derive(Clone, Copy, Debug)]
enum End {
    Panic,
    Kill,
    Stop,
}

const ENDS: [End; 3] = [End::Panic, End::Kill, End::Stop];

// ---------------------------------------------------------------------------- what goes, what stays

#[tokio::test]
async fn when_an_agent_dies_in_the_middle_of_a_call_its_own_goes_and_what_is_shared_works_on() {
    for (wire, era) in everywhere() {
        for end in [End::Panic, End::Kill] {
            println!("{end:?}");
            bounded(async {
                let common = World::new(wire, era.clone(), waiting()).await;
                let bed = Bed::new(waiting());
                let actor = host().await;
                let supervisor = supervisor().await;
                let shared = supervisor.open("server", common.spec()).await.unwrap();
                let crash = Arc::new(Notify::new());

                // What is its own is closed with it, wherever the agent keeps it.
                let builder = Supervisor::builder().under(&supervisor, "doomed");
                let own = builder.start().await.unwrap();
                let spec = bed.stdio_spec(era.clone()).limits(short_graces());
                let private = own.open("server", spec).await.unwrap();
                let outside = private.share();
                let has = Belongings {
                    shared: Some(shared.share()),
                    private: Some(private),
                    _own: Some(own),
                    ..Belongings::default()
                };
                let doomed = agent(&actor, has).await;
                let call = Tell::CallUntilItCrashes(charge(), Arc::clone(&crash));
                doomed.cast(call).unwrap();
                until_charged(&common.bed, 1).await;
                until_charged(&bed, 1).await;

                // Another agent has a call in flight on what is shared.
                let has = Belongings {
                    shared: Some(shared.share()),
                    ..Belongings::default()
                };
                let survivor = agent(&actor, has).await;
                let (reply, answer) = oneshot::channel();
                survivor.cast(Tell::Shared(charge(), reply)).unwrap();
                until_charged(&common.bed, 2).await;

                match end {
                    End::Panic => crash.notify_one(),
                    _ => doomed.kill(),
                }
                bed.until_all_gone().await;
                let error = outside.call_tool(echo()).await.unwrap_err();
                assert_eq!(error.outcome(), Outcome::NotSent, "{error}");

                // The server hears of the dead agent's call, and of no other.
                if !common.is_modern_http() {
                    until("it is cancelled", || {
                        common.bed.read("notifications/cancelled") == 1
                    })
                    .await;
                }
                common.bed.touch("go");
                let answer = answer.await.unwrap().unwrap();
                assert_eq!(answer.generation().number(), 1);
                let next = ask(&survivor, Tell::Shared, echo()).await.unwrap();
                assert_eq!(next.generation().number(), 1, "the session is the same");
                assert!(common.bed.read("notifications/cancelled") <= 1);
                assert_eq!(common.bed.ran("charge"), 2, "nothing was sent again");
                assert_eq!(bed.ran("charge"), 1, "nothing was sent again");
                shut_down(supervisor).await;
                actor.stop(None);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn however_an_agent_ends_calls_through_its_own_connections_are_unknown_or_not_sent() {
    for era in eras() {
        for end in ENDS {
            println!("{end:?}");
            bounded(async {
                let bed = Bed::new(waiting());
                let actor = host().await;
                let supervisor = supervisor().await;
                let crash = Arc::new(Notify::new());
                let doomed = agent(&actor, Belongings::default()).await;
                let builder = Supervisor::builder().under(&supervisor, "doomed");
                let own = link::spawn_linked(builder, doomed.get_cell())
                    .await
                    .unwrap();
                let limits = Limits {
                    max_in_flight: 1,
                    ..short_graces()
                };
                let spec = bed.stdio_spec(era.clone()).limits(limits);
                let private = own.open("server", spec).await.unwrap().share();

                let calling = |call: ToolCall| {
                    let private = private.clone();
                    tokio::spawn(async move { private.call_tool(call).await })
                };
                let running = calling(charge());
                until_charged(&bed, 1).await;
                let queued = calling(echo());
                tokio::task::yield_now().await;
                match end {
                    End::Panic => {
                        let shared = supervisor
                            .open("unused", bed.stdio_spec(era.clone()))
                            .await
                            .unwrap();
                        doomed.cast(Tell::Share(shared.share())).unwrap();
                        // It has no private connection, which is the error that it ends with.
                        doomed
                            .cast(Tell::CallUntilItCrashes(echo(), Arc::clone(&crash)))
                            .unwrap();
                    }
                    End::Kill => doomed.kill(),
                    End::Stop => doomed.stop(None),
                }
                let error = running.await.unwrap().unwrap_err();
                assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
                let error = queued.await.unwrap().unwrap_err();
                not_sent(&error);
                bed.until_all_gone().await;
                until("it is closed", || {
                    private.status().state == ConnectionState::Closed
                })
                .await;
                not_sent(&private.call_tool(echo()).await.unwrap_err());
                let refused = own.open("another", bed.stdio_spec(era.clone())).await;
                assert!(matches!(refused, Err(AddError::ShuttingDown)));
                assert_eq!((bed.ran("charge"), bed.ran("echo")), (1, 0));
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_handle_is_handed_to_another_agent_as_a_message() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let actor = host().await;
            let supervisor = supervisor().await;
            let shared = supervisor.open("shared", world.spec()).await.unwrap();
            let client = world.client().await;
            let lent = supervisor
                .lend_service("lent", &client, LentSpec::new())
                .await
                .unwrap();
            let first = agent(&actor, Belongings::default()).await;
            first.cast(Tell::Share(shared.share())).unwrap();
            first.cast(Tell::Lend(lent)).unwrap();
            ask(&first, Tell::Shared, echo()).await.unwrap();
            ask(&first, Tell::Lent, echo()).await.unwrap();

            let second = agent(&actor, Belongings::default()).await;
            let (done, passed_on) = oneshot::channel();
            first.cast(Tell::PassOn(second.clone(), done)).unwrap();
            passed_on.await.unwrap();
            first.stop_and_wait(None, None).await.unwrap();
            let answer = ask(&second, Tell::Shared, echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 1);
            ask(&second, Tell::Lent, echo()).await.unwrap();

            // What was lent is still its lender's, whoever has the handle.
            client.cancel().await.unwrap();
            let error = ask(&second, Tell::Lent, echo()).await.unwrap_err();
            not_sent(&error);
            assert!(error.ownership().is_lent());
            ask(&second, Tell::Shared, echo()).await.unwrap();
            shut_down(supervisor).await;
        })
        .await;
    }
}

// -------------------------------------------------------------------------- supervisors below others

#[tokio::test]
async fn a_shutdown_stops_the_supervisors_below_within_its_deadline_and_reports_them() {
    for era in eras() {
        bounded(async {
            let (a, b, c) = (
                Bed::new(json!({})),
                Bed::new(waiting()),
                Bed::new(json!({})),
            );
            let actor = host().await;
            let spec = |bed: &Bed| bed.stdio_spec(era.clone()).limits(short_graces());
            let host = supervisor().await;
            let agent = agent(&actor, Belongings::default()).await;
            let builder = Supervisor::builder().under(&host, "agent");
            let below = link::spawn_linked(builder, agent.get_cell()).await.unwrap();
            let builder = Supervisor::builder().under(&below, "helper");
            let deepest = builder.start().await.unwrap();
            assert_eq!(host.path().to_string(), "");
            assert_eq!(deepest.path().to_string(), "agent/helper");
            // The same name in each of them.
            let first = host.open("server", spec(&a)).await.unwrap();
            let second = below.open("server", spec(&b)).await.unwrap();
            let third = deepest.open("server", spec(&c)).await.unwrap();
            first.call_tool(echo()).await.unwrap();
            third.call_tool(echo()).await.unwrap();
            assert_eq!(host.names().len(), 1, "each has its own names");
            let running = tokio::spawn(async move { second.call_tool(charge()).await });
            until_charged(&b, 1).await;

            let report = host.shutdown(Duration::from_millis(200)).await;
            for bed in [&a, &b, &c] {
                assert!(bed.running().is_empty(), "no process outlives it");
            }
            let reported: Vec<_> = report
                .connections
                .iter()
                .map(|c| (c.supervisor.to_string(), c.drained, c.stopped.is_some()))
                .collect();
            let expected = [("", true), ("agent", false), ("agent/helper", true)];
            assert_eq!(
                reported,
                expected.map(|(path, drained)| (path.to_owned(), drained, true))
            );
            let error = running.await.unwrap().unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            assert_eq!(report.unknown().collect::<Vec<_>>(), [error.operation()]);
            for supervisor in [below, deepest] {
                let refused = supervisor.open("another", spec(&a)).await;
                assert!(matches!(refused, Err(AddError::ShuttingDown)));
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_supervisor_goes_with_the_one_above_it_also_when_its_actor_has_another_parent() {
    #[derive(Debug)]
    enum Above {
        Dropped,
        Stopped,
        Killed,
    }
    for above in [Above::Dropped, Above::Stopped, Above::Killed] {
        println!("{above:?}");
        bounded(async {
            let (one, two) = (Bed::new(json!({})), Bed::new(json!({})));
            let (actor, elsewhere) = (host().await, host().await);
            let builder = Supervisor::builder();
            let top = link::spawn_linked(builder, actor.clone()).await.unwrap();
            let builder = Supervisor::builder().under(&top, "linked");
            let linked = link::spawn_linked(builder, elsewhere.clone())
                .await
                .unwrap();
            let builder = Supervisor::builder().under(&top, "plain");
            let plain = builder.start().await.unwrap();
            let spec = |bed: &Bed| bed.stdio_spec(initialize()).limits(short_graces());
            let first = linked.open("server", spec(&one)).await.unwrap();
            let second = plain.open("server", spec(&two)).await.unwrap();
            first.call_tool(echo()).await.unwrap();
            second.call_tool(echo()).await.unwrap();
            let mut top = Some(top);
            match above {
                Above::Dropped => drop(top.take()),
                Above::Stopped => actor.stop(None),
                Above::Killed => actor.kill(),
            }
            one.until_all_gone().await;
            two.until_all_gone().await;
            for server in [first, second] {
                until("it is closed", || {
                    server.status().state == ConnectionState::Closed
                })
                .await;
                not_sent(&server.call_tool(echo()).await.unwrap_err());
            }
            if let Some(top) = top {
                let late = Supervisor::builder().under(&top, "late").start().await;
                assert_eq!(late.unwrap_err(), SupervisorError::ShuttingDown);
            }
            elsewhere.stop(None);
        })
        .await;
    }
}

#[tokio::test]
async fn a_supervisor_that_ends_leaves_the_one_above_as_it_is_and_its_name_is_free() {
    bounded(async {
        let (above, below) = (Bed::new(json!({})), Bed::new(json!({})));
        let spec = |bed: &Bed| bed.stdio_spec(initialize()).limits(short_graces());
        let host = supervisor().await;
        let shared = host.open("shared", spec(&above)).await.unwrap();
        for round in 1..=3 {
            let builder = Supervisor::builder().under(&host, "agent");
            let agent = builder.start().await.unwrap();
            let server = agent.open("server", spec(&below)).await.unwrap();
            server.call_tool(echo()).await.unwrap();
            let report = agent.shutdown(Duration::from_secs(2)).await;
            assert_eq!(report.connections.len(), 1, "of its own alone");
            assert!(below.running().is_empty());
            assert_eq!(below.pids().len(), round);
            let answer = shared.call_tool(echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 1);
        }
        let report = host.shutdown(Duration::from_secs(2)).await;
        assert_eq!(report.connections.len(), 1, "{report:?}");
    })
    .await;
}

/// A server that ends by SIGKILL alone.
fn stubborn() -> serde_json::Value {
    json!({"ignore_eof": true, "ignore_term": true})
}

#[tokio::test]
async fn a_shutdown_waits_for_the_servers_of_agents_that_died_and_of_connections_being_closed() {
    bounded(async {
        let (one, two) = (Bed::new(stubborn()), Bed::new(stubborn()));
        let limits = Limits {
            stdin_grace: Duration::from_millis(500),
            term_grace: Duration::from_millis(500),
            ..Limits::default()
        };
        let spec = |bed: &Bed| bed.stdio_spec(initialize()).limits(limits.clone());
        let actor = host().await;
        let host = supervisor().await;
        let agent = agent(&actor, Belongings::default()).await;
        let builder = Supervisor::builder().under(&host, "agent");
        let own = link::spawn_linked(builder, agent.get_cell()).await.unwrap();
        let first = own.open("server", spec(&one)).await.unwrap();
        let second = host.open("server", spec(&two)).await.unwrap();
        first.call_tool(echo()).await.unwrap();
        second.call_tool(echo()).await.unwrap();
        let mut events = host.events();

        agent.kill();
        let _ = tokio::time::timeout(Duration::ZERO, second.close()).await;
        until("both are closed", || {
            first.status().state == ConnectionState::Closed && host.names().is_empty()
        })
        .await;
        assert_eq!((one.running().len(), two.running().len()), (1, 1));
        let _ = host.shutdown(Duration::from_secs(1)).await;
        assert!(one.running().is_empty() && two.running().is_empty());
        for _ in 0..2 {
            let stopped =
                until_told(&mut events, |w| matches!(w, What::SessionStopped { .. })).await;
            assert!(
                matches!(
                    stopped.what,
                    What::SessionStopped {
                        how: Stopped::Killed,
                        ..
                    }
                ),
                "{stopped:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn what_happens_below_is_told_above_with_its_path_and_not_the_other_way() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let host = supervisor().await;
        let builder = Supervisor::builder().under(&host, "agent");
        let below = builder.start().await.unwrap();
        let (mut above, mut own) = (host.events(), below.events());
        let spec = bed.stdio_spec(initialize());
        let first = host.open("server", spec.clone()).await.unwrap();
        let second = below.open("server", spec).await.unwrap();
        first.call_tool(echo()).await.unwrap();
        second.call_tool(echo()).await.unwrap();

        let started = |what: &What| matches!(what, What::SessionStarted { .. });
        let paths = [
            until_told(&mut above, started).await.supervisor.to_string(),
            until_told(&mut above, started).await.supervisor.to_string(),
        ];
        assert_eq!(paths, ["", "agent"]);
        let Some(Received::Event(event)) = own.next().await else {
            panic!("it has events of its own");
        };
        assert_eq!(event.supervisor, *below.path());
        assert_eq!(event.supervisor.names().collect::<Vec<_>>(), ["agent"]);
        shut_down(host).await;
    })
    .await;
}

#[tokio::test]
async fn the_name_of_a_supervisor_is_checked() {
    let host = supervisor().await;
    for name in ["", "two\nlines"] {
        let refused = Supervisor::builder().under(&host, name).start().await;
        assert!(matches!(refused, Err(SupervisorError::Name(_))), "{name:?}");
    }
}
