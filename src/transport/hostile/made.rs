//! What a hostile server may send, made up by proptest. `FUZZ_CASES` sets the number of cases.

use proptest::prelude::*;
use serde_json::Value;

/// How many cases, and no files with failures: what failed once becomes a test with a name.
pub(in crate::transport) fn cases(usual: u32) -> ProptestConfig {
    let wanted = std::env::var("FUZZ_CASES").ok();
    ProptestConfig {
        cases: wanted.map_or(usual, |cases| {
            cases.parse().expect("FUZZ_CASES is a number")
        }),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Names of members that mean something to one reader or another.
const NAMES: [&str; 39] = [
    "jsonrpc",
    "id",
    "result",
    "error",
    "method",
    "params",
    "content",
    "structuredContent",
    "isError",
    "_meta",
    "resultType",
    "type",
    "text",
    "data",
    "mimeType",
    "resource",
    "uri",
    "name",
    "annotations",
    "tools",
    "prompts",
    "messages",
    "resources",
    "contents",
    "completion",
    "taskId",
    "protocolVersion",
    "supportedVersions",
    "code",
    "message",
    "requestState",
    "nextCursor",
    "resourceTemplates",
    "skills",
    "skill",
    "action",
    "io.modelcontextprotocol/subscriptionId",
    "x",
    "i\\u0064",
];

/// One of them.
pub(in crate::transport) fn name() -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(NAMES.to_vec())
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<i32>().prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_map(|n| format!("{n:?}")),
        2 => prop::sample::select(vec![
            "0", "-0", "-", "00", "01", "1.", ".5", "1.0", "7e0", "7E+2", "1e-9", "1e400", "-1e999",
            "9223372036854775807", "9223372036854775808", "-9223372036854775809",
            "18446744073709551616", "340282366920938463463374607431768211456", "NaN", "Infinity",
        ]).prop_map(str::to_owned),
        1 => (290_usize..320).prop_map(|digits| "9".repeat(digits)),
    ]
}

fn string() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => "[a-z ]{0,12}",
        1 => "\\PC{0,6}",
        2 => prop::sample::select(vec![
            "\\n", "\\\\", "\\\"", "\\/", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\ude00",
            "\\ud83d\\u0041", "\\x", "\\u12", "\u{1}", "\u{7f}", "\t", "é", "\u{2028}", "\u{feff}",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        5 => name().prop_map(|name| format!("\"{name}\"")),
        1 => string(),
    ]
}

fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![8 => Just(""), 1 => Just(" "), 1 => Just("\t\r ")]
}

fn object(
    key: impl Strategy<Value = String>,
    member: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    prop::collection::vec((key, space(), member), 0..5).prop_map(|members| {
        let members = members
            .into_iter()
            .map(|(key, space, value)| format!("{key}{space}:{space}{value}"));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    })
}

/// A JSON value as a text: valid or nearly so, with any member twice.
pub(in crate::transport) fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        2 => number(),
        3 => string(),
        2 => prop::sample::select(vec!["true", "false", "null", "tru", ""]).prop_map(str::to_owned),
        1 => (100_usize..140).prop_map(|deep| format!("{}{}", "[".repeat(deep), "]".repeat(deep))),
    ];
    nested(leaf, key)
}

/// A JSON value, with names that mean something.
pub(in crate::transport) fn sound() -> impl Strategy<Value = Value> {
    let text = prop::sample::select(vec![
        "text", "image", "complete", "task", "resource", "user",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    let key = || name().prop_map(|name| format!("\"{name}\""));
    let text = nested(leaf.prop_map(|leaf| leaf.to_string()), key);
    text.prop_map(|text| serde_json::from_str(&text).expect("it is made of what is JSON"))
}

/// Arrays and objects of leaves.
fn nested<K: Strategy<Value = String> + 'static>(
    leaf: impl Strategy<Value = String> + 'static,
    key: impl Fn() -> K + 'static,
) -> impl Strategy<Value = String> {
    leaf.prop_recursive(3, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            object(key(), inner),
        ]
    })
}

fn content() -> impl Strategy<Value = String> {
    let one = prop_oneof![
        4 => string().prop_map(|text| format!(r#"{{"type":"text","text":{text}}}"#)),
        1 => (string(), value()).prop_map(|(text, more)| {
            format!(r#"{{"text":{text},"type":"text","annotations":{more},"_meta":{more}}}"#)
        }),
        1 => string().prop_map(|data| {
            format!(r#"{{"type":"image","data":{data},"mimeType":"image/png"}}"#)
        }),
        1 => string().prop_map(|uri| {
            format!(r#"{{"type":"resource","resource":{{"uri":{uri},"text":"t"}}}}"#)
        }),
        1 => value(),
    ];
    prop::collection::vec(one, 0..4).prop_map(|items| format!("[{}]", items.join(",")))
}

/// What stands behind `"result":`.
pub(in crate::transport) fn result() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => content().prop_map(|content| format!(r#"{{"content":{content}}}"#)),
        2 => (content(), value(), value()).prop_map(|(content, structured, meta)| format!(
            r#"{{"structuredContent":{structured},"isError":true,"content":{content},"_meta":{meta}}}"#
        )),
        1 => value().prop_map(|structured| format!(r#"{{"structuredContent":{structured}}}"#)),
        1 => (content(), value()).prop_map(|(content, other)| {
            format!(r#"{{"content":{content},"content":{other},"resultType":"complete"}}"#)
        }),
        1 => prop::sample::select(vec![
            "{}", "null", "7", "[]", r#"{"resultType":"complete"}"#,
            r#"{"content":[],"resultType":"input_required"}"#,
            r#"{"tools":[{"name":"t","inputSchema":{"type":"object"}}],"nextCursor":"n"}"#,
            r#"{"tools":[],"content":[]}"#,
            r#"{"resources":[{"uri":"file:///a","name":"a"}]}"#,
            r#"{"contents":[{"uri":"a","text":"a"}]}"#,
            r#"{"messages":[{"role":"user","content":{"type":"text","text":"hi"}}]}"#,
            r#"{"completion":{"values":["a"]}}"#,
        ]).prop_map(str::to_owned),
        1 => object(key(), value()),
    ]
}

/// What stands behind `"id":`.
pub(in crate::transport) fn id() -> impl Strategy<Value = String> {
    prop_oneof![
        5 => (0_i64..100).prop_map(|id| id.to_string()),
        1 => (0_i64..100).prop_map(|id| format!("\"{id}\"")),
        2 => number(),
        2 => value(),
    ]
}

/// A message of a server: one JSON object or nearly one, whose members come in any order, are missing
/// or are there twice.
pub(in crate::transport) fn message() -> impl Strategy<Value = String> {
    let version = prop_oneof![9 => Just("\"2.0\""), 1 => Just("\"1.0\""), 1 => Just("2.0")];
    let said = prop_oneof![
        6 => result().prop_map(|result| format!(r#""result":{result}"#)),
        1 => (number(), string(), value()).prop_map(|(code, message, data)| {
            format!(r#""error":{{"code":{code},"message":{message},"data":{data}}}"#)
        }),
        1 => value().prop_map(|params| {
            format!(r#""method":"notifications/message","params":{params}"#)
        }),
    ];
    let more = prop_oneof![
        6 => Just(None),
        2 => (key(), value()).prop_map(|(key, value)| Some(format!("{key}:{value}"))),
        1 => id().prop_map(|id| Some(format!(r#""id":{id}"#))),
    ];
    (version, id(), said, more, space(), 0_u8..24).prop_map(
        |(version, id, said, more, space, order)| {
            let mut members = vec![
                format!(r#""jsonrpc":{space}{version}"#),
                format!(r#""id":{space}{id}"#),
                said,
            ];
            members.extend(more);
            let mut order = usize::from(order);
            let mut mixed = Vec::new();
            while !members.is_empty() {
                mixed.push(members.remove(order % members.len()));
                order /= 2;
            }
            format!("{{{space}{}}}{space}", mixed.join(","))
        },
    )
}

/// The bytes of a message, of which some were changed on the way.
pub(in crate::transport) fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let change = (
        any::<prop::sample::Index>(),
        0_usize..4,
        prop::sample::select(vec![
            &b""[..],
            b"\"",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"\\",
            b"\\u",
            b"\xff",
            b"\xed\xa0\x80",
            b"\xc3",
            b"\0",
            b"\r",
            b" ",
            b"e",
            b"-",
            b"9",
        ]),
    );
    (
        message(),
        prop_oneof![
            3 => Just(Vec::new()),
            2 => prop::collection::vec(change, 1..4),
        ],
    )
        .prop_map(|(message, changes)| {
            let mut bytes = message.into_bytes();
            for (at, gone, piece) in changes {
                let at = at.index(bytes.len() + 1);
                let end = (at + gone).min(bytes.len());
                bytes.splice(at..end, piece.iter().copied());
            }
            bytes
        })
}

/// What the check of an exchange over HTTP takes: how it is to be read, a head, and a body.
pub(in crate::transport) fn answer_over_http() -> impl Strategy<Value = Vec<u8>> {
    let status = prop_oneof![
        6 => Just(200_u16),
        2 => prop::sample::select(vec![201, 202, 204, 301, 400, 401, 403, 404, 405, 408, 410, 429, 500, 503]),
        1 => 100_u16..999,
    ];
    let kind = prop::sample::select(vec![
        "application/json",
        "Application/JSON; charset=utf-8",
        "text/event-stream",
        "text/event-stream;x=y",
        "text/plain",
        "application/jsonx",
        "",
        "\u{e9}",
    ]);
    let line = prop_oneof![
        2 => Just(String::new()),
        1 => string().prop_map(|said| format!("WWW-Authenticate: Bearer realm={said}, error=\"invalid_token\"\r\n")),
        1 => number().prop_map(|after| format!("Retry-After: {after}\r\n")),
        1 => number().prop_map(|length| format!("Content-Length: {length}\r\n")),
        1 => "[!-~]{1,12}".prop_map(|id| format!("Mcp-Session-Id: {id}\r\n")),
        1 => "\\PC{0,12}".prop_map(|noise| format!("{noise}\r\n")),
    ];
    let whole = bytes();
    let answers = (result(), id()).prop_map(|(result, id)| {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}").into_bytes()
    });
    let answered = result().prop_map(|result| {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{result}}}").into_bytes()
    });
    let body = prop_oneof![3 => answered, 1 => answers, 1 => whole].boxed();
    let event = (
        prop::sample::select(vec![
            "data: ",
            "data:",
            "event: message\ndata: ",
            "id: 1\ndata: ",
            "event: other\ndata: ",
            ": ",
            "retry: 5\ndata: ",
            "retry: 99999999999999999999\n",
            "",
            "data",
            "\u{feff}data: ",
        ]),
        body.clone(),
        prop::sample::select(vec!["\n\n", "\r\n\r\n", "\n", "\r\r", ""]),
    );
    let event =
        event.prop_map(|(field, body, end)| [field.as_bytes(), &body, end.as_bytes()].concat());
    let events = prop::collection::vec(event, 0..4).prop_map(|events| events.concat());
    let body = prop_oneof![
        4 => body.clone(),
        1 => body.prop_map(|body| [b"\xEF\xBB\xBF", &body[..]].concat()),
        4 => events,
    ];
    (any::<[u8; 2]>(), status, kind, line, body).prop_map(|(how, status, kind, line, body)| {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{line}\r\n");
        [&how[..], head.as_bytes(), &body].concat()
    })
}
