//! What a game has in store, all of it from its seed.

use std::collections::BTreeMap;

use mcp_supervisor::{OperationId, ToolContract};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

/// The tools, each with what its client vouches for. The last one is the shop's.
pub(super) const TOOLS: [&str; 4] = ["pay_plain", "pay_keyed", "pay_status", "create_order"];

pub(super) fn contracts() -> BTreeMap<&'static str, ToolContract> {
    BTreeMap::from([
        ("pay_keyed", ToolContract::keyed("key")),
        ("pay_status", ToolContract::status("lookup", "key")),
        ("create_order", ToolContract::Receipts),
    ])
}

/// A call that is ordered. The mark is what its effect is recognised by.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) id: OperationId,
    pub(super) tool: &'static str,
    pub(super) key: Option<String>,
    pub(super) mark: Option<String>,
    deadline_ms: u64,
}

impl Planned {
    pub(super) fn order(&self) -> Value {
        let mut order = json!({"do": "call", "tool": self.tool, "id": self.id,
            "arguments": {}, "deadline_ms": self.deadline_ms});
        if let Some(key) = &self.key {
            order["key"] = json!(key);
        }
        match (self.tool, &self.mark) {
            ("create_order", mark) => {
                order["arguments"]["item"] = json!(mark);
                order["connection"] = json!("shop");
            }
            // The runtime fills it in.
            ("pay_keyed", _) => {}
            (_, mark) => order["arguments"]["key"] = json!(mark),
        }
        order
    }
}

/// When something is killed: once so many calls were begun, or so many answers told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kill {
    Never,
    Begun(usize),
    Told(usize),
}

impl Kill {
    pub(super) fn is_now(self, begun: usize, told: usize) -> bool {
        match self {
            Self::Never => false,
            Self::Begun(many) => begun == many,
            Self::Told(many) => told == many,
        }
    }
}

/// One life of a host.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) calls: Vec<Planned>,
    pub(super) host: Kill,
    pub(super) server: Kill,
    pub(super) shop: Kill,
    /// A lever of the shop that is pulled before.
    pub(super) lever: Option<&'static str>,
}

pub(super) struct Dice(StdRng);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Which calls of each tool come to grief in each process of the server, and how.
    pub(super) fn rules(&mut self) -> Value {
        let mut rules = Vec::new();
        for (tool, effect) in [
            ("pay_plain", "ledger"),
            ("pay_keyed", "ledger_once"),
            ("pay_status", "ledger"),
        ] {
            for nth in 1..=8 {
                if !self.0.random_bool(0.4) {
                    continue;
                }
                let steps = match self.0.random_range(0..6) {
                    0 => json!([effect, "kill"]),
                    1 => json!(["kill"]),
                    2 => json!([effect, "hang"]),
                    3 => json!([{"error": {"code": -32603, "message": "broken"}}]),
                    4 => json!([effect, {"sleep_ms": 300}, "answer"]),
                    _ => json!(["hang"]),
                };
                rules.push(json!({"on": "tools/call", "tool": tool, "nth": nth, "do": steps}));
            }
            rules.push(json!({"on": "tools/call", "tool": tool, "do": [effect, "answer"]}));
        }
        Value::Array(rules)
    }

    /// One life, in which calls of `before` may be made again.
    pub(super) fn life(&mut self, before: &[Planned]) -> Life {
        let mut calls: Vec<Planned> = Vec::new();
        for _ in 0..8 {
            let again: Vec<&Planned> = before.iter().chain(&calls).collect();
            let again: Vec<_> = again.into_iter().filter(|it| it.key.is_some()).collect();
            let call = match again.len() {
                many if many > 0 && self.0.random_bool(0.25) => Planned {
                    id: OperationId::mint(),
                    ..again[self.0.random_range(0..many)].clone()
                },
                _ => self.call(before.len() + calls.len()),
            };
            calls.push(call);
        }
        let calls_count = calls.len();
        Life {
            calls,
            host: self.kill(0.6, calls_count),
            server: self.kill(0.4, calls_count),
            shop: self.kill(0.3, calls_count),
            lever: match self.0.random_range(0..5) {
                0 => Some("die-before"),
                1 => Some("die-after"),
                2 => Some("stall-after"),
                _ => None,
            },
        }
    }

    fn call(&mut self, number: usize) -> Planned {
        let tool = TOOLS[self.0.random_range(0..TOOLS.len())];
        let mark = format!("mark-{number}");
        // One that is looked up has its key in its arguments, so it is given; the others may be minted.
        let keyed = tool == "pay_status" || self.0.random_bool(0.6);
        Planned {
            id: OperationId::mint(),
            tool,
            key: keyed.then(|| mark.clone()),
            mark: (keyed || tool != "pay_keyed").then_some(mark),
            deadline_ms: self.0.random_range(400..1_500),
        }
    }

    fn kill(&mut self, chance: f64, calls: usize) -> Kill {
        if !self.0.random_bool(chance) {
            return Kill::Never;
        }
        match self.0.random_bool(0.5) {
            true => Kill::Begun(self.0.random_range(1..=calls)),
            false => Kill::Told(self.0.random_range(0..calls)),
        }
    }
}
