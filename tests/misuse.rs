//! A right that a handle does not have does not compile, and the compiler names it.
//!
//! Each refusal stands beside a twin that differs from it in the type of the handle alone and
//! compiles, so that nothing but the missing right can be what is refused. The twins are a module
//! of this test, so they compile whenever it does; beside that only a check is needed, which is
//! much less work than a build of everything that the crate depends on.

#[path = "misuse/held_rights.rs"]
mod held_rights;

#[test]
fn a_missing_right_does_not_compile_and_its_name_is_told() {
    held_rights::main();
    trybuild::TestCases::new().compile_fail("tests/misuse/missing_rights.rs");
}

#[test]
fn each_refusal_differs_from_its_twin_in_the_handle_alone() {
    let held = include_str!("misuse/held_rights.rs");
    let missing = include_str!("misuse/missing_rights.rs");
    let code = |text: &'static str| text.lines().filter(|line| !line.starts_with("//"));
    assert_eq!(code(held).count(), code(missing).count());
    let differing: Vec<_> = code(held)
        .zip(code(missing))
        .filter(|(held, missing)| held != missing)
        .collect();
    let swaps = [
        ("restart_lent", "SharedConnection", "LentConnection"),
        ("close_shared", "OwnedConnection", "SharedConnection"),
        ("close_lent", "OwnedConnection", "LentConnection"),
        ("clone_owned", "SharedConnection", "OwnedConnection"),
    ];
    assert_eq!(differing.len(), swaps.len(), "{differing:#?}");
    for ((held, missing), (function, has, lacks)) in differing.into_iter().zip(swaps) {
        assert!(held.contains(function), "{held}");
        assert_eq!(held.replace(has, lacks), missing);
    }
}

#[test]
fn each_refusal_is_expected_to_name_the_missing_right_and_the_way_out() {
    let said = include_str!("misuse/missing_rights.stderr");
    for message in [
        "`Borrower` has no right to restart the connection",
        "`Sharer` has no right to close the connection",
        "`Borrower` has no right to close the connection",
        "`Owner` has no right to be cloned",
        "a lent connection is its owner's to replace: lend the replacement as a new handle",
        "only the `OwnedConnection` that opened it, or its supervisor, closes a connection",
    ] {
        assert!(said.contains(message), "{message}");
    }
    assert!(
        !said.contains("E0425") && !said.contains("E0433"),
        "a name is wrong: {said}"
    );
}
