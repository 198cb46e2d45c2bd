//! Answers that come after their caller has given up.

use std::sync::Arc;

use rmcp::{
    ServiceError,
    model::{ErrorData, RequestId, ServerResult},
};
use tokio::sync::oneshot;

use super::{Answer, Pending, Way};
use crate::{
    evidence::DispatchCell,
    operation::Generation,
    transport::{
        Pulse,
        lane::{self, Lane},
        read,
    },
};

/// What is left of a wait that was given up: the answer may still come, until the session ends.
///
/// On what is lent only an answer that was on its way already is heard: what comes later goes to the
/// caller's own client service, which drops it.
pub(crate) struct Late {
    pub(crate) pulse: Arc<Pulse>,
    id: RequestId,
    /// The way that the request went, if not through rmcp: the answer comes by it as ever.
    lane: Option<Arc<Lane>>,
    /// Where the answer may be as it came.
    cell: Arc<DispatchCell>,
    /// What rmcp had in hand before it heard that nobody waits.
    in_hand: Option<Way>,
    /// What our own transport hears after that.
    heard: Option<oneshot::Receiver<Result<ServerResult, ErrorData>>>,
}

impl Pending {
    /// Gives up as the drop does, and keeps an ear open where that is wanted.
    pub(crate) fn give_up(mut self) -> Option<Late> {
        if !self.late {
            return None;
        }
        let in_hand = match std::mem::replace(&mut self.answer, Answer::Come(None)) {
            Answer::Plain(way) => Some(way),
            // An answer that is there is never given up, and of the other one nothing is left.
            Answer::Come(_) | Answer::WithIdleLimit(_) => None,
        };
        let heard = (self.witnessed && self.lane.is_none()).then(|| {
            let (tell, heard) = oneshot::channel();
            self.pulse.calls.expect_late(&self.id, tell);
            heard
        });
        Some(Late {
            pulse: Arc::clone(&self.pulse),
            id: self.id.clone(),
            lane: self.lane.clone(),
            cell: Arc::clone(&self.cell),
            in_hand,
            heard,
        })
    }
}

impl Late {
    /// The session that was asked.
    pub(crate) fn generation(&self) -> Generation {
        self.pulse.generation
    }

    /// Waits for the answer. `None`: its session ended, or nothing can be heard any more.
    pub(crate) async fn answer(&mut self) -> Option<Result<ServerResult, ErrorData>> {
        loop {
            let pulse = Arc::clone(&self.pulse);
            tokio::select! {
                biased;
                heard = or_never(&mut self.heard) => {
                    self.heard = None;
                    if let Ok(answer) = heard {
                        return Some(answer);
                    }
                }
                answer = in_hand(&mut self.in_hand) => {
                    self.in_hand = None;
                    match answer {
                        Ok(result) => {
                            let whole = self.cell.kept().map(|raw| read(&raw).into());
                            return Some(Ok(whole.unwrap_or(*result)));
                        }
                        Err(ServiceError::McpError(error)) => return Some(Err(error)),
                        // rmcp has heard that nobody waits.
                        Err(_) => {}
                    }
                }
                () = pulse.ended() => return None,
            }
            if self.heard.is_none() && self.in_hand.is_none() {
                return None;
            }
        }
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        match &self.lane {
            Some(lane) => lane.forget(&self.id),
            None => self.pulse.calls.expect_no_more(&self.id),
        }
    }
}

async fn in_hand(way: &mut Option<Way>) -> lane::Answer {
    match way {
        Some(way) => way.answer().await,
        None => std::future::pending().await,
    }
}

async fn or_never<T>(
    rx: &mut Option<oneshot::Receiver<T>>,
) -> Result<T, oneshot::error::RecvError> {
    match rx {
        Some(rx) => rx.await,
        None => std::future::pending().await,
    }
}
