//! Repeats that are taken back from a session that ended before any of them was written.

use super::{Rig, big, call, eras, millis, secs, within_an_hour};
use mcp_supervisor::{
    CallError, ConnectionSpec, Outcome, ToolContract, What,
    error::Unsettled,
    policy::{Backoff, Repeats},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

fn two_at_most(spec: ConnectionSpec) -> ConnectionSpec {
    let backoff = Backoff {
        base: millis(0),
        cap: millis(0),
    };
    spec.contract("peek", ToolContract::ReadOnly)
        .repeats(Repeats {
            max_attempts: 2,
            backoff,
        })
}

#[tokio::test(start_paused = true)]
async fn a_repeat_that_its_session_took_along_unsent_counts_among_the_attempts() {
    within_an_hour(async {
        for era in eras() {
            let mut rig = Rig::new(era, two_at_most).await;
            let connection = rig.connection.share();
            let compares = Notify::new();
            let calls = async {
                tokio::join!(connection.call_tool(call("peek")), async {
                    compares.notified().await;
                    connection.call_tool(big("half")).await
                })
            };
            let serving = async {
                let mut first = rig.near.session().await;
                first.greet().await;
                let list = first.next_request().await;
                first.answer(&list).await;
                assert_eq!(first.next_request().await["params"]["name"], "peek");
                drop(first);
                let mut second = rig.near.session().await;
                second.greet().await;
                let list = second.next_request().await;
                assert_eq!(list["method"], "tools/list");
                // Half of a call is in the pipe before the repeat is behind it.
                compares.notify_one();
                sleep(secs(1)).await;
                second.answer(&list).await;
                sleep(secs(1)).await;
                drop(second);
                let third = async {
                    let mut third = rig.near.session().await;
                    third.greet().await;
                    third.next_request().await
                };
                let asked = timeout(secs(5), third).await;
                assert!(asked.is_err(), "{asked:?}");
            };
            let ((peek, half), ()) = tokio::join!(calls, serving);
            assert_eq!(half.unwrap_err().outcome(), Outcome::Unknown);
            let error = peek.unwrap_err();
            let CallError::Unknown(unknown) = &error else {
                panic!("{error}")
            };
            assert_eq!(unknown.unsettled, Some(Unsettled::Spent));
            assert_eq!(unknown.about.attempts, 2);
            let told = rig.told().await;
            let numbers = told.iter().filter_map(|what| match what {
                What::AttemptStarted {
                    operation, number, ..
                } => (*operation == error.about().operation).then_some(*number),
                _ => None,
            });
            assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
        }
    })
    .await;
}
