//! The table: what was measured, and the bar that it has to clear.

use crate::spread::Spread;

/// What a ratio to plain rmcp has to be.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// It is told, and holds nothing.
    Told,
}

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
            Self::Told => write!(f, "–"),
        }
    }
}

/// The lines of the table, which are printed as they come.
pub(crate) struct Table {
    missed: Vec<String>,
}

impl Table {
    pub(crate) fn new() -> Self {
        println!("| what | ratio | bar | | rmcp | ours | floor |");
        println!("|---|---|---|---|---|---|---|");
        Self { missed: Vec::new() }
    }

    /// A ratio with its quartiles, and what the sides themselves had.
    pub(crate) fn row(&mut self, what: &str, ratio: &Spread, bar: Bar, sides: &Sides) {
        self.line(what, ratio.median, &ratio.to_string(), bar, sides);
    }

    /// A number that has no spread.
    pub(crate) fn exact(&mut self, what: &str, value: f64, bar: Bar, sides: &Sides) {
        let digits = if value.fract() == 0.0 { 0 } else { 3 };
        self.line(what, value, &format!("{value:.digits$}"), bar, sides);
    }

    /// What could not be measured here, and why.
    pub(crate) fn absent(&mut self, what: &str, why: &str) {
        println!("| {what} | not measured: {why} | | | | | |");
        self.missed.push(format!("{what}: not measured, {why}"));
    }

    fn line(&mut self, what: &str, value: f64, shown: &str, bar: Bar, sides: &Sides) {
        // As many digits as the bars have.
        let rounded = (value * 100.0).round() / 100.0;
        let word = match bar {
            Bar::Told => "",
            Bar::AtMost(limit) if rounded <= limit => "met",
            Bar::AtLeast(limit) if rounded >= limit => "met",
            _ => "missed",
        };
        if word == "missed" {
            self.missed
                .push(format!("{what}: {shown}, the bar is {bar}"));
        }
        let Sides { rmcp, ours, floor } = sides;
        println!("| {what} | {shown} | {bar} | {word} | {rmcp} | {ours} | {floor} |");
    }

    /// What did not clear its bar.
    pub(crate) fn missed(self) -> Vec<String> {
        self.missed
    }
}

/// What each side had, in words.
#[derive(Default)]
pub(crate) struct Sides {
    pub(crate) rmcp: String,
    pub(crate) ours: String,
    pub(crate) floor: String,
}
