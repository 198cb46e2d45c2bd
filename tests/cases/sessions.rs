//! S: sessions, recovery and health.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_supervisor::{
    Era, Limits, Outcome, Ownership, Supervisor, What,
    connection::ConnectionState,
    error::{NotSentReason, StartFailure, UnknownCause, Wait},
    policy::Backoff,
    spec::Recovery,
};
use serde_json::{Value, json};

use crate::support::{
    Bed, bounded, initialize, kill,
    logs::Logs,
    until,
    world::{
        Wire, World, charge, echo, everywhere, lend, not_sent, open, short_graces, shut_down,
        start_error, supervisor, told, unknown,
    },
};

// ------------------------------------------------------------------------ S1: a restarted server

/// Kills the server and starts it again at the same address.
async fn restart(world: &mut World) {
    let http = world.http.as_mut().expect("it is a server over HTTP");
    http.kill();
    let addr = http.addr.clone();
    world.http = Some(world.bed.http_at(&addr).await);
}

/// A connection with a session to a server that was restarted since and that answers `refusal` to
/// it. Returns what the next call gets.
async fn after_a_restart(refusal: Value, expected: Outcome) -> (World, Supervisor, String) {
    let script = json!({"unknown_session": refusal, "http_close": true});
    let mut world = World::new(Wire::Http, initialize(), script).await;
    let (supervisor, server) = open(world.spec()).await;
    server.call_tool(echo()).await.expect("it works before");
    let wire = world.bed.wire();
    let call = wire.iter().find(|r| r.method == "tools/call");
    let session = call.expect("it was read").rest[1].clone();
    restart(&mut world).await;

    let error = server.call_tool(charge()).await.expect_err("it is refused");
    assert_eq!(error.outcome(), expected, "{error}");
    assert_eq!(
        error.http_status().map(u64::from),
        refusal["status"].as_u64()
    );
    assert_eq!(
        calls_with(&world, &session),
        2,
        "one before, one after, and nothing resent"
    );
    (world, supervisor, session)
}

/// How many messages came with a session's id.
fn calls_with(world: &World, session: &str) -> usize {
    let calls = world
        .bed
        .wire()
        .into_iter()
        .filter(|r| r.method == "tools/call");
    calls.filter(|r| r.rest[1] == session).count()
}

/// How many requests of any kind came with a session's id.
fn uses_of(world: &World, session: &str) -> usize {
    world
        .bed
        .wire()
        .iter()
        .filter(|r| r.rest[1] == session)
        .count()
}

#[tokio::test]
async fn a_session_that_a_restarted_server_no_longer_knows_is_lost_and_its_id_not_used_again() {
    let no_session = json!({"jsonrpc": "2.0", "id": null,
        "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}});
    for (refusal, expected) in [
        (json!({"status": 404}), Outcome::Unknown),
        (json!({"status": 400, "body": no_session}), Outcome::Unknown),
        (json!({"status": 410}), Outcome::Rejected),
    ] {
        bounded(async {
            let (world, supervisor, lost) = after_a_restart(refusal, expected).await;
            let uses = uses_of(&world, &lost);
            let server = supervisor.connection("server").unwrap();
            let answer = server.call_tool(echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 2);
            shut_down(supervisor).await;
            assert_eq!(uses_of(&world, &lost), uses, "also not to take leave of it");
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (0, 2));
        })
        .await;
    }
}

#[tokio::test]
async fn a_503_from_a_restarted_server_makes_the_session_suspect_and_the_next_call_gets_a_new_one()
{
    bounded(async {
        let refusal = json!({"status": 503, "headers": {"Retry-After": "1"}});
        let (world, supervisor, suspect) = after_a_restart(refusal, Outcome::Unknown).await;
        let server = supervisor.connection("server").unwrap();
        let answer = server.call_tool(echo()).await.unwrap();
        assert_eq!(answer.generation().number(), 2);
        assert_eq!(calls_with(&world, &suspect), 2);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn a_401_from_a_restarted_server_keeps_the_session_and_its_challenge() {
    bounded(async {
        let refusal = json!({"status": 401, "headers": {"WWW-Authenticate": "Bearer realm=\"m\""}});
        let (world, supervisor, kept) = after_a_restart(refusal, Outcome::Rejected).await;
        let server = supervisor.connection("server").unwrap();
        let error = server.call_tool(charge()).await.unwrap_err();
        let mcp_supervisor::CallError::Rejected(rejected) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(rejected.challenge.as_deref(), Some("Bearer realm=\"m\""));
        assert_eq!(rejected.about.generation.unwrap().number(), 1);
        assert_eq!(calls_with(&world, &kept), 3, "each operation once");
        // What ends it is the operator's word.
        server.reconnect().await.unwrap();
        let answer = server.call_tool(echo()).await.unwrap();
        assert_eq!(answer.generation().number(), 2);
        assert_eq!(world.bed.ran("charge"), 0);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn without_sessions_a_restart_of_the_server_goes_unnoticed() {
    bounded(async {
        let mut world = World::new(Wire::Http, Era::Discover, json!({"http_close": true})).await;
        let (supervisor, server) = open(world.spec()).await;
        for _ in 0..2 {
            let answer = server.call_tool(charge()).await.unwrap();
            assert_eq!(answer.generation().number(), 1);
            restart(&mut world).await;
        }
        assert_eq!(world.bed.ran("charge"), 2);
        shut_down(supervisor).await;
    })
    .await;
}

#[tokio::test]
async fn calls_work_again_as_soon_as_the_server_does() {
    for era in [initialize(), Era::Discover] {
        bounded(async {
            let mut world = World::new(Wire::Http, era, json!({"http_close": true})).await;
            let (supervisor, server) = open(world.spec()).await;
            server.call_tool(echo()).await.unwrap();
            world.http.as_mut().unwrap().kill();
            let error = server.call_tool(charge()).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotSent, "{error}");
            restart(&mut world).await;
            server.call_tool(echo()).await.unwrap();
            assert_eq!((world.bed.ran("charge"), world.bed.ran("echo")), (0, 2));
            shut_down(supervisor).await;
        })
        .await;
    }
}

// -------------------------------------------------- S2: a server that greets and nothing else

#[tokio::test]
async fn a_server_that_only_greets_opens_the_circuit_and_neither_loop_nor_log_runs_hot() {
    let recovery = Recovery {
        max_restarts: 2,
        period: Duration::from_secs(60),
        cool_down: Duration::from_secs(60),
        backoff: Backoff {
            base: Duration::from_millis(20),
            cap: Duration::from_millis(40),
        },
    };
    for (wire, era) in everywhere() {
        let step = match wire {
            Wire::Stdio => json!({"exit": 1}),
            Wire::Http => json!({"http": {"status": 500}}),
        };
        bounded(async {
            let (logs, _listening) = Logs::listen();
            let rules =
                json!({"rules": [{"on": ["tools/call", "tools/list", "ping"], "do": [step]}]});
            let world = World::new(wire, era, rules).await;
            let (supervisor, server) = open(world.spec().recovery(recovery)).await;
            let mut events = supervisor.events();
            // Each loss gives the next call a new session, as often as is permitted.
            for _ in 0..3 {
                let error = server.call_tool(charge()).await.unwrap_err();
                assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            }
            let mut refused = Vec::new();
            let mut lines = 0;
            for i in 0..200 {
                let error = server.call_tool(charge()).await.unwrap_err();
                let NotSentReason::CircuitOpen { retry_in, .. } = not_sent(&error) else {
                    panic!("{error:?}");
                };
                let open_for = server.status().circuit_open_for;
                assert!(open_for.is_some_and(|d| d <= *retry_in), "{open_for:?}");
                refused.push(*retry_in);
                if i == 0 {
                    lines = logs.count();
                }
            }
            assert_eq!(world.bed.read(world.opening()), 3, "no tight loop");
            assert_eq!(world.bed.read("tools/call"), 3);
            assert_eq!(logs.count(), lines, "no log flood: {}", logs.text());
            assert!(lines < 40, "{}", logs.text());
            // It says when to come back, and the time passes.
            assert!(refused.iter().all(|t| *t <= recovery.cool_down));
            assert!(refused.is_sorted_by(|a, b| a >= b));
            let opened = told(&mut events).await.into_iter().filter(|what| {
                *what
                    == What::CircuitOpened {
                        cool_down: recovery.cool_down,
                    }
            });
            assert_eq!(opened.count(), 1, "the state is told once");
            assert_ne!(server.status().state, ConnectionState::Starting);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn after_the_cool_down_a_probe_decides_and_a_tool_call_is_never_the_probe() {
    let recovery = Recovery {
        max_restarts: 0,
        cool_down: Duration::from_millis(300),
        ..Recovery::default()
    };
    for (wire, era) in everywhere() {
        bounded(async {
            // The first session dies of its call. Of the probes, the first is not answered well.
            let script = json!({"http_close": true, "rules": [
                {"on": "tools/call", "generation": 1, "nth": 1, "do": ["ledger", {"exit": 1}]},
            ]});
            let mut world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec().recovery(recovery)).await;
            let mut events = supervisor.events();
            server.call_tool(charge()).await.unwrap_err();
            // Over HTTP the session is suspect, and its retirement is what counts.
            let error = server.call_tool(echo()).await.unwrap_err();
            assert!(
                matches!(not_sent(&error), NotSentReason::CircuitOpen { .. }),
                "{error:?}"
            );
            if wire == Wire::Http {
                restart(&mut world).await;
            }
            tokio::time::sleep(recovery.cool_down).await;
            let answer = server.call_tool(echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 2);
            let methods: Vec<_> = world.bed.wire().into_iter().map(|r| r.method).collect();
            let probe = if world.era == Era::Discover {
                "server/discover"
            } else {
                "ping"
            };
            let at = |method: &str| methods.iter().rposition(|m| m == method);
            assert!(at(probe) < at("tools/call"), "{methods:?}");
            let told = told(&mut events).await;
            let circuit: Vec<_> = told
                .iter()
                .filter(|w| {
                    matches!(
                        w,
                        What::CircuitOpened { .. } | What::CircuitProbed | What::CircuitClosed
                    )
                })
                .collect();
            assert!(
                matches!(
                    circuit[..],
                    [
                        What::CircuitOpened { .. },
                        What::CircuitProbed,
                        What::CircuitClosed
                    ]
                ),
                "{circuit:?}"
            );
            shut_down(supervisor).await;
        })
        .await;
    }
}

// ------------------------------------------------------- S3: many callers after an idle loss

#[tokio::test]
async fn callers_who_come_together_after_an_idle_loss_share_one_reconnect() {
    for (wire, era) in everywhere() {
        bounded(async {
            let script =
                json!({"http_close": true, "rules": [{"on": "GET", "do": [{"sse": [{"comment": "here"}, {"touch": "streaming"}, "hang"]}]}]});
            let mut world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec()).await;
            server.call_tool(echo()).await.unwrap();
            match wire {
                Wire::Stdio => {
                    kill(world.bed.running()[0]);
                    server
                        .status_when(|s| s.state == ConnectionState::Idle)
                        .await;
                }
                Wire::Http => {
                    // The standing stream of the older era ends, which makes the session suspect.
                    if world.era == initialize() {
                        world.bed.until_file("streaming").await;
                    }
                    restart(&mut world).await;
                    if world.era == initialize() {
                        until("the end of the stream is seen", || server.status().suspect).await;
                    }
                }
            }
            let calls: Vec<_> = (0..8)
                .map(|_| {
                    let server = server.share();
                    tokio::spawn(async move { server.call_tool(charge()).await })
                })
                .collect();
            let expected = if world.is_modern_http() { 1 } else { 2 };
            for call in calls {
                let answer = call.await.unwrap().unwrap();
                assert_eq!(answer.generation().number(), expected);
            }
            assert_eq!(world.bed.ran("charge"), 8);
            assert_eq!(
                world.bed.read(world.opening()),
                usize::try_from(expected).unwrap()
            );
            shut_down(supervisor).await;
        })
        .await;
    }
}

// ------------------------------------------------------------- S4: a lent client that is closed

/// Sessions opened, connections accepted, and messages received: what a reconnect would raise.
fn traffic(bed: &Bed) -> (usize, usize, usize) {
    let opened = bed.read("initialize") + bed.read("server/discover");
    let connects = std::fs::read_to_string(bed.file("connects")).unwrap_or_default();
    (opened, connects.lines().count(), bed.wire().len())
}

#[tokio::test]
async fn a_lent_client_that_its_owner_closed_is_neither_reconnected_nor_closed_again() {
    for (wire, era) in everywhere() {
        for as_peer in [false, true] {
            bounded(async {
                let world = World::new(wire, era.clone(), json!({})).await;
                let supervisor = supervisor().await;
                let mut client = world.client().await;
                let server = lend(&supervisor, &client, as_peer).await;
                server.call_tool(echo()).await.unwrap();
                client.close().await.unwrap();
                let before = traffic(&world.bed);

                for _ in 0..3 {
                    let begun = Instant::now();
                    let error = server.call_tool(charge()).await.unwrap_err();
                    assert!(begun.elapsed() < Duration::from_secs(2));
                    assert!(matches!(not_sent(&error), NotSentReason::CallerOwnedClosed));
                    let ownership = match as_peer {
                        true => Ownership::LentPeer,
                        false => Ownership::LentService,
                    };
                    assert_eq!(error.ownership(), ownership);
                    assert!(error.next_step().contains("replacement"), "{error}");
                }
                shut_down(supervisor).await;
                assert_eq!(
                    traffic(&world.bed),
                    before,
                    "(sessions, connects, messages)"
                );
                assert_eq!(world.bed.ran("charge"), 0);
            })
            .await;
        }
    }
}

// ----------------------------------------------------------------------- S5: two limits

#[tokio::test]
async fn a_call_that_runs_out_of_time_does_not_end_a_start_that_has_more() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = opening_waits(wire, era).await;
            let (supervisor, server) = open(world.spec()).await;
            let call = charge().deadline(Duration::from_millis(400));
            let begun = Instant::now();
            let error = server.call_tool(call).await.unwrap_err();
            assert!(begun.elapsed() >= Duration::from_millis(400));
            assert!(
                matches!(
                    not_sent(&error),
                    NotSentReason::DeadlinePassed(Wait::Session)
                ),
                "{error:?}"
            );
            assert_eq!(server.status().state, ConnectionState::Starting);
            world.bed.touch("go");
            let answer = server.call_tool(echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 1);
            assert_eq!(world.bed.read(world.opening()), 1);
            assert_eq!(world.bed.ran("charge"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_start_that_runs_out_of_time_fails_although_its_call_has_more() {
    for (wire, era) in everywhere() {
        bounded(async {
            let world = opening_waits(wire, era).await;
            let start = Duration::from_millis(400);
            let limits = Limits {
                start,
                ..short_graces()
            };
            let (supervisor, server) = open(world.spec().limits(limits)).await;
            let call = charge().deadline(Duration::from_secs(50));
            let error = server.call_tool(call).await.unwrap_err();
            let failure = &start_error(&error).failure;
            assert_eq!(*failure, StartFailure::TimedOut { limit: start });
            assert_eq!(world.bed.ran("charge"), 0);
            shut_down(supervisor).await;
        })
        .await;
    }
}

/// A server that answers the greeting when there is a file `go`.
async fn opening_waits(wire: Wire, era: Era) -> World {
    let script = json!({"rules": [
        {"on": ["initialize", "server/discover"], "do": [{"wait_file": "go"}, "answer"]},
    ]});
    World::new(wire, era, script).await
}

// --------------------------------------------------------------------- S6: what health comes from

#[tokio::test]
async fn an_open_socket_is_no_proof_of_health() {
    for (wire, era) in everywhere() {
        bounded(async {
            // The first session hears everything and answers nothing; its socket stays open.
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", {"wait_file": "never"}]},
            ]});
            let world = World::new(wire, era, script).await;
            let (supervisor, server) = open(world.spec().limits(short_graces())).await;
            for generation in [1, 2] {
                let call = charge().deadline(Duration::from_millis(400));
                let error = server.call_tool(call).await.unwrap_err();
                assert!(
                    matches!(unknown(&error), UnknownCause::DeadlinePassed(Wait::Total)),
                    "{error:?}"
                );
                assert_eq!(error.about().generation.unwrap().number(), generation);
            }
            // Where calls are answered beside it, one that is not says nothing about the session.
            let server = Arc::new(server.share());
            let beside = Arc::clone(&server);
            let slow = tokio::spawn(async move {
                beside
                    .call_tool(charge().deadline(Duration::from_millis(600)))
                    .await
            });
            crate::support::until("it runs", || world.bed.ran("charge") == 3).await;
            let answer = server.call_tool(echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 3);
            slow.await.unwrap().unwrap_err();
            let answer = server.call_tool(echo()).await.unwrap();
            assert_eq!(answer.generation().number(), 3);
            shut_down(supervisor).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_lent_connection_is_tried_whatever_its_last_calls_experienced() {
    for (wire, era) in everywhere() {
        for as_peer in [false, true] {
            bounded(async {
                let script = json!({"rules": [
                    {"on": "tools/call", "tool": "charge", "do": ["ledger", {"wait_file": "never"}]},
                ]});
                let world = World::new(wire, era.clone(), script).await;
                let supervisor = supervisor().await;
                let client = world.client().await;
                let server = lend(&supervisor, &client, as_peer).await;
                for _ in 0..2 {
                    let call = charge().deadline(Duration::from_millis(400));
                    let error = server.call_tool(call).await.unwrap_err();
                    assert!(matches!(unknown(&error), UnknownCause::DeadlinePassed(_)));
                }
                server.call_tool(echo()).await.unwrap();
                assert_eq!(world.bed.read(world.opening()), 1);
                shut_down(supervisor).await;
            })
            .await;
        }
    }
}

/// The answer came on the standing stream, and its own exchange broke before the caller looked.
#[tokio::test]
async fn an_answer_that_was_read_is_the_answer_whatever_becomes_of_its_exchange() {
    bounded(async {
        let script = json!({"rules": [
            {"on": "GET", "do": [{"sse": [
                {"comment": "here"}, {"wait_file": "answer"}, {"answer_to": "last_call"}, "hang",
            ]}]},
            {"on": "tools/call", "do": ["ledger", {"touch": "charged"}, {"wait_file": "go"}, "reset"]},
        ]});
        let world = World::new(Wire::Http, initialize(), script).await;
        let (supervisor, server) = open(world.spec()).await;
        let mut call = Box::pin(server.call_tool(charge()));
        tokio::select! {
            biased;
            done = &mut call => panic!("{done:?}"),
            () = world.bed.until_file("charged") => {}
        }
        // Nobody looks meanwhile.
        world.bed.touch("answer");
        tokio::time::sleep(Duration::from_millis(200)).await;
        world.bed.touch("go");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let answer = call.await.unwrap();
        assert_eq!((answer.generation().number(), world.bed.ran("charge")), (1, 1));
        shut_down(supervisor).await;
    })
    .await;
}
