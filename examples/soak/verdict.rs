//! What has to be true at the end.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use mcp_supervisor::{
    Outcome,
    journal::{Fact, Filter, Journal, Record, State},
};

use crate::{
    Ending, clerk, shop,
    shop::{LOOKED_UP, ONCE, PEEK, Seen},
    told::{Became, Counts, Told},
    town::Town,
};

/// The most attempts of an operation, unless it is said otherwise.
const ATTEMPTS: u64 = 3;

/// What callers were told of one mark.
#[derive(Default)]
struct Said {
    tool: String,
    operations: u64,
    answered: u64,
    /// Not sent, or refused.
    nothing: u64,
    not_sent: u64,
}

/// What servers saw of one mark.
#[derive(Clone, Copy, Default)]
struct Log {
    ran: u64,
    received: u64,
    refused: u64,
}

/// What was found to be wrong, and how much of it.
#[derive(Default)]
pub(crate) struct Wrong(Vec<String>);

impl Wrong {
    pub(crate) fn add(&mut self, what: impl Into<String>) {
        self.0.push(what.into());
    }

    pub(crate) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(what());
        }
    }

    /// Prints it. Gives back whether there is none.
    pub(crate) fn print(&self) -> bool {
        for wrong in self.0.iter().take(40) {
            println!("WRONG: {wrong}");
        }
        if self.0.len() > 40 {
            println!("WRONG: and {} more", self.0.len() - 40);
        }
        self.0.is_empty()
    }
}

pub(crate) fn print(counts: &Counts) {
    print!("{:12}", "operations");
    for became in Became::ALL {
        print!("{:>12}", became.as_str());
    }
    println!();
    let rows: std::collections::BTreeSet<_> = counts.keys().map(|(row, _)| *row).collect();
    for row in rows {
        print!("{row:12}");
        for became in Became::ALL {
            print!("{:>12}", counts.get(&(row, became)).copied().unwrap_or(0));
        }
        println!();
    }
}

/// Holds what was told against what was done.
pub(crate) fn effects(town: &Town, told: &Told, wrong: &mut Wrong) -> Ending {
    let mut said: HashMap<String, Said> = HashMap::new();
    told.read(|mark, tool, became| {
        let said = said.entry(mark.to_owned()).or_default();
        said.tool = tool.to_owned();
        said.operations += 1;
        said.answered += u64::from(became == Became::Answered);
        said.nothing += u64::from(matches!(became, Became::NotSent | Became::Rejected));
        said.not_sent += u64::from(became == Became::NotSent);
    })?;
    let logs = logs(&town.run)?;
    let mut by_many: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for (mark, said) in &said {
        let log = logs.get(mark).copied().unwrap_or_default();
        let tool = said.tool.as_str();
        if tool != PEEK {
            *by_many.entry(("effects", log.ran)).or_default() += 1;
        }
        *by_many
            .entry(("requests", log.received.min(9)))
            .or_default() += 1;
        let Said {
            operations,
            answered,
            nothing,
            not_sent,
            ..
        } = *said;
        let Log {
            ran,
            received,
            refused,
        } = log;
        let what = |fact: &str| {
            format!(
                "{mark} ({tool}): {fact}; {ran} effects, {received} received, {refused} refused, of \
                 {operations} operations {answered} answered, {not_sent} not sent, {} refused",
                nothing - not_sent
            )
        };
        wrong.check(ran <= 1, || what("its effect stands more than once"));
        wrong.check(ran >= 1 || answered == 0 || tool == PEEK, || {
            what("it was answered, and has no effect")
        });
        wrong.check(ran == 0 || nothing < operations, || {
            what("it was told not to have run, and has an effect")
        });
        wrong.check(received + refused == 0 || not_sent < operations, || {
            what("it was told not to be sent, and was received")
        });
        let most = match tool {
            ONCE | LOOKED_UP => 1,
            _ => ATTEMPTS * operations,
        };
        wrong.check(received <= most, || {
            what("it was sent more often than allowed")
        });
    }
    let unasked = logs.keys().filter(|mark| !said.contains_key(*mark)).count();
    wrong.check(unasked == 0, || {
        format!("{unasked} marks have effects and were ordered by nobody")
    });
    for what in ["effects", "requests"] {
        let many = by_many.iter().filter(|((of, _), _)| *of == what);
        let many: Vec<_> = many
            .map(|((_, many), keys)| format!("{many}: {keys}"))
            .collect();
        println!("keys by their {what:8}  {}", many.join(", "));
    }
    wrong.check(by_many.contains_key(&("effects", 1)), || {
        "no call had an effect".to_owned()
    });
    Ok(())
}

/// What all servers saw, by mark.
fn logs(run: &Path) -> Ending<HashMap<String, Log>> {
    let mut logs = HashMap::new();
    for entry in std::fs::read_dir(run)? {
        let path = entry?.path().join("effects.db");
        if !path.exists() {
            continue;
        }
        let log = rusqlite::Connection::open(path)?;
        let mut select = log.prepare("SELECT mark, seen, tool FROM log WHERE tool <> ?1")?;
        let mut rows = select.query([shop::FOUND])?;
        while let Some(row) = rows.next()? {
            let log: &mut Log = logs.entry(row.get(0)?).or_default();
            let seen: i64 = row.get(1)?;
            log.ran += u64::from(seen == Seen::Ran as i64);
            log.received += u64::from(seen >= Seen::Received as i64);
            log.refused += u64::from(seen == Seen::Refused as i64);
        }
    }
    Ok(logs)
}

/// Each record is settled or says why not, and what its contract could settle is settled.
pub(crate) async fn journal(journal: &Journal, town: &Town, wrong: &mut Wrong) -> Ending {
    let mut filter = Filter {
        limit: 256,
        ..Filter::default()
    };
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let page = journal.list(&filter).await?;
        let Some(last) = page.last() else { break };
        filter.after = Some(last.intent.operation);
        for record in &page {
            *states.entry(record.state.to_string()).or_default() += 1;
            if !record.state.is_settled() {
                unsettled(record, town, wrong);
            }
        }
    }
    let states: Vec<_> = states
        .iter()
        .map(|(state, many)| format!("{state}: {many}"))
        .collect();
    println!("the journal            {}", states.join(", "));
    Ok(())
}

fn unsettled(record: &Record, town: &Town, wrong: &mut Wrong) {
    let intent = &record.intent;
    let shown = || {
        let mark = clerk::mark(record).unwrap_or("-");
        let facts: Vec<_> = record.history.iter().map(|entry| &entry.fact).collect();
        format!(
            "{mark} ({}) on {}, {:?}: {facts:?}",
            intent.tool, intent.connection, record.state
        )
    };
    wrong.check(record.state == State::OutcomeUnknown, || {
        format!("an operation goes on at the end: {}", shown())
    });
    let says = record.history.iter().any(|entry| match &entry.fact {
        Fact::Without {
            outcome, failure, ..
        } => *outcome == Outcome::Unknown && !failure.cause.is_empty(),
        Fact::Abandoned { host } => !host.is_empty(),
        _ => false,
    });
    wrong.check(says, || {
        format!("nobody knows, and nothing says why: {}", shown())
    });
    // A look-up that finds nothing says nothing.
    let finds_out = clerk::can_find_out(record) && intent.tool != LOOKED_UP;
    let is_owned = town.shared(intent.connection.as_str()).is_some();
    wrong.check(!(finds_out && is_owned), || {
        format!(
            "its contract could find out, and it is unknown: {}",
            shown()
        )
    });
}
