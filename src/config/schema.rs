//! The schema and the parser know the same fields.

use serde_json::Value;

use super::{json_schema, server, settings};

fn names(schema: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(|properties| properties.keys().map(String::as_str))
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn each_object_has_the_same_fields_in_the_schema_and_in_the_parser() {
    let schema: Value = serde_json::from_str(json_schema()).unwrap();
    let part = |pointer: &str| {
        schema
            .pointer(pointer)
            .unwrap_or_else(|| panic!("{pointer}"))
    };
    let one: Vec<_> = [&settings::COMMON[..], &settings::ONE_SERVER].concat();
    let contract = "/definitions/contract/anyOf/1";
    for (pointer, mut known) in [
        (String::new(), super::TOP.to_vec()),
        ("/definitions/server".into(), server::known()),
        ("/definitions/allServers".into(), settings::COMMON.to_vec()),
        ("/definitions/oneServer".into(), one),
        (
            "/definitions/oneServer/properties/oauth/anyOf/1".into(),
            super::oauth::OAUTH.to_vec(),
        ),
        ("/definitions/limits".into(), settings::LIMITS.to_vec()),
        ("/definitions/recovery".into(), settings::RECOVERY.to_vec()),
        ("/definitions/repeats".into(), settings::REPEATS.to_vec()),
        ("/definitions/backoff".into(), settings::BACKOFF.to_vec()),
        (
            "/definitions/keepAlive/anyOf/1".into(),
            settings::KEEP_ALIVE.to_vec(),
        ),
        (
            "/definitions/sessionEnded".into(),
            settings::SESSION_ENDED.to_vec(),
        ),
        (
            "/definitions/credentials".into(),
            settings::CREDENTIALS.to_vec(),
        ),
        (contract.into(), settings::CONTRACT.to_vec()),
        (
            format!("{contract}/properties/keyed"),
            settings::KEYED.to_vec(),
        ),
        (
            format!("{contract}/properties/status"),
            settings::STATUS.to_vec(),
        ),
    ] {
        known.sort_unstable();
        assert_eq!(names(part(&pointer)), known, "{pointer}");
    }
}

#[test]
fn an_object_of_our_own_is_closed_in_the_schema() {
    fn open_ones(schema: &Value, path: &str, found: &mut Vec<String>) {
        let Some(members) = schema.as_object() else {
            return;
        };
        if members.contains_key("properties") && schema["additionalProperties"] != false {
            found.push(path.to_owned());
        }
        for (name, member) in members {
            let path = format!("{path}/{name}");
            if let Some(items) = member.as_array() {
                for (at, item) in items.iter().enumerate() {
                    open_ones(item, &format!("{path}/{at}"), found);
                }
            }
            open_ones(member, &path, found);
        }
    }
    let schema: Value = serde_json::from_str(json_schema()).unwrap();
    let mut open = Vec::new();
    open_ones(&schema, "", &mut open);
    // What other hosts own is open: their fields are theirs.
    open.retain(|path| !path.is_empty() && path != "/properties/mcp");
    open.retain(|path| !path.starts_with("/definitions/server"));
    assert_eq!(open, Vec::<String>::new());
}
