//! What rmcp is not shown, because it logs what it is shown.
//!
//! rmcp writes each message that a server sends unasked, the greeting of a handshake, and what a
//! handler answers to its log, at `INFO` and `DEBUG`. So it gets messages without their content. The
//! content goes along in a message's typed extensions, which are never printed, and is put back
//! before the host's handler sees it. What rmcp itself acts upon stays: kinds, ids, progress tokens,
//! capabilities, `_meta`.
#![allow(
    deprecated,
    reason = "samplings and log messages are what the revisions before 2026-07-28 have"
)]

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rmcp::{
    Peer, RoleClient,
    model::{
        CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, ClientResult,
        CreateMessageRequest, CreateMessageRequestParams, CustomNotification, CustomRequest,
        DiscoverResult, ElicitRequest, ElicitRequestParams, ElicitationSchema, ErrorData,
        Extensions, GetExtensions, Implementation, InitializeResult, JsonRpcMessage,
        LoggingMessageNotification, LoggingMessageNotificationParam, MetaObject,
        ProgressNotification, ProgressNotificationParam, RequestId, ServerNotification,
        ServerPeerInfo, ServerRequest, ServerResult,
    },
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// The method of a message whose own one is withheld.
const METHOD: &str = "withheld";

/// A whole message, in the extensions of the one that rmcp sees.
#[derive(Clone)]
struct Whole<T>(Arc<T>);

/// Puts `shell` into the place of `whole`. Both have the extensions, where rmcp looks for `_meta`;
/// the whole one will get them back from the context.
fn withhold<T>(whole: &mut T, shell: T)
where
    T: GetExtensions + Clone + Send + Sync + 'static,
{
    let mut withheld = std::mem::replace(whole, shell);
    let mut extensions = std::mem::take(withheld.extensions_mut());
    extensions.insert(Whole(Arc::new(withheld)));
    *whole.extensions_mut() = extensions;
}

/// The message as the server sent it, out of the extensions that came with what rmcp saw.
pub(super) fn whole<T>(seen: T, extensions: &mut Extensions) -> T
where
    T: Clone + Send + Sync + 'static,
{
    match extensions.remove::<Whole<T>>() {
        Some(Whole(whole)) => Arc::unwrap_or_clone(whole),
        None => seen,
    }
}

/// Withholds what a notification says.
pub(super) fn withhold_notification(notification: &mut ServerNotification) {
    use ServerNotification as N;
    let shell = match notification {
        // They say nothing but their kind.
        N::ToolListChangedNotification(_)
        | N::PromptListChangedNotification(_)
        | N::ResourceListChangedNotification(_) => return,
        N::CancelledNotification(whole) => {
            let params = CancelledNotificationParam::new(whole.params.request_id.clone(), None);
            CancelledNotification::new(params).into()
        }
        N::ProgressNotification(whole) => {
            let token = whole.params.progress_token.clone();
            let params = ProgressNotificationParam::new(token, whole.params.progress);
            ProgressNotification::new(params).into()
        }
        N::LoggingMessageNotification(whole) => {
            // During a handshake rmcp takes no other kind.
            let params = LoggingMessageNotificationParam::new(whole.params.level, Value::Null);
            LoggingMessageNotification::new(params).into()
        }
        _ => CustomNotification::new(METHOD, None).into(),
    };
    withhold(notification, shell);
}

/// Withholds what a request asks.
pub(super) fn withhold_request(request: &mut ServerRequest) {
    use ServerRequest as R;
    let shell = match request {
        R::PingRequest(_) | R::ListRootsRequest(_) => return,
        R::CreateMessageRequest(_) => {
            let params = CreateMessageRequestParams::new(Vec::new(), 0);
            CreateMessageRequest::new(params).into()
        }
        R::ElicitRequest(_) => ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: String::new(),
            requested_schema: ElicitationSchema::new(Default::default()),
        })
        .into(),
        _ => CustomRequest::new(METHOD, None).into(),
    };
    withhold(request, shell);
}

/// What is withheld from rmcp for longer than one message's way through it.
#[derive(Default)]
pub(super) struct Withheld {
    greeting: Mutex<Option<Greeting>>,
    answers: Mutex<HashMap<RequestId, Answer>>,
}

/// What a server says about itself.
struct Greeting {
    instructions: Option<String>,
    meta: Option<MetaObject>,
    server_info: Option<Implementation>,
}

/// What the handler answers to a request of the server's.
struct Answer {
    answer: Result<ClientResult, ErrorData>,
    /// Cancelled when rmcp is done with the request.
    done: CancellationToken,
}

impl Withheld {
    fn greeting(&self) -> MutexGuard<'_, Option<Greeting>> {
        self.greeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<RequestId, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Withholds a server's greeting, if this is one.
    pub(super) fn withhold_greeting(&self, result: &mut ServerResult) -> bool {
        let greeting = match result {
            ServerResult::InitializeResult(result) => of_initialize(result),
            ServerResult::DiscoverResult(result) => of_discover(result),
            _ => return false,
        };
        *self.greeting() = Some(greeting);
        true
    }

    /// Puts the greeting where the handler looks for it.
    pub(super) fn show_greeting(&self, peer: &Peer<RoleClient>) {
        let mut greeting = self.greeting();
        // Within a handshake there is nowhere to put it yet.
        let Some(info) = peer.peer_info() else { return };
        if let Some(withheld) = greeting.take() {
            let mut info = ServerPeerInfo::clone(&info);
            info.instructions = withheld.instructions;
            info.meta = withheld.meta;
            info.server_info = withheld.server_info;
            peer.set_peer_info(info);
        }
    }

    /// Withholds an answer, and returns what rmcp is to take for it. An answer that nobody wants is
    /// not kept.
    pub(super) fn withhold_answer(
        &self,
        id: RequestId,
        done: CancellationToken,
        answer: Result<ClientResult, ErrorData>,
    ) -> Result<ClientResult, ErrorData> {
        if done.is_cancelled() {
            return Err(nobody_waits());
        }
        self.answers().insert(id, Answer { answer, done });
        Ok(ClientResult::empty(()))
    }

    /// The message as it goes to the server.
    pub(super) fn whole_answer(&self, message: ClientJsonRpcMessage) -> ClientJsonRpcMessage {
        let JsonRpcMessage::Response(response) = &message else {
            return message;
        };
        let withheld = self.answers().remove(&response.id);
        match withheld.map(|withheld| withheld.answer) {
            None => message,
            Some(Ok(result)) => ClientJsonRpcMessage::response(result, response.id.clone()),
            Some(Err(error)) => ClientJsonRpcMessage::error(error, Some(response.id.clone())),
        }
    }

    /// Forgets answers that rmcp does not send, because the server has taken its request back. To
    /// be called where rmcp is not about to send one.
    pub(super) fn forget_unwanted(&self) {
        self.answers()
            .retain(|_, withheld| !withheld.done.is_cancelled());
    }
}

/// The answer of a host that was told that it need not answer.
pub(super) fn nobody_waits() -> ErrorData {
    ErrorData::internal_error("nobody waits for this any more", None)
}

fn of_initialize(result: &mut InitializeResult) -> Greeting {
    let short = name_of(&result.server_info);
    Greeting {
        instructions: result.instructions.take(),
        meta: result.meta.take(),
        server_info: Some(std::mem::replace(&mut result.server_info, short)),
    }
}

fn of_discover(result: &mut DiscoverResult) -> Greeting {
    let server_info = result.server_info();
    let greeting = Greeting {
        instructions: result.instructions.take(),
        meta: result.meta.take(),
        server_info,
    };
    if let Some(server_info) = &greeting.server_info {
        result.set_server_info(name_of(server_info));
    }
    greeting
}

/// A server's name and version alone.
fn name_of(server_info: &Implementation) -> Implementation {
    Implementation::new(server_info.name.clone(), server_info.version.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(withheld: &Withheld, id: i64) -> serde_json::Value {
        let shell = ClientJsonRpcMessage::response(ClientResult::empty(()), RequestId::Number(id));
        serde_json::to_value(withheld.whole_answer(shell)).unwrap()
    }

    #[test]
    fn an_answer_is_sent_once_and_one_that_nobody_wants_is_not_kept() {
        let withheld = Withheld::default();
        let done: Vec<_> = (0..3).map(|_| CancellationToken::new()).collect();
        let put = |id, answer| {
            let done = done[id as usize].clone();
            withheld.withhold_answer(RequestId::Number(id), done, answer)
        };
        let no = || Err(ErrorData::internal_error("no", None));
        for id in 0..2 {
            put(id, no()).expect("rmcp sees no error");
        }
        done[1].cancel();
        done[2].cancel();
        put(2, no()).expect_err("the server has taken it back before");
        withheld.forget_unwanted();
        assert_eq!(sent(&withheld, 0)["error"]["message"], "no");
        for id in 0..3 {
            assert_eq!(sent(&withheld, id)["result"], serde_json::json!({}));
        }
        assert!(withheld.answers().is_empty());
    }
}
