//! An operation, from admission to outcome: checked, admitted, recorded, sent at most once, and
//! judged. What the client's contracts allow beyond that is decided here and nowhere else.

mod answer;
mod attempt;
mod contract;

use std::{sync::Arc, time::Duration};

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, CustomRequest,
    GetPromptRequest, GetPromptRequestParams, GetPromptResult, ListPromptsRequest,
    ListPromptsResult, ListResourcesRequest, ListResourcesResult, ListToolsRequest,
    ListToolsResult, PaginatedRequestParams, PingRequest, ReadResourceRequest,
    ReadResourceRequestParams, ReadResourceResult, ServerResult,
};
use serde_json::Value;
use tokio::{sync::SemaphorePermit, time::Instant};

pub use answer::{AnswerKind, ToolAnswer};

use crate::{
    catalog::ToolSchemas,
    connection::{Attempt, Line},
    error::{
        About, CallError, Failed, InvalidRequest, NotSent, NotSentReason, Rejected, Unknown,
        UnknownCause, Unsettled, Wait,
    },
    event::What,
    evidence::{Outcome, retry_after_seconds},
    journal::{Intent, Journal, Settled},
    operation::{
        AttemptId, Budget, CustomCall, Generation, IdempotencyKey, OperationId, OperationKind,
        Page, Ping, PromptGet, ResourceRead, ToolCall, check_name,
    },
    policy::{Decision, Situation, ToolContract, decide},
    spec::{Limits, Overload},
};
use answer::Body;
use attempt::{Answered, Times, Verdict, Without, attempt, cancelled, overloaded};

/// One operation on its way.
struct Operation<'a> {
    line: &'a Line,
    journal: Option<&'a dyn Journal>,
    id: OperationId,
    kind: OperationKind,
    request: Arc<ClientRequest>,
    tool: Option<String>,
    key: Option<IdempotencyKey>,
    times: Times,
    attempts: u32,
    generation: Option<Generation>,
    admitted: bool,
}

/// Who performs operations on a connection.
pub(crate) struct Caller<'a> {
    line: &'a Line,
    journal: Option<&'a dyn Journal>,
    /// It works for an operation that has its place in the connection already.
    admitted: bool,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(line: &'a Line, journal: Option<&'a dyn Journal>) -> Self {
        Self {
            line,
            journal,
            admitted: false,
        }
    }

    pub(crate) async fn call_tool(&self, call: ToolCall) -> Result<ToolAnswer, CallError> {
        let kind = OperationKind::ToolCall;
        let id = OperationId::mint();
        let ToolCall {
            name,
            arguments,
            key,
            budget,
        } = call;
        let contract = self.line.settings.contracts.for_tool(&name);
        let request = tool_request(&name, arguments, contract, key.as_ref());
        let mut operation = self.operation(id, kind, request, &budget)?;
        operation.tool = Some(name);
        operation.key = key;
        let answered = operation.run().await?;
        let generation = answered.generation;
        Ok(ToolAnswer {
            body: match answered.result {
                ServerResult::CallToolResult(result) => Body::Complete(result),
                ServerResult::InputRequiredResult(result) => Body::InputRequired(result),
                ServerResult::CreateTaskResult(result) => Body::Task(result),
                // A result without content, which rmcp decodes as an empty one.
                _ => Body::Complete(CallToolResult::default()),
            },
            operation: id,
            generation,
            attempts: answered.attempts,
            looked_up: answered.looked_up,
        })
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

    pub(crate) async fn get_prompt(&self, get: PromptGet) -> Result<GetPromptResult, CallError> {
        let PromptGet {
            name,
            arguments,
            budget,
        } = get;
        let request = check_name("prompt", &name)
            .map_err(InvalidRequest::from)
            .map(|()| {
                let mut params = GetPromptRequestParams::new(name);
                if !arguments.is_empty() {
                    params = params.with_arguments(arguments);
                }
                GetPromptRequest::new(params).into()
            });
        self.checked(OperationKind::GetPrompt, request, &budget, |r| match r {
            ServerResult::GetPromptResult(result) => Some(result),
            _ => None,
        })
        .await
    }

    pub(crate) async fn read_resource(
        &self,
        read: ResourceRead,
    ) -> Result<ReadResourceResult, CallError> {
        let ResourceRead { uri, budget } = read;
        let request = check_uri(&uri)
            .map(|()| ReadResourceRequest::new(ReadResourceRequestParams::new(uri)).into());
        self.checked(OperationKind::ReadResource, request, &budget, |r| match r {
            ServerResult::ReadResourceResult(result) => Some(result),
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
        let id = OperationId::mint();
        let mut operation = self.operation(id, kind, request, budget)?;
        let answered = operation.run().await?;
        take(answered.result).ok_or_else(|| {
            let cause = UnknownCause::WrongType(kind.method());
            operation.error(Without::new(Verdict::Unknown(cause)), None)
        })
    }

    fn operation(
        &self,
        id: OperationId,
        kind: OperationKind,
        request: Result<ClientRequest, InvalidRequest>,
        budget: &Budget,
    ) -> Result<Operation<'a>, CallError> {
        let prepared =
            request.and_then(|request| Ok((request, times(budget, &self.line.settings.limits)?)));
        let (request, times) =
            prepared.map_err(|invalid| self.not_sent(id, kind, invalid.into()))?;
        Ok(Operation {
            line: self.line,
            journal: self.journal,
            id,
            kind,
            request: Arc::new(request),
            tool: None,
            key: None,
            times,
            attempts: 0,
            generation: None,
            admitted: self.admitted,
        })
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
) -> Result<ClientRequest, InvalidRequest> {
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
        if arguments.get(argument).is_some_and(|there| *there != key) {
            return Err(InvalidRequest::KeyConflict);
        }
        arguments.insert(argument.clone(), key);
    }
    let mut params = CallToolRequestParams::new(name.to_owned());
    if let Some(arguments) = arguments {
        params = params.with_arguments(arguments);
    }
    Ok(CallToolRequest::new(params).into())
}

fn times(budget: &Budget, limits: &Limits) -> Result<Times, InvalidRequest> {
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
    let now = Instant::now();
    // A deadline too far away to be reckoned with is the farthest that can be.
    let far = Duration::from_secs(10 * 365 * 24 * 3600);
    Ok(Times {
        total: now + total.min(far),
        attempt,
        idle: budget.idle,
        cancel: budget.cancel.clone(),
    })
}

/// An operation that was answered.
struct Done {
    result: ServerResult,
    generation: Generation,
    attempts: u32,
    looked_up: bool,
}

impl Operation<'_> {
    async fn run(&mut self) -> Result<Done, CallError> {
        let line = self.line;
        if line.closing.is_cancelled() {
            return Err(self.error(NotSentReason::Closed.into(), None));
        }
        if let Some(journal) = self.journal {
            let intent = Intent {
                operation: self.id,
                kind: self.kind,
                connection: line.name.clone(),
                key: self.key.clone(),
            };
            if let Err(error) = journal.accepted(&intent).await {
                let reason = NotSentReason::Journal(Arc::from(error));
                return Err(self.error(reason.into(), None));
            }
        }
        let admitted = match self.admitted {
            true => Ok(None),
            false => admit(line, &self.times).await.map(Some),
        };
        let done = match admitted {
            Ok(permit) => {
                let done = self.attempts().await;
                drop(permit);
                done
            }
            Err(reason) => Err(self.error(reason.into(), None)),
        };
        if let Err(CallError::Unknown(unknown)) = &done {
            if let Some(generation) = unknown.about.generation {
                line.tell(What::OutcomeUnknown {
                    operation: self.id,
                    generation,
                });
            }
            line.note_unknown(self.id);
        }
        if let Some(journal) = self.journal {
            let how = match &done {
                Ok(_) => Settled::Answered,
                Err(error) => Settled::Without(error.outcome()),
            };
            if let Err(error) = journal.settled(self.id, how).await {
                tracing::error!(operation = %self.id, %error, "the outcome could not be recorded");
            }
        }
        done
    }

    async fn attempts(&mut self) -> Result<Done, CallError> {
        let contract = match &self.tool {
            Some(tool) => self.line.settings.contracts.for_tool(tool).clone(),
            None => ToolContract::AtMostOnce,
        };
        let schema = self.schema_before(&contract).await;
        let mut unknown: Option<Without> = None;
        let mut only_in = None;
        loop {
            let without = match self.attempt_once(only_in).await {
                Ok(Answered { result, generation }) => {
                    let attempts = self.attempts;
                    return Ok(Done {
                        result,
                        generation,
                        attempts,
                        looked_up: false,
                    });
                }
                Err(without) => without,
            };
            let again = without.misplaced;
            let without = self.not_forgetting(unknown.take(), without)?;
            let decision = match again {
                true => Decision::Repeat(Duration::ZERO),
                false => self.decide(&contract, &without),
            };
            match decision {
                Decision::Tell => {
                    let unsettled = self.unsettled(&contract, &without);
                    return Err(self.error(without, unsettled));
                }
                Decision::Repeat(wait) => {
                    if !self.pause(wait).await {
                        return Err(self.error(without, self.if_tool(Unsettled::Interrupted)));
                    }
                    match self.schema_holds(&contract, schema.as_ref()).await {
                        Ok(generation) => only_in = generation,
                        Err(unsettled) => return Err(self.error(without, Some(unsettled))),
                    }
                    unknown = Some(without);
                }
                Decision::LookUp(wait) => {
                    if !self.pause(wait).await {
                        return Err(self.error(without, Some(Unsettled::Interrupted)));
                    }
                    return self.look_up(&contract, without).await;
                }
            }
        }
    }

    /// What is known of a repeat together with the attempt before it: where the repeat was not
    /// sent, or was refused, that one may still have run.
    fn not_forgetting(&self, before: Option<Without>, last: Without) -> Result<Without, CallError> {
        let Some(before) = before else {
            return Ok(last);
        };
        match last.verdict.outcome() {
            _ if last.misplaced => Ok(before),
            Outcome::NotSent => {
                let unsettled = if last.cancelled {
                    Unsettled::Interrupted
                } else {
                    Unsettled::RepeatNotSent
                };
                Err(self.error(before, self.if_tool(unsettled)))
            }
            // The server's answer to a read is the answer, also if it is a refusal.
            Outcome::Rejected if !self.kind.is_read() => {
                Err(self.error(before, Some(Unsettled::RepeatRejected)))
            }
            _ => Ok(last),
        }
    }

    /// Only tools have contracts that could stay unsettled.
    fn if_tool(&self, unsettled: Unsettled) -> Option<Unsettled> {
        self.tool.as_ref().map(|_| unsettled)
    }

    /// Waits before a repeat. `false`: the caller cancelled, or the connection was closed.
    async fn pause(&self, wait: Duration) -> bool {
        tokio::select! {
            biased;
            () = cancelled(&self.times) => false,
            () = self.line.closing.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        }
    }

    async fn attempt_once(&mut self, only_in: Option<Generation>) -> Result<Answered, Without> {
        let attempt_id = AttemptId::mint();
        if let Some(journal) = self.journal {
            journal
                .dispatching(self.id, attempt_id)
                .await
                .map_err(|error| NotSentReason::Journal(Arc::from(error)))?;
        }
        self.attempts += 1;
        let this = Attempt {
            operation: self.id,
            id: attempt_id,
            number: self.attempts,
            only_in,
        };
        let mut told = None;
        let mut handed_over = |generation| told = Some(generation);
        let request = Arc::clone(&self.request);
        let (kind, times) = (self.kind, &self.times);
        let done = attempt(self.line, kind, this, request, times, &mut handed_over).await;
        if told.is_some() {
            self.generation = told;
        } else {
            self.attempts -= 1;
        }
        done
    }

    fn decide(&self, contract: &ToolContract, without: &Without) -> Decision {
        if without.cancelled || self.line.closing.is_cancelled() {
            return Decision::Tell;
        }
        let situation = Situation {
            kind: self.kind,
            contract,
            outcome: without.verdict.outcome(),
            session: without.session,
            lent: self.line.ownership.is_lent(),
            has_key: self.key.is_some(),
            attempts: self.attempts,
            remaining: self.times.total.saturating_duration_since(Instant::now()),
            retry_after: without
                .report
                .retry_after
                .as_deref()
                .and_then(retry_after_seconds),
            jitter: rand::random(),
        };
        decide(&situation, &self.line.settings.repeats)
    }

    /// Why the contract, if there is one, did not settle an unknown outcome.
    fn unsettled(&self, contract: &ToolContract, without: &Without) -> Option<Unsettled> {
        let unknown = without.verdict.outcome() == Outcome::Unknown;
        if !unknown || without.cancelled || self.line.ownership.is_lent() {
            return None;
        }
        match contract {
            ToolContract::AtMostOnce => None,
            ToolContract::Keyed { .. } | ToolContract::Status { .. } if self.key.is_none() => {
                Some(Unsettled::NoKey)
            }
            _ => Some(Unsettled::Spent),
        }
    }

    fn error(&self, without: Without, unsettled: Option<Unsettled>) -> CallError {
        let Without {
            verdict,
            generation,
            report,
            source,
            ..
        } = without;
        let generation = generation.or(self.generation);
        let about = about(self.line, self.id, self.kind, generation, self.attempts);
        let status = report.failed_status();
        let retry_after = report.retry_after;
        match verdict {
            Verdict::NotSent(reason) => CallError::NotSent(Box::new(NotSent { about, reason })),
            Verdict::Rejected(error) => CallError::Rejected(Box::new(Rejected {
                about,
                status,
                challenge: report.challenge,
                retry_after,
                error,
                source,
            })),
            Verdict::Failed(error) => CallError::Failed(Box::new(Failed {
                about,
                status,
                retry_after,
                error,
            })),
            Verdict::Unknown(cause) => CallError::Unknown(Box::new(Unknown {
                about,
                cause,
                status,
                retry_after,
                unsettled,
                source,
            })),
        }
    }
}

/// Takes a place in the connection before anything is put into its mailbox.
async fn admit<'a>(line: &'a Line, times: &Times) -> Result<SemaphorePermit<'a>, NotSentReason> {
    if let Ok(permit) = line.admission.try_acquire() {
        return Ok(permit);
    }
    if line.settings.limits.overload == Overload::Refuse {
        return Err(overloaded(line));
    }
    let cancelled = async {
        match &times.cancel {
            Some(token) => token.cancelled().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = line.closing.cancelled() => Err(NotSentReason::Closed),
        () = cancelled => Err(NotSentReason::Cancelled),
        permit = line.admission.acquire() => permit.map_err(|_| NotSentReason::Closed),
        () = tokio::time::sleep_until(times.total) => {
            Err(NotSentReason::DeadlinePassed(Wait::Admission))
        }
    }
}

/// Reads all pages of the tool list, for a contract that has to know a tool's schema.
async fn schemas(caller: &Caller<'_>, times: &Times) -> Option<Arc<ToolSchemas>> {
    /// More pages than any server needs, and few enough to end.
    const PAGES: usize = 64;
    let mut tools = Vec::new();
    let mut cursor = None;
    let mut generation = None;
    for _ in 0..PAGES {
        let budget = Budget {
            total: Some(times.total.saturating_duration_since(Instant::now())),
            cancel: times.cancel.clone(),
            ..Budget::default()
        };
        let page = Page {
            cursor: cursor.take(),
            budget,
        };
        let answered = caller.page_of_tools(page).await.ok()?;
        // Pages of two generations are two lists.
        if *generation.get_or_insert(answered.1) != answered.1 {
            return None;
        }
        tools.extend(answered.0.tools);
        match answered.0.next_cursor {
            Some(next) => cursor = Some(next),
            None => {
                let schemas = Arc::new(ToolSchemas::new(answered.1, tools));
                caller.line.keep_schemas(&schemas);
                return Some(schemas);
            }
        }
    }
    None
}

impl Caller<'_> {
    async fn page_of_tools(&self, page: Page) -> Result<(ListToolsResult, Generation), CallError> {
        let kind = OperationKind::ListTools;
        let request = ListToolsRequest::with_param(at_cursor(page.cursor)).into();
        let mut operation = self.operation(OperationId::mint(), kind, Ok(request), &page.budget)?;
        let done = operation.run().await?;
        match done.result {
            ServerResult::ListToolsResult(result) => Ok((result, done.generation)),
            _ => {
                let cause = UnknownCause::WrongType(kind.method());
                Err(operation.error(Without::new(Verdict::Unknown(cause)), None))
            }
        }
    }
}
