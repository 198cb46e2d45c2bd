//! No layer below sends a request twice. Each test shows at the wire that the default client does,
//! and that ours does not: it fails when ours begins to, and when the default client has stopped.
#![allow(clippy::unwrap_used, reason = "also the helpers of a test may fail it")]

#[path = "no_resend/answers.rs"]
mod answers;
#[path = "no_resend/clients.rs"]
mod clients;
#[path = "no_resend/h2_server.rs"]
mod h2_server;
#[path = "no_resend/logs.rs"]
mod logs;
#[path = "no_resend/pooled.rs"]
mod pooled;
#[path = "no_resend/secrets.rs"]
mod secrets;
mod support;

use std::time::Duration;

use clients::{DefaultClient, Ours};
use h2_server::{H2Server, Refusal};
use mcp_supervisor::{ConnectionSpec, Era, HttpSpec, Limits, Outcome, evidence::NotFoundMeans};
use serde_json::{Value, json};
use support::{Bed, bounded, initialize, until};

fn both() -> [Era; 2] {
    [initialize(), Era::Discover]
}

/// How often a verb was used, and with `Last-Event-ID` or without.
fn uses(bed: &Bed, verb: &str, resuming: bool) -> usize {
    let wire = bed.wire();
    let uses = wire
        .iter()
        .filter(|r| r.method != "disconnect" && r.rest[0] == verb);
    uses.filter(|r| (r.rest.len() > 2) == resuming).count()
}

fn resumes(bed: &Bed) -> usize {
    uses(bed, "GET", true)
}

/// The session id of the first call.
fn session_of_the_call(bed: &Bed) -> String {
    let wire = bed.wire();
    wire.iter()
        .find(|r| r.method == "tools/call")
        .expect("a call was read")
        .rest[1]
        .clone()
}

#[tokio::test]
async fn a_404_on_a_live_session_makes_nobody_post_the_call_again() {
    bounded(async {
        let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "generation": 1,
            "do": ["ledger", {"expire_session": true}, {"http": {"status": 404}}]}]});

        let bed = Bed::new(script.clone());
        let server = bed.http().await;
        let client = DefaultClient::open(&server.url(), &initialize()).await;
        assert!(client.call("charge").await.expect("it is answered").is_ok());
        assert_eq!(
            (bed.read("tools/call"), bed.ran("charge")),
            (2, 2),
            "the default re-posts"
        );
        client.close().await;

        let bed = Bed::new(script);
        let server = bed.http().await;
        let ours = Ours::open(server.spec(initialize())).await;
        let error = ours.call("charge").await.unwrap_err();
        assert_eq!(
            (error.outcome(), error.http_status()),
            (Outcome::Unknown, Some(404))
        );
        assert_eq!((bed.read("tools/call"), bed.ran("charge")), (1, 1));
        assert_eq!(
            bed.read("initialize"),
            1,
            "nobody reconnects for the call that failed"
        );
        assert_eq!(ours.generation_of("echo").await, 2);
        ours.close().await;
        assert_eq!(bed.ran("charge"), 1);

        let wire = bed.wire();
        let lost = session_of_the_call(&bed);
        let call = wire.iter().position(|r| r.method == "tools/call").unwrap();
        // The standing GET was under way when the session was lost.
        let again = wire[call + 1..]
            .iter()
            .filter(|r| r.rest[0] != "GET" && r.rest[1] == lost);
        assert_eq!(
            again.count(),
            0,
            "a lost session id is not used again: {wire:#?}"
        );
        let ends = wire.iter().filter(|r| r.rest[0] == "DELETE").count();
        assert_eq!(ends, 1, "only the live session is deleted");
    })
    .await;
}

#[tokio::test]
async fn a_404_that_is_declared_not_executed_is_a_rejection_and_is_not_posted_again() {
    bounded(async {
        let bed = Bed::new(json!({"rules": [{"on": "tools/call", "generation": 1,
            "do": [{"expire_session": true}, {"http": {"status": 404}}]}]}));
        let server = bed.http().await;
        let spec = server
            .spec(initialize())
            .not_found_means(NotFoundMeans::NotExecuted);
        let ours = Ours::open(spec).await;
        assert_eq!(
            ours.call("charge").await.unwrap_err().outcome(),
            Outcome::Rejected
        );
        assert_eq!(bed.read("tools/call"), 1);
        assert_eq!(ours.generation_of("charge").await, 2);
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_redirect_is_not_followed_with_the_call() {
    for (status, era) in [307, 308]
        .into_iter()
        .flat_map(|s| both().map(|era| (s, era)))
    {
        bounded(async {
            let script = json!({"rules": [{"on": "tools/call", "tool": "charge", "nth": 1,
                "do": ["ledger", {"http": {"status": status, "headers": {"Location": "/mcp"}}}]}]});

            let bed = Bed::new(script.clone());
            let server = bed.http().await;
            let client = DefaultClient::open(&server.url(), &era).await;
            assert!(client.call("charge").await.expect("it is answered").is_ok());
            assert_eq!(bed.ran("charge"), 2, "the default follows a {status}");
            client.close().await;

            let bed = Bed::new(script);
            let server = bed.http().await;
            let ours = Ours::open(server.spec(era)).await;
            let error = ours.call("charge").await.unwrap_err();
            assert_eq!(
                (error.outcome(), error.http_status()),
                (Outcome::Unknown, Some(status))
            );
            assert_eq!((bed.ran("charge"), bed.read("tools/call")), (1, 1));
            assert_eq!(
                ours.generation_of("echo").await,
                2,
                "the session was suspect"
            );
            ours.close().await;
        })
        .await;
    }
}

/// How often a path was asked for.
fn asked(bed: &Bed, verb: &str, path: &str) -> usize {
    let messages = std::fs::read_to_string(bed.file("messages")).unwrap_or_default();
    let messages = messages
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    messages
        .filter(|m| m["http"]["method"] == verb && m["http"]["path"] == path)
        .count()
}

#[tokio::test]
async fn neither_the_standing_get_nor_the_delete_is_redirected() {
    bounded(async {
        let elsewhere = json!({"http": {"status": 307, "headers": {"Location": "/elsewhere"}}});
        let script = json!({"log_messages": true,
            "rules": [{"on": ["GET", "DELETE"], "do": [elsewhere]}]});

        let bed = Bed::new(script.clone());
        let server = bed.http().await;
        let client = DefaultClient::open(&server.url(), &initialize()).await;
        until("the default follows a GET", || {
            asked(&bed, "GET", "/elsewhere") > 0
        })
        .await;
        client.close().await;
        assert!(
            asked(&bed, "DELETE", "/elsewhere") > 0,
            "the default follows a DELETE"
        );

        let bed = Bed::new(script);
        let server = bed.http().await;
        let ours = Ours::open(server.spec(initialize())).await;
        assert_eq!(ours.generation_of("echo").await, 1);
        until("the GET was read", || asked(&bed, "GET", "/mcp") > 0).await;
        assert_eq!(
            ours.generation_of("echo").await,
            1,
            "no standing stream is no fault"
        );
        ours.close().await;
        for verb in ["GET", "DELETE"] {
            let counts = (asked(&bed, verb, "/mcp"), asked(&bed, verb, "/elsewhere"));
            assert_eq!(counts, (1, 0), "{verb}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_refused_by_http2_after_it_ran_is_not_sent_again() {
    for refusal in [Refusal::Stream, Refusal::GoAway] {
        for era in both() {
            bounded(async {
                let server = H2Server::start(refusal).await;
                let client = DefaultClient::over_http2(&server.url, &era).await;
                assert!(client.call("charge").await.expect("it ends").is_err());
                assert!(
                    server.charged() > 1,
                    "the default sends again after {refusal:?}"
                );
                client.close().await;

                let server = H2Server::start(refusal).await;
                let spec = HttpSpec::new(&server.url).http2_prior_knowledge();
                let ours = Ours::open(ConnectionSpec::from(spec).era(era)).await;
                let error = ours.call("charge").await.unwrap_err();
                assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
                assert_eq!(server.charged(), 1, "{refusal:?}");
                assert_eq!(
                    ours.generation_of("echo").await,
                    2,
                    "the session was suspect"
                );
                ours.close().await;
                assert_eq!(server.charged(), 1, "{refusal:?}");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_cut_answer_stream_is_resumed_a_few_times_by_get_and_never_by_post() {
    for end in ["cut", "close", "reset"] {
        bounded(async {
            let opened = json!({"sse": [{"id": "e1", "retry": 1, "data": ""}, end]});
            let resumed = json!({"sse": [{"id": "e2", "retry": 1, "data": ""}]});
            let script = json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", opened]},
                {"on": "resume", "do": [resumed]},
            ]});
            let limits = Limits {
                max_resumes: 2,
                ..Limits::default()
            };

            let bed = Bed::new(script.clone());
            let server = bed.http().await;
            let client = DefaultClient::open(&server.url(), &initialize()).await;
            tokio::select! {
                _ = client.call("charge") => panic!("there is no answer"),
                () = until("the default has resumed more often", || resumes(&bed) > 8) => {}
            }
            client.close().await;

            let bed = Bed::new(script);
            let server = bed.http().await;
            let ours = Ours::open(server.spec(initialize()).limits(limits)).await;
            let error = ours.call("charge").await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            assert_eq!(
                (resumes(&bed), bed.read("tools/call"), bed.ran("charge")),
                (2, 1, 1)
            );
            assert_eq!(
                ours.generation_of("echo").await,
                2,
                "the session was suspect"
            );
            ours.close().await;
            assert_eq!((resumes(&bed), bed.ran("charge")), (2, 1));
        })
        .await;
    }
}

#[tokio::test]
async fn a_resumed_stream_brings_the_answer_without_a_second_post() {
    bounded(async {
        let bed = Bed::new(json!({"rules": [
            {"on": "tools/call", "do": ["ledger", {"sse": [{"id": "e1", "retry": 1, "data": ""}, "cut"]}]},
            {"on": "resume", "do": [{"sse": [{"answer_to": "last_call"}]}]},
        ]}));
        let server = bed.http().await;
        let ours = Ours::open(server.spec(initialize())).await;
        assert_eq!(ours.generation_of("charge").await, 1);
        assert_eq!((resumes(&bed), bed.read("tools/call"), bed.ran("charge")), (1, 1, 1));
        let wire = bed.wire();
        let resume = wire.iter().find(|r| r.rest.len() > 2).unwrap();
        assert_eq!(resume.rest[1..], [session_of_the_call(&bed), "e1".into()]);
        ours.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_cut_answer_stream_is_not_resumed_without_an_event_id_or_where_the_revision_cannot() {
    let with_id = json!({"id": "e1", "retry": 1, "data": ""});
    let taken_back = json!([with_id, {"id": "", "data": ""}, "cut"]);
    for (era, events) in [
        (initialize(), json!([{"data": ""}, "cut"])),
        (initialize(), json!([{"data": ""}, "reset"])),
        (initialize(), taken_back),
        (Era::Discover, json!([{"data": ""}, "cut"])),
        (Era::Discover, json!([with_id, "cut"])),
    ] {
        bounded(async {
            let bed = Bed::new(json!({"rules": [
                {"on": "tools/call", "tool": "charge", "do": ["ledger", {"sse": events}]},
            ]}));
            let server = bed.http().await;
            let ours = Ours::open(server.spec(era)).await;
            let error = ours.call("charge").await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            assert_eq!(
                ours.generation_of("echo").await,
                2,
                "the session was suspect"
            );
            ours.close().await;
            assert_eq!((resumes(&bed), bed.ran("charge")), (0, 1));
        })
        .await;
    }
}

#[tokio::test]
async fn a_resume_that_is_told_the_session_is_over_is_the_last_use_of_its_id() {
    for status in [404, 410] {
        bounded(async {
            let bed = Bed::new(json!({"rules": [
                {"on": "tools/call", "tool": "charge", "generation": 1,
                    "do": ["ledger", {"sse": [{"id": "e1", "retry": 1, "data": ""}, "cut"]}]},
                {"on": "resume", "do": [{"http": {"status": status}}]},
            ]}));
            let server = bed.http().await;
            let ours = Ours::open(server.spec(initialize())).await;
            let error = ours.call("charge").await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::Unknown, "{error}");
            assert_eq!(ours.generation_of("echo").await, 2);
            ours.close().await;
            let lost = session_of_the_call(&bed);
            let wire = bed.wire();
            let resume = wire.iter().position(|r| r.rest.len() > 2).unwrap();
            let again = wire[resume + 1..]
                .iter()
                .filter(|r| r.rest[1] == lost)
                .count();
            assert_eq!(again, 0, "{wire:#?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_401_is_a_rejection_and_is_not_sent_again_although_it_would_now_be_accepted() {
    for era in both() {
        bounded(async {
            let challenges = ["Bearer realm=\"a\"", "Basic realm=\"b\""];
            let refusal = json!({"status": 401, "headers": {"WWW-Authenticate": challenges}});
            let bed = Bed::new(json!({"rules": [
                {"on": "tools/call", "nth": 1, "do": [{"http": refusal}]},
            ]}));
            let server = bed.http().await;
            let spec = HttpSpec::new(server.url()).bearer("stale");
            let ours = Ours::open(ConnectionSpec::from(spec).era(era)).await;
            let error = ours.call("charge").await.unwrap_err();
            let mcp_supervisor::CallError::Rejected(rejected) = &error else {
                panic!("{error}")
            };
            let challenge = rejected.challenge.as_deref().unwrap();
            assert!(
                challenges.iter().all(|c| challenge.contains(c)),
                "{challenge}"
            );
            assert_eq!((bed.read("tools/call"), bed.ran("charge")), (1, 0));
            assert_eq!(ours.generation_of("charge").await, 1, "the session is kept");
            ours.close().await;
            assert_eq!(bed.read("tools/call"), 2);
        })
        .await;
    }
}

#[tokio::test]
async fn a_wish_to_wait_is_handed_over_and_not_acted_upon() {
    for (status, outcome) in [
        (408, Outcome::Unknown),
        (425, Outcome::Unknown),
        (429, Outcome::Rejected),
        (503, Outcome::Unknown),
    ] {
        for era in both() {
            bounded(async {
                let busy = json!({"status": status, "headers": {"Retry-After": "0"}});
                let bed = Bed::new(json!({"rules": [
                    {"on": "tools/call", "nth": 1, "do": ["ledger", {"http": busy}]},
                ]}));
                let server = bed.http().await;
                let ours = Ours::open(server.spec(era)).await;
                let error = ours.call("charge").await.unwrap_err();
                assert_eq!(
                    (error.outcome(), error.http_status()),
                    (outcome, Some(status))
                );
                assert_eq!(error.retry_after(), Some("0"));
                // Another operation on the connection is no occasion either.
                ours.generation_of("echo").await;
                ours.close().await;
                assert_eq!(
                    (bed.ran("charge"), bed.read("tools/call")),
                    (1, 2),
                    "{status}"
                );
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_refusal_whose_body_never_ends_is_told_without_waiting_for_it() {
    bounded(async {
        let head = "HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\n";
        let bed = Bed::new(json!({"rules": [
            {"on": "tools/call", "nth": 1, "do": [{"raw": head}, {"wait_file": "never"}]},
        ]}));
        let server = bed.http().await;
        let ours = Ours::open(server.spec(initialize())).await;
        let calling = tokio::time::timeout(Duration::from_secs(20), ours.call("charge"));
        let error = calling.await.expect("well before its deadline").unwrap_err();
        assert_eq!((error.http_status(), error.retry_after()), (Some(503), Some("7")));
        ours.close().await;
    })
    .await;
}
