//! A tool whose effect is somebody else's: it charges a card at a payment service.
//!
//! Between the tool, the service and the caller there are five places where a crash or a lost answer
//! leaves one of them behind. Each ends in one charge, or in the honest word that nobody knows and
//! where to look.
//!
//! ```text
//! cargo run --example outbox_provider
//! ```
//!
//! The program starts itself again, as the server with the tool; the payment service is in here.

#[path = "support/payments.rs"]
mod payments;
mod support;

use std::{env, net::SocketAddr, path::Path, process, time::Duration};

use mcp_supervisor::{
    CallError, OwnedConnection, StdioSpec, Supervisor, ToolCall,
    receipts::{
        Bounds, Definition, FixedScope, ReceiptTool, SqliteLedger, SqliteSettings,
        outbox::{Answering, Found, Intent, Limits, Outgoing, Promises, Provider, Reference, Sent},
    },
};
use payments::{Habits, Payments, PaymentsApi, Trick};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use support::{Ending, check, story};

#[derive(serde::Deserialize, rmcp::schemars::JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Charge {
    cents: u64,
}

/// Where the server dies, if it is to.
#[derive(Clone, Copy, PartialEq)]
enum Dies {
    Never,
    /// The intent is committed and nothing is sent.
    BeforeDispatch,
    /// The service has charged and said so, and nothing of that is written down.
    AfterAnswer,
    /// All is written down, and the caller has no answer.
    BeforeReply,
}

const DIES: [(&str, Dies); 4] = [
    ("never", Dies::Never),
    ("before-dispatch", Dies::BeforeDispatch),
    ("after-answer", Dies::AfterAnswer),
    ("before-reply", Dies::BeforeReply),
];

const EVERY_HABIT: [Habits; 3] = [
    Habits {
        deduplicates: true,
        can_be_asked: false,
    },
    Habits {
        deduplicates: false,
        can_be_asked: true,
    },
    Habits {
        deduplicates: false,
        can_be_asked: false,
    },
];
const KEYS: usize = 0;
const LOOK_UPS: usize = 1;
const NOTHING: usize = 2;

/// The provider of the server, which may die as soon as it has an answer.
struct Doomed(PaymentsApi, Dies);

impl Provider for Doomed {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn promises(&self) -> Promises {
        self.0.promises()
    }

    fn send<'a>(&'a self, outgoing: &'a Outgoing) -> Answering<'a, Sent> {
        Box::pin(async move {
            let sent = self.0.send(outgoing).await;
            if self.1 == Dies::AfterAnswer {
                process::abort();
            }
            sent
        })
    }

    fn look_up<'a>(&'a self, reference: &'a Reference) -> Answering<'a, Found> {
        self.0.look_up(reference)
    }

    fn inspect(&self, reference: &Reference) -> String {
        self.0.inspect(reference)
    }
}

/// The server with the tool, over stdin and stdout.
#[derive(Clone)]
struct Till(ReceiptTool, Dies);

impl ServerHandler for Till {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![self.0.tool().clone()]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let result = self.0.call(request, &context).await;
        if matches!(self.1, Dies::BeforeDispatch | Dies::BeforeReply) {
            process::abort();
        }
        Ok(result.into())
    }
}

async fn serve(file: &Path, service: SocketAddr, habits: Habits, dies: Dies) -> Ending {
    let ledger = SqliteLedger::open(file, SqliteSettings::default())?;
    let mut limits = Limits::default();
    // What a dead server had under way is taken up by the next one after this, and some seconds.
    limits.attempt_timeout = Duration::from_millis(500);
    limits.lease_margin = Duration::from_millis(500);
    limits.backoff.base = Duration::from_millis(50);
    let api = PaymentsApi::new(service, habits);
    let mut outbox = ledger
        .outbox()
        .await?
        .limits(limits)
        .provider(Doomed(api, dies));
    let mut bounds = Bounds::default();
    bounds.wait = Duration::from_secs(30);
    if dies == Dies::BeforeDispatch {
        outbox = outbox.without_dispatcher();
        bounds.wait = Duration::ZERO;
    }
    let outbox = outbox.start();
    let charge = Definition::<Charge, Value>::new("charge", "Charges the customer's card.");
    let scope = FixedScope("shop".parse()?);
    let tool = outbox.tool(
        &charge.bounds(bounds),
        scope,
        |_transaction, charge: Charge, _call| {
            Ok(Intent::new("payments", json!({ "cents": charge.cents })))
        },
    )?;
    let till = Till(tool, dies).serve(rmcp::transport::stdio()).await?;
    till.waiting().await?;
    outbox.stop().await;
    Ok(())
}

/// One shop: a payment service, and a file for its server.
struct Shop {
    service: Payments,
    habits: usize,
    directory: tempfile::TempDir,
    supervisor: Supervisor,
}

impl Shop {
    async fn with(habits: usize) -> Ending<Self> {
        Ok(Self {
            service: Payments::start(EVERY_HABIT[habits]).await?,
            habits,
            directory: tempfile::tempdir()?,
            supervisor: Supervisor::builder().start().await?,
        })
    }

    /// A server that dies there.
    async fn server(&self, dies: &str) -> Ending<OwnedConnection> {
        let spec = StdioSpec::new(env::current_exe()?)
            .arg(self.directory.path().join("shop.db"))
            .arg(self.service.addr().to_string())
            .arg(self.habits.to_string())
            .arg(dies);
        Ok(self.supervisor.open(dies, spec).await?)
    }

    /// Charges, under a key that is the same for the whole story.
    async fn charge(&self, server: &OwnedConnection) -> Ending<Option<Value>> {
        let charge = json!({ "cents": 1999, "idempotency_key": "order-1001" });
        match server.call_tool(ToolCall::new("charge", charge)).await {
            Ok(answer) => {
                let said = answer.structured().cloned().unwrap_or_default();
                println!(
                    "   the tool says: {}",
                    said["status"].as_str().unwrap_or("?")
                );
                Ok(Some(said))
            }
            Err(CallError::Unknown(_)) => {
                println!("   no answer: the server died");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn close(self, charges: usize) -> Ending {
        let _ = self.supervisor.shutdown(Duration::from_secs(5)).await;
        let charged = self.service.charges().len();
        check(
            charged == charges,
            &format!("the service holds {charges} charge(s)"),
        )
    }
}

fn completed(said: &Option<Value>) -> bool {
    said.as_ref().is_some_and(|said| {
        said["status"] == "completed"
            && said["result"] == json!({ "charge": "ch-1", "cents": 1999 })
    })
}

/// A server that dies, and the one after it, which is called under the same key.
async fn dies_and_comes_back(dies: &str) -> Ending<(Shop, Option<Value>)> {
    let shop = Shop::with(KEYS).await?;
    let first = shop.server(dies).await?;
    check(
        shop.charge(&first).await?.is_none(),
        "the caller of the first server knows nothing",
    )?;
    first.close().await;
    let second = shop.server("never").await?;
    let said = shop.charge(&second).await?;
    check(
        completed(&said),
        "under the same key, the next server has the result",
    )?;
    Ok((shop, said))
}

async fn tell() -> Ending {
    println!("1. The server dies before anything is sent.");
    let (shop, _) = dies_and_comes_back("before-dispatch").await?;
    shop.close(1).await?;

    println!("2. The service charges, and its answer is lost. It knows keys.");
    let shop = Shop::with(KEYS).await?;
    shop.service.will([Trick::LoseAnswer]);
    let server = shop.server("never").await?;
    let said = shop.charge(&server).await?;
    check(
        completed(&said),
        "sent again under the same key, it was answered",
    )?;
    check(shop.service.requests().len() == 2, "it was asked twice")?;
    shop.close(1).await?;

    println!("   The same at a service that knows no keys, and can be asked.");
    let shop = Shop::with(LOOK_UPS).await?;
    shop.service.will([Trick::LoseAnswer]);
    let server = shop.server("never").await?;
    let said = shop.charge(&server).await?;
    check(completed(&said), "it was looked up by its reference")?;
    shop.close(1).await?;

    println!("3. The service answers, and the server dies before it writes that down.");
    let (shop, _) = dies_and_comes_back("after-answer").await?;
    check(
        shop.service.requests().len() == 2,
        "the next server sent it again",
    )?;
    shop.close(1).await?;

    println!("4. All is written down, and the caller's answer is lost.");
    let (shop, said) = dies_and_comes_back("before-reply").await?;
    let replayed = said.is_some_and(|said| said["replayed"] == true);
    check(replayed, "it is a replay")?;
    check(shop.service.requests().len() == 1, "nothing was sent again")?;
    shop.close(1).await?;

    println!("5. The answer is lost, at a service without keys that cannot be asked.");
    let shop = Shop::with(NOTHING).await?;
    shop.service.will([Trick::LoseAnswer]);
    let server = shop.server("never").await?;
    for _ in 0..2 {
        let said = shop.charge(&server).await?.unwrap_or_default();
        check(
            said["status"] == "outcome_unknown",
            "nobody knows, and the tool says so",
        )?;
        let next = said["next_action"].as_str().unwrap_or_default();
        let reference = &shop.service.charges()[0].reference;
        check(
            next.contains(reference),
            "it says what to look for, and where",
        )?;
    }
    check(shop.service.requests().len() == 1, "nothing was sent again")?;
    shop.close(1).await
}

#[tokio::main]
async fn main() -> Ending {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [file, service, habits, dies] => {
            let habits = EVERY_HABIT[habits.parse::<usize>()?];
            let (_, dies) = DIES
                .into_iter()
                .find(|(name, _)| name == dies)
                .ok_or("no such end")?;
            serve(Path::new(file), service.parse()?, habits, dies).await
        }
        _ => story(tell()).await,
    }
}
