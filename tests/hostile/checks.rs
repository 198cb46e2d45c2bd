//! One check for each text that is read. Each takes any bytes; the property tests make them up, and so does
//! the fuzzer in `tests/fuzz`.

#![allow(dead_code, reason = "each target of the fuzzer calls one of them")]

use mcp_supervisor::{
    Configuration, IdempotencyKey, OperationId,
    credentials::Challenge,
    extension::Offer,
    journal::Record,
    operation::{Fingerprint, canonical_json},
};
use serde_json::{Map, Value};

const SECRET: &str = "planted-secret";

/// A file is read, or refused as a whole or in part, with a place that is in it and no value.
pub(crate) fn configuration(bytes: &[u8]) {
    let reader = Configuration::reader()
        .environment(|_| Some(SECRET.to_owned()))
        .inputs(|_| Some(SECRET.to_owned()));
    let read = reader.parse("mcp.json", bytes);
    // What a file says itself may be shown.
    let says_it = bytes
        .windows(SECRET.len())
        .any(|part| part == SECRET.as_bytes());
    let errors: Vec<_> = match &read {
        Ok(configuration) => {
            let shown = format!("{configuration:?}");
            assert!(says_it || !shown.contains(SECRET), "{shown}");
            configuration.errors().collect()
        }
        Err(error) => vec![error],
    };
    for error in errors {
        let said = error.to_string();
        assert!(said.starts_with("mcp.json"), "{said}");
        assert!(says_it || !said.contains(SECRET), "{said}");
        assert!(said.len() < 2_000, "{}", said.len());
        if let Some(position) = error.position {
            let lines = bytes.split(|b| *b == b'\n').count();
            assert!(position.line >= 1 && position.line <= lines + 1, "{said}");
            let last = bytes.len() + 1;
            assert!(position.column >= 1 && position.column <= last, "{said}");
        }
    }
}

/// The same, with the members of every object in the opposite order.
pub(crate) fn turned(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(turned).collect();
            format!("[ {} ]", items.join(" ,"))
        }
        Value::Object(members) => {
            let name = |name: &String| serde_json::to_string(name).expect("a name is a string");
            let members = members.iter().rev();
            let members: Vec<_> = members
                .map(|(n, value)| format!("{} :{}", name(n), turned(value)))
                .collect();
            format!("{{{}\n}}", members.join(","))
        }
        other => other.to_string(),
    }
}

/// Canonical JSON of whatever is JSON.
pub(crate) fn canonical(bytes: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
        canonical_of(&value);
    }
}

/// It is one text for what is equal, says what the value says, and so does the fingerprint of a call.
pub(crate) fn canonical_of(value: &Value) {
    let text = canonical_json(value);
    let read: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(&read, value, "it says another thing");
    assert_eq!(canonical_json(&read), text, "it is not the last word");
    let again: Value = serde_json::from_str(&turned(value)).expect("it is JSON");
    assert_eq!(canonical_json(&again), text, "the order of members matters");
    if let (Value::Object(one), Value::Object(other)) = (value, &again) {
        let print = Fingerprint::of("tool", one);
        assert_eq!(print, Fingerprint::of("tool", other));
        let text = serde_json::to_string(&print).expect("it is a string");
        assert_eq!(serde_json::from_str::<Fingerprint>(&text).ok(), Some(print));
    }
}

/// A line of an export is a record that could have been, or none.
pub(crate) fn record(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(record) = serde_json::from_slice::<Record>(line) {
            let folded = Record::replay(record.intent.clone(), record.history.clone());
            let folded = folded.expect("what was read can have happened");
            assert_eq!(folded.state, record.state);
            let written = serde_json::to_string(&record).expect("it can be written");
            let again = serde_json::from_str::<Record>(&written);
            assert_eq!(again.expect("what was written can be read"), record);
        }
    }
}

/// A header, a key, an id and the settings of an extension are read, or they are none.
pub(crate) fn header(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    if let Some(challenge) = Challenge::parse(text) {
        let parts = [
            challenge.scope,
            challenge.resource_metadata,
            challenge.error,
            challenge.realm,
        ];
        for part in parts.into_iter().flatten() {
            assert!(part.len() <= text.len(), "{part}");
        }
    }
    let graphic = text.bytes().all(|b| b.is_ascii_graphic());
    let right = graphic && (1..=IdempotencyKey::MAX_BYTES).contains(&text.len());
    assert_eq!(text.parse::<IdempotencyKey>().is_ok(), right);
    if let Ok(id) = text.parse::<OperationId>() {
        assert_eq!(id.to_string().parse::<OperationId>().ok(), Some(id));
    }
    if let Ok(settings) = serde_json::from_str::<Map<String, Value>>(text)
        && let Some(offer) = Offer::read(&settings)
    {
        assert_eq!(Offer::read(&offer.settings()), Some(offer));
    }
}
