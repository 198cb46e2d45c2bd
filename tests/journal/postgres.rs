//! The store in PostgreSQL, where `POSTGRES_URL` names a server.

use std::{sync::Arc, time::Duration};

use mcp_supervisor::journal::{PostgresSettings, PostgresStore, Store};

use crate::{
    place::{Place, Soon},
    support::postgres::Schema,
};

struct Postgres(Schema);

impl Place for Postgres {
    fn open(&self) -> Soon<Arc<dyn Store>> {
        let mut settings = PostgresSettings::default();
        settings.schema = self.0.name.clone();
        // A loaded machine is no dead host and no dead server.
        settings.lease = Duration::from_secs(120);
        settings.within = Duration::from_secs(30);
        let url = self.0.url.clone();
        Box::pin(async move {
            let store = PostgresStore::connect_url(&url, settings).await;
            Arc::new(store.expect("it connects")) as Arc<dyn Store>
        })
    }

    fn lasts(&self) -> bool {
        true
    }

    /// Each read or write is a round trip to another process.
    fn histories(&self) -> u64 {
        200
    }
}

pub(crate) fn place() -> Soon<Option<Arc<dyn Place>>> {
    Box::pin(async { Some(Arc::new(Postgres(Schema::new()?)) as Arc<dyn Place>) })
}
