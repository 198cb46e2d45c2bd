//! Where a supervisor stands in the tree of supervisors.

use std::{fmt, sync::Arc};

use super::{NameError, check_name};

/// The names of the supervisors from the one at the top, which has none, down to this one. Cheap to
/// clone.
///
/// It tells apart what has the same name below different supervisors: `billing` at the top shows as
/// `billing`, and the `billing` of an agent's own supervisor as `clerk/billing`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SupervisorPath(Arc<[Box<str>]>);

impl SupervisorPath {
    /// Whether this is a supervisor with none above it.
    #[must_use]
    pub fn is_top(&self) -> bool {
        self.0.is_empty()
    }

    /// The names, from the top.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }

    /// The path of a supervisor right below this one.
    pub(crate) fn below(&self, name: &str) -> Result<Self, NameError> {
        check_name("supervisor", name)?;
        Ok(Self(self.0.iter().cloned().chain([name.into()]).collect()))
    }
}

impl fmt::Display for SupervisorPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}
