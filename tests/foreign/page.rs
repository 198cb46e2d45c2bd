//! `docs/servers.md`, from the rows.

use std::{fmt::Write as _, path::PathBuf};

use crate::rows::{Program, ROWS, Row, Seat, Wire};

const HEAD: &str = "\
# Servers that we did not write

Each of these is installed as it is published and run for real by `bash .ci/run node_tools
python_tools foreign`: over stdio as a child process, over streamable HTTP as a process of its own.
All but the first are small servers of the tests' own (`tests/foreign/servers`) on somebody else's
SDK, one for each, that offer the same and write down in a ledger what ran. A plain `cargo test`
runs the rows whose runtime is there and names the others on stderr.

`tests/foreign/rows.rs` states what each server has and does, and the tests demand it. This page is
written from those rows; `foreign::the_document_says_what_the_rows_say` compares them.

";

const ON_EACH_SEAT: &str = "
## What is done with each of them

On each transport, with the automatic era, and pinned to 2025-11-25 where a server serves both:

- The revision is the one in the table, and nothing on stdout is taken for a message that is none. →
  `foreign::each_foreign_server_negotiates_the_revision_that_its_row_states`
- Tools, prompts and resources are listed, all pages. →
  `foreign::each_foreign_server_lists_what_its_row_states`
- A tool is called; a tool that fails has answered. →
  `foreign::a_foreign_tool_answers_and_a_tool_that_fails_has_answered`
- A prompt with an argument, a resource, and a resource of a template are read. →
  `foreign::a_foreign_prompt_a_resource_and_one_of_a_template_are_read`
- Templates are listed, and an argument is completed. →
  `foreign::a_foreign_server_lists_its_templates_and_completes_an_argument`
- Progress keeps a call alive that takes longer than its idle limit. →
  `foreign::progress_of_a_foreign_tool_keeps_a_call_alive_that_is_longer_than_its_idle_limit`
- The progress of a call is read as the server sent it. →
  `foreign::the_progress_of_a_foreign_tool_is_read_as_it_was_sent_and_ends_with_the_call`
- A form and a sample are asked for in the middle of a call, and the user's handler answers. →
  `foreign::what_a_foreign_tool_asks_in_a_call_is_answered_by_the_users_handler`
- A change of a resource is told to who subscribed, and a server that cannot tell is named. →
  `foreign::a_change_at_a_foreign_server_is_told_and_a_server_that_cannot_tell_is_named`
- A call whose future is dropped is cancelled at the server, and the session works on. →
  `foreign::a_foreign_server_is_told_of_a_call_that_nobody_waits_for`
- The process is killed in the middle of a call: the outcome is unknown, the ledger has the effect
  once, and the next call works on generation 2. →
  `foreign::a_foreign_server_killed_in_a_call_leaves_it_unknown_run_once_and_the_next_call_works`
- The process is killed and started again between calls: a read finds it. →
  `foreign::a_foreign_server_restarted_between_calls_is_found_again_by_a_read`
- After each of these no process of the server is left. → the same tests

";

fn transport(seat: &Seat) -> &'static str {
    match seat.wire {
        Wire::Stdio => "stdio",
        Wire::Http => "HTTP",
    }
}

fn written_in(program: Program) -> &'static str {
    match program {
        Program::Python(..) => "PyPI",
        Program::Node(_) | Program::Everything => "npm",
        Program::Rmcp => "Cargo.lock",
    }
}

fn seats(page: &mut String, row: &Row) {
    for seat in row.seats {
        let era = if seat.is_pinned {
            "pinned"
        } else {
            "automatic"
        };
        let asks = if seat.asks { "yes" } else { "no" };
        let tells = if seat.tells { "yes" } else { "no" };
        let _ = writeln!(
            page,
            "| {} | {} | {era} | {} | {asks} | {tells} |",
            row.name,
            transport(seat),
            seat.revision
        );
    }
}

fn written() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("| row | package | version | from |\n|---|---|---|---|\n");
    for row in &ROWS {
        let from = written_in(row.program);
        let _ = writeln!(
            page,
            "| {} | `{}` | {} | {from} |",
            row.name, row.package, row.version
        );
    }
    page.push_str(ON_EACH_SEAT);
    page.push_str("## What was negotiated\n\n");
    page.push_str("| row | transport | era | revision | asks the client | tells of changes |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for row in &ROWS {
        seats(&mut page, row);
    }
    page.push_str("\n## What was found\n\n");
    for row in &ROWS {
        for (found, test) in row.found {
            let _ = writeln!(page, "- **{}**: {found} → `{test}`", row.name);
        }
    }
    page
}

/// Compares the page with the rows; with `FOREIGN_WRITE` set it is written.
pub fn check() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/servers.md");
    let written = written();
    if std::env::var_os("FOREIGN_WRITE").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    for line in written.lines().filter(|line| line.contains('→')) {
        for name in line.rsplit('→').next().unwrap_or_default().split('`') {
            let Some((file, test)) = name.split_once("::") else {
                continue;
            };
            let file = path.with_file_name(format!("../tests/{file}.rs"));
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.contains(&format!("fn {test}()")), "{name}");
        }
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        there, written,
        "FOREIGN_WRITE=1 cargo test --test foreign writes it"
    );
}

/// That what is installed is what the rows say, by the files that the installers are given.
pub fn pinned(row: &Row) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    match row.program {
        Program::Python(environment, _) => {
            let requirements = read(&format!("tests/foreign/python/{environment}.txt"));
            let name = format!("{}==", row.package);
            let line = requirements.lines().find_map(|l| l.strip_prefix(&name));
            line.unwrap_or_default().to_owned()
        }
        Program::Node(_) | Program::Everything => {
            let wanted: serde_json::Value =
                serde_json::from_str(&read("tests/node/package.json")).unwrap();
            let version = &wanted["dependencies"][row.package];
            version.as_str().unwrap_or_default().to_owned()
        }
        Program::Rmcp => {
            let lock = read("Cargo.lock");
            let (_, after) = lock.split_once("name = \"rmcp\"\nversion = \"").unwrap();
            after.split('"').next().unwrap_or_default().to_owned()
        }
    }
}
