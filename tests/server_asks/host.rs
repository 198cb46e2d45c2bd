//! A host whose handler does what a test tells it to, and scripts of servers that ask.
#![allow(
    deprecated,
    reason = "servers of the older revisions sample and ask for roots"
)]

use std::sync::{
    Arc, Mutex, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use mcp_supervisor::{SharedConnection, ToolCall};
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        CustomNotification, CustomRequest, CustomResult, ElicitRequestParams, ElicitResult,
        ElicitationAction, ErrorData, Implementation, ListRootsResult,
        LoggingMessageNotificationParam, ProgressNotificationParam, Root, SamplingMessage,
        SubscriptionsAcknowledgedNotificationParams, TaskStatusNotificationParams,
    },
    service::{NotificationContext, RequestContext},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What the host does when a person is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Person {
    #[default]
    Answers,
    Panics,
    /// Answers when `Host::speak` is called.
    Waits,
    /// Never answers, and does not mind being cancelled.
    Ignores,
    /// Calls a tool through the same connection first.
    CallsBack,
}

#[derive(Default)]
pub(crate) struct Host {
    pub(crate) person: Mutex<Person>,
    pub(crate) asked: Mutex<Vec<String>>,
    pub(crate) logged: Mutex<Vec<String>>,
    /// The pings, and what was told beside log messages.
    pub(crate) heard: Mutex<Vec<String>>,
    pub(crate) at_once: AtomicUsize,
    pub(crate) most_at_once: AtomicUsize,
    pub(crate) cancelled: AtomicUsize,
    pub(crate) dropped: AtomicUsize,
    pub(crate) speak: Notify,
    pub(crate) connection: OnceLock<SharedConnection>,
}

/// Counts the futures that were dropped, however they ended.
struct Dropped<'a>(&'a Host);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.at_once.fetch_sub(1, Ordering::SeqCst);
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Host {
    pub(crate) fn new(person: Person) -> Arc<Self> {
        let host = Self::default();
        *host.person.lock().unwrap() = person;
        Arc::new(host)
    }

    pub(crate) fn becomes(&self, person: Person) {
        *self.person.lock().unwrap() = person;
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }

    fn note(&self, what: impl Into<String>) {
        self.asked.lock().unwrap().push(what.into());
    }

    fn hear(&self, what: impl Into<String>) {
        self.heard.lock().unwrap().push(what.into());
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        let mut heard = self.heard.lock().unwrap().clone();
        heard.sort();
        heard
    }

    async fn person(&self, context: &RequestContext<RoleClient>) {
        let now = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        let _dropped = Dropped(self);
        let person = *self.person.lock().unwrap();
        match person {
            Person::Answers => tokio::task::yield_now().await,
            Person::Panics => panic!("the host's handler panics, as a test wants it to"),
            Person::Waits => tokio::select! {
                () = self.speak.notified() => {}
                () = context.ct.cancelled() => {
                    self.cancelled.fetch_add(1, Ordering::SeqCst);
                }
            },
            Person::Ignores => {
                context.ct.cancelled().await;
                self.cancelled.fetch_add(1, Ordering::SeqCst);
                std::future::pending().await
            }
            Person::CallsBack => {
                let connection = self.connection.get().expect("the test shares it");
                let call = ToolCall::new("lookup", json!({"key": "k"}));
                connection.call_tool(call).await.expect("it is answered");
            }
        }
    }
}

impl ClientHandler for Host {
    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        self.note(format!("sampling {}", params.max_tokens));
        self.person(&context).await;
        let message = SamplingMessage::assistant_text("sampled");
        Ok(CreateMessageResult::new(message, "a model".into()))
    }

    async fn list_roots(
        &self,
        context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, ErrorData> {
        self.note("roots");
        self.person(&context).await;
        Ok(ListRootsResult::new(vec![Root::new("file:///work")]))
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        match params {
            ElicitRequestParams::FormElicitationParams { message, .. } => {
                self.note(format!("form {message}"));
            }
            ElicitRequestParams::UrlElicitationParams { url, .. } => {
                self.note(format!("url {url}"));
            }
            _ => self.note("elicitation of another kind"),
        }
        self.person(&context).await;
        let content = json!({"name": "Ada"});
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        self.note(format!("custom {}", request.method));
        self.person(&context).await;
        Ok(CustomResult::new(json!({"custom": true})))
    }

    async fn ping(&self, _: RequestContext<RoleClient>) -> Result<(), ErrorData> {
        self.hear("ping");
        Ok(())
    }

    async fn on_progress(
        &self,
        params: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear(format!("progress {}", params.progress));
    }

    async fn on_task_status(
        &self,
        params: TaskStatusNotificationParams,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear(format!("task {}", params.task.task.task_id));
    }

    async fn on_custom_notification(
        &self,
        notification: CustomNotification,
        _: NotificationContext<RoleClient>,
    ) {
        self.hear(format!("custom {}", notification.method));
    }

    async fn on_subscriptions_acknowledged(
        &self,
        params: SubscriptionsAcknowledgedNotificationParams,
        _: NotificationContext<RoleClient>,
    ) {
        let tools = params.notifications.tools_list_changed;
        self.hear(format!("acknowledged {tools:?}"));
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.logged.lock().unwrap().push(params.data.to_string());
    }

    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder()
            .enable_sampling()
            .enable_elicitation()
            .enable_roots()
            .build();
        ClientConfig::new(capabilities, Implementation::new("the host", "7.1"))
    }
}

pub(crate) fn ask(id: &str, method: &str, params: Value) -> Value {
    json!({"send": {"jsonrpc": "2.0", "id": id, "method": method, "params": params}})
}

pub(crate) fn sampling(id: &str, tokens: u32) -> Value {
    let messages = json!([{"role": "user", "content": {"type": "text", "text": "hello"}}]);
    let params = json!({"messages": messages, "maxTokens": tokens});
    ask(id, "sampling/createMessage", params)
}

pub(crate) fn form(id: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": "who?", "requestedSchema": schema});
    ask(id, "elicitation/create", params)
}

pub(crate) fn url(id: &str) -> Value {
    let url = "https://pay.example/1";
    let params = json!({"mode": "url", "message": "pay", "url": url, "elicitationId": "e-1"});
    ask(id, "elicitation/create", params)
}

/// A server whose `echo` asks all this, and answers once `answers` answers have come.
pub(crate) fn asking(steps: Vec<Value>, answers: usize) -> Value {
    let mut steps = steps;
    steps.extend([json!({"wait_file": "answered"}), json!("answer")]);
    json!({
        "log_messages": true,
        "rules": [
            {"on": "tools/call", "tool": "echo", "do": steps},
            {"on": "response", "nth": answers, "do": [{"touch": "answered"}]},
        ],
    })
}
