//! The supervisor: what it opens and when, how it stops, what it tells, and how much it lets in.

mod support;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mcp_supervisor::{
    CallError, Era, LentSpec, Limits, Outcome, OwnedConnection, Ownership, Ping, Received,
    SharedConnection, Supervisor, ToolAnswer, ToolCall, What,
    connection::ConnectionState,
    error::{AddError, NotSentReason},
    event::{Ended, Stopped},
    link,
    spec::{Overload, Start},
};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use serde_json::json;
use support::{
    Bed, bounded, example, initialize, until,
    world::{
        Wire, World, charge, echo, everywhere, not_sent, open, short_graces, shut_down, supervisor,
        told, unknown, until_told,
    },
};
use tokio::task::JoinHandle;

type Calling = JoinHandle<Result<ToolAnswer, CallError>>;

/// A call in a task of its own.
fn calling(server: &SharedConnection, call: ToolCall) -> Calling {
    let server = server.clone();
    tokio::spawn(async move { server.call_tool(call).await })
}

/// A server on which `charge` runs until there is a file `go`.
async fn charge_waits(wire: Wire, era: Era) -> World {
    let script = json!({"rules": [
        {"on": "tools/call", "tool": "charge", "do": ["ledger", {"wait_file": "go"}, "answer"]},
    ]});
    World::new(wire, era, script).await
}

async fn until_charged(bed: &Bed, times: usize) {
    until("charge runs", || bed.ran("charge") == times).await;
}

// --------------------------------------------------------------------------------------- opening

#[tokio::test]
async fn a_session_starts_with_the_first_operation_unless_it_is_to_start_at_once() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = World::new(wire, era, json!({})).await;
            let supervisor = supervisor().await;
            let mut events = supervisor.events();
            let lazy = supervisor.open("lazy", world.spec()).await.unwrap();
            assert_eq!(lazy.status().state, ConnectionState::Idle);
            assert!(told(&mut events).await.is_empty());
            assert!(world.bed.wire().is_empty());

            let eager = world.spec().start(Start::Eager);
            let eager = supervisor.open("eager", eager).await.unwrap();
            let live = eager
                .status_when(|s| s.state == ConnectionState::Live)
                .await;
            assert_eq!(live.generation.unwrap().number(), 1);
            assert_eq!(world.bed.read(world.opening()), 1);
            eager.call_tool(echo()).await.unwrap();
            assert_eq!(
                world.bed.read(world.opening()),
                1,
                "it is used by the first operation"
            );

            lazy.call_tool(echo()).await.unwrap();
            assert_eq!(world.bed.read(world.opening()), 2);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_eager_start_that_fails_is_told_and_not_looped() {
    bounded(async {
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let spec = mcp_supervisor::StdioSpec::new("/nowhere/at-all");
        let spec = mcp_supervisor::ConnectionSpec::from(spec).start(Start::Eager);
        let server = supervisor.open("server", spec).await.unwrap();
        until_told(&mut events, |w| matches!(w, What::StartFailed { .. })).await;
        server
            .status_when(|s| s.state == ConnectionState::Idle)
            .await;
        let more = told(&mut events).await;
        assert!(
            !more
                .iter()
                .any(|w| matches!(w, What::SessionStarting { .. })),
            "{more:?}"
        );
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn the_status_says_why_a_server_is_down_until_it_starts() {
    bounded(async {
        let world = World::new(Wire::Stdio, Era::Automatic, json!({})).await;
        let bed = &world.bed;
        let script = format!(
            "if [ -e {dir}/mended ]; then exec {server} stdio --dir {dir} --script {script}; fi; \
             echo no license >&2; exit 3",
            dir = bed.path().display(),
            server = example("fault_server").display(),
            script = bed.script(),
        );
        let spec = mcp_supervisor::StdioSpec::new("/bin/sh").args(["-c", &script]);
        let (supervisor, server) = open(spec.into()).await;
        assert!(server.status().last_failure.is_none());
        let error = server.call_tool(charge()).await.unwrap_err();
        let status = server.status_when(|s| s.last_failure.is_some()).await;
        let failure = status.last_failure.unwrap();
        assert!(failure.to_string().contains("no license"), "{failure}");
        // The reason of a refused call is told without the rest of its text.
        let why = error.why().to_string();
        assert!(why.contains("no license"), "{why}");
        assert!(!why.contains("tools/call"), "{why}");
        assert!(error.to_string().contains(&why), "{error}");
        bed.touch("mended");
        server.call_tool(charge()).await.unwrap();
        assert!(server.status().last_failure.is_none());
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_name_is_taken_until_its_connection_is_closed() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let supervisor = supervisor().await;
        let spec = || bed.stdio_spec(initialize());
        let first = supervisor.open("server", spec()).await.unwrap();
        first.call_tool(echo()).await.unwrap();
        let again = supervisor.open("server", spec()).await.unwrap_err();
        assert!(matches!(&again, AddError::Duplicate(name) if name.as_str() == "server"));
        // The first one is none the worse for it.
        let answer = first.call_tool(echo()).await.unwrap();
        assert_eq!(answer.generation().number(), 1);

        let old = first.share();
        first.close().await;
        assert!(supervisor.connection("server").is_none());
        let second = supervisor.open("server", spec()).await.unwrap();
        assert_eq!(
            second
                .call_tool(echo())
                .await
                .unwrap()
                .generation()
                .number(),
            1
        );
        // A handle of the old one is not a handle of the new one.
        let error = old.call_tool(echo()).await.unwrap_err();
        assert!(
            matches!(not_sent(&error), NotSentReason::Closed),
            "{error:?}"
        );
        let found = supervisor.connection("server").unwrap();
        found.call_tool(echo()).await.unwrap();
        assert_eq!(bed.ran("echo"), 4);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn connections_are_found_by_name_and_by_who_owns_them() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), json!({})).await;
        let supervisor = supervisor().await;
        let _owned = supervisor.open("owned", world.spec()).await.unwrap();
        let client = world.client().await;
        let spec = LentSpec::new();
        let _lent = supervisor
            .lend_service("lent", &client, spec)
            .await
            .unwrap();
        let names = supervisor.names();
        assert_eq!(
            names.iter().map(|n| n.as_str()).collect::<Vec<_>>(),
            ["lent", "owned"]
        );
        assert!(supervisor.connection("owned").is_some());
        assert!(supervisor.lent_connection("lent").is_some());
        assert!(
            supervisor.connection("lent").is_none(),
            "it may not be restarted"
        );
        assert!(supervisor.lent_connection("owned").is_none());
        assert!(supervisor.connection("neither").is_none());
        shut_down(supervisor).await;
    })
    .await;
}

// -------------------------------------------------------------------------------------- stopping

#[tokio::test]
async fn a_shutdown_lets_what_is_in_flight_finish() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = charge_waits(wire, era).await;
            let (supervisor, server) = open(world.spec()).await;
            let call = calling(&server.share(), charge());
            until_charged(&world.bed, 1).await;
            let stopping = tokio::spawn(supervisor.shutdown(Duration::from_secs(50)));
            let refused = until_refused(&server).await;
            assert!(
                matches!(not_sent(&refused), NotSentReason::Closed),
                "{refused:?}"
            );
            assert!(!stopping.is_finished());
            world.bed.touch("go");
            call.await.unwrap().unwrap();
            let report = stopping.await.unwrap();
            assert!(report.connections[0].drained);
            assert_eq!(report.unknown().count(), 0);
            let how = match wire {
                Wire::Stdio => Stopped::StdinClosed,
                Wire::Http => Stopped::ByItself,
            };
            assert_eq!(report.connections[0].stopped, Some(how));
            assert_eq!(report.connections[0].name.as_str(), "server");
            assert_eq!(server.status().state, ConnectionState::Closed);
        })
        .await;
    }
}

/// Calls until one is refused.
async fn until_refused(server: &OwnedConnection) -> CallError {
    loop {
        if let Err(error) = server.call_tool(echo()).await {
            return error;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn past_its_deadline_a_shutdown_recalls_the_queue_and_reports_what_stays_unknown() {
    for (wire, era) in everywhere() {
        bounded(async {
            let mut world = charge_waits(wire, era).await;
            let limits = Limits {
                max_in_flight: 1,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let running = calling(&server.share(), charge());
            until_charged(&world.bed, 1).await;
            let queued = calling(&server.share(), echo());
            until("it is queued", || server.status().in_flight == 1).await;
            tokio::task::yield_now().await;

            let begun = Instant::now();
            let report = supervisor.shutdown(Duration::from_millis(300)).await;
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{:?}",
                begun.elapsed()
            );
            assert!(!report.connections[0].drained);
            let error = running.await.unwrap().unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown);
            assert_eq!(report.unknown().collect::<Vec<_>>(), [error.operation()]);
            let error = queued.await.unwrap().unwrap_err();
            assert!(
                matches!(not_sent(&error), NotSentReason::Closed),
                "{error:?}"
            );
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (1, 0));
            assert_eq!(world.bed.read("tools/call"), 1);
            if let Some(http) = &mut world.http {
                http.kill();
            }
            assert!(world.bed.running().is_empty(), "no process outlives it");
        })
        .await;
    }
}

#[tokio::test]
async fn a_shutdown_says_how_far_it_had_to_go() {
    bounded(async {
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let mut beds = Vec::new();
        for (name, script) in [
            ("obeys", json!({})),
            ("ignores_eof", json!({"ignore_eof": true})),
            (
                "ignores_all",
                json!({"ignore_eof": true, "ignore_term": true}),
            ),
            ("never_used", json!({})),
        ] {
            let bed = Bed::new(script);
            let spec = bed.stdio_spec(initialize()).limits(Limits {
                stdin_grace: Duration::from_millis(500),
                term_grace: Duration::from_millis(500),
                ..Limits::default()
            });
            let server = supervisor.open(name, spec).await.unwrap();
            if name != "never_used" {
                server.call_tool(echo()).await.unwrap();
            }
            beds.push(bed);
        }
        let report = supervisor.shutdown(Duration::from_secs(5)).await;
        let stopped = report
            .connections
            .iter()
            .map(|c| (c.name.as_str(), c.stopped));
        assert_eq!(
            stopped.collect::<Vec<_>>(),
            [
                ("obeys", Some(Stopped::StdinClosed)),
                ("ignores_eof", Some(Stopped::Terminated)),
                ("ignores_all", Some(Stopped::Killed)),
                ("never_used", None),
            ]
        );
        for bed in &beds {
            assert!(bed.running().is_empty());
        }
        let how: Vec<_> = told(&mut events)
            .await
            .into_iter()
            .filter_map(|w| match w {
                What::SessionStopped { how, .. } => Some(how),
                _ => None,
            })
            .collect();
        assert_eq!(how.len(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_leaves_what_is_lent_as_it_is() {
    bounded(async {
        let world = World::new(Wire::Stdio, initialize(), json!({})).await;
        let supervisor = supervisor().await;
        let mut client = world.client().await;
        let lent = supervisor
            .lend_service("lent", &client, LentSpec::new())
            .await
            .unwrap();
        lent.call_tool(echo()).await.unwrap();
        let before = world.bed.wire().len();
        let report = supervisor.shutdown(Duration::from_secs(2)).await;
        assert_eq!(report.connections[0].ownership, Ownership::LentService);
        assert_eq!(report.connections[0].stopped, None);
        let error = lent.call_tool(echo()).await.unwrap_err();
        assert!(
            matches!(not_sent(&error), NotSentReason::Closed),
            "{error:?}"
        );
        assert_eq!(world.bed.wire().len(), before, "nothing was sent");
        // It works on in the caller's hands.
        client.peer().list_tools(None).await.unwrap();
        assert_eq!(world.bed.running().len(), 1);
        client.close().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_supervisor_that_is_dropped_stops_its_processes() {
    for (script, limits) in [
        (json!({}), Limits::default()),
        (
            json!({"ignore_eof": true, "ignore_term": true}),
            short_graces(),
        ),
    ] {
        bounded(async {
            let world = World::new(Wire::Stdio, initialize(), script).await;
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            server.call_tool(echo()).await.unwrap();
            assert_eq!(world.bed.running().len(), 1);
            drop(supervisor);
            world.bed.until_all_gone().await;
            let error = server.call_tool(echo()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn the_owner_closes_a_connection_for_everybody() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = charge_waits(wire, era).await;
            let limits = Limits {
                max_in_flight: 1,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let shared = server.share();
            let running = calling(&shared, charge());
            until_charged(&world.bed, 1).await;
            let queued = calling(&shared, echo());
            tokio::task::yield_now().await;
            server.close().await;
            if wire == Wire::Stdio {
                assert!(world.bed.running().is_empty(), "gone when it returns");
            }
            assert_eq!(
                running.await.unwrap().unwrap_err().outcome(),
                Outcome::Unknown
            );
            for error in [queued.await.unwrap(), shared.call_tool(echo()).await] {
                let error = error.unwrap_err();
                assert!(
                    matches!(not_sent(&error), NotSentReason::Closed),
                    "{error:?}"
                );
            }
            assert!(shared.reconnect().await.is_err());
            assert!(supervisor.names().is_empty());
            shut_down(supervisor).await;
        })
        .await;
    }
}

// ------------------------------------------------------------------- under an actor of the host's

/// An actor of a host's own, which writes down what becomes of its children.
struct Parent;

type Ends = Arc<Mutex<Vec<(ActorCell, &'static str)>>>;

impl Actor for Parent {
    type Msg = ();
    type State = Ends;
    type Arguments = Ends;

    async fn pre_start(&self, _: ActorRef<()>, ends: Ends) -> Result<Ends, ActorProcessingErr> {
        Ok(ends)
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        ends: &mut Ends,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(who, ..) => {
                ends.lock()
                    .expect("nobody panics in there")
                    .push((who, "terminated"));
            }
            SupervisionEvent::ActorFailed(who, _) => ends
                .lock()
                .expect("nobody panics in there")
                .push((who, "failed")),
            _ => {}
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_parent_actor_is_told_of_the_supervisors_end() {
    for dropped in [false, true] {
        bounded(async {
            let bed = Bed::new(json!({}));
            let ends = Ends::default();
            let (parent, _) = Actor::spawn(None, Parent, Arc::clone(&ends)).await.unwrap();
            let builder = Supervisor::builder();
            let supervisor = link::spawn_linked(builder, parent.get_cell())
                .await
                .unwrap();
            let spec = bed.stdio_spec(initialize());
            let server = supervisor.open("server", spec).await.unwrap();
            server.call_tool(echo()).await.unwrap();
            assert!(ends.lock().unwrap().is_empty());
            match dropped {
                true => drop(supervisor),
                false => shut_down(supervisor).await,
            }
            until("the parent is told", || !ends.lock().unwrap().is_empty()).await;
            let ends: Vec<_> = ends.lock().unwrap().iter().map(|(_, how)| *how).collect();
            assert_eq!(
                ends,
                ["terminated"],
                "of the supervisor, and of nothing below it"
            );
            bed.until_all_gone().await;
            parent.stop(None);
        })
        .await;
    }
}

#[tokio::test]
async fn when_a_parent_actor_stops_everything_below_it_stops() {
    for killed in [false, true] {
        bounded(async {
            let bed = Bed::new(json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", "hang"]},
            ]}));
            let (parent, ended) = Actor::spawn(None, Parent, Ends::default()).await.unwrap();
            let builder = Supervisor::builder();
            let supervisor = link::spawn_linked(builder, parent.get_cell())
                .await
                .unwrap();
            let spec = bed.stdio_spec(initialize()).limits(short_graces());
            let server = supervisor.open("server", spec.clone()).await.unwrap();
            let running = calling(&server.share(), charge());
            until_charged(&bed, 1).await;
            match killed {
                true => parent.kill(),
                false => parent.stop(None),
            }
            let _ = ended.await;
            bed.until_all_gone().await;
            let error = running.await.unwrap().unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            let error = server.call_tool(echo()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
            let refused = supervisor.open("another", spec).await;
            assert!(matches!(refused, Err(AddError::ShuttingDown)));
            assert!(
                link::spawn_linked(Supervisor::builder(), parent.get_cell())
                    .await
                    .is_err()
            );
        })
        .await;
    }
}

// ------------------------------------------------------------------------------ events and status

#[tokio::test]
async fn events_are_the_facts_of_a_connections_life_in_their_order() {
    bounded(async {
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "do": ["ledger", {"exit": 1}]}]});
        let world = World::new(Wire::Stdio, initialize(), script).await;
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let server = supervisor.open("server", world.spec()).await.unwrap();
        let error = server.call_tool(charge()).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::Unknown);
        server.status_when(|s| s.state == ConnectionState::Idle).await;
        until("the process is gone", || world.bed.running().is_empty()).await;
        let facts: Vec<_> = told(&mut events)
            .await
            .iter()
            .map(|what| match what {
                What::SessionStarting { .. } => "starting",
                What::SessionStarted { .. } => "started",
                What::AttemptStarted { operation, number: 1, .. } => {
                    assert_eq!(*operation, error.operation());
                    "attempt"
                }
                What::SessionLost { unanswered, .. } => {
                    assert_eq!(*unanswered, 1);
                    "lost"
                }
                What::OutcomeUnknown { operation, .. } => {
                    assert_eq!(*operation, error.operation());
                    "unknown"
                }
                What::SessionStopped { .. } => "stopped",
                What::OperationFinished { operation, ended, attempts: 1, .. } => {
                    assert_eq!(*operation, error.operation());
                    assert_eq!(*ended, Ended::Without(Outcome::Unknown));
                    "finished"
                }
                _ => "something else",
            })
            .collect();
        assert_eq!(facts[..3], ["starting", "started", "attempt"]);
        // What the session's end sets off goes side by side; only the operation's own two are in order.
        let place = |fact| facts.iter().position(|f| *f == fact);
        assert!(place("unknown") < place("finished"), "{facts:?}");
        let mut rest = facts[3..].to_vec();
        rest.sort_unstable();
        assert_eq!(rest, ["finished", "lost", "stopped", "unknown"]);
        shut_down(supervisor).await;
        drop(server);
        while let Some(received) = events.next().await {
            assert!(matches!(received, Received::Event(_)));
        }
    })
    .await;
}

#[tokio::test]
async fn a_subscriber_that_falls_behind_is_told_how_much_it_missed_and_slows_nobody_down() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let (supervisor, server) = open(bed.stdio_spec(initialize())).await;
        let mut slow = supervisor.events();
        // Two events each: the attempt, and the end.
        for _ in 0..1_500 {
            server.ping(Ping::default()).await.unwrap();
        }
        let Some(Received::Missed(missed)) = slow.next().await else {
            panic!("it heard of everything");
        };
        let mut heard = 0;
        while let Ok(Some(received)) =
            tokio::time::timeout(Duration::from_millis(100), slow.next()).await
        {
            assert!(matches!(received, Received::Event(_)), "once is enough");
            heard += 1;
        }
        assert_eq!(missed + heard, 2 * 1_500 + 2, "all calls, and the start");
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn the_status_is_there_whatever_the_connection_does() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({"rules": [
                {"on": ["initialize", "server/discover"], "do": [{"wait_file": "start"}, "answer"]},
                {"on": "tools/call", "tool": "charge", "do": ["ledger", {"wait_file": "go"}, "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let status = server.status();
            assert_eq!((status.state, status.generation), (ConnectionState::Idle, None));

            let call = calling(&server.share(), charge());
            let status = server.status_when(|s| s.state == ConnectionState::Starting).await;
            assert_eq!(status.generation.unwrap().number(), 1);
            assert_eq!(status.revision, None);
            world.bed.touch("start");
            until_charged(&world.bed, 1).await;
            let status = server.status();
            assert_eq!((status.state, status.in_flight), (ConnectionState::Live, 1));
            assert!(status.revision.is_some());
            world.bed.touch("go");
            call.await.unwrap().unwrap();
            assert_eq!(server.status().in_flight, 0);

            let shared = server.share();
            server.close().await;
            assert_eq!(shared.status().state, ConnectionState::Closed);
            shut_down(supervisor).await;
        })
        .await;
    }
}

// ------------------------------------------------------------------------------------- admission

#[tokio::test]
async fn an_operation_too_many_is_refused_at_once() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = charge_waits(wire, era).await;
            let limits = Limits {
                max_in_flight: 2,
                max_queued: 1,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let server = server.share();
            let mut calls = vec![calling(&server, charge()), calling(&server, charge())];
            until_charged(&world.bed, 2).await;
            calls.push(calling(&server, charge()));
            tokio::task::yield_now().await;
            let error = server.call_tool(charge()).await.unwrap_err();
            assert!(
                matches!(
                    not_sent(&error),
                    NotSentReason::Overloaded {
                        in_flight: 2,
                        queued: 1
                    }
                ),
                "{error:?}"
            );
            world.bed.touch("go");
            for call in calls {
                call.await.unwrap().unwrap();
            }
            assert_eq!(world.bed.ran("charge"), 3);
            server.call_tool(charge()).await.unwrap();
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_operation_too_many_waits_within_its_own_deadline_where_that_is_asked_for() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = charge_waits(wire, era).await;
            let limits = Limits {
                max_in_flight: 1,
                max_queued: 0,
                overload: Overload::Wait,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let server = server.share();
            let first = calling(&server, charge());
            until_charged(&world.bed, 1).await;
            let late = server
                .call_tool(charge().deadline(Duration::from_millis(200)))
                .await;
            let late = late.unwrap_err();
            assert!(matches!(
                not_sent(&late),
                NotSentReason::DeadlinePassed(mcp_supervisor::error::Wait::Admission)
            ));
            let patient = calling(&server, charge());
            tokio::task::yield_now().await;
            world.bed.touch("go");
            first.await.unwrap().unwrap();
            patient.await.unwrap().unwrap();
            assert_eq!(world.bed.ran("charge"), 2);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn one_in_flight_gives_order_over_http() {
    for (wire, era) in everywhere() {
        bounded(async {
            // The first takes long enough for all that come behind it to overtake it.
            let script = json!({"rules": [
                {"on": "tools/call", "nth": 1, "do": [{"sleep_ms": 300}, "ledger", "answer"]},
            ]});
            let world = World::new(wire, era, script).await;
            let limits = Limits {
                max_in_flight: 1,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let server = server.share();
            let call = |n: usize| ToolCall::new("echo", json!({"key": format!("k{n:02}")}));
            let calls: Vec<_> = (0..30).map(|n| calling(&server, call(n))).collect();
            for call in calls {
                call.await.unwrap().unwrap();
            }
            let keys: Vec<_> = world.bed.effects().into_iter().map(|e| e.key).collect();
            let in_order: Vec<_> = (0..30).map(|n| format!("k{n:02}")).collect();
            assert_eq!(keys, in_order);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_slow_server_never_starves_another_connection() {
    for (wire, era) in everywhere() {
        bounded(async {
            let slow = charge_waits(wire, era.clone()).await;
            let quick = World::new(wire, era, json!({})).await;
            let supervisor = supervisor().await;
            let limits = Limits {
                max_in_flight: 4,
                max_queued: 16,
                ..short_graces()
            };
            let spec = slow.spec().limits(limits.clone());
            let full = supervisor.open("slow", spec).await.unwrap().share();
            let calls: Vec<_> = (0..20).map(|_| calling(&full, charge())).collect();
            until_charged(&slow.bed, 4).await;
            let server = supervisor
                .open("quick", quick.spec().limits(limits))
                .await
                .unwrap();
            for _ in 0..50 {
                server.call_tool(echo()).await.unwrap();
            }
            assert_eq!(slow.bed.ran("charge"), 4, "all that time");
            assert!(calls.iter().all(|call| !call.is_finished()));
            let _ = supervisor.shutdown(Duration::from_millis(10)).await;
            let mut unknowns = 0;
            for call in calls {
                let error = call.await.unwrap().unwrap_err();
                if error.outcome() == Outcome::Unknown {
                    unknown(&error);
                    unknowns += 1;
                }
            }
            assert_eq!(unknowns, 4);
        })
        .await;
    }
}
