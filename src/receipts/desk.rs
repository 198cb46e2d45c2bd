//! What a server with receipts answers beside its tools: the extension's capability and look-up, and
//! MCP's tasks.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

#[cfg(feature = "sqlite")]
use rmcp::model::{CancelTaskParams, GetTaskParams, GetTaskResult, TASKS_EXTENSION_ID};
use rmcp::{
    ErrorData, RoleServer,
    handler::server::tool::ToolRouter,
    model::{CustomRequest, CustomResult, ErrorCode, ServerCapabilities},
    service::RequestContext,
};
use serde_json::{Map, Value};

#[cfg(feature = "sqlite")]
use super::long::{LongTool, Seen, has_tasks};
use super::{Answer, Identity, LedgerError, ReceiptTool, Scope, Standing};
use crate::{
    extension::{LOOK_UP, LookUp, Offer, RECEIPTS, Receipt, ReceiptState},
    operation::IdempotencyKey,
};

/// All tools with receipts of one server: what its handler gives rmcp's questions to.
///
/// ```
/// use mcp_supervisor::receipts::Desk;
/// use rmcp::{
///     ErrorData, RoleServer, ServerHandler,
///     model::{
///         CancelTaskParams, CustomRequest, CustomResult, GetTaskParams, GetTaskResult,
///         ServerCapabilities, ServerConfig,
///     },
///     service::RequestContext,
/// };
///
/// struct Shop {
///     desk: Desk,
/// }
///
/// impl ServerHandler for Shop {
///     fn get_info(&self) -> ServerConfig {
///         let mut capabilities = ServerCapabilities::builder().enable_tools().build();
///         self.desk.declare(&mut capabilities);
///         ServerConfig::new(capabilities)
///     }
///
///     async fn on_custom_request(
///         &self,
///         request: CustomRequest,
///         context: RequestContext<RoleServer>,
///     ) -> Result<CustomResult, ErrorData> {
///         self.desk.on_custom_request(request, &context).await
///     }
///
///     async fn get_task(
///         &self,
///         params: GetTaskParams,
///         context: RequestContext<RoleServer>,
///     ) -> Result<GetTaskResult, ErrorData> {
///         self.desk.get_task(params, &context).await
///     }
///
///     async fn cancel_task(
///         &self,
///         params: CancelTaskParams,
///         context: RequestContext<RoleServer>,
///     ) -> Result<(), ErrorData> {
///         self.desk.cancel_task(params, &context).await
///     }
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Desk {
    tools: BTreeMap<String, ReceiptTool>,
    #[cfg(feature = "sqlite")]
    works: BTreeMap<String, LongTool>,
}

impl Desk {
    /// A desk with nothing on it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: ReceiptTool) -> Self {
        self.tools.insert(tool.tool().name.to_string(), tool);
        self
    }

    /// Adds a long work.
    #[cfg(feature = "sqlite")]
    #[must_use]
    pub fn work(mut self, work: LongTool) -> Self {
        self.works
            .insert(work.start().tool().name.to_string(), work);
        self
    }

    /// A router with all of them.
    #[must_use]
    pub fn router<S: Send + Sync + 'static>(&self) -> ToolRouter<S> {
        let mut router = ToolRouter::new();
        for tool in self.tools.values() {
            router.add_route(tool.route());
        }
        #[cfg(feature = "sqlite")]
        for work in self.works.values() {
            work.routes()
                .into_iter()
                .for_each(|route| router.add_route(route));
        }
        router
    }

    /// Says in a server's capabilities that it has the extension for receipts, and tasks if there is
    /// long work.
    pub fn declare(&self, capabilities: &mut ServerCapabilities) {
        let offer = self.offer().settings();
        let extensions = capabilities.extensions.get_or_insert_default();
        extensions.insert(RECEIPTS.to_owned(), offer.clone());
        #[cfg(feature = "sqlite")]
        if !self.works.is_empty() {
            extensions.entry(TASKS_EXTENSION_ID.to_owned()).or_default();
        }
        // The older revisions have no extensions, and a place for what is not in them.
        let experimental = capabilities.experimental.get_or_insert_default();
        experimental.insert(RECEIPTS.to_owned(), offer);
    }

    /// What it offers: the tools, and the shortest of the times for which their answers are kept.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let all = || self.starts();
        let kept = all().map(|tool| tool.terms().retention.answers).min();
        let names = all().map(|tool| tool.tool().name.to_string());
        Offer::new(kept.unwrap_or(Duration::ZERO), names)
    }

    /// The tools whose calls have keys.
    fn starts(&self) -> impl Iterator<Item = &ReceiptTool> {
        #[cfg(feature = "sqlite")]
        let works = self.works.values().map(LongTool::start);
        #[cfg(not(feature = "sqlite"))]
        let works = std::iter::empty();
        self.tools.values().chain(works)
    }

    /// Answers the extension's look-up.
    ///
    /// # Errors
    ///
    /// "Method not found" for every other request, so that a handler with requests of its own asks here
    /// last; "invalid params" for a tool that is not here, a key of the wrong shape, and who may not.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    pub async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: &RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method != LOOK_UP {
            return Err(ErrorData::new(
                ErrorCode::METHOD_NOT_FOUND,
                request.method,
                None,
            ));
        }
        let asked: Option<LookUp> = request.params_as().ok().flatten();
        let asked = asked.ok_or_else(|| invalid("it takes a `tool` and a `key`, both texts"))?;
        let key = asked
            .key
            .parse()
            .map_err(|wrong| invalid(format!("`key`: {wrong}")))?;
        let found = self.look_up(&asked.tool, key, context).await?;
        serde_json::to_value(found)
            .map(CustomResult::new)
            .map_err(|_| broken())
    }

    async fn look_up(
        &self,
        tool: &str,
        key: IdempotencyKey,
        context: &RequestContext<RoleServer>,
    ) -> Result<Receipt, ErrorData> {
        #[cfg(feature = "sqlite")]
        if let Some(work) = self.works.get(tool) {
            let scope = allowed(work.start(), context).await?;
            let seen = work.by_key(key, &scope).await.map_err(unreadable)?;
            return Ok(seen.map_or(Receipt::of(ReceiptState::Absent), |seen| {
                of_work(work, &seen, has_tasks(context))
            }));
        }
        let tool = self.tools.get(tool);
        let tool = tool.ok_or_else(|| invalid("no tool of this name keeps receipts here"))?;
        let scope = allowed(tool, context).await?;
        let identity = Identity::new(scope, Arc::clone(&tool.terms().name), key);
        let found = tool.ledger().by_key(&identity).await.map_err(unreadable)?;
        let Some(mut receipt) = found else {
            return Ok(Receipt::of(ReceiptState::Absent));
        };
        receipt.expire(SystemTime::now());
        let state = state_of(&receipt.standing);
        let id = receipt.id.to_string();
        if state == ReceiptState::Working {
            return Ok(Receipt {
                operation_id: Some(id),
                ..Receipt::of(state)
            });
        }
        let result = tool.result(Answer::Kept {
            receipt: Arc::new(receipt),
            replayed: true,
        });
        Ok(Receipt {
            operation_id: Some(id),
            next_action: next_action(&result),
            result: serde_json::to_value(result).ok(),
            ..Receipt::of(state)
        })
    }

    /// Answers `tasks/get` from the ledger.
    ///
    /// # Errors
    ///
    /// "Invalid params" for a task that this caller has not.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed.
    #[cfg(feature = "sqlite")]
    pub async fn get_task(
        &self,
        params: GetTaskParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let (work, seen) = self.task(&params.task_id, context).await?;
        Ok(GetTaskResult::new(seen.detailed(work.start().terms())))
    }

    /// Answers `tasks/cancel`: the work is asked to stop, and the next `tasks/get` tells whether it did.
    ///
    /// # Errors
    ///
    /// "Invalid params" for a task that this caller has not; an internal error where the ledger cannot
    /// be written.
    ///
    /// # Cancel safety
    ///
    /// The work may have been asked.
    #[cfg(feature = "sqlite")]
    pub async fn cancel_task(
        &self,
        params: CancelTaskParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let (work, seen) = self.task(&params.task_id, context).await?;
        work.ask_to_stop(&seen).await.map_err(unreadable)?;
        Ok(())
    }

    /// The work whose task this is, if this caller has it.
    #[cfg(feature = "sqlite")]
    async fn task(
        &self,
        id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<(&LongTool, Seen), ErrorData> {
        let missing = || invalid("this caller has no such task");
        let id = id.parse().map_err(|_| missing())?;
        for work in self.works.values() {
            let Ok(scope) = allowed(work.start(), context).await else {
                continue;
            };
            if let Some(seen) = work.by_id(id, &scope).await.map_err(unreadable)? {
                return Ok((work, seen));
            }
        }
        Err(missing())
    }
}

#[cfg(feature = "sqlite")]
fn of_work(work: &LongTool, seen: &Seen, tasks: bool) -> Receipt {
    let over = seen.is_over();
    let result = seen.result(work.start().terms());
    Receipt {
        operation_id: Some(seen.receipt.id.to_string()),
        task: (tasks && !over).then(|| serde_json::to_value(seen.task()).unwrap_or_default()),
        next_action: next_action(&result),
        result: serde_json::to_value(result).ok().filter(|_| over),
        ..Receipt::of(seen.state())
    }
}

/// Whose receipts may be looked at. Nothing that is kept is read before.
async fn allowed(
    tool: &ReceiptTool,
    context: &RequestContext<RoleServer>,
) -> Result<Scope, ErrorData> {
    let scope = tool.authorise(&Map::new(), context).await;
    scope.map_err(|denial| invalid(denial.message))
}

fn next_action(result: &rmcp::model::CallToolResult) -> Option<String> {
    let said = result.structured_content.as_ref()?.get("next_action")?;
    said.as_str().map(str::to_owned)
}

fn invalid(message: impl Into<String>) -> ErrorData {
    ErrorData::invalid_params(message.into(), None)
}

fn unreadable(error: LedgerError) -> ErrorData {
    tracing::warn!(%error, "a ledger could not be read or written for a look-up");
    ErrorData::internal_error(error.for_callers(), None)
}

fn broken() -> ErrorData {
    ErrorData::internal_error("the receipt cannot be written as JSON", None::<Value>)
}

/// Where an operation stands, for the extension.
pub(super) fn state_of(standing: &Standing) -> ReceiptState {
    match standing {
        Standing::Running => ReceiptState::Working,
        Standing::Completed { .. } => ReceiptState::Succeeded,
        Standing::Refused { .. } | Standing::Failed { .. } => ReceiptState::Failed,
        Standing::Cancelled => ReceiptState::Cancelled,
        Standing::Unknown { .. } => ReceiptState::OutcomeUnknown,
        Standing::Expired => ReceiptState::Expired,
    }
}
