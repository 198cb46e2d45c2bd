//! The documents say what is: each promise names a test that exists, the README shows the function
//! of the example and what it prints, and links lead somewhere.

#[path = "support/names.rs"]
mod names;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use names::{Names, existing, package_file, test_files};

const DOCUMENTS: &[&str] = &[
    "README.md",
    "CHANGELOG.md",
    "docs/agents.md",
    "docs/assurance.md",
    "docs/protocol.md",
    "docs/architecture.md",
    "docs/authorisation.md",
    "docs/cases.md",
    "docs/catalog.md",
    "docs/configuration.md",
    "docs/conformance.md",
    "docs/extension.md",
    "docs/handlers.md",
    "docs/mutants.md",
    "docs/observability.md",
    "docs/operations.md",
    "docs/semantics.md",
    "docs/servers.md",
];

/// Where every list item and every row of a table is a promise, beside the semantics.
const PROMISING: &[&str] = &[
    "docs/agents.md",
    "docs/authorisation.md",
    "docs/catalog.md",
    "docs/handlers.md",
];

/// What is said in this section of `docs/semantics.md` is no promise.
const NO_PROMISES: &str = "## What is not promised";

fn read(file: &str) -> String {
    std::fs::read_to_string(package_file(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The list items and the table rows of a text, each as one piece.
fn promises(text: &str) -> Vec<String> {
    let text = text.split(NO_PROMISES).next().unwrap_or_default();
    let mut found: Vec<String> = Vec::new();
    let mut in_item = false;
    let mut in_table = false;
    for line in text.lines() {
        let is_row = line.starts_with('|');
        if line.starts_with("- ") || (is_row && in_table && !line.starts_with("|---")) {
            found.push(line.to_owned());
            in_item = !is_row;
        } else if in_item && line.starts_with("  ") {
            let item = found.last_mut().expect("an item was begun");
            item.push('\n');
            item.push_str(line);
        } else {
            in_item = false;
        }
        in_table = is_row;
    }
    found
}

/// The promises that no test stands behind.
fn unfounded(text: &str, files: &BTreeMap<String, Names>) -> Vec<String> {
    let mut wrong = Vec::new();
    for promise in promises(text) {
        let head: String = promise.chars().take(60).collect();
        let Some((_, shown_by)) = promise.split_once('→') else {
            wrong.push(format!("no test behind: {head}"));
            continue;
        };
        let tests: Vec<&str> = quoted(shown_by).collect();
        if tests.is_empty() {
            wrong.push(format!("no test behind: {head}"));
        }
        let missing = tests.into_iter().filter_map(|t| existing(t, files).err());
        wrong.extend(missing.map(|objection| format!("{head}: {objection}")));
    }
    wrong
}

#[track_caller]
fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}\n", found.join("\n  "));
}

#[test]
fn behind_each_promise_stands_a_test() {
    let text = read("docs/semantics.md");
    assert!(promises(&text).len() > 50, "this test looks past them");
    none("docs/semantics.md", &unfounded(&text, &test_files()));
    for document in PROMISING {
        none(document, &unfounded(&read(document), &test_files()));
    }
}

#[test]
fn a_promise_without_a_test_is_noticed() {
    let mut files = BTreeMap::new();
    files.insert(
        "deaths".to_owned(),
        Names::of("#[test] fn one() {} fn no_test() {}"),
    );
    for right in [
        "- It works. → `deaths::one`",
        "- It works,\n  always. →\n  `deaths::one`",
        "Prose promises nothing by itself.",
        "| what | test |\n|---|---|\n| it works | → `deaths::one` |",
        "## What is not promised\n- That it works.",
    ] {
        assert_eq!(unfounded(right, &files), Vec::<String>::new(), "{right}");
    }
    for (wrong, objection) in [
        ("- It works.", "no test behind"),
        ("- It works. →", "no test behind"),
        ("- It works. → `deaths::two`", "has no fn two"),
        (
            "- It works. → `deaths::one`, `deaths::two`",
            "has no fn two",
        ),
        ("- It works. → `births::one`", "there is no tests/births.rs"),
        (
            "- It works. → `src/births::one`",
            "there is no src/births.rs",
        ),
        ("- It works. → `deaths::no_test`", "which is no test"),
        ("| a | b |\n|---|---|\n| it works | |", "no test behind"),
    ] {
        let found = unfounded(wrong, &files);
        assert_eq!(found.len(), 1, "{wrong}: {found:?}");
        assert!(found[0].contains(objection), "{wrong}: {found:?}");
    }
}

/// Also where a name stands in the middle of a sentence.
#[test]
fn every_test_that_a_document_names_exists() {
    let files = test_files();
    let mut wrong = Vec::new();
    for document in DOCUMENTS {
        let text = read(document);
        for name in quoted(&text) {
            let file = name.split("::").next().unwrap_or_default();
            if name.contains("::") && files.contains_key(file) {
                let missing = existing(name, &files).err();
                wrong.extend(missing.map(|objection| format!("{document}: {objection}")));
            }
        }
    }
    none("names without a test", &wrong);
}

#[test]
fn links_in_the_documents_lead_to_files_of_the_package() {
    let mut dead = Vec::new();
    for document in DOCUMENTS {
        let text = read(document);
        let beside = Path::new(document).parent().expect("a file has a parent");
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            let is_file = !target.is_empty() && !target.contains("://");
            if is_file && !package_file("").join(beside).join(target).exists() {
                dead.push(format!("{document}: {target}"));
            }
        }
    }
    none("links that lead nowhere", &dead);
}

/// The fenced blocks of a language.
fn blocks<'a>(text: &'a str, language: &'a str) -> impl Iterator<Item = &'a str> {
    let fence = format!("```{language}\n");
    let parts: Vec<&str> = text.split(&fence).skip(1).collect();
    parts
        .into_iter()
        .map(|part| part.split("```").next().unwrap_or_default())
}

#[test]
fn the_readme_shows_the_function_of_the_example() {
    let readme = read("README.md");
    let block = blocks(&readme, "rust").next().expect("a Rust block");
    let function = &block[block.find("async fn").expect("a function")..];
    let example = read("examples/supervised_restart.rs");
    assert!(
        example.contains(function),
        "examples/supervised_restart.rs has another function than README.md"
    );
}

/// The lines of an output, without what is different each time: the identity of the operation,
/// and whether the end of the process or that of its output was seen first.
fn constant(output: &str) -> Vec<String> {
    let between = |line: &str, from: &str, to: &str| {
        let (before, rest) = line.split_once(from)?;
        let (_, after) = rest.split_once(to)?;
        Some(format!("{before}{from}…{to}{after}"))
    };
    output
        .lines()
        .map(|line| {
            let line = between(line, "[operation ", "]").unwrap_or_else(|| line.to_owned());
            between(&line, "outcome unknown: ", " Find out").unwrap_or(line)
        })
        .collect()
}

#[test]
fn the_readme_shows_what_the_example_prints() {
    let test = std::env::current_exe().expect("a test has a path");
    let built = test.ancestors().nth(2).expect("target/PROFILE/deps/test");
    let example = built.join("examples/supervised_restart");
    let run = Command::new(&example).output();
    let run = run.unwrap_or_else(|e| panic!("{}: {e}; run plain `cargo test`", example.display()));
    assert!(run.status.success(), "{run:?}");
    let readme = read("README.md");
    let shown = blocks(&readme, "text").next().expect("a block of output");
    let printed = String::from_utf8_lossy(&run.stdout);
    assert_eq!(constant(shown), constant(&printed));
}
