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
use attempt::{Answered, Times, Verdict, Without, attempt, overloaded};

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
}

pub(crate) struct Caller<'a> {
    pub(crate) line: &'a Line,
    pub(crate) journal: Option<&'a dyn Journal>,
}

impl<'a> Caller<'a> {
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
        if let Some(revision) = self.line.revision_without_ping() {
            let reason = NotSentReason::NotInRevision {
                method: kind.method(),
                revision,
            };
            return Err(self.not_sent(OperationId::mint(), kind, reason));
        }
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
        let admitted = admit(line, &self.times).await;
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
        loop {
            let without = match self.attempt_once().await {
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
            match self.decide(&contract, &without) {
                Decision::Tell => {
                    let unsettled = self.unsettled(&contract, &without);
                    return Err(self.error(without, unsettled));
                }
                Decision::Repeat(wait) => {
                    tokio::time::sleep(wait).await;
                    if let Err(unsettled) = self.schema_holds(&contract, schema.as_ref()).await {
                        return Err(self.error(without, Some(unsettled)));
                    }
                }
                Decision::LookUp(wait) => {
                    tokio::time::sleep(wait).await;
                    return self.look_up(&contract, without).await;
                }
            }
        }
    }

    async fn attempt_once(&mut self) -> Result<Answered, Without> {
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
        let status = report.status.filter(|s| !(200..300).contains(s));
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
async fn schemas(caller: &Caller<'_>, until: Instant) -> Option<Arc<ToolSchemas>> {
    /// More pages than any server needs, and few enough to end.
    const PAGES: usize = 64;
    let mut tools = Vec::new();
    let mut cursor = None;
    let mut generation = None;
    for _ in 0..PAGES {
        let left = until.saturating_duration_since(Instant::now());
        let page = Page {
            cursor: cursor.take(),
            budget: Budget::default(),
        };
        let answered = caller.page_of_tools(page.deadline(left)).await.ok()?;
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
