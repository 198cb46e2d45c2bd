//! Files of the kind that people publish, one for each host's way of writing them.

use mcp_supervisor::{
    Configuration,
    config::{ConfigProblem, Oddity, TimeoutUnit},
};

use super::{files, reader, server};

/// Each server with what became of it: what it shows, `off`, or the field of its error.
fn read(file: &str, configuration: &Configuration) -> Vec<String> {
    println!("{file}: {:?}", configuration.warnings);
    let servers = configuration.servers.iter();
    servers
        .map(|(name, server)| match server {
            Ok(server) => match server.spec() {
                Some(spec) => format!("{name}: {spec:?}"),
                None => format!("{name}: off"),
            },
            Err(error) => format!("{name}: error in {}", error.field.as_deref().unwrap_or("-")),
        })
        .collect()
}

fn warnings(configuration: &Configuration) -> Vec<String> {
    let warnings = configuration.warnings.iter();
    warnings
        .map(|w| format!("{}{}", w.server.as_deref().unwrap_or("-"), w.field))
        .collect()
}

const VARIABLES: &[(&str, &str)] = &[
    ("HOME", "/home/ada"),
    ("SEARCH_TOKEN", "s-1"),
    ("REPO_KEY", "r-1"),
    ("CRM_KEY", "c-1"),
    ("IMAGES_TOKEN", "i-1"),
];

fn configuration(file: &str) -> Configuration {
    reader(VARIABLES)
        .workspace("/src/shop")
        .parse(file, &files()[file])
        .expect("it is a configuration")
}

#[test]
fn a_file_of_claude_desktop_is_read() {
    let file = "claude_desktop.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [
            r#"notes: StdioSpec { command: "npx", .. }"#,
            r#"tickets: StdioSpec { command: "/usr/local/bin/tickets-mcp", .. }"#,
        ]
    );
    assert!(configuration.warnings.is_empty());
}

#[test]
fn a_file_of_claude_code_is_read_and_its_sse_server_is_refused_alone() {
    let file = "claude_code.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [
            r#"db: StdioSpec { command: "uvx", .. }"#,
            "old: error in /type",
            r#"search: HttpSpec { url: "${SEARCH_BASE:-https://search.example}/mcp", .. }"#,
        ]
    );
    let old = configuration.errors().next().expect("one error");
    assert_eq!(
        *old.problem,
        ConfigProblem::TransportNotSupported { name: "sse" }
    );
    // Its unit had to be guessed.
    assert_eq!(warnings(&configuration), ["search/timeout"]);
}

#[test]
fn a_file_of_cursor_is_read_with_its_predefined_variables() {
    let file = "cursor.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [
            r#"design: HttpSpec { url: "https://design.example/mcp", .. }"#,
            "from-file: error in /envFile",
            r#"repo: StdioSpec { command: "${workspaceFolder}/tools/repo-mcp${/}run", .. }"#,
        ]
    );
    let without = reader(VARIABLES).parse(file, &files()[file]).unwrap();
    let error = without.servers["repo"].as_ref().unwrap_err();
    assert_eq!(*error.problem, ConfigProblem::NoWorkspace);
}

#[test]
fn a_file_of_vs_code_is_read_with_comments_trailing_commas_and_inputs() {
    let file = "vscode.json";
    let text = &files()[file];
    let reader = reader(&[]).workspace("/src/shop");
    let unresolved = reader.parse(file, text).unwrap();
    let weather = unresolved.servers["weather"].as_ref().unwrap_err();
    assert_eq!(weather.field.as_deref(), Some("/env/WEATHER_KEY"));
    let id = "weather-key".to_owned();
    assert_eq!(*weather.problem, ConfigProblem::InputNotSupplied { id });
    assert!(unresolved.servers["maps"].is_ok());

    let resolved = reader.inputs(|id| (id == "weather-key").then(|| "w-1".into()));
    let resolved = resolved.parse(file, text).unwrap();
    assert_eq!(
        read(file, &resolved),
        [
            r#"maps: HttpSpec { url: "https://maps.example/mcp", .. }"#,
            r#"weather: StdioSpec { command: "node", .. }"#,
        ]
    );
    // What nothing here reads is told and no more.
    assert_eq!(warnings(&resolved), ["weather/dev"]);
}

#[test]
fn the_settings_file_of_vs_code_is_read_without_a_word_about_the_rest_of_it() {
    let file = "vscode_settings.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [r#"clock: StdioSpec { command: "clock-mcp", .. }"#]
    );
    assert!(configuration.warnings.is_empty());
}

#[test]
fn a_file_of_windsurf_is_read_and_its_disabled_server_is_off() {
    let file = "windsurf.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [
            r#"crm: HttpSpec { url: "https://crm.example/mcp", .. }"#,
            "local: off"
        ]
    );
    // Nobody here hides those tools, so nobody may believe it.
    assert_eq!(warnings(&configuration), ["crm/disabledTools"]);
}

#[test]
fn a_file_of_gemini_cli_is_read_and_told_what_it_does_not_do() {
    let file = "gemini.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [
            r#"images: HttpSpec { url: "https://images.example/mcp", .. }"#,
            r#"shell: StdioSpec { command: "python", .. }"#,
        ]
    );
    let told = [
        "images/trust",
        "images/timeout",
        "shell/includeTools",
        "shell/excludeTools",
        "shell/env/SHELL_KEY",
    ];
    assert_eq!(warnings(&configuration), told);
    assert_eq!(
        configuration.warnings[1].oddity,
        Oddity::Unit("milliseconds")
    );
    assert_eq!(configuration.warnings[4].oddity, Oddity::NoBraces);
}

#[test]
fn a_file_of_cline_is_read_and_a_timeout_of_either_unit_is_asked_about() {
    let file = "cline.json";
    let text = &files()[file];
    let guessed = configuration(file);
    assert_eq!(
        read(file, &guessed),
        [
            r#"browser: StdioSpec { command: "browser-mcp", .. }"#,
            "wiki: error in /timeout"
        ]
    );
    let wiki = guessed.servers["wiki"].as_ref().unwrap_err();
    assert_eq!(*wiki.problem, ConfigProblem::WhichUnit { value: 1800 });
    assert_eq!(
        warnings(&guessed),
        ["browser/autoApprove", "browser/timeout"]
    );

    let told = reader(&[]).timeout_unit(TimeoutUnit::Seconds);
    let told = told.parse(file, text).unwrap();
    assert!(told.servers["wiki"].is_ok());
    assert_eq!(warnings(&told), ["browser/autoApprove"]);
}

#[test]
fn a_file_with_all_settings_of_our_own_is_read() {
    let file = "ours.json";
    let configuration = configuration(file);
    assert_eq!(
        read(file, &configuration),
        [
            r#"everything: StdioSpec { command: "everything-server", .. }"#,
            r#"remote: HttpSpec { url: "http://127.0.0.1:9/mcp", .. }"#,
        ]
    );
    assert!(configuration.warnings.is_empty());
}

#[test]
fn a_transport_has_many_names() {
    for kind in [
        "http",
        "streamable-http",
        "streamableHttp",
        "streamable_http",
    ] {
        for field in ["type", "transport"] {
            for url in ["url", "serverUrl", "httpUrl"] {
                let object = format!(r#"{{ "{field}": "{kind}", "{url}": "https://h.example/" }}"#);
                assert!(server(&object).is_ok(), "{object}");
            }
        }
    }
    assert!(server(r#"{ "type": "stdio", "command": "x" }"#).is_ok());
    // Without a type the fields say it.
    assert!(server(r#"{ "command": "x" }"#).is_ok());
    assert!(server(r#"{ "url": "https://h.example/" }"#).is_ok());
}

#[test]
fn disabled_is_written_in_two_ways_and_nothing_else_of_the_server_has_to_be_right() {
    for off in [
        r#"{ "disabled": true }"#,
        r#"{ "enabled": false, "command": "${NOT_SET}", "timeout": "what" }"#,
        r#"{ "disabled": "${OFF:-true}", "command": "x" }"#,
    ] {
        assert!(server(off).unwrap().is_disabled(), "{off}");
    }
    for on in [
        r#"{ "disabled": false, "command": "x" }"#,
        r#"{ "enabled": true, "command": "x" }"#,
        r#"{ "command": "x" }"#,
    ] {
        assert!(!server(on).unwrap().is_disabled(), "{on}");
    }
}
