//! `docs/protocol.md` has a row for every client feature of rmcp, and each row leads to something
//! that is there: an item of this crate, a test that shows it, or a reason for its absence.
//!
//! rmcp's own source is read, from where cargo keeps it: what a later version adds fails this test
//! until the table says where it is.

#[path = "support/names.rs"]
mod names;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use names::{Names, existing, package_file, test_files};

const TABLE: &str = "docs/protocol.md";

/// The platform that this is built on: what other platforms need need not have been fetched.
fn host() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let told = Command::new(rustc).arg("-vV").output().expect("rustc runs");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc names its host").to_owned()
}

/// Where the source of rmcp is that this package is built with.
fn rmcp() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let told = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
            &host(),
            "--manifest-path",
        ])
        .arg(package_file("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(
        told.status.success(),
        "{}",
        String::from_utf8_lossy(&told.stderr)
    );
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let packages = told["packages"].as_array().expect("a list of packages");
    let rmcp = packages
        .iter()
        .find(|p| p["name"] == "rmcp")
        .expect("rmcp is a dependency");
    let manifest = rmcp["manifest_path"].as_str().expect("a path");
    Path::new(manifest)
        .parent()
        .expect("a directory")
        .to_owned()
}

/// The first word of a text.
fn word(text: &str) -> String {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    text.trim_start().chars().take_while(is_word).collect()
}

/// The public methods in the `impl` blocks of these heads.
fn methods(source: &str, heads: &[(&str, &str)], found: &mut BTreeSet<String>) {
    let source = source.split("\nmod tests {").next().unwrap_or_default();
    let mut owner = None;
    let mut macro_call = false;
    for line in source.lines() {
        if line.starts_with("impl") {
            let head = heads.iter().find(|(head, _)| line.starts_with(head));
            owner = head.map(|(_, name)| *name);
        } else if !line.is_empty() && !line.starts_with([' ', '{', '}']) && line != "where" {
            owner = None;
        }
        let Some(owner) = owner else { continue };
        macro_call |= line.trim_start().starts_with("method!(");
        let after = |what: &str| line.split_once(what).map(|(_, rest)| word(rest));
        let name = match macro_call {
            true => after("peer_req ").or_else(|| after("peer_not ")),
            false if line.starts_with("    pub ") => line
                .strip_prefix("    pub async fn ")
                .or_else(|| line.strip_prefix("    pub fn "))
                .map(word),
            false => None,
        };
        if let Some(name) = name {
            found.insert(format!("{owner}::{name}"));
            macro_call = false;
        }
    }
}

/// What rmcp's transport module shows of its client side.
fn transports(source: &str, found: &mut BTreeSet<String>) {
    for statement in source.split("\npub ").skip(1) {
        let statement = statement
            .split([';', '{'])
            .next()
            .unwrap_or_default()
            .to_owned()
            + statement
                .split_once('{')
                .filter(|_| statement.starts_with("use"))
                .map_or("", |(_, rest)| rest.split('}').next().unwrap_or_default());
        if statement.contains("server") {
            continue;
        }
        if let Some(used) = statement.strip_prefix("use ") {
            let last = used.rsplit("::").next().unwrap_or_default();
            for name in last.split(',').map(word).filter(|name| !name.is_empty()) {
                found.insert(format!("transport::{name}"));
            }
        } else if let Some(name) = statement.strip_prefix("trait ") {
            found.insert(format!("transport::{}", word(name)));
        }
    }
}

/// Every client feature that rmcp has, as the table names it.
fn features() -> BTreeSet<String> {
    let root = rmcp();
    let read = |file: &str| {
        let path = root.join("src").join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let mut found = BTreeSet::new();
    let heads = [
        ("impl Peer<RoleClient>", "Peer"),
        ("impl<R: ServiceRole> Peer<R>", "Peer"),
        ("impl<S> RunningService<RoleClient, S>", "RunningService"),
        (
            "impl<R: ServiceRole, S: Service<R>> RunningService<R, S>",
            "RunningService",
        ),
        ("impl<R: ServiceRole> RequestHandle<R>", "RequestHandle"),
        ("impl Subscription", "Subscription"),
        ("impl ProgressDispatcher", "ProgressDispatcher"),
    ];
    for file in [
        "service.rs",
        "service/client.rs",
        "service/client/cache.rs",
        "handler/client/progress.rs",
    ] {
        methods(&read(file), &heads, &mut found);
    }
    let handler = read("handler/client.rs");
    let (_, defined) = handler
        .split_once("macro_rules! client_handler_methods")
        .expect("the handler's methods");
    let defined = defined.split("\n}").next().unwrap_or_default();
    for line in defined.lines() {
        if let Some(method) = line.strip_prefix("        fn ") {
            found.insert(format!("ClientHandler::{}", word(method)));
        }
    }
    transports(&read("transport.rs"), &mut found);
    found
}

/// A row of the table: what rmcp calls it, where it is here, what shows it.
struct Row {
    theirs: Vec<String>,
    here: String,
    shown: String,
}

fn quoted(text: &str) -> Vec<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn rows(text: &str) -> Vec<Row> {
    let is_row = |line: &&str| line.starts_with("| `");
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 3, "{line}");
        Row {
            theirs: quoted(cells[0]),
            here: cells[1].to_owned(),
            shown: cells[2].to_owned(),
        }
    };
    text.lines().filter(is_row).map(row).collect()
}

/// All of `src`, by file.
fn sources(dir: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).expect("src can be read") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(std::fs::read_to_string(&path).expect("a file of text"));
        }
    }
}

fn has_word(text: &str, wanted: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.split(|c: char| !is_word(c)).any(|word| word == wanted)
}

/// What is wrong with the table, one line each.
fn objections(
    text: &str,
    features: &BTreeSet<String>,
    sources: &[String],
    tests: &BTreeMap<String, Names>,
) -> Vec<String> {
    let rows = rows(text);
    let mut wrong = Vec::new();
    let named: Vec<&String> = rows.iter().flat_map(|row| &row.theirs).collect();
    for feature in features {
        match named.iter().filter(|name| **name == feature).count() {
            1 => {}
            0 => wrong.push(format!("{feature} has no row")),
            _ => wrong.push(format!("{feature} has more than one row")),
        }
    }
    for name in named.iter().filter(|name| !features.contains(**name)) {
        wrong.push(format!("rmcp has no {name}"));
    }
    for row in rows {
        let theirs = row.theirs.join(", ");
        if row.here.starts_with("absent: ") {
            if row.here.len() < "absent: ".len() + 10 {
                wrong.push(format!("{theirs} is absent without a reason"));
            }
            continue;
        }
        let items = quoted(&row.here);
        if items.is_empty() {
            wrong.push(format!("{theirs} is nowhere, and not called absent"));
        }
        for item in items {
            let is_there = match item.split_once("::") {
                Some((owner, part)) => {
                    let declares = |text: &&String| has_word(text, owner) && has_word(text, part);
                    sources.iter().any(|text| declares(&text))
                }
                None => sources.iter().any(|text| {
                    ["struct", "enum", "trait", "type"]
                        .iter()
                        .any(|kind| text.contains(&format!("pub {kind} {item}")))
                }),
            };
            if !is_there {
                wrong.push(format!("{theirs}: there is no {item} here"));
            }
        }
        let shown = quoted(&row.shown);
        if shown.is_empty() {
            wrong.push(format!("{theirs}: no test shows it"));
        }
        let missing = shown.iter().filter_map(|test| existing(test, tests).err());
        wrong.extend(missing.map(|objection| format!("{theirs}: {objection}")));
    }
    wrong
}

#[test]
fn every_client_feature_of_rmcp_has_a_row_that_leads_to_something() {
    let text = std::fs::read_to_string(package_file(TABLE)).expect("the table");
    let features = features();
    for sure in [
        "Peer::complete",
        "Peer::set_level",
        "RunningService::call_tool",
        "ClientHandler::create_message",
        "transport::AuthorizationManager",
    ] {
        assert!(
            features.contains(sure),
            "{sure}: rmcp's source is not read right"
        );
    }
    assert!(
        features.len() > 90,
        "{} features: rmcp's source is not read right",
        features.len()
    );
    let mut sources_here = Vec::new();
    sources(&package_file("src"), &mut sources_here);
    let wrong = objections(&text, &features, &sources_here, &test_files());
    assert!(wrong.is_empty(), "{TABLE}:\n  {}\n", wrong.join("\n  "));
}

#[test]
fn a_wrong_table_is_noticed() {
    let features = BTreeSet::from(["Peer::one".to_owned()]);
    let sources = vec!["pub struct Here; impl Here { pub fn one() {} }".to_owned()];
    let mut tests = BTreeMap::new();
    tests.insert("shows".to_owned(), Names::of("#[test] fn it() {}"));
    let check = |text: &str| objections(text, &features, &sources, &tests);
    for right in [
        "| `Peer::one` | `Here::one` | `shows::it` |",
        "| `Peer::one` | absent: nobody has a use for it | |",
    ] {
        assert_eq!(check(right), Vec::<String>::new(), "{right}");
    }
    for (wrong, objection) in [
        ("", "has no row"),
        (
            "| `Peer::one` | `Here::one` | `shows::it` |\n| `Peer::one` | `Here` | `shows::it` |",
            "more than one row",
        ),
        (
            "| `Peer::one`, `Peer::two` | `Here::one` | `shows::it` |",
            "rmcp has no Peer::two",
        ),
        (
            "| `Peer::one` | `Here::two` | `shows::it` |",
            "there is no Here::two",
        ),
        (
            "| `Peer::one` | `There` | `shows::it` |",
            "there is no There",
        ),
        (
            "| `Peer::one` | `Here::one` | `shows::that` |",
            "has no fn that",
        ),
        ("| `Peer::one` | `Here::one` | |", "no test shows it"),
        ("| `Peer::one` | absent: so | |", "without a reason"),
        ("| `Peer::one` | somewhere | `shows::it` |", "is nowhere"),
    ] {
        let found = check(wrong);
        assert!(
            found.iter().any(|f| f.contains(objection)),
            "{wrong}: {found:?}"
        );
    }
}
