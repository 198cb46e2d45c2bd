//! What else can be asked of a server: completions, skills, tasks, the level of its log; and what it
//! can be told.

use std::{fmt, time::Duration};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Budget, OperationId, ProgressStream, budget_setters, progress};

/// A `completion/complete`: how an argument that a person is typing may go on.
#[derive(Clone)]
pub struct Completion {
    pub(crate) of: Completed,
    pub(crate) argument: String,
    pub(crate) value: String,
    pub(crate) known: Vec<(String, String)>,
    pub(crate) budget: Budget,
}
budget_setters!(Completion);

/// Whose argument it is.
#[derive(Clone)]
pub(crate) enum Completed {
    Prompt(String),
    Template(String),
}

impl Completion {
    /// Of an argument of a prompt, as far as `value` goes.
    #[must_use]
    pub fn of_prompt(
        prompt: impl Into<String>,
        argument: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        Self::new(Completed::Prompt(prompt.into()), argument, value)
    }

    /// Of a variable of a resource template, named by its URI template, as far as `value` goes.
    #[must_use]
    pub fn of_resource(
        template: impl Into<String>,
        argument: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        Self::new(Completed::Template(template.into()), argument, value)
    }

    fn new(of: Completed, argument: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            of,
            argument: argument.into(),
            value: value.into(),
            known: Vec::new(),
            budget: Budget::default(),
        }
    }

    /// Adds an argument that has its value already, on which the completions may depend.
    #[must_use]
    pub fn knowing(mut self, argument: impl Into<String>, value: impl Into<String>) -> Self {
        self.known.push((argument.into(), value.into()));
        self
    }
}

/// From which level on a server sends messages for the log.
#[derive(Clone, Debug)]
pub struct LogLevel {
    pub(crate) level: rmcp_level::Level,
    pub(crate) budget: Budget,
}
budget_setters!(LogLevel);

/// rmcp marks the type as deprecated, as the protocol does with logging. It is there until it goes.
#[expect(deprecated, reason = "it is what the revisions up to 2026-07-28 have")]
pub(crate) mod rmcp_level {
    pub(crate) type Level = rmcp::model::LoggingLevel;
}

macro_rules! levels {
    ($($name:ident, $level:ident, $text:literal;)*) => {
        #[expect(deprecated, reason = "it is what the revisions up to 2026-07-28 have")]
        impl LogLevel {
            $(
                #[doc = concat!("Messages of the level `", $text, "` and above.")]
                #[must_use]
                pub fn $name() -> Self {
                    Self {
                        level: rmcp_level::Level::$level,
                        budget: Budget::default(),
                    }
                }
            )*
        }
    };
}
levels! {
    debug, Debug, "debug";
    info, Info, "info";
    notice, Notice, "notice";
    warning, Warning, "warning";
    error, Error, "error";
    critical, Critical, "critical";
    alert, Alert, "alert";
    emergency, Emergency, "emergency";
}

/// A `skills/get`.
#[derive(Clone)]
pub struct SkillGet {
    pub(crate) uri: String,
    pub(crate) budget: Budget,
}
budget_setters!(SkillGet);

impl SkillGet {
    /// The skill whose `SKILL.md` is at `uri`.
    #[must_use]
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            budget: Budget::default(),
        }
    }
}

/// A `resources/directory/read`.
#[derive(Clone)]
pub struct DirectoryRead {
    pub(crate) uri: String,
    pub(crate) cursor: Option<String>,
    pub(crate) budget: Budget,
}
budget_setters!(DirectoryRead);

impl DirectoryRead {
    /// The direct children of the directory at `uri`.
    #[must_use]
    pub fn new(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            cursor: None,
            budget: Budget::default(),
        }
    }

    /// The page of them behind `cursor`, as the page before it named it.
    #[must_use]
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.cursor = Some(cursor.into());
        self
    }
}

/// A notification of the caller's own.
#[derive(Clone)]
pub struct Notice {
    pub(crate) method: String,
    pub(crate) params: Option<Value>,
    pub(crate) budget: Budget,
}

impl Notice {
    /// The notification `method` with `params`.
    ///
    /// What the runtime itself has to tell a server (`notifications/initialized`,
    /// `notifications/cancelled`) is refused as *not sent*.
    #[must_use]
    pub fn new(method: impl Into<String>, params: Option<Value>) -> Self {
        Self {
            method: method.into(),
            params,
            budget: Budget::default(),
        }
    }

    /// Tells the server that the host's roots are others now.
    #[must_use]
    pub fn roots_list_changed() -> Self {
        Self::new("notifications/roots/list_changed", None)
    }

    /// How long it may wait until the transport has taken it.
    #[must_use]
    pub fn deadline(mut self, total: Duration) -> Self {
        self.budget.total = Some(total);
        self
    }
}

macro_rules! hides {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            /// Shows nothing that a person or a server may have written.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}
hides!(Completion, SkillGet, DirectoryRead, Notice);
