//! What depends on time, with a clock that the tests hold: in-memory parts only, so that every
//! moment is exact.

#[path = "paused/cap.rs"]
mod cap;
#[path = "paused/far_end.rs"]
mod far_end;
mod support;
#[path = "paused/writer.rs"]
mod writer;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use far_end::{FarEnd, Near, eras, eras_and_automatic};
use futures::future::join_all;
use mcp_supervisor::{
    CallError, CancellationToken, ConnectionSpec, Era, EventStream, Limits, OwnedConnection,
    Received, Supervisor, ToolAnswer, ToolCall, What,
    error::{NotSentReason, UnknownCause, Wait},
    policy::Backoff,
    spec::{KeepAlive, Overload, Recovery, WireOrder},
};
use rmcp::{
    ClientHandler, RoleClient,
    model::{ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData},
    service::RequestContext,
};
use serde_json::json;
use support::lane::{not_sent, unknown, unknown_cause};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn call(name: &str) -> ToolCall {
    ToolCall::new(name, json!({}))
}

/// A call that does not fit into the pipe.
fn big(name: &str) -> ToolCall {
    ToolCall::new(name, json!({"blob": "x".repeat(4 * far_end::PIPE)}))
}

/// The outer deadline, by the clock that the tests hold.
async fn within_an_hour(body: impl Future<Output = ()>) {
    let done = timeout(secs(3_600), body).await;
    done.expect("the test ran into its outer deadline");
}

/// A result, and the time that it took.
async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let started = Instant::now();
    let result = work.await;
    (result, started.elapsed())
}

#[track_caller]
fn expired(result: Result<ToolAnswer, CallError>) -> Wait {
    let error = result.unwrap_err();
    match not_sent(&error) {
        NotSentReason::DeadlinePassed(wait) => *wait,
        other => panic!("{other}"),
    }
}

#[track_caller]
fn ran_out(result: Result<ToolAnswer, CallError>) -> Wait {
    match unknown(result) {
        UnknownCause::DeadlinePassed(wait) => wait,
        other => panic!("{other}"),
    }
}

struct Rig {
    connection: OwnedConnection,
    events: EventStream,
    near: Near,
    _supervisor: Supervisor,
}

impl Rig {
    async fn new(era: Era, adjust: impl FnOnce(ConnectionSpec) -> ConnectionSpec) -> Self {
        let (near, open) = far_end::pipes();
        let spec = ConnectionSpec::byte_stream(open).era(era);
        Self::over(near, adjust(spec)).await
    }

    async fn over(near: Near, spec: ConnectionSpec) -> Self {
        let supervisor = Supervisor::builder().start().await.unwrap();
        let events = supervisor.events();
        let connection = supervisor.open("timed", spec).await.unwrap();
        Self {
            connection,
            events,
            near,
            _supervisor: supervisor,
        }
    }

    async fn call(&self, call: ToolCall) -> Result<ToolAnswer, CallError> {
        self.connection.call_tool(call).await
    }

    /// The first session, with one call answered on it.
    async fn warm(&mut self) -> FarEnd {
        let warming = self.connection.call_tool(call("warm"));
        let serving = async {
            let mut server = self.near.session().await;
            server.greet().await;
            server.answer_next("warm").await;
            server
        };
        let (answer, server) = tokio::join!(warming, serving);
        assert_eq!(answer.unwrap().generation().number(), 1);
        server
    }

    /// Everything that was told so far.
    async fn told(&mut self) -> Vec<What> {
        let mut told = Vec::new();
        while let Ok(Some(Received::Event(event))) = timeout(millis(1), self.events.next()).await {
            told.push(event.what.clone());
        }
        told
    }
}

fn limits(change: impl FnOnce(&mut Limits)) -> impl FnOnce(ConnectionSpec) -> ConnectionSpec {
    let mut limits = Limits::default();
    change(&mut limits);
    |spec| spec.limits(limits)
}

#[tokio::test(start_paused = true)]
async fn a_queued_request_whose_deadline_passes_is_never_written() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let mut server = rig.warm().await;
            let calls = async {
                tokio::join!(
                    rig.call(big("first").deadline(secs(30))),
                    timed(rig.call(call("second").deadline(secs(2)))),
                )
            };
            let serving = async {
                sleep(secs(5)).await;
                server.answer_next("first").await;
            };
            let ((first, (second, took)), ()) = tokio::join!(calls, serving);
            assert_eq!(first.unwrap().generation().number(), 1);
            assert_eq!((expired(second), took), (Wait::Total, secs(2)));
            // Nothing of it follows: the next frame is the next call.
            let (third, ()) = tokio::join!(rig.call(call("third")), server.answer_next("third"));
            assert_eq!(third.unwrap().generation().number(), 1);
        }
    })
    .await;
}

/// Whoever cancels waits for nobody: not for the pipe, whose reader stands still, and not for the server
/// to hear of it.
#[tokio::test(start_paused = true)]
async fn a_cancel_that_nobody_reads_is_told_in_no_time() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let mut server = rig.warm().await;
            let tokens = [(); 3].map(|()| CancellationToken::new());
            let [read, half_written, queued] = [call("read"), big("half"), call("queued")];
            let (read, half_written, queued) = (
                rig.call(read.cancelled_by(tokens[0].clone())),
                rig.call(half_written.cancelled_by(tokens[1].clone())),
                rig.call(queued.cancelled_by(tokens[2].clone())),
            );
            let cancels = async {
                assert_eq!(server.next().await["params"]["name"], "read");
                // By then the second one has filled the pipe, and nobody empties it.
                sleep(secs(5)).await;
                for token in &tokens {
                    token.cancel();
                    sleep(secs(1)).await;
                }
            };
            let all =
                async { tokio::join!(timed(read), timed(half_written), timed(queued), cancels) };
            let (read, half_written, queued, ()) = all.await;
            assert_eq!(unknown(read.0), UnknownCause::Cancelled);
            assert_eq!(unknown(half_written.0), UnknownCause::Cancelled);
            let error = queued.0.unwrap_err();
            assert!(
                matches!(not_sent(&error), NotSentReason::Cancelled),
                "{error:?}"
            );
            assert_eq!(
                (read.1, half_written.1, queued.1),
                (secs(5), secs(6), secs(7))
            );
            // The session is as good as before once the server reads again.
            let last = async {
                let mut seen = Vec::new();
                loop {
                    let message = server.next().await;
                    seen.push(message["params"]["name"].clone());
                    if message["params"]["name"] == "last" {
                        server.answer(&message).await;
                        break seen;
                    }
                }
            };
            let (answer, seen) = tokio::join!(rig.call(call("last")), last);
            assert_eq!(answer.unwrap().generation().number(), 1);
            assert!(!seen.contains(&json!("queued")), "{seen:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_shortest_limit_ends_the_wait_and_is_named() {
    within_an_hour(async {
        let cases = [
            (call("a").deadline(secs(10)), Wait::Total, 10),
            (call("b").attempt_limit(secs(3)), Wait::Attempt, 3),
            (call("c").idle_limit(secs(2)), Wait::Idle, 2),
            (
                call("d")
                    .deadline(secs(9))
                    .attempt_limit(secs(7))
                    .idle_limit(secs(8)),
                Wait::Attempt,
                7,
            ),
            (
                call("e").deadline(secs(4)).idle_limit(secs(8)),
                Wait::Total,
                4,
            ),
        ];
        for era in eras() {
            for (call, wait, after) in cases.clone() {
                let mut rig = Rig::new(era.clone(), |spec| spec).await;
                let mut server = rig.warm().await;
                let name = call.name().to_owned();
                let serving = async {
                    let request = server.next().await;
                    assert_eq!(request["params"]["name"], json!(name));
                    let cancel = server.next().await;
                    assert_eq!(cancel["method"], "notifications/cancelled");
                    assert_eq!(cancel["params"]["requestId"], request["id"]);
                };
                let ((result, took), ()) = tokio::join!(timed(rig.call(call)), serving);
                assert_eq!((ran_out(result), took), (wait, secs(after)));
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_idle_limit_is_reset_by_the_calls_own_progress_alone() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let mut server = rig.warm().await;
            let calls = async {
                tokio::join!(
                    timed(rig.call(call("busy").idle_limit(millis(500)))),
                    timed(rig.call(call("quiet").idle_limit(millis(500)))),
                    timed(rig.call(call("capped").idle_limit(millis(500)).deadline(secs(1)))),
                )
            };
            let serving = async {
                let [busy, _, capped] = [
                    server.next().await,
                    server.next().await,
                    server.next().await,
                ];
                for n in 1..=10 {
                    sleep(millis(200)).await;
                    server.progress(&busy, n).await;
                    server.progress(&capped, n).await;
                }
                server.answer(&busy).await;
            };
            let ((busy, quiet, capped), ()) = tokio::join!(calls, serving);
            assert!(busy.0.is_ok(), "{:?}", busy.0);
            assert_eq!(busy.1, secs(2));
            assert_eq!((ran_out(quiet.0), quiet.1), (Wait::Idle, millis(500)));
            assert_eq!((ran_out(capped.0), capped.1), (Wait::Total, secs(1)));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_in_a_queue_spends_the_total() {
    within_an_hour(async {
        for era in eras() {
            let one_at_a_time = limits(|l| l.max_in_flight = 1);
            let mut rig = Rig::new(era, one_at_a_time).await;
            let mut server = rig.warm().await;
            let calls = async {
                tokio::join!(
                    rig.call(call("first")),
                    timed(rig.call(call("second").deadline(secs(2)))),
                    timed(rig.call(call("third").deadline(secs(10)))),
                )
            };
            let serving = async {
                let first = server.next().await;
                sleep(secs(3)).await;
                server.answer(&first).await;
                let third = server.next().await;
                assert_eq!(third["params"]["name"], "third");
            };
            let ((first, second, third), ()) = tokio::join!(calls, serving);
            first.unwrap();
            assert_eq!((expired(second.0), second.1), (Wait::Session, secs(2)));
            assert_eq!((ran_out(third.0), third.1), (Wait::Total, secs(10)));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_place_spends_the_total_or_is_refused_at_once() {
    within_an_hour(async {
        for (overload, waited) in [(Overload::Wait, secs(4)), (Overload::Refuse, secs(0))] {
            let full = limits(|l| {
                (l.max_in_flight, l.max_queued, l.overload) = (1, 0, overload);
            });
            let mut rig = Rig::new(Era::Discover, full).await;
            let _server = rig.warm().await;
            let (first, (second, took)) = tokio::join!(
                rig.call(call("first").deadline(secs(10))),
                timed(rig.call(call("second").deadline(secs(4)))),
            );
            assert_eq!(ran_out(first), Wait::Total);
            assert_eq!(took, waited);
            let second = second.unwrap_err();
            match (overload, not_sent(&second)) {
                (Overload::Wait, NotSentReason::DeadlinePassed(Wait::Admission))
                | (
                    Overload::Refuse,
                    NotSentReason::Overloaded {
                        in_flight: 1,
                        queued: 0,
                    },
                ) => {}
                (_, other) => panic!("{other}"),
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn operations_that_wait_for_a_start_expire_one_by_one_as_not_sent() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let waits =
                [3, 1, 2].map(|n| timed(rig.connection.call_tool(call("any").deadline(secs(n)))));
            let greeting = async {
                let mut silent = rig.near.session().await;
                silent.next().await;
                silent
            };
            let (results, silent) = tokio::join!(join_all(waits), greeting);
            for ((result, took), expected) in results.into_iter().zip([3, 1, 2]) {
                assert_eq!((expired(result), took), (Wait::Session, secs(expected)));
            }
            assert_eq!(rig.near.opened(), 1);
            drop(silent);
        }
    })
    .await;
}

/// A spec whose factory fails for as long as it is told to, and when it was asked.
fn failing() -> (Near, ConnectionSpec, Arc<AtomicBool>) {
    let (near, open) = far_end::pipes();
    let fails = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&fails);
    let spec = ConnectionSpec::byte_stream(move || {
        let opening = open();
        let fails = told.load(Ordering::SeqCst);
        async move {
            let pipe = opening.await?;
            match fails {
                true => Err(std::io::Error::other("planted")),
                false => Ok(pipe),
            }
        }
    });
    (near, spec, fails)
}

#[tokio::test(start_paused = true)]
async fn failed_starts_are_followed_by_growing_waits() {
    within_an_hour(async {
        let recovery = Recovery {
            max_restarts: 100,
            backoff: Backoff {
                base: secs(10),
                cap: secs(40),
            },
            ..Recovery::default()
        };
        let (near, spec, _) = failing();
        let rig = Rig::over(near, spec.recovery(recovery)).await;
        let mut waits = Vec::new();
        for _ in 0..12 {
            let call = call("any").deadline(secs(100));
            let (result, took) = timed(rig.call(call)).await;
            let error = result.unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::StartFailed(_)));
            waits.push(took);
        }
        assert_eq!(rig.near.opened(), 12);
        let bounds = [0, 10, 20, 40, 40, 40, 40, 40, 40, 40, 40, 40].map(secs);
        // The timer's grain is a millisecond.
        let within = |(wait, bound): (&Duration, &Duration)| *wait <= *bound + millis(1);
        assert!(waits.iter().zip(&bounds).all(within), "{waits:?}");
        // With jitter each may be short; that all are is a chance of one in billions.
        assert!(waits.iter().any(|wait| *wait > secs(5)), "{waits:?}");
    })
    .await;
}

/// The clock moves as soon as everybody waits for it, so what takes no time waited for no timer.
#[tokio::test(start_paused = true)]
async fn a_start_and_a_recovery_wait_for_no_timer() {
    within_an_hour(async {
        for era in eras_and_automatic() {
            let mut rig = Rig::new(era, |spec| spec).await;
            // Between two ticks of the timer, where also a wait until now takes time.
            tokio::time::advance(Duration::from_micros(300)).await;
            let (server, took) = timed(rig.warm()).await;
            assert_eq!(took, Duration::ZERO, "the start");
            drop(server);
            let calling = async {
                // One that was under way to the old server has no answer.
                while rig.connection.call_tool(call("next")).await.is_err() {}
            };
            let serving = async {
                let mut server = rig.near.session().await;
                server.greet().await;
                server.answer_next("next").await;
                server
            };
            let (_, took) = timed(async { tokio::join!(calling, serving) }).await;
            assert_eq!(took, Duration::ZERO, "the recovery");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_wait_after_a_failed_start_spends_the_total() {
    within_an_hour(async {
        let recovery = Recovery {
            max_restarts: 100,
            backoff: Backoff {
                base: secs(1_000_000),
                cap: secs(1_000_000),
            },
            ..Recovery::default()
        };
        let (near, spec, _) = failing();
        let rig = Rig::over(near, spec.recovery(recovery)).await;
        rig.call(call("first")).await.unwrap_err();
        let (second, took) = timed(rig.call(call("second").deadline(millis(50)))).await;
        assert_eq!((expired(second), took), (Wait::Session, millis(50)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_circuit_opens_probes_after_the_cool_down_and_closes() {
    within_an_hour(async {
        let recovery = Recovery {
            max_restarts: 2,
            period: secs(1_000),
            cool_down: secs(10),
            backoff: Backoff {
                base: Duration::ZERO,
                cap: Duration::ZERO,
            },
        };
        for era in eras_and_automatic() {
            let (near, spec, fails) = failing();
            let mut rig = Rig::over(near, spec.recovery(recovery).era(era)).await;
            for _ in 0..3 {
                let error = rig.call(call("any")).await.unwrap_err();
                assert!(matches!(not_sent(&error), NotSentReason::StartFailed(_)));
            }
            let refused = |error: CallError| match not_sent(&error) {
                NotSentReason::CircuitOpen { retry_in, last } => {
                    assert!(last.is_some());
                    *retry_in
                }
                other => panic!("{other}"),
            };
            assert_eq!(refused(rig.call(call("any")).await.unwrap_err()), secs(10));
            sleep(secs(4)).await;
            assert_eq!(refused(rig.call(call("any")).await.unwrap_err()), secs(6));
            assert_eq!(rig.near.opened(), 3);

            sleep(secs(6)).await;
            let error = rig.call(call("any")).await.unwrap_err();
            assert!(matches!(not_sent(&error), NotSentReason::StartFailed(_)));
            assert_eq!(refused(rig.call(call("any")).await.unwrap_err()), secs(10));
            assert_eq!(rig.near.opened(), 4);

            sleep(secs(10)).await;
            fails.store(false, Ordering::SeqCst);
            let serving = async {
                let mut server = loop {
                    let mut server = rig.near.session().await;
                    if server.greet().await {
                        break server;
                    }
                };
                let probe = server.next().await;
                assert_ne!(
                    probe["method"], "tools/call",
                    "a tool call is never the probe"
                );
                server.answer(&probe).await;
                server.answer_next("real").await;
                server
            };
            let (real, _server) = tokio::join!(rig.connection.call_tool(call("real")), serving);
            real.unwrap();
            let changes: Vec<What> = rig
                .told()
                .await
                .into_iter()
                .filter(|what| {
                    matches!(
                        what,
                        What::CircuitOpened { .. } | What::CircuitProbed | What::CircuitClosed
                    )
                })
                .collect();
            let opened = What::CircuitOpened {
                cool_down: secs(10),
            };
            let expected = [
                opened.clone(),
                What::CircuitProbed,
                opened,
                What::CircuitProbed,
                What::CircuitClosed,
            ];
            assert_eq!(changes, expected);
        }
    })
    .await;
}

/// A probe may take longer than the discovery of a handshake.
const KEEP_ALIVE: KeepAlive = KeepAlive {
    every: secs(10),
    timeout: secs(4),
};

fn lost(told: &[What]) -> bool {
    told.iter()
        .any(|what| matches!(what, What::SessionLost { .. }))
}

#[tokio::test(start_paused = true)]
async fn one_missed_keep_alive_is_confirmed_before_anything_is_closed() {
    within_an_hour(async {
        for era in eras_and_automatic() {
            let mut rig = Rig::new(era, |spec| spec.keep_alive(KEEP_ALIVE)).await;
            let mut server = rig.warm().await;
            let heard = Instant::now();
            for _ in 0..3 {
                // The first is missed, the second is answered.
                server.next_request().await;
                let second = server.next_request().await;
                server.answer(&second).await;
            }
            sleep(millis(1)).await;
            assert!(!lost(&rig.told().await));
            // Both are missed.
            let heard_last = Instant::now();
            server.next_request().await;
            server.next_request().await;
            rig.connection
                .status_when(|s| s.state == mcp_supervisor::connection::ConnectionState::Idle)
                .await;
            let silent = heard_last.elapsed();
            assert!(silent >= secs(17) && silent <= secs(19), "{silent:?}");
            assert!(heard.elapsed() > secs(55));
            assert!(lost(&rig.told().await));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn missed_keep_alives_close_nothing_while_anything_is_heard() {
    within_an_hour(async {
        for era in eras_and_automatic() {
            let mut rig = Rig::new(era, |spec| spec.keep_alive(KEEP_ALIVE)).await;
            let mut server = rig.warm().await;
            for _ in 0..20 {
                // The probe is never answered, and something else comes while it is waited for.
                server.next_request().await;
                sleep(secs(1)).await;
                server.notify().await;
            }
            assert!(!lost(&rig.told().await));
            assert_eq!(rig.connection.status().generation.unwrap().number(), 1);
            assert_eq!(rig.near.opened(), 1);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_the_discovery_is_taken_for_an_older_one() {
    within_an_hour(async {
        let mut rig = Rig::new(Era::Automatic, limits(|l| l.discover = secs(3))).await;
        let serving = async {
            let mut server = rig.near.session().await;
            let discover = server.next().await;
            assert_eq!(discover["method"], "server/discover");
            let asked = Instant::now();
            let initialize = server.next().await;
            assert_eq!(initialize["method"], "initialize");
            assert_eq!(asked.elapsed(), secs(3));
            server.answer(&initialize).await;
            server.answer(&discover).await;
            server.answer_next("any").await;
            server
        };
        let (answer, _server) = tokio::join!(rig.connection.call_tool(call("any")), serving);
        answer.unwrap();
        let status = rig.connection.status();
        assert_eq!(status.revision.as_deref(), Some("2025-11-25"));
        assert_eq!(status.dropped.unmatched, 1, "the late answer");
        assert_eq!(rig.near.opened(), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pinned_era_waits_for_its_handshake_up_to_the_start_limit() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, limits(|l| l.start = secs(30))).await;
            let serving = async {
                let mut server = rig.near.session().await;
                sleep(secs(20)).await;
                server.greet().await;
                server.answer_next("any").await;
            };
            let (answer, ()) = tokio::join!(rig.connection.call_tool(call("any")), serving);
            assert_eq!(answer.unwrap().generation().number(), 1);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn suspicion_lasts_until_something_is_heard() {
    within_an_hour(async {
        for era in eras() {
            for heard in [true, false] {
                let mut rig = Rig::new(era.clone(), |spec| spec).await;
                let mut server = rig.warm().await;
                sleep(secs(1)).await;
                let timed_out = rig.call(call("slow").deadline(secs(1))).await;
                assert_eq!(ran_out(timed_out), Wait::Total);
                sleep(secs(1)).await;
                if heard {
                    server.notify().await;
                    sleep(secs(1)).await;
                    // The call that timed out, and its cancellation.
                    server.next().await;
                    server.next().await;
                }
                let serving = async {
                    if heard {
                        server.answer_next("next").await;
                    } else {
                        let mut second = rig.near.session().await;
                        second.greet().await;
                        second.answer_next("next").await;
                    }
                };
                let (next, ()) = tokio::join!(rig.connection.call_tool(call("next")), serving);
                let generation = if heard { 1 } else { 2 };
                assert_eq!(next.unwrap().generation().number(), generation);
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_goes_first_in_order_and_once_on_the_next_session() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let first = rig.warm().await;
            let names = ["a", "b", "c", "d", "e"];
            let calls = async {
                tokio::join!(
                    rig.connection.call_tool(big("half")),
                    join_all(names.map(|name| rig.connection.call_tool(call(name)))),
                    async {
                        sleep(secs(2)).await;
                        rig.connection.call_tool(call("later")).await
                    },
                )
            };
            let serving = async {
                sleep(secs(1)).await;
                drop(first);
                let mut second = rig.near.session().await;
                // Long enough for the later call to wait behind them.
                sleep(secs(2)).await;
                second.greet().await;
                let mut order = Vec::new();
                for _ in 0..=names.len() {
                    let request = second.next_request().await;
                    order.push(request["params"]["name"].as_str().unwrap().to_owned());
                    second.answer(&request).await;
                }
                assert!(timeout(secs(1), second.next()).await.is_err(), "once");
                order
            };
            let ((half, unsent, later), order) = tokio::join!(calls, serving);
            assert!(matches!(unknown(half), UnknownCause::SessionEnded(_)));
            assert_eq!(order, ["a", "b", "c", "d", "e", "later"]);
            for answer in unsent.into_iter().chain([later]) {
                let answer = answer.unwrap();
                assert_eq!((answer.generation().number(), answer.attempts()), (2, 1));
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_still_has_its_own_deadline() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let first = rig.warm().await;
            let calls = async {
                tokio::join!(
                    rig.connection.call_tool(big("half")),
                    timed(rig.connection.call_tool(call("short").deadline(secs(3)))),
                    rig.connection.call_tool(call("long")),
                )
            };
            let serving = async {
                sleep(secs(1)).await;
                drop(first);
                let mut second = rig.near.session().await;
                sleep(secs(4)).await;
                second.greet().await;
                second.answer_next("long").await;
            };
            let ((half, short, long), ()) = tokio::join!(calls, serving);
            unknown(half);
            assert_eq!((expired(short.0), short.1), (Wait::Session, secs(3)));
            assert_eq!(long.unwrap().generation().number(), 2);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reconnect_takes_its_place_in_the_order() {
    within_an_hour(async {
        for era in eras() {
            // The calls in front are answered in time, or not: then it waits for its grace.
            for (answered_after, opens_after) in [(secs(1), secs(1)), (secs(8), secs(2))] {
                let mut rig = Rig::new(era.clone(), |spec| spec).await;
                let mut first = rig.warm().await;
                let started = Instant::now();
                let front = join_all(["a", "b"].map(|n| rig.connection.call_tool(call(n))));
                let behind = join_all(["c", "d"].map(|n| rig.connection.call_tool(call(n))));
                let read = Notify::new();
                let in_order = async {
                    let reconnect = async {
                        let generation = rig.connection.reconnect().await.unwrap();
                        generation.number()
                    };
                    let after_the_front_is_read = async {
                        read.notified().await;
                        tokio::join!(reconnect, behind)
                    };
                    tokio::join!(front, after_the_front_is_read)
                };
                let old = async {
                    let [a, b] = [first.next().await, first.next().await];
                    read.notify_one();
                    sleep(answered_after).await;
                    first.answer(&a).await;
                    first.answer(&b).await;
                    first
                };
                let new = async {
                    let mut second = rig.near.session().await;
                    let opened = started.elapsed();
                    second.greet().await;
                    second.answer_next("c").await;
                    second.answer_next("d").await;
                    opened
                };
                let ((front, (generation, behind)), first, opened) =
                    tokio::join!(in_order, old, new);
                assert_eq!(generation, 2);
                for answer in front {
                    assert_eq!(answer.unwrap().generation().number(), 1);
                }
                for answer in behind {
                    assert_eq!(answer.unwrap().generation().number(), 2);
                }
                assert!(
                    opened >= opens_after && opened <= opens_after + millis(10),
                    "{opened:?}"
                );
                drop(first);
            }
        }
    })
    .await;
}

/// What a user's own transport does with a message cannot be seen: it counts as perhaps sent.
#[tokio::test(start_paused = true)]
async fn deadlines_hold_over_a_transport_of_the_users() {
    within_an_hour(async {
        for era in eras() {
            for order in [WireOrder::Ordered, WireOrder::Concurrent] {
                let (near, open) = far_end::pipes();
                let spec = ConnectionSpec::factory(order, open).era(era.clone());
                let mut rig = Rig::over(near, spec).await;
                let server = rig.warm().await;
                let stuck = async {
                    tokio::join!(
                        timed(rig.connection.call_tool(big("stuck").deadline(secs(5)))),
                        timed(rig.connection.call_tool(call("behind").deadline(secs(3)))),
                    )
                };
                let (stuck, behind) = stuck.await;
                assert_eq!((ran_out(stuck.0), stuck.1), (Wait::Total, secs(5)));
                assert_eq!((ran_out(behind.0), behind.1), (Wait::Total, secs(3)));
                // It is suspect, so the next call opens another.
                let serving = async {
                    let mut second = rig.near.session().await;
                    second.greet().await;
                    second.answer_next("next").await;
                };
                let (next, ()) = tokio::join!(rig.connection.call_tool(call("next")), serving);
                assert_eq!(next.unwrap().generation().number(), 2);
                drop(server);
            }
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_a_users_transport_is_told_at_once() {
    within_an_hour(async {
        for era in eras() {
            for order in [WireOrder::Ordered, WireOrder::Concurrent] {
                let (near, open) = far_end::pipes();
                let spec = ConnectionSpec::factory(order, open).era(era.clone());
                let mut rig = Rig::over(near, spec).await;
                let mut server = rig.warm().await;
                let dying = async {
                    server.next_request().await;
                    drop(server);
                };
                let ((result, took), ()) = tokio::join!(timed(rig.call(call("any"))), dying);
                let error = result.unwrap_err();
                assert!(
                    matches!(unknown_cause(&error), UnknownCause::SessionEnded(_)),
                    "{error}"
                );
                assert!(took < millis(10), "{took:?}");
            }
        }
    })
    .await;
}

/// Answers every elicitation after so long.
struct SlowPerson(Duration);

impl ClientHandler for SlowPerson {
    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        sleep(self.0).await;
        Ok(ElicitResult::new(ElicitationAction::Accept))
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_put_off_by_the_time_that_a_person_takes_and_by_no_more_than_the_bound() {
    within_an_hour(async {
        for era in eras() {
            for (hold, in_time) in [(secs(300), true), (secs(30), false)] {
                let mut rig = Rig::new(era.clone(), |spec| {
                    let limits = Limits {
                        hold,
                        ..Limits::default()
                    };
                    spec.limits(limits).handler(SlowPerson(secs(60)))
                })
                .await;
                let mut server = rig.warm().await;
                let call = call("slow").deadline(secs(10)).attempt_limit(secs(9));
                let asking = async {
                    let request = server.next_request().await;
                    sleep(secs(5)).await;
                    server.ask("q-1").await;
                    loop {
                        let answer = server.next().await;
                        if answer["id"] == "q-1" {
                            assert_eq!(answer["result"]["action"], "accept");
                            break;
                        }
                    }
                    sleep(secs(3)).await;
                    server.answer(&request).await;
                    server
                };
                let ((result, took), _server) = tokio::join!(timed(rig.call(call)), asking);
                if in_time {
                    result.unwrap();
                    assert_eq!(took.as_secs(), 68);
                } else {
                    // Five seconds, thirty that the clock stood, and the rest of the nine.
                    assert_eq!(ran_out(result), Wait::Attempt);
                    assert_eq!(took.as_secs(), 39);
                }
            }
        }
    })
    .await;
}
