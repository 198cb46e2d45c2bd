//! Reading a server's lists whole, once for all who wait, and again when the server says that one
//! changed.
//!
//! A reading is a task of its own: it goes on when those who asked for it have gone, and ends with
//! the connection or by its deadline. It takes no place among the operations, because there is at
//! most one for each list.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use rmcp::model::{
    ClientRequest, GetExtensions as _, ListPromptsRequest, ListResourceTemplatesRequest,
    ListResourcesRequest, ListSkillsRequest, ListToolsRequest, Prompt, Resource, ResourceTemplate,
    ServerResult, Skill, Tool,
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Caller, at_cursor, rounds::Rounds};
use crate::{
    catalog::{AsOf, Begun, Difference, Ended, Entry, List, Now, Pages, Stale, Whole},
    connection::Line,
    error::{CallError, ListError, NotSentReason},
    event::What,
    operation::{Budget, Generation, ListKind, OperationKind, Turn},
    session::IfDeclared,
    subscription::Changed,
};

/// A burst of changes is over when this much time has passed without another one.
const QUIET: Duration = Duration::from_millis(100);
/// A burst that does not end is read once in this much time.
const BURST: Duration = Duration::from_secs(1);
/// No hint is believed for longer.
const LONGEST_HINT: Duration = Duration::from_secs(24 * 3600);
/// A name in an event is cut here.
const NAME_CHARS: usize = 128;

/// How entries of one kind are asked for.
pub(crate) trait Listed: Entry {
    const OPERATION: OperationKind;
    fn request(cursor: Option<String>) -> ClientRequest;
    fn page(result: ServerResult) -> Option<Page<Self>>;
}

/// One page as the server sent it.
pub(crate) struct Page<T> {
    entries: Vec<T>,
    cursor: Option<String>,
    ttl_ms: Option<u64>,
}

impl<T> Page<T> {
    fn empty() -> Self {
        Self {
            entries: Vec::new(),
            cursor: None,
            ttl_ms: None,
        }
    }
}

macro_rules! listed {
    ($entry:ident, $request:ident, $result:ident, $entries:ident, $kind:ident) => {
        impl Listed for $entry {
            const OPERATION: OperationKind = OperationKind::$kind;
            fn request(cursor: Option<String>) -> ClientRequest {
                $request::with_param(at_cursor(cursor)).into()
            }
            fn page(result: ServerResult) -> Option<Page<Self>> {
                match result {
                    ServerResult::$result(page) => Some(Page {
                        entries: page.$entries,
                        cursor: page.next_cursor,
                        ttl_ms: page.ttl_ms,
                    }),
                    _ => None,
                }
            }
        }
    };
}
listed!(Tool, ListToolsRequest, ListToolsResult, tools, ListTools);
listed!(
    Prompt,
    ListPromptsRequest,
    ListPromptsResult,
    prompts,
    ListPrompts
);
listed!(
    Resource,
    ListResourcesRequest,
    ListResourcesResult,
    resources,
    ListResources
);
listed!(
    ResourceTemplate,
    ListResourceTemplatesRequest,
    ListResourceTemplatesResult,
    resource_templates,
    ListResourceTemplates
);
listed!(
    Skill,
    ListSkillsRequest,
    ListSkillsResult,
    skills,
    ListSkills
);

/// The last complete list, with what speaks against it. Never waits.
pub(crate) fn known<T: Listed>(line: &Line) -> Option<List<T>> {
    let now = Now {
        time: Instant::now(),
        live: line.live(),
        as_of: told(line, T::KIND),
    };
    T::shelf(&line.lists).look(&now)
}

/// The list as it is now, or where it cannot be read the last one. `anew`: what was read before this
/// was asked does not do.
pub(crate) async fn list<T: Listed>(line: &Arc<Line>, anew: bool) -> Result<List<T>, ListError> {
    let fresh = |list: &List<T>| list.stale().is_none();
    if !anew && let Some(list) = known(line).filter(fresh) {
        return Ok(list);
    }
    let shelf = T::shelf(&line.lists);
    // What was under way already may be older than the question, so it may take a second one.
    for second in [false, true] {
        let begun = begin::<T>(line, None);
        shelf.over(begun.number()).await;
        match shelf.outcome() {
            Ended::Failed(why) => return known(line).ok_or(why),
            Ended::Published => {
                let from_the_start = second || matches!(begun, Begun::New(_));
                if (from_the_start || !anew)
                    && let Some(list) = known(line).map(List::just_read).filter(fresh)
                {
                    return Ok(list);
                }
            }
            Ended::Abandoned => {}
        }
    }
    known(line).ok_or(ListError::GivenUp { kind: T::KIND })
}

/// Reads the list anew, and says what changed to the one before.
pub(crate) async fn refresh<T: Listed>(line: &Arc<Line>) -> Result<Difference, ListError> {
    let before = known::<T>(line);
    let after = list::<T>(line, true).await?;
    match after.stale() {
        Some(Stale::ReadFailed(why)) => Err(why.clone()),
        _ => Ok(Difference::between(
            before.as_deref().unwrap_or(&[]),
            &after,
        )),
    }
}

/// How many changes of a list the server has told of.
fn told(line: &Line, kind: ListKind) -> AsOf {
    AsOf(line.notices.changes(kind).borrow().times)
}

/// Joins the reading that is under way, or starts one; of this one session only, if it is given.
fn begin<T: Listed>(line: &Arc<Line>, only_in: Option<Generation>) -> Begun {
    let begun = T::shelf(&line.lists).begin();
    if let Begun::New(_) = begun {
        attend(line);
        let reading = Reading::<T> {
            line: Arc::clone(line),
            result: None,
        };
        tokio::spawn(reading.run(only_in));
    }
    begun
}

/// A reading under way. However it goes, it is over when this is dropped.
struct Reading<T: Listed> {
    line: Arc<Line>,
    result: Option<Result<Whole<T>, Ended>>,
}

impl<T: Listed> Reading<T> {
    async fn run(mut self, only_in: Option<Generation>) {
        self.result = Some(read(&self.line, only_in).await);
    }
}

impl<T: Listed> Drop for Reading<T> {
    fn drop(&mut self) {
        let given_up = || Err(Ended::Failed(ListError::GivenUp { kind: T::KIND }));
        let result = self.result.take().unwrap_or_else(given_up);
        let generation = result.as_ref().ok().map(|whole| whole.generation);
        if let Err(Ended::Failed(why)) = &result {
            self.line.tell(What::CatalogKept {
                list: T::KIND,
                why: why.to_string(),
            });
        }
        let difference = T::shelf(&self.line.lists).end(result);
        if let (Some(difference), Some(generation)) = (difference, generation)
            && !difference.is_empty()
        {
            self.line.tell(changed(T::KIND, generation, difference));
        }
    }
}

async fn read<T: Listed>(line: &Arc<Line>, only_in: Option<Generation>) -> Result<Whole<T>, Ended> {
    let until = Instant::now() + line.settings.limits.total;
    let first = read_once(line, only_in, until).await;
    let why = match first {
        Ok(whole) => return Ok(whole),
        // What was read of it is of no use on another session. Like any read it may be asked once
        // more there, from the start.
        Err(ListError::GenerationChanged { .. }) if only_in.is_none() => {
            match read_once(line, None, until).await {
                Ok(whole) => return Ok(whole),
                Err(why) => why,
            }
        }
        Err(why) => why,
    };
    match (only_in, &why) {
        // Also where it is suspect, and takes nothing more.
        (Some(_), ListError::GenerationChanged { .. }) => Err(Ended::Abandoned),
        (Some(only), _) if line.live() != Some(only) => Err(Ended::Abandoned),
        _ => Err(Ended::Failed(why)),
    }
}

async fn read_once<T: Listed>(
    line: &Arc<Line>,
    only_in: Option<Generation>,
    until: Instant,
) -> Result<Whole<T>, ListError> {
    let kind = T::KIND;
    // Before the first page: a change that is told of while the pages come makes the list stale.
    let as_of = told(line, kind);
    let limits = &line.settings.limits;
    let mut pages = Pages::new(kind, limits.max_pages, limits.max_answer_bytes);
    let mut cursor = None;
    let mut fresh_until = None;
    let mut only_in = only_in;
    loop {
        let page = pages.page();
        let session = pages.generation();
        let answer = ask::<T>(line, cursor.take(), session.or(only_in), until).await;
        let (read, generation) = match answer {
            Ok(answer) => answer,
            Err(error) if page == 1 && has_none(kind, &error) => {
                match error.about().generation.or(only_in) {
                    Some(generation) => (Page::empty(), generation),
                    // It is so on some session. Whether on this one, is asked of this one.
                    None if line.live().is_some() => {
                        only_in = line.live();
                        continue;
                    }
                    None => return Err(ListError::PageFailed { kind, page, error }),
                }
            }
            Err(error) if misplaced(&error) || (session.is_some() && session != line.live()) => {
                return Err(ListError::GenerationChanged { kind, page });
            }
            Err(error) => return Err(ListError::PageFailed { kind, page, error }),
        };
        if let Some(ttl) = read.ttl_ms {
            let until = Instant::now() + Duration::from_millis(ttl).min(LONGEST_HINT);
            fresh_until = Some(fresh_until.map_or(until, |other| until.min(other)));
        }
        match pages.take(generation, read.entries, read.cursor)? {
            Turn::Next(next) => cursor = Some(next),
            Turn::Complete => {
                return Ok(Whole {
                    entries: pages.into_entries(),
                    generation,
                    read_at: Instant::now(),
                    fresh_until,
                    as_of,
                });
            }
        }
    }
}

/// Whether the one session that a page may be of takes nothing more. Nobody can cancel a reading, so
/// this alone is told as a cancellation.
fn misplaced(error: &CallError) -> bool {
    matches!(error, CallError::NotSent(e) if matches!(e.reason, NotSentReason::Cancelled))
}

/// Whether this is no failure: the server has no such list.
fn has_none(kind: ListKind, error: &CallError) -> bool {
    const METHOD_NOT_FOUND: i64 = -32601;
    match error {
        CallError::NotSent(e) => matches!(e.reason, NotSentReason::NotDeclared { .. }),
        // They have no capability of their own: a server of resources may have none of them.
        error if kind == ListKind::ResourceTemplates => error
            .server_error()
            .is_some_and(|e| e.code == METHOD_NOT_FOUND),
        _ => false,
    }
}

/// Asks for one page, of this one session if it is given.
async fn ask<T: Listed>(
    line: &Arc<Line>,
    cursor: Option<String>,
    only_in: Option<Generation>,
    until: Instant,
) -> Result<(Page<T>, Generation), CallError> {
    let caller = Caller {
        line,
        journal: None,
        admitted: true,
        rounds: Rounds::Callers,
    };
    let left = until.saturating_duration_since(Instant::now());
    let budget = Budget {
        // Zero would be a mistake of the caller's; this is only late.
        total: Some(left.max(Duration::from_millis(1))),
        ..Budget::default()
    };
    let mut request = T::request(cursor);
    request.extensions_mut().insert(IfDeclared);
    caller
        .page_of(T::OPERATION, request, &budget, only_in, T::page)
        .await
}

fn changed(list: ListKind, generation: Generation, difference: Difference) -> What {
    let mut unnamed = 0;
    let mut some = |names: Vec<String>| {
        unnamed += names.len().saturating_sub(What::MOST_NAMES);
        let first = names.into_iter().take(What::MOST_NAMES);
        first
            .map(|name| name.chars().take(NAME_CHARS).collect())
            .collect()
    };
    What::CatalogChanged {
        generation,
        list,
        added: some(difference.added),
        removed: some(difference.removed),
        changed: some(difference.changed),
        unnamed,
    }
}

type Told = watch::Receiver<Changed>;

/// Sees to it that changes are followed, from the first reading on.
fn attend(line: &Arc<Line>) {
    if line.attended.swap(true, Ordering::Relaxed) {
        return;
    }
    let of = |kind| line.notices.changes(kind);
    line.notices
        .keep_fresh(&[ListKind::Tools, ListKind::Prompts, ListKind::Resources]);
    let told = [
        of(ListKind::Tools),
        of(ListKind::Prompts),
        of(ListKind::Resources),
    ];
    tokio::spawn(follow(Arc::downgrade(line), line.closing.clone(), told));
}

/// Reads again what the server says has changed: once for a burst, and only what was read before.
///
/// It never starts a session. What is stale because its session is over is read when it is used.
async fn follow(line: Weak<Line>, closing: CancellationToken, mut told: [Told; 3]) {
    loop {
        let first = next(&mut told);
        tokio::select! {
            biased;
            () = closing.cancelled() => return,
            gone = first => if gone { return },
        }
        let latest = Instant::now() + BURST;
        loop {
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                () = tokio::time::sleep_until(latest) => break,
                gone = next(&mut told) => if gone { return },
                () = tokio::time::sleep(QUIET) => break,
            }
        }
        let Some(line) = line.upgrade() else { return };
        tokio::join!(
            again::<Tool>(&line),
            again::<Prompt>(&line),
            again::<Resource>(&line),
            again::<ResourceTemplate>(&line),
            again::<Skill>(&line),
        );
    }
}

/// Waits until a change is told of. `true`: none ever will be.
async fn next([tools, prompts, resources]: &mut [Told; 3]) -> bool {
    let changed = tokio::select! {
        changed = tools.changed() => changed,
        changed = prompts.changed() => changed,
        changed = resources.changed() => changed,
    };
    changed.is_err()
}

async fn again<T: Listed>(line: &Arc<Line>) {
    let Some(live) = line.live() else { return };
    let to_read = known::<T>(line).is_some_and(|list| {
        let stale = list.stale();
        matches!(stale, Some(Stale::Changed | Stale::ReadFailed(_)))
    });
    if to_read {
        let begun = begin::<T>(line, Some(live));
        T::shelf(&line.lists).over(begun.number()).await;
    }
}
