//! Each server that we did not write, as data: how it is started, what it has, what it says.

use std::time::Duration;

use mcp_supervisor::{Era, ToolCall, spec::Revision};
use serde_json::json;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Stdio,
    Http,
}

/// What the user's handler answers to a form and to a request for a sample.
pub const COLOUR: &str = "ultramarine";
pub const SAID: &str = "the handler said this";

/// What a server's process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// A file in `servers/`, run by the Python of this environment.
    Python(&'static str, &'static str),
    /// A file in `servers/`, run by Node.
    Node(&'static str),
    /// The official everything server, which takes its port from `PORT`.
    Everything,
    /// The example of this package.
    Rmcp,
}

/// A transport and an era.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    pub wire: Wire,
    /// Pinned to `initialize`, or automatic.
    pub is_pinned: bool,
    /// What is negotiated.
    pub revision: &'static str,
    /// Whether its questions reach the client.
    pub asks: bool,
    /// Whether it tells of a resource that changed.
    pub tells: bool,
}

impl Seat {
    pub fn era(&self) -> Era {
        if self.is_pinned {
            Era::Initialize(Revision::V2025_11_25)
        } else {
            Era::Automatic
        }
    }
}

pub struct Prompt {
    pub name: &'static str,
    pub arguments: &'static [(&'static str, &'static str)],
    pub says: &'static str,
}

pub struct Completion {
    pub prompt: &'static str,
    pub argument: &'static str,
    pub begun: &'static str,
    pub values: &'static [&'static str],
}

pub struct Row {
    pub name: &'static str,
    /// The package as its registry names it, and the version that is installed.
    pub package: &'static str,
    pub version: &'static str,
    pub program: Program,
    pub tools: &'static [&'static str],
    pub pages_of_tools: usize,
    /// Whether it writes down what ran.
    pub keeps_a_ledger: bool,
    /// What its tool `fails` answers, where it has one.
    pub failure: Option<&'static str>,
    pub no_such_tool: &'static str,
    /// Whether its progress says how far it will go.
    pub tells_the_total: bool,
    pub prompt: Prompt,
    pub resource: (&'static str, &'static str),
    pub template: &'static str,
    pub of_the_template: (&'static str, &'static str),
    pub completion: Completion,
    pub seats: &'static [Seat],
    /// What was found out about it, and the test that shows it.
    pub found: &'static [(&'static str, &'static str)],
}

impl Row {
    pub fn echo(&self) -> (ToolCall, &'static str) {
        match self.program {
            Program::Everything => (ToolCall::new("echo", json!({"message": "hi"})), "Echo: hi"),
            _ => (ToolCall::new("echo", json!({"text": "hi"})), "hi"),
        }
    }

    pub fn slow(&self, name: &str, steps: u64, step: Duration) -> ToolCall {
        match self.program {
            Program::Everything => {
                #[expect(clippy::cast_precision_loss, reason = "a few steps")]
                let duration = step.as_secs_f64() * steps as f64;
                let given = json!({"duration": duration, "steps": steps});
                ToolCall::new("trigger-long-running-operation", given)
            }
            _ => {
                let pause = u64::try_from(step.as_millis()).unwrap();
                let given = json!({"name": name, "steps": steps, "pause_ms": pause});
                ToolCall::new("slow", given)
            }
        }
    }

    /// Calls of tools that ask the client for a form and for a sample, and what their answers hold
    /// when the handler has answered.
    pub fn questions(&self) -> [(ToolCall, &'static str); 2] {
        match self.program {
            Program::Everything => [
                (
                    ToolCall::new("trigger-elicitation-request", json!({})),
                    "accept",
                ),
                (
                    ToolCall::new(
                        "trigger-sampling-request",
                        json!({"prompt": "Say something."}),
                    ),
                    SAID,
                ),
            ],
            _ => [
                (ToolCall::new("ask", json!({})), COLOUR),
                (ToolCall::new("sample", json!({})), SAID),
            ],
        }
    }

    /// A call that makes the server tell that its resource changed.
    pub fn pin(&self) -> ToolCall {
        match self.program {
            Program::Everything => ToolCall::new("toggle-subscriber-updates", json!({})),
            _ => ToolCall::new("pin", json!({})),
        }
    }

    /// A call that has its effect and is not answered.
    pub fn hang(&self, name: &str) -> ToolCall {
        match self.program {
            Program::Everything => self.slow(name, 1, Duration::from_secs(600)),
            _ => ToolCall::new("charge", json!({"name": name, "then": "hang"})),
        }
    }
}

const fn older(wire: Wire, is_pinned: bool) -> Seat {
    Seat {
        wire,
        is_pinned,
        revision: "2025-11-25",
        asks: true,
        tells: true,
    }
}

const fn telling_nothing(seat: Seat) -> Seat {
    Seat {
        tells: false,
        ..seat
    }
}

const fn newer(wire: Wire) -> Seat {
    Seat {
        revision: "2026-07-28",
        ..older(wire, false)
    }
}

const OLDER_ERA: [Seat; 2] = [older(Wire::Stdio, false), older(Wire::Http, false)];

const OLDER_ERA_TELLING_NOTHING: [Seat; 2] = [
    telling_nothing(older(Wire::Stdio, false)),
    telling_nothing(older(Wire::Http, false)),
];

const BOTH_ERAS: [Seat; 4] = [
    newer(Wire::Stdio),
    older(Wire::Stdio, true),
    newer(Wire::Http),
    older(Wire::Http, true),
];

/// What the servers in `servers/` have in common.
const SMALL: Row = Row {
    name: "",
    package: "",
    version: "",
    program: Program::Rmcp,
    tools: &["echo", "fails", "slow", "charge", "ask", "sample"],
    pages_of_tools: 1,
    keeps_a_ledger: true,
    failure: Some("it does not work"),
    no_such_tool: "a tool error",
    tells_the_total: true,
    prompt: Prompt {
        name: "greet",
        arguments: &[("who", "Bo")],
        says: "Greet Bo.",
    },
    resource: ("note://board", "nothing new"),
    template: "note://page/{number}",
    of_the_template: ("note://page/3", "page 3"),
    completion: Completion {
        prompt: "greet",
        argument: "who",
        begun: "A",
        values: &["Ada", "Alan"],
    },
    seats: &BOTH_ERAS,
    found: &[],
};

pub const ROWS: [Row; 7] = [
    Row {
        name: "everything",
        package: "@modelcontextprotocol/server-everything",
        version: "2026.8.31",
        program: Program::Everything,
        tools: &["echo", "get-sum", "trigger-long-running-operation"],
        keeps_a_ledger: false,
        failure: None,
        prompt: Prompt {
            name: "args-prompt",
            arguments: &[("city", "Bern")],
            says: "Bern",
        },
        resource: (
            "demo://resource/static/document/features.md",
            "Everything Server",
        ),
        template: "demo://resource/dynamic/text/{resourceId}",
        of_the_template: ("demo://resource/dynamic/text/3", "Resource 3"),
        completion: Completion {
            prompt: "completable-prompt",
            argument: "department",
            begun: "E",
            values: &["Engineering"],
        },
        seats: &OLDER_ERA,
        found: &[
            (
                "it writes no ledger, so that of a killed call only the unknown outcome is seen, \
                 and of a cancel that the session works on; its long tool does not look for one",
                "foreign::a_foreign_server_is_told_of_a_call_that_nobody_waits_for",
            ),
            (
                "over HTTP a session that it forgot in a restart is answered with 400 and -32000, \
                 \"No valid session ID provided\", and is taken for lost by that text",
                "foreign::a_foreign_server_restarted_between_calls_is_found_again_by_a_read",
            ),
        ],
        ..SMALL
    },
    Row {
        name: "python-1",
        package: "mcp",
        version: "1.30.0",
        program: Program::Python("mcp1", "mcp1.py"),
        failure: Some("Error executing tool fails: it does not work"),
        seats: &OLDER_ERA_TELLING_NOTHING,
        found: &[(
            "it answers the probe for the newer era with -32602 instead of -32601, and is taken \
             for an older server all the same",
            "foreign::each_foreign_server_negotiates_the_revision_that_its_row_states",
        )],
        ..SMALL
    },
    Row {
        name: "python-2",
        package: "mcp",
        version: "2.3.0",
        program: Program::Python("mcp2", "mcp2.py"),
        failure: Some("Error executing tool fails"),
        seats: &[
            newer(Wire::Stdio),
            telling_nothing(older(Wire::Stdio, true)),
            newer(Wire::Http),
            telling_nothing(older(Wire::Http, true)),
        ],
        found: &[
            (
                "over stdio the first request decides: after `server/discover` an `initialize` is \
                 refused for good with -32022. A start that took it for an older server, because \
                 it was slow, asks the same process once more",
                "eras::a_process_that_was_slow_to_start_and_is_not_older_is_asked_again_and_not_started_again",
            ),
            (
                "what a tool failed of stays on the server: the answer names the tool alone",
                "foreign::a_foreign_tool_answers_and_a_tool_that_fails_has_answered",
            ),
        ],
        ..SMALL
    },
    Row {
        name: "fastmcp-4",
        package: "fastmcp",
        version: "4.2.3",
        program: Program::Python("fastmcp4", "fastmcp4.py"),
        failure: Some("Error calling tool 'fails': it does not work"),
        seats: &[
            telling_nothing(newer(Wire::Stdio)),
            telling_nothing(older(Wire::Stdio, true)),
            telling_nothing(newer(Wire::Http)),
            telling_nothing(older(Wire::Http, true)),
        ],
        found: &[(
            "it is built on mcp 2.x and refuses `initialize` after the probe just as that does; in \
             the newer era a tool asks by its result alone, in the older by a request alone",
            "foreign::what_a_foreign_tool_asks_in_a_call_is_answered_by_the_users_handler",
        )],
        ..SMALL
    },
    Row {
        name: "typescript-1",
        package: "@modelcontextprotocol/sdk",
        version: "1.32.2",
        program: Program::Node("typescript1.mjs"),
        seats: &OLDER_ERA,
        ..SMALL
    },
    Row {
        name: "typescript-2",
        package: "@modelcontextprotocol/server",
        version: "2.4.0",
        program: Program::Node("typescript2.mjs"),
        seats: &[
            newer(Wire::Stdio),
            telling_nothing(older(Wire::Stdio, true)),
            newer(Wire::Http),
            Seat {
                asks: false,
                tells: false,
                ..older(Wire::Http, true)
            },
        ],
        found: &[
            (
                "a tool that it does not have is a JSON-RPC error, where its 1.x line answers with \
                 a tool error",
                "foreign::a_foreign_tool_answers_and_a_tool_that_fails_has_answered",
            ),
            (
                "over HTTP it serves 2025-11-25 without sessions, one instance for each request, \
                 so that nothing can be asked there: such a tool answers with a tool error. A \
                 cancel still stops the tool, because the answer's stream is closed",
                "foreign::what_a_foreign_tool_asks_in_a_call_is_answered_by_the_users_handler",
            ),
        ],
        no_such_tool: "a rejection",
        ..SMALL
    },
    Row {
        name: "rmcp",
        package: "rmcp",
        version: "3.11.0",
        program: Program::Rmcp,
        pages_of_tools: 3,
        no_such_tool: "a rejection",
        tells_the_total: false,
        found: &[(
            "it is the one of these whose lists come in pages",
            "foreign::each_foreign_server_lists_what_its_row_states",
        )],
        ..SMALL
    },
];
