//! Configuration, canonical JSON, lines of an export, keys, challenges.

use mcp_supervisor::{
    IdempotencyKey, KeyError, OperationId,
    credentials::Challenge,
    extension::Offer,
    operation::{Fingerprint, canonical_json},
};
use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{
    cases, change, changed,
    checks::{self, turned},
};

/// The files in `tests/config`, and the lines of an export.
fn file(directory: &str, ending: &str) -> Vec<Vec<u8>> {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|is| is == ending))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![0.0, -0.0, 1.0, 1e15, 1e16, 1e21, 5e-324, f64::MAX])
            .prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            object(inner).prop_map(Value::from),
        ]
    })
}

fn object(member: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let name = prop_oneof!["[a-c]{0,2}", any::<String>()];
    prop::collection::vec((name, member), 0..5).prop_map(|members| members.into_iter().collect())
}

proptest! {
    #![proptest_config(cases(150, 1))]

    #[test]
    fn a_mangled_configuration_is_read_or_refused_with_its_place(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 0..5),
    ) {
        let files = file("tests/config", "json");
        checks::configuration(&changed(&files[which.index(files.len())], &changes));
    }

    #[test]
    fn a_configuration_of_any_values_is_read_or_refused_with_its_place(
        names in prop::collection::vec(prop::sample::select(vec![
            "command", "args", "env", "cwd", "url", "headers", "type", "timeout", "disabled",
            "mcp-supervisor", "limits", "contracts", "oauth", "era", "recovery", "${SECRET}",
        ]), 0..6),
        values in prop::collection::vec(value(), 6),
        settings in object(value()),
    ) {
        let server: Map<_, _> = names.iter().map(|n| (*n).to_owned()).zip(values).collect();
        let mut second = server.clone();
        second.insert("command".into(), "x".into());
        second.insert("mcp-supervisor".into(), Value::Object(settings));
        let file = serde_json::json!({ "mcpServers": { "one": server, "two": second } });
        checks::configuration(file.to_string().as_bytes());
    }

    #[test]
    fn canonical_json_is_one_text_for_what_is_equal_and_another_for_everything_else(
        one in value(), other in value(),
    ) {
        checks::canonical_of(&one);
        // -0.0 equals 0.0 and is another text: numbers stay as they were given.
        let same = format!("{one:?}") == format!("{other:?}");
        prop_assert_eq!(same, canonical_json(&one) == canonical_json(&other));
    }

    #[test]
    fn a_fingerprint_is_the_same_for_the_same_call_alone(
        tool in "[ab\"{]{0,3}", other_tool in "[ab\"{]{0,3}",
        one in object(value()), other in object(value()),
    ) {
        let print = Fingerprint::of(&tool, &one);
        let again: Map<_, _> = serde_json::from_str(&turned(&one.clone().into())).unwrap();
        prop_assert_eq!(print, Fingerprint::of(&tool, &again));
        let same = tool == other_tool && format!("{one:?}") == format!("{other:?}");
        prop_assert_eq!(same, print == Fingerprint::of(&other_tool, &other));
        let text = serde_json::to_string(&print).unwrap();
        prop_assert_eq!(serde_json::from_str::<Fingerprint>(&text).unwrap(), print);
    }

    #[test]
    fn no_text_is_taken_for_a_fingerprint_that_is_none(text in "[0-9a-fA-F+é\"]{0,70}|\\PC{62,66}") {
        let quoted = serde_json::to_string(&text).unwrap();
        if let Ok(read) = serde_json::from_str::<Fingerprint>(&quoted) {
            prop_assert_eq!(read.to_string(), text.to_lowercase());
        }
    }

    #[test]
    fn a_line_of_an_export_is_a_record_that_could_have_been_or_none(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..3),
    ) {
        let lines = file("src/journal/record", "jsonl").concat();
        let lines: Vec<_> = lines.split(|b| *b == b'\n').filter(|l| !l.is_empty()).collect();
        let line = changed(lines[which.index(lines.len())], &changes);
        checks::record(&line);
    }

    #[test]
    fn a_key_is_what_it_is_said_to_be_and_nothing_else(key in prop_oneof![
        "[!-~]{0,140}", "[ -~]{0,12}", any::<String>(),
    ]) {
        let graphic = key.bytes().all(|b| b.is_ascii_graphic());
        let right = graphic && (1..=IdempotencyKey::MAX_BYTES).contains(&key.len());
        let read = key.parse::<IdempotencyKey>();
        prop_assert_eq!(read.is_ok(), right);
        match read {
            Ok(read) => prop_assert_eq!(read.as_str(), &key),
            Err(KeyError::Character { at }) => prop_assert!(!key.as_bytes()[at].is_ascii_graphic()),
            Err(KeyError::Length { bytes }) => prop_assert_eq!(bytes, key.len()),
        }
        let quoted = serde_json::to_string(&key).unwrap();
        prop_assert_eq!(serde_json::from_str::<IdempotencyKey>(&quoted).is_ok(), right);
        if let Ok(id) = key.parse::<OperationId>() {
            prop_assert_eq!(id.to_string().parse::<OperationId>().unwrap(), id);
        }
    }

    #[test]
    fn a_challenge_is_read_as_it_was_written_and_any_header_is_read(
        realm in "[ -~]{0,20}", scope in "[!#-+--~ ]{0,20}", header in any::<String>(),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let whole = format!(
            "Basic realm=\"other, one\", Bearer realm=\"{}\",scope = \"{}\"",
            quoted(&realm), quoted(&scope),
        );
        let read = Challenge::parse(&whole).unwrap();
        prop_assert_eq!(read.realm, Some(realm));
        prop_assert_eq!(read.scope, Some(scope));
        checks::header(header.as_bytes());
        checks::header(&changed(whole.as_bytes(), &changes));
    }

    #[test]
    fn an_offer_of_receipts_is_read_as_it_was_written_and_any_settings_are_read(
        settings in object(value()), tools in prop::collection::vec(any::<String>(), 0..4),
        seconds in any::<u64>(),
    ) {
        let _ = Offer::read(&settings);
        let offer = Offer::new(std::time::Duration::from_secs(seconds), tools);
        prop_assert_eq!(Offer::read(&offer.settings()), Some(offer));
    }
}
