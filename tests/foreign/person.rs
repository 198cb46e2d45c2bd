//! The user's handler: the person who fills in forms, and the model that says something.
#![allow(deprecated, reason = "sampling is still spoken")]

use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, CreateMessageRequestParams, CreateMessageResult,
        ElicitRequestParams, ElicitResult, Implementation,
    },
    service::RequestContext,
};
use serde_json::json;

use crate::rows::{COLOUR, SAID};

#[derive(Clone)]
pub struct Person;

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let offered = json!({"elicitation": {"form": {}}, "sampling": {}});
        let capabilities: ClientCapabilities = serde_json::from_value(offered).unwrap();
        ClientConfig::new(capabilities, Implementation::new("foreign", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        // Each server has a name of its own for the one field that is demanded.
        let asked = json!(request);
        let demanded = asked["requestedSchema"]["required"][0].as_str();
        let field = demanded.expect("a form has a field that is demanded");
        let answer = json!({"action": "accept", "content": {field: COLOUR}});
        Ok(serde_json::from_value(answer).unwrap())
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let said = json!({"role": "assistant", "model": "none", "stopReason": "endTurn",
            "content": {"type": "text", "text": SAID}});
        Ok(serde_json::from_value(said).unwrap())
    }
}
