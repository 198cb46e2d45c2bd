//! What rmcp's session worker asks of the client.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ::http::{HeaderName, HeaderValue};
use futures::stream::BoxStream;
use rmcp::{
    model::ClientJsonRpcMessage,
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use sse_stream::Sse;

use super::{
    Failure, HttpClient, HttpError, answer,
    exchange::Exchange,
    late::lasting,
    reading::{as_json, not_known},
};
use crate::evidence::{Loss, WireReport};

/// How long the server may take to confirm the end of a session.
const DELETE_LIMIT: Duration = Duration::from_secs(2);

impl StreamableHttpClient for HttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let exchange = Exchange::of(&message, false, true);
        if !exchange.is_handshake || self.tokens.is_none() {
            return self
                .post_within(
                    exchange,
                    uri,
                    message,
                    session_id,
                    auth_header,
                    custom_headers,
                )
                .await;
        }
        // The wait for a token is not the server's: had here, it is there for the post.
        if let Err(fault) = self.token(None).await {
            return Err(match fault {
                Some(fault) => self.broken(&exchange, WireReport::default(), fault),
                None => StreamableHttpError::Client(HttpError::SessionOver),
            });
        }
        let posting = |message| {
            let (exchange, uri) = (Exchange::of(&message, false, true), Arc::clone(&uri));
            let (session_id, headers) = (session_id.clone(), custom_headers.clone());
            self.post_within(
                exchange,
                uri,
                message,
                session_id,
                auth_header.clone(),
                headers,
            )
        };
        // The head of a streamed answer says nothing yet.
        self.handshake.begin_exchange();
        let answer = posting(message.clone()).await;
        match self.renewed_after_the_handshake().await {
            true => posting(message).await,
            false => answer,
        }
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
        _: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        // The connection's own limits hold, whatever rmcp's are.
        self.post_message(uri, message, session_id, auth_header, custom_headers)
            .await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        if matches!(self.pulse.loss(), Some(Loss::Terminated { .. })) {
            // The server has said that it does not know the session; its id is not used again.
            return Ok(());
        }
        let at_hand = self.tokens.as_ref().and_then(|tokens| tokens.0.at_hand());
        let auth_header = at_hand.map(|t| t.secret().to_owned()).or(auth_header);
        let request = self
            .request(
                self.http.delete(uri.as_ref()),
                "*/*",
                Some(&session_id),
                auth_header,
                custom_headers,
            )
            .send();
        // Whatever the server says, or does not say, the session is over.
        let _ = tokio::time::timeout(DELETE_LIMIT, request).await;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let response = self
            .open_stream(
                &uri,
                session_id.as_ref(),
                last_event_id.as_deref(),
                auth_header,
                custom_headers,
            )
            .await;
        self.handshake.standing.cancel();
        Ok(answer::standing(
            response?,
            Arc::clone(&self.pulse),
            self.max_answer_bytes,
        ))
    }
}

impl HttpClient {
    /// Posts, and takes the silence of a server that may be too old for its answer.
    async fn post_within(
        &self,
        exchange: Exchange,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let may_fall_back = exchange.may_fall_back;
        if exchange.outlives
            && let Some(id) = exchange.request
        {
            let (client, pulse) = (self.clone(), Arc::clone(&self.pulse));
            let posting = async move { client.post(uri, message, session_id, auth, headers).await };
            return lasting(pulse, id, posting).await;
        }
        let posting = self.post(uri, message, session_id, auth, headers);
        match (self.discover_limit, exchange.request) {
            (Some(limit), Some(id)) if may_fall_back => {
                let answering = async { as_json(posting.await?).await };
                match tokio::time::timeout(limit, answering).await {
                    Ok(answer) => answer,
                    Err(_) => Ok(not_known(id)),
                }
            }
            _ => posting.await,
        }
    }
}
