use serde_json::json;

use super::*;

fn intent() -> Intent {
    let arguments = json!({"card": "4242", "cents": 1999, "rate": 0.300_000_000_000_000_04});
    let Value::Object(arguments) = arguments else {
        panic!("it is an object");
    };
    let mut intent = Intent::new(
        "01920000-0000-7000-8000-000000000001".parse().unwrap(),
        "billing".parse().unwrap(),
        "charge",
        Fingerprint::of("charge", &arguments),
    );
    intent.key = Some("order-1001".parse().unwrap());
    intent.arguments = Some(arguments);
    intent.contract = ToolContract::keyed("request_id");
    intent.schema = Some(Fingerprint::from_bytes([7; 32]));
    intent.accepted_at = at(0);
    intent
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + std::time::Duration::new(1_764_460_800 + seconds, 120_000_001)
}

fn attempt(number: u8) -> Fact {
    let mut bytes = *b"\x01\x92\0\0\0\0\x70\0\x80\0\0\0\0\0\0\0";
    bytes[15] = number;
    Fact::Dispatching {
        attempt: AttemptId::from_bytes(bytes),
    }
}

fn call() -> Settler {
    Settler::Call {
        generation: Some(Generation(3)),
        attempts: 1,
    }
}

fn failure() -> Failure {
    Failure::new("server_error")
        .answered(-32000, "card 4242 was declined")
        .status(503)
}

fn without(outcome: Outcome, by: Settler) -> Fact {
    let failure = failure();
    Fact::Without {
        outcome,
        failure,
        by,
    }
}

fn answered(answer: Kept, by: Settler) -> Fact {
    Fact::Answered {
        is_error: false,
        answer,
        by,
    }
}

/// Every kind of fact, with everything that can be in it; the histories are possible ones.
fn histories() -> Vec<Vec<Fact>> {
    let task = TaskHandle::new("billing".parse().unwrap(), "charge", "task-17");
    let verdict = Settler::Verdict {
        who: "dana".to_owned(),
        why: "the ledger has it".to_owned(),
    };
    vec![
        vec![
            attempt(1),
            Fact::Task { task: task.clone() },
            Fact::CancelRequested,
            without(Outcome::Unknown, call()),
            Fact::Abandoned {
                host: "host-1".to_owned(),
            },
            attempt(2),
            without(Outcome::Rejected, Settler::Repeat),
            answered(Kept::Whole(json!({"content": []})), Settler::LookUp),
            Fact::Forgotten,
        ],
        vec![
            attempt(1),
            answered(Kept::TooLarge { bytes: 2_000_000 }, call()),
        ],
        vec![
            attempt(1),
            without(Outcome::Unknown, call()),
            answered(
                Kept::Whole(json!({"n": 0.1})),
                Settler::LateAnswer {
                    generation: Generation(3),
                },
            ),
        ],
        vec![
            attempt(1),
            without(Outcome::Unknown, call()),
            answered(Kept::Nothing, verdict),
        ],
        vec![attempt(1), Fact::Cancelled { by: Settler::Task }],
        vec![without(
            Outcome::NotSent,
            Settler::Call {
                generation: None,
                attempts: 0,
            },
        )],
        vec![attempt(1), without(Outcome::Failed, call())],
        vec![attempt(1), Fact::Task { task }],
        vec![],
    ]
}

fn entries(facts: Vec<Fact>) -> impl Iterator<Item = Entry> {
    let numbered = (1..).zip(facts);
    numbered.map(|(second, fact)| Entry {
        at: at(second),
        fact,
    })
}

fn records() -> Vec<Record> {
    let records = histories().into_iter().enumerate().map(|(i, facts)| {
        let mut record = Record::new(intent());
        for entry in entries(facts) {
            record.apply(entry).unwrap();
        }
        record.owner = (i % 2 == 0).then(|| Holder::new("host-2", 4));
        record
    });
    records.collect()
}

/// What an older version of this crate wrote. A change of this file is a journal that cannot be read
/// any more: what is new goes into another file beside it.
const GOLDEN: &str = include_str!("golden.jsonl");

#[test]
fn a_record_is_written_as_older_journals_have_it() {
    let written = records()
        .into_iter()
        .map(|record| serde_json::to_string(&record).unwrap() + "\n");
    assert_eq!(written.collect::<String>(), GOLDEN);
}

#[test]
fn an_older_journal_reads_as_it_was_written() {
    let read: Vec<Record> = GOLDEN
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(read, records());
    for record in read {
        let folded = Record::replay(record.intent.clone(), record.history.clone()).unwrap();
        assert_eq!(folded.state, record.state);
        assert_eq!(folded.history, record.history);
    }
}

#[test]
fn what_is_absent_in_a_record_is_read_as_nothing() {
    let line = GOLDEN.lines().last().unwrap();
    let mut least: Value = serde_json::from_str(line).unwrap();
    least.as_object_mut().unwrap().remove("owner").unwrap();
    let intent = least["intent"].as_object_mut().unwrap();
    for optional in ["key", "arguments", "schema"] {
        intent.remove(optional).unwrap();
    }
    intent.insert("from_a_newer_version".to_owned(), json!(1));
    let least: Record = serde_json::from_value(least).unwrap();
    assert_eq!(least.intent.key, None);
    assert_eq!(least.intent.arguments, None);
    assert_eq!(least.owner, None);
}

#[test]
fn a_line_whose_state_is_not_what_its_history_comes_to_is_no_record() {
    for (line, record) in GOLDEN.lines().zip(records()) {
        for state in State::ALL {
            let mut changed: Value = serde_json::from_str(line).unwrap();
            changed["state"] = serde_json::to_value(state).unwrap();
            let read = serde_json::from_value::<Record>(changed);
            match state == record.state {
                true => assert_eq!(read.unwrap(), record),
                false => {
                    let said = read.unwrap_err().to_string();
                    assert!(
                        said.contains(&record.intent.operation.to_string()),
                        "{said}"
                    );
                }
            }
        }
        let mut cut: Value = serde_json::from_str(line).unwrap();
        let history = cut["history"].as_array_mut().unwrap();
        if !history.is_empty() {
            history.remove(0);
            assert!(serde_json::from_value::<Record>(cut).is_err(), "{line}");
        }
    }
}

#[test]
fn a_float_comes_back_as_the_number_that_it_was() {
    // Numbers that a parser which is only nearly exact reads as their neighbours.
    for number in [
        0.300_000_000_000_000_04,
        5.036_968_451_566_04e-12,
        f64::MAX,
        f64::MIN_POSITIVE,
    ] {
        let mut given = intent();
        given.arguments = json!({"n": number}).as_object().cloned();
        let text = serde_json::to_string(&given).unwrap();
        let read: Intent = serde_json::from_str(&text).unwrap();
        let arguments = read.arguments.unwrap();
        assert_eq!(
            arguments["n"].as_f64().map(f64::to_bits),
            Some(number.to_bits())
        );
        let given = given.arguments.unwrap();
        assert_eq!(
            Fingerprint::of("t", &arguments),
            Fingerprint::of("t", &given)
        );
    }
}

#[test]
fn an_impossible_history_is_an_error_that_names_where() {
    let answered = || answered(Kept::Nothing, call());
    for (facts, position, state, event) in [
        (vec![answered()], 1, State::Accepted, Event::Succeed),
        (
            vec![attempt(1), answered(), attempt(2)],
            3,
            State::Succeeded,
            Event::Dispatch,
        ),
        (
            vec![
                attempt(1),
                without(Outcome::Unknown, call()),
                Fact::Forgotten,
                answered(),
            ],
            3,
            State::OutcomeUnknown,
            Event::Forget,
        ),
    ] {
        let impossible = Record::replay(intent(), entries(facts)).unwrap_err();
        assert_eq!(impossible.position, position);
        assert_eq!(impossible.operation, intent().operation);
        assert_eq!(impossible.illegal, Illegal { state, event });
        let said = super::super::StoreError::from(impossible).to_string();
        assert!(said.contains(&format!("entry {position} of")), "{said}");
        assert!(said.contains(&intent().operation.to_string()), "{said}");
    }
}

#[test]
fn a_refused_entry_leaves_the_record_as_it_was() {
    let mut record = Record::new(intent());
    let entry = Entry {
        at: at(1),
        fact: answered(Kept::Nothing, call()),
    };
    record.apply(entry).unwrap_err();
    assert_eq!(record, Record::new(intent()));
}

#[test]
fn forgetting_removes_all_that_was_said_and_leaves_who_decided_and_why() {
    let secret = "4242";
    let verdict = Settler::Verdict {
        who: "dana".to_owned(),
        why: "the ledger".to_owned(),
    };
    let task = TaskHandle::new("billing".parse().unwrap(), "charge", secret);
    for end in [
        answered(Kept::Whole(json!({"card": secret})), call()),
        answered(Kept::Whole(json!({"card": secret})), verdict),
        without(Outcome::Failed, call()),
    ] {
        let facts = vec![
            attempt(1),
            Fact::Task { task: task.clone() },
            without(Outcome::Unknown, call()),
            end,
        ];
        let mut record = Record::replay(intent(), entries(facts)).unwrap();
        let settled_at = record.settled_at();
        assert!(serde_json::to_string(&record).unwrap().contains(secret));
        let forgotten = Entry {
            at: at(100),
            fact: Fact::Forgotten,
        };
        assert_eq!(record.apply(forgotten), Ok(State::Forgotten));
        let left = serde_json::to_string(&record).unwrap();
        assert!(!left.contains(secret), "{left}");
        assert!(!left.contains("cents"), "{left}");
        assert_eq!(record.task(), None);
        assert_eq!(
            record.settled_at(),
            settled_at,
            "and not when it was forgotten"
        );
        assert_eq!(record.intent.key, intent().key, "which stays refused");
        let replayed = Record::replay(record.intent.clone(), record.history.clone()).unwrap();
        assert_eq!(replayed.history, record.history);
    }
    assert!(
        serde_json::to_string(&records()[3])
            .unwrap()
            .contains("the ledger has it")
    );
}

#[test]
fn an_operation_is_kept_by_when_it_was_settled_and_an_unsettled_one_has_no_such_time() {
    for record in records() {
        let settled = record.settled_at();
        assert_eq!(
            settled.is_some(),
            record.state.is_settled(),
            "{:?}",
            record.state
        );
    }
    assert_eq!(records()[0].settled_at(), Some(at(8)));
}

#[test]
fn a_repeat_that_was_refused_or_never_left_says_nothing_of_what_went_before() {
    for outcome in [Outcome::NotSent, Outcome::Rejected] {
        assert_eq!(without(outcome, Settler::Repeat).event(), Event::LoseSight);
    }
    assert_eq!(
        without(Outcome::NotSent, Settler::LookUp).event(),
        Event::NotSend
    );
    let late = Settler::LateAnswer {
        generation: Generation(1),
    };
    assert_eq!(without(Outcome::Rejected, late).event(), Event::Reject);
    assert_eq!(
        without(Outcome::Failed, Settler::Repeat).event(),
        Event::Fail
    );
}

#[test]
fn a_servers_message_is_cut_where_a_character_ends() {
    let most = Failure::MAX_MESSAGE_BYTES;
    let message = format!("{}\u{1f4a1} and more", "m".repeat(most - 2));
    let kept = Failure::new("server_error")
        .answered(-32000, &message)
        .message
        .unwrap();
    assert_eq!(kept, "m".repeat(most - 2));
    let whole = Failure::new("server_error").answered(-32000, "short");
    assert_eq!(whole.message.as_deref(), Some("short"));
}

#[test]
fn a_record_shows_neither_key_nor_arguments_nor_answer_nor_the_servers_text() {
    for record in records() {
        let shown = format!("{record:?} {record:#?}");
        for hidden in ["order-1001", "4242", "cents", "declined", "content"] {
            assert!(!shown.contains(hidden), "{hidden}: {shown}");
        }
        assert!(shown.contains(&record.intent.operation.to_string()));
    }
}
