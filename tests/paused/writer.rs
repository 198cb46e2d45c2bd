//! A session whose writer has failed, and that is read for a while still, for what is left in it.

use std::{sync::mpsc, thread, time::Duration};

use super::{Rig, call, eras, within_an_hour};
use mcp_supervisor::Outcome;

/// By a clock that nobody holds, because a thread that spins lets no other one go on.
const AT_LAST: Duration = Duration::from_secs(20);

/// Runs it on a thread and a runtime of its own, and fails where that is not over in time.
fn on_a_thread_of_its_own(body: impl Future<Output = ()> + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let running = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build();
        runtime
            .expect("a runtime needs nothing")
            .block_on(within_an_hour(body));
        // Whoever waits for it may have given up.
        let _ = tell.send(());
    });
    match told.recv_timeout(AT_LAST) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the thread spins"),
        // It is over, or it panicked.
        _ => running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

#[test]
fn what_is_asked_for_behind_a_writer_that_failed_goes_to_the_next_session_and_nothing_spins() {
    on_a_thread_of_its_own(async {
        for era in eras() {
            let mut rig = Rig::new(era, |spec| spec).await;
            let mut server = rig.warm().await;
            server.stop_reading();
            let connection = rig.connection.share();
            let calls = async {
                tokio::join!(
                    connection.call_tool(call("lost")),
                    connection.call_tool(call("second")),
                    connection.call_tool(call("third")),
                )
            };
            let serving = async {
                let mut next = rig.near.session().await;
                next.greet().await;
                next.answer_next("second").await;
                next.answer_next("third").await;
                next
            };
            let ((lost, second, third), _next) = tokio::join!(calls, serving);
            assert_eq!(lost.unwrap_err().outcome(), Outcome::Unknown);
            for moved in [second, third] {
                assert_eq!(moved.unwrap().generation().number(), 2);
            }
        }
    });
}
