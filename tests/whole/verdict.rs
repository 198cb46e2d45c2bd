//! What has to be true after any game.

use std::{collections::BTreeMap, fmt};

use mcp_supervisor::{
    Outcome,
    journal::{Fact, Filter, Record, SqliteStore, State, Store as _},
};
use serde_json::{Value, json};

use super::{game::is_call, plan::Planned};
use crate::support::{host::journal_of, shop::Shop, world::World};

/// What a game came to.
pub(super) struct Verdict {
    pub(super) told: usize,
    states: BTreeMap<String, usize>,
    effects: usize,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (told, effects) = (self.told, self.effects);
        write!(f, "{told} told, {effects} effects, {:?}", self.states)
    }
}

impl Verdict {
    pub(super) async fn of(
        world: &World,
        shop: &Shop,
        planned: &[Planned],
        told: &[Value],
    ) -> Self {
        let store = SqliteStore::open_read_only(journal_of(world)).await;
        let filter = Filter {
            limit: 100_000,
            ..Filter::default()
        };
        let found = store.expect("there is a journal").list(&filter).await;
        let found = found.expect("it can be read");
        let effects = Effects::of(world, shop);
        effects.are_single(&found, planned);
        for record in &found {
            none_is_invented(record, planned);
            is_settled_or_says_why_not(record);
            let mark = mark(record, planned);
            if record.state == State::Succeeded {
                assert_eq!(effects.of_mark(&mark), 1, "{mark} succeeded: {record:?}");
            }
        }
        what_did_not_run_has_no_effect(&found, planned, &effects);
        every_key_stands_for_one(&found);
        none_is_forgotten(&found, planned, told);
        let mut states = BTreeMap::new();
        for record in &found {
            *states.entry(record.state.to_string()).or_default() += 1;
        }
        Self {
            told: told.iter().filter(|line| line["did"] == "call").count(),
            states,
            effects: effects.0.values().sum(),
        }
    }
}

/// Effects, by what they are recognised by.
struct Effects(BTreeMap<String, usize>);

impl Effects {
    fn of(world: &World, shop: &Shop) -> Self {
        let mut marks = BTreeMap::new();
        // The look-up is written down as well, under the key that it was asked for.
        let paid = |effect: &crate::support::Effect| effect.tool.starts_with("pay_");
        for effect in world.bed.effects().into_iter().filter(paid) {
            *marks.entry(effect.key).or_default() += 1;
        }
        for item in shop.items() {
            *marks.entry(item).or_default() += 1;
        }
        Self(marks)
    }

    fn are_single(&self, found: &[Record], planned: &[Planned]) {
        if let Some((twice, many)) = self.0.iter().find(|(_, many)| **many > 1) {
            let of = |record: &&Record| mark(record, planned) == *twice;
            let of: Vec<_> = found.iter().filter(of).collect();
            panic!("{many} effects of {twice}: {of:#?}");
        }
    }

    fn of_mark(&self, mark: &str) -> usize {
        self.0.get(mark).copied().unwrap_or(0)
    }
}

/// What the effect of an operation is recognised by: its plan's mark, or the key that was minted.
fn mark(record: &Record, planned: &[Planned]) -> String {
    let plan = planned
        .iter()
        .find(|plan| plan.id == record.intent.operation);
    let mark = plan.and_then(|plan| plan.mark.clone());
    let minted = || {
        record
            .intent
            .key
            .as_ref()
            .map(|key| key.as_str().to_owned())
    };
    mark.or_else(minted).expect("it has the one or the other")
}

fn none_is_invented(record: &Record, planned: &[Planned]) {
    let is_planned = |plan: &&Planned| plan.id == record.intent.operation;
    let plan = planned.iter().find(is_planned);
    let plan = plan.unwrap_or_else(|| panic!("nobody ordered {record:?}"));
    assert_eq!(record.intent.tool, plan.tool);
}

fn is_settled_or_says_why_not(record: &Record) {
    if record.state.is_settled() {
        return;
    }
    assert_eq!(record.state, State::OutcomeUnknown, "{record:?}");
    let says = record.history.iter().any(|entry| match &entry.fact {
        Fact::Without {
            outcome, failure, ..
        } => *outcome == Outcome::Unknown && !failure.cause.is_empty(),
        Fact::Abandoned { host } => !host.is_empty(),
        _ => false,
    });
    assert!(says, "unknown without a reason: {record:?}");
}

/// Where every operation that could have had an effect is known not to have run, there is none.
fn what_did_not_run_has_no_effect(found: &[Record], planned: &[Planned], effects: &Effects) {
    let mut ran: BTreeMap<String, bool> = BTreeMap::new();
    for record in found {
        let did_not = record.state.frees_its_key();
        *ran.entry(mark(record, planned)).or_default() |= !did_not;
    }
    for (mark, ran) in ran {
        assert!(ran || effects.of_mark(&mark) == 0, "{mark} did not run");
    }
}

/// Of those with one key, all but one have freed it.
fn every_key_stands_for_one(found: &[Record]) {
    let mut holders: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for record in found.iter().filter(|record| !record.state.frees_its_key()) {
        if let Some(key) = &record.intent.key {
            let key = (
                record.intent.connection.to_string(),
                key.as_str().to_owned(),
            );
            holders
                .entry(key)
                .or_default()
                .push(record.intent.operation);
        }
    }
    for (key, holders) in holders {
        assert_eq!(holders.len(), 1, "{key:?} stands for {holders:?}");
    }
}

/// Of what was begun or told the journal knows, and it does not say otherwise.
fn none_is_forgotten(found: &[Record], planned: &[Planned], told: &[Value]) {
    let state = |id: &Value| {
        let known = found.iter().find(|r| json!(r.intent.operation) == *id);
        known.map(|record| record.state)
    };
    for line in told {
        let now = state(&line["operation"]);
        // A look-up is a call, too, and nothing that has to last.
        let is_planned = |plan: &Planned| json!(plan.id) == line["operation"];
        if is_call(line) && planned.iter().any(is_planned) {
            assert!(now.is_some(), "it was begun, and is forgotten: {line}");
        }
        if line["did"] != "call" {
            continue;
        }
        let agrees = match line["outcome"].as_str() {
            None => matches!(now, Some(State::Succeeded | State::Failed)),
            Some("unknown") => now.is_some(),
            Some("failed") => now == Some(State::Failed),
            Some("rejected") => now == Some(State::Rejected),
            // Nothing of that call was sent; what it found may have been.
            Some("not_sent") => true,
            Some(other) => panic!("{other}: {line}"),
        };
        assert!(agrees, "{now:?}, and was told: {line}");
    }
}
