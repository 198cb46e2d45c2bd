//! Facts about the package's files: that every test is built and run, and that no text ties the
//! package to one machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::none_of;
use crate::source::{Token, files_below, package_file, read, tokens_of};

/// The directory that cargo put this test's profile in: `target/debug`.
fn build_directory() -> PathBuf {
    let this = std::env::current_exe().expect("a test knows its own file");
    this.ancestors()
        .nth(2)
        .expect("tests run from target/PROFILE/deps")
        .to_owned()
}

fn stem(file: &Path) -> String {
    file.file_stem()
        .expect("a file has a name")
        .to_string_lossy()
        .into_owned()
}

fn changed(file: &PathBuf) -> Option<std::time::SystemTime> {
    std::fs::metadata(file).and_then(|m| m.modified()).ok()
}

/// The `.rs` files that stand directly in a directory of the package.
fn top_files(directory: &str) -> Vec<PathBuf> {
    let directory = package_file(directory);
    files_below(&directory, "rs")
        .into_iter()
        .filter(|f| f.parent() == Some(directory.as_path()))
        .collect()
}

#[test]
fn the_test_suite_is_whole() {
    let mut missing: Vec<String> = Vec::new();

    // the optional parts of the crate that have cases of their own
    for (feature, on) in [
        ("stdio", cfg!(feature = "stdio")),
        ("http", cfg!(feature = "http")),
        ("tls", cfg!(feature = "tls")),
    ] {
        if !on {
            missing.push(format!(
                "the feature {feature} is off, so its cases did not compile"
            ));
        }
    }

    // what cargo knows of
    let manifest = package_file("Cargo.toml");
    let answer = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
            "--manifest-path",
        ])
        .arg(&manifest)
        .output()
        .expect("cargo runs");
    assert!(
        answer.status.success(),
        "{}",
        String::from_utf8_lossy(&answer.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&answer.stdout).expect("cargo metadata prints JSON");
    let targets: Vec<&serde_json::Value> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|p| p["name"] == env!("CARGO_PKG_NAME"))
        .flat_map(|p| p["targets"].as_array().into_iter().flatten())
        .collect();
    let known = |kind: &str, file: &Path| {
        targets.iter().copied().find(|t| {
            t["kind"]
                .as_array()
                .is_some_and(|k| k.iter().any(|k| k == kind))
                && t["src_path"].as_str().is_some_and(|p| Path::new(p) == file)
        })
    };
    let tests = top_files("tests");
    let examples = top_files("examples");
    assert!(
        !tests.is_empty(),
        "no tests in {}",
        package_file("tests").display()
    );
    for (kind, files) in [("test", &tests), ("example", &examples)] {
        for file in files {
            match known(kind, file) {
                None => missing.push(format!("{} is no {kind} for cargo", file.display())),
                Some(target) => {
                    if kind == "test" && target["test"] != true {
                        missing.push(format!("{} is switched off", file.display()));
                    }
                    if let Some(features) = target["required-features"].as_array() {
                        let extra: Vec<&str> = features
                            .iter()
                            .filter_map(serde_json::Value::as_str)
                            .filter(|f| !["stdio", "http", "tls", "default"].contains(f))
                            .collect();
                        if !extra.is_empty() {
                            missing.push(format!("{} only runs with {extra:?}", file.display()));
                        }
                    }
                }
            }
        }
    }
    for (i, target) in targets.iter().enumerate() {
        if let Some(other) = targets[..i]
            .iter()
            .find(|o| o["src_path"] == target["src_path"])
        {
            missing.push(format!(
                "{} is two targets, {} and {}; cargo takes a tests/NAME/main.rs for a test",
                target["src_path"], other["kind"][0], target["kind"][0]
            ));
        }
    }
    let lib = targets
        .iter()
        .find(|t| t["kind"][0] == "lib")
        .expect("a library target");
    if lib["test"] != true || lib["doctest"] != true {
        missing.push("the library's own tests or its doc tests are switched off".to_owned());
    }
    let mut in_bench = false;
    for line in read(&manifest).lines() {
        let bare: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        if bare.starts_with('[') {
            in_bench = bare == "[[bench]]";
        }
        if in_bench {
            // A bench is not part of the suite, and may be a plain program.
            continue;
        }
        for switch in ["autotests=false", "autoexamples=false", "harness=false"] {
            if bare.starts_with(switch) {
                missing.push(format!("Cargo.toml says {line}"));
            }
        }
    }

    // what was built beside this test
    let built = build_directory();
    let listed: Vec<String> = targets
        .iter()
        .filter(|t| t["kind"][0] == "example")
        .filter_map(|t| t["name"].as_str().map(str::to_owned))
        .collect();
    for name in &listed {
        let executable = built
            .join("examples")
            .join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        if !executable.is_file() {
            missing.push(format!(
                "the example {name} was not built: {}",
                executable.display()
            ));
        }
    }
    // a run with --test builds no example: it would talk to a fault server of yesterday
    let newest = |files: Vec<PathBuf>| files.iter().filter_map(changed).max();
    let server = built
        .join("examples")
        .join(format!("fault_server{}", std::env::consts::EXE_SUFFIX));
    if let (Some(built), Some(written)) = (
        changed(&server),
        newest(files_below(&package_file("tests/fault_server"), "rs")),
    ) && built < written
    {
        missing.push(format!("{} is older than its source", server.display()));
    }
    if !listed.iter().any(|n| n == "fault_server") {
        missing.push("the fault server is no example any more, so nothing builds it".to_owned());
    }
    let executables: Vec<String> = std::fs::read_dir(built.join("deps"))
        .expect("tests run from target/PROFILE/deps")
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    for file in &tests {
        let prefix = format!("{}-", stem(file));
        if !executables
            .iter()
            .any(|e| e.starts_with(&prefix) && !e.ends_with(".d"))
        {
            missing.push(format!("tests/{}.rs was not built", stem(file)));
        }
    }

    // and what is skipped although it is there
    for directory in ["src", "tests"] {
        for file in files_below(&package_file(directory), "rs") {
            missing.extend(skipped(&read(&file)).map(|how| format!("{}: {how}", file.display())));
        }
    }

    none_of(
        "left out; run a plain `cargo test`, without --test, --lib or --features",
        &missing,
    );
}

/// An attribute that lets a test pass without running, also inside a macro.
fn skipped(text: &str) -> Option<String> {
    let Ok(tokens) = syn::parse_str::<Tokens>(text) else {
        return None;
    };
    let tokens = tokens.0;
    for (i, window) in tokens.windows(3).enumerate() {
        let [Token::Mark('#'), Token::Open('['), Token::Word(name)] = window else {
            continue;
        };
        if name == "ignore" {
            return Some("an ignored test".to_owned());
        }
        if name == "cfg_attr" {
            let mut depth = 0_i32;
            for token in &tokens[i + 3..] {
                match token {
                    Token::Open(_) => depth += 1,
                    Token::Close(_) => depth -= 1,
                    Token::Word(w) if w == "ignore" => {
                        return Some("a test ignored on a condition".to_owned());
                    }
                    _ => {}
                }
                if depth <= 0 {
                    break;
                }
            }
        }
    }
    None
}

struct Tokens(Vec<Token>);

impl syn::parse::Parse for Tokens {
    fn parse(input: syn::parse::ParseStream<'_>) -> syn::Result<Tokens> {
        Ok(Tokens(tokens_of(&syn::buffer::TokenBuffer::new2(
            input.parse()?,
        ))))
    }
}

#[test]
fn planted_skips_are_found() {
    // in pieces, so that this file has none itself
    for text in [
        "#[test] #[ig~nore] fn f() {}",
        "#[ig~nore = \"slow\"] fn f() {}",
        "m! { #[test] #[ig~nore] fn f() {} }",
        "#[cfg_attr(not(unix), ig~nore)] fn f() {}",
    ] {
        assert!(skipped(&text.replace('~', "")).is_some(), "{text}");
    }
    for text in [
        "fn ignore() {}",
        "// #[ignore]",
        "#[cfg_attr(unix, allow(x))] fn ignore() {}",
    ] {
        assert_eq!(skipped(text), None, "{text}");
    }
}

/// The documents must work for somebody who has another mirror and another disk.
#[test]
fn no_text_names_a_registry_host_or_a_path_of_this_machine() {
    // in pieces, so that this file has none of them
    let needles: Vec<String> = [
        ["crates", ".io"],
        ["docs", ".rs/"],
        ["npm", "js.com"],
        ["npm", "js.org"],
        ["py", "pi.org"],
        ["pythonhosted", ".org"],
        ["/wo", "rk/"],
        ["/ro", "ot/"],
    ]
    .iter()
    .map(|pieces| pieces.concat())
    .collect();
    let mut files: Vec<PathBuf> = ["docs", "src", "tests", "examples", "benches", ".ci"]
        .iter()
        .flat_map(|d| files_below(&package_file(d), ""))
        .collect();
    for single in [
        "README.md",
        "CHANGELOG.md",
        "Cargo.toml",
        "deny.toml",
        "rustfmt.toml",
        "clippy.toml",
    ] {
        files.push(package_file(single));
    }
    let mut found = Vec::new();
    for file in files.iter().filter(|f| f.is_file()) {
        let text =
            String::from_utf8_lossy(&std::fs::read(file).expect("a readable file")).into_owned();
        for (number, line) in text.lines().enumerate() {
            for needle in needles.iter().filter(|n| line.contains(n.as_str())) {
                found.push(format!("{}:{}: {needle}", file.display(), number + 1));
            }
        }
    }
    none_of("hosts and paths that only exist here", &found);
}
