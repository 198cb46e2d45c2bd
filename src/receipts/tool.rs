//! A tool with receipts, and its way into a server made with rmcp.

use std::{fmt, sync::Arc, time::SystemTime};

use rmcp::{
    RoleServer,
    handler::server::tool::{ToolCallContext, ToolRoute},
    model::{CallToolRequestParams, CallToolResult, Tool},
    schemars::JsonSchema,
    service::RequestContext,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

#[cfg(feature = "sqlite")]
use super::run::{Afterwards, Followed};
use super::{
    answer::{Answer, NotKept},
    call::Call,
    definition::{Definition, DefinitionError, Terms},
    identity::{Arrival, Identity, Scope},
    ledger::Ledger,
    principal::{Asked, Denial, Principal},
    run::{Runs, arrive},
};
use crate::{
    extension::IDEMPOTENCY_KEY,
    operation::{Fingerprint, IdempotencyKey, OperationId},
};

/// The longest complaint about arguments, in bytes. It may quote them.
const COMPLAINT_BYTES: usize = 300;

/// A tool that runs once per key. Cheap to clone: clones are one tool.
#[derive(Clone)]
pub struct ReceiptTool {
    terms: Arc<Terms>,
    tool: Arc<Tool>,
    principal: Arc<dyn Principal>,
    fits: fn(&Map<String, Value>) -> Result<(), String>,
    runs: Arc<dyn Runs>,
}

impl ReceiptTool {
    /// A definition with the handler that a ledger runs for it.
    pub(crate) fn new<A, O>(
        definition: &Definition<A, O>,
        principal: impl Principal,
        runs: Arc<dyn Runs>,
    ) -> Result<Self, DefinitionError>
    where
        A: DeserializeOwned + JsonSchema + 'static,
        O: Serialize + JsonSchema + 'static,
    {
        Ok(Self {
            tool: Arc::new(definition.tool()?),
            terms: Arc::new(definition.terms.clone()),
            principal: Arc::new(principal),
            fits: |arguments| parse::<A>(arguments).map(drop),
            runs,
        })
    }

    /// The same tool, with something around the way of its calls.
    #[cfg(feature = "sqlite")]
    pub(crate) fn around(mut self, around: impl FnOnce(Arc<dyn Runs>) -> Arc<dyn Runs>) -> Self {
        self.runs = around(self.runs);
        self
    }

    /// The same tool, with something done when one of its calls has its answer.
    #[cfg(feature = "sqlite")]
    pub(crate) fn followed_by(self, then: Afterwards) -> Self {
        let runs = self.runs;
        Self {
            runs: Arc::new(Followed { runs, then }),
            ..self
        }
    }

    pub(crate) fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Whose call it is, if it may be made.
    pub(crate) async fn authorise(
        &self,
        arguments: &Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Scope, Denial> {
        let asked = Asked {
            operation: &self.terms.name,
            arguments,
        };
        self.principal.authorise(context, asked).await
    }

    /// The tool as clients see it.
    #[must_use]
    pub fn tool(&self) -> &Tool {
        &self.tool
    }

    /// The ledger that keeps its receipts.
    #[must_use]
    pub fn ledger(&self) -> Arc<dyn Ledger> {
        self.runs.ledger()
    }

    /// Its place in the router of a server: `ToolRouter::new().with_route(tool.route())`.
    #[must_use]
    pub fn route<S: Send + Sync + 'static>(&self) -> ToolRoute<S> {
        let receipts = self.clone();
        ToolRoute::new_dyn((*self.tool).clone(), move |call: ToolCallContext<'_, S>| {
            let receipts = receipts.clone();
            let arguments = call.arguments.unwrap_or_default();
            let context = call.request_context;
            Box::pin(async move {
                let answer = receipts.answer(arguments, &context).await;
                Ok(receipts.result(answer).into())
            })
        })
    }

    /// Answers a call, for a server that finds its tools by itself.
    ///
    /// # Cancel safety
    ///
    /// A call that was begun goes on, and its receipt is committed with its effect or not at all.
    pub async fn call(
        &self,
        params: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let arguments = params.arguments.unwrap_or_default();
        self.result(self.answer(arguments, context).await)
    }

    /// What becomes of a call, before it is put into words.
    ///
    /// # Cancel safety
    ///
    /// A call that was begun goes on, and its receipt is committed with its effect or not at all.
    pub async fn answer(
        &self,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> Answer {
        match self.admit(arguments, context).await {
            Ok(arrival) => {
                let call = Call::new(&arrival, context.ct.clone());
                arrive(&*self.runs, arrival, call, &self.terms).await
            }
            Err(not_kept) => Answer::NotKept(not_kept),
        }
    }

    /// An answer as a tool's result.
    #[must_use]
    pub fn result(&self, answer: Answer) -> CallToolResult {
        answer.into_result(&self.terms)
    }

    /// A call with the right shape, whose caller may make it. The key's shape comes first, and what is
    /// expensive or telling comes after the bounds and the caller's right.
    async fn admit(
        &self,
        mut arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Arrival, NotKept> {
        let terms = &self.terms;
        let by_meta = context.meta.get(IDEMPOTENCY_KEY);
        let key = key_of(&mut arguments, &terms.key_argument, by_meta);
        let key = key.map_err(NotKept::Invalid)?;
        let bounded = terms.bounds.check(&arguments);
        bounded.map_err(|out| NotKept::Invalid(out.to_string()))?;
        let authorised = self.authorise(&arguments, context).await;
        let scope = authorised.map_err(|denial| NotKept::Denied(denial.message))?;
        (self.fits)(&arguments).map_err(NotKept::Invalid)?;
        Ok(Arrival {
            identity: Identity::new(scope, Arc::clone(&terms.name), key),
            version: terms.version,
            fingerprint: Fingerprint::of(&terms.name, &arguments),
            id: OperationId::mint(),
            arguments,
            at: SystemTime::now(),
            retention: terms.retention,
        })
    }
}

impl fmt::Debug for ReceiptTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptTool")
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

/// Takes the key out of the arguments, or from the request's `_meta`. From both it is one key.
fn key_of(
    arguments: &mut Map<String, Value>,
    argument: &str,
    by_meta: Option<&Value>,
) -> Result<IdempotencyKey, String> {
    let shaped = |key: &Value, place: &str| match key {
        Value::String(key) => key.parse().map_err(|wrong| format!("`{place}`: {wrong}")),
        _ => Err(format!(
            "`{place}` is a string of 1 to 128 visible ASCII characters"
        )),
    };
    let by_argument = arguments.remove(argument);
    match (by_argument, by_meta) {
        (Some(key), None) => shaped(&key, argument),
        (None, Some(key)) => shaped(key, IDEMPOTENCY_KEY),
        (Some(key), Some(meta)) if key == *meta => shaped(&key, argument),
        (Some(_), Some(_)) => Err(format!(
            "`{argument}` is not the key in the request's metadata; give one, or the same in both"
        )),
        (None, None) => Err(format!(
            "`{argument}` is missing; make a random one for this intent and keep it"
        )),
    }
}

/// The arguments as what the handler takes.
pub(crate) fn parse<A: DeserializeOwned>(arguments: &Map<String, Value>) -> Result<A, String> {
    A::deserialize(arguments).map_err(|wrong| {
        let mut complaint = wrong.to_string();
        complaint.truncate(complaint.floor_char_boundary(COMPLAINT_BYTES));
        complaint
    })
}
