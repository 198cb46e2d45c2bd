//! A journal that stops at a named point, so that a test can kill its host exactly there.

use std::{future::pending, time::SystemTime};

use mcp_supervisor::{
    journal::{
        Accepted, By, Claimed, Fact, Filter, Held, Intent, Record, SqliteStore, State, Store,
        Stored, Swept,
    },
    operation::{AttemptId, OperationId},
};
use serde::Deserialize;
use serde_json::json;

/// Where the journal stops. Before: nothing of the write is done. After: it is durable, and whoever
/// asked for it does not hear of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Point {
    BeforeIntent,
    AfterIntent,
    /// An attempt that is recorded by itself, since its operation had to wait for a place.
    BeforeDispatching,
    AfterDispatching,
    BeforeRecord,
    AfterRecord,
}

/// A store that stops.
pub(super) struct Stopping {
    at: Point,
    kept: SqliteStore,
}

impl Stopping {
    pub(super) fn at(at: Point, kept: SqliteStore) -> Self {
        Self { at, kept }
    }

    /// Stops here for good, if this is the point. Whatever else the host does goes on.
    async fn pass(&self, point: Option<Point>) {
        if point == Some(self.at) {
            super::tell(&json!({"event": "stopped"}));
            pending::<()>().await;
        }
    }
}

/// The points before and after this write.
fn around(fact: &Fact) -> (Option<Point>, Option<Point>) {
    match fact {
        Fact::Dispatching { .. } => (
            Some(Point::BeforeDispatching),
            Some(Point::AfterDispatching),
        ),
        Fact::Answered { .. } => (Some(Point::BeforeRecord), Some(Point::AfterRecord)),
        _ => (None, None),
    }
}

impl Store for Stopping {
    fn accept(&self, intent: Intent, first: Option<AttemptId>) -> Stored<'_, Accepted> {
        Box::pin(async move {
            self.pass(Some(Point::BeforeIntent)).await;
            let accepted = self.kept.accept(intent, first).await?;
            self.pass(Some(Point::AfterIntent)).await;
            Ok(accepted)
        })
    }

    fn append<'a>(&'a self, held: &'a Held, fact: Fact) -> Stored<'a, State> {
        Box::pin(async move {
            let (before, after) = around(&fact);
            self.pass(before).await;
            let state = self.kept.append(held, fact).await?;
            self.pass(after).await;
            Ok(state)
        })
    }

    fn find<'a>(&'a self, by: By<'a>) -> Stored<'a, Option<Record>> {
        self.kept.find(by)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> Stored<'a, Vec<Record>> {
        self.kept.list(filter)
    }

    fn claim(&self, operation: OperationId) -> Stored<'_, Claimed> {
        self.kept.claim(operation)
    }

    fn release<'a>(&'a self, held: &'a Held) -> Stored<'a, ()> {
        self.kept.release(held)
    }

    fn sweep(
        &self,
        answers: SystemTime,
        tombstones: SystemTime,
        at_most: usize,
    ) -> Stored<'_, Swept> {
        self.kept.sweep(answers, tombstones, at_most)
    }

    fn close(&self) -> Stored<'_, ()> {
        self.kept.close()
    }

    fn is_shared(&self) -> bool {
        self.kept.is_shared()
    }
}
