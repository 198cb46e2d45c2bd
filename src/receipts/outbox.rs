//! Effects outside of the database: an intent is committed with its receipt, and sent afterwards, until
//! what became of it is known or nothing is left to try.
//!
//! It is delivered at least once under one key, and not exactly once: whether the second delivery has
//! an effect is up to the provider. So what a provider [promises](Promises) decides what may be
//! done about an attempt without an answer. If it deduplicates by key, the attempt is made again
//! under the same [`Reference`] for as long as the key is kept. If it can be looked up, it is asked.
//! If it can do neither, the outcome is unknown, and the receipt says where to look.

mod dispatcher;
mod letter;
mod letters;
mod plan;
#[cfg(feature = "postgres")]
mod postgres;
mod provider;
mod reference;
mod sending;
#[cfg(feature = "sqlite")]
mod sqlite;
pub mod table;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use tokio::{sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use letter::Intent;
pub use plan::{Limits, LookUp, Promises, Why};
pub use provider::{Answering, Found, Outgoing, Provider, Reason, Sent};
pub use reference::Reference;

use self::{
    letter::{Letter, Rules},
    letters::Letters,
    table::State,
};
use super::{Failure, Identity, Ledger, LedgerError, Refusal, Standing};

/// Intents of one ledger, and the dispatcher that sends them. Dropped, it takes nothing up any more;
/// what is under way is finished.
///
/// ```no_run
/// # use mcp_supervisor::receipts::{*, outbox::{*}};
/// # #[derive(serde::Deserialize, rmcp::schemars::JsonSchema)]
/// # #[schemars(crate = "rmcp::schemars")]
/// # struct Charge { cents: i64 }
/// # #[cfg(feature = "postgres")]
/// # fn tool(ledger: &PostgresLedger, principal: FixedScope, payments: impl Provider) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = ledger.outbox().provider(payments).start();
/// let charge = outbox.tool(
///     &Definition::<Charge, serde_json::Value>::new("charge", "Charges the customer's card."),
///     principal,
///     |_transaction, charge: Charge, _call| {
///         Box::pin(async move {
///             let body = serde_json::json!({ "cents": charge.cents });
///             Ok(Intent::new("payments", body))
///         })
///     },
/// )?;
/// # Ok(())
/// # }
/// ```
pub struct Outbox<L> {
    ledger: L,
    shared: Arc<Shared>,
    stop: CancellationToken,
    dispatcher: Option<JoinHandle<()>>,
}

/// An outbox before it is started.
pub struct OutboxBuilder<L> {
    ledger: L,
    shared: Shared,
    dispatches: bool,
}

impl<L> OutboxBuilder<L> {
    pub(crate) fn new(ledger: L, receipts: Arc<dyn Ledger>, letters: Box<dyn Letters>) -> Self {
        Self {
            ledger,
            shared: Shared {
                ledger: receipts,
                letters,
                providers: BTreeMap::new(),
                names: Vec::new(),
                limits: Limits::default(),
                wake: Notify::new(),
                settled: Notify::new(),
            },
            dispatches: true,
        }
    }

    /// Adds a provider, in the place of one of the same name.
    #[must_use]
    pub fn provider(mut self, provider: impl Provider) -> Self {
        let provider: Arc<dyn Provider> = Arc::new(provider);
        let name = provider.name().to_owned();
        self.shared.providers.insert(name, provider);
        self
    }

    /// How long and how often an intent is tried.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.shared.limits = limits;
        self
    }

    /// Only commits intents, and leaves the sending to another process on the same database.
    #[must_use]
    pub fn without_dispatcher(mut self) -> Self {
        self.dispatches = false;
        self
    }

    /// Starts the dispatcher, in the tokio runtime that this is called in. It begins with what was
    /// committed before, and left behind.
    #[must_use]
    pub fn start(mut self) -> Outbox<L> {
        self.shared.names = self.shared.providers.keys().cloned().collect();
        let shared = Arc::new(self.shared);
        let stop = CancellationToken::new();
        let dispatcher = self
            .dispatches
            .then(|| tokio::spawn(dispatcher::run(Arc::clone(&shared), stop.clone())));
        Outbox {
            ledger: self.ledger,
            shared,
            stop,
            dispatcher,
        }
    }
}

impl<L> Outbox<L> {
    /// Stops the dispatcher, after what is under way. That takes no longer than the limit of an
    /// attempt and a few seconds for the writes.
    ///
    /// # Cancel safety
    ///
    /// It goes on stopping.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(dispatcher) = self.dispatcher.take() {
            // Its task is never aborted, and a panic of it is logged where it happened.
            let _ = dispatcher.await;
        }
    }

    /// Removes intents whose outcome has been in their receipts for `kept_for`, at most `at_most`.
    /// Those with an unknown outcome stay. Says how many it removed.
    ///
    /// # Errors
    ///
    /// What keeps the database from being written.
    ///
    /// # Cancel safety
    ///
    /// What was begun is finished.
    pub async fn sweep(&self, kept_for: Duration, at_most: usize) -> Result<usize, LedgerError> {
        self.shared.letters.sweep(kept_for, at_most).await
    }
}

impl<L> Drop for Outbox<L> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl<L> fmt::Debug for Outbox<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("providers", &self.shared.names)
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for OutboxBuilder<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxBuilder")
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

/// What the outbox and its dispatcher share.
struct Shared {
    ledger: Arc<dyn Ledger>,
    letters: Box<dyn Letters>,
    providers: BTreeMap<String, Arc<dyn Provider>>,
    names: Vec<String>,
    limits: Limits,
    /// Told when something was committed.
    wake: Notify,
    /// Told when what became of an intent is in its receipt.
    settled: Notify,
}

impl Shared {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.providers.get(name).cloned()
    }

    /// The reference of an intent, if there is somebody to send it.
    fn reference(&self, identity: &Identity, intent: &Intent) -> Result<Reference, Failure> {
        if !self.providers.contains_key(&intent.provider) {
            let unknown = format!("the outbox has no provider named {:?}", intent.provider);
            return Err(Failure::failed(unknown));
        }
        let Identity {
            scope,
            operation,
            key,
        } = identity;
        Ok(Reference::of(scope.as_str(), operation, key.as_str()))
    }

    fn rules(&self, provider: &dyn Provider) -> Rules<'_> {
        Rules {
            promises: provider.promises(),
            limits: &self.limits,
            jitter: rand::random(),
        }
    }

    /// For how long an intent is held.
    fn lease(&self) -> Duration {
        let limits = &self.limits;
        limits.attempt_timeout.saturating_add(limits.lease_margin)
    }

    /// Within what time of its lease an attempt has to be begun, so that it is over, and written, in it.
    fn time_to_begin(&self) -> Duration {
        self.limits.lease_margin / 2
    }

    /// What the receipt says of an intent that is over.
    fn standing(&self, letter: &Letter) -> Standing {
        let progress = &letter.progress;
        let reason = progress.reason.as_deref().unwrap_or("it gave no reason");
        let provider = &letter.intent.provider;
        match progress.state {
            State::Answered => Standing::Completed {
                result: progress.result.clone().unwrap_or_default(),
            },
            State::Refused => Standing::Refused {
                refusal: Refusal::new("provider_refused", format!("{provider}: {reason}")),
            },
            State::Conflict => Standing::Refused {
                refusal: Refusal::new("provider_conflict", format!("{provider}: {reason}")),
            },
            State::NotSent => Standing::Failed {
                message: format!(
                    "nothing stands at {provider}: {}; {reason}",
                    because(progress.why)
                ),
            },
            State::Pending
            | State::Sending
            | State::Unclear
            | State::Resending
            | State::Unknown => Standing::Unknown {
                inspect: self.inspect(letter),
            },
        }
    }

    fn inspect(&self, letter: &Letter) -> String {
        let why = because(letter.progress.why);
        let look = match self.provider(&letter.intent.provider) {
            Some(provider) => provider.inspect(&letter.reference),
            None => String::new(),
        };
        format!("{look} The request may have been applied; {why}.")
    }
}

fn because(why: Option<Why>) -> &'static str {
    match why {
        Some(Why::KeyTooOld) => "the provider may have forgotten its key since",
        Some(Why::TooOld) => "it got too old to be sent",
        Some(Why::TooOften) => "it was tried as often as is allowed",
        Some(Why::Denied) => "the provider refused a later attempt",
        Some(Why::NoWayToTell) => "the provider neither knows keys nor can be asked",
        Some(Why::ToldToWait) => "the provider asks to wait for longer than it may be sent",
        None => "nobody knows more",
    }
}
