//! The servers: they count what they do, do once per key what they promise to do once, and come to
//! grief in every way that a server can.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use mcp_supervisor::extension::{LOOK_UP, Offer, RECEIPTS};
use serde_json::{Value, json};

use super::{
    trace::{Frame, Mark, What},
    wire::Message,
    world::{Due, World},
};

/// How many ids each generation of a connection has to itself, on the wire.
const IDS_PER_GENERATION: i64 = 1 << 32;

/// The longest that a server of these takes for a call, in milliseconds, all delays together.
pub(super) const SLOWEST: u64 = 4_000;

pub(super) struct Server {
    pub(super) up: bool,
    pub(super) process: u32,
    /// How often it did what it was asked for, by what that is recognised by.
    pub(super) effects: BTreeMap<Mark, u32>,
    /// What it did under a key.
    kept: BTreeMap<String, Mark>,
    /// The keys under which a mark was asked for, and how often.
    pub(super) asked: BTreeMap<Mark, Vec<Option<String>>>,
    /// What it said of a caller's operation, as `answer` and the codes of errors.
    pub(super) said: BTreeMap<usize, BTreeSet<&'static str>>,
    /// The pipes whose requests it has forgotten.
    forgotten: BTreeSet<usize>,
    /// Requests that it was told to stop.
    stopped: BTreeSet<(usize, i64)>,
    /// Of its tools' schemas.
    version: u64,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            up: true,
            process: 1,
            effects: BTreeMap::new(),
            kept: BTreeMap::new(),
            asked: BTreeMap::new(),
            said: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            stopped: BTreeSet::new(),
            version: 1,
        }
    }
}

impl Server {
    /// It drops what it has begun on this pipe.
    pub(super) fn forget(&mut self, link: usize) {
        self.forgotten.insert(link);
    }
}

/// A request that a server works on.
#[derive(Clone, Debug)]
pub(super) struct Work {
    link: usize,
    message: Message,
    acts: VecDeque<(u64, Act)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Effect,
    Answer,
    ToolError,
    Reject,
    Fail,
    SessionOver,
    Stale,
    Garbage,
    Notify,
    Progress,
    Break,
    Die,
}

impl World {
    /// A whole frame is at the server.
    pub(super) fn serve(&mut self, link: usize, message: Message) {
        let connection = self.links[link].connection;
        let Frame {
            method, mark, key, ..
        } = message.frame.clone();
        match method.as_str() {
            "notifications/cancelled" => {
                let request = message.said["params"]["requestId"].as_i64();
                if self.dice.percent(50) {
                    let stopped = &mut self.servers[connection].stopped;
                    stopped.extend(request.map(|id| (link, id)));
                }
                return;
            }
            "tools/call" => {
                if let Some(mark) = mark {
                    let asked = self.servers[connection].asked.entry(mark);
                    asked.or_default().push(key);
                }
            }
            _ => {}
        }
        if message.frame.id.is_none() || self.links[link].wedged {
            return;
        }
        let acts = self.script(&message.frame);
        let mut work = Work {
            link,
            message,
            acts,
        };
        if let Some((wait, _)) = work.acts.front_mut() {
            let wait = std::mem::take(wait);
            self.schedule(wait, Due::Work(work));
        }
    }

    /// What becomes of a request, all of it drawn at its arrival.
    fn script(&mut self, frame: &Frame) -> VecDeque<(u64, Act)> {
        use Act::{
            Answer, Break, Die, Effect, Fail, Garbage, Notify, Progress, Reject, SessionOver,
            Stale, ToolError,
        };
        let dice = &mut self.dice;
        let call = frame.method == "tools/call" && frame.mark.is_some();
        let fate = match (self.healed, call) {
            (true, _) => 0,
            (false, true) => dice.range(0, 99),
            // Handshakes, lists and look-ups come to grief less often.
            (false, false) => dice.range(0, 99).saturating_sub(50),
        };
        let mut acts: Vec<Act> = match fate {
            0..45 => vec![Effect, Answer],
            45..47 => vec![Break],
            47..49 => vec![Die],
            49..51 => vec![],
            51..59 => vec![Effect, Break],
            59..65 => vec![Effect, Die],
            65..68 => vec![Effect],
            68..70 => vec![],
            70..75 => vec![Reject],
            75..78 => vec![Fail],
            78..80 => vec![Effect, Fail],
            80..83 => vec![SessionOver],
            83..86 => vec![Effect, SessionOver],
            86..89 => vec![Effect, Answer, Answer],
            89..93 => vec![Effect, Stale, Answer],
            93..95 => vec![Effect, Stale, Break],
            95..97 => vec![Effect, ToolError],
            _ => vec![Break, Effect],
        };
        if !self.healed && dice.percent(25) && !acts.is_empty() {
            let at = dice.index(acts.len());
            acts.insert(at, dice.pick(&[Garbage, Notify, Progress]));
        }
        let slow = !self.healed && dice.percent(25);
        let longest = if slow { SLOWEST / 5 } else { 40 };
        acts.into_iter()
            .map(|act| (dice.range(1, longest), act))
            .collect()
    }

    /// The next step of a request.
    pub(super) fn work(&mut self, mut work: Work) {
        let link = work.link;
        let connection = self.links[link].connection;
        let id = work.message.frame.id.unwrap_or_default();
        let server = &self.servers[connection];
        let gone = server.process != self.links[link].process
            || server.forgotten.contains(&link)
            || server.stopped.contains(&(link, id));
        let Some((_, act)) = work.acts.pop_front().filter(|_| !gone) else {
            return;
        };
        if !self.healed || !matches!(act, Act::Break | Act::Die) {
            self.act(link, &work.message, act);
        }
        if let Some((wait, _)) = work.acts.front() {
            let wait = *wait;
            self.schedule(wait, Due::Work(work));
        }
    }

    fn act(&mut self, link: usize, message: &Message, act: Act) {
        let connection = self.links[link].connection;
        let frame = &message.frame;
        let id = frame.id.unwrap_or_default();
        let error = |code: i64, text: &str| json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}});
        let (how, line) = match act {
            Act::Effect => return self.effect(link, frame),
            Act::Break => return self.breaks(link, "the server hangs up"),
            Act::Die => return self.kill_server(connection),
            Act::Garbage => ("garbage", json!("this is no message").to_string()),
            Act::Notify => {
                let method = "notifications/tools/list_changed";
                (
                    "note",
                    json!({"jsonrpc": "2.0", "method": method}).to_string(),
                )
            }
            Act::Progress => {
                let token = &message.said["params"]["_meta"]["progressToken"];
                let params = json!({"progressToken": token, "progress": 1});
                let method = "notifications/progress";
                let note = json!({"jsonrpc": "2.0", "method": method, "params": params});
                ("note", note.to_string())
            }
            Act::Reject => ("rejected", error(-32602, "not like this").to_string()),
            Act::Fail => ("failed", error(-32603, "broken").to_string()),
            Act::SessionOver => (
                "session over",
                error(-32000, "Session terminated").to_string(),
            ),
            Act::Stale => {
                let older = id - IDS_PER_GENERATION;
                let result = json!({"content": [{"type": "text", "text": "mark 1000000"}],
                    "isError": false, "resultType": "complete"});
                let line = json!({"jsonrpc": "2.0", "id": older, "result": result});
                ("stale", line.to_string())
            }
            Act::Answer | Act::ToolError => {
                let result = self.result(connection, message, act == Act::ToolError);
                let line = match result {
                    Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
                    Err((code, text)) => error(code, text),
                };
                let how = if act == Act::ToolError {
                    "tool error"
                } else {
                    "answer"
                };
                (how, line.to_string())
            }
        };
        if let Some(operation) = frame.operation
            && how != "stale"
        {
            self.servers[connection]
                .said
                .entry(operation)
                .or_default()
                .insert(how);
        }
        self.record(What::Answers {
            link,
            frame: frame.clone(),
            how,
        });
        self.tell(link, &format!("{line}\n"));
    }

    /// The server does it; under a key that it has, once.
    fn effect(&mut self, link: usize, frame: &Frame) {
        let connection = self.links[link].connection;
        let (Some(mark), "tools/call") = (frame.mark, frame.method.as_str()) else {
            return;
        };
        let server = &mut self.servers[connection];
        if let Some(key) = &frame.key {
            let once = frame.tool.as_deref() != Some("pay_status");
            if once && server.kept.contains_key(key) {
                return;
            }
            server.kept.insert(key.clone(), mark);
        }
        *server.effects.entry(mark).or_default() += 1;
        self.record(What::Effect {
            link,
            frame: frame.clone(),
        });
    }

    fn result(
        &mut self,
        connection: usize,
        message: &Message,
        is_error: bool,
    ) -> Result<Value, (i64, &'static str)> {
        let server = &self.servers[connection];
        let params = &message.said["params"];
        let info = json!({"name": "simulated", "version": "1"});
        let tools = ["pay", "peek", "pay_keyed", "order"];
        let offer = Offer::new(std::time::Duration::from_secs(3_600), ["order"]).settings();
        let mut result = match message.frame.method.as_str() {
            "initialize" => json!({
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "resources": {}, "experimental": {RECEIPTS: offer}},
                "serverInfo": info,
            }),
            // Every other server is of the older kind.
            "server/discover" if connection == 1 => return Err((-32601, "no such method")),
            "server/discover" => json!({
                "supportedVersions": ["2025-11-25", "2026-07-28"],
                "capabilities": {"tools": {}, "resources": {}, "extensions": {RECEIPTS: offer}},
                "serverInfo": info, "ttlMs": 0, "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": info},
            }),
            "tools/list" => {
                let schema = json!({"type": "object", "properties": {"mark": {"type": "integer"}},
                    "x-version": server.version});
                let tools: Vec<_> = tools
                    .iter()
                    .map(|name| json!({"name": name, "inputSchema": schema}))
                    .collect();
                json!({"tools": tools, "ttlMs": 0, "cacheScope": "private"})
            }
            "resources/read" => json!({"contents": [{"uri": params["uri"], "text": "it"}],
                "ttlMs": 0, "cacheScope": "private"}),
            LOOK_UP => {
                let found = message
                    .frame
                    .key
                    .as_ref()
                    .and_then(|key| server.kept.get(key));
                match found {
                    Some(mark) => json!({"state": "succeeded",
                        "result": {"content": [{"type": "text", "text": format!("mark {mark}")}]}}),
                    None => json!({"state": "absent"}),
                }
            }
            "tools/call" if message.frame.tool.as_deref() == Some("lookup") => {
                let found = message
                    .frame
                    .key
                    .as_ref()
                    .and_then(|key| server.kept.get(key));
                let text = found.map_or("nothing".to_owned(), |mark| format!("mark {mark}"));
                json!({"content": [{"type": "text", "text": text}], "isError": false,
                    "structuredContent": {"found": found.is_some()}})
            }
            "tools/call" => {
                let mark = message.frame.mark.unwrap_or_default();
                let text = format!("mark {mark}");
                json!({"content": [{"type": "text", "text": text}], "isError": is_error})
            }
            _ => json!({}),
        };
        let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        if version.is_string() {
            result["resultType"] = json!("complete");
        }
        Ok(result)
    }

    /// A process of a server's is killed, with all its pipes, and is there again after a while.
    pub(super) fn kill_server(&mut self, connection: usize) {
        if !self.servers[connection].up {
            return;
        }
        self.record(What::ServerKilled { connection });
        let process = self.servers[connection].process;
        for link in 0..self.links.len() {
            if self.links[link].connection == connection && self.links[link].process == process {
                self.breaks(link, "the server was killed");
            }
        }
        let renamed = self.dice.percent(10);
        let server = &mut self.servers[connection];
        server.up = false;
        server.process += 1;
        server.version += u64::from(renamed);
        let down_for = if self.dice.percent(60) {
            1
        } else {
            self.dice.range(1, 3_000)
        };
        self.schedule(down_for, Due::ServerBack { server: connection });
    }
}
