//! Which results a request can have.

use rmcp::model::{ServerResult, TaskPayload};

use crate::operation::OperationKind;

/// Whether a result asks for input.
pub(super) fn asks(result: &ServerResult) -> bool {
    match result {
        ServerResult::InputRequiredResult(_) => true,
        ServerResult::GetTaskResult(state) => {
            matches!(state.task.payload, TaskPayload::InputRequired { .. })
        }
        _ => false,
    }
}

/// Whether a result is one that the request can have.
pub(super) fn fits(kind: OperationKind, result: &ServerResult) -> bool {
    use OperationKind as K;
    use ServerResult as R;
    match kind {
        K::ToolCall => matches!(
            result,
            R::CallToolResult(_)
                | R::InputRequiredResult(_)
                | R::CreateTaskResult(_)
                | R::EmptyResult(_)
        ),
        K::ListTools => matches!(result, R::ListToolsResult(_)),
        K::ListPrompts => matches!(result, R::ListPromptsResult(_)),
        K::GetPrompt => matches!(result, R::GetPromptResult(_) | R::InputRequiredResult(_)),
        K::ListResources => matches!(result, R::ListResourcesResult(_)),
        K::ReadResource => {
            matches!(result, R::ReadResourceResult(_) | R::InputRequiredResult(_))
        }
        K::ListResourceTemplates => matches!(result, R::ListResourceTemplatesResult(_)),
        K::Complete => matches!(result, R::CompleteResult(_)),
        K::ListSkills => matches!(result, R::ListSkillsResult(_)),
        K::GetSkill => matches!(result, R::GetSkillResult(_)),
        K::ReadResourceDirectory => matches!(result, R::ListResourcesResult(_)),
        K::GetTask => matches!(result, R::GetTaskResult(_)),
        K::UpdateTask | K::CancelTask => {
            matches!(
                result,
                R::TaskAckResult(_) | R::EmptyResult(_) | R::CustomResult(_)
            )
        }
        // What they mean is in no result.
        K::Ping | K::SetLogLevel | K::Custom | K::Notification => true,
    }
}
