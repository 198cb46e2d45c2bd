//! P: processes. What a server does to stay, and that it does not.

use std::{
    collections::BTreeSet,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mcp_supervisor::{
    ConnectionSpec, Era, Limits, StdioSpec, Supervisor, ToolCall, What,
    error::{StartFailure, UnknownCause},
    event::Stopped,
    evidence::Loss,
};
use serde_json::{Value, json};

use crate::support::{
    Bed, bounded, example, fault_server, initialize, kill, until,
    world::{
        Wire, World, charge, echo, eras, everywhere, open, short_graces, shut_down, start_error,
        told, unknown,
    },
};

/// The fields of `/proc/PID/stat` after the name: state, parent, group, ..
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = text.rsplit(')').next()?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn group_of(pid: i32) -> i32 {
    stat(pid).expect("it runs")[2].parse().expect("a number")
}

/// The processes of a group that still run.
fn members(group: i32) -> Vec<i32> {
    let pids = std::fs::read_dir("/proc")
        .expect("there is a /proc")
        .flatten();
    pids.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok())
        .filter(|pid| {
            stat(*pid).is_some_and(|s| s[2] == group.to_string() && !matches!(&*s[0], "Z" | "X"))
        })
        .collect()
}

#[tokio::test]
async fn a_stubborn_process_tree_is_terminated_as_a_group_and_then_killed() {
    for era in eras() {
        bounded(async {
            let bed = Bed::new(json!({"ignore_term": true, "ignore_eof": true}));
            // A shell gives what runs beside it an empty stdin, unless it is told otherwise.
            let script = r#"exec 3<&0; "$0" "$@" <&3 3<&- & exec 3<&-; wait"#;
            let shell = StdioSpec::new("/bin/sh")
                .args(["-c", script])
                .arg(example("fault_server"))
                .args(["stdio", "--dir"])
                .arg(bed.path())
                .arg("--script")
                .arg(bed.script());
            let spec = ConnectionSpec::from(shell).era(era).limits(short_graces());
            let (supervisor, server) = open(spec).await;
            server.call_tool(echo()).await.unwrap();
            let pid = bed.running()[0];
            let group = group_of(pid);
            assert_eq!(members(group).len(), 2, "the shell and the server");
            assert_ne!(group, pid, "the shell leads the group");

            let report = supervisor.shutdown(Duration::from_secs(2)).await;
            assert!(members(group).is_empty(), "gone when the shutdown returns");
            assert_eq!(report.connections[0].stopped, Some(Stopped::Killed));
            let signals = std::fs::read_to_string(bed.file("signals")).unwrap();
            for expected in ["EOF", "TERM"] {
                assert!(signals.contains(&format!("{pid} {expected}")), "{signals}");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_goes_no_harder_than_it_must() {
    for (script, expected) in [
        (json!({}), Stopped::StdinClosed),
        (json!({"ignore_eof": true}), Stopped::Terminated),
        (json!({"ignore_term": true}), Stopped::StdinClosed),
    ] {
        bounded(async {
            let limits = Limits {
                stdin_grace: match expected {
                    Stopped::StdinClosed => Duration::from_secs(20),
                    _ => Duration::from_millis(200),
                },
                term_grace: Duration::from_secs(20),
                ..Limits::default()
            };
            let world = World::new(Wire::Stdio, initialize(), script).await;
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            server.call_tool(echo()).await.unwrap();
            let report = supervisor.shutdown(Duration::from_secs(2)).await;
            assert_eq!(report.connections[0].stopped, Some(expected));
            assert!(world.bed.running().is_empty());
        })
        .await;
    }
}

// ------------------------------------------------------------------------------- hosts that die

const HOST: &str = "MCP_SUPERVISOR_TEST_HOST";

/// A program of its own, when [`Host`] starts this binary again: it opens a connection, and lives
/// until it is told to stop.
#[test]
fn host() {
    let Some(task) = std::env::var_os(HOST) else {
        return;
    };
    let task: Value = serde_json::from_str(&task.to_string_lossy()).unwrap();
    let dir = PathBuf::from(task["dir"].as_str().unwrap());
    let era = match task["modern"].as_bool() {
        Some(true) => Era::Discover,
        _ => initialize(),
    };
    let touch = |name: &str| std::fs::write(dir.join(name), "").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut interrupts =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
        let supervisor = Supervisor::builder().start().await.unwrap();
        let spec = fault_server(&dir, task["script"].as_str().unwrap());
        let spec = ConnectionSpec::from(spec).era(era);
        let server = supervisor.open("server", spec).await.unwrap();
        server.call_tool(echo()).await.unwrap();
        touch("ready");
        interrupts.recv().await;
        // It decides to finish its work first.
        let answer = server.call_tool(echo()).await.unwrap();
        assert_eq!(answer.generation().number(), 1);
        touch("decided");
        until("told to stop", || dir.join("stop").exists()).await;
        shut_down(supervisor).await;
    });
}

struct Host(Child);

impl Host {
    /// Starts a host, in a process group of its own, and waits until its server has answered it.
    async fn start(bed: &Bed, era: &Era) -> Self {
        let task = json!({
            "dir": bed.path(), "script": bed.script(), "modern": *era == Era::Discover,
        });
        let child = Command::new(std::env::current_exe().expect("a test has a path"))
            .args(["--exact", "processes::host", "--nocapture"])
            .env(HOST, task.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("it starts");
        let host = Self(child);
        bed.until_file("ready").await;
        host
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_interrupt_at_the_terminal_reaches_the_host_alone() {
    for era in eras() {
        bounded(async {
            let bed = Bed::new(json!({}));
            let mut host = Host::start(&bed, &era).await;
            let servers = bed.running();
            assert_eq!(servers.len(), 1);
            let interrupted = Command::new("kill")
                .args(["-INT", "--", &format!("-{}", host.pid())])
                .status();
            assert!(interrupted.unwrap().success());
            bed.until_file("decided").await;
            assert!(!bed.file("signals").exists(), "the server heard of it");
            assert_eq!(bed.running(), servers);
            bed.touch("stop");
            assert!(host.0.wait().unwrap().success());
            assert!(bed.running().is_empty());
        })
        .await;
    }
}

#[tokio::test]
async fn a_host_that_is_killed_leaves_no_server() {
    for era in eras() {
        for (script, processes) in [
            (json!({}), 1),
            (json!({"ignore_eof": true, "ignore_term": true}), 1),
            (
                json!({
                    "ignore_eof": true, "ignore_term": true,
                    "at_start": [{"fork_child": {"inherit": true, "ignore_term": true}}],
                }),
                2,
            ),
        ] {
            bounded(async {
                let bed = Bed::new(script);
                let host = Host::start(&bed, &era).await;
                assert_eq!(bed.running().len(), processes);
                kill(host.pid());
                bed.until_all_gone().await;
            })
            .await;
        }
    }
}

// ---------------------------------------------------------------------------------------- stderr

#[tokio::test]
async fn a_flood_on_stderr_is_drained_and_its_end_is_kept() {
    for era in eras() {
        bounded(async {
            let script = json!({
                "at_start": [{"stderr_bytes": 262_144}],
                "rules": [{"on": "tools/call", "tool": "charge", "do":
                    ["ledger", {"stderr_bytes": 262_144}, {"stderr": "the last words\n"}, {"exit": 3}]}],
            });
            let world = World::new(Wire::Stdio, era, script).await;
            let limits = Limits {
                stderr_tail_bytes: 1_024,
                ..Limits::default()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            server.call_tool(echo()).await.unwrap();
            let error = server.call_tool(charge()).await.unwrap_err();
            let UnknownCause::SessionEnded(Loss::Exited { exit, stderr }) = unknown(&error) else {
                panic!("{error:?}");
            };
            assert!(exit.as_deref().unwrap().ends_with('3'), "{exit:?}");
            assert!(stderr.ends_with("the last words"), "{stderr}");
            assert!(stderr.len() <= 1_024, "{} bytes", stderr.len());
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_gives_up_at_start_is_quoted() {
    for era in eras() {
        bounded(async {
            let script = json!({"at_start": [{"stderr": "no such table: tools\n"}, {"exit": 3}]});
            let world = World::new(Wire::Stdio, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            let error = server.call_tool(charge()).await.unwrap_err();
            let start = start_error(&error);
            assert_eq!(start.failure, StartFailure::EndedDuringHandshake);
            assert!(start.exit.as_deref().unwrap().ends_with('3'), "{start:?}");
            assert_eq!(start.stderr, "no such table: tools");
            let source = std::error::Error::source(&error).unwrap().to_string();
            for text in [error.to_string(), source] {
                let whole = text.contains("status: 3") && text.contains("no such table: tools");
                assert!(whole, "{text}");
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

// --------------------------------------------------------------------------------------- closing

/// What the runtime gives the farewell to a session over HTTP, and a little.
const FAREWELL: Duration = Duration::from_secs(8);

#[tokio::test]
async fn no_step_of_closing_hangs() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script = json!({
                "ignore_eof": true, "ignore_term": true,
                "rules": [
                    {"on": "DELETE", "do": ["hang"]},
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", {"touch": "running"}, "hang"]},
                ],
            });
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec().limits(short_graces())).await;
            let calling = server.share();
            let call = tokio::spawn(async move { calling.call_tool(charge()).await });
            world.bed.until_file("running").await;

            let begun = Instant::now();
            server.close().await;
            assert!(begun.elapsed() < FAREWELL, "{:?}", begun.elapsed());
            // The caller does not wait for the farewell to learn what is known.
            let error = call.await.unwrap().unwrap_err();
            assert!(matches!(unknown(&error), UnknownCause::SessionEnded(_)));
            if wire == Wire::Stdio {
                assert!(world.bed.running().is_empty());
            }
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn through_many_restarts_one_generation_works_while_at_most_one_drains() {
    for (wire, era) in everywhere() {
        bounded(async {
            // Each takes its time to go.
            let script = json!({
                "ignore_eof": true, "ignore_term": true,
                "rules": [{"on": "DELETE", "do": [{"sleep_ms": 50}, "answer"]}],
            });
            let world = World::new(wire, era, script).await;
            let limits = Limits {
                stdin_grace: Duration::from_millis(50),
                term_grace: Duration::from_millis(50),
                reconnect_grace: Duration::from_millis(10),
                ..Limits::default()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let mut events = supervisor.events();
            let mut slow = Vec::new();
            for generation in 1..=20 {
                let reached = server.reconnect().await.unwrap();
                assert_eq!(reached.number(), generation);
                let running = world.bed.running();
                assert!(running.len() <= 2, "{running:?} run");
                let answer = server.call_tool(echo()).await.unwrap();
                assert_eq!(answer.generation().number(), generation);
                // Something to drain.
                let calling = server.share();
                let call = ToolCall::new("slow", json!({"ms": 400}));
                slow.push(tokio::spawn(async move { calling.call_tool(call).await }));
                until("the slow call runs", || world.bed.ran("slow") == slow.len()).await;
            }
            for call in slow {
                // Answered, or unknown because a second generation had begun to drain.
                if let Err(error) = call.await.unwrap() {
                    unknown(&error);
                }
            }
            shut_down(supervisor).await;
            assert_at_most_two_at_a_time(&told(&mut events).await);
            assert_eq!(world.bed.ran("slow"), 20);
            assert_eq!(world.bed.ran("echo"), 20);
        })
        .await;
    }
}

#[tokio::test]
async fn a_session_that_drains_keeps_no_later_one_from_starting() {
    for era in eras() {
        bounded(async {
            let script = json!({
                "ignore_eof": true, "ignore_term": true, "rules": [
                    {"on": "tools/call", "tool": "slow", "do": [{"wait_file": "enough"}, "answer"]},
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", "close_stdout"]},
                ],
            });
            let world = World::new(Wire::Stdio, era, script).await;
            let limits = Limits {
                reconnect_grace: Duration::from_millis(10),
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let calling = server.share();
            let call = ToolCall::new("slow", json!({}));
            let slow = tokio::spawn(async move { calling.call_tool(call).await });
            until("the slow call is read", || {
                world.bed.read("tools/call") == 1
            })
            .await;
            assert_eq!(server.reconnect().await.unwrap().number(), 2);
            // The second session is lost, and its process takes its time to go.
            unknown(&server.call_tool(charge()).await.unwrap_err());
            let call = echo().deadline(Duration::from_secs(10));
            let answer = server.call_tool(call).await.unwrap();
            assert_eq!(answer.generation().number(), 3);
            assert!(world.bed.running().len() <= 2, "the first one drains");
            world.bed.touch("enough");
            let answer = slow.await.unwrap().unwrap();
            assert_eq!(answer.generation().number(), 1);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[track_caller]
fn assert_at_most_two_at_a_time(events: &[What]) {
    let (mut there, mut started) = (BTreeSet::new(), 0);
    for what in events {
        match what {
            What::SessionStarted { generation, .. } => {
                started += 1;
                there.insert(generation.number());
                assert!(there.len() <= 2, "{there:?} at a time");
            }
            What::SessionStopped { generation, .. } => {
                there.remove(&generation.number());
            }
            _ => {}
        }
    }
    assert_eq!((started, there.len()), (20, 0));
}
