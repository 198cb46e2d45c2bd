//! The store in PostgreSQL, where `POSTGRES_URL` names a server.

use std::sync::Arc;

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
        let url = self.0.url.clone();
        Box::pin(async move {
            let store = PostgresStore::connect_url(&url, settings).await;
            Arc::new(store.expect("it connects")) as Arc<dyn Store>
        })
    }

    fn lasts(&self) -> bool {
        true
    }
}

pub(crate) fn place() -> Soon<Option<Arc<dyn Place>>> {
    Box::pin(async { Some(Arc::new(Postgres(Schema::new()?)) as Arc<dyn Place>) })
}
