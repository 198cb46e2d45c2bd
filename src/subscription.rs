//! What a server tells unasked: which of its lists and resources changed. Who wants to know says so
//! once, for all sessions of a connection.
//!
//! A [`Subscription`] is what is wanted, and the [`Updates`] are what came of it. Revisions before
//! 2026-07-28 subscribe to each resource by a request of its own and tell of lists unasked; in
//! 2026-07-28 both take a standing request. Here it is the same.

mod queue;

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rmcp::model::{RequestId, SubscriptionFilter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    credentials::Challenge,
    evidence::ServerError,
    operation::{ConnectionName, Generation, ListKind},
};
use queue::Queue;

/// What to be told about.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Subscription {
    lists: BTreeSet<ListKind>,
    resources: BTreeSet<String>,
}

impl Subscription {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Also changes of this list. What a server says of its resources holds for their templates too;
    /// of its skills no server says anything.
    #[must_use]
    pub fn list(mut self, list: ListKind) -> Self {
        self.lists.insert(told_with(list));
        self
    }

    /// Also changes of the resource at this URI.
    #[must_use]
    pub fn resource(mut self, uri: impl Into<String>) -> Self {
        self.resources.insert(uri.into());
        self
    }

    /// Also changes of the resources at these URIs.
    #[must_use]
    pub fn resources<U: Into<String>>(mut self, uris: impl IntoIterator<Item = U>) -> Self {
        self.resources.extend(uris.into_iter().map(Into::into));
        self
    }

    /// Whether it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty() && self.resources.is_empty()
    }

    /// Whether changes of this list are in it.
    #[must_use]
    pub fn has_list(&self, list: ListKind) -> bool {
        self.lists.contains(&told_with(list))
    }

    /// Whether changes of the resource at this URI are in it.
    #[must_use]
    pub fn has_resource(&self, uri: &str) -> bool {
        self.resources.contains(uri)
    }

    /// The URIs of the resources in it, in order.
    pub fn uris(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(String::as_str)
    }

    /// The lists in it, in order.
    pub fn lists(&self) -> impl Iterator<Item = ListKind> + '_ {
        self.lists.iter().copied()
    }

    /// Without the lists that `keep` does not keep.
    pub(crate) fn lists_where(&self, keep: impl Fn(ListKind) -> bool) -> Self {
        let lists = self.lists.iter().copied().filter(|list| keep(*list));
        Self {
            lists: lists.collect(),
            resources: self.resources.clone(),
        }
    }

    pub(crate) fn only_lists(&self) -> Self {
        Self {
            lists: self.lists.clone(),
            resources: BTreeSet::new(),
        }
    }

    pub(crate) fn only_resource(uri: &str) -> Self {
        Self::new().resource(uri)
    }

    /// As the filter of a `subscriptions/listen`.
    pub(crate) fn to_filter(&self) -> SubscriptionFilter {
        let mut filter = SubscriptionFilter::new();
        let wants = |list| self.has_list(list).then_some(true);
        filter.tools_list_changed = wants(ListKind::Tools);
        filter.prompts_list_changed = wants(ListKind::Prompts);
        filter.resources_list_changed = wants(ListKind::Resources);
        if !self.resources.is_empty() {
            filter.resource_subscriptions = Some(self.resources.iter().cloned().collect());
        }
        filter
    }

    /// The part of it that a server acknowledged.
    pub(crate) fn acknowledged(&self, by: &SubscriptionFilter) -> Self {
        let acknowledged = self.to_filter().intersection(by);
        let lists = [
            (ListKind::Tools, acknowledged.tools_list_changed),
            (ListKind::Prompts, acknowledged.prompts_list_changed),
            (ListKind::Resources, acknowledged.resources_list_changed),
        ];
        let lists = lists.into_iter().filter(|(_, yes)| *yes == Some(true));
        let uris = acknowledged.resource_subscriptions.unwrap_or_default();
        Self {
            lists: lists.map(|(list, _)| list).collect(),
            resources: uris.into_iter().collect(),
        }
    }

    fn wants(&self, told: &Told<'_>) -> bool {
        match told {
            Told::List(list) => self.has_list(*list),
            Told::Resource(uri) => self.has_resource(uri),
        }
    }
}

/// The list with which a server tells of changes of this one.
fn told_with(list: ListKind) -> ListKind {
    match list {
        ListKind::ResourceTemplates => ListKind::Resources,
        list => list,
    }
}

impl fmt::Debug for Subscription {
    /// Shows no URI: they may hold credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("lists", &self.lists)
            .field("resources", &self.resources.len())
            .finish()
    }
}

/// What comes of a subscription.
///
/// Two changes of the same thing that nobody has read yet are told once.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// From here on changes are told, until a [`Gap`](Self::Gap).
    Subscribed {
        /// The session on which they are.
        generation: Generation,
        /// What is told: what was asked for, or a part of it.
        accepted: Subscription,
        /// Whether there was a gap before. What changed in it was not told: read it anew.
        renewed: bool,
    },
    /// A list changed.
    List(ListKind),
    /// A resource changed.
    Resource(String),
    /// From here on changes may be missed, until the next [`Subscribed`](Self::Subscribed).
    Gap {
        /// The session on which they were told.
        generation: Generation,
        /// Why.
        why: GapCause,
    },
    /// This session does not tell about this part. It is asked for again on the next session.
    Refused {
        /// The session.
        generation: Generation,
        /// Which part.
        what: Subscription,
        /// Why.
        why: Refusal,
    },
    /// The reader was too slow, and missed this many changes: read anew what was subscribed to.
    Missed(u64),
}

/// Why changes are not told any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GapCause {
    /// The session is over, or takes nothing new. The next one that an operation starts subscribes
    /// anew.
    SessionOver,
    /// The server ended it in good order. It is asked for again on the same session.
    Ended,
    /// The stream broke off, or was answered by an error. It is asked for again on the same session.
    BrokeOff,
    /// The server cancelled it. It is not asked for again on this session.
    Cancelled,
}

/// Why a server does not tell about something.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// It has not declared that it can, so it was not asked.
    NotDeclared,
    /// It answered with an error.
    Error(ServerError),
    /// Its endpoint refused it with an HTTP status, as one does that wants other credentials.
    Http {
        /// The status.
        status: u16,
        /// What a 401 or 403 asks for, where it says so.
        challenge: Option<Challenge>,
        /// The server's error that came with it, if one did.
        error: Option<ServerError>,
    },
    /// It acknowledged the request, without this part.
    NotAccepted,
    /// It did not answer within the connection's total limit, or not as the protocol says.
    NoAnswer,
}

/// A subscription that could not be made. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// It asks for nothing.
    #[error("the subscription asks for nothing; name a list or a resource")]
    Empty,
    /// What a lent connection's server tells goes to the caller's own handler.
    #[error(
        "connection {connection:?} is caller-owned: what its server tells goes to the handler that its owner gave it; subscribe there"
    )]
    CallerOwned {
        /// The connection.
        connection: ConnectionName,
    },
    /// The connection is closed.
    #[error("connection {connection:?} is closed; open another one")]
    Closed {
        /// The connection.
        connection: ConnectionName,
    },
}

/// What came of a subscription, to be read. It outlives the connection's sessions.
///
/// It is bounded: what is not read is dropped, the oldest first, and told as
/// [`Missed`](Update::Missed). Dropping it unsubscribes, in the background and without waiting.
pub struct Updates {
    subscriber: Arc<Subscriber>,
    notices: Arc<Notices>,
    closing: CancellationToken,
}

impl Updates {
    pub(crate) fn new(
        notices: &Arc<Notices>,
        wanted: Subscription,
        closing: CancellationToken,
    ) -> Self {
        Self {
            subscriber: notices.add(wanted, false),
            notices: Arc::clone(notices),
            closing,
        }
    }

    /// The next update, or `None` once the connection is closed and everything was read.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn next(&mut self) -> Option<Update> {
        tokio::select! {
            biased;
            update = self.subscriber.queue.next() => Some(update),
            () = self.closing.cancelled() => None,
        }
    }
}

impl fmt::Debug for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates")
            .field("wanted", &self.subscriber.wanted)
            .finish_non_exhaustive()
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        self.notices.remove(&self.subscriber);
    }
}

/// Who wants to know.
pub(crate) struct Subscriber {
    pub(crate) wanted: Subscription,
    /// Nobody reads it: it keeps a list fresh.
    pub(crate) for_lists: bool,
    pub(crate) gone: CancellationToken,
    pub(crate) queue: Queue,
}

/// The longest URI that is told of without having been asked for, so that a server cannot fill the
/// memory with updates that wait for their reader.
const LONGEST_URI: usize = 8 * 1024;

/// What a server tells about.
pub(crate) enum Told<'a> {
    List(ListKind),
    Resource(&'a str),
}

/// What one connection's server told, over all its sessions, and who wants to know.
pub(crate) struct Notices {
    changed: [watch::Sender<Changed>; ListKind::COUNT],
    /// The newest session on which a page of a list came; 0 for none.
    came: [AtomicU64; ListKind::COUNT],
    subscribers: Mutex<Vec<Arc<Subscriber>>>,
    /// Counts the changes of `subscribers`.
    version: watch::Sender<u64>,
    routes: Mutex<Routes>,
}

/// How often the server said that a list changed, or may have, and on which session it did so last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) generation: Option<Generation>,
    pub(crate) times: u64,
}

/// Which standing request is whose.
#[derive(Default)]
pub(crate) struct Routes(HashMap<(Generation, RequestId), Arc<Subscriber>>);

impl Routes {
    pub(crate) fn add(&mut self, generation: Generation, id: RequestId, to: &Arc<Subscriber>) {
        self.0.insert((generation, id), Arc::clone(to));
    }
}

impl Notices {
    pub(crate) fn new() -> Self {
        Self {
            changed: std::array::from_fn(|_| watch::Sender::new(Changed::default())),
            came: Default::default(),
            subscribers: Mutex::default(),
            version: watch::Sender::new(0),
            routes: Mutex::default(),
        }
    }

    /// The changes of a list, from now on. What is seen is the newest; bursts are one.
    pub(crate) fn changes(&self, list: ListKind) -> watch::Receiver<Changed> {
        self.changed[told_with(list) as usize].subscribe()
    }

    pub(crate) fn list_changed(&self, generation: Generation, list: ListKind) {
        self.changed[told_with(list) as usize].send_modify(|changed| {
            changed.generation = Some(generation);
            changed.times += 1;
        });
    }

    /// A page of a list came from the server.
    pub(crate) fn list_came(&self, generation: Generation, list: ListKind) {
        self.came[told_with(list) as usize].fetch_max(generation.number(), Ordering::Relaxed);
    }

    /// From now on, and on each session to come, has the server tell of changes of these lists where
    /// it says that it can and must be asked to. A list that came on a session before the server told of changes there counts as
    /// changed when it begins to.
    pub(crate) fn keep_fresh(&self, lists: &[ListKind]) {
        let lists = lists.iter().copied();
        self.add(lists.fold(Subscription::new(), Subscription::list), true);
    }

    fn subscribers(&self) -> MutexGuard<'_, Vec<Arc<Subscriber>>> {
        self.subscribers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, wanted: Subscription, for_lists: bool) -> Arc<Subscriber> {
        let subscriber = Arc::new(Subscriber {
            wanted,
            for_lists,
            gone: CancellationToken::new(),
            queue: match for_lists {
                true => Queue::unheard(),
                false => Queue::new(),
            },
        });
        self.subscribers().push(Arc::clone(&subscriber));
        self.version.send_modify(|version| *version += 1);
        subscriber
    }

    fn remove(&self, subscriber: &Arc<Subscriber>) {
        self.subscribers().retain(|s| !Arc::ptr_eq(s, subscriber));
        // Whoever holds its standing request gives that up.
        subscriber.gone.cancel();
    }

    /// Everybody who wants to know, now; and what changes when there is somebody new.
    pub(crate) fn all(&self) -> Vec<Arc<Subscriber>> {
        self.subscribers().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Gives up a resource unless somebody else wants it. Nobody can begin to want it meanwhile.
    pub(crate) fn give_up(&self, uri: &str, give_up: impl FnOnce()) {
        let subscribers = self.subscribers();
        if !subscribers.iter().any(|s| s.wanted.has_resource(uri)) {
            give_up();
        }
    }

    /// Which standing request is whose. While it is held, nothing that the server tells is routed.
    pub(crate) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, generation: Generation, id: &RequestId) {
        self.routes().0.remove(&(generation, id.clone()));
    }

    fn route(&self, generation: Generation, id: &RequestId) -> Option<Arc<Subscriber>> {
        self.routes().0.get(&(generation, id.clone())).cloned()
    }

    /// The server told about a change, in answer to a standing request or unasked.
    pub(crate) fn told(&self, generation: Generation, id: Option<&RequestId>, told: &Told<'_>) {
        let update = || match told {
            Told::List(list) => Update::List(*list),
            Told::Resource(uri) => Update::Resource((*uri).to_owned()),
        };
        if let Told::List(list) = told {
            self.list_changed(generation, *list);
        }
        if let Some(subscriber) = id.and_then(|id| self.route(generation, id)) {
            // It may be a part of what was asked for. What cannot be is not kept.
            let is_sane = |told: &Told<'_>| match told {
                Told::List(_) => true,
                Told::Resource(uri) => uri.len() <= LONGEST_URI,
            };
            if subscriber.wanted.wants(told) || is_sane(told) {
                subscriber.queue.push(update());
            }
            return;
        }
        for subscriber in self.all() {
            if !subscriber.for_lists && subscriber.wanted.wants(told) {
                subscriber.queue.push(update());
            }
        }
    }

    /// The server acknowledged a part of a standing request.
    pub(crate) fn acknowledged(
        &self,
        generation: Generation,
        id: Option<&RequestId>,
        part: &SubscriptionFilter,
    ) {
        if let Some(subscriber) = id.and_then(|id| self.route(generation, id)) {
            let accepted = subscriber.wanted.acknowledged(part);
            self.in_force(&subscriber, generation, accepted);
        }
    }

    /// A subscription is in force on a session.
    pub(crate) fn in_force(
        &self,
        subscriber: &Subscriber,
        generation: Generation,
        accepted: Subscription,
    ) {
        if accepted.is_empty() {
            let what = subscriber.wanted.clone();
            subscriber
                .queue
                .refused(generation, what, Refusal::NotAccepted);
            return;
        }
        let lists: Vec<_> = accepted.lists().collect();
        subscriber.queue.subscribed(generation, accepted);
        if subscriber.for_lists {
            for list in lists {
                // What changed between the list and this was not told.
                let came = self.came[list as usize].load(Ordering::Relaxed);
                if came == generation.number() {
                    self.list_changed(generation, list);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_server_tells_in_answer_to_a_standing_request_fills_no_memory() {
        let notices = Notices::new();
        let mut read = Updates::new(
            &Arc::new(Notices::new()),
            Subscription::new().resource("a:1"),
            CancellationToken::new(),
        );
        notices.keep_fresh(&[ListKind::Tools]);
        let lists = notices.all().remove(0);
        let asked = &read.subscriber;
        let (one, two) = (RequestId::Number(1), RequestId::Number(2));
        notices.routes().add(Generation(1), one.clone(), &lists);
        notices.routes().add(Generation(1), two.clone(), asked);
        let long = format!("a:1/{}", "x".repeat(LONGEST_URI));
        for id in [&one, &two] {
            for uri in [&*long, "a:1", "a:1/part"] {
                notices.told(Generation(1), Some(id), &Told::Resource(uri));
            }
        }
        assert!(lists.queue.is_empty(), "nobody reads it");
        for uri in ["a:1", "a:1/part"] {
            assert_eq!(read.next().await, Some(Update::Resource(uri.into())));
        }
        assert!(read.subscriber.queue.is_empty());
    }

    #[test]
    fn debug_output_of_a_subscription_holds_no_uri() {
        let subscription = Subscription::new().resource("https://user:secret@host/x");
        assert!(!format!("{subscription:?}").contains("secret"));
    }

    #[test]
    fn what_a_server_acknowledges_beyond_what_was_asked_is_not_accepted() {
        let asked = Subscription::new().list(ListKind::Tools).resource("a:1");
        let more = Subscription::new()
            .list(ListKind::Tools)
            .list(ListKind::Prompts)
            .resource("a:1")
            .resource("a:2");
        assert_eq!(asked.acknowledged(&more.to_filter()), asked);
        let less = Subscription::new().resource("a:1");
        assert_eq!(asked.acknowledged(&less.to_filter()), less);
    }
}
