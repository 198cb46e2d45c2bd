//! What users hold: the right to call, and the rights that come with owning.
//!
//! [`Connection`] is what every handle can do. The three handles differ in their rights, and a
//! right that a handle does not have is a method that does not compile:
//!
//! | handle | call | [`reconnect`](Handle::reconnect) | [`close`](Handle::close) | clone |
//! |---|---|---|---|---|
//! | [`OwnedConnection`] | yes | yes | yes | no |
//! | [`SharedConnection`] | yes | yes | no | yes |
//! | [`LentConnection`] | yes | no | no | yes |

mod catalog;
mod protocol;
mod resolve;

use std::{fmt, marker::PhantomData, ops::Deref, sync::Arc};

pub use catalog::Catalog;

use rmcp::model::{
    GetPromptResponse, GetPromptResult, ListPromptsResult, ListResourcesResult, ListToolsResult,
    ReadResourceResponse, ReadResourceResult, ServerPeerInfo,
};
use serde_json::Value;

use crate::{
    call::{Caller, ToolAnswer},
    connection::{ConnectionStatus, Line},
    error::{CallError, ReconnectError},
    journal::Journal,
    operation::{
        ConnectionName, CustomCall, Generation, Ownership, Page, Ping, PromptGet, ResourceRead,
        ToolCall,
    },
    subscription::{SubscribeError, Subscription, Updates},
};

/// The right to call a server, whoever owns the connection. A workflow step takes this.
///
/// It is had from any handle by a reference. Dropping the future of a call recalls the request if
/// it was not sent yet; otherwise the server is told that nobody waits for it, in the background
/// and without waiting. The outcome of a call that nobody waits for is not known.
pub struct Connection {
    line: Arc<Line>,
    journal: Option<Journal>,
}

impl Connection {
    pub(crate) fn over(line: Arc<Line>, journal: Option<Journal>) -> Self {
        Self { line, journal }
    }

    /// The same right once more.
    pub(crate) fn another(&self) -> Self {
        Self::over(Arc::clone(&self.line), self.journal.clone())
    }

    /// Whether both are of one connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.line, &other.line)
    }

    fn caller(&self) -> Caller<'_> {
        Caller::new(&self.line, self.journal.as_ref())
    }

    /// The connection's name.
    #[must_use]
    pub fn name(&self) -> &ConnectionName {
        &self.line.name
    }

    /// Who owns the connection.
    #[must_use]
    pub fn ownership(&self) -> Ownership {
        self.line.ownership
    }

    /// What the connection is doing. Never waits.
    #[must_use]
    pub fn status(&self) -> ConnectionStatus {
        self.line.status()
    }

    /// What the server of the newest session said about itself in the handshake: its name, its
    /// capabilities, its instructions for a model. `None` until a first session was negotiated.
    /// Never waits. All of it is the server's word, and none of it is in any log or event.
    #[must_use]
    pub fn server(&self) -> Option<Arc<ServerPeerInfo>> {
        self.line.server()
    }

    /// Waits until `condition` holds for the connection's status, and returns that status.
    ///
    /// # Cancel safety
    ///
    /// Nothing is sent; it can be dropped at any time.
    pub async fn status_when(
        &self,
        mut condition: impl FnMut(&ConnectionStatus) -> bool,
    ) -> ConnectionStatus {
        let mut watching = self.line.watch_status();
        match watching.wait_for(|status| condition(status)).await {
            Ok(status) => status.clone(),
            Err(_) => self.status(),
        }
    }

    /// Calls a tool. It is sent at most once, unless a contract of the client's allows more.
    ///
    /// Where the tool asks for input before it goes on, the connection's handler gives it, and the
    /// next round goes out as a request of its own, at most once, on the same session; no contract
    /// reaches into the rounds. Without a handler the question is the answer
    /// ([`ToolAnswer::input_required`]).
    ///
    /// With a journal, a call with the key of an earlier one on this connection, or with its operation id,
    /// is that call: it gets the answer that the journal kept ([`ToolAnswer::replayed`]), or waits for it,
    /// and nothing is sent. With other arguments it is refused.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known: not sent, rejected, failed, or unknown.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the answer, the tool may have run, unless the request still waited in this
    /// process, in which case it will not be sent.
    ///
    /// Where the supervisor has a [journal](crate::journal) that records the call, dropping stops the
    /// wait and nothing else: the call goes on within its deadline, no cancel is sent, and the journal
    /// has what comes. [`ToolCall::cancelled_by`] is the way to cancel it.
    pub async fn call_tool(&self, call: ToolCall) -> Result<ToolAnswer, CallError> {
        self.caller().call_tool(call).await
    }

    /// What the server has on offer, as complete lists that are kept and read again when needed.
    #[must_use]
    pub fn catalog(&self) -> Catalog {
        Catalog::of(&self.line)
    }

    /// Lists a page of the server's tools. Asked once more on a fresh session after a loss.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn list_tools(&self, page: Page) -> Result<ListToolsResult, CallError> {
        self.caller().list_tools(page).await
    }

    /// Lists a page of the server's prompts. Asked once more on a fresh session after a loss.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn list_prompts(&self, page: Page) -> Result<ListPromptsResult, CallError> {
        self.caller().list_prompts(page).await
    }

    /// Gets a prompt. Asked once more on a fresh session after a loss. Where the server asks for
    /// input first, the connection's handler gives it.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn get_prompt(&self, get: PromptGet) -> Result<GetPromptResult, CallError> {
        match self.caller().get_prompt(get).await? {
            GetPromptResponse::Complete(prompt) => Ok(prompt),
            other => unreachable!("the rounds end in a prompt or an error: {other:?}"),
        }
    }

    /// Lists a page of the server's resources. Asked once more on a fresh session after a loss.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn list_resources(&self, page: Page) -> Result<ListResourcesResult, CallError> {
        self.caller().list_resources(page).await
    }

    /// Reads a resource. Asked once more on a fresh session after a loss. Where the server asks for
    /// input first, the connection's handler gives it.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn read_resource(&self, read: ResourceRead) -> Result<ReadResourceResult, CallError> {
        match self.caller().read_resource(read).await? {
            ReadResourceResponse::Complete(resource) => Ok(resource),
            other => unreachable!("the rounds end in a resource or an error: {other:?}"),
        }
    }

    /// Subscribes to changes of lists and resources, on this session and on those to come. It
    /// starts a session if there is none; after a loss, the next operation does.
    ///
    /// Dropping the updates unsubscribes.
    ///
    /// ```no_run
    /// use mcp_supervisor::{Connection, Subscription, Update, operation::ListKind};
    ///
    /// async fn watch(files: &Connection) -> Result<(), Box<dyn std::error::Error>> {
    ///     let wanted = Subscription::new().resource("file:///etc/motd").list(ListKind::Tools);
    ///     let mut updates = files.subscribe(wanted)?;
    ///     while let Some(update) = updates.next().await {
    ///         match update {
    ///             Update::Resource(uri) => println!("read {uri} again"),
    ///             Update::Subscribed { renewed: true, .. } | Update::Missed(_) => {
    ///                 println!("read everything again");
    ///             }
    ///             other => println!("{other:?}"),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SubscribeError`]: it asks for nothing, or the connection is caller-owned or closed. What
    /// the server refuses is told among the updates.
    pub fn subscribe(&self, wanted: Subscription) -> Result<Updates, SubscribeError> {
        self.line.subscribe(wanted)
    }

    /// Pings the server, in the revisions that have a ping.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known; in 2026-07-28 a ping is not sent, because there is none.
    ///
    /// # Cancel safety
    ///
    /// It changes nothing at the server; dropped, the answer is lost.
    pub async fn ping(&self, ping: Ping) -> Result<(), CallError> {
        self.caller().ping(ping).await
    }

    /// Sends a request of the caller's own, once.
    ///
    /// # Errors
    ///
    /// [`CallError`] says what is known.
    ///
    /// # Cancel safety
    ///
    /// As for [`call_tool`](Self::call_tool): whatever the request does may have been done.
    pub async fn request(&self, call: CustomCall) -> Result<Value, CallError> {
        self.caller().custom(call).await
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("name", self.name())
            .field("ownership", &self.ownership())
            .finish_non_exhaustive()
    }
}

/// A handle with the rights `R`. See the [module](self) for the three there are.
pub struct Handle<R> {
    connection: Connection,
    rights: PhantomData<fn() -> R>,
}

/// The rights of the one who opened a framework-owned connection.
#[derive(Debug)]
pub enum Owner {}
/// The rights of those who share a framework-owned connection.
#[derive(Debug)]
pub enum Sharer {}
/// The rights over a connection that the caller owns: to use it, and nothing else.
#[derive(Debug)]
pub enum Borrower {}

/// The handle of the one who opened a framework-owned connection. There is one of it.
pub type OwnedConnection = Handle<Owner>;
/// A handle of those who share a framework-owned connection. Cheap to clone.
pub type SharedConnection = Handle<Sharer>;
/// A handle of a connection that the caller owns and lends. Cheap to clone.
pub type LentConnection = Handle<Borrower>;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Owner {}
    impl Sealed for super::Sharer {}
    impl Sealed for super::Borrower {}
}

/// The right to ask for a new session.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no right to restart the connection",
    label = "the right to restart is missing here",
    note = "a lent connection is its owner's to replace: lend the replacement as a new handle"
)]
pub trait MayReconnect: sealed::Sealed {}
impl MayReconnect for Owner {}
impl MayReconnect for Sharer {}

/// The right to close the connection for everybody.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no right to close the connection",
    label = "the right to close is missing here",
    note = "only the `OwnedConnection` that opened it, or its supervisor, closes a connection"
)]
pub trait MayClose: sealed::Sealed {}
impl MayClose for Owner {}

/// The right to be cloned.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no right to be cloned",
    label = "the right to clone is missing here",
    note = "there is one owner; `share` gives handles that can be cloned"
)]
pub trait MayClone: sealed::Sealed {}
impl MayClone for Sharer {}
impl MayClone for Borrower {}

impl<R> Handle<R> {
    pub(crate) fn new(line: Arc<Line>, journal: Option<Journal>) -> Self {
        Self {
            connection: Connection::over(line, journal),
            rights: PhantomData,
        }
    }

    /// Asks for a new session. It takes its place in the mailbox: what is in front of it goes on,
    /// what is behind it gets the new session.
    ///
    /// # Errors
    ///
    /// [`ReconnectError`], if no new session could be started.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the new session is started all the same.
    pub async fn reconnect(&self) -> Result<Generation, ReconnectError>
    where
        R: MayReconnect,
    {
        self.connection.line.reconnect().await
    }

    /// Closes the connection for everybody: what waits is refused, what is in flight is unknown,
    /// and the server's process is gone when this returns.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the connection is closed all the same, in the background.
    pub async fn close(self)
    where
        R: MayClose,
    {
        self.connection.line.close_now();
        self.connection.line.stopped().await;
    }
}

impl OwnedConnection {
    /// A handle to share with others. It can do everything but close.
    #[must_use]
    pub fn share(&self) -> SharedConnection {
        Handle::new(
            Arc::clone(&self.connection.line),
            self.connection.journal.clone(),
        )
    }
}

impl LentConnection {
    /// Takes the connection from its supervisor. Nothing is closed: it works on in the hands of
    /// the caller that owns it. Calls through any handle of it are refused from now on.
    pub fn detach(self) {
        self.connection.line.close_now();
    }
}

impl<R: MayClone> Clone for Handle<R> {
    fn clone(&self) -> Self {
        Self::new(
            Arc::clone(&self.connection.line),
            self.connection.journal.clone(),
        )
    }
}

impl<R> Deref for Handle<R> {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl<R> AsRef<Connection> for Handle<R> {
    fn as_ref(&self) -> &Connection {
        &self.connection
    }
}

impl<R> fmt::Debug for Handle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}
