//! What supervision costs: plain rmcp and this crate side by side in one run, as ratios, and beside them
//! the floor, the same bytes through the same pipes and sockets with no protocol.
//!
//! ```text
//! cargo bench --bench calls                   the whole table
//! cargo bench --bench calls -- --quick        fewer rounds
//! cargo bench --bench calls -- --check        fails where a bar is missed
//! cargo bench --bench calls -- stdio http     the parts of that name
//! cargo bench --bench calls -- --profile      where the instructions of a call go; also `--profile rmcp`
//! ```

mod clients;
mod count;
mod fan_out;
mod floor;
mod options;
mod order;
mod recovery;
mod servers;
mod side;
mod speed;
mod spread;
mod table;

use std::process::ExitCode;

use options::Options;
use table::Table;

/// The parts, in the order in which they are measured.
type Part = (&'static str, fn(&mut Table, &Options));

const PARTS: [Part; 14] = [
    ("memory", speed::memory),
    ("rmcp", speed::memory_rmcp),
    ("stdio", speed::stdio),
    ("http", speed::http),
    ("large", speed::large),
    ("payload", speed::payload),
    ("structured", speed::structured),
    ("instructions", count::instructions),
    ("structured-counted", count::structured),
    ("held", count::held),
    ("order", order::order),
    ("fan-out", fan_out::fan_out),
    ("kill", recovery::after_kill),
    ("start-up", recovery::start_up),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|w| w != "--bench")
        .collect();
    // What this program is when it starts itself.
    match words.first().map(String::as_str) {
        Some(servers::SERVE) => {
            servers::serve_stdio(servers::Answer::of(&words[1]));
            return ExitCode::SUCCESS;
        }
        Some(count::COUNTED) => {
            count::carry_out(&words[1..]);
        }
        Some("--profile") => {
            print!("{}", count::profile(&words[1..]));
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let options = Options::of(words);
    let mut table = Table::new();
    for (name, part) in PARTS {
        if options.wants(name) {
            part(&mut table, &options);
        }
    }
    let missed = table.missed();
    for line in &missed {
        eprintln!("missed: {line}");
    }
    if options.check && !missed.is_empty() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
