//! The cases. Each has a place of its own, with an empty store in it.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mcp_supervisor::{
    ConnectionName, IdempotencyKey, OperationId, Outcome, TaskHandle, ToolContract,
    journal::{
        Accepted, By, Claimed, Fact, Failure, Filter, Held, Intent, Kept, Record, Settler, State,
        Store, StoreError,
        table::{Event, next},
    },
    operation::{AttemptId, Fingerprint, Generation},
};
use serde_json::{Value, json};

use crate::place::Place;

// ------------------------------------------------------------------- what is written

pub(crate) fn name(connection: &str) -> ConnectionName {
    connection.parse().expect("it is a name")
}

pub(crate) fn key(key: &str) -> IdempotencyKey {
    key.parse().expect("it is a key")
}

pub(crate) fn generation(number: u64) -> Generation {
    serde_json::from_value(number.into()).expect("it is a number")
}

pub(crate) fn fingerprint(arguments: Value) -> Fingerprint {
    match arguments {
        Value::Object(arguments) => Fingerprint::of("charge", &arguments),
        other => panic!("{other} is no object"),
    }
}

/// An intent with the least in it.
pub(crate) fn intent() -> Intent {
    Intent::new(
        OperationId::mint(),
        name("billing"),
        "charge",
        fingerprint(json!({"cents": 1999})),
    )
}

pub(crate) fn keyed(text: &str) -> Intent {
    let mut intent = intent();
    intent.key = Some(key(text));
    intent
}

/// An intent with everything in it.
pub(crate) fn full() -> Intent {
    let mut intent = keyed("order-1001");
    let arguments = json!({
        "cents": 1999, "rate": 0.1, "tiny": 2.225_073_858_507_201_4e-308, "sum": 0.300_000_000_000_000_04,
        "big": u64::MAX, "note": "f\u{fc}r \u{1f4a1} \u{0}\n\"quoted\"", "list": [1, [2, null]],
        "object": {"z": true, "a": {}},
    });
    intent.arguments = arguments.as_object().cloned();
    intent.contract = ToolContract::Status {
        tool: "charge_status".to_owned(),
        argument: "request_id".to_owned(),
        absence_final_after: Some(Duration::from_millis(90_500)),
    };
    intent.schema = Some(fingerprint(json!({"type": "object"})));
    intent
}

pub(crate) fn call() -> Settler {
    Settler::Call {
        generation: Some(generation(3)),
        attempts: 1,
    }
}

pub(crate) fn without(outcome: Outcome) -> Fact {
    Fact::Without {
        outcome,
        failure: Failure::new("session_ended"),
        by: call(),
    }
}

pub(crate) fn answered(is_error: bool) -> Fact {
    Fact::Answered {
        is_error,
        answer: Kept::Whole(json!({"content": [{"type": "text", "text": "done"}]})),
        by: call(),
    }
}

/// A fact that is `event` to the table. The store forgets by itself: there is no fact for that here.
pub(crate) fn fact(event: Event) -> Option<Fact> {
    Some(match event {
        Event::Dispatch => Fact::Dispatching {
            attempt: AttemptId::mint(),
        },
        Event::RequestCancel => Fact::CancelRequested,
        Event::KeepTask => Fact::Task {
            task: TaskHandle::new(name("billing"), "charge", "task-17"),
        },
        Event::Succeed => answered(false),
        Event::Fail => without(Outcome::Failed),
        Event::Reject => without(Outcome::Rejected),
        Event::NotSend => without(Outcome::NotSent),
        Event::LoseSight => without(Outcome::Unknown),
        Event::Abandon => Fact::Abandoned {
            host: "a host that is gone".to_owned(),
        },
        Event::Cancel => Fact::Cancelled { by: call() },
        _ => return None,
    })
}

/// The shortest way from accepted to `state`; to forgotten, it needs a sweep.
fn way_to(state: State) -> Vec<Event> {
    let mut way = match state {
        State::Accepted => return vec![],
        State::Dispatching | State::NotSent => vec![],
        _ => vec![Event::Dispatch],
    };
    way.extend(match state {
        State::CancelRequested => Some(Event::RequestCancel),
        State::OutcomeUnknown => Some(Event::LoseSight),
        State::Succeeded => Some(Event::Succeed),
        State::Failed => Some(Event::Fail),
        State::Rejected => Some(Event::Reject),
        State::Cancelled => Some(Event::Cancel),
        State::NotSent => Some(Event::NotSend),
        _ => Some(Event::Dispatch),
    });
    way
}

// ------------------------------------------------------------------- how it is written

async fn new(store: &dyn Store, intent: Intent) -> Held {
    match store.accept(intent, None).await.unwrap() {
        Accepted::New(held) => held,
        Accepted::Found(record) => panic!("it is there already: {record:?}"),
    }
}

async fn found(store: &dyn Store, intent: Intent) -> Record {
    match store.accept(intent, Some(AttemptId::mint())).await.unwrap() {
        Accepted::Found(record) => *record,
        Accepted::New(held) => panic!("it was accepted anew: {held:?}"),
    }
}

async fn walk(store: &dyn Store, held: &Held, way: &[Event]) {
    for event in way {
        let fact = fact(*event).expect("a way has no forgetting");
        store.append(held, fact).await.unwrap();
    }
}

/// A new operation in `state`.
async fn in_state(store: &dyn Store, intent: Intent, state: State) -> Held {
    let held = new(store, intent).await;
    walk(store, &held, &way_to(state)).await;
    assert_eq!(show(store, held.operation).await.state, state);
    held
}

async fn show(store: &dyn Store, operation: OperationId) -> Record {
    let found = store.find(By::Operation(operation)).await.unwrap();
    found.expect("it is there")
}

async fn claim(store: &dyn Store, operation: OperationId) -> (Held, Record) {
    match store.claim(operation).await.unwrap() {
        Claimed::Yes(held, record) => (held, *record),
        other => panic!("it was not to be had: {other:?}"),
    }
}

pub(crate) fn facts(record: &Record) -> Vec<Fact> {
    let facts = record.history.iter().map(|entry| entry.fact.clone());
    facts.collect()
}

/// Times are kept to the microsecond at least.
#[track_caller]
fn same_time(kept: SystemTime, given: SystemTime) {
    let apart = kept
        .duration_since(given)
        .unwrap_or_else(|before| before.duration());
    assert!(apart < Duration::from_micros(1), "{apart:?} apart");
}

#[track_caller]
fn same_intent(kept: &Intent, given: &Intent) {
    same_time(kept.accepted_at, given.accepted_at);
    let mut kept = kept.clone();
    kept.accepted_at = given.accepted_at;
    // `assert_eq` would show neither key nor arguments.
    let json = |intent: &Intent| serde_json::to_string(intent).unwrap();
    assert_eq!(json(&kept), json(given));
    assert_eq!(&kept, given);
}

fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(3600)
}

const NEVER: SystemTime = SystemTime::UNIX_EPOCH;

// ------------------------------------------------------------------- accepting and finding

pub(crate) async fn an_intent_is_kept_as_it_was_given(place: Arc<dyn Place>) {
    let store = place.open().await;
    for given in [intent(), full()] {
        let attempt = given.key.is_some().then(AttemptId::mint);
        let accepted = store.accept(given.clone(), attempt).await.unwrap();
        let Accepted::New(held) = accepted else {
            panic!("{accepted:?}");
        };
        assert_eq!(held.operation, given.operation);
        let record = show(&*store, given.operation).await;
        same_intent(&record.intent, &given);
        assert_eq!(record.owner.as_ref().map(|o| o.fence), Some(held.fence));
        match attempt {
            None => {
                assert_eq!(record.state, State::Accepted);
                assert!(record.history.is_empty());
            }
            Some(attempt) => {
                assert_eq!(record.state, State::Dispatching);
                assert_eq!(facts(&record), [Fact::Dispatching { attempt }]);
                same_time(
                    record.history[0].at,
                    SystemTime::now().min(record.history[0].at),
                );
            }
        }
    }
    let stranger = By::Operation(OperationId::mint());
    assert!(store.find(stranger).await.unwrap().is_none());
}

pub(crate) async fn an_operation_is_found_by_its_id_instead_of_accepted_again(
    place: Arc<dyn Place>,
) {
    let store = place.open().await;
    for state in [State::Accepted, State::Succeeded, State::NotSent] {
        let first = intent();
        in_state(&*store, first.clone(), state).await;
        let before = show(&*store, first.operation).await;
        // Another intent under the same id: what is there is what counts.
        let mut second = keyed("order-1");
        second.operation = first.operation;
        assert_eq!(found(&*store, second).await, before);
        assert_eq!(show(&*store, first.operation).await, before);
        let by_key = By::Key(&first.connection, &key("order-1"));
        assert!(store.find(by_key).await.unwrap().is_none());
    }
}

pub(crate) async fn an_operation_is_found_by_its_key_instead_of_accepted_again(
    place: Arc<dyn Place>,
) {
    let store = place.open().await;
    let holding = State::ALL
        .into_iter()
        .filter(|s| !s.frees_its_key() && *s != State::Forgotten);
    for (i, state) in holding.enumerate() {
        let text = format!("order-{i}");
        let first = keyed(&text);
        in_state(&*store, first.clone(), state).await;
        let second = keyed(&text);
        let record = found(&*store, second.clone()).await;
        assert_eq!(record.intent.operation, first.operation, "{state:?}");
        assert_eq!(record.state, state);
        let by_id = store.find(By::Operation(second.operation)).await.unwrap();
        assert!(by_id.is_none(), "what was found is not recorded as well");
        let by_key = By::Key(&first.connection, &key(&text));
        let by_key = store.find(by_key).await.unwrap().expect("it has the key");
        assert_eq!(by_key, record);
    }
}

pub(crate) async fn one_key_on_two_connections_is_two_keys(place: Arc<dyn Place>) {
    let store = place.open().await;
    let billing = keyed("order-1");
    let mut orders = keyed("order-1");
    orders.connection = name("orders");
    // And a key is not the key that differs in the case of a letter.
    let upper = keyed("ORDER-1");
    for intent in [&billing, &orders, &upper] {
        new(&*store, intent.clone()).await;
    }
    for intent in [&billing, &orders, &upper] {
        let by = By::Key(&intent.connection, intent.key.as_ref().unwrap());
        let record = store.find(by).await.unwrap().unwrap();
        assert_eq!(record.intent.operation, intent.operation);
    }
    let (nobodys, no_key) = (name("crm"), key("order-2"));
    for by in [
        By::Key(&nobodys, billing.key.as_ref().unwrap()),
        By::Key(&billing.connection, &no_key),
    ] {
        assert!(store.find(by).await.unwrap().is_none());
    }
}

pub(crate) async fn a_key_is_free_again_when_its_operation_did_not_run(place: Arc<dyn Place>) {
    let store = place.open().await;
    for (text, state) in [("order-1", State::NotSent), ("order-2", State::Rejected)] {
        let first = keyed(text);
        in_state(&*store, first.clone(), state).await;
        let by_key = By::Key(&first.connection, first.key.as_ref().unwrap());
        let shown = store.find(by_key).await.unwrap().unwrap();
        assert_eq!(shown.intent.operation, first.operation);
        assert_eq!(shown.state, state);

        let second = keyed(text);
        let held = new(&*store, second.clone()).await;
        let shown = store.find(by_key).await.unwrap().unwrap();
        assert_eq!(shown.intent.operation, second.operation);
        // The first is what it was, and the second has the key now.
        assert_eq!(show(&*store, first.operation).await.state, state);
        walk(&*store, &held, &[Event::Dispatch, Event::Succeed]).await;
        let record = found(&*store, keyed(text)).await;
        assert_eq!(record.intent.operation, second.operation);
    }
}

// ------------------------------------------------------------------- the table

pub(crate) async fn every_cell_of_the_table_is_kept_to(place: Arc<dyn Place>) {
    let store = place.open().await;
    for state in State::ALL.into_iter().filter(|s| *s != State::Forgotten) {
        for (event, fact) in Event::ALL.map(|e| (e, fact(e))) {
            let Some(fact) = fact else { continue };
            let held = in_state(&*store, intent(), state).await;
            let before = show(&*store, held.operation).await;
            let appended = store.append(&held, fact.clone()).await;
            let after = show(&*store, held.operation).await;
            match next(state, event) {
                Ok(to) => {
                    assert_eq!(appended.unwrap(), to, "{state:?} {event:?}");
                    assert_eq!(after.state, to);
                    let mut expected = facts(&before);
                    expected.push(fact);
                    assert_eq!(facts(&after), expected);
                }
                Err(illegal) => {
                    match appended.unwrap_err() {
                        StoreError::Illegal(said) => assert_eq!(said, illegal),
                        StoreError::Fenced if state.is_settled() => {}
                        other => panic!("{state:?} {event:?}: {other}"),
                    }
                    assert_eq!(after, before);
                }
            }
        }
    }
}

pub(crate) async fn a_refused_append_changes_nothing(place: Arc<dyn Place>) {
    let store = place.open().await;
    let held = new(&*store, keyed("order-1")).await;
    let before = show(&*store, held.operation).await;
    for _ in 0..3 {
        let refused = store.append(&held, answered(false)).await.unwrap_err();
        assert!(matches!(refused, StoreError::Illegal(_)), "{refused}");
        assert_eq!(show(&*store, held.operation).await, before);
    }
    // A refused write spoils nothing that is written beside it or after it.
    let other = new(&*store, intent()).await;
    let (refused, written) = tokio::join!(
        store.append(&held, answered(false)),
        store.append(&other, fact(Event::Dispatch).unwrap()),
    );
    assert!(refused.is_err());
    assert_eq!(written.unwrap(), State::Dispatching);
    walk(&*store, &held, &[Event::Dispatch, Event::Succeed]).await;
    assert_eq!(show(&*store, held.operation).await.state, State::Succeeded);
    // And what nobody was given is nobody's.
    let nobodys = Held {
        operation: OperationId::mint(),
        ..other
    };
    let refused = store.append(&nobodys, answered(false)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Fenced), "{refused}");
}

pub(crate) async fn a_refused_repeat_leaves_the_outcome_unknown(place: Arc<dyn Place>) {
    let store = place.open().await;
    let held = in_state(&*store, keyed("order-1"), State::OutcomeUnknown).await;
    for outcome in [Outcome::Rejected, Outcome::NotSent] {
        let (held, _) = claim(&*store, held.operation).await;
        walk(&*store, &held, &[Event::Dispatch]).await;
        let refused = Fact::Without {
            outcome,
            failure: Failure::new("http_refused").status(401),
            by: Settler::Repeat,
        };
        let state = store.append(&held, refused).await.unwrap();
        assert_eq!(state, State::OutcomeUnknown);
        store.release(&held).await.unwrap();
    }
    let record = found(&*store, keyed("order-1")).await;
    assert_eq!(record.intent.operation, held.operation);
    assert_eq!(record.attempts(), 3);
}

pub(crate) async fn every_fact_comes_back_as_it_was_given(place: Arc<dyn Place>) {
    let store = place.open().await;
    let failure = || {
        Failure::new("server_error")
            .answered(-32000, "f\u{fc}r \u{0} niemand")
            .status(503)
    };
    let value = full().arguments.map(Value::Object).unwrap();
    let settlers = [
        Settler::LateAnswer {
            generation: generation(u64::from(u32::MAX)),
        },
        Settler::LookUp,
        Settler::Task,
        Settler::Verdict {
            who: "ops@example".to_owned(),
            why: "the provider's ledger has it\nin two lines".to_owned(),
        },
    ];
    let ends = settlers.into_iter().enumerate().map(|(i, by)| match i {
        0 => Fact::Answered {
            is_error: true,
            answer: Kept::Whole(value.clone()),
            by,
        },
        1 => Fact::Answered {
            is_error: false,
            answer: Kept::TooLarge { bytes: 1 << 40 },
            by,
        },
        2 => Fact::Without {
            outcome: Outcome::Failed,
            failure: failure(),
            by,
        },
        _ => Fact::Answered {
            is_error: false,
            answer: Kept::Nothing,
            by,
        },
    });
    for end in ends {
        let held = new(&*store, intent()).await;
        let story = [
            fact(Event::Dispatch).unwrap(),
            fact(Event::KeepTask).unwrap(),
            Fact::CancelRequested,
            Fact::Without {
                outcome: Outcome::Unknown,
                failure: failure(),
                by: call(),
            },
            Fact::Abandoned {
                host: "host \u{1f4a1}".to_owned(),
            },
            fact(Event::Dispatch).unwrap(),
            Fact::Without {
                outcome: Outcome::Rejected,
                failure: failure(),
                by: Settler::Repeat,
            },
            end,
        ];
        let begun = SystemTime::now();
        for fact in &story {
            store.append(&held, fact.clone()).await.unwrap();
        }
        let record = show(&*store, held.operation).await;
        assert_eq!(facts(&record), story);
        let json = |facts: &[Fact]| serde_json::to_string(facts).unwrap();
        assert_eq!(json(&facts(&record)), json(&story));
        assert_eq!(record.task().map(TaskHandle::id), Some("task-17"));
        for entry in &record.history {
            let slack = Duration::from_secs(5);
            assert!(entry.at + slack > begun && entry.at < SystemTime::now() + slack);
        }
    }
}

// ------------------------------------------------------------------- lists

pub(crate) async fn a_list_is_filtered_and_goes_on_where_it_stopped(place: Arc<dyn Place>) {
    let store = place.open().await;
    let states = [State::Accepted, State::OutcomeUnknown, State::Succeeded];
    let mut all = Vec::new();
    // Accepted in another order than that of their ids.
    let mut intents: Vec<_> = (0..12).map(|_| intent()).collect();
    intents.reverse();
    for (i, mut intent) in intents.into_iter().enumerate() {
        intent.connection = name(["billing", "orders"][i % 2]);
        let state = states[i % 3];
        all.push((intent.operation, intent.connection.clone(), state));
        in_state(&*store, intent, state).await;
    }
    all.sort_by_key(|one: &(OperationId, ConnectionName, State)| one.0);

    let listed = async |filter: &Filter| -> Vec<OperationId> {
        let records = store.list(filter).await.unwrap();
        records
            .iter()
            .map(|record| record.intent.operation)
            .collect()
    };
    let ids = |keep: &dyn Fn(&(OperationId, ConnectionName, State)) -> bool| -> Vec<OperationId> {
        let kept = all.iter().filter(|one| keep(one));
        kept.map(|one| one.0).collect()
    };
    assert_eq!(listed(&Filter::default()).await, ids(&|_| true));

    let mut filter = Filter {
        connection: Some(name("orders")),
        ..Filter::default()
    };
    assert_eq!(listed(&filter).await, ids(&|one| one.1 == name("orders")));
    filter.states = Some(vec![State::OutcomeUnknown, State::Accepted]);
    let both = ids(&|one| one.1 == name("orders") && one.2 != State::Succeeded);
    assert_eq!(listed(&filter).await, both);
    filter.connection = None;
    filter.states = Some(vec![]);
    assert_eq!(listed(&filter).await, []);
    filter.states = None;
    filter.limit = 0;
    assert_eq!(listed(&filter).await, []);
    filter.limit = usize::MAX;
    filter.connection = Some(name("crm"));
    assert_eq!(listed(&filter).await, []);

    for limit in [1, 5, 12, 100] {
        let mut filter = Filter {
            limit,
            ..Filter::default()
        };
        let mut paged = Vec::new();
        loop {
            let page = listed(&filter).await;
            assert!(page.len() <= limit);
            let Some(last) = page.last() else { break };
            filter.after = Some(*last);
            paged.extend(page);
        }
        assert_eq!(paged, ids(&|_| true), "{limit} at a time");
    }
    let records = store.list(&Filter::default()).await.unwrap();
    for record in records {
        assert_eq!(show(&*store, record.intent.operation).await, record);
    }
}

// ------------------------------------------------------------------- claims

pub(crate) async fn a_claim_is_one_at_a_time_until_it_is_released(place: Arc<dyn Place>) {
    let store = place.open().await;
    let first = in_state(&*store, intent(), State::OutcomeUnknown).await;
    let operation = first.operation;
    let (held, record) = claim(&*store, operation).await;
    assert_eq!(record, show(&*store, operation).await);
    assert!(held.fence > first.fence);
    assert_eq!(record.owner.map(|owner| owner.fence), Some(held.fence));
    for _ in 0..2 {
        let other = store.claim(operation).await.unwrap();
        assert!(matches!(other, Claimed::Elsewhere(_)), "{other:?}");
    }
    // Nothing was taken from the one who has it.
    walk(&*store, &held, &[Event::Dispatch, Event::LoseSight]).await;
    let other = store.claim(operation).await.unwrap();
    assert!(matches!(other, Claimed::Elsewhere(_)), "{other:?}");

    store.release(&held).await.unwrap();
    let late = store.append(&held, answered(false)).await.unwrap_err();
    assert!(matches!(late, StoreError::Fenced), "{late}");
    let (again, _) = claim(&*store, operation).await;
    assert!(again.fence > held.fence);
    let late = store.release(&held).await.unwrap_err();
    assert!(matches!(late, StoreError::Fenced), "{late}");
    walk(&*store, &again, &[Event::Succeed]).await;
    assert!(matches!(
        store.claim(operation).await.unwrap(),
        Claimed::Settled(_)
    ));

    // Of many that claim at the same time, one has it.
    let operation = in_state(&*store, intent(), State::OutcomeUnknown)
        .await
        .operation;
    let claims = (0..16).map(|_| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.claim(operation).await.unwrap() })
    });
    let mut won = 0;
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.unwrap() {
            Claimed::Yes(..) => won += 1,
            Claimed::Elsewhere(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(won, 1);
}

pub(crate) async fn what_runs_or_is_settled_or_missing_cannot_be_claimed(place: Arc<dyn Place>) {
    let store = place.open().await;
    for state in State::ALL.into_iter().filter(|s| *s != State::Forgotten) {
        let held = in_state(&*store, intent(), state).await;
        let before = show(&*store, held.operation).await;
        match store.claim(held.operation).await.unwrap() {
            Claimed::Yes(..) => assert_eq!(state, State::OutcomeUnknown),
            Claimed::Settled(record) => {
                assert!(state.is_settled(), "{state:?}");
                assert_eq!(*record, before);
            }
            Claimed::Elsewhere(record) => {
                assert!(!state.is_settled() && state != State::OutcomeUnknown);
                assert_eq!(*record, before);
                // It still is whose it was, also when that one gives up what it never claimed.
                store.release(&held).await.unwrap();
                walk(&*store, &held, &[Event::NotSend]).await;
            }
            Claimed::Missing => panic!("{state:?} is there"),
        }
    }
    let stranger = store.claim(OperationId::mint()).await.unwrap();
    assert!(matches!(stranger, Claimed::Missing), "{stranger:?}");
}

pub(crate) async fn whoever_had_it_before_a_claim_is_fenced_out(place: Arc<dyn Place>) {
    let store = place.open().await;
    let old = in_state(&*store, intent(), State::OutcomeUnknown).await;
    // As long as nobody claimed it, a late answer still settles it.
    walk(&*store, &old, &[Event::LoseSight]).await;
    let (held, _) = claim(&*store, old.operation).await;
    let before = show(&*store, old.operation).await;
    for event in Event::ALL {
        let Some(fact) = fact(event) else { continue };
        let late = store.append(&old, fact).await.unwrap_err();
        assert!(matches!(late, StoreError::Fenced), "{event:?}: {late}");
    }
    let late = store.release(&old).await.unwrap_err();
    assert!(matches!(late, StoreError::Fenced), "{late}");
    assert_eq!(show(&*store, old.operation).await, before);
    walk(&*store, &held, &[Event::Succeed]).await;
}

// ------------------------------------------------------------------- retention

/// The answer of [`secretive`], its arguments and the server's text have this in them.
const SAID: &str = "s3cr3t";

fn secretive(text: &str) -> Intent {
    let mut intent = keyed(text);
    intent.arguments = json!({"card": SAID}).as_object().cloned();
    intent
}

pub(crate) async fn a_sweep_forgets_what_was_said_and_still_refuses_the_key(place: Arc<dyn Place>) {
    let store = place.open().await;
    let failure = || Failure::new("server_error").answered(-32000, SAID);
    let ends = [
        Fact::Answered {
            is_error: false,
            answer: Kept::Whole(json!({"text": SAID})),
            by: call(),
        },
        Fact::Answered {
            is_error: true,
            answer: Kept::Whole(json!({"text": SAID})),
            by: call(),
        },
        Fact::Without {
            outcome: Outcome::Failed,
            failure: failure(),
            by: call(),
        },
        Fact::Cancelled { by: call() },
    ];
    let mut operations = Vec::new();
    for (i, end) in ends.into_iter().enumerate() {
        let held = new(&*store, secretive(&format!("order-{i}"))).await;
        walk(&*store, &held, &[Event::Dispatch]).await;
        let task = TaskHandle::new(name("billing"), "charge", SAID);
        store.append(&held, Fact::Task { task }).await.unwrap();
        let lost = Fact::Without {
            outcome: Outcome::Unknown,
            failure: failure(),
            by: call(),
        };
        store.append(&held, lost).await.unwrap();
        store.append(&held, end).await.unwrap();
        operations.push(held.operation);
    }

    let swept = store.sweep(NEVER, NEVER, 100).await.unwrap();
    assert_eq!((swept.forgotten, swept.removed), (0, 0));
    let swept = store.sweep(later(), NEVER, 100).await.unwrap();
    assert_eq!((swept.forgotten, swept.removed), (4, 0));
    let again = store.sweep(later(), NEVER, 100).await.unwrap();
    assert_eq!((again.forgotten, again.removed), (0, 0));

    for (i, operation) in operations.into_iter().enumerate() {
        let record = show(&*store, operation).await;
        assert_eq!(record.state, State::Forgotten);
        assert_eq!(record.last().map(|last| &last.fact), Some(&Fact::Forgotten));
        assert!(!serde_json::to_string(&record).unwrap().contains(SAID));
        let replayed = Record::replay(record.intent.clone(), record.history.clone()).unwrap();
        assert_eq!(replayed.history, record.history);
        let refused = found(&*store, secretive(&format!("order-{i}"))).await;
        assert_eq!(refused, record);
        assert!(matches!(
            store.claim(operation).await.unwrap(),
            Claimed::Settled(_)
        ));
    }
}

pub(crate) async fn a_sweep_removes_tombstones_and_what_freed_its_key(place: Arc<dyn Place>) {
    let store = place.open().await;
    let answered = in_state(&*store, keyed("order-1"), State::Succeeded)
        .await
        .operation;
    let not_sent = in_state(&*store, keyed("order-2"), State::NotSent)
        .await
        .operation;
    let rejected = in_state(&*store, keyed("order-3"), State::Rejected)
        .await
        .operation;
    // Whose key another has by now: that one keeps it.
    let successor = in_state(&*store, keyed("order-3"), State::OutcomeUnknown)
        .await
        .operation;

    let swept = store.sweep(later(), NEVER, 100).await.unwrap();
    assert_eq!((swept.forgotten, swept.removed), (1, 2));
    for gone in [not_sent, rejected] {
        assert!(store.find(By::Operation(gone)).await.unwrap().is_none());
        assert!(matches!(store.claim(gone).await.unwrap(), Claimed::Missing));
    }
    assert_eq!(
        found(&*store, keyed("order-3")).await.intent.operation,
        successor
    );
    let two = By::Key(&name("billing"), &key("order-2"));
    assert!(store.find(two).await.unwrap().is_none());
    new(&*store, keyed("order-2")).await;

    assert_eq!(
        found(&*store, keyed("order-1")).await.state,
        State::Forgotten
    );
    let swept = store.sweep(later(), later(), 100).await.unwrap();
    assert_eq!((swept.forgotten, swept.removed), (0, 1));
    assert!(store.find(By::Operation(answered)).await.unwrap().is_none());
    new(&*store, keyed("order-1")).await;
}

pub(crate) async fn a_sweep_never_takes_what_is_not_settled(place: Arc<dyn Place>) {
    let store = place.open().await;
    let unsettled: Vec<_> = State::ALL.into_iter().filter(|s| !s.is_settled()).collect();
    let mut records = Vec::new();
    for state in &unsettled {
        let held = in_state(&*store, secretive(&format!("{state:?}")), *state).await;
        records.push(show(&*store, held.operation).await);
    }
    for _ in 0..2 {
        let swept = store.sweep(later(), later(), 100).await.unwrap();
        assert_eq!((swept.forgotten, swept.removed), (0, 0));
    }
    for record in records {
        assert_eq!(show(&*store, record.intent.operation).await, record);
    }
}

pub(crate) async fn a_sweep_keeps_to_its_bound(place: Arc<dyn Place>) {
    let store = place.open().await;
    for i in 0..7 {
        in_state(&*store, keyed(&format!("order-{i}")), State::Succeeded).await;
        in_state(&*store, intent(), State::NotSent).await;
    }
    let nothing = store.sweep(later(), later(), 0).await.unwrap();
    assert_eq!((nothing.forgotten, nothing.removed), (0, 0));
    let (mut forgotten, mut removed, mut sweeps) = (0, 0, 0);
    loop {
        let swept = store.sweep(later(), later(), 3).await.unwrap();
        assert!(swept.forgotten <= 3 && swept.removed <= 3, "{swept:?}");
        if (swept.forgotten, swept.removed) == (0, 0) {
            break;
        }
        forgotten += swept.forgotten;
        removed += swept.removed;
        sweeps += 1;
        assert!(sweeps <= 14, "each takes something");
    }
    assert_eq!((forgotten, removed), (7, 14));
    assert!(store.list(&Filter::default()).await.unwrap().is_empty());
}

// ------------------------------------------------------------------- many at once

pub(crate) async fn random_histories_agree_with_the_pure_fold(place: Arc<dyn Place>) {
    /// At once: so that a store that commits in groups does.
    const SIDE_BY_SIDE: u64 = 50;
    let store = place.open().await;
    for first in (0..place.histories()).step_by(usize::try_from(SIDE_BY_SIDE).unwrap()) {
        let histories = (first..first + SIDE_BY_SIDE).map(|seed| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { crate::model::history(&*store, seed).await })
        });
        for history in histories.collect::<Vec<_>>() {
            history.await.unwrap();
        }
    }
}

pub(crate) async fn of_many_that_come_with_one_key_one_is_new(place: Arc<dyn Place>) {
    let store = place.open().await;
    for round in 0..8 {
        let racers = (0..32).map(|racer| {
            let store = Arc::clone(&store);
            let intent = keyed(&format!("order-{round}"));
            let first = (racer % 2 == 0).then(AttemptId::mint);
            tokio::spawn(async move {
                let mine = intent.operation;
                match store.accept(intent, first).await.unwrap() {
                    Accepted::New(held) => (true, held.operation, mine),
                    Accepted::Found(record) => (false, record.intent.operation, mine),
                }
            })
        });
        let mut news = Vec::new();
        let mut seen = HashSet::new();
        let mut losers = Vec::new();
        for racer in racers.collect::<Vec<_>>() {
            let (new, operation, mine) = racer.await.unwrap();
            seen.insert(operation);
            match new {
                true => news.push(operation),
                false => losers.push(mine),
            }
        }
        assert_eq!(news.len(), 1, "one is new");
        assert_eq!(seen, HashSet::from([news[0]]), "the others found it");
        for loser in losers {
            assert!(store.find(By::Operation(loser)).await.unwrap().is_none());
        }
    }
}

pub(crate) async fn a_dropped_future_leaves_the_store_usable(place: Arc<dyn Place>) {
    let store = place.open().await;
    for i in 0..20 {
        let text = format!("order-{i}");
        let dropped = keyed(&text);
        drop_after_a_poll(store.accept(dropped.clone(), None)).await;
        // It was written, or it was not, and both can be told.
        let operation = match store.accept(keyed(&text), None).await.unwrap() {
            Accepted::New(held) => held.operation,
            Accepted::Found(record) => record.intent.operation,
        };
        let by_key = By::Key(&dropped.connection, dropped.key.as_ref().unwrap());
        let record = store.find(by_key).await.unwrap().unwrap();
        assert_eq!(record.intent.operation, operation);

        let held = new(&*store, intent()).await;
        drop_after_a_poll(store.append(&held, fact(Event::Dispatch).unwrap())).await;
        drop_after_a_poll(store.find(By::Operation(held.operation))).await;
        drop_after_a_poll(store.list(&Filter::default())).await;
        drop_after_a_poll(store.sweep(NEVER, NEVER, 10)).await;
        // What is written next comes after it.
        let state = store.append(&held, fact(Event::Dispatch).unwrap()).await;
        assert_eq!(state.unwrap(), State::Dispatching);
        assert!((1..=2).contains(&show(&*store, held.operation).await.attempts()));

        walk(&*store, &held, &[Event::LoseSight]).await;
        drop_after_a_poll(store.claim(held.operation)).await;
        match store.claim(held.operation).await.unwrap() {
            // Who asked is gone, and the claim goes with the host.
            Claimed::Elsewhere(_) => {}
            Claimed::Yes(held, _) => walk(&*store, &held, &[Event::Succeed]).await,
            other => panic!("{other:?}"),
        }
    }
}

/// Begins something and forgets about it.
async fn drop_after_a_poll<T>(mut future: impl Future<Output = T> + Unpin) {
    std::future::poll_fn(|task| {
        let _ = std::pin::Pin::new(&mut future).poll(task);
        std::task::Poll::Ready(())
    })
    .await;
}

// ------------------------------------------------------------------- the end

pub(crate) async fn a_closed_store_says_so(place: Arc<dyn Place>) {
    let store = place.open().await;
    let held = in_state(&*store, intent(), State::OutcomeUnknown).await;
    store.close().await.unwrap();
    store
        .close()
        .await
        .expect("closing what is closed is nothing");
    let said = [
        store.accept(intent(), None).await.err(),
        store.append(&held, answered(false)).await.err(),
        store.find(By::Operation(held.operation)).await.err(),
        store.list(&Filter::default()).await.err(),
        store.claim(held.operation).await.err(),
        store.release(&held).await.err(),
        store.sweep(later(), later(), 1).await.err(),
    ];
    for error in said {
        assert!(matches!(error, Some(StoreError::Closed)), "{error:?}");
    }
}

pub(crate) async fn what_was_written_is_there_after_opening_anew(place: Arc<dyn Place>) {
    if !place.lasts() {
        eprintln!("not asked: this store is gone with its process");
        return;
    }
    let store = place.open().await;
    for (i, state) in State::ALL.into_iter().enumerate() {
        if state.is_settled() && state != State::Forgotten {
            in_state(&*store, keyed(&format!("order-{i}")), state).await;
        }
    }
    in_state(&*store, full(), State::OutcomeUnknown).await;
    let before = store.list(&Filter::default()).await.unwrap();
    assert_eq!(before.len(), 6);
    store.close().await.unwrap();

    let store = place.open().await;
    let after = store.list(&Filter::default()).await.unwrap();
    let without_owners = |mut records: Vec<Record>| -> Vec<Record> {
        records.iter_mut().for_each(|record| record.owner = None);
        records
    };
    let (before, after) = (without_owners(before), without_owners(after));
    assert_eq!(before, after);
    for record in after {
        let by_key = By::Key(
            &record.intent.connection,
            record.intent.key.as_ref().unwrap(),
        );
        let shown = store.find(by_key).await.unwrap().expect("keys are found");
        assert_eq!(shown.intent.operation, record.intent.operation);
        let mut intent = record.intent.clone();
        intent.operation = OperationId::mint();
        let accepted = store.accept(intent, None).await.unwrap();
        let free = matches!(accepted, Accepted::New(_));
        assert_eq!(free, record.state.frees_its_key(), "{:?}", record.state);
    }
    // What was claimed by nobody, or by a host that is gone, can be claimed.
    let unknown = Filter {
        states: Some(vec![State::OutcomeUnknown]),
        ..Filter::default()
    };
    let unknown = store.list(&unknown).await.unwrap();
    let (held, _) = claim(&*store, unknown[0].intent.operation).await;
    walk(&*store, &held, &[Event::Succeed]).await;
}
