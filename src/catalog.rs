//! What a server has on offer, as it was last read whole: its tools, prompts, resources, resource
//! templates and skills.
//!
//! A [`List`] is complete and of one generation, or it is not published at all. Where a newer one
//! cannot be had, the last one stays and says that it is [stale](List::stale), since when, and why.
//! How lists are asked for is in [`Catalog`](crate::handle::Catalog).

mod difference;
mod list;
mod pages;
mod shelf;

use rmcp::model::{Prompt, Resource, ResourceTemplate, Skill, Tool};

use crate::operation::ListKind;

pub use difference::Difference;
pub(crate) use list::{AsOf, Whole};
pub use list::{List, Stale};
pub(crate) use pages::Pages;
pub(crate) use shelf::{Begun, Ended, Now, Shelf};

/// The lists of a connection.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub(crate) tools: Shelf<Tool>,
    pub(crate) prompts: Shelf<Prompt>,
    pub(crate) resources: Shelf<Resource>,
    pub(crate) templates: Shelf<ResourceTemplate>,
    pub(crate) skills: Shelf<Skill>,
}

/// Something that a server lists.
pub(crate) trait Entry:
    Clone + PartialEq + serde::Serialize + Send + Sync + 'static
{
    const KIND: ListKind;

    /// What no two entries of a list have in common.
    fn identity(&self) -> &str;

    /// What it is called in events. A resource's address may hold credentials, its name does not.
    fn label(&self) -> &str;

    fn shelf(lists: &Lists) -> &Shelf<Self>;
}

impl Entry for Tool {
    const KIND: ListKind = ListKind::Tools;
    fn identity(&self) -> &str {
        &self.name
    }
    fn label(&self) -> &str {
        &self.name
    }
    fn shelf(lists: &Lists) -> &Shelf<Self> {
        &lists.tools
    }
}

impl Entry for Prompt {
    const KIND: ListKind = ListKind::Prompts;
    fn identity(&self) -> &str {
        &self.name
    }
    fn label(&self) -> &str {
        &self.name
    }
    fn shelf(lists: &Lists) -> &Shelf<Self> {
        &lists.prompts
    }
}

impl Entry for Resource {
    const KIND: ListKind = ListKind::Resources;
    fn identity(&self) -> &str {
        &self.uri
    }
    fn label(&self) -> &str {
        &self.name
    }
    fn shelf(lists: &Lists) -> &Shelf<Self> {
        &lists.resources
    }
}

impl Entry for ResourceTemplate {
    const KIND: ListKind = ListKind::ResourceTemplates;
    fn identity(&self) -> &str {
        &self.uri_template
    }
    fn label(&self) -> &str {
        &self.name
    }
    fn shelf(lists: &Lists) -> &Shelf<Self> {
        &lists.templates
    }
}

impl Entry for Skill {
    const KIND: ListKind = ListKind::Skills;
    fn identity(&self) -> &str {
        &self.uri
    }
    fn label(&self) -> &str {
        &self.frontmatter.name
    }
    fn shelf(lists: &Lists) -> &Shelf<Self> {
        &lists.skills
    }
}
