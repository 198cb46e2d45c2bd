//! Leases and fencing, within one process: the test ends a lease in the database, as if its time were
//! over.

use std::sync::Arc;

use mcp_supervisor::{
    OperationId,
    journal::{Accepted, Claimed, Fact, PostgresStore, State, Store, StoreError},
    operation::AttemptId,
};

use crate::{
    support::{bounded, postgres::Schema},
    written::{answered, dispatch, happened, intent, new, show, store, yes},
};

/// Ends a host's lease in the database.
async fn end_lease(schema: &Schema, store: &PostgresStore) {
    let host = store.host().expect("it has a name");
    let sql = format!(
        "UPDATE {}.hosts SET lease_until = clock_timestamp() - interval '1 s' WHERE host = $1",
        schema.name
    );
    let changed = schema.client().await.execute(&sql, &[&host]).await;
    assert_eq!(changed.expect("it can be written"), 1);
}

#[tokio::test]
async fn a_host_whose_lease_ran_out_is_fenced_out_of_all_it_had() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let host = store(&schema).await;
        let before = host.host().unwrap();
        let sent = dispatch(&host, "order-1").await;
        let waiting = intent(OperationId::mint(), "order-2");
        let waiting = new(host.accept(waiting, None).await);
        end_lease(&schema, &host).await;

        let attempt = AttemptId::mint();
        let refused = host.append(&waiting, Fact::Dispatching { attempt }).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
        // New work goes on, under another name; the old work stays out of reach.
        let fresh = dispatch(&host, "order-3").await;
        assert_ne!(host.host().unwrap(), before);
        let refused = host.append(&sent, answered()).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");

        let record = show(&host, sent.operation).await;
        assert_eq!(record.state, State::OutcomeUnknown);
        assert_eq!(happened(&record), ["dispatching", "abandoned"]);
        let Some(Fact::Abandoned { host: whose }) = record.last().map(|entry| &entry.fact) else {
            panic!("{record:?}");
        };
        assert_eq!(*whose, before);
        let record = show(&host, waiting.operation).await;
        assert_eq!(record.state, State::NotSent);
        let settled = host.append(&fresh, answered()).await;
        assert_eq!(settled.unwrap(), State::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn a_dispatch_is_conditional_on_the_lease_in_the_database() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (host, other) = (store(&schema).await, store(&schema).await);
        for round in 0..5 {
            end_lease(&schema, &host).await;
            let name = host.host().unwrap();
            // By its own clock the host has most of its lease left.
            let held = dispatch(&host, &format!("order-{round}")).await;
            let record = show(&other, held.operation).await;
            let owner = record.owner.expect("it has one").host;
            assert_ne!(owner, name, "written under a lease that had run out");
            assert_eq!(record.state, State::Dispatching);
        }
    })
    .await;
}

#[tokio::test]
async fn the_operations_of_a_living_host_are_left_to_it() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (host, other) = (store(&schema).await, store(&schema).await);
        let held = dispatch(&host, "order-1").await;
        let claimed = other.claim(held.operation).await;
        assert!(matches!(claimed, Ok(Claimed::Elsewhere(_))), "{claimed:?}");
        let same_key = intent(OperationId::mint(), "order-1");
        let accepted = other.accept(same_key, Some(AttemptId::mint())).await;
        let Ok(Accepted::Found(record)) = accepted else {
            panic!("{accepted:?}");
        };
        assert_eq!(record.intent.operation, held.operation);
        assert_eq!(record.state, State::Dispatching);
        let settled = host.append(&held, answered()).await;
        assert_eq!(settled.unwrap(), State::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn what_a_dead_host_never_sent_frees_its_key_for_another_at_once() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (host, other) = (store(&schema).await, store(&schema).await);
        let waiting = intent(OperationId::mint(), "order-1");
        let waiting = new(host.accept(waiting, None).await);
        end_lease(&schema, &host).await;
        let held = dispatch(&other, "order-1").await;
        assert_ne!(held.operation, waiting.operation);
        let record = show(&other, waiting.operation).await;
        assert_eq!(record.state, State::NotSent);
    })
    .await;
}

#[tokio::test]
async fn a_claim_ends_with_the_lease_of_who_made_it() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (first, second) = (store(&schema).await, store(&schema).await);
        let third = store(&schema).await;
        let held = dispatch(&first, "order-1").await;
        end_lease(&schema, &first).await;
        let (claim, _) = yes(second.claim(held.operation).await);
        let claimed = third.claim(held.operation).await;
        assert!(matches!(claimed, Ok(Claimed::Elsewhere(_))), "{claimed:?}");

        end_lease(&schema, &second).await;
        let (resolving, record) = yes(third.claim(held.operation).await);
        assert!(resolving.fence > claim.fence && claim.fence > held.fence);
        assert_eq!(happened(&record), ["dispatching", "abandoned", "abandoned"]);
        for (host, held) in [(&first, &held), (&second, &claim)] {
            let refused = host.append(held, answered()).await;
            assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
        }
        let settled = third.append(&resolving, answered()).await;
        assert_eq!(settled.unwrap(), State::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn of_many_hosts_that_claim_one_operation_one_has_it() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let dead = store(&schema).await;
        let mut hosts = Vec::new();
        for _ in 0..4 {
            hosts.push(Arc::new(store(&schema).await));
        }
        for round in 0..5 {
            let held = dispatch(&dead, &format!("order-{round}")).await;
            end_lease(&schema, &dead).await;
            let mut claims = tokio::task::JoinSet::new();
            for host in hosts.iter().cycle().take(12) {
                let host = Arc::clone(host);
                claims.spawn(async move { host.claim(held.operation).await });
            }
            let claims = claims.join_all().await;
            let had = |claim: &&Result<_, _>| matches!(claim, Ok(Claimed::Yes(..)));
            assert_eq!(claims.iter().filter(had).count(), 1, "{claims:?}");
            let elsewhere = |claim: &&Result<_, _>| matches!(claim, Ok(Claimed::Elsewhere(_)));
            assert_eq!(claims.iter().filter(elsewhere).count(), 11, "{claims:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_host_that_closes_leaves_nothing_that_others_must_wait_for() {
    let Some(schema) = Schema::new() else { return };
    bounded(async {
        let (host, other) = (store(&schema).await, store(&schema).await);
        let held = dispatch(&host, "order-1").await;
        host.close().await.unwrap();
        let (_, record) = yes(other.claim(held.operation).await);
        assert_eq!(record.state, State::OutcomeUnknown);
    })
    .await;
}
