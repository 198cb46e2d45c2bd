//! `docs/cases.md` says for each case of the field which test shows it, on each transport, in each
//! era and for each kind of ownership. A cell is a test that exists, or a reason why there is none.

#[path = "support/names.rs"]
mod names;

use std::collections::BTreeMap;

use names::{Names, existing, package_file, test_files};

/// (letter, numbers): the cases that this crate covers today.
const CASES: [(&str, &[u8]); 6] = [
    ("O", &[1, 2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15]),
    ("H", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ("P", &[1, 2, 3, 4, 5, 6, 7]),
    ("F", &[1, 2, 3, 4, 5]),
    ("S", &[1, 2, 3, 4, 5, 6]),
    ("L", &[1, 3, 4, 5]),
];

const HEADER: [&str; 8] = [
    "case",
    "what is right",
    "stdio·initialize·owned",
    "stdio·2026·owned",
    "http·initialize·owned",
    "http·2026·owned",
    "lent service",
    "lent peer",
];

/// A reason shorter than this explains nothing.
const SHORTEST_REASON: usize = 15;

/// The cells of a table row; `\|` is no border.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim();
    let Some(inner) = line.strip_prefix('|').and_then(|l| l.strip_suffix('|')) else {
        return Vec::new();
    };
    inner
        .replace("\\|", "\u{0}")
        .split('|')
        .map(|c| c.replace('\u{0}', "|").trim().to_owned())
        .collect()
}

/// Everything that is wrong with the table in this text.
fn objections(text: &str, files: &BTreeMap<String, Names>) -> Vec<String> {
    let mut out = Vec::new();
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut in_table = false;
    for line in text.lines() {
        let row = cells(line);
        if row.is_empty() {
            in_table = false;
            continue;
        }
        if row.first().is_some_and(|c| c == HEADER[0]) {
            in_table = true;
            if row != HEADER {
                out.push(format!("the columns are {row:?} and should be {HEADER:?}"));
            }
            continue;
        }
        if !in_table || row.iter().all(|c| c.chars().all(|c| c == '-' || c == ':')) {
            continue;
        }
        let id = row[0].trim_matches('`').to_owned();
        if row.len() != HEADER.len() {
            out.push(format!(
                "{id} has {} cells instead of {}",
                row.len(),
                HEADER.len()
            ));
        } else if rows.insert(id.clone(), row).is_some() {
            out.push(format!("{id} has two rows"));
        }
    }
    for (letter, numbers) in CASES {
        for number in numbers {
            let id = format!("{letter}{number}");
            if !rows.contains_key(&id) {
                out.push(format!("{id} has no row"));
            }
        }
    }
    for (id, row) in &rows {
        if row[1].is_empty() {
            out.push(format!("{id} does not say what is right"));
        }
        // one line per objection, with all the columns that it is about
        let mut about: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (column, cell) in HEADER.iter().zip(row).skip(2) {
            if let Some(objection) = cell_objection(cell, files) {
                about.entry(objection).or_default().push(column);
            }
        }
        for (objection, columns) in about {
            let columns = match columns.len() {
                6 => "all columns".to_owned(),
                _ => columns.join(", "),
            };
            out.push(format!("{id} ({columns}): {objection}"));
        }
    }
    out
}

fn cell_objection(cell: &str, files: &BTreeMap<String, Names>) -> Option<String> {
    if cell.is_empty() {
        return Some("is empty".to_owned());
    }
    if let Some(reason) = cell.strip_prefix('—') {
        let reason = reason.trim();
        if reason.chars().count() < SHORTEST_REASON {
            return Some(format!("gives no reason, only {reason:?}"));
        }
        return reason
            .contains("TODO")
            .then(|| format!("is not done: {reason}"));
    }
    let mut tests = 0;
    for (i, quoted) in cell.split('`').enumerate() {
        if i % 2 == 0 {
            continue;
        }
        tests += 1;
        if let Err(objection) = existing(quoted, files) {
            return Some(objection);
        }
    }
    let between: String = cell.split('`').step_by(2).collect();
    let stray = between.replace("<br>", "").replace([',', ' '], "");
    if tests == 0 || !stray.is_empty() {
        return Some(format!(
            "is neither `file::function` nor — a reason: {cell}"
        ));
    }
    None
}

#[test]
fn every_case_has_a_test_or_a_reason() {
    let text =
        std::fs::read_to_string(package_file("docs/cases.md")).expect("docs/cases.md is there");
    let objections = objections(&text, &test_files());
    assert!(
        objections.is_empty(),
        "docs/cases.md:\n  {}\n",
        objections.join("\n  ")
    );
}

/// The check itself, on tables that are wrong on purpose.
#[test]
fn a_wrong_table_is_noticed() {
    let mut files = BTreeMap::new();
    files.insert(
        "deaths".to_owned(),
        Names::of(
            "mod stdio { #[tokio::test] async fn o1() {} } fn helper() {}
             both_eras! { async fn o2() {} }",
        ),
    );
    fn table(row_of_o1: &str) -> String {
        let mut text = format!("| {} |\n|{}\n", HEADER.join(" | "), "---|".repeat(8));
        for (letter, numbers) in CASES {
            for number in numbers {
                let id = format!("{letter}{number}");
                let cell = if id == "O1" {
                    row_of_o1
                } else {
                    "— not possible on this transport"
                };
                text.push_str(&format!(
                    "| {id} | it works |{}\n",
                    format!(" {cell} |").repeat(6)
                ));
            }
        }
        text
    }
    for right in [
        "`deaths::o1`",
        "`deaths::stdio::o1`",
        "`deaths::o1`, `deaths::o2`",
        "`deaths::o1`<br>`deaths::o2`",
        "— this has no HTTP side at all",
    ] {
        assert_eq!(
            objections(&table(right), &files),
            Vec::<String>::new(),
            "{right}"
        );
    }
    for (wrong, expected) in [
        ("", "is empty"),
        ("TODO", "is neither"),
        ("—", "gives no reason"),
        ("— n/a", "gives no reason"),
        ("— TODO: somebody should look at this", "is not done"),
        ("deaths::o1", "is neither"),
        ("`deaths::o1` mostly", "is neither"),
        ("`o1`", "is not file::function"),
        ("`births::o1`", "there is no tests/births.rs"),
        ("`deaths::o3`", "has no fn o3"),
        ("`deaths::http::o1`", "has no http"),
        ("`deaths::helper`", "which is no test"),
        ("`deaths::o1`, `deaths::o4`", "has no fn o4"),
    ] {
        let found = objections(&table(wrong), &files);
        assert_eq!(found.len(), 1, "{wrong}: {found:?}");
        assert!(found[0].contains(expected), "{wrong}: {found:?}");
    }
    let whole = table("`deaths::o1`");
    for (text, expected) in [
        (whole.replace("| L3 |", "| L9 |"), "L3 has no row"),
        (whole.replace("| O2 |", "| O3 |"), "O3 has two rows"),
        (whole.replace("| http·2026·owned", ""), "the columns are"),
        (
            whole.replace(
                "| P1 | it works |",
                "| P1 | it works | — one cell too many here |",
            ),
            "P1 has 9 cells",
        ),
        (
            whole.replace("| P1 | it works |", "| P1 | |"),
            "P1 does not say what is right",
        ),
        (String::new(), "O1 has no row"),
    ] {
        let found = objections(&text, &files);
        assert!(
            found.iter().any(|f| f.contains(expected)),
            "{expected}: {found:?}"
        );
    }
}
