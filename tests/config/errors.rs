//! What is wrong in a file is told with the file, the server, the field and the place; and one bad
//! server takes down itself alone.

use mcp_supervisor::{Configuration, config::ConfigError};

use super::{reader, server};

#[track_caller]
fn error_of(object: &str) -> ConfigError {
    match server(object) {
        Err(error) => error,
        Ok(_) => panic!("it was taken: {object}"),
    }
}

#[test]
fn each_error_of_a_server_names_file_server_field_and_place() {
    let own = |settings: &str| format!(r#"{{ "command": "x", "mcp-supervisor": {settings} }}"#);
    for (object, field, said) in [
        (r#"[]"#.to_owned(), "", "this is a list; write an object"),
        (r#"{}"#.into(), "", "neither `command` nor `url`"),
        (
            r#"{ "command": 1 }"#.into(),
            "/command",
            "this is a number; write a string",
        ),
        (
            r#"{ "command": "" }"#.into(),
            "/command",
            "the stdio command is empty",
        ),
        (
            r#"{ "command": "x", "url": "y" }"#.into(),
            "/command",
            "exclude each other",
        ),
        (
            r#"{ "command": "x", "args": "y" }"#.into(),
            "/args",
            "write a list",
        ),
        (
            r#"{ "command": "x", "args": ["a", {}] }"#.into(),
            "/args/1",
            "write a string",
        ),
        (
            r#"{ "command": "x", "env": { "A": null } }"#.into(),
            "/env/A",
            "write a string",
        ),
        (
            r#"{ "command": "x", "env": { "A": "1", "A": "2" } }"#.into(),
            "/env/A",
            "twice",
        ),
        (
            r#"{ "command": "x", "cwd": 7 }"#.into(),
            "/cwd",
            "write a string",
        ),
        (r#"{ "type": "stdio" }"#.into(), "/command", "missing"),
        (r#"{ "type": "http" }"#.into(), "/url", "missing"),
        (
            r#"{ "type": "htpp", "url": "http://h" }"#.into(),
            "/type",
            "did you mean `http`?",
        ),
        (
            r#"{ "type": "ws", "url": "ws://h" }"#.into(),
            "/type",
            "`ws` is not supported",
        ),
        (r#"{ "url": "h:80" }"#.into(), "/url", "http:// or https://"),
        (
            r#"{ "serverUrl": "ftp://h" }"#.into(),
            "/serverUrl",
            "http:// or https://",
        ),
        (
            r#"{ "url": "http://a", "httpUrl": "http://b" }"#.into(),
            "/httpUrl",
            "`url` exclude",
        ),
        (
            r#"{ "url": "http://a", "headers": [] }"#.into(),
            "/headers",
            "write an object",
        ),
        (
            r#"{ "command": "x", "disabled": "yes" }"#.into(),
            "/disabled",
            "true or false",
        ),
        (
            r#"{ "command": "x", "timeout": -1 }"#.into(),
            "/timeout",
            "not negative",
        ),
        (
            r#"{ "command": "x", "timeout": 0 }"#.into(),
            "/mcp-supervisor/limits/total",
            "zero",
        ),
        (r#"{ "command": "a\u0000b" }"#.into(), "/command", "NUL"),
        (
            own(r#"{ "limit": {} }"#),
            "/mcp-supervisor/limit",
            "did you mean `limits`?",
        ),
        (
            own(r#"{ "limits": { "totl": "1s" } }"#),
            "/mcp-supervisor/limits/totl",
            "`total`",
        ),
        (
            own(r#"{ "limits": { "total": 20 } }"#),
            "/mcp-supervisor/limits/total",
            "\"20s\"",
        ),
        (
            own(r#"{ "limits": { "total": "20" } }"#),
            "/mcp-supervisor/limits/total",
            "\"20s\"",
        ),
        (
            own(r#"{ "limits": { "total": "0s" } }"#),
            "/mcp-supervisor/limits/total",
            "zero",
        ),
        (
            own(r#"{ "limits": { "attempt": "2h" } }"#),
            "/mcp-supervisor/limits/attempt",
            "exceeds",
        ),
        (
            own(r#"{ "limits": { "maxInFlight": 5000 } }"#),
            "/mcp-supervisor/limits/maxInFlight",
            "1000",
        ),
        (
            own(r#"{ "limits": { "maxInFlight": 1.5 } }"#),
            "/mcp-supervisor/limits/maxInFlight",
            "whole",
        ),
        (
            own(r#"{ "limits": { "maxResumes": 5000000000 } }"#),
            "/mcp-supervisor/limits/maxResumes",
            "too large",
        ),
        (
            own(r#"{ "limits": { "discover": "1m" } }"#),
            "/mcp-supervisor/limits/discover",
            "9 s",
        ),
        (
            own(r#"{ "era": "2024-11-05" }"#),
            "/mcp-supervisor/era",
            "\"2025-03-26\"",
        ),
        (
            own(r#"{ "start": "eagr" }"#),
            "/mcp-supervisor/start",
            "did you mean `eager`?",
        ),
        (
            own(r#"{ "repeats": { "maxAttempts": 0 } }"#),
            "/mcp-supervisor/repeats/maxAttempts",
            "zero",
        ),
        (
            own(r#"{ "recovery": { "backoff": { "bse": "1s" } } }"#),
            "/mcp-supervisor/recovery/backoff/bse",
            "`base`",
        ),
        (
            own(r#"{ "keepAlive": { "every": "1s" } }"#),
            "/mcp-supervisor/keepAlive/timeout",
            "missing",
        ),
        (
            own(r#"{ "keepAlive": { "every": "0s", "timeout": "1s" } }"#),
            "/mcp-supervisor/keepAlive",
            "zero",
        ),
        (
            own(r#"{ "contracts": { "a/b~c": "keyd" } }"#),
            "/mcp-supervisor/contracts/a~1b~0c",
            "none of",
        ),
        (
            own(r#"{ "contracts": { "a": { "keyed": {} } } }"#),
            "/mcp-supervisor/contracts/a/keyed/argument",
            "missing",
        ),
        (
            own(r#"{ "contracts": { "a": {} } }"#),
            "/mcp-supervisor/contracts/a",
            "missing",
        ),
        (
            own(r#"{ "sessionEnded": { "codes": ["x"] } }"#),
            "/mcp-supervisor/sessionEnded/codes/0",
            "whole number",
        ),
        (
            own(r#"{ "bearerToken": "t" }"#),
            "/mcp-supervisor/bearerToken",
            "servers over HTTP",
        ),
        (own(r#"{ "credentials": { "owner": "host" } }"#), "/mcp-supervisor/credentials", "servers over HTTP"),
        (r#"{ "url": "http://h", "mcp-supervisor": { "credentials": { "owner": "hst" } } }"#.into(), "/mcp-supervisor/credentials/owner", "`host`"),
        (r#"{ "url": "http://h", "mcp-supervisor": { "credentials": { "resendAfter401": true } } }"#.into(), "/mcp-supervisor/credentials", "no credentials to renew"),
        (own("3"), "/mcp-supervisor", "write an object"),
    ] {
        let error = error_of(&object);
        assert_eq!(error.file, "mcp.json");
        assert_eq!(error.server.as_deref(), Some("one"));
        assert_eq!(
            error.field.as_deref().unwrap_or(""),
            field,
            "{object}: {error}"
        );
        assert!(error.position.is_some(), "{object}: {error}");
        let text = error.to_string();
        assert!(text.starts_with("mcp.json:1:"), "{text}");
        assert!(text.contains("server \"one\""), "{text}");
        assert!(text.contains(said), "{object}: {text}");
    }
}

#[test]
fn a_broken_file_is_told_with_its_line_and_column() {
    let parse = |text: &str| reader(&[]).parse("mcp.json", text).unwrap_err();
    for (text, said) in [
        ("", "mcp.json: this is no JSON: the file is empty"),
        (
            "{\n  \"mcpServers\": {\n    oops\n",
            "mcp.json:3:5: this is no JSON: ",
        ),
        ("{ \"mcpServers\": {} } x", "mcp.json:1:22: this is no JSON"),
        ("[]", "mcp.json:1:1: this is a list; write an object"),
        ("{}", "there is no object `mcpServers` or `servers`"),
        ("{ \"mcpServer\": {} }", "did you mean `mcpServers`?"),
        (
            "{ \"mcpServers\": [] }",
            "mcp.json:1:17: /mcpServers: this is a list",
        ),
        (
            "{ \"mcpServers\": {}, \"mcpServers\": {} }",
            "mcp.json:1:21: /mcpServers: this name is there twice",
        ),
        (
            "{ \"mcpServers\": {}, \"mcp-supervisor\": { \"limits\": { \"totals\": \"1s\" } } }",
            "/mcp-supervisor/limits/totals: there is no such setting; did you mean `total`?",
        ),
        (
            "{ \"mcpServers\": {}, \"mcp-supervisor\": { \"bearerToken\": \"t\" } }",
            "/mcp-supervisor/bearerToken: this is for one server",
        ),
        (
            "{ \"mcpServers\": {}, \"mcp-supervisor\": { \"limits\": { \"total\": \"0s\" } } }",
            "/mcp-supervisor/limits/total: the limit `total` is zero",
        ),
    ] {
        let error = parse(text);
        assert_eq!(error.server, None);
        let shown = error.to_string();
        assert!(shown.contains(said), "{text:?}: {shown}");
    }
}

#[test]
fn a_file_that_is_not_there_is_told_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mcp.json");
    let error = Configuration::read(&path).unwrap_err();
    let shown = error.to_string();
    assert!(
        shown.contains("mcp.json: the file cannot be read"),
        "{shown}"
    );
}

#[test]
fn one_bad_server_takes_down_itself_alone() {
    let file = r#"{ "mcpServers": {
        "good": { "command": "a" },
        "bad": { "command": "${NOT_SET}" },
        "worse": 5,
        "fine": { "url": "https://h.example/mcp" }
    } }"#;
    let configuration = reader(&[]).parse("mcp.json", file).unwrap();
    let fine = configuration.servers.iter().filter(|(_, s)| s.is_ok());
    assert_eq!(
        fine.map(|(n, _)| n.as_str()).collect::<Vec<_>>(),
        ["fine", "good"]
    );
    assert_eq!(configuration.errors().count(), 2);
}

#[test]
fn names_that_cannot_be_names_of_connections_are_errors_of_their_own() {
    let long = "n".repeat(10_000);
    let file = format!(
        r#"{{ "mcpServers": {{ "": {{ "command": "a" }}, "{long}": {{ "command": "a" }},
            "line\nbreak": {{ "command": "a" }}, "good": {{ "command": "a" }} }} }}"#
    );
    let configuration = reader(&[]).parse("mcp.json", file).unwrap();
    assert_eq!(configuration.errors().count(), 3);
    assert!(configuration.servers["good"].is_ok());
    for error in configuration.errors() {
        let shown = error.to_string();
        assert!(
            shown.contains("the server's name cannot be used"),
            "{shown}"
        );
        assert!(
            shown.len() < 400,
            "a name is no document: {} bytes",
            shown.len()
        );
        assert!(!shown.contains('\n'), "{shown}");
    }
}

#[test]
fn a_name_that_is_there_twice_is_neither_of_the_two() {
    for file in [
        r#"{ "mcpServers": { "a": { "command": "x" }, "a": { "command": "y" }, "b": { "command": "z" } } }"#,
        r#"{ "mcpServers": { "a": { "command": "x" }, "b": { "command": "z" } }, "servers": { "a": { "command": "y" } } }"#,
    ] {
        let configuration = reader(&[]).parse("mcp.json", file).unwrap();
        let error = configuration.servers["a"].as_ref().unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
        assert!(configuration.servers["b"].is_ok());
    }
}

#[test]
fn a_file_may_be_written_by_any_editor() {
    let text = r#"{ "mcpServers": { "käse": { "command": "x" } } }"#;
    let utf16 = |order: fn(u16) -> [u8; 2]| {
        let units = std::iter::once(0xFEFF).chain(text.encode_utf16());
        units.flat_map(order).collect::<Vec<u8>>()
    };
    let with_mark = ["\u{feff}", text].concat().into_bytes();
    let crlf = text.replace(' ', "\r\n").into_bytes();
    for bytes in [
        utf16(u16::to_le_bytes),
        utf16(u16::to_be_bytes),
        with_mark,
        crlf,
    ] {
        let configuration = reader(&[]).parse("mcp.json", bytes).unwrap();
        assert!(configuration.servers["käse"].is_ok());
    }
    let without_mark: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for bytes in [without_mark, b"\xff\xfe{".to_vec(), b"\"\xe4\"".to_vec()] {
        let error = reader(&[]).parse("mcp.json", bytes).unwrap_err();
        assert!(
            error.to_string().contains("save the file as UTF-8"),
            "{error}"
        );
    }
}

#[test]
fn a_field_that_is_nearly_right_is_told_and_what_is_unknown_is_no_error() {
    let file = r#"{ "mcpServers": { "a": { "command": "x", "agrs": [], "icon": "i" } }, "mcp-supervisr": {} }"#;
    let configuration = reader(&[]).parse("mcp.json", file).unwrap();
    assert!(configuration.servers["a"].is_ok());
    let told: Vec<_> = configuration
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        told,
        [
            "mcp.json:1:71: /mcp-supervisr: nothing here reads this field; did you mean `mcp-supervisor`?",
            "mcp.json:1:42: server \"a\": /agrs: nothing here reads this field; did you mean `args`?",
            "mcp.json:1:54: server \"a\": /icon: nothing here reads this field",
        ]
    );
}
