//! Where the stores under test come from.

use std::{future::Future, pin::Pin, sync::Arc};

use mcp_supervisor::journal::Store;

pub(crate) type Soon<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A place for one store, empty at first. It is tidied up when it is dropped.
pub(crate) trait Place: Send + Sync + 'static {
    /// The store in this place. Asked again after the one before was closed: the same store opened
    /// anew.
    fn open(&self) -> Soon<Arc<dyn Store>>;

    /// Whether what was written is still there when the place is opened anew.
    fn lasts(&self) -> bool;

    /// How many random histories it is asked within the tests' outer deadline: about 26 reads and
    /// writes each.
    fn histories(&self) -> u64 {
        1000
    }
}

/// A new place; `None` where there can be none here, with the reason on stderr.
pub(crate) type NewPlace = fn() -> Soon<Option<Arc<dyn Place>>>;

/// Runs one case in a place of its own, within the tests' outer deadline.
pub(crate) async fn case<F>(new: NewPlace, body: impl FnOnce(Arc<dyn Place>) -> F)
where
    F: Future<Output = ()>,
{
    crate::support::bounded(async {
        if let Some(place) = new().await {
            body(place).await;
        }
    })
    .await;
}

/// A module of tests: every case of the suite, on the store of one kind of place.
macro_rules! conforms {
    ($store:ident, $place:path) => {
        mod $store {
            use crate::place::cases;
            cases! { $place =>
                an_intent_is_kept_as_it_was_given,
                an_operation_is_found_by_its_id_instead_of_accepted_again,
                an_operation_is_found_by_its_key_instead_of_accepted_again,
                one_key_on_two_connections_is_two_keys,
                a_key_is_free_again_when_its_operation_did_not_run,
                every_cell_of_the_table_is_kept_to,
                a_refused_append_changes_nothing,
                a_refused_repeat_leaves_the_outcome_unknown,
                every_fact_comes_back_as_it_was_given,
                a_list_is_filtered_and_goes_on_where_it_stopped,
                a_claim_is_one_at_a_time_until_it_is_released,
                what_runs_or_is_settled_or_missing_cannot_be_claimed,
                whoever_had_it_before_a_claim_is_fenced_out,
                a_sweep_forgets_what_was_said_and_still_refuses_the_key,
                a_sweep_removes_tombstones_and_what_freed_its_key,
                a_sweep_never_takes_what_is_not_settled,
                a_sweep_keeps_to_its_bound,
                random_histories_agree_with_the_pure_fold,
                of_many_that_come_with_one_key_one_is_new,
                a_dropped_future_leaves_the_store_usable,
                a_closed_store_says_so,
                what_was_written_is_there_after_opening_anew,
            }
        }
    };
}
pub(crate) use conforms;

macro_rules! cases {
    ($place:path => $($case:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            crate::place::case($place, crate::conformance::$case).await;
        }
    )*};
}
pub(crate) use cases;
