//! The schema that is shipped takes what the reader takes, and refuses what it refuses.

use jsonschema::Validator;
use mcp_supervisor::config::json_schema;
use serde_json::{Value, json};

use super::{files, reader, server};

fn validator() -> Validator {
    let schema: Value = serde_json::from_str(json_schema()).expect("the schema is JSON");
    jsonschema::validator_for(&schema).expect("the schema is a schema")
}

/// A file without its comments and trailing commas, which a validator does not know.
fn plain(text: &str) -> Value {
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.split(" // ").next().unwrap_or_default())
        .filter(|line| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("/*"))
        .collect();
    let mut text = lines.join("\n");
    while let Some(at) = text.find(",\n").and_then(|from| {
        let mut commas = text[from..].match_indices(",\n");
        commas.find_map(|(at, _)| {
            let next = text[from + at + 1..].trim_start();
            next.starts_with(['}', ']']).then_some(from + at)
        })
    }) {
        text.remove(at);
    }
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_published_kinds_of_files_are_valid_but_for_what_is_not_supported() {
    for (name, text) in files() {
        let mut value = plain(&text);
        // Refused by the reader as well, and on purpose.
        for (server, field) in [("old", "type"), ("from-file", "envFile")] {
            if let Some(object) = value.pointer_mut(&format!("/mcpServers/{server}")) {
                assert!(!validator().is_valid(&json!({ "mcpServers": { server: object } })));
                object.as_object_mut().expect("an object").remove(field);
            }
        }
        let errors: Vec<String> = validator()
            .iter_errors(&value)
            .map(|e| format!("{}: {e}", e.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

#[test]
fn what_the_reader_refuses_is_not_valid() {
    for object in [
        json!(5),
        json!({}),
        json!({ "command": "" }),
        json!({ "command": 1 }),
        json!({ "command": "x", "args": "y" }),
        json!({ "command": "x", "args": [{}] }),
        json!({ "command": "x", "env": { "A": null } }),
        json!({ "type": "sse", "url": "https://h.example" }),
        json!({ "type": "htpp", "url": "https://h.example" }),
        json!({ "command": "x", "envFile": ".env" }),
        json!({ "command": "x", "disabled": "yes" }),
        json!({ "command": "x", "timeout": -1 }),
        json!({ "command": "x", "mcp-supervisor": { "limit": {} } }),
        json!({ "command": "x", "mcp-supervisor": { "limits": { "totl": "1s" } } }),
        json!({ "command": "x", "mcp-supervisor": { "limits": { "total": 20 } } }),
        json!({ "command": "x", "mcp-supervisor": { "limits": { "total": "20" } } }),
        json!({ "command": "x", "mcp-supervisor": { "limits": { "maxQueued": -1 } } }),
        json!({ "command": "x", "mcp-supervisor": { "era": "2024-11-05" } }),
        json!({ "command": "x", "mcp-supervisor": { "keepAlive": { "every": "1s" } } }),
        json!({ "command": "x", "mcp-supervisor": { "keepAlive": true } }),
        json!({ "command": "x", "mcp-supervisor": { "contracts": { "a": "keyed" } } }),
        json!({ "command": "x", "mcp-supervisor": { "contracts": { "a": { "keyed": {} } } } }),
        json!({ "command": "x", "mcp-supervisor": { "contracts": { "a": {} } } }),
    ] {
        assert!(
            server(&object.to_string()).is_err(),
            "the reader takes {object}"
        );
        let file = json!({ "mcpServers": { "one": object } });
        assert!(!validator().is_valid(&file), "the schema takes {object}");
    }
    for file in [
        json!([]),
        json!({}),
        json!({ "mcpServers": [] }),
        json!({ "mcpServers": {}, "mcp-supervisor": { "bearerToken": "t" } }),
        json!({ "mcpServers": {}, "mcp-supervisor": { "limit": {} } }),
    ] {
        assert!(reader(&[]).parse("mcp.json", file.to_string()).is_err());
        assert!(!validator().is_valid(&file), "{file}");
    }
}

/// `max_in_flight` as files write it.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |name, part| {
        let (head, tail) = part.split_at(1);
        format!("{name}{}{tail}", head.to_uppercase())
    })
}

/// What can be set in code, and is not set in files: it is code.
const CODE_ALONE: [&str; 1] = ["handler"];

/// What has another name in files, because other hosts gave it one.
const RENAMED: [(&str, &str); 10] = [
    ("credentials", "oauth"),
    ("contract", "contracts"),
    ("arg", "args"),
    ("env", "env"),
    ("inherit_env", "inheritEnvironment"),
    ("header", "headers"),
    ("bearer", "bearerToken"),
    ("http2_prior_knowledge", "http2PriorKnowledge"),
    ("session_ended", "sessionEnded"),
    ("not_found_means", "notFoundMeans"),
];

#[test]
fn whatever_a_spec_can_be_told_in_code_a_file_can_say() {
    let source = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src")
            .join(file);
        std::fs::read_to_string(path).expect("the source is there")
    };
    // As text, because some of the setters stand in a macro.
    let mut names: Vec<String> = source("spec.rs")
        .split("pub fn ")
        .skip(1)
        .filter(|rest| {
            rest.split(')')
                .next()
                .is_some_and(|head| head.contains("mut self"))
        })
        .filter_map(|rest| Some(rest.split(['(', '<']).next()?.to_owned()))
        .collect();
    for item in syn::parse_file(&source("spec.rs"))
        .expect("it is Rust")
        .items
    {
        if let syn::Item::Struct(s) = item
            && ["Limits", "Recovery", "KeepAlive"].contains(&s.ident.to_string().as_str())
        {
            names.extend(
                s.fields
                    .iter()
                    .filter_map(|f| Some(f.ident.as_ref()?.to_string())),
            );
        }
    }
    assert!(names.len() > 25, "this test looks past them: {names:?}");
    let schema = json_schema();
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !CODE_ALONE.contains(&name.as_str()))
        .filter(|name| {
            let renamed = RENAMED.iter().find(|(code, _)| code == name);
            let written = renamed.map_or_else(|| camel(name), |(_, file)| (*file).to_owned());
            !schema.contains(&format!("\"{written}\": {{"))
        })
        .collect();
    assert!(
        missing.is_empty(),
        "no file can say {missing:?}: add it to src/config/settings.rs and \
         docs/mcp-servers.schema.json, or to CODE_ALONE here"
    );
}
