//! The word of a host that it lives. The database's clock decides when it was last heard; the host
//! itself counts from before it spoke, by its own monotonic clock, and so gives up first.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use super::{
    database::Database,
    doubt::{self, Doubts},
    settings::PostgresSettings,
    sql::Sql,
    take_over,
};
use crate::journal::StoreError;

/// A name under which a host speaks, and until when it is believed to. Each name lives once.
#[derive(Clone, Debug)]
pub(super) struct Tenure {
    pub(super) host: Arc<str>,
    until: Instant,
}

impl Tenure {
    /// Whether it lasts for `margin` and longer.
    pub(super) fn lasts(&self, margin: Duration) -> bool {
        self.until > Instant::now() + margin
    }
}

/// The host's tenure, as those that write see it.
pub(super) struct Lease {
    now: watch::Sender<Option<Tenure>>,
    asked: Arc<Notify>,
    margin: Duration,
}

impl Lease {
    pub(super) fn new(margin: Duration) -> Self {
        Self {
            now: watch::Sender::new(None),
            asked: Arc::new(Notify::new()),
            margin,
        }
    }

    /// The tenure, as soon as it has the margin left.
    pub(super) async fn tenure(&self) -> Result<Tenure, StoreError> {
        let mut seen = self.now.subscribe();
        loop {
            let now = seen.borrow_and_update().clone();
            if let Some(tenure) = now.filter(|tenure| tenure.lasts(self.margin)) {
                return Ok(tenure);
            }
            self.asked.notify_one();
            seen.changed().await.map_err(|_| StoreError::Closed)?;
        }
    }

    /// The database does not know this tenure any more.
    pub(super) fn lost(&self, tenure: &Tenure) {
        let forget = |now: &mut Option<Tenure>| {
            let same = now.as_ref().is_some_and(|now| now.host == tenure.host);
            if same {
                *now = None;
            }
            same
        };
        self.now.send_if_modified(forget);
        self.asked.notify_one();
    }

    pub(super) fn current(&self) -> Option<Tenure> {
        self.now.borrow().clone()
    }
}

/// Speaks for the host until it is dropped, and looks after what dead hosts left.
pub(super) async fn keep(
    lease: Arc<Lease>,
    database: Database,
    sql: Arc<Sql>,
    doubts: Doubts,
    settings: PostgresSettings,
) {
    let often = settings.lease / 3;
    loop {
        let spoke = speak(&lease, &database, &sql, &settings).await;
        if spoke.is_ok() {
            doubt::settle(&doubts, &database, &sql, &settings).await;
            // What cannot be taken over now is found again in the next round, or by who looks for it.
            let _ = database.bounded(take_over::all(&database, &sql)).await;
        }
        let pause = match spoke {
            Ok(()) => often,
            Err(_) => often / 10,
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = lease.asked.notified() => {}
        }
    }
}

/// Renews the lease; where it ran out, takes another name.
pub(super) async fn speak(
    lease: &Lease,
    database: &Database,
    sql: &Sql,
    settings: &PostgresSettings,
) -> Result<(), StoreError> {
    let for_seconds = settings.lease.as_secs_f64();
    let now = lease.current();
    if let Some(Tenure { host, .. }) = now {
        let before = Instant::now();
        let renewed = database
            .bounded(database.ask(&sql.renew, &[&&*host, &for_seconds]))
            .await?;
        if !renewed.is_empty() {
            let until = before + settings.lease;
            lease.now.send_replace(Some(Tenure { host, until }));
            return Ok(());
        }
    }
    let host: Arc<str> = match settings.label.as_str() {
        "" => Uuid::now_v7().to_string(),
        label => format!("{label} {}", Uuid::now_v7()),
    }
    .into();
    let before = Instant::now();
    database
        .bounded(database.ask(&sql.register, &[&&*host, &for_seconds]))
        .await?;
    let until = before + settings.lease;
    lease.now.send_replace(Some(Tenure { host, until }));
    Ok(())
}
