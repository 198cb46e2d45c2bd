//! Exchanges that go on when rmcp was told that nobody waits: there a cancel is a notification, and the
//! answer may come all the same.

use std::{future::Future, sync::Arc};

use rmcp::{
    model::RequestId,
    transport::streamable_http_client::{StreamableHttpError, StreamableHttpPostResponse},
};
use tokio::sync::oneshot;

use super::{Failure, HttpError};
use crate::transport::Pulse;

/// Posts in a task of its own. Where whoever waits for it goes away, the task goes on if somebody
/// expects the answer all the same, and until the session ends.
pub(super) async fn lasting(
    pulse: Arc<Pulse>,
    id: RequestId,
    posting: impl Future<Output = Result<StreamableHttpPostResponse, Failure>> + Send + 'static,
) -> Result<StreamableHttpPostResponse, Failure> {
    let (mut tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let calls = &pulse.calls;
        let mut posting = std::pin::pin!(posting);
        let answer = tokio::select! {
            biased;
            answer = &mut posting => answer,
            // It is expected, if it is, before rmcp hears of the cancel.
            () = tell.closed() => {
                if !calls.expects(&id) {
                    return;
                }
                tokio::select! {
                    biased;
                    answer = &mut posting => answer,
                    () = pulse.ended() => return,
                }
            }
        };
        match tell.send(answer) {
            Ok(()) => {}
            Err(Ok(StreamableHttpPostResponse::Json(message, _))) => {
                // Only an answer is given to the exchange.
                let _ = calls.hear_late(&id, message);
            }
            // The stream reads on by itself when it is dropped.
            Err(Ok(StreamableHttpPostResponse::Sse(stream, _))) => drop(stream),
            // It may come by the standing stream.
            Err(Ok(_)) => {}
            Err(Err(_)) => calls.expect_no_more(&id),
        }
    });
    let over = || Err(StreamableHttpError::Client(HttpError::SessionOver));
    told.await.unwrap_or_else(|_| over())
}
