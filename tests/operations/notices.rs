//! What a client tells a server without being answered.

use mcp_supervisor::{CallError, CustomCall, Notice, error::NotSentReason};
use serde_json::json;

use super::requests::params;
use crate::support::{
    bounded,
    lane::{BOTH, Over, Rig, lanes, not_sent},
    until,
};

#[tokio::test]
async fn a_notification_says_which_session_took_it_and_arrives() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let rig = Rig::new(over, era, json!({"log_messages": true})).await;
            rig.echo().await;
            let notice = Notice::new("x/moved", Some(json!({"to": 7})));
            let taken = rig.connection.notify(notice).await.unwrap();
            assert_eq!(taken.generation.number(), 1);
            let roots = Notice::roots_list_changed();
            rig.connection.notify(roots).await.unwrap();
            until("both were read", || {
                !params(&rig, "notifications/roots/list_changed").is_empty()
                    && !params(&rig, "x/moved").is_empty()
            })
            .await;
            assert_eq!(params(&rig, "x/moved")[0]["to"], 7);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn on_stdio_notifications_keep_their_place_among_the_operations() {
    bounded(async {
        for (over, era) in lanes(&[Over::Stdio]) {
            let rig = Rig::new(over, era, json!({"log_messages": true})).await;
            rig.echo().await;
            for n in 0..50 {
                let request = CustomCall::new("x/echo", Some(json!({"n": n})));
                let notice = Notice::new("x/told", Some(json!({"n": n})));
                let (answered, taken) = tokio::join!(
                    rig.connection.request(request),
                    rig.connection.notify(notice)
                );
                answered.unwrap();
                taken.unwrap();
            }
            let order = || -> Vec<_> {
                let messages = rig.bed.messages().into_iter();
                messages
                    .filter(|m| m["method"] == "x/echo" || m["method"] == "x/told")
                    .map(|m| (m["params"]["n"].clone(), m["method"] == "x/told"))
                    .collect()
            };
            // The last one was taken, and may not have been read yet.
            until("all were read", || order().len() == 100).await;
            let expected: Vec<_> = (0..50)
                .flat_map(|n| [(json!(n), false), (json!(n), true)])
                .collect();
            assert_eq!(order(), expected);
            rig.finish().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_notification_starts_no_session_and_takes_no_name_of_the_runtimes() {
    bounded(async {
        for (over, era) in lanes(&BOTH) {
            let rig = Rig::new(over, era, json!({})).await;
            let told = rig.connection.notify(Notice::new("x/moved", None)).await;
            let error = told.unwrap_err();
            assert!(
                matches!(not_sent(&error), NotSentReason::NoSession),
                "{error}"
            );
            for reserved in ["notifications/cancelled", "notifications/initialized"] {
                let told = rig.connection.notify(Notice::new(reserved, None)).await;
                assert!(matches!(told, Err(CallError::NotSent(_))));
            }
            assert!(rig.bed.wire().is_empty());
            rig.finish().await;
        }
    })
    .await;
}
