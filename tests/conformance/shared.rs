//! What both clients of the conformance suite share: what the suite asks for, the person who
//! answers, and how that person logs in.

use std::{env, error::Error};

use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, FormElicitationCapability, Implementation, ProtocolVersion, Tool,
    },
    service::RequestContext,
};
use serde_json::{Map, Value, json};

pub(crate) type Ending<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// What the suite asks a client to do: the last argument is the server's address, the rest is in
/// the environment.
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) url: String,
    /// The revision to speak, where it names one.
    pub(crate) revision: Option<String>,
    context: Value,
}

impl Scenario {
    pub(crate) fn of_the_suite() -> Ending<Self> {
        let context = match env::var("MCP_CONFORMANCE_CONTEXT") {
            Ok(text) => serde_json::from_str(&text)?,
            Err(_) => json!({}),
        };
        Ok(Self {
            name: env::var("MCP_CONFORMANCE_SCENARIO")?,
            url: env::args().next_back().ok_or("no address")?,
            revision: env::var("MCP_CONFORMANCE_PROTOCOL_VERSION").ok(),
            context,
        })
    }

    /// Whether it speaks the era of `server/discover`. One mock server of that revision speaks the
    /// other one all the same.
    pub(crate) fn discovers(&self) -> bool {
        self.revision.as_deref() >= Some("2026-07-28") && self.name != "json-schema-ref-no-deref"
    }

    /// Something that the scenario gives the client to know beforehand.
    pub(crate) fn context(&self, name: &str) -> Option<&str> {
        self.context[name].as_str()
    }

    /// The calls to make: those that the scenario names, or else one of each tool.
    pub(crate) fn calls(&self, tools: &[Tool]) -> Vec<(String, Map<String, Value>)> {
        if let Some(named) = self.context["toolCalls"].as_array() {
            return named
                .iter()
                .map(|call| {
                    let name = call["name"].as_str().unwrap_or_default();
                    let arguments = call["arguments"].as_object().cloned();
                    (name.to_owned(), arguments.unwrap_or_default())
                })
                .collect();
        }
        let echo = |tool: &Tool| tool.name == "json_schema_echo";
        if let (Some(tool), Some(other)) = (
            tools.iter().find(|t| echo(t)),
            tools.iter().find(|t| !echo(t)),
        ) {
            // As this client has got to know it.
            let schema = Value::Object((*other.input_schema).clone());
            let arguments = Map::from_iter([("schema".to_owned(), schema)]);
            return vec![(tool.name.to_string(), arguments)];
        }
        tools
            .iter()
            .map(|tool| (tool.name.to_string(), arguments(&tool.input_schema)))
            .collect()
    }
}

/// Where the authorisation server sends the browser.
pub(crate) async fn consent(page: &str) -> Ending<String> {
    let browser = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let answer = browser.get(page).send().await?;
    let location = answer.headers().get("location").ok_or("no redirect")?;
    Ok(location.to_str()?.to_owned())
}

/// What a schema requires, in its simplest form.
fn arguments(schema: &Map<String, Value>) -> Map<String, Value> {
    let required = schema.get("required").and_then(Value::as_array);
    let required = required.into_iter().flatten().filter_map(Value::as_str);
    required
        .map(|name| (name.to_owned(), simplest(&schema["properties"][name])))
        .collect()
}

fn simplest(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("number" | "integer") => json!(1),
        Some("boolean") => json!(true),
        Some("string") => json!("text"),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => Value::Null,
    }
}

/// The person at the client: fills in forms with their defaults.
#[derive(Clone)]
pub(crate) struct Person;

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        let form = FormElicitationCapability::new().with_schema_validation(true);
        capabilities.elicitation = Some(ElicitationCapability::new().with_form(form));
        let mut config = ClientConfig::new(capabilities, Implementation::new("conformance", "1"));
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        config
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let mut form = Map::new();
        if let ElicitRequestParams::FormElicitationParams {
            requested_schema, ..
        } = &request
        {
            let schema = serde_json::to_value(requested_schema).unwrap_or_default();
            let fields = schema["properties"].as_object().cloned();
            for (name, field) in fields.unwrap_or_default() {
                let required = schema["required"]
                    .as_array()
                    .is_some_and(|r| r.contains(&json!(name)));
                match field.get("default") {
                    Some(default) => drop(form.insert(name, default.clone())),
                    None if required => drop(form.insert(name, simplest(&field))),
                    None => {}
                }
            }
        }
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(form)))
    }
}
