//! What a server has on offer, for whoever holds a handle.

use std::{fmt, sync::Arc};

use rmcp::model::{Prompt, Resource, ResourceTemplate, Skill, Tool};

use crate::{
    call::{known, list, refresh},
    catalog::{Difference, List},
    connection::Line,
    error::ListError,
    operation::ListKind,
};

/// The lists of a connection's server: complete, of one generation each, and kept. Cheap to clone.
///
/// A list is read when it is first asked for, and again before its next use when its session is
/// over, when the server said that it changed, or when the time is over for which the server
/// vouched for it. A server that does not declare what a list is of is not asked for it: the list is
/// empty. All who wait for a list wait for one reading of it. Where it cannot be read,
/// the last complete one is what there is, and it says that it is [stale](List::stale).
///
/// On a framework-owned connection a list that was read before is also read again by itself, once
/// for a burst of the server's notices. Of a lent connection the notices go to its owner's handler;
/// there [`refresh`](Self::refresh) is the way to hear of changes.
///
/// ```
/// use mcp_supervisor::{Connection, error::ListError};
///
/// async fn offer(server: &Connection) -> Result<(), ListError> {
///     let tools = server.catalog().tools().await?;
///     for tool in tools.iter() {
///         println!("{}", tool.name);
///     }
///     if let Some(why) = tools.stale() {
///         println!("read {:?} ago, and {why}", tools.age());
///     }
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct Catalog {
    line: Arc<Line>,
}

macro_rules! list {
    ($(#[$doc:meta])* $entry:ident, $name:ident, $known:ident, $what:literal) => {
        #[doc = concat!("The ", $what, ". Reads them, if what is known of them may no longer hold.")]
        ///
        $(#[$doc])*
        /// # Errors
        ///
        /// [`ListError`], if they cannot be read and never were. Where they were, the last complete
        /// list is returned, marked stale with the reason.
        ///
        /// # Cancel safety
        ///
        /// Nothing is changed at the server. Dropped, the reading goes on for others, and for the
        /// next to ask.
        pub async fn $name(&self) -> Result<List<$entry>, ListError> {
            list(&self.line, false).await
        }

        #[doc = concat!("The ", $what, " as they were last read whole, if they ever were. Never waits and sends nothing.")]
        #[must_use]
        pub fn $known(&self) -> Option<List<$entry>> {
            known(&self.line)
        }
    };
}

impl Catalog {
    pub(super) fn of(line: &Arc<Line>) -> Self {
        Self {
            line: Arc::clone(line),
        }
    }

    list!(Tool, tools, known_tools, "server's tools");
    list!(Prompt, prompts, known_prompts, "server's prompts");
    list!(Resource, resources, known_resources, "server's resources");
    list!(
        ResourceTemplate,
        resource_templates,
        known_resource_templates,
        "templates of the server's resources"
    );
    list!(
        /// There are none where the server does not declare the extension for them. No server tells of
        /// their changes: within a session they are read again when the time that the server vouched
        /// for them is over, and by [`refresh`](Self::refresh).
        ///
        Skill,
        skills,
        known_skills,
        "server's skills"
    );

    /// Reads a list again, whatever is known of it, and says what changed. The difference to no list
    /// at all is that everything is new.
    ///
    /// # Errors
    ///
    /// [`ListError`], if it cannot be read. The last complete one stays.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed at the server. Dropped, the reading goes on for others.
    pub async fn refresh(&self, list: ListKind) -> Result<Difference, ListError> {
        match list {
            ListKind::Tools => refresh::<Tool>(&self.line).await,
            ListKind::Prompts => refresh::<Prompt>(&self.line).await,
            ListKind::Resources => refresh::<Resource>(&self.line).await,
            ListKind::ResourceTemplates => refresh::<ResourceTemplate>(&self.line).await,
            ListKind::Skills => refresh::<Skill>(&self.line).await,
        }
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog")
            .field("connection", &self.line.name)
            .finish_non_exhaustive()
    }
}
