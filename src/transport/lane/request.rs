//! A request on the lane, as it goes onto the wire.
//!
//! rmcp writes a request by way of a copy of its parameters as a tree, in order to merge two places for
//! `_meta`. For a tool call, which is most of what there is, the same JSON is written from what is there.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequest, ClientJsonRpcMessage, ClientRequest, GetMeta as _, ProgressToken, RequestId,
    RequestMetaObject,
};
use serde::{
    Serialize,
    ser::{SerializeMap as _, Serializer},
};

/// What each request of a session says in its `_meta`, whatever is asked.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// In the place of what the request says.
    pub(crate) always: RequestMetaObject,
}

/// A request and what goes along with it.
pub(crate) struct OnLane {
    pub(crate) request: Arc<ClientRequest>,
    pub(crate) said: Arc<Said>,
    /// Where the request does not say it itself.
    pub(crate) unless_said: Option<Arc<RequestMetaObject>>,
    pub(crate) number: i64,
    pub(crate) token: ProgressToken,
}

impl OnLane {
    /// Writes the request as one frame, without its end.
    pub(in crate::transport) fn write(&self, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
        match &*self.request {
            ClientRequest::CallToolRequest(request) if request.params.meta.is_none() => {
                self.write_call(request, bytes)
            }
            request => serde_json::to_writer(bytes, &self.whole(request.clone())),
        }
    }

    fn write_call(&self, request: &CallToolRequest, bytes: &mut Vec<u8>) -> serde_json::Result<()> {
        let params = &request.params;
        let own = request.extensions.get::<RequestMetaObject>();
        put(bytes, r#"{"jsonrpc":"2.0","id":"#, &self.number)?;
        let meta = Meta { on: self, own };
        put(bytes, r#","method":"tools/call","params":{"_meta":"#, &meta)?;
        put(bytes, r#","name":"#, &params.name)?;
        if let Some(arguments) = &params.arguments {
            put(bytes, r#","arguments":"#, arguments)?;
        }
        if let Some(responses) = &params.input_responses {
            put(bytes, r#","inputResponses":"#, responses)?;
        }
        if let Some(state) = &params.request_state {
            put(bytes, r#","requestState":"#, state)?;
        }
        bytes.extend_from_slice(b"}}");
        Ok(())
    }

    /// The request as rmcp would have it.
    fn whole(&self, mut request: ClientRequest) -> ClientJsonRpcMessage {
        let meta = request.get_meta_mut();
        if let Some(more) = &self.unless_said {
            for (key, value) in &more.0.0 {
                if !meta.contains_key(key) {
                    meta.insert(key.clone(), value.clone());
                }
            }
        }
        meta.extend(self.said.always.clone());
        meta.set_progress_token(self.token.clone());
        ClientJsonRpcMessage::request(request, RequestId::Number(self.number))
    }
}

/// Puts a value behind what comes before it, which is JSON already.
fn put(bytes: &mut Vec<u8>, before: &str, value: &impl Serialize) -> serde_json::Result<()> {
    bytes.extend_from_slice(before.as_bytes());
    serde_json::to_writer(bytes, value)
}

/// What a tool call says in its `_meta`.
struct Meta<'a> {
    on: &'a OnLane,
    own: Option<&'a RequestMetaObject>,
}

impl Serialize for Meta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const TOKEN: &str = "progressToken";
        let Self { on, own } = *self;
        let always = &on.said.always.0.0;
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in own.into_iter().flat_map(|own| &own.0.0) {
            if key != TOKEN && !always.contains_key(key) {
                map.serialize_entry(key, value)?;
            }
        }
        for (key, value) in on.unless_said.iter().flat_map(|more| &more.0.0) {
            if !own.is_some_and(|own| own.0.0.contains_key(key)) {
                map.serialize_entry(key, value)?;
            }
        }
        for (key, value) in always {
            map.serialize_entry(key, value)?;
        }
        map.serialize_entry(TOKEN, &on.token)?;
        map.end()
    }
}

#[cfg(test)]
#[expect(deprecated, reason = "a log level is what the older revisions have")]
mod tests {
    use rmcp::model::{
        CallToolRequestParams, ClientCapabilities, Implementation, LoggingLevel, MetaObject,
        ProtocolVersion,
    };
    use serde_json::{Value, json};

    use super::*;

    fn meta(value: Value) -> RequestMetaObject {
        RequestMetaObject(MetaObject(value.as_object().cloned().unwrap_or_default()))
    }

    fn json_of(on: &OnLane) -> (Value, Value) {
        let mut bytes = Vec::new();
        on.write(&mut bytes).unwrap();
        let ours = serde_json::from_slice(&bytes).unwrap();
        let whole = on.whole(ClientRequest::clone(&on.request));
        (ours, serde_json::to_value(whole).unwrap())
    }

    #[test]
    fn a_tool_call_is_written_as_rmcp_writes_it() {
        let arguments = json!({"customer": "c-42", "cents": 1999, "deep": {"a": [1, 2.5, null]}});
        let mut params = Vec::new();
        for arguments in [None, Some(arguments)] {
            let mut plain = CallToolRequestParams::new("charge");
            plain.arguments = arguments.and_then(|a| a.as_object().cloned());
            let mut asked = plain.clone();
            asked.request_state = Some("state \"1\"".into());
            asked.input_responses =
                serde_json::from_value(json!({"k": {"action": "accept", "content": {"a": 1}}}))
                    .ok();
            let mut in_params = plain.clone();
            in_params.meta = Some(meta(json!({"in": "params"})));
            params.extend([plain, asked, in_params]);
        }
        let mut said = Said::default();
        said.always
            .set_protocol_version(ProtocolVersion::V_2026_07_28);
        said.always
            .set_client_info(Implementation::new("host", "1"));
        said.always
            .set_client_capabilities(ClientCapabilities::default());
        let saids = [Arc::new(Said::default()), Arc::new(said)];
        let mut level = RequestMetaObject::default();
        level.set_log_level(LoggingLevel::Warning);
        let mut own = meta(json!({"traceparent": "00-1-2-03", "progressToken": "theirs"}));
        own.set_protocol_version(ProtocolVersion::V_2025_06_18);
        let mut with_level = own.clone();
        with_level.set_log_level(LoggingLevel::Debug);
        let mut tried = 0;
        for params in &params {
            for said in &saids {
                for unless_said in [None, Some(Arc::new(level.clone()))] {
                    for own in [None, Some(&own), Some(&with_level)] {
                        let mut request = CallToolRequest::new(params.clone());
                        if let Some(own) = own {
                            request.extensions.insert(own.clone());
                        }
                        let on = OnLane {
                            request: Arc::new(request.into()),
                            said: Arc::clone(said),
                            unless_said: unless_said.clone(),
                            number: 7,
                            token: ProgressToken(RequestId::Number(9)),
                        };
                        let (ours, rmcps) = json_of(&on);
                        assert_eq!(ours, rmcps);
                        tried += 1;
                    }
                }
            }
        }
        assert_eq!(tried, 72);
    }
}
