//! A small server on rmcp: `rmcp_server stdio` or `rmcp_server http PORT`. What the other small
//! servers offer, on the SDK that this crate's client half is made of; it alone lists in pages.
#![allow(
    deprecated,
    reason = "sampling and resources/subscribe are still spoken"
)]

#[path = "../../support/over_http.rs"]
mod over_http;

use std::{
    fs::OpenOptions,
    io::Write as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use over_http::over_http;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams,
        CompleteResult, ContentBlock, CreateMessageRequestParams, ElicitRequestParams,
        GetPromptRequestParams, GetPromptResponse, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
        ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
        ResourceUpdatedNotificationParam, ServerConfig, SubscribeRequestParams, SubscriptionFilter,
        UnsubscribeRequestParams,
    },
    service::{Peer, RequestContext, SubscriptionContext},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast;

const BOARD: &str = "note://board";
/// So that a list of all tools takes several pages.
const TOOLS_PER_PAGE: usize = 3;

fn note(tool: &str, name: &str, fact: &str) {
    let Some(path) = std::env::var_os("FOREIGN_LEDGER") else {
        return;
    };
    let file = OpenOptions::new().append(true).create(true).open(path);
    // One write of a short line to a file opened for appending is not torn.
    let line = format!("{} {tool} {name} {fact}\n", std::process::id());
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the ledger can be written");
}

/// A value of rmcp's, most of which have no public fields, from what it is on the wire.
fn wire<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the server's own values are well formed")
}

fn text(said: impl Into<String>) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(said)]).into())
}

fn asked_in_the_result(requests: Value) -> Result<CallToolResponse, ErrorData> {
    let result = json!({"resultType": "input_required", "inputRequests": requests});
    Ok(CallToolResponse::InputRequired(wire(result)))
}

#[derive(Clone)]
struct Small {
    pinned: broadcast::Sender<()>,
    /// Made when a filter is accepted: what is pinned between the acknowledgement and `listen` counts.
    accepted: Arc<Mutex<Vec<broadcast::Receiver<()>>>>,
    /// Those who subscribed in the way of the older era.
    subscribed: Arc<Mutex<Vec<Peer<RoleServer>>>>,
}

impl Small {
    async fn slow(
        &self,
        given: &Value,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = given["name"].as_str().unwrap_or_default();
        let steps = given["steps"].as_u64().unwrap_or_default();
        let pause = Duration::from_millis(given["pause_ms"].as_u64().unwrap_or_default());
        note("slow", name, "begin");
        for step in 1..=steps {
            tokio::select! {
                () = context.ct.cancelled() => {
                    note("slow", name, "cancelled");
                    return text("cancelled");
                }
                () = tokio::time::sleep(pause) => {}
            }
            if let Some(token) = context.meta.get_progress_token() {
                #[expect(clippy::cast_precision_loss, reason = "a few steps")]
                let progress = ProgressNotificationParam::new(token, step as f64);
                let _ = context.peer.notify_progress(progress).await;
            }
        }
        note("slow", name, "end");
        text("done")
    }

    async fn pin(&self) -> Result<CallToolResponse, ErrorData> {
        let _ = self.pinned.send(());
        let subscribed = self.subscribed.lock().expect("nobody panics").clone();
        for peer in subscribed {
            let update = ResourceUpdatedNotificationParam::new(BOARD);
            let _ = peer.notify_resource_updated(update).await;
        }
        text("pinned")
    }
}

fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version() == Some(ProtocolVersion::V_2026_07_28)
}

fn internal(error: impl ToString) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

impl ServerHandler for Small {
    fn get_info(&self) -> ServerConfig {
        let mut config = ServerConfig::new(wire(json!({
            "tools": {}, "prompts": {}, "completions": {}, "resources": {"subscribe": true},
        })));
        config.server_info = wire(json!({"name": "small", "version": "1"}));
        config
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let names = ["echo", "fails", "slow", "charge", "ask", "sample", "pin"];
        let cursor = request.and_then(|r| r.cursor).unwrap_or_default();
        let first = cursor.parse::<usize>().unwrap_or_default();
        let last = names.len().min(first + TOOLS_PER_PAGE);
        let tools = names[first..last].iter();
        let tools: Vec<Value> = tools
            .map(|name| json!({"name": name, "inputSchema": {"type": "object"}}))
            .collect();
        let mut page = json!({"tools": tools});
        if last < names.len() {
            page["nextCursor"] = json!(last.to_string());
        }
        Ok(wire(page))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = Value::Object(request.arguments.unwrap_or_default());
        let answers = request.input_responses.map(|a| wire::<Value>(json!(a)));
        let name = given["name"].as_str().unwrap_or_default();
        match &*request.name {
            "echo" => text(given["text"].as_str().unwrap_or_default()),
            "fails" => {
                let failure = vec![ContentBlock::text("it does not work")];
                Ok(CallToolResult::error(failure).into())
            }
            "slow" => self.slow(&given, &context).await,
            "charge" => {
                note("charge", name, "charged");
                if given["then"] == "hang" {
                    std::future::pending::<()>().await;
                }
                text(format!("charged {name}"))
            }
            "ask" => {
                let params = json!({"mode": "form", "message": "Which colour?", "requestedSchema": {
                    "type": "object",
                    "properties": {"colour": {"type": "string"}},
                    "required": ["colour"],
                }});
                let answer = match answers {
                    Some(answers) => answers["colour"].clone(),
                    None if is_modern(&context) => {
                        let request = json!({"method": "elicitation/create", "params": params});
                        return asked_in_the_result(json!({"colour": request}));
                    }
                    None => {
                        let params = wire::<ElicitRequestParams>(params);
                        let asking = context.peer.create_elicitation(params);
                        json!(asking.await.map_err(internal)?)
                    }
                };
                text(answer["content"]["colour"].as_str().unwrap_or_default())
            }
            "sample" => {
                let message =
                    json!({"role": "user", "content": {"type": "text", "text": "Say something."}});
                let params = json!({"messages": [message], "maxTokens": 10});
                let said = match answers {
                    Some(answers) => answers["said"].clone(),
                    None if is_modern(&context) => {
                        let request = json!({"method": "sampling/createMessage", "params": params});
                        return asked_in_the_result(json!({"said": request}));
                    }
                    None => {
                        let params = wire::<CreateMessageRequestParams>(params);
                        let sampling = context.peer.create_message(params);
                        json!(sampling.await.map_err(internal)?)
                    }
                };
                text(said["content"]["text"].as_str().unwrap_or_default())
            }
            "pin" => self.pin().await,
            other => {
                let message = format!("no tool {other}");
                Err(ErrorData::invalid_params(message, None))
            }
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let arguments = json!([{"name": "who", "required": true}]);
        Ok(wire(
            json!({"prompts": [{"name": "greet", "arguments": arguments}]}),
        ))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = json!(request.arguments);
        let said = format!("Greet {}.", arguments["who"].as_str().unwrap_or_default());
        let message = json!({"role": "user", "content": {"type": "text", "text": said}});
        Ok(GetPromptResponse::Complete(wire(
            json!({"messages": [message]}),
        )))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(wire(
            json!({"resources": [{"name": "board", "uri": BOARD}]}),
        ))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let template = json!({"name": "page", "uriTemplate": "note://page/{number}"});
        Ok(wire(json!({"resourceTemplates": [template]})))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let said = match (&*request.uri, request.uri.strip_prefix("note://page/")) {
            (BOARD, _) => "nothing new".to_owned(),
            (_, Some(number)) => format!("page {number}"),
            (uri, None) => {
                let message = format!("no resource {uri}");
                return Err(ErrorData::resource_not_found(message, None));
            }
        };
        let contents = json!([{"uri": request.uri, "text": said}]);
        Ok(ReadResourceResponse::Complete(wire(
            json!({"contents": contents}),
        )))
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let begun = &request.argument.value;
        let words = ["Ada", "Alan", "Grace"].into_iter();
        let values: Vec<&str> = words.filter(|word| word.starts_with(begun)).collect();
        Ok(wire(json!({"completion": {"values": values}})))
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let mut subscribed = self.subscribed.lock().expect("nobody panics");
        subscribed.push(context.peer);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let mut accepted = self.accepted.lock().expect("nobody panics");
        accepted.push(self.pinned.subscribe());
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let accepted = self.accepted.lock().expect("nobody panics").pop();
        let mut pinned = accepted.expect("its filter was accepted");
        let sink = context.sink();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                told = pinned.recv() => {
                    if told.is_ok() {
                        let _ = sink.notify_resource_updated(BOARD).await;
                    }
                }
            }
        }
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = Small {
        pinned: broadcast::channel(16).0,
        accepted: Arc::default(),
        subscribed: Arc::default(),
    };
    if arguments.first().is_none_or(|wire| wire == "stdio") {
        let running = small.serve(rmcp::transport::stdio()).await;
        let _ = running.expect("the client greets").waiting().await;
        return;
    }
    let port: u16 = arguments[1].parse().expect("a port");
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await;
    over_http(small, listener.expect("the port is free")).await;
}
