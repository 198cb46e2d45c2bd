//! A file whose servers are run for real: what they are given is what the file says.

use std::{error::Error, fmt::Write as _};

use mcp_supervisor::{
    Configuration, ConnectionSpec, Era, Received, Supervisor, ToolCall,
    config::ConfigReader,
    credentials::{AccessToken, BoxFuture, CredentialsError, Refusal, TokenSource},
    supervisor::{ApplyError, ApplyReport, ServerChange},
};
use serde_json::{Value, json};

use super::{
    files, reader,
    support::{
        Bed, HttpServer, bounded, example,
        logs::Logs,
        world::{WIRES, Wire, eras, shut_down, supervisor},
    },
};

/// Each planted secret holds this.
const SECRET: &str = "planted-secret";

fn word(era: &Era) -> &'static str {
    match era {
        Era::Discover => "discover",
        _ => "2025-11-25",
    }
}

/// The two servers of `run.json`.
struct Pair {
    pipe: Bed,
    web: Bed,
    http: HttpServer,
    era: Era,
}

impl Pair {
    async fn start(era: Era) -> Self {
        let script = json!({ "log_messages": true });
        let web = Bed::new(script.clone());
        Self {
            pipe: Bed::new(script),
            http: web.http().await,
            web,
            era,
        }
    }

    fn reader(&self) -> ConfigReader {
        let server = example("fault_server");
        let directory = self.pipe.path();
        reader(&[
            ("ERA", word(&self.era)),
            ("SERVER", server.to_str().expect("a path of text")),
            ("PIPE_DIR", directory.to_str().expect("a path of text")),
            ("SCRIPT", self.pipe.script()),
            ("ADDR", &self.http.addr),
            ("SECRET", SECRET),
            // A value is a value, whatever it looks like.
            ("NAME", "\"}, \"x\": {\"y\": \"${SECRET}\""),
        ])
    }

    fn configuration(&self) -> Configuration {
        self.reader()
            .parse("run.json", &files()["run.json"])
            .expect("it is a configuration")
    }

    async fn apply(&self, supervisor: &Supervisor) -> ApplyReport {
        supervisor.apply(&self.configuration()).await
    }
}

async fn call(supervisor: &Supervisor, name: &str, tool: &str) -> Value {
    let connection = supervisor.connection(name).expect("it is open");
    let answer = connection.call_tool(ToolCall::new(tool, json!({}))).await;
    let answer = answer.unwrap_or_else(|e| panic!("{name}: {e}"));
    answer.structured().cloned().unwrap_or_default()
}

#[tokio::test]
async fn l4_variables_and_defaults_reach_command_arguments_environment_and_directory() {
    bounded(async {
        for era in eras() {
            let pair = Pair::start(era).await;
            let supervisor = supervisor().await;
            let report = pair.apply(&supervisor).await;
            assert_eq!(report.changes["pipe"], ServerChange::Added);
            let seen = call(&supervisor, "pipe", "env").await;
            let arguments = seen["args"].as_array().expect("a list");
            for expected in [
                "--name=\"}, \"x\": {\"y\": \"${SECRET}\"".to_owned(),
                format!("--secret={SECRET}"),
            ] {
                assert!(
                    arguments.contains(&json!(expected)),
                    "{expected}: {arguments:?}"
                );
            }
            let environment = &seen["env"];
            assert_eq!(environment["FROM_HOST"], SECRET);
            assert_eq!(environment["PLAIN"], "as it is");
            assert_eq!(environment["DEFAULT"], "by default");
            assert_eq!(environment["MONEY"], "$5 and ${SECRET}");
            let directory = std::fs::canonicalize(pair.pipe.path()).unwrap();
            assert_eq!(seen["cwd"], directory.to_str().unwrap());
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn l4_variables_and_defaults_reach_the_url_and_the_headers() {
    bounded(async {
        for era in eras() {
            let pair = Pair::start(era).await;
            let supervisor = supervisor().await;
            let report = pair.apply(&supervisor).await;
            assert_eq!(report.changes["web"], ServerChange::Added);
            call(&supervisor, "web", "echo").await;
            let lines = std::fs::read_to_string(pair.web.file("messages")).unwrap();
            for line in lines.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                let path = format!("/mcp?key={SECRET}&page=one");
                assert_eq!(line["http"]["path"], path);
                assert_eq!(line["http"]["headers"]["x-key"], SECRET);
                assert_eq!(line["http"]["headers"]["x-default"], "by default");
            }
            assert!(lines.lines().count() >= 2);
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn l4_a_missing_variable_is_an_error_of_that_server_and_field_alone() {
    bounded(async {
        for (wire, era) in WIRES.into_iter().flat_map(|w| eras().map(|e| (w, e))) {
            let pair = Pair::start(era).await;
            let supervisor = supervisor().await;
            let report = pair.apply(&supervisor).await;
            for (server, field) in [
                ("command-unset", "/command"),
                ("args-unset", "/args/1"),
                ("env-unset", "/env/TOKEN"),
                ("cwd-unset", "/cwd"),
                ("url-unset", "/url"),
                ("headers-unset", "/headers/X-Key"),
                ("own-unset", "/mcp-supervisor/limits/total"),
            ] {
                let ServerChange::Failed {
                    error: ApplyError::Config(error),
                    still_running: false,
                } = &report.changes[server]
                else {
                    panic!("{server}: {:?}", report.changes[server]);
                };
                assert_eq!(error.server.as_deref(), Some(server));
                assert_eq!(error.field.as_deref(), Some(field));
                let shown = error.to_string();
                assert!(shown.contains("the variable NOT_SET is not set"), "{shown}");
                assert!(supervisor.connection(server).is_none());
            }
            // The others are as good as ever.
            let name = if wire == Wire::Http { "web" } else { "pipe" };
            call(&supervisor, name, "echo").await;
            shut_down(supervisor).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_child_is_given_a_minimal_environment_and_what_the_file_names() {
    bounded(async {
        let bed = Bed::new(json!({}));
        let file = |inherit: Value| {
            json!({ "mcpServers": { "one": {
                "command": example("fault_server"),
                "args": ["stdio", "--dir", bed.path()],
                "env": { "OWN": "yes", "LANG": "C.own" },
                "mcp-supervisor": { "inheritEnvironment": inherit }
            } } })
        };
        // Cargo sets it for every test.
        const OF_THE_HOST: &str = "CARGO_MANIFEST_DIR";
        let supervisor = supervisor().await;
        for (inherit, all, named) in [
            (json!(false), false, false),
            (json!(["SECRET", "NOT_SET"]), false, true),
            (json!(true), true, false),
        ] {
            let reader = reader(&[("SECRET", SECRET)]);
            let file = file(inherit).to_string();
            let configuration = reader.parse("mcp.json", file).unwrap();
            let report = supervisor.apply(&configuration).await;
            assert!(report.errors().next().is_none(), "{report:?}");
            let seen = call(&supervisor, "one", "env").await;
            let environment = seen["env"].as_object().unwrap();
            assert_eq!(environment["OWN"], "yes");
            assert_eq!(environment["LANG"], "C.own");
            assert_eq!(environment.contains_key(OF_THE_HOST), all);
            // The names are looked up where the reader's variables come from.
            assert_eq!(environment.contains_key("SECRET"), named);
            if !all {
                for name in environment.keys() {
                    let known = ["PATH", "HOME", "LANG", "USER", "TMPDIR", "OWN", "SECRET"];
                    assert!(known.contains(&name.as_str()), "{name}");
                }
            }
        }
        shut_down(supervisor).await;
    })
    .await;
}

/// A host's own source of tokens.
struct Tokens;

impl TokenSource for Tokens {
    fn token(&self) -> BoxFuture<'_, Result<Option<AccessToken>, CredentialsError>> {
        Box::pin(async { Ok(Some(AccessToken::new("of-the-host"))) })
    }

    fn refused(&self, _: &Refusal) {}
}

#[tokio::test]
async fn a_server_whose_tokens_are_the_hosts_is_opened_with_them_and_not_without() {
    bounded(async {
        for era in eras() {
            let bed = Bed::new(json!({ "log_messages": true }));
            let http = bed.http().await;
            let own = json!({
                "era": word(&era),
                "credentials": { "owner": "host", "resendAfter401": true }
            });
            let file =
                json!({ "mcpServers": { "one": { "url": http.url(), "mcp-supervisor": own } } });
            let configuration = reader(&[]).parse("mcp.json", file.to_string()).unwrap();
            let without = supervisor().await;
            let report = without.apply(&configuration).await;
            let ServerChange::Failed {
                error: ApplyError::Config(error),
                still_running: false,
            } = &report.changes["one"]
            else {
                panic!("{report:?}");
            };
            assert_eq!(error.field.as_deref(), Some("/mcp-supervisor/credentials"));
            shut_down(without).await;
            let supervisor = Supervisor::builder()
                .prepare(|_, spec| spec.credentials(Tokens))
                .start()
                .await
                .unwrap();
            let report = supervisor.apply(&configuration).await;
            assert_eq!(report.changes["one"], ServerChange::Added);
            call(&supervisor, "one", "echo").await;
            let lines = std::fs::read_to_string(bed.file("messages")).unwrap();
            for line in lines.lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                assert_eq!(
                    line["http"]["headers"]["authorization"],
                    "Bearer of-the-host"
                );
            }
            shut_down(supervisor).await;
        }
    })
    .await;
}

/// A file with a secret in everything that can hold one. None of its servers works.
fn planted(addr: &str) -> Value {
    let env = json!({ "TOKEN": "${SECRET}", "LITERAL": format!("{SECRET}-literal") });
    let headers = json!({ "Authorization": "Bearer ${SECRET}", "X-Key": "${SECRET}-key" });
    let start =
        json!({ "start": "eager", "recovery": { "backoff": { "base": "1ms", "cap": "1ms" } } });
    let remote = |url: String| json!({ "url": url, "headers": headers });
    json!({ "mcp-supervisor": start, "mcpServers": {
        "no-command": { "command": "/nowhere/${SECRET}/run", "args": ["${SECRET}"], "env": env },
        "no-directory": { "command": "sh", "args": ["-c", "${SECRET}"], "env": env, "cwd": "/nowhere/${SECRET}" },
        "exits": { "command": "sh", "args": ["-c", "exit 3", "${SECRET}"], "env": env },
        "refused": remote(format!("http://${{SECRET}}:${{SECRET}}@{addr}/${{SECRET}}?key=${{SECRET}}#${{SECRET}}")),
        "no-host": remote("http://${SECRET}.invalid/mcp".into()),
        "bad-port": remote("http://127.0.0.1:${SECRET}/mcp".into()),
        "bad-scheme": remote("s-${UNSET:-}://${SECRET}@127.0.0.1/mcp".into()),
        "bad-header": { "url": format!("http://{addr}/mcp"), "headers": { "X-Key": "${SECRET}\n" } },
        "bad-type": { "type": "${SECRET}", "url": "${SECRET}" },
        "bad-era": { "command": "${SECRET}", "mcp-supervisor": { "era": "${SECRET}" } },
        "bad-limit": { "command": "${SECRET}", "mcp-supervisor": { "limits": { "total": "${SECRET}" } } },
        "bad-flag": { "command": "x", "disabled": "${SECRET}" },
        "bad-token": { "url": format!("http://{addr}/mcp"), "mcp-supervisor": { "bearerToken": "${SECRET}\n" } },
        "missing": { "command": "x", "args": ["${SECRET}", "${NOT_SET}"] },
        "literal": { "command": "x", "envFile": format!("{SECRET}.env"), "env": env }
    } })
}

fn note(shown: &mut String, error: &dyn Error) {
    let mut next = Some(error);
    while let Some(error) = next {
        let _ = writeln!(shown, "{error}\n{error:?}");
        next = error.source();
    }
}

#[tokio::test]
async fn l4_no_secret_of_a_file_is_in_any_log_error_event_or_debug_output() {
    bounded(async {
        let logs = Logs::everything();
        // Somewhere nobody listens.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = free.local_addr().unwrap().to_string();
        drop(free);
        let mut shown = String::new();
        for era in ["2025-11-25", "discover"] {
            let mut file = planted(&addr);
            file["mcp-supervisor"]["era"] = json!(era);
            let reader = reader(&[("SECRET", SECRET)]);
            let configuration = reader.parse("mcp.json", file.to_string()).unwrap();
            let _ = writeln!(shown, "{reader:?} {configuration:?}");
            for warning in &configuration.warnings {
                let _ = writeln!(shown, "{warning} {warning:?}");
            }
            configuration
                .errors()
                .for_each(|error| note(&mut shown, error));
            for server in configuration.servers.values().flatten() {
                let spec: &ConnectionSpec = server.spec().expect("none is off");
                let _ = writeln!(shown, "{server:?} {spec:?}");
            }
            let supervisor = supervisor().await;
            let mut events = supervisor.events();
            let report = supervisor.apply(&configuration).await;
            let _ = writeln!(shown, "{report:?} {supervisor:?}");
            for (name, change) in &report.changes {
                let _ = writeln!(shown, "{name}: {change}");
                if let ServerChange::Failed { error, .. } = change {
                    note(&mut shown, error);
                }
            }
            let open = supervisor.names();
            assert!(open.len() >= 5, "{open:?}");
            for name in open {
                let connection = supervisor.connection(name.as_str()).unwrap();
                let error = connection.call_tool(ToolCall::new("echo", json!({}))).await;
                note(&mut shown, &error.unwrap_err());
                let _ = writeln!(shown, "{connection:?} {:?}", connection.status());
            }
            let report = supervisor.shutdown(std::time::Duration::from_secs(1)).await;
            let _ = writeln!(shown, "{report:?}");
            while let Some(Received::Event(event)) = events.next().await {
                let _ = writeln!(shown, "{event:?}");
            }
        }
        // The texts are there, so that there is something to look through.
        for part in ["no-command", "start failed", "/nowhere/${SECRET}/run"] {
            assert!(
                shown.contains(part) || logs.text().contains(part),
                "{part}: {shown}"
            );
        }
        for text in [shown, logs.text()] {
            let lines: Vec<_> = text.lines().filter(|line| line.contains(SECRET)).collect();
            assert!(lines.is_empty(), "{lines:#?}");
        }
    })
    .await;
}
