//! The default answers: what a healthy server of either era says.

use serde_json::{Map, Value, json};

use crate::engine::Server;
use crate::script::{Eras, in_generation};

/// The only revision without `initialize`.
pub(crate) const MODERN: &str = "2026-07-28";
const VERSION_META: &str = "io.modelcontextprotocol/protocolVersion";

/// What a default answer depends on.
#[derive(Debug)]
pub(crate) struct Question<'a> {
    pub(crate) server: &'a Server,
    pub(crate) generation: u64,
    pub(crate) modern: bool,
    pub(crate) method: &'a str,
    pub(crate) id: &'a Value,
    pub(crate) params: &'a Value,
}

/// Whether a message carries the per-request metadata of the newest era.
pub(crate) fn is_modern(message: &Value) -> bool {
    message["params"]["_meta"][VERSION_META].as_str() == Some(MODERN)
        || message["method"].as_str() == Some("server/discover")
}

/// A whole response frame out of a result or an error.
pub(crate) fn response(id: &Value, answer: Result<Value, Value>) -> Value {
    match answer {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err(error) => json!({"jsonrpc": "2.0", "id": id, "error": error}),
    }
}

/// The tool that a call names, or a dash.
pub(crate) fn tool_name(params: &Value) -> &str {
    params.get("name").and_then(Value::as_str).unwrap_or("-")
}

/// The arguments of a call; absent ones are `{}`.
pub(crate) fn arguments(params: &Value) -> Value {
    match params.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(arguments) => arguments.clone(),
    }
}

fn tool(name: &str, about: &str, properties: &Value, required: &[&str]) -> Value {
    json!({
        "name": name,
        "description": about,
        "inputSchema": {"type": "object", "properties": properties, "required": required},
    })
}

/// The tools of a generation, with the script's own (`like` and `generation` still in them).
fn tools(server: &Server, generation: u64) -> Vec<Value> {
    let integer = json!({"type": "integer"});
    let text = json!({"type": "string"});
    let mut tools = if server.script.options["tools_only"] == json!(true) {
        Vec::new()
    } else {
        vec![
            tool(
                "charge",
                "Has a side effect.",
                &json!({"key": text, "amount": integer}),
                &[],
            ),
            tool("echo", "Returns its arguments.", &json!({}), &[]),
            tool(
                "lookup",
                "Was a charge with this key made?",
                &json!({"key": text}),
                &["key"],
            ),
            tool(
                "slow",
                "Answers after some time.",
                &json!({"ms": integer}),
                &["ms"],
            ),
            tool(
                "big",
                "Answers a text of that size.",
                &json!({"bytes": integer, "frame_bytes": integer}),
                &[],
            ),
            tool(
                "progress",
                "Reports progress, then answers.",
                &json!({"every_ms": integer, "count": integer}),
                &[],
            ),
        ]
    };
    for own in &server.script.tools {
        if !in_generation(own.get("generation"), generation) || !files_allow(server, own) {
            continue;
        }
        let place = tools.iter().position(|t| t["name"] == own["name"]);
        let removed = own["remove"] == json!(true);
        match (place, own.as_object()) {
            (Some(index), _) if removed => {
                tools.remove(index);
            }
            (Some(index), Some(members)) => {
                for (name, value) in members {
                    tools[index][name] = value.clone();
                }
            }
            (None, Some(_)) if !removed => {
                let mut new = own.clone();
                if new.get("inputSchema").is_none() {
                    new["inputSchema"] = json!({"type": "object"});
                }
                tools.push(new);
            }
            _ => {}
        }
    }
    tools
}

/// Whether the files of the directory are as a definition wants them.
fn files_allow(server: &Server, own: &Value) -> bool {
    let exists = |name: &str| {
        let file = own.get(name).and_then(Value::as_str);
        file.map(|file| server.dir.path(file).exists())
    };
    exists("if_file").unwrap_or(true) && !exists("unless_file").unwrap_or(false)
}

/// What a tool of that name does by default: the name of a built-in tool.
pub(crate) fn behaviour(server: &Server, generation: u64, name: &str) -> Option<String> {
    const BUILT_IN: [&str; 6] = ["charge", "echo", "lookup", "slow", "big", "progress"];
    if name == "env" {
        return Some("env".to_owned());
    }
    if server.script.tools.is_empty() && server.script.options["tools_only"] != json!(true) {
        return BUILT_IN.contains(&name).then(|| name.to_owned());
    }
    let found = tools(server, generation)
        .into_iter()
        .find(|t| t["name"] == json!(name))?;
    let own = if BUILT_IN.contains(&name) {
        name
    } else {
        "echo"
    };
    Some(found["like"].as_str().unwrap_or(own).to_owned())
}

impl Question<'_> {
    fn option(&self, name: &str, otherwise: Value) -> Value {
        match self.server.script.options.get(name) {
            Some(value) => value.clone(),
            None => otherwise,
        }
    }

    /// The healthy answer.
    pub(crate) fn answer(&self) -> Result<Value, Value> {
        let eras = self.server.script.eras;
        let result = match self.method {
            "initialize" if eras == Eras::Modern => Err(unknown(self.method)),
            "server/discover" if eras == Eras::Legacy => Err(unknown(self.method)),
            "initialize" => Ok(json!({
                "protocolVersion": self.option(
                    "protocol_version",
                    self.params.get("protocolVersion").cloned().unwrap_or(json!("2025-11-25")),
                ),
                "capabilities": self.capabilities(),
                "serverInfo": self.info(),
                "instructions": self.option("instructions", json!("A scripted fault server.")),
            })),
            "server/discover" => Ok(json!({
                "supportedVersions": self.option("supported_versions", match eras {
                    Eras::Modern => json!([MODERN]),
                    _ => json!(["2025-03-26", "2025-06-18", "2025-11-25", MODERN]),
                }),
                "capabilities": self.capabilities(),
                "serverInfo": self.info(),
                "instructions": self.option("instructions", json!("A scripted fault server.")),
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": self.info()},
            })),
            "ping" if !self.modern => Ok(json!({})),
            "tools/list" => Ok(self.page("tools", self.listed_tools())),
            "tools/call" => self.call(),
            "prompts/list" => Ok(self.page(
                "prompts",
                self.entries(
                    "prompts",
                    json!([{"name": "greet", "description": "A greeting."}]),
                ),
            )),
            "prompts/get" => Ok(json!({
                "description": "A greeting.",
                "messages": [{"role": "user", "content": {"type": "text",
                    "text": format!("prompt {} of generation {}", tool_name(self.params), self.generation)}}],
            })),
            "resources/list" => Ok(self.page(
                "resources",
                self.entries("resources", json!([{"uri": "mem://note", "name": "note"}])),
            )),
            "resources/templates/list" => Ok(self.page(
                "resourceTemplates",
                self.entries("resource_templates", json!([])),
            )),
            "resources/read" => Ok(json!({
                "contents": [{
                    "uri": self.params.get("uri").cloned().unwrap_or(json!("mem://note")),
                    "mimeType": "text/plain",
                    "text": format!("generation {}", self.generation),
                }],
                "ttlMs": 0, "cacheScope": "private",
            })),
            "x/echo" => Ok(self.params.clone()),
            _ => Err(unknown(self.method)),
        }?;
        Ok(self.dress(result))
    }

    /// Adds what the era demands, or takes away what it does not know.
    pub(crate) fn dress(&self, mut result: Value) -> Value {
        if let Value::Object(members) = &mut result {
            if self.modern {
                members.entry("resultType").or_insert(json!("complete"));
            } else if self.method != "x/echo" {
                members.remove("ttlMs");
                members.remove("cacheScope");
            }
        }
        result
    }

    fn capabilities(&self) -> Value {
        self.option(
            "capabilities",
            json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {}}),
        )
    }

    fn info(&self) -> Value {
        self.option(
            "server_info",
            json!({"name": "fault_server", "version": "1.0.0"}),
        )
    }

    fn entries(&self, option: &str, otherwise: Value) -> Vec<Value> {
        let entries = self.option(option, otherwise);
        entries.as_array().cloned().unwrap_or_default()
    }

    /// The page that the cursor names, by its number; the whole list without `page_size`.
    fn page(&self, name: &str, entries: Vec<Value>) -> Value {
        let size = self.option("page_size", json!(0)).as_u64().unwrap_or(0);
        let size = usize::try_from(size).unwrap_or(0);
        let number = |cursor: &str| cursor.parse::<usize>().ok();
        let at = self.params["cursor"]
            .as_str()
            .and_then(number)
            .unwrap_or(1)
            .max(1);
        let mut page = json!({"ttlMs": self.option("ttl_ms", json!(0)), "cacheScope": "private"});
        if size == 0 {
            page[name] = json!(entries);
            return page;
        }
        let from = ((at - 1) * size).min(entries.len());
        let to = (from + size).min(entries.len());
        page[name] = json!(entries[from..to]);
        if to < entries.len() {
            page["nextCursor"] = json!((at + 1).to_string());
        }
        page
    }

    fn listed_tools(&self) -> Vec<Value> {
        let mut listed = tools(self.server, self.generation);
        for tool in &mut listed {
            if let Some(members) = tool.as_object_mut() {
                members.remove("like");
                members.remove("generation");
                members.remove("remove");
                members.remove("if_file");
                members.remove("unless_file");
            }
        }
        listed
    }

    fn call(&self) -> Result<Value, Value> {
        let name = tool_name(self.params);
        let arguments = arguments(self.params);
        let Some(kind) = behaviour(self.server, self.generation, name) else {
            return Err(json!({"code": -32602, "message": format!("Unknown tool: {name}")}));
        };
        let (text, structured) = match kind.as_str() {
            "charge" => (
                "charged".to_owned(),
                Some(json!({"charged": true, "generation": self.generation})),
            ),
            "lookup" => {
                let found = self.lookup(&arguments["key"]);
                (found.to_string(), Some(found))
            }
            "slow" => ("slow".to_owned(), Some(json!({"slept": arguments["ms"]}))),
            "big" => (self.big(&arguments), None),
            "progress" => (
                "progressed".to_owned(),
                Some(json!({"count": arguments["count"]})),
            ),
            "env" => {
                let env: Map<String, Value> = std::env::vars_os()
                    .map(|(name, value)| {
                        (
                            name.to_string_lossy().into_owned(),
                            json!(value.to_string_lossy()),
                        )
                    })
                    .collect();
                let args: Vec<String> = std::env::args_os()
                    .map(|arg| arg.to_string_lossy().into_owned())
                    .collect();
                let all = json!({
                    "args": args, "env": env, "cwd": std::env::current_dir().ok(),
                    "pid": std::process::id(), "generation": self.generation,
                });
                ("env".to_owned(), Some(all))
            }
            _ => (
                arguments.to_string(),
                arguments.is_object().then(|| arguments.clone()),
            ),
        };
        let mut result = json!({"content": [{"type": "text", "text": text}], "isError": false});
        if let Some(structured) = structured {
            result["structuredContent"] = structured;
        }
        Ok(result)
    }

    fn lookup(&self, key: &Value) -> Value {
        let mut charges = vec!["charge".to_owned()];
        for own in &self.server.script.tools {
            if own["like"] == json!("charge") {
                charges.extend(own["name"].as_str().map(str::to_owned));
            }
        }
        match self.server.dir.find(&charges, key) {
            Some((generation, id)) => {
                json!({"found": true, "key": key, "generation": generation, "requestId": id})
            }
            None => json!({"found": false, "key": key}),
        }
    }

    fn big(&self, arguments: &Value) -> String {
        let size = |name: &str| {
            let wanted = arguments.get(name).and_then(Value::as_u64)?;
            usize::try_from(wanted).ok()
        };
        let wanted = match (size("bytes"), size("frame_bytes")) {
            (Some(bytes), _) => bytes,
            (None, Some(frame)) => {
                let empty = json!({"content": [{"type": "text", "text": ""}], "isError": false});
                let around = response(self.id, Ok(self.dress(empty))).to_string().len();
                frame.saturating_sub(around)
            }
            (None, None) => 0,
        };
        "x".repeat(wanted)
    }
}

fn unknown(method: &str) -> Value {
    json!({"code": -32601, "message": format!("Method not found: {method}")})
}
