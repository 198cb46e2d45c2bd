//! An operation, from admission to outcome: checked, admitted, recorded, sent at most once, and
//! judged. What the client's contracts allow beyond that is decided here and nowhere else.

mod answer;
mod attempt;
mod contract;
mod found;
mod journaled;
mod lasting;
mod late;
mod lists;
mod notice;
mod operation;
mod receipts;
mod recorded;
mod requests;
mod resend;
mod resolve;
mod rounds;
mod tasks;

use std::{sync::Arc, time::Duration};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, CustomRequest, GetMeta as _,
    GetPromptRequest, GetPromptRequestParams, GetPromptResponse, ListPromptsRequest,
    ListPromptsResult, ListResourcesRequest, ListResourcesResult, ListToolsRequest,
    ListToolsResult, MetaObject, PaginatedRequestParams, PingRequest, ReadResourceRequest,
    ReadResourceRequestParams, ReadResourceResponse, RequestMetaObject, ServerResult,
};
use serde_json::Value;
use tokio::time::Instant;

pub use answer::{AnswerKind, ToolAnswer};
pub(crate) use lists::{known, list, refresh};
pub(crate) use resolve::resolve;
pub use resolve::{Known, Resolution, ResolveError};

use crate::{
    connection::Line,
    error::{About, CallError, InvalidRequest, NotSent, NotSentReason, UnknownCause},
    journal::Journal,
    operation::{
        Budget, CustomCall, Generation, IdempotencyKey, OperationId, OperationKind, Page, Ping,
        PromptGet, ResourceRead, ToolCall, check_name,
    },
    policy::ToolContract,
    spec::Limits,
    telemetry::{Subject, Watch},
    transport::{Listener, clock::Clock},
};
use attempt::{HeardToTheEnd, Times, Verdict, Without};
use operation::Operation;
use rounds::{Rounds, put_input};

/// Who performs operations on a connection.
pub(crate) struct Caller<'a> {
    line: &'a Arc<Line>,
    journal: Option<&'a Journal>,
    /// It works for an operation that has its place in the connection already, or that needs none.
    admitted: bool,
    rounds: Rounds,
}

/// A notification that the transport of a session has taken. Whether the server reads it is not
/// known: nothing answers a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandedOver {
    /// The session.
    pub generation: Generation,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(line: &'a Arc<Line>, journal: Option<&'a Journal>) -> Self {
        Self {
            line,
            journal,
            admitted: false,
            rounds: Rounds::Driven,
        }
    }

    /// Leaves the rounds of a request whose server asks for input to its caller.
    pub(crate) fn one_round(self) -> Self {
        Self {
            rounds: Rounds::Callers,
            ..self
        }
    }

    pub(crate) async fn call_tool(&self, call: ToolCall) -> Result<ToolAnswer, CallError> {
        let journal = self.journal.filter(|journal| {
            let contract = self.line.settings.contracts.for_tool(&call.name);
            !journal.settings().only_keyed || call.key.is_some() || contract.needs_key()
        });
        match journal {
            Some(journal) => journaled::call(self, journal, call).await,
            None => {
                let mut operation = self.tool_operation(call)?;
                let done = operation.run().await?;
                Ok(operation.answer(done))
            }
        }
    }

    /// The operation of a tool call, with the key that its contract needs.
    fn tool_operation(&self, call: ToolCall) -> Result<Box<Operation<'a>>, CallError> {
        let ToolCall {
            name,
            arguments,
            key,
            keep_arguments: _,
            input,
            budget,
        } = call;
        let id = budget.operation();
        let contract = self.line.settings.contracts.for_tool(&name);
        // The key of a look-up is one that the server was given with the call, and nobody but the
        // caller can have done that.
        let keyed = matches!(
            contract,
            ToolContract::Keyed { .. } | ToolContract::Receipts
        );
        let key = key.or_else(|| keyed.then(IdempotencyKey::mint));
        let request = tool_request(&name, arguments, contract, key.as_ref());
        let request = request.and_then(|mut request| {
            receipts::check_meta(contract, key.as_ref(), &budget)?;
            put_input(Arc::make_mut(&mut request), input);
            Ok(request)
        });
        let mut operation = self.operation(id, OperationKind::ToolCall, request, &budget)?;
        operation.tool = Some(name);
        operation.key = key;
        Ok(operation)
    }

    pub(crate) async fn list_tools(&self, page: Page) -> Result<ListToolsResult, CallError> {
        let request = ListToolsRequest::with_param(at_cursor(page.cursor));
        self.read(
            OperationKind::ListTools,
            request.into(),
            &page.budget,
            |r| match r {
                ServerResult::ListToolsResult(result) => Some(result),
                _ => None,
            },
        )
        .await
    }

    pub(crate) async fn list_prompts(&self, page: Page) -> Result<ListPromptsResult, CallError> {
        let request = ListPromptsRequest::with_param(at_cursor(page.cursor));
        self.read(
            OperationKind::ListPrompts,
            request.into(),
            &page.budget,
            |r| match r {
                ServerResult::ListPromptsResult(result) => Some(result),
                _ => None,
            },
        )
        .await
    }

    pub(crate) async fn list_resources(
        &self,
        page: Page,
    ) -> Result<ListResourcesResult, CallError> {
        let request = ListResourcesRequest::with_param(at_cursor(page.cursor));
        self.read(
            OperationKind::ListResources,
            request.into(),
            &page.budget,
            |r| match r {
                ServerResult::ListResourcesResult(result) => Some(result),
                _ => None,
            },
        )
        .await
    }

    pub(crate) async fn get_prompt(&self, get: PromptGet) -> Result<GetPromptResponse, CallError> {
        let PromptGet {
            name,
            arguments,
            input,
            budget,
        } = get;
        let request = check_name("prompt", &name)
            .map_err(InvalidRequest::from)
            .map(|()| {
                let mut params = GetPromptRequestParams::new(name);
                if !arguments.is_empty() {
                    params = params.with_arguments(arguments);
                }
                params.input_responses = input.responses;
                params.request_state = input.state;
                GetPromptRequest::new(params).into()
            });
        self.checked(OperationKind::GetPrompt, request, &budget, |r| match r {
            ServerResult::GetPromptResult(result) => Some(result.into()),
            ServerResult::InputRequiredResult(asked) => Some(asked.into()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn read_resource(
        &self,
        read: ResourceRead,
    ) -> Result<ReadResourceResponse, CallError> {
        let ResourceRead { uri, input, budget } = read;
        let request = check_uri(&uri).map(|()| {
            let mut params = ReadResourceRequestParams::new(uri);
            params.input_responses = input.responses;
            params.request_state = input.state;
            ReadResourceRequest::new(params).into()
        });
        self.checked(OperationKind::ReadResource, request, &budget, |r| match r {
            ServerResult::ReadResourceResult(result) => Some(result.into()),
            ServerResult::InputRequiredResult(asked) => Some(asked.into()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn ping(&self, ping: Ping) -> Result<(), CallError> {
        let kind = OperationKind::Ping;
        let request = PingRequest::default().into();
        self.read(kind, request, &ping.budget, |_| Some(())).await
    }

    pub(crate) async fn custom(&self, call: CustomCall) -> Result<Value, CallError> {
        let CustomCall {
            method,
            params,
            budget,
        } = call;
        let request = match method.as_str() {
            "initialize" | "server/discover" => Err(InvalidRequest::ReservedMethod),
            method => check_name("method", method)
                .map_err(InvalidRequest::from)
                .map(|()| CustomRequest::new(method, params).into()),
        };
        self.checked(OperationKind::Custom, request, &budget, |r| match r {
            ServerResult::CustomResult(result) => Some(result.0),
            other => serde_json::to_value(other).ok(),
        })
        .await
    }

    async fn read<T>(
        &self,
        kind: OperationKind,
        request: ClientRequest,
        budget: &Budget,
        take: impl FnOnce(ServerResult) -> Option<T> + Send,
    ) -> Result<T, CallError> {
        self.checked(kind, Ok(request), budget, take).await
    }

    async fn checked<T>(
        &self,
        kind: OperationKind,
        request: Result<ClientRequest, InvalidRequest>,
        budget: &Budget,
        take: impl FnOnce(ServerResult) -> Option<T> + Send,
    ) -> Result<T, CallError> {
        let id = budget.operation();
        let mut operation = self.operation(id, kind, request.map(Arc::new), budget)?;
        let answered = operation.run().await?;
        take(*answered.result).ok_or_else(|| {
            let cause = UnknownCause::WrongType(kind.method());
            operation.error(Without::new(Verdict::Unknown(cause)), None)
        })
    }

    fn operation(
        &self,
        id: OperationId,
        kind: OperationKind,
        request: Result<Arc<ClientRequest>, InvalidRequest>,
        budget: &Budget,
    ) -> Result<Box<Operation<'a>>, CallError> {
        let line = self.line;
        let subject = Subject {
            teller: &line.teller,
            operation: id,
            kind,
            connection: &line.name,
            ownership: line.ownership,
            far_end: &line.far_end,
            method: None,
        };
        let mut watch = Watch::begin(subject, request.as_deref().ok());
        let prepared = request
            .and_then(|request| Ok((request, times(budget, &line.settings.limits, watch.began)?)));
        let (mut request, times) = prepared.map_err(|invalid| {
            let error = self.not_sent(id, kind, invalid.into());
            watch.failed(&error, || None);
            error
        })?;
        if !budget.meta.is_empty() {
            let meta = MetaObject(budget.meta.clone());
            let request = Arc::make_mut(&mut request);
            request.get_meta_mut().extend(RequestMetaObject(meta));
        }
        let heard = HeardToTheEnd(times.listener.clone());
        Ok(Box::new(Operation {
            line: self.line,
            journaled: None,
            id,
            kind,
            request,
            tool: None,
            key: None,
            schema: None,
            times,
            attempts: 0,
            first_attempt: None,
            attempted_before: Duration::ZERO,
            generation: None,
            admitted: self.admitted,
            rounds: self.rounds,
            _heard: heard,
            pinned: None,
            watch,
        }))
    }

    fn not_sent(&self, id: OperationId, kind: OperationKind, reason: NotSentReason) -> CallError {
        let about = about(self.line, id, kind, None, 0);
        CallError::NotSent(Box::new(NotSent { about, reason }))
    }
}

fn about(
    line: &Line,
    operation: OperationId,
    kind: OperationKind,
    generation: Option<Generation>,
    attempts: u32,
) -> About {
    About {
        operation,
        kind,
        connection: line.name.clone(),
        ownership: line.ownership,
        generation,
        attempts,
        key: None,
    }
}

fn at_cursor(cursor: Option<String>) -> PaginatedRequestParams {
    PaginatedRequestParams::default().with_cursor(cursor)
}

fn check_uri(uri: &str) -> Result<(), InvalidRequest> {
    // A URI may be long; what it may not hold is a control character.
    let head: String = uri.chars().take(64).collect();
    check_name("resource", &head)?;
    match uri.char_indices().find(|(_, c)| c.is_control()) {
        None => Ok(()),
        Some((at, c)) => Err(crate::operation::NameError::ControlCharacter {
            what: "resource",
            code: u32::from(c),
            at,
        }
        .into()),
    }
}

fn tool_request(
    name: &str,
    arguments: Value,
    contract: &ToolContract,
    key: Option<&IdempotencyKey>,
) -> Result<Arc<ClientRequest>, InvalidRequest> {
    check_name("tool", name)?;
    let mut arguments = match arguments {
        Value::Object(arguments) => Some(arguments),
        Value::Null => None,
        Value::Bool(_) => return Err(InvalidRequest::ArgumentsNotAnObject { found: "a boolean" }),
        Value::Number(_) => return Err(InvalidRequest::ArgumentsNotAnObject { found: "a number" }),
        Value::String(_) => return Err(InvalidRequest::ArgumentsNotAnObject { found: "a string" }),
        Value::Array(_) => return Err(InvalidRequest::ArgumentsNotAnObject { found: "an array" }),
    };
    if let (ToolContract::Keyed { argument }, Some(key)) = (contract, key) {
        let key = Value::String(key.as_str().to_owned());
        let arguments = arguments.get_or_insert_default();
        // A `null` there is nothing that anybody meant as a key.
        let there = arguments.get(argument).filter(|there| !there.is_null());
        if there.is_some_and(|there| *there != key) {
            return Err(InvalidRequest::KeyConflict);
        }
        arguments.insert(argument.clone(), key);
    }
    let mut params = CallToolRequestParams::new(name.to_owned());
    if let Some(arguments) = arguments {
        params = params.with_arguments(arguments);
    }
    let mut request = Arc::new(CallToolRequest::new(params).into());
    if let (ToolContract::Receipts, Some(key)) = (contract, key) {
        receipts::put_key(Arc::make_mut(&mut request), key);
    }
    Ok(request)
}

/// The times of an operation that begins `now`.
fn times(budget: &Budget, limits: &Limits, now: Instant) -> Result<Times, InvalidRequest> {
    let total = budget.total.unwrap_or(limits.total);
    let zero = |what| InvalidRequest::ZeroBudget { what };
    if total.is_zero() {
        return Err(zero("deadline"));
    }
    if budget.idle.is_some_and(|idle| idle.is_zero()) {
        return Err(zero("idle limit"));
    }
    let attempt = match budget.attempt {
        Some(attempt) if attempt.is_zero() => return Err(zero("attempt limit")),
        Some(attempt) if attempt > total => {
            return Err(InvalidRequest::InvertedBudget { attempt, total });
        }
        Some(attempt) => Some(attempt),
        // The connection's cap gives way to an operation that has less time altogether.
        None => limits.attempt.map(|attempt| attempt.min(total)),
    };
    // A deadline too far away to be reckoned with is the farthest that can be.
    let far = Duration::from_secs(10 * 365 * 24 * 3600);
    let clock = Arc::new(Clock::new(limits.hold));
    let heard = budget.idle.is_some() || budget.progress.is_some();
    Ok(Times {
        total: clock.after(total.min(far), now),
        attempt,
        idle: budget.idle,
        cancel: budget.cancel.clone(),
        clock,
        listener: heard.then(|| Arc::new(Listener::new(budget.progress.clone()))),
    })
}

impl Caller<'_> {
    /// One page of a list with the session that it came from; of this one session, if it is given.
    async fn page_of<P>(
        &self,
        kind: OperationKind,
        request: ClientRequest,
        budget: &Budget,
        only_in: Option<Generation>,
        take: fn(ServerResult) -> Option<P>,
    ) -> Result<(P, Generation), CallError> {
        let mut operation =
            self.operation(OperationId::mint(), kind, Ok(Arc::new(request)), budget)?;
        operation.pinned = only_in;
        let done = operation.run().await?;
        match take(*done.result) {
            Some(page) => Ok((page, done.generation)),
            None => {
                let cause = UnknownCause::WrongType(kind.method());
                Err(operation.error(Without::new(Verdict::Unknown(cause)), None))
            }
        }
    }
}
