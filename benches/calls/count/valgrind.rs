//! This program under valgrind.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Output},
};

use crate::servers;

/// All instructions of the program with these arguments; nothing, if valgrind is not there.
pub(super) fn instructions(words: &[String]) -> Option<u64> {
    let text = std::fs::read_to_string(&callgrind(words)?.file).expect("callgrind wrote it");
    let total = text
        .lines()
        .find_map(|l| l.strip_prefix("totals:").or(l.strip_prefix("summary:")));
    let total = total.expect("callgrind writes totals").trim();
    Some(total.parse().expect("a number"))
}

/// The bytes that are allocated when the program exits; nothing, if valgrind is not there.
pub(super) fn bytes_at_exit(words: &[String]) -> Option<u64> {
    let options = [
        "--tool=memcheck",
        "--leak-check=no",
        "--undef-value-errors=no",
    ];
    let output = valgrind(&options.map(OsString::from), words)?;
    let told = String::from_utf8_lossy(&output.stderr);
    let (_, rest) = told.split_once("in use at exit: ").expect("a summary");
    let (bytes, _) = rest.split_once(" bytes").expect("a number of bytes");
    Some(bytes.replace(',', "").parse().expect("a number"))
}

/// Where the program spends its instructions, as callgrind's own tool prints it: each function with what
/// it calls, and each alone.
pub(super) fn profile(words: &[String]) -> Option<String> {
    let report = callgrind(words)?;
    let annotated = |inclusive: &str| {
        let output = Command::new("callgrind_annotate")
            .args([inclusive, "--threshold=97", "--auto=no"])
            .arg(&report.file)
            .output()
            .expect("it comes with valgrind");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let (with, alone) = (annotated("--inclusive=yes"), annotated("--inclusive=no"));
    Some(format!(
        "==== with what they call\n{with}\n==== alone\n{alone}"
    ))
}

/// What callgrind has written, which goes when it is dropped.
struct Report {
    file: PathBuf,
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn callgrind(words: &[String]) -> Option<Report> {
    let name = format!("callgrind.{}.{}", std::process::id(), words.join("."));
    let report = Report {
        file: std::env::temp_dir().join(name),
    };
    let mut out = OsString::from("--callgrind-out-file=");
    out.push(&report.file);
    valgrind(&["--tool=callgrind".into(), out], words)?;
    Some(report)
}

fn valgrind(options: &[OsString], words: &[String]) -> Option<Output> {
    let output = Command::new("valgrind")
        .args(options)
        .arg(servers::this_program())
        .args(words)
        .output()
        .ok()?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "valgrind failed: {told}");
    Some(output)
}
