//! A file that changes: what is new is opened, what is gone is closed for good, what is different is
//! restarted, and nothing else is touched.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use mcp_supervisor::{
    CallError, Configuration, LentSpec, SharedConnection, Supervisor, ToolCall, What,
    connection::ConnectionState,
    error::{AddError, NotSentReason},
    spec::Start,
    supervisor::{ApplyError, ApplyReport, ServerChange},
};
use serde_json::{Value, json};

use super::{
    reader,
    support::{
        Bed, HttpServer, bounded, example, initialize,
        world::{
            WIRES, Wire, World, echo, eras, not_sent, shut_down, supervisor, told, until_told,
        },
    },
};

fn read(servers: &Value) -> Configuration {
    read_with(servers, &[])
}

fn read_with(servers: &Value, variables: &[(&str, &str)]) -> Configuration {
    let file = json!({ "mcpServers": servers }).to_string();
    reader(variables).parse("mcp.json", file).expect("a file")
}

/// The fault server of a bed, as a file has it.
fn pipe(bed: &Bed) -> Value {
    json!({
        "command": example("fault_server"),
        "args": ["stdio", "--dir", bed.path(), "--script", bed.script()],
        "mcp-supervisor": { "era": "2025-11-25" }
    })
}

fn web(server: &HttpServer) -> Value {
    json!({ "url": server.url(), "mcp-supervisor": { "era": "2025-11-25" } })
}

/// A world's server, as a file has it.
fn described(world: &World) -> Value {
    let era = if world.opening() == "initialize" {
        "2025-11-25"
    } else {
        "discover"
    };
    let mut server = match &world.http {
        Some(http) => web(http),
        None => pipe(&world.bed),
    };
    server["mcp-supervisor"]["era"] = json!(era);
    server
}

fn shared(supervisor: &Supervisor, name: &str) -> SharedConnection {
    supervisor
        .connection(name)
        .unwrap_or_else(|| panic!("{name} is open"))
}

/// Calls, and returns the generation that answered.
async fn call(supervisor: &Supervisor, name: &str) -> u64 {
    let answer = shared(supervisor, name).call_tool(echo()).await;
    answer
        .unwrap_or_else(|e| panic!("{name}: {e}"))
        .generation()
        .number()
}

fn slow(ms: u64) -> ToolCall {
    ToolCall::new("slow", json!({ "ms": ms }))
}

#[track_caller]
fn changes(report: &ApplyReport) -> Vec<(&str, &ServerChange)> {
    report
        .changes
        .iter()
        .map(|(n, c)| (n.as_str(), c))
        .collect()
}

fn is_closed(error: &CallError) -> bool {
    matches!(not_sent(error), NotSentReason::Closed)
}

#[tokio::test]
async fn the_first_apply_opens_all_and_the_same_again_touches_nothing() {
    bounded(async {
        for (wire, era) in WIRES.into_iter().flat_map(|w| eras().map(|e| (w, e))) {
            let world = World::new(wire, era, json!({})).await;
            let servers = json!({ "a": described(&world), "b": described(&world) });
            let supervisor = supervisor().await;
            let report = supervisor.apply(&read(&servers)).await;
            assert_eq!(
                changes(&report),
                [("a", &ServerChange::Added), ("b", &ServerChange::Added)]
            );
            assert_eq!(call(&supervisor, "a").await, 1);

            let a = shared(&supervisor, "a");
            let in_flight = a.call_tool(slow(300));
            let again = async {
                let mut all = Vec::new();
                for _ in 0..5 {
                    all.push(supervisor.apply(&read(&servers)).await);
                }
                all
            };
            let (answer, reports) = tokio::join!(in_flight, again);
            assert_eq!(answer.expect("it goes on").generation().number(), 1);
            for report in reports {
                let same = [
                    ("a", &ServerChange::Unchanged),
                    ("b", &ServerChange::Unchanged),
                ];
                assert_eq!(changes(&report), same);
            }
            assert_eq!(call(&supervisor, "a").await, 1);
            assert_eq!(world.bed.read(world.opening()), 1, "one session was opened");
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_written_differently_and_means_the_same_is_not_touched() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let supervisor = supervisor().await;
        let mut server = pipe(&bed);
        let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
        assert_eq!(call(&supervisor, "a").await, 1);
        // A variable in place of a literal, the other's words, a field that nobody reads.
        let command = server["command"].as_str().unwrap().to_owned();
        server["command"] = json!("${SERVER}");
        server["type"] = json!("stdio");
        server["description"] = json!("the same");
        server["mcp-supervisor"]["limits"] = json!({ "total": "1m" });
        let report = supervisor
            .apply(&read_with(&json!({ "a": server }), &[("SERVER", &command)]))
            .await;
        assert_eq!(changes(&report), [("a", &ServerChange::Unchanged)]);
        assert_eq!(bed.pids().len(), 1);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn only_what_changed_is_restarted() {
    bounded(async {
        for wire in WIRES {
            let (one, two) = (
                World::new(wire, initialize(), json!({})).await,
                World::new(wire, initialize(), json!({})).await,
            );
            let field = if wire == Wire::Http { "headers" } else { "env" };
            let mut changed = described(&one);
            changed[field] = json!({ "X-Version": "${VERSION}" });
            let servers = json!({ "changed": changed, "kept": described(&two) });
            let supervisor = supervisor().await;
            let _ = supervisor
                .apply(&read_with(&servers, &[("VERSION", "1")]))
                .await;
            call(&supervisor, "changed").await;
            call(&supervisor, "kept").await;
            let old = shared(&supervisor, "changed");

            // The file is the same; what the variable holds is not.
            let report = supervisor
                .apply(&read_with(&servers, &[("VERSION", "2")]))
                .await;
            assert_eq!(
                changes(&report),
                [
                    ("changed", &ServerChange::Restarted),
                    ("kept", &ServerChange::Unchanged)
                ]
            );
            // The name goes on, with a session of its own number. The old handle says what to do.
            assert_eq!(call(&supervisor, "changed").await, 2);
            assert_eq!(call(&supervisor, "kept").await, 1);
            let error = old.call_tool(echo()).await.unwrap_err();
            assert!(is_closed(&error), "{error}");
            assert!(error.to_string().contains("Ask its supervisor"), "{error}");
            assert_eq!(old.status().state, ConnectionState::Closed);
            if wire == Wire::Stdio {
                assert_eq!(one.bed.running().len(), 1, "the old process is gone");
            }
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_setting_of_our_own_that_changed_restarts_its_server() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let supervisor = supervisor().await;
        let mut server = pipe(&bed);
        let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
        for (at, settings) in [
            json!({ "limits": { "total": "7s" } }),
            json!({ "contracts": { "get_*": "readOnly" } }),
            json!({ "keepAlive": { "every": "1m", "timeout": "5s" } }),
        ]
        .into_iter()
        .enumerate()
        {
            server["mcp-supervisor"] = settings;
            let report = supervisor.apply(&read(&json!({ "a": server }))).await;
            assert_eq!(changes(&report), [("a", &ServerChange::Restarted)], "{at}");
        }
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_restart_lets_calls_in_flight_finish_and_never_has_two_processes_at_work() {
    bounded(async {
        let bed = Bed::new(json!({ "rules": [
            { "on": "tools/call", "tool": "slow", "do": [{ "touch": "there" }, "default"] },
        ] }));
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let mut server = pipe(&bed);
        let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
        let old = shared(&supervisor, "a");
        let in_flight = old.call_tool(slow(400));
        server["mcp-supervisor"]["start"] = json!("eager");
        let restart = async {
            bed.until_file("there").await;
            supervisor.apply(&read(&json!({ "a": server }))).await
        };
        let (answer, report) = tokio::join!(in_flight, restart);
        assert_eq!(changes(&report), [("a", &ServerChange::Restarted)]);
        assert_eq!(answer.expect("it had its time").generation().number(), 1);
        let mut order = Vec::new();
        loop {
            let event = until_told(&mut events, |_| true).await;
            match event.what {
                What::SessionStopped { generation, .. } => {
                    order.push(("stopped", generation.number()))
                }
                What::SessionStarted { generation, .. } => {
                    order.push(("started", generation.number()))
                }
                _ => {}
            }
            if order.len() == 3 {
                break;
            }
        }
        assert_eq!(order, [("started", 1), ("stopped", 1), ("started", 2)]);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_call_in_flight_that_outlasts_its_grace_is_unknown_and_holds_nobody_up() {
    bounded(async {
        let bed = Bed::new(json!({ "rules": [
            { "on": "tools/call", "do": ["ledger", { "touch": "there" }, "hang"] },
        ] }));
        let supervisor = supervisor().await;
        let mut server = pipe(&bed);
        server["mcp-supervisor"]["limits"] =
            json!({ "reconnectGrace": "100ms", "stdinGrace": "100ms" });
        let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
        let old = shared(&supervisor, "a");
        let call = old.call_tool(echo());
        let remove = async {
            bed.until_file("there").await;
            supervisor.apply(&read(&json!({}))).await
        };
        let (answer, report) = tokio::join!(call, remove);
        assert_eq!(changes(&report), [("a", &ServerChange::Removed)]);
        assert!(matches!(answer, Err(CallError::Unknown(_))), "{answer:?}");
        assert_eq!(bed.running(), Vec::<i32>::new());
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_removed_or_switched_off_is_closed_and_its_process_gone() {
    bounded(async {
        let (one, two) = (Bed::new(json!({})), Bed::new(json!({})));
        let servers = json!({ "one": pipe(&one), "two": pipe(&two) });
        let supervisor = supervisor().await;
        let _ = supervisor.apply(&read(&servers)).await;
        let handles = [shared(&supervisor, "one"), shared(&supervisor, "two")];
        call(&supervisor, "one").await;
        call(&supervisor, "two").await;
        let mut off = pipe(&two);
        off["disabled"] = json!(true);
        let report = supervisor.apply(&read(&json!({ "two": off }))).await;
        assert_eq!(
            changes(&report),
            [
                ("one", &ServerChange::Removed),
                ("two", &ServerChange::Disabled)
            ]
        );
        assert_eq!((one.running(), two.running()), (vec![], vec![]));
        assert!(supervisor.names().is_empty());
        for handle in handles {
            let error = handle.call_tool(echo()).await.unwrap_err();
            assert!(is_closed(&error), "{error}");
            assert!(handle.reconnect().await.is_err());
        }
        // Back again, under the same name.
        let report = supervisor.apply(&read(&servers)).await;
        assert_eq!(
            changes(&report),
            [("one", &ServerChange::Added), ("two", &ServerChange::Added)]
        );
        call(&supervisor, "one").await;
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_removed_while_it_starts_is_not_started() {
    bounded(async {
        // It is there, and says nothing for ever.
        let bed = Bed::new(json!({ "at_start": ["hang"] }));
        let mut server = pipe(&bed);
        server["mcp-supervisor"]["start"] = json!("eager");
        server["mcp-supervisor"]["limits"] = json!({ "stdinGrace": "100ms", "termGrace": "100ms" });
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
        super::support::until("its process is there", || !bed.pids().is_empty()).await;
        let handle = shared(&supervisor, "a");
        let waits = handle.call_tool(echo());
        let remove = async { supervisor.apply(&read(&json!({}))).await };
        let (answer, report) = tokio::join!(waits, remove);
        assert_eq!(changes(&report), [("a", &ServerChange::Removed)]);
        assert!(is_closed(&answer.unwrap_err()));
        assert_eq!(bed.running(), Vec::<i32>::new());
        nothing_more(supervisor, &mut events, &bed, 1).await;
    })
    .await;
}

// On several threads, so that the removal can overtake the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_removed_before_its_eager_start_was_begun_leaves_no_process() {
    bounded(async {
        let bed = Bed::new(json!({ "at_start": ["hang"] }));
        let mut server = pipe(&bed);
        server["mcp-supervisor"]["start"] = json!("eager");
        server["mcp-supervisor"]["limits"] = json!({ "stdinGrace": "100ms", "termGrace": "100ms" });
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        for _ in 0..60 {
            let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
            let report = supervisor.apply(&read(&json!({}))).await;
            assert_eq!(changes(&report), [("a", &ServerChange::Removed)]);
            assert_eq!(bed.running(), Vec::<i32>::new());
        }
        let so_far = bed.pids().len();
        nothing_more(supervisor, &mut events, &bed, so_far).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_removed_while_it_waits_to_be_tried_again_is_not_tried_again() {
    bounded(async {
        let bed = Bed::new(json!({ "at_start": [{ "exit": 3 }] }));
        let mut server = pipe(&bed);
        // A wait that no test outlives.
        let patient = json!({ "maxRestarts": 100, "backoff": { "base": "1000m", "cap": "1000m" } });
        server["mcp-supervisor"]["recovery"] = patient;
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let _ = supervisor.apply(&read(&json!({ "a": server }))).await;
        let handle = shared(&supervisor, "a");
        handle.call_tool(echo()).await.unwrap_err();
        assert_eq!(bed.pids().len(), 1);
        let _ = told(&mut events).await;
        let waits = handle.call_tool(echo());
        let remove = async {
            until_told(&mut events, |w| matches!(w, What::SessionStarting { .. })).await;
            supervisor.apply(&read(&json!({}))).await
        };
        let (answer, report) = tokio::join!(waits, remove);
        assert_eq!(changes(&report), [("a", &ServerChange::Removed)]);
        assert!(is_closed(&answer.unwrap_err()));
        nothing_more(supervisor, &mut events, &bed, 1).await;
    })
    .await;
}

/// Nothing is started after this, until all is over.
async fn nothing_more(
    supervisor: Supervisor,
    events: &mut mcp_supervisor::EventStream,
    bed: &Bed,
    processes: usize,
) {
    let _ = told(events).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let late = told(events).await;
    assert!(late.is_empty(), "{late:?}");
    assert!(supervisor.names().is_empty());
    shut_down(supervisor).await;
    assert_eq!(bed.pids().len(), processes);
    assert_eq!(bed.running(), Vec::<i32>::new());
}

#[tokio::test]
async fn a_server_that_became_wrong_keeps_the_connection_it_has() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let supervisor = supervisor().await;
        let good = pipe(&bed);
        let _ = supervisor
            .apply(&read(&json!({ "a": good, "b": good })))
            .await;
        call(&supervisor, "a").await;
        let mut bad = good.clone();
        bad["env"] = json!({ "TOKEN": "${NOT_SET}" });
        // Wrong in a way that comes to light when it is opened.
        let worse = json!({ "url": "http://127.0.0.1:9/", "headers": { "Accept": "x" } });
        for wrong in [bad, worse] {
            let report = supervisor
                .apply(&read(&json!({ "a": wrong, "b": good })))
                .await;
            let ServerChange::Failed {
                error: ApplyError::Config(error),
                still_running: true,
            } = &report.changes["a"]
            else {
                panic!("{report:?}");
            };
            assert_eq!(error.server.as_deref(), Some("a"));
            assert!(error.field.is_some(), "{error}");
            assert_eq!(report.changes["b"], ServerChange::Unchanged);
            assert_eq!(call(&supervisor, "a").await, 1);
        }
        // Right again, and as it was: nothing happened to it.
        let report = supervisor
            .apply(&read(&json!({ "a": good, "b": good })))
            .await;
        assert_eq!(report.changes["a"], ServerChange::Unchanged);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn what_was_opened_or_lent_by_hand_is_never_touched() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let supervisor = supervisor().await;
        let mine = supervisor
            .open("mine", bed.stdio_spec(initialize()))
            .await
            .unwrap();
        let world = World::new(Wire::Stdio, initialize(), json!({})).await;
        let client = world.client().await;
        let lent = supervisor
            .lend_service("lent", &client, LentSpec::new())
            .await
            .unwrap();
        let servers = json!({ "mine": pipe(&bed), "lent": pipe(&bed) });
        let report = supervisor.apply(&read(&servers)).await;
        for name in ["mine", "lent"] {
            let ServerChange::Failed {
                error: ApplyError::Add(AddError::Duplicate(_)),
                still_running: false,
            } = &report.changes[name]
            else {
                panic!("{report:?}");
            };
        }
        let report = supervisor.apply(&read(&json!({}))).await;
        assert_eq!(changes(&report), []);
        mine.call_tool(echo()).await.unwrap();
        lent.call_tool(echo()).await.unwrap();
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn applies_at_the_same_time_are_carried_out_one_after_the_other() {
    bounded(async {
        let beds = [Bed::new(json!({})), Bed::new(json!({}))];
        let both = [
            read(&json!({ "a": pipe(&beds[0]), "b": pipe(&beds[0]) })),
            read(&json!({ "a": pipe(&beds[1]), "c": pipe(&beds[1]) })),
        ];
        let supervisor = supervisor().await;
        let apply = |at: usize| supervisor.apply(&both[at % 2]);
        let reports = tokio::join!(apply(0), apply(1), apply(2), apply(3), apply(4));
        let first = [("a", &ServerChange::Added), ("b", &ServerChange::Added)];
        assert_eq!(changes(&reports.0), first);
        let there = [
            ("a", &ServerChange::Restarted),
            ("b", &ServerChange::Removed),
            ("c", &ServerChange::Added),
        ];
        let back = [
            ("a", &ServerChange::Restarted),
            ("b", &ServerChange::Added),
            ("c", &ServerChange::Removed),
        ];
        for (report, expected) in [
            (&reports.1, there),
            (&reports.2, back),
            (&reports.3, there),
            (&reports.4, back),
        ] {
            assert_eq!(changes(report), expected);
        }
        call(&supervisor, "a").await;
        call(&supervisor, "b").await;
        assert_eq!((beds[0].running().len(), beds[1].running().len()), (2, 0));
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn an_apply_that_nobody_waits_for_any_more_closes_all_the_same() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let supervisor = supervisor().await;
        let servers = json!({ "a": pipe(&bed), "b": pipe(&bed) });
        let _ = supervisor.apply(&read(&servers)).await;
        call(&supervisor, "a").await;
        let nothing = read(&json!({}));
        {
            let mut apply = pin!(supervisor.apply(&nothing));
            let once = std::future::poll_fn(|cx| Poll::Ready(apply.as_mut().poll(cx).is_pending()));
            assert!(once.await, "it waits for the process");
        }
        bed.until_all_gone().await;
        assert!(supervisor.names().is_empty());
        let report = supervisor.apply(&read(&servers)).await;
        assert_eq!(
            changes(&report),
            [("a", &ServerChange::Added), ("b", &ServerChange::Added)]
        );
        call(&supervisor, "a").await;
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_comes_back_waits_for_the_process_that_had_it() {
    bounded(async {
        let bed = Bed::new(json!({ "rules": [
            { "on": "tools/call", "tool": "slow", "do": [{ "touch": "there" }, "default"] },
        ] }));
        let supervisor = supervisor().await;
        let mut events = supervisor.events();
        let servers = read(&json!({ "a": pipe(&bed) }));
        let _ = supervisor.apply(&servers).await;
        let old = shared(&supervisor, "a");
        let in_flight = old.call_tool(slow(400));
        let nothing = read(&json!({}));
        let back = async {
            bed.until_file("there").await;
            {
                let mut apply = pin!(supervisor.apply(&nothing));
                let once =
                    std::future::poll_fn(|cx| Poll::Ready(apply.as_mut().poll(cx).is_pending()));
                assert!(once.await, "it waits for the process");
            }
            let report = supervisor.apply(&servers).await;
            assert_eq!(changes(&report), [("a", &ServerChange::Added)]);
            call(&supervisor, "a").await
        };
        let (answer, _) = tokio::join!(in_flight, back);
        answer.expect("it had its time");
        let mut order = Vec::new();
        while order.len() < 3 {
            let event = until_told(&mut events, |_| true).await;
            match event.what {
                What::SessionStopped { .. } => order.push("stopped"),
                What::SessionStarted { .. } => order.push("started"),
                _ => {}
            }
        }
        assert_eq!(order, ["started", "stopped", "started"]);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn the_host_has_a_say_in_each_connection_that_is_opened() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        let supervisor = Supervisor::builder()
            .prepare(move |server, spec| {
                told.lock().unwrap().push(server.name().to_string());
                spec.start(Start::Eager)
            })
            .start()
            .await
            .unwrap();
        let mut servers = json!({ "a": pipe(&bed), "off": { "disabled": true } });
        let configuration = read(&servers);
        let _ = supervisor.apply(&configuration).await;
        super::support::until("it was started eagerly", || bed.pids().len() == 1).await;
        // What the host says is no part of the comparison.
        let report = supervisor.apply(&configuration).await;
        assert_eq!(report.changes["a"], ServerChange::Unchanged);
        assert_eq!(*asked.lock().unwrap(), ["a"]);
        // A server that is restarted is prepared again.
        servers["a"]["env"]["CHANGED"] = json!("yes");
        let report = supervisor.apply(&read(&servers)).await;
        assert_eq!(report.changes["a"], ServerChange::Restarted);
        assert_eq!(*asked.lock().unwrap(), ["a", "a"]);
        shut_down(supervisor).await;
    })
    .await;
}
