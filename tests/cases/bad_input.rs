//! Input that nobody should send: each a typed error that says what to do, nothing lost, and a
//! connection that works afterwards.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mcp_supervisor::{
    CallError, Connection, ConnectionSpec, CustomCall, Era, HttpSpec, Limits, Outcome, Page,
    PromptGet, ResourceRead, StdioSpec, Supervisor, ToolCall,
    error::{AddError, InvalidRequest, NotSentReason, StartFailure, UnknownCause},
    evidence::WireFault,
    operation::NameError,
    spec::{KeepAlive, WireOrder},
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{
    Bed, bounded, example, initialize,
    lane::{BOTH, Over, Rig, lanes, not_sent, unknown_cause},
};

/// Whatever is refused says what to do, fits a log line, and does not repeat what it was given.
#[track_caller]
fn says_what_to_do(error: &CallError) {
    let text = error.to_string();
    assert!(text.contains(error.next_step()), "{text}");
    assert!(text.len() < 1_000 && !text.contains('\n'), "{text}");
    assert!(std::error::Error::source(error).is_some(), "{text}");
}

#[track_caller]
fn invalid(result: Result<impl std::fmt::Debug, CallError>) -> InvalidRequest {
    let error = result.unwrap_err();
    says_what_to_do(&error);
    match not_sent(&error) {
        NotSentReason::Invalid(invalid) => invalid.clone(),
        other => panic!("{other}"),
    }
}

#[track_caller]
fn start_failure(error: &CallError) -> StartFailure {
    says_what_to_do(error);
    match not_sent(error) {
        NotSentReason::StartFailed(start) => start.failure.clone(),
        other => panic!("{other}"),
    }
}

/// One operation of each kind that has a result of its own.
async fn each_operation(connection: &Connection) -> [(&'static str, Result<(), CallError>); 6] {
    let first = Page::first;
    [
        (
            "tools/call",
            connection
                .call_tool(ToolCall::new("charge", json!({})))
                .await
                .map(drop),
        ),
        ("tools/list", connection.list_tools(first()).await.map(drop)),
        (
            "prompts/list",
            connection.list_prompts(first()).await.map(drop),
        ),
        (
            "prompts/get",
            connection
                .get_prompt(PromptGet::new("greet"))
                .await
                .map(drop),
        ),
        (
            "resources/list",
            connection.list_resources(first()).await.map(drop),
        ),
        (
            "resources/read",
            connection
                .read_resource(ResourceRead::new("mem://note"))
                .await
                .map(drop),
        ),
    ]
}

#[tokio::test]
async fn a_command_that_cannot_be_run_is_named_and_works_once_it_can() {
    for era in [initialize(), Era::Discover] {
        bounded(async {
            let bed = Bed::new(json!({}));
            let supervisor = Supervisor::builder().start().await.unwrap();
            let command = bed.file("server");
            let plain_file = bed.file("plain");
            let missing_dir = bed.file("missing");
            std::fs::write(&plain_file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&plain_file, PermissionsExt::from_mode(0o644)).unwrap();
            let with_dir = |command: &std::path::Path| {
                let spec = StdioSpec::new(command)
                    .arg("stdio")
                    .arg("--dir")
                    .arg(bed.path());
                ConnectionSpec::from(spec).era(era.clone())
            };
            let cwd = StdioSpec::new(example("fault_server"))
                .cwd(&missing_dir)
                .arg("stdio");
            let cwd = ConnectionSpec::from(cwd).era(era.clone());
            let gone = supervisor.open("gone", with_dir(&command)).await.unwrap();
            let plain = supervisor
                .open("plain", with_dir(&plain_file))
                .await
                .unwrap();
            let nowhere = supervisor.open("nowhere", cwd).await.unwrap();

            let echo = || ToolCall::new("echo", json!({}));
            let failure = start_failure(&gone.call_tool(echo()).await.unwrap_err());
            assert!(
                matches!(failure, StartFailure::CommandNotFound { .. }),
                "{failure}"
            );
            let failure = start_failure(&plain.call_tool(echo()).await.unwrap_err());
            assert!(
                matches!(failure, StartFailure::NotExecutable { .. }),
                "{failure}"
            );
            let failure = start_failure(&nowhere.call_tool(echo()).await.unwrap_err());
            assert!(
                failure.to_string().contains("working directory"),
                "{failure}"
            );

            symlink(example("fault_server"), &command).unwrap();
            std::fs::remove_file(&plain_file).unwrap();
            symlink(example("fault_server"), &plain_file).unwrap();
            std::fs::create_dir(&missing_dir).unwrap();
            for connection in [&gone, &plain, &nowhere] {
                connection.call_tool(echo()).await.unwrap();
            }
            let _ = supervisor.shutdown(Duration::from_secs(2)).await;
            bed.until_all_gone().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_spec_that_cannot_be_run_is_refused_before_anything_starts() {
    bounded(async {
        let supervisor = Supervisor::builder().start().await.unwrap();
        let http = |url: &str| ConnectionSpec::from(HttpSpec::new(url));
        let limits = |change: fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            ConnectionSpec::from(StdioSpec::new("server")).limits(limits)
        };
        let header = |name: &str, value: &str| {
            ConnectionSpec::from(HttpSpec::new("http://127.0.0.1:1/").header(name, value))
        };
        let keep_alive = KeepAlive {
            every: Duration::ZERO,
            timeout: Duration::from_secs(1),
        };
        let bad: Vec<(ConnectionSpec, &str)> = vec![
            (http("ftp://127.0.0.1/mcp"), "http://"),
            (http("127.0.0.1:80/mcp"), "http://"),
            (http(""), "http://"),
            (http("http://"), "url"),
            (http("http:///mcp"), "url"),
            (http("http://[::1/mcp"), "url"),
            (http("http://127.0.0.1:99999/"), "url"),
            (header("x-secret\r\n", "hush-hush"), "header name"),
            (header("x-secret", "hush-hush\r\nx: y"), "value"),
            (header("mcp-session-id", "hush-hush"), "protocol"),
            (
                HttpSpec::new("http://127.0.0.1:1/")
                    .bearer("hush-hush\n")
                    .into(),
                "bearer",
            ),
            (StdioSpec::new("").into(), "name the program"),
            (StdioSpec::new("a\0b").into(), "NUL"),
            (StdioSpec::new("a").arg("hush-hush\0").into(), "NUL"),
            (StdioSpec::new("a").env("K", "hush-hush\0").into(), "NUL"),
            (limits(|l| l.total = Duration::ZERO), "total"),
            (limits(|l| l.attempt = Some(Duration::ZERO)), "attempt"),
            (
                limits(|l| l.attempt = Some(Duration::from_secs(61))),
                "raise",
            ),
            (limits(|l| l.start = Duration::ZERO), "start"),
            (limits(|l| l.max_in_flight = 0), "max_in_flight"),
            (limits(|l| l.max_answer_bytes = 0), "max_answer_bytes"),
            (limits(|l| l.discover = Duration::from_secs(10)), "9 s"),
            (StdioSpec::new("a").into(), "keep_alive"),
        ];
        for (spec, says) in bad {
            let spec = if says == "keep_alive" {
                spec.keep_alive(keep_alive)
            } else {
                spec
            };
            let error = supervisor.open("case", spec).await.unwrap_err();
            assert!(matches!(error, AddError::Spec { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(says), "{text} should say {says}");
            assert!(!text.contains("hush"), "{text}");
        }
        assert!(supervisor.names().is_empty());
        // The name is free for a spec that can be run.
        let bed = Bed::new(json!({}));
        let works = supervisor
            .open("case", bed.stdio_spec(initialize()))
            .await
            .unwrap();
        works
            .call_tool(ToolCall::new("echo", json!({})))
            .await
            .unwrap();
        let twice = supervisor.open("case", bed.stdio_spec(initialize())).await;
        assert!(matches!(twice, Err(AddError::Duplicate(_))));
        let _ = supervisor.shutdown(Duration::from_secs(2)).await;
        bed.until_all_gone().await;
    })
    .await;
}

#[tokio::test]
async fn a_zero_or_inverted_deadline_is_refused_unsent() {
    let second = Duration::from_secs(1);
    let call = || ToolCall::new("charge", json!({}));
    let zero = |what| InvalidRequest::ZeroBudget { what };
    let inverted = InvalidRequest::InvertedBudget {
        attempt: 2 * second,
        total: second,
    };
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let rig = Rig::new(over, era, json!({})).await;
            for (call, expected) in [
                (call().deadline(Duration::ZERO), zero("deadline")),
                (call().attempt_limit(Duration::ZERO), zero("attempt limit")),
                (call().idle_limit(Duration::ZERO), zero("idle limit")),
                (
                    call().deadline(second).attempt_limit(2 * second),
                    inverted.clone(),
                ),
            ] {
                assert_eq!(invalid(rig.connection.call_tool(call).await), expected);
            }
            let page = Page::first().deadline(Duration::ZERO);
            assert_eq!(
                invalid(rig.connection.list_tools(page).await),
                zero("deadline")
            );
            assert!(rig.bed.wire().is_empty(), "not even a session was started");
            // The farthest deadline that can be written down is one.
            let far = call().deadline(Duration::MAX);
            rig.connection.call_tool(far).await.unwrap();
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_refused_unsent() {
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let rig = Rig::new(over, era, json!({})).await;
            rig.echo().await;
            for (arguments, found) in [
                (json!([1]), "an array"),
                (json!("text"), "a string"),
                (json!(7), "a number"),
                (json!(true), "a boolean"),
            ] {
                let expected = InvalidRequest::ArgumentsNotAnObject { found };
                assert_eq!(invalid(rig.call("charge", arguments).await), expected);
            }
            assert_eq!(rig.bed.read("tools/call"), 1);
            rig.call("charge", Value::Null).await.unwrap();
            assert_eq!(rig.bed.ran("charge"), 1);
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn names_with_nul_or_10_kb_are_refused_unsent_and_unrepeated() {
    let names = ["a\0hush".to_owned(), "hush".repeat(2_560), String::new()];
    for (over, era) in lanes(&BOTH) {
        bounded(async {
            let rig = Rig::new(over, era, json!({})).await;
            let connection = &rig.connection;
            let prompt = |name: &str| PromptGet::new(name);
            for name in &names {
                let refused = [
                    invalid(connection.call_tool(ToolCall::new(name, json!({}))).await),
                    invalid(connection.get_prompt(prompt(name)).await),
                    invalid(connection.request(CustomCall::new(name, None)).await),
                ];
                for refused in refused {
                    assert!(!refused.to_string().contains("hush"), "{refused}");
                    assert!(matches!(refused, InvalidRequest::Name(_)), "{refused}");
                }
                let opened = rig.supervisor.open(name, StdioSpec::new("x")).await;
                assert!(matches!(opened, Err(AddError::Name(_))), "{opened:?}");
            }
            let nul = invalid(
                connection
                    .read_resource(ResourceRead::new("mem://\0"))
                    .await,
            );
            assert!(matches!(
                nul,
                InvalidRequest::Name(NameError::ControlCharacter { code: 0, at: 6, .. })
            ));
            for method in ["initialize", "server/discover"] {
                let reserved = invalid(connection.request(CustomCall::new(method, None)).await);
                assert_eq!(reserved, InvalidRequest::ReservedMethod);
            }
            assert!(rig.bed.wire().is_empty());
            // A URI of 10 kB is a URI.
            let long = format!("mem://{}", "x".repeat(10_240));
            connection
                .read_resource(ResourceRead::new(long))
                .await
                .unwrap();
            rig.echo().await;
            rig.finish().await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_of_the_wrong_type_is_a_typed_error_of_that_call_alone() {
    let wrong = [
        json!({"unheard": "of"}),
        json!("text"),
        json!(42),
        json!({"tools": 1, "prompts": 1, "resources": 1, "contents": 1, "messages": 1, "content": 1}),
    ];
    for (over, era) in lanes(&BOTH) {
        for result in &wrong {
            for answers in ["json", "sse"] {
                if (over, answers) == (Over::Stdio, "sse") {
                    continue;
                }
                bounded(async {
                    let methods = [
                        "tools/call",
                        "tools/list",
                        "prompts/list",
                        "prompts/get",
                        "resources/list",
                        "resources/read",
                    ];
                    // Sent as it is: nothing is added to make it a result of the era.
                    let message = json!({"jsonrpc": "2.0", "id": "$id", "result": result});
                    let steps = if over == Over::Stdio || answers == "sse" {
                        json!(["ledger", {"send": message}])
                    } else {
                        json!(["ledger", {"http": {"status": 200, "body": message}}])
                    };
                    let script = json!({"rules": [{"on": methods, "nth": 1, "do": steps}]});
                    let rules: Vec<Value> = methods
                        .iter()
                        .map(|m| json!({"on": m, "nth": 1, "do": script["rules"][0]["do"]}))
                        .collect();
                    let rig = Rig::new(over, era.clone(), json!({"rules": rules})).await;
                    for (method, result) in each_operation(&rig.connection).await {
                        let error = result.unwrap_err();
                        assert_eq!(error.outcome(), Outcome::Unknown, "{method}: {error}");
                        assert!(
                            matches!(
                                unknown_cause(&error),
                                UnknownCause::WrongType(_)
                                    | UnknownCause::Wire(WireFault::BadAnswer(_))
                            ),
                            "{over:?} {answers} {method}: {error:?}"
                        );
                    }
                    for (method, result) in each_operation(&rig.connection).await {
                        assert!(result.is_ok(), "{method}: {result:?}");
                    }
                    assert_eq!(rig.bed.ran("charge"), 2);
                    rig.finish().await;
                })
                .await;
            }
        }
    }
}

/// Answers that are JSON and no JSON-RPC, or JSON-RPC and no answer.
#[tokio::test]
async fn an_answer_that_is_no_message_ends_its_call_and_nothing_else() {
    let broken = [
        r#"{"jsonrpc":"2.0","id":${id},"error":"boom"}"#,
        r#"{"jsonrpc":"2.0","id":${id}}"#,
        r#"{"jsonrpc":"1.0","id":${id},"result":{}}"#,
        r#"{"id":${id},"result":"#,
        r#"{"jsonrpc":"2.0","id":${id},"result":{"content":[{"type":"text","text":"#,
    ];
    for (over, era) in lanes(&BOTH) {
        for frame in broken {
            for answers in ["json", "sse"] {
                if (over, answers) == (Over::Stdio, "sse") {
                    continue;
                }
                bounded(async {
                    let step = match (over, answers) {
                        (Over::Stdio, _) => json!({"raw": format!("{frame}\n")}),
                        (_, "sse") => json!({"sse": [{"data": frame}]}),
                        _ => json!({"http": {"status": 200, "body": frame,
                            "content_type": "application/json"}}),
                    };
                    let script = json!({"rules": [
                        {"on": "tools/call", "tool": "charge", "do": ["ledger", step]}
                    ]});
                    let rig = Rig::new(over, era.clone(), script).await;
                    rig.echo().await;
                    let error = rig.call("charge", json!({})).await.unwrap_err();
                    says_what_to_do(&error);
                    assert!(
                        matches!(
                            unknown_cause(&error),
                            UnknownCause::Wire(
                                WireFault::BadAnswer(_) | WireFault::StreamEnded { .. }
                            )
                        ),
                        "{over:?} {era:?} {answers} {frame}: {error:?}"
                    );
                    rig.echo().await;
                    assert_eq!(rig.bed.ran("charge"), 1);
                    rig.finish().await;
                })
                .await;
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the factory has no socket")]
struct NoSocket;

/// What a factory of the user's does the first time that it is asked.
#[derive(Clone, Copy, Debug)]
enum Fails {
    WithAnError,
    ByAPanic,
    ByAPanicBeforeItsFuture,
}

impl Fails {
    const ALL: [Self; 3] = [
        Self::WithAnError,
        Self::ByAPanic,
        Self::ByAPanicBeforeItsFuture,
    ];

    fn at_once(self, attempt: usize) {
        if attempt == 0 && matches!(self, Self::ByAPanicBeforeItsFuture) {
            panic!("planted in the factory");
        }
    }

    fn later(self, attempt: usize) -> Result<(), NoSocket> {
        match self {
            Self::WithAnError if attempt == 0 => Err(NoSocket),
            Self::ByAPanic if attempt == 0 => panic!("planted in the factory's future"),
            _ => Ok(()),
        }
    }

    fn byte_stream(self, bed: Arc<Bed>) -> ConnectionSpec {
        let asked = AtomicUsize::new(0);
        ConnectionSpec::byte_stream(move || {
            let attempt = asked.fetch_add(1, Ordering::SeqCst);
            self.at_once(attempt);
            let bed = Arc::clone(&bed);
            async move {
                self.later(attempt)?;
                let mut server = Command::from(bed.command("stdio"));
                let mut server = server
                    .stdin(std::process::Stdio::piped())
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap();
                let pipes = (server.stdout.take().unwrap(), server.stdin.take().unwrap());
                Ok::<_, NoSocket>(pipes)
            }
        })
    }

    fn transport(self, bed: Arc<Bed>) -> ConnectionSpec {
        let asked = AtomicUsize::new(0);
        ConnectionSpec::factory(WireOrder::Ordered, move || {
            let attempt = asked.fetch_add(1, Ordering::SeqCst);
            self.at_once(attempt);
            let bed = Arc::clone(&bed);
            async move {
                self.later(attempt)?;
                let server = Command::from(bed.command("stdio"));
                Ok::<_, NoSocket>(rmcp::transport::TokioChildProcess::new(server).unwrap())
            }
        })
    }
}

#[tokio::test]
async fn a_factory_that_fails_or_panics_is_a_failed_start_and_is_asked_again() {
    for fails in Fails::ALL {
        for era in [initialize(), Era::Discover] {
            for of_streams in [true, false] {
                bounded(async {
                    let bed = Arc::new(Bed::new(json!({})));
                    let spec = match of_streams {
                        true => fails.byte_stream(Arc::clone(&bed)),
                        false => fails.transport(Arc::clone(&bed)),
                    };
                    let supervisor = Supervisor::builder().start().await.unwrap();
                    let connection = supervisor
                        .open("made", spec.era(era.clone()))
                        .await
                        .unwrap();
                    let echo = || ToolCall::new("echo", json!({}));
                    let error = connection.call_tool(echo()).await.unwrap_err();
                    let failure = start_failure(&error);
                    assert!(matches!(failure, StartFailure::Factory(_)), "{failure}");
                    if matches!(fails, Fails::WithAnError) {
                        let start = std::error::Error::source(&error).unwrap();
                        let cause = start.source().unwrap().to_string();
                        assert_eq!(cause, "the factory has no socket");
                    }
                    connection.call_tool(echo()).await.unwrap();
                    assert_eq!(bed.ran("echo"), 1);
                    let _ = supervisor.shutdown(Duration::from_secs(2)).await;
                    bed.until_all_gone().await;
                })
                .await;
            }
        }
    }
}

#[tokio::test]
async fn a_factory_that_never_returns_ends_at_the_start_limit() {
    bounded(async {
        let spec = ConnectionSpec::byte_stream(|| {
            std::future::pending::<Result<(tokio::io::Empty, tokio::io::Sink), NoSocket>>()
        });
        let start = Duration::from_millis(200);
        let limits = Limits {
            start,
            ..Limits::default()
        };
        let supervisor = Supervisor::builder().start().await.unwrap();
        let connection = supervisor.open("made", spec.limits(limits)).await.unwrap();
        let echo = ToolCall::new("echo", json!({}));
        let error = connection.call_tool(echo).await.unwrap_err();
        assert_eq!(
            start_failure(&error),
            StartFailure::TimedOut { limit: start }
        );
        let _ = supervisor.shutdown(Duration::from_secs(1)).await;
    })
    .await;
}
