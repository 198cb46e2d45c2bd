//! The names of the tests that there are, for the documents that name them.
#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub fn package_file(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// The names that one test file (with the helper files in its directory) offers to the table.
#[derive(Debug, Default)]
pub struct Names {
    /// Functions with a test attribute.
    tests: BTreeSet<String>,
    /// Other functions.
    others: BTreeSet<String>,
    /// `fn name` somewhere in the tokens of a macro call, which may make a test of it.
    in_macros: BTreeSet<String>,
    /// Every word, for the modules on the way to a test.
    words: BTreeSet<String>,
}

impl Names {
    pub fn of(text: &str) -> Names {
        let mut names = Names::default();
        if let Ok(file) = syn::parse_file(text) {
            syn::visit::Visit::visit_file(&mut names, &file);
        }
        names.words = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
            .collect();
        names
    }

    fn extend(&mut self, other: Names) {
        self.tests.extend(other.tests);
        self.others.extend(other.others);
        self.in_macros.extend(other.in_macros);
        self.words.extend(other.words);
    }

    /// What is wrong with `module::function` of this file, if anything is.
    fn objection(&self, path: &str) -> Option<String> {
        let mut parts: Vec<&str> = path.split("::").collect();
        let function = parts.pop().unwrap_or_default();
        if let Some(module) = parts.iter().find(|m| !self.words.contains(**m)) {
            return Some(format!("has no {module}"));
        }
        if self.tests.contains(function) || self.in_macros.contains(function) {
            None
        } else if self.others.contains(function) {
            Some(format!("has {function}, which is no test"))
        } else {
            Some(format!("has no fn {function}"))
        }
    }
}

impl<'ast> syn::visit::Visit<'ast> for Names {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let is_test = item
            .attrs
            .iter()
            .any(|a| a.path().segments.last().is_some_and(|s| s.ident == "test"));
        let names = if is_test {
            &mut self.tests
        } else {
            &mut self.others
        };
        names.insert(item.sig.ident.to_string());
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let text = mac.tokens.to_string();
        let words: Vec<&str> = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|w| !w.is_empty())
            .collect();
        for pair in words.windows(2) {
            if pair[0] == "fn" {
                self.in_macros.insert(pair[1].to_owned());
            }
        }
    }
}

/// All test targets by name, and the files of `src` with their unit tests, as `src/call/attempt`.
pub fn test_files() -> BTreeMap<String, Names> {
    let mut files = BTreeMap::new();
    let tests = package_file("tests");
    for path in rust_files(&tests) {
        let below = path.strip_prefix(&tests).expect("it is below");
        // The helper files in `tests/cases/` belong to the target `tests/cases.rs`.
        let target = below.iter().next().map(Path::new).and_then(Path::file_stem);
        let target = target.expect("it has a name").to_string_lossy();
        add(&mut files, target.into_owned(), &path);
    }
    let package = package_file("");
    for path in rust_files(&package_file("src")) {
        let below = path.strip_prefix(&package).expect("it is below");
        let name = below.with_extension("").to_string_lossy().into_owned();
        add(&mut files, name, &path);
    }
    files.retain(|name, _| name.starts_with("src/") || tests.join(format!("{name}.rs")).exists());
    files
}

fn add(files: &mut BTreeMap<String, Names>, name: String, path: &Path) {
    let text = std::fs::read_to_string(path).expect("a readable file");
    let names = files.entry(name).or_default();
    names.extend(Names::of(&text));
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

/// Whether there is the test that a text names as `file::function` or `file::module::function`.
pub fn existing(quoted: &str, files: &BTreeMap<String, Names>) -> Result<(), String> {
    let Some((file, path)) = quoted.split_once("::") else {
        return Err(format!("{quoted} is not file::function"));
    };
    let Some(names) = files.get(file) else {
        return Err(format!("there is no {}", shown(file)));
    };
    match names.objection(path) {
        Some(objection) => Err(format!("{} {objection}", shown(file))),
        None => Ok(()),
    }
}

fn shown(file: &str) -> String {
    let directory = if file.starts_with("src/") {
        ""
    } else {
        "tests/"
    };
    format!("{directory}{file}.rs")
}
