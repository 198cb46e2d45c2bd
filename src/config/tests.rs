//! What a file says is what code would have said.

use std::time::Duration;

use super::*;
use crate::{
    evidence::{NotFoundMeans, SessionEndedList},
    policy::{Backoff, Repeats, ToolContract},
    spec::{
        Era, HttpSpec, KeepAlive, Limits, Overload, Recovery, Revision, Settings, Start, StdioSpec,
        TraceContext,
    },
};

fn read(file: &str) -> Configuration {
    let environment = |name: &str| match name {
        "QUEUED" => Some("77".to_owned()),
        "TOKEN" => Some("t-1".to_owned()),
        "PROXY" => Some("http://proxy".to_owned()),
        _ => None,
    };
    Configuration::reader()
        .environment(environment)
        .parse("mcp.json", file)
        .unwrap()
}

fn spec(configuration: &Configuration, name: &str) -> ConnectionSpec {
    let server = configuration.servers[name].as_ref();
    let spec = server.unwrap_or_else(|e| panic!("{e}")).spec();
    spec.expect("it is on").clone()
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_setting_of_a_file_is_the_setting_of_the_spec() {
    let configuration = read(include_str!("../../tests/config/ours.json"));
    let backoff = |base, cap| Backoff { base, cap };
    let expected = ConnectionSpec::from(StdioSpec::new("everything-server").inherit_env())
        .limits(Limits {
            total: 90 * SECOND,
            attempt: Some(20 * SECOND),
            start: 40 * SECOND,
            discover: 2 * SECOND,
            max_in_flight: 16,
            max_queued: 77,
            overload: Overload::Wait,
            max_answer_bytes: 1_048_576,
            stderr_tail_bytes: 4_096,
            max_resumes: 1,
            hold: 120 * SECOND,
            max_rounds: 4,
            max_pages: 50,
            max_asked: 9,
            stdin_grace: SECOND / 2,
            term_grace: SECOND,
            reconnect_grace: 3 * SECOND,
        })
        .recovery(Recovery {
            max_restarts: 3,
            period: 60 * SECOND,
            cool_down: 20 * SECOND,
            backoff: backoff(SECOND / 5, 10 * SECOND),
        })
        .era(Era::Initialize(Revision::V2025_11_25))
        .start(Start::Eager)
        .contract("get_secret", ToolContract::AtMostOnce)
        .contract("sync", ToolContract::Idempotent)
        .contract("create_invoice", ToolContract::Receipts)
        .contract("create_order", ToolContract::keyed("request_id"))
        .contract(
            "refund",
            ToolContract::Status {
                tool: "find_refund".into(),
                argument: "key".into(),
                absence_final_after: Some(600 * SECOND),
            },
        )
        // From the defaults, and behind the server's own.
        .contract("get_*", ToolContract::ReadOnly)
        .repeats(Repeats {
            max_attempts: 2,
            backoff: backoff(SECOND, Backoff::default().cap),
        })
        .session_ended(
            SessionEndedList::none()
                .with_phrase("who are you")
                .with_code(-32099),
        )
        .not_found_means(NotFoundMeans::NotExecuted)
        .trace_context(TraceContext::Sent)
        .tasks();
    let found = spec(&configuration, "everything");
    assert!(found.is_same(&expected));

    let limits = Limits {
        total: 45 * SECOND,
        max_in_flight: 64,
        ..Limits::default()
    };
    let http = HttpSpec::new("http://127.0.0.1:9/mcp")
        .bearer("none")
        .http2_prior_knowledge();
    let expected = ConnectionSpec::from(http)
        .limits(limits)
        .era(Era::Discover)
        .contract("get_*", ToolContract::ReadOnly)
        .keep_alive(KeepAlive {
            every: 30 * SECOND,
            timeout: 5 * SECOND,
        });
    assert!(spec(&configuration, "remote").is_same(&expected));
}

#[test]
fn a_server_refines_the_defaults_field_by_field() {
    let configuration = read(
        r#"{
            "mcp-supervisor": {
                "limits": { "total": "45s", "attempt": "9s", "maxQueued": 7 },
                "recovery": { "maxRestarts": 9, "backoff": { "cap": "2s" } },
                "start": "eager", "era": "discover", "inheritEnvironment": ["PROXY", "NOT_SET"]
            },
            "mcpServers": {
                "as-all": { "command": "x" },
                "own": {
                    "command": "x",
                    "timeout": 5,
                    "mcp-supervisor": {
                        "limits": { "attempt": null, "maxQueued": 8 },
                        "recovery": { "backoff": { "base": "1s" } },
                        "start": "lazy", "inheritEnvironment": false
                    }
                },
                "total": {
                    "command": "x",
                    "timeout": 5,
                    "mcp-supervisor": { "limits": { "total": "50s" } }
                }
            }
        }"#,
    );
    let all = spec(&configuration, "as-all");
    let own = spec(&configuration, "own");
    let limits = |spec: &ConnectionSpec| spec.settings.limits.clone();
    assert_eq!(limits(&all).total, 45 * SECOND);
    assert_eq!(limits(&all).attempt, Some(9 * SECOND));
    assert_eq!(limits(&own).total, 5 * SECOND);
    assert_eq!(limits(&own).attempt, None);
    assert_eq!((limits(&all).max_queued, limits(&own).max_queued), (7, 8));
    assert_eq!(limits(&own).start, Limits::default().start);
    let recovery = own.settings.recovery;
    assert_eq!(recovery.max_restarts, 9);
    assert_eq!(
        (recovery.backoff.base, recovery.backoff.cap),
        (SECOND, 2 * SECOND)
    );
    assert_eq!(
        (all.settings.start, own.settings.start),
        (Start::Eager, Start::Lazy)
    );
    assert_eq!(own.settings.era, Era::Discover);
    // Ours says more than the ecosystem's field.
    assert_eq!(limits(&spec(&configuration, "total")).total, 50 * SECOND);
    let with_proxy = ConnectionSpec {
        settings: all.settings.clone(),
        ..StdioSpec::new("x").env("PROXY", "http://proxy").into()
    };
    assert!(all.is_same(&with_proxy));
    let without = ConnectionSpec {
        settings: own.settings.clone(),
        ..StdioSpec::new("x").into()
    };
    assert!(own.is_same(&without));
}

#[test]
fn a_transport_of_a_file_is_the_transport_of_the_spec() {
    let configuration = read(
        r#"{ "mcpServers": {
            "child": {
                "command": "run", "args": ["-v", 3, true, "${TOKEN}", "$${TOKEN}"], "cwd": "/srv/${TOKEN}",
                "env": { "A": "${TOKEN}", "PORT": 8080, "DEBUG": false, "B": "${env:TOKEN}" }
            },
            "remote": {
                "type": "streamableHttp", "serverUrl": "https://h.example/${TOKEN}?a=${UNSET:-b}",
                "headers": { "X-A": "Bearer ${TOKEN}", "X-B": 3 }
            }
        } }"#,
    );
    let child = StdioSpec::new("run")
        .args(["-v", "3", "true", "t-1", "${TOKEN}"])
        .cwd("/srv/t-1")
        .env("A", "t-1")
        .env("PORT", "8080")
        .env("DEBUG", "false")
        .env("B", "t-1");
    assert!(spec(&configuration, "child").is_same(&child.into()));
    let remote = HttpSpec::new("https://h.example/t-1?a=b")
        .header("X-A", "Bearer t-1")
        .header("X-B", "3");
    assert!(spec(&configuration, "remote").is_same(&remote.into()));
}

#[test]
fn a_timeout_is_taken_for_what_its_magnitude_says() {
    let total = |unit, timeout: &str| {
        let file =
            format!(r#"{{ "servers": {{ "a": {{ "command": "x", "timeout": {timeout} }} }} }}"#);
        let configuration = Configuration::reader().timeout_unit(unit);
        let configuration = configuration.parse("mcp.json", file).unwrap();
        let spec = configuration.servers["a"].as_ref().ok()?.spec()?.clone();
        Some((spec.settings.limits.total, configuration.warnings.len()))
    };
    use TimeoutUnit::{ByMagnitude, Milliseconds, Seconds};
    let millisecond = Duration::from_millis(1);
    for (unit, timeout, expected) in [
        (ByMagnitude, "1", Some((SECOND, 1))),
        (ByMagnitude, "999", Some((999 * SECOND, 1))),
        (ByMagnitude, "1000", None),
        (ByMagnitude, "3600", None),
        (ByMagnitude, "3601", Some((3601 * millisecond, 1))),
        (ByMagnitude, "600000", Some((600 * SECOND, 1))),
        (ByMagnitude, "\"30s\"", Some((30 * SECOND, 0))),
        (Seconds, "1800", Some((1800 * SECOND, 0))),
        (Milliseconds, "1800", Some((1800 * millisecond, 0))),
        (Milliseconds, "\"30s\"", Some((30 * SECOND, 0))),
    ] {
        assert_eq!(total(unit, timeout), expected, "{unit:?} {timeout}");
    }
}

#[test]
fn a_change_of_anything_that_matters_is_a_change() {
    let one = |object: &str| {
        let file = format!(r#"{{ "mcpServers": {{ "a": {object} }} }}"#);
        spec(&read(&file), "a")
    };
    let child = one(r#"{ "command": "x", "args": ["a"], "env": { "A": "1" }, "cwd": "/a" }"#);
    assert!(child.is_same(&one(
        r#"{ "args": ["a"], "command": "x", "cwd": "/${UNSET:-a}", "env": { "A": 1 }, "note": 1 }"#
    )));
    for other in [
        r#"{ "command": "y", "args": ["a"], "env": { "A": "1" }, "cwd": "/a" }"#,
        r#"{ "command": "x", "args": ["b"], "env": { "A": "1" }, "cwd": "/a" }"#,
        r#"{ "command": "x", "args": ["a"], "env": { "A": "2" }, "cwd": "/a" }"#,
        r#"{ "command": "x", "args": ["a"], "env": { "A": "1" }, "cwd": "/b" }"#,
        r#"{ "command": "x", "args": ["a"], "env": { "A": "1" } }"#,
        r#"{ "url": "http://h/" }"#,
    ] {
        assert!(!child.is_same(&one(other)), "{other}");
    }
    let remote = one(r#"{ "url": "http://h/", "headers": { "A": "1" } }"#);
    assert!(remote.is_same(&one(
        r#"{ "httpUrl": "http://h/", "headers": { "A": "1" } }"#
    )));
    for other in [
        r#"{ "url": "http://h/x", "headers": { "A": "1" } }"#,
        r#"{ "url": "http://h/", "headers": { "A": "2" } }"#,
        r#"{ "url": "http://h/", "headers": { "A": "1" }, "mcp-supervisor": { "bearerToken": "t" } }"#,
    ] {
        assert!(!remote.is_same(&one(other)), "{other}");
    }
    assert!(Settings::default().is_same(&one(r#"{ "command": "x" }"#).settings));
}
