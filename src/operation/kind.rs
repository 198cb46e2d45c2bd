//! What sort of question an operation asks, and whose connection it asks it on.

use std::fmt;

/// Who built a connection's transport, and so who may close it and build another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// The runtime built it from a spec or a factory.
    Framework,
    /// The caller built a client service and lends it.
    LentService,
    /// The caller lends a bare peer of a client service that it keeps.
    LentPeer,
}

impl Ownership {
    /// Whether the caller owns the connection.
    #[must_use]
    pub fn is_lent(self) -> bool {
        !matches!(self, Self::Framework)
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Framework => "framework-owned",
            Self::LentService => "caller-owned (client service)",
            Self::LentPeer => "caller-owned (peer)",
        })
    }
}

/// What sort of question an operation asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OperationKind {
    /// `tools/call`: may have an effect, is sent at most once unless a contract says otherwise.
    ToolCall,
    /// `tools/list`.
    ListTools,
    /// `prompts/list`.
    ListPrompts,
    /// `prompts/get`.
    GetPrompt,
    /// `resources/list`.
    ListResources,
    /// `resources/read`.
    ReadResource,
    /// `ping`, which the revisions before 2026-07-28 have.
    Ping,
    /// A request of the caller's own; treated like a tool call, because nobody here knows better.
    Custom,
    /// `resources/templates/list`.
    ListResourceTemplates,
    /// `completion/complete`.
    Complete,
    /// `logging/setLevel`, which the revisions before 2026-07-28 have.
    SetLogLevel,
    /// `skills/list`.
    ListSkills,
    /// `skills/get`.
    GetSkill,
    /// `resources/directory/read`.
    ReadResourceDirectory,
    /// `tasks/get`.
    GetTask,
    /// `tasks/update`: gives a task the input that it asked for.
    UpdateTask,
    /// `tasks/cancel`.
    CancelTask,
    /// A notification of the caller's own.
    Notification,
}

impl OperationKind {
    /// Whether the protocol itself defines the request as one that changes nothing.
    ///
    /// Such a read may be asked once more on a fresh session after its session was lost.
    #[must_use]
    pub fn is_read(self) -> bool {
        !matches!(
            self,
            Self::ToolCall
                | Self::Custom
                | Self::SetLogLevel
                | Self::UpdateTask
                | Self::CancelTask
                | Self::Notification
        )
    }

    /// The method as the protocol names it; `custom` for the caller's own.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::ToolCall => "tools/call",
            Self::ListTools => "tools/list",
            Self::ListPrompts => "prompts/list",
            Self::GetPrompt => "prompts/get",
            Self::ListResources => "resources/list",
            Self::ReadResource => "resources/read",
            Self::Ping => "ping",
            Self::Custom => "custom",
            Self::ListResourceTemplates => "resources/templates/list",
            Self::Complete => "completion/complete",
            Self::SetLogLevel => "logging/setLevel",
            Self::ListSkills => "skills/list",
            Self::GetSkill => "skills/get",
            Self::ReadResourceDirectory => "resources/directory/read",
            Self::GetTask => "tasks/get",
            Self::UpdateTask => "tasks/update",
            Self::CancelTask => "tasks/cancel",
            Self::Notification => "notification",
        }
    }
}

/// One of the lists that a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ListKind {
    /// Its tools.
    Tools,
    /// Its prompts.
    Prompts,
    /// Its resources.
    Resources,
    /// The templates of its resources.
    ResourceTemplates,
    /// Its skills. No server tells of changes of this list.
    Skills,
}

impl ListKind {
    /// How many there are.
    pub(crate) const COUNT: usize = 5;

    /// The list as a word for a label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::ResourceTemplates => "resource_templates",
            Self::Skills => "skills",
        }
    }
}

impl fmt::Display for ListKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tools => "the list of tools",
            Self::Prompts => "the list of prompts",
            Self::Resources => "the list of resources",
            Self::ResourceTemplates => "the list of resource templates",
            Self::Skills => "the list of skills",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_nothing_by_definition_is_a_read() {
        use OperationKind as K;
        for kind in [
            K::ListTools,
            K::GetPrompt,
            K::Complete,
            K::GetSkill,
            K::GetTask,
            K::Ping,
        ] {
            assert!(kind.is_read(), "{kind:?}");
        }
        for kind in [
            K::ToolCall,
            K::Custom,
            K::SetLogLevel,
            K::UpdateTask,
            K::CancelTask,
            K::Notification,
        ] {
            assert!(!kind.is_read(), "{kind:?}");
        }
    }
}
