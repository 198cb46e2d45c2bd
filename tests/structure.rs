//! Facts about the source as a whole. Each test parses `src` (or lists the package's files) and fails
//! with one line for each place that breaks the fact in its name.
//!
//! The checkers are in `tests/structure/`. `planted.rs` there runs them on small sources that are wrong
//! on purpose, so a checker that sees nothing cannot pass; `suite.rs` looks at the package's files.

#[path = "structure/handlers.rs"]
mod handlers;
#[path = "structure/planted.rs"]
mod planted;
#[path = "structure/reading.rs"]
mod reading;
#[path = "structure/source.rs"]
mod source;
#[path = "structure/suite.rs"]
mod suite;
#[path = "structure/surface.rs"]
mod surface;

use source::Tree;

/// Fails with all findings, one a line.
#[track_caller]
fn none_of(what: &str, findings: &[String]) {
    assert!(
        findings.is_empty(),
        "{what}:\n  {}\n",
        findings.join("\n  ")
    );
}

fn rmcp_list() -> Vec<&'static str> {
    include_str!("structure/rmcp_types.txt")
        .lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with('#'))
        .collect()
}

// ---------------------------------------------------------------- the rooms

#[test]
fn no_module_names_one_below_it() {
    let tree = Tree::of_this_package();
    none_of(
        "modules that name what they must not",
        &reading::order_violations(&tree),
    );
}

#[test]
fn every_source_file_is_in_the_module_tree() {
    none_of(
        "files that no module names",
        &reading::orphans(&Tree::of_this_package()),
    );
}

#[test]
fn pure_modules_have_no_clock_io_or_spawn() {
    let tree = Tree::of_this_package();
    none_of(
        "modules that do more than compute",
        &reading::purity_violations(&tree),
    );
    for module in ["evidence", "policy", "connection::step"] {
        let path: Vec<String> = module.split("::").map(str::to_owned).collect();
        assert!(
            tree.modules.contains_key(&path),
            "{module} is gone: this test looks past it"
        );
    }
}

#[test]
fn no_lock_or_semaphore_orders_calls() {
    none_of(
        "locks on the way of a call",
        &reading::lock_violations(&Tree::of_this_package()),
    );
}

#[test]
fn no_actor_handler_awaits_a_peer() {
    let (actors, findings) = handlers::handler_violations(&Tree::of_this_package());
    none_of(
        "waits in actor handlers; what may be awaited stands in tests/structure/handlers.rs, with why",
        &findings,
    );
    assert!(
        actors >= 2,
        "{actors} actors in connection and supervisor: this test looks past them"
    );
}

// ---------------------------------------------------------------- the face

#[test]
fn no_ractor_type_in_a_public_signature_outside_link() {
    let tree = Tree::of_this_package();
    none_of(
        "the actor framework shows",
        &surface::ractor_violations(&tree),
    );
}

#[test]
fn rmcp_types_in_public_signatures_are_from_the_written_list() {
    let tree = Tree::of_this_package();
    let list = rmcp_list();
    none_of(
        "rmcp types that tests/structure/rmcp_types.txt does not have",
        &surface::rmcp_violations(&tree, &list),
    );
    for name in surface::unused_rmcp_names(&tree, &list) {
        println!("on the list and shown nowhere: {name}");
    }
}

#[test]
fn every_public_async_fn_says_what_dropping_it_does() {
    let tree = Tree::of_this_package();
    none_of(
        "futures without a word on dropping",
        &surface::cancel_safety_violations(&tree),
    );
}

#[test]
fn library_code_has_no_unwrap() {
    none_of(
        "panics without a reason",
        &surface::unwrap_violations(&Tree::of_this_package()),
    );
}
