//! The words of the protocol extension between a client and a server that both keep the identity of
//! an operation: the capability of the server, where the key travels, and the look-up of a receipt.
//! `docs/extension.md` says the same for those who implement it elsewhere.
//!
//! A server that offers it changes nothing by that. The client uses it for a tool only where its own
//! contract for that tool is [`Receipts`](crate::policy::ToolContract::Receipts).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The capability of a server that keeps receipts: a name among the `extensions`, and for the
/// revisions that have none of those among the `experimental` ones.
pub const RECEIPTS: &str = "dev.mcp-supervisor/receipts";

/// The entry of a `tools/call`'s `_meta` that holds the operation's idempotency key.
pub const IDEMPOTENCY_KEY: &str = "dev.mcp-supervisor/idempotency-key";

/// The request that asks for the receipt of a tool and a key.
pub const LOOK_UP: &str = "dev.mcp-supervisor/receipts/get";

/// The entry of a result's `_meta` that says that the operation is not over by this result: what it
/// waits for, as an [`Open`].
pub const UNSETTLED: &str = "dev.mcp-supervisor/unsettled";

/// Why a result does not end its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Open {
    /// This call did not begin, and changed nothing. An earlier one under its key may have.
    Busy,
    /// It runs, begun by this call or by an earlier one.
    Working,
    /// The server cannot establish what became of it.
    OutcomeUnknown,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

impl Open {
    /// The word that stands in the entry.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Working => "working",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Other => "unsettled",
        }
    }
}

/// The version of the extension that this crate speaks.
pub const VERSION: u32 = 1;

/// What a server says of its receipts in the handshake.
///
/// ```
/// use mcp_supervisor::extension::Offer;
/// use serde_json::json;
/// use std::time::Duration;
///
/// let said = json!({ "version": 1, "retentionSeconds": 604800, "tools": ["create_order"], "lookUp": true });
/// let offer = Offer::read(said.as_object().unwrap()).unwrap();
/// assert!(offer.covers("create_order", Duration::from_secs(3600)));
/// assert!(!offer.covers("create_order", Duration::from_secs(604_801)));
/// assert!(!offer.covers("delete_all", Duration::ZERO));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Offer {
    /// The version of the extension.
    pub version: u32,
    /// For how many seconds at least a receipt is kept, and its key refused to anything else.
    pub retention_seconds: u64,
    /// The tools that keep receipts.
    pub tools: Vec<String>,
    /// Whether the server answers [`LOOK_UP`].
    #[serde(default)]
    pub look_up: bool,
}

impl Offer {
    /// An offer of the version that this crate speaks, with the look-up.
    #[must_use]
    pub fn new(retention: Duration, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            version: VERSION,
            retention_seconds: retention.as_secs(),
            tools: tools.into_iter().map(Into::into).collect(),
            look_up: true,
        }
    }

    /// Reads the capability's settings. What is of another version, or is not understood, is no offer.
    #[must_use]
    pub fn read(settings: &Map<String, Value>) -> Option<Self> {
        let offer: Self = serde_json::from_value(Value::Object(settings.clone())).ok()?;
        (offer.version == VERSION).then_some(offer)
    }

    /// The capability's settings.
    #[must_use]
    pub fn settings(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(settings)) => settings,
            // Numbers, texts and a flag are an object.
            _ => Map::new(),
        }
    }

    /// Whether a call of `tool` whose first attempt was `ago` may be found by its key.
    #[must_use]
    pub fn covers(&self, tool: &str, ago: Duration) -> bool {
        ago < Duration::from_secs(self.retention_seconds) && self.keeps(tool)
    }

    /// Whether `tool` keeps receipts.
    #[must_use]
    pub fn keeps(&self, tool: &str) -> bool {
        self.tools.iter().any(|kept| kept == tool)
    }
}

/// What [`LOOK_UP`] asks for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookUp {
    /// The tool.
    pub tool: String,
    /// The key.
    pub key: String,
}

/// What [`LOOK_UP`] answers: what the server knows of one operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Receipt {
    /// Where it stands.
    pub state: ReceiptState,
    /// The server's name for the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation_id: Option<String>,
    /// The `CallToolResult` that was kept, marked as replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The `Task` that works on it, where the session has tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Value>,
    /// What to do or to inspect where nothing settles it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_action: Option<String>,
}

impl Receipt {
    /// A receipt that says no more than where the operation stands.
    #[must_use]
    pub fn of(state: ReceiptState) -> Self {
        Self {
            state,
            operation_id: None,
            result: None,
            task: None,
            next_action: None,
        }
    }
}

/// Where an operation stands for the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReceiptState {
    /// There is no receipt. A request that is still on its way may make one yet.
    Absent,
    /// It runs.
    Working,
    /// It runs, and was asked to stop.
    CancelRequested,
    /// It is done, and its result is kept.
    Succeeded,
    /// It is done, and its result says that the tool failed or refused.
    Failed,
    /// It stopped before it was done, and none of its last writes were made.
    Cancelled,
    /// The server cannot establish what became of it.
    OutcomeUnknown,
    /// It is done, and its result was kept for the stated time and is gone.
    Expired,
    /// A state of a later version.
    #[serde(other)]
    Other,
}

impl std::fmt::Debug for LookUp {
    /// Shows the tool, and not the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LookUp")
            .field("tool", &self.tool)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_offer_that_is_not_understood_is_none() {
        let read = |said: Value| Offer::read(said.as_object().unwrap());
        let whole = Offer::new(Duration::from_secs(60), ["pay"]);
        assert_eq!(Offer::read(&whole.settings()), Some(whole));
        for said in [
            json!({}),
            json!({ "version": 2, "retentionSeconds": 60, "tools": ["pay"] }),
            json!({ "version": 1, "tools": ["pay"] }),
            json!({ "version": 1, "retentionSeconds": -1, "tools": ["pay"] }),
            json!({ "version": 1, "retentionSeconds": 60, "tools": "pay" }),
        ] {
            assert_eq!(read(said.clone()), None, "{said}");
        }
        let later = json!({ "version": 1, "retentionSeconds": 60, "tools": [], "more": 1 });
        assert!(
            !read(later).unwrap().look_up,
            "what is not said is not offered"
        );
    }

    #[test]
    fn a_state_of_a_later_version_is_read_as_another_one() {
        let receipt: Receipt = serde_json::from_value(json!({ "state": "moved" })).unwrap();
        assert_eq!(receipt.state, ReceiptState::Other);
    }
}
