//! One namespace of tools over many connections: what a host shows to a model, and the way back.
//!
//! A model's API takes tools by names of at most 64 letters, digits, `_` and `-`, all different. A
//! [`Toolbox`] gives such a name to each tool of each of its connections, by a function of the
//! connection's name and the tool's alone: [`offered_name`]. So a name is the same whatever was
//! started first, whatever else is up, and in the next run of the program.

mod names;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use rmcp::model::Tool;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::{
    call::ToolAnswer,
    catalog::{List, Stale},
    error::{CallError, ListError},
    handle::Connection,
    operation::{ConnectionName, ToolCall},
};
use names::Digest;

/// How long [`Toolbox::tools`] waits for a connection that has something to read first.
const WAIT: Duration = Duration::from_secs(5);

/// The tools of many connections under one set of names. Cheap to clone.
///
/// It holds no connection open and closes none.
///
/// ```
/// use mcp_supervisor::{Supervisor, toolbox::ToolboxError};
/// use serde_json::json;
///
/// # async fn turn(supervisor: &Supervisor) -> Result<(), ToolboxError> {
/// let toolbox = supervisor.toolbox();
/// // What the model is shown: rmcp's tools, by the names that it is to use.
/// let offered = toolbox.tools().await;
/// let for_the_model = offered.for_model();
/// # let _ = for_the_model;
/// // What the model asks for.
/// let answer = toolbox.call("github__create_issue", json!({ "title": "It is broken" })).await?;
/// println!("{}", answer.text());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Toolbox {
    connections: Arc<dyn Connections>,
    wait: Duration,
    digest: Digest,
}

/// Whose tools they are.
pub(crate) trait Connections: Send + Sync {
    /// Each of them, by a name of its own.
    fn all(&self) -> Vec<Arc<Connection>>;
}

struct Chosen(Vec<Arc<Connection>>);

impl Connections for Chosen {
    fn all(&self) -> Vec<Arc<Connection>> {
        self.0.clone()
    }
}

/// Why a toolbox did not give an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolboxError {
    /// No connection has a tool that is offered by this name. Nothing was sent.
    #[error("there is no tool by this name; nothing was sent")]
    NoSuchTool,
    /// Two tools have this name, because their digests are the same. Nothing was sent.
    #[error("two tools have this name; nothing was sent; rename one of their connections")]
    Ambiguous,
    /// Two of the connections have the same name.
    #[error("two connections are named {0}; a toolbox tells its connections apart by their names")]
    DuplicateConnection(ConnectionName),
    /// The tool was called and there is no answer.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// What a toolbox has to offer at a moment, sorted by name.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Offer {
    /// The tools.
    pub tools: Vec<OfferedTool>,
    /// The connections of which no list of tools is known.
    pub missing: Vec<Missing>,
    /// The tools that are not offered, because each has the name of another one.
    pub ambiguous: Vec<OfferedTool>,
}

/// A tool by the name that a model may use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OfferedTool {
    /// Its name in the toolbox.
    pub name: String,
    /// The connection that has it.
    pub connection: ConnectionName,
    /// The tool as its server lists it, under the server's name for it.
    pub tool: Tool,
    /// Why it may no longer be so, if something speaks against it.
    pub stale: Option<Stale>,
    /// How long ago it was read.
    pub age: Duration,
}

/// A connection of which no list of tools is known.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Missing {
    /// Its name.
    pub connection: ConnectionName,
    /// Why the list could not be read; `None` if it has not been read yet.
    pub why: Option<ListError>,
}

/// The name of a tool in any toolbox: at most 64 characters of `[A-Za-z0-9_-]`.
///
/// Names that are short and made of these are joined by `__`. What would not fit, or could be
/// mistaken, is cut and ends in a digest of both names.
///
/// ```
/// use mcp_supervisor::toolbox::offered_name;
///
/// let name = offered_name(&"github".parse()?, "create_issue");
/// assert_eq!(name, "github__create_issue");
/// # Ok::<(), mcp_supervisor::operation::NameError>(())
/// ```
#[must_use]
pub fn offered_name(connection: &ConnectionName, tool: &str) -> String {
    names::offered(connection.as_str(), tool, names::digest)
}

impl Toolbox {
    /// The tools of these connections, lent ones included. See
    /// [`Supervisor::toolbox`](crate::Supervisor::toolbox) for those of all that a supervisor has.
    ///
    /// # Errors
    ///
    /// [`ToolboxError::DuplicateConnection`], if two of them have one name.
    pub fn of<'a>(
        connections: impl IntoIterator<Item = &'a Connection>,
    ) -> Result<Self, ToolboxError> {
        let mut chosen: BTreeMap<ConnectionName, Arc<Connection>> = BTreeMap::new();
        for connection in connections {
            let name = connection.name().clone();
            match chosen.get(&name) {
                // Two handles of one connection are one connection.
                Some(there) if there.is_same(connection) => {}
                Some(_) => return Err(ToolboxError::DuplicateConnection(name)),
                None => {
                    chosen.insert(name, Arc::new(connection.another()));
                }
            }
        }
        let chosen = Chosen(chosen.into_values().collect());
        Ok(Self::over(Arc::new(chosen)))
    }

    pub(crate) fn over(connections: Arc<dyn Connections>) -> Self {
        Self {
            connections,
            wait: WAIT,
            digest: names::digest,
        }
    }

    /// How long [`tools`](Self::tools) waits for the connections that have something to read first;
    /// five seconds if it is not set.
    #[must_use]
    pub fn wait_at_most(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The tools of all connections. What is not known well is read first, side by side, and a
    /// connection that takes longer than the wait, or is down, is there with the tools that it was
    /// last known to have, marked stale.
    ///
    /// # Cancel safety
    ///
    /// Nothing is changed at any server. Dropped, the readings go on for the next to ask.
    pub async fn tools(&self) -> Offer {
        let read = self.read(self.wait, |_| true).await;
        offer(read, self.digest)
    }

    /// The lists of some connections, side by side.
    async fn read(&self, wait: Duration, which: impl Fn(&str) -> bool + Send) -> Vec<Known> {
        let mut reading = JoinSet::new();
        for connection in self.connections.all() {
            if !which(connection.name().as_str()) {
                continue;
            }
            let catalog = connection.catalog();
            reading.spawn(async move {
                let tools = match tokio::time::timeout(wait, catalog.tools()).await {
                    Ok(tools) => tools.map_err(Some),
                    Err(_) => catalog.known_tools().ok_or(None),
                };
                (connection.name().clone(), tools)
            });
        }
        // Its tasks do not panic, and nobody else can stop them.
        reading.join_all().await
    }

    /// The tools as they were last read. Never waits and sends nothing.
    #[must_use]
    pub fn known_tools(&self) -> Offer {
        let known = |connection: Arc<Connection>| {
            let tools = connection.catalog().known_tools().ok_or(None);
            (connection.name().clone(), tools)
        };
        let all = self.connections.all();
        offer(all.into_iter().map(known).collect(), self.digest)
    }

    /// Calls a tool by its name in the toolbox. It is sent at most once, as
    /// [`Connection::call_tool`] does it.
    ///
    /// A tool is found in the lists as they were last read. Where none has it, the lists that may no
    /// longer hold are read once.
    ///
    /// # Errors
    ///
    /// [`ToolboxError`]: there is no such tool, or the call has no answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped before the answer, the tool may have run, unless the request still waited in this
    /// process, in which case it will not be sent.
    pub async fn call(&self, name: &str, arguments: Value) -> Result<ToolAnswer, ToolboxError> {
        self.call_tool(ToolCall::new(name, arguments)).await
    }

    /// As [`call`](Self::call), with all that a [`ToolCall`] can say. Its name is the one in the
    /// toolbox.
    ///
    /// # Errors
    ///
    /// [`ToolboxError`]: there is no such tool, or the call has no answer.
    ///
    /// # Cancel safety
    ///
    /// As for [`call`](Self::call).
    pub async fn call_tool(&self, mut call: ToolCall) -> Result<ToolAnswer, ToolboxError> {
        let place = match self.place(&call.name) {
            Err(ToolboxError::NoSuchTool) => {
                let wait = call.budget.total.map_or(self.wait, |t| t.min(self.wait));
                // A plain name says whose it is. With a digest one has to look everywhere.
                let plain = names::parse(&call.name);
                self.read(wait, |own| plain.is_none_or(|(of, _)| of == own))
                    .await;
                self.place(&call.name)
            }
            place => place,
        };
        let (connection, tool) = place?;
        call.name = tool;
        Ok(connection.call_tool(call).await?)
    }

    /// The connection and the server's own name of a tool, by its name in the toolbox, as far as the
    /// lists were read. Never waits and sends nothing.
    ///
    /// # Errors
    ///
    /// [`ToolboxError`]: no tool has this name, or two have.
    pub fn resolve(&self, name: &str) -> Result<(ConnectionName, String), ToolboxError> {
        let (connection, tool) = self.place(name)?;
        Ok((connection.name().clone(), tool))
    }

    fn place(&self, name: &str) -> Result<(Arc<Connection>, String), ToolboxError> {
        let plain = names::parse(name);
        let mut found: Option<(Arc<Connection>, String)> = None;
        for connection in self.connections.all() {
            let own = connection.name().as_str();
            if plain.is_some_and(|(of, _)| of != own) {
                continue;
            }
            let Some(tools) = connection.catalog().known_tools() else {
                continue;
            };
            for tool in tools.iter() {
                let is_it = match plain {
                    Some((_, plain)) => tool.name == plain,
                    None => names::offered(own, &tool.name, self.digest) == name,
                };
                if !is_it {
                    continue;
                }
                match &found {
                    // A server that lists a tool twice has one tool.
                    Some((of, there)) if Arc::ptr_eq(of, &connection) && *there == tool.name => {}
                    Some(_) => return Err(ToolboxError::Ambiguous),
                    None => found = Some((Arc::clone(&connection), tool.name.to_string())),
                }
            }
        }
        found.ok_or(ToolboxError::NoSuchTool)
    }
}

impl fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.connections.all();
        let names: Vec<_> = all.iter().map(|connection| connection.name()).collect();
        f.debug_struct("Toolbox")
            .field("connections", &names)
            .finish_non_exhaustive()
    }
}

impl Offer {
    /// What a model is shown: each tool as its server lists it, but for its name.
    #[must_use]
    pub fn for_model(&self) -> Vec<Tool> {
        self.tools.iter().map(OfferedTool::for_model).collect()
    }

    /// The tool of this name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&OfferedTool> {
        let at = self.tools.binary_search_by(|tool| (*tool.name).cmp(name));
        self.tools.get(at.ok()?)
    }
}

impl OfferedTool {
    /// The tool by its name in the toolbox.
    #[must_use]
    pub fn for_model(&self) -> Tool {
        let mut tool = self.tool.clone();
        tool.name = self.name.clone().into();
        tool
    }
}

type Known = (ConnectionName, Result<List<Tool>, Option<ListError>>);

fn offer(known: Vec<Known>, digest: Digest) -> Offer {
    let mut offer = Offer::default();
    let mut by_name: BTreeMap<String, Vec<OfferedTool>> = BTreeMap::new();
    for (connection, tools) in known {
        let tools = match tools {
            Ok(tools) => tools,
            Err(why) => {
                offer.missing.push(Missing { connection, why });
                continue;
            }
        };
        let age = tools.age();
        for tool in tools.iter() {
            let name = names::offered(connection.as_str(), &tool.name, digest);
            let same = by_name.entry(name.clone()).or_default();
            // A server that lists a tool twice has one tool.
            if same
                .iter()
                .any(|t| t.connection == connection && t.tool.name == tool.name)
            {
                continue;
            }
            same.push(OfferedTool {
                name,
                connection: connection.clone(),
                tool: tool.clone(),
                stale: tools.stale().cloned(),
                age,
            });
        }
    }
    for (_, mut tools) in by_name {
        match tools.len() {
            1 => offer.tools.append(&mut tools),
            _ => offer.ambiguous.append(&mut tools),
        }
    }
    offer
        .missing
        .sort_by(|a, b| a.connection.cmp(&b.connection));
    offer
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        catalog::{AsOf, Whole},
        operation::Generation,
    };

    fn known(connection: &str, tools: &[&str]) -> Known {
        let tool = |name: &&str| Tool::new((*name).to_owned(), "", Arc::default());
        let whole = Whole {
            entries: tools.iter().map(tool).collect(),
            generation: Generation(1),
            read_at: Instant::now(),
            fresh_until: None,
            as_of: AsOf::default(),
        };
        let name = connection.parse().unwrap();
        (name, Ok(List::new(Arc::new(whole), None)))
    }

    /// A digest that tells nothing apart.
    fn blind(_: &str, _: &str) -> [u8; 10] {
        [0; 10]
    }

    #[test]
    fn two_tools_whose_digests_are_the_same_are_told_and_neither_is_offered() {
        let known = vec![known(
            "crm",
            &["find customer", "find_customer", "find.customer"],
        )];
        let offer = offer(known, blind);
        assert_eq!(offer.tools.len(), 1);
        assert_eq!(offer.tools[0].name, "crm__find_customer");
        let ambiguous: Vec<_> = offer.ambiguous.iter().map(|t| &*t.tool.name).collect();
        assert_eq!(ambiguous, ["find customer", "find.customer"]);
    }

    #[test]
    fn a_tool_that_its_server_lists_twice_is_one() {
        let offer = offer(vec![known("crm", &["find", "find"])], names::digest);
        assert_eq!((offer.tools.len(), offer.ambiguous.len()), (1, 0));
    }

    #[test]
    fn the_offer_is_the_same_whatever_the_order_and_whatever_else_is_up() {
        let lists = [
            ("a", ["x", "y__z"]),
            ("a__y", ["z", "\u{e9}"]),
            ("B", ["x", "X"]),
        ];
        let names = |order: &[usize]| -> Vec<(String, String, String)> {
            let of = |i: &usize| known(lists[*i].0, &lists[*i].1);
            let offer = offer(order.iter().map(of).collect(), names::digest);
            let named = |t: &OfferedTool| {
                (
                    t.name.clone(),
                    t.connection.to_string(),
                    t.tool.name.to_string(),
                )
            };
            offer.tools.iter().map(named).collect()
        };
        let all = names(&[0, 1, 2]);
        assert_eq!(all.len(), 6);
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            assert_eq!(names(&order), all);
        }
        for alone in 0..3 {
            assert!(names(&[alone]).iter().all(|one| all.contains(one)));
        }
    }
}
