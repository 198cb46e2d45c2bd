//! Random histories, and what they have to come to: the table and nothing else.

use mcp_supervisor::{
    IdempotencyKey, OperationId,
    journal::{
        Accepted, By, Claimed, Fact, Filter, Held, Intent, Record, State, Store, StoreError,
        table::{Event, Illegal, next},
    },
    operation::AttemptId,
};

use crate::conformance::{fact, facts, intent, key, name};

/// Numbers that are the same on every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).expect("it is small")
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len())]
    }
}

/// An operation as it ought to be.
struct Expected {
    intent: Intent,
    facts: Vec<Fact>,
    claimed: bool,
    /// What the store gave out for it, the valid one last, where there is one.
    held: Vec<Held>,
    last_is_valid: bool,
}

impl Expected {
    /// The pure fold.
    fn state(&self) -> State {
        self.facts.iter().fold(State::Accepted, |state, fact| {
            next(state, fact.event()).expect("only what is legal is kept")
        })
    }
}

/// One history on a connection of its own: a dozen steps, each compared with what the model says.
pub(crate) async fn history(store: &dyn Store, seed: u64) {
    let mut dice = Dice(seed);
    let connection = name(&format!("history-{seed}"));
    let keys = [Some(key("first")), Some(key("second")), None];
    let mut model: Vec<Expected> = Vec::new();
    for step in 0..12 {
        let told = format!("history {seed}, step {step}");
        match dice.roll(8) {
            0 | 1 => accept(store, &mut model, &mut dice, &connection, &keys, &told).await,
            2..=5 if !model.is_empty() => append(store, &mut model, &mut dice, &told).await,
            6 if !model.is_empty() => claim(store, &mut model, &mut dice, &told).await,
            7 if !model.is_empty() => release(store, &mut model, &mut dice, &told).await,
            _ => accept(store, &mut model, &mut dice, &connection, &keys, &told).await,
        }
    }

    let mut filter = Filter {
        connection: Some(connection.clone()),
        ..Filter::default()
    };
    let listed = store.list(&filter).await.unwrap();
    model.sort_by_key(|expected| expected.intent.operation);
    assert_eq!(listed.len(), model.len(), "history {seed}");
    for (record, expected) in listed.iter().zip(&model) {
        same(record, expected, &format!("history {seed}"));
    }
    let state = *dice.pick(&State::ALL);
    filter.states = Some(vec![state]);
    let listed = store.list(&filter).await.unwrap().len();
    let expected = model.iter().filter(|one| one.state() == state).count();
    assert_eq!(listed, expected, "history {seed}: {state:?}");
}

#[track_caller]
fn same(record: &Record, expected: &Expected, told: &str) {
    assert_eq!(record.intent.operation, expected.intent.operation, "{told}");
    assert_eq!(record.intent.key, expected.intent.key, "{told}");
    assert_eq!(record.state, expected.state(), "{told}");
    assert_eq!(facts(record), expected.facts, "{told}");
}

/// Who has a key: the last that was accepted under it.
fn last_under<'a>(model: &'a [Expected], key: &IdempotencyKey) -> Option<&'a Expected> {
    let mut under_key = model.iter().rev();
    under_key.find(|expected| expected.intent.key.as_ref() == Some(key))
}

async fn accept(
    store: &dyn Store,
    model: &mut Vec<Expected>,
    dice: &mut Dice,
    connection: &mcp_supervisor::ConnectionName,
    keys: &[Option<IdempotencyKey>],
    told: &str,
) {
    let mut intent = intent();
    intent.connection = connection.clone();
    intent.key = dice.pick(keys).clone();
    if !model.is_empty() && dice.roll(5) == 0 {
        intent.operation = dice.pick(model).intent.operation;
    }
    let first = (dice.roll(2) == 0).then(AttemptId::mint);
    let by_id = model
        .iter()
        .find(|one| one.intent.operation == intent.operation);
    let by_key = intent.key.as_ref().and_then(|key| last_under(model, key));
    let by_key = by_key.filter(|one| !one.state().frees_its_key());
    match (
        store.accept(intent.clone(), first).await.unwrap(),
        by_id.or(by_key),
    ) {
        (Accepted::Found(record), Some(expected)) => same(&record, expected, told),
        (Accepted::New(held), None) => {
            let dispatching = first.map(|attempt| Fact::Dispatching { attempt });
            model.push(Expected {
                intent: intent.clone(),
                facts: dispatching.into_iter().collect(),
                claimed: false,
                held: vec![held],
                last_is_valid: true,
            });
        }
        (Accepted::Found(record), None) => panic!("{told}: found {record:?}"),
        (Accepted::New(_), Some(_)) => panic!("{told}: accepted twice"),
    }
    if let Some(key) = &intent.key {
        let found = store.find(By::Key(connection, key)).await.unwrap();
        match (found, last_under(model, key)) {
            (Some(record), Some(expected)) => same(&record, expected, told),
            (None, None) => {}
            (found, _) => panic!("{told}: by key, {found:?}"),
        }
    }
    if dice.roll(4) == 0 {
        let stranger = By::Operation(OperationId::mint());
        assert!(store.find(stranger).await.unwrap().is_none(), "{told}");
    }
}

async fn append(store: &dyn Store, model: &mut [Expected], dice: &mut Dice, told: &str) {
    let at = dice.roll(model.len());
    let expected = &mut model[at];
    // Most of the time the right one, and sometimes one of somebody who had it before.
    let last = expected.held.len() - 1;
    let which = match dice.roll(4) {
        0 => dice.roll(expected.held.len()),
        _ => last,
    };
    let valid = which == last && expected.last_is_valid;
    let (event, fact) = loop {
        let event = *dice.pick(&Event::ALL);
        if let Some(fact) = fact(event) {
            break (event, fact);
        }
    };
    let state = expected.state();
    let appended = store.append(&expected.held[which], fact.clone()).await;
    match (appended, valid, next(state, event)) {
        (Ok(now), true, Ok(then)) => {
            expected.facts.push(fact);
            assert_eq!(now, then, "{told}");
        }
        (Err(StoreError::Fenced), false, _) => {}
        (Err(StoreError::Fenced), true, Err(_)) if state.is_settled() => {}
        (Err(StoreError::Illegal(Illegal { state: s, event: e })), true, Err(_)) => {
            assert_eq!((s, e), (state, event), "{told}");
        }
        // Settled is settled, whoever comes late.
        (Err(StoreError::Illegal(_)), false, _) if state.is_settled() => {}
        (appended, ..) => panic!("{told}: {event:?} in {state:?}: {appended:?}"),
    }
    let by_id = By::Operation(expected.intent.operation);
    let record = store.find(by_id).await.unwrap().expect(told);
    same(&record, expected, told);
}

async fn claim(store: &dyn Store, model: &mut [Expected], dice: &mut Dice, told: &str) {
    let at = dice.roll(model.len());
    let expected = &mut model[at];
    let state = expected.state();
    match store.claim(expected.intent.operation).await.unwrap() {
        Claimed::Yes(held, record) => {
            assert!(
                state == State::OutcomeUnknown && !expected.claimed,
                "{told}"
            );
            same(&record, expected, told);
            expected.claimed = true;
            expected.held.push(held);
            expected.last_is_valid = true;
        }
        Claimed::Elsewhere(record) => {
            let claimed = state == State::OutcomeUnknown && expected.claimed;
            let runs = !state.is_settled() && state != State::OutcomeUnknown;
            assert!(claimed || runs, "{told}");
            same(&record, expected, told);
        }
        Claimed::Settled(record) => {
            assert!(state.is_settled(), "{told}");
            same(&record, expected, told);
        }
        Claimed::Missing => panic!("{told}: it is there"),
    }
}

async fn release(store: &dyn Store, model: &mut [Expected], dice: &mut Dice, told: &str) {
    let at = dice.roll(model.len());
    let expected = &mut model[at];
    let which = dice.roll(expected.held.len());
    let valid = which == expected.held.len() - 1 && expected.last_is_valid;
    let state = expected.state();
    match store.release(&expected.held[which]).await {
        Ok(()) if state.is_settled() => {}
        Ok(()) => {
            assert!(valid, "{told}");
            if state == State::OutcomeUnknown {
                expected.claimed = false;
                expected.last_is_valid = false;
            }
        }
        Err(StoreError::Fenced) => assert!(!valid || state.is_settled(), "{told}"),
        Err(other) => panic!("{told}: {other}"),
    }
}
