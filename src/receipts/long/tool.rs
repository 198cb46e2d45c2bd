//! The three tools of a long work, and what MCP's tasks ask of it.

use std::{fmt, sync::Arc, time::SystemTime};

use rmcp::{
    RoleServer,
    handler::server::tool::{ToolCallContext, ToolRoute, schema_for_output},
    model::{CallToolResponse, CallToolResult, CreateTaskResult, Tool, ToolAnnotations},
    schemars::JsonSchema,
    service::RequestContext,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    drive::Live,
    rows::Rows,
    state::{LongWire, Seen},
};
use crate::{
    operation::{IdempotencyKey, OperationId},
    receipts::{Answer, Identity, LedgerError, NotKept, ReceiptTool, Scope, Standing, Status},
};

/// The three tools of a long work: start, read, cancel. Cheap to clone: clones are one.
#[derive(Clone)]
pub struct LongTool {
    start: ReceiptTool,
    read: Arc<Tool>,
    cancel: Arc<Tool>,
    rows: Arc<Rows>,
    live: Arc<Live>,
}

impl LongTool {
    /// With `O` as what the work answers with.
    pub(super) fn new<O: Serialize + JsonSchema + 'static>(
        start: ReceiptTool,
        rows: Arc<Rows>,
        live: Arc<Live>,
    ) -> Self {
        let name = &start.terms().name;
        let input = handle_schema();
        let output = schema_for_output::<LongWire<O>>();
        let read = Tool::new(
            format!("{name}_status"),
            format!(
                "Tells how a `{name}` is doing that was started before, and what it came to. Name it by \
                 the `operation_id` that its start was answered with, or by the key of its start."
            ),
            input.clone(),
        )
        .with_raw_output_schema(Arc::clone(&output))
        .with_annotations(ToolAnnotations::new().read_only(true));
        let cancel = Tool::new(
            format!("{name}_cancel"),
            format!(
                "Asks a `{name}` that was started before to stop. It may be done before it hears of \
                 that: `{name}_status` tells what really happened."
            ),
            input,
        )
        .with_raw_output_schema(output)
        .with_annotations(ToolAnnotations::new().idempotent(true).destructive(false));
        Self {
            start,
            read: Arc::new(read),
            cancel: Arc::new(cancel),
            rows,
            live,
        }
    }

    /// The tool that starts it.
    #[must_use]
    pub fn start(&self) -> &ReceiptTool {
        &self.start
    }

    /// The tools as clients see them: start, read, cancel.
    #[must_use]
    pub fn tools(&self) -> [&Tool; 3] {
        [self.start.tool(), &self.read, &self.cancel]
    }

    /// Their places in the router of a server.
    #[must_use]
    pub fn routes<S: Send + Sync + 'static>(&self) -> [ToolRoute<S>; 3] {
        let route = |tool: &Tool, which: Which| {
            let long = self.clone();
            ToolRoute::new_dyn(tool.clone(), move |call: ToolCallContext<'_, S>| {
                let long = long.clone();
                let arguments = call.arguments.unwrap_or_default();
                let context = call.request_context;
                Box::pin(async move {
                    Ok(match which {
                        Which::Start => long.begin(arguments, &context).await,
                        Which::Read => long.look(arguments, &context, false).await.into(),
                        Which::Cancel => long.look(arguments, &context, true).await.into(),
                    })
                })
            })
        };
        [
            route(self.start.tool(), Which::Start),
            route(&self.read, Which::Read),
            route(&self.cancel, Which::Cancel),
        ]
    }

    /// Starts it, or answers with what was started before under its key: with a task where the client
    /// has tasks and it is not over, with a result otherwise.
    async fn begin(
        &self,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResponse {
        let answer = self.start.answer(arguments, context).await;
        let under_way = matches!(answer.status(), Status::InProgress);
        let Some(id) = answer.id().filter(|_| under_way) else {
            return self.start.result(answer).into();
        };
        // Whoever ran it may be gone since.
        match self.rows.seen(id).await {
            Ok(Some(seen)) if seen.is_over() => seen.result(self.start.terms()).into(),
            Ok(Some(seen)) if has_tasks(context) => {
                CallToolResponse::Task(CreateTaskResult::new(seen.task()))
            }
            _ => self.start.result(answer).into(),
        }
    }

    /// Reads it, and before that asks it to stop where that is wanted.
    async fn look(
        &self,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
        cancel: bool,
    ) -> CallToolResult {
        let refused = |not_kept| self.start.result(Answer::NotKept(not_kept));
        let by = match By::read(&arguments) {
            Ok(by) => by,
            Err(message) => return refused(NotKept::Invalid(message)),
        };
        let scope = match self.start.authorise(&arguments, context).await {
            Ok(scope) => scope,
            Err(denial) => return refused(NotKept::Denied(denial.message)),
        };
        let seen = match self.find(&by, &scope).await {
            Ok(Some(seen)) if cancel => self.ask_to_stop(&seen).await,
            found => found,
        };
        match seen {
            Ok(Some(seen)) => seen.reading(self.start.terms()),
            Ok(None) => refused(NotKept::Invalid(
                "there is no such operation of this caller's".into(),
            )),
            Err(error) => {
                tracing::warn!(%error, "a ledger could not be read or written for a long work");
                refused(NotKept::Failed(error.for_callers().to_owned()))
            }
        }
    }

    async fn find(&self, by: &By, scope: &Scope) -> Result<Option<Seen>, LedgerError> {
        let ledger = self.start.ledger();
        let name = &self.start.terms().name;
        let receipt = match by {
            By::Operation(id) => ledger.by_id(scope, *id).await?,
            By::Key(key) => {
                let identity = Identity::new(scope.clone(), Arc::clone(name), key.clone());
                ledger.by_key(&identity).await?
            }
        };
        let Some(receipt) = receipt.filter(|it| it.identity.operation == *name) else {
            return Ok(None);
        };
        let mut seen = match receipt.standing {
            Standing::Running => self.rows.seen(receipt.id).await?,
            _ => Some(Seen { receipt, row: None }),
        };
        if let Some(seen) = &mut seen {
            seen.receipt.expire(SystemTime::now());
        }
        Ok(seen)
    }

    /// What is kept under a key, for the extension's look-up.
    pub(crate) async fn by_key(
        &self,
        key: IdempotencyKey,
        scope: &Scope,
    ) -> Result<Option<Seen>, LedgerError> {
        self.find(&By::Key(key), scope).await
    }

    /// One of this scope's, for MCP's tasks.
    pub(crate) async fn by_id(
        &self,
        id: OperationId,
        scope: &Scope,
    ) -> Result<Option<Seen>, LedgerError> {
        self.find(&By::Operation(id), scope).await
    }

    /// Writes down that it is to stop, tells it so if it is here, and looks at it again.
    pub(crate) async fn ask_to_stop(&self, seen: &Seen) -> Result<Option<Seen>, LedgerError> {
        let id = seen.receipt.id;
        if !seen.is_over() {
            self.rows.ask_to_stop(id).await?;
            self.live.cancel(id);
        }
        self.rows.seen(id).await
    }
}

#[derive(Clone, Copy)]
enum Which {
    Start,
    Read,
    Cancel,
}

/// How a caller names a work.
enum By {
    Operation(OperationId),
    Key(IdempotencyKey),
}

impl By {
    fn read(arguments: &Map<String, Value>) -> Result<Self, String> {
        let text = |name| {
            arguments
                .get(name)
                .map(|it| it.as_str().unwrap_or_default())
        };
        match (text("operation_id"), text("idempotency_key")) {
            (Some(id), None) => match id.parse() {
                Ok(id) => Ok(Self::Operation(id)),
                Err(_) => Err("`operation_id` is no operation's id; take the one that the start was answered with".into()),
            },
            (None, Some(key)) => match key.parse() {
                Ok(key) => Ok(Self::Key(key)),
                Err(wrong) => Err(format!("`idempotency_key`: {wrong}")),
            },
            _ => Err("name it by `operation_id` or by `idempotency_key`, and by one of them".into()),
        }
    }
}

fn handle_schema() -> Arc<Map<String, Value>> {
    let schema = json!({
        "type": "object",
        "properties": {
            "operation_id": { "type": "string", "description": "The id that its start was answered with." },
            "idempotency_key": {
                "type": "string",
                "minLength": 1,
                "maxLength": IdempotencyKey::MAX_BYTES,
                "description": "The key of its start, where the id was lost.",
            },
        },
        "additionalProperties": false,
    });
    match schema {
        Value::Object(schema) => Arc::new(schema),
        // It is one.
        _ => Arc::default(),
    }
}

/// Whether the client takes tasks for answers, in this session or this request.
pub(crate) fn has_tasks(context: &RequestContext<RoleServer>) -> bool {
    context
        .client_capabilities()
        .is_some_and(|it| it.supports_tasks())
}

impl fmt::Debug for LongTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LongTool")
            .field("start", &self.start)
            .finish_non_exhaustive()
    }
}
