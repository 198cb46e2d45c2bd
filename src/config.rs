//! Configuration files: the `mcpServers` JSON of the ecosystem, as connections to open.
//!
//! The reader takes what other hosts write: `mcpServers` or VS Code's `servers`, child processes and
//! remote servers, the small dialects of both. Settings of this crate's own are in one object,
//! `mcp-supervisor`, in a server or at the top as defaults for all. `docs/configuration.md` lists
//! every field; [`json_schema`] is the same for editors.
//!
//! ```
//! use mcp_supervisor::Configuration;
//!
//! let file = r#"{
//!     "mcpServers": {
//!         "files": { "command": "files-server", "args": ["--root", "${ROOT:-/srv/files}"] },
//!         "orders": {
//!             "type": "http",
//!             "url": "https://orders.example/mcp",
//!             "headers": { "Authorization": "Bearer ${ORDERS_TOKEN}" },
//!             "mcp-supervisor": {
//!                 "limits": { "total": "20s" },
//!                 "contracts": { "create_order": { "keyed": { "argument": "request_id" } } }
//!             }
//!         }
//!     }
//! }"#;
//! let configuration = Configuration::reader()
//!     .environment(|_| None) // the default is the environment of the process
//!     .parse("mcp.json", file)?;
//! assert!(configuration.servers["files"].is_ok());
//! // One bad server takes down itself alone.
//! let error = configuration.servers["orders"].as_ref().unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "mcp.json:7:43: server \"orders\": /headers/Authorization: the variable ORDERS_TOKEN is not \
//!      set; set it, or give it a default as in ${ORDERS_TOKEN:-default}"
//! );
//! # Ok::<(), mcp_supervisor::config::ConfigError>(())
//! ```
//!
//! Nothing here runs anything. [`Supervisor::apply`](crate::Supervisor::apply) does.

mod document;
mod expand;
mod fields;
mod oauth;
mod problem;
#[cfg(test)]
mod schema;
mod server;
mod settings;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, path::Path, path::PathBuf, sync::Arc};

use expand::Variables;
use fields::{Field, nearest};
use problem::Fault;
pub use problem::{ConfigError, ConfigProblem, ConfigWarning, Oddity, Position};
use settings::{NAMESPACE, Own};

use crate::{
    operation::ConnectionName,
    spec::{ConnectionSpec, SpecError},
};

/// What a file says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Configuration {
    /// The file, as it was named to the reader.
    pub file: String,
    /// Its servers by their names. One that cannot be used is an error of its own.
    pub servers: BTreeMap<String, Result<ServerConfig, ConfigError>>,
    /// What has no effect, or perhaps not the one that was meant.
    pub warnings: Vec<ConfigWarning>,
}

/// A server of a configuration.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    name: ConnectionName,
    file: Arc<str>,
    spec: Option<ConnectionSpec>,
    address: &'static str,
    #[cfg(feature = "oauth")]
    oauth: Option<crate::auth::OAuth>,
}

/// Which unit a bare number in a server's `timeout` has. Hosts differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutUnit {
    /// Below 1,000 it counts seconds and above 3,600 milliseconds, both with a warning; between
    /// them nobody can tell, and the server is an error.
    #[default]
    ByMagnitude,
    /// Seconds, as in Cline and Roo Code.
    Seconds,
    /// Milliseconds, as in Claude Code and Gemini CLI.
    Milliseconds,
}

/// Reads configurations.
#[derive(Clone)]
pub struct ConfigReader {
    variables: Variables,
    unit: TimeoutUnit,
}

impl Default for ConfigReader {
    fn default() -> Self {
        Self {
            variables: Variables {
                environment: Arc::new(|name| std::env::var(name).ok()),
                inputs: Arc::new(|_| None),
                workspace: None,
            },
            unit: TimeoutUnit::default(),
        }
    }
}

impl fmt::Debug for ConfigReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigReader")
            .field("unit", &self.unit)
            .finish_non_exhaustive()
    }
}

/// The JSON Schema of the files that are read, for editors and for checks before a deployment. It
/// is `docs/mcp-servers.schema.json` of this package.
#[must_use]
pub fn json_schema() -> &'static str {
    include_str!("../docs/mcp-servers.schema.json")
}

impl Configuration {
    /// Reads a file, with the variables of this process's environment. The file is read before this
    /// returns, so a large or remote one blocks.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], if the file as a whole cannot be used. A server that cannot be used is an
    /// error in [`servers`](Self::servers).
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::reader().read(path)
    }

    /// A reader, to be told where variables come from.
    #[must_use]
    pub fn reader() -> ConfigReader {
        ConfigReader::default()
    }

    /// The servers that cannot be used, and why.
    pub fn errors(&self) -> impl Iterator<Item = &ConfigError> {
        self.servers.values().filter_map(|s| s.as_ref().err())
    }
}

impl ServerConfig {
    /// The server's name, which is the connection's.
    #[must_use]
    pub fn name(&self) -> &ConnectionName {
        &self.name
    }

    /// Whether the file switches the server off.
    #[must_use]
    pub fn is_disabled(&self) -> bool {
        self.spec.is_none()
    }

    /// The connection that the file describes; `None` if the server is switched off. Without
    /// [`Supervisor::apply`](crate::Supervisor::apply) it can be opened by hand.
    #[must_use]
    pub fn spec(&self) -> Option<&ConnectionSpec> {
        self.spec.as_ref()
    }

    /// Where the server's tokens come from, if the file says so: with it a host begins an
    /// authorisation. What a person grants is kept in the file that the configuration names, so a
    /// connection that an earlier reading opened uses it too.
    #[cfg(feature = "oauth")]
    #[must_use]
    pub fn oauth(&self) -> Option<&crate::auth::OAuth> {
        self.oauth.as_ref()
    }

    /// What came to light when the connection was built, in terms of the file.
    pub(crate) fn error(&self, error: SpecError) -> ConfigError {
        ConfigError {
            file: self.file.to_string(),
            server: Some(self.name.as_str().to_owned()),
            field: server::field_of(&error, self.address),
            position: None,
            problem: Box::new(ConfigProblem::Spec(error)),
        }
    }
}

impl ConfigReader {
    /// Takes variables from `lookup` and not from the process's environment.
    #[must_use]
    pub fn environment(
        mut self,
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.variables.environment = Arc::new(lookup);
        self
    }

    /// Resolves VS Code's `${input:ID}`. Without it, each is an error of its server.
    #[must_use]
    pub fn inputs(
        mut self,
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.variables.inputs = Arc::new(lookup);
        self
    }

    /// The folder that `${workspaceFolder}` stands for.
    #[must_use]
    pub fn workspace(mut self, folder: impl Into<PathBuf>) -> Self {
        self.variables.workspace = Some(folder.into());
        self
    }

    /// Which unit a bare number in a server's `timeout` has.
    #[must_use]
    pub fn timeout_unit(mut self, unit: TimeoutUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Reads a file. It is read before this returns, so a large or remote one blocks.
    ///
    /// # Errors
    ///
    /// As [`Configuration::read`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Configuration, ConfigError> {
        let path = path.as_ref();
        let file = path.to_string_lossy();
        let bytes = std::fs::read(path).map_err(|error| {
            Fault::from(ConfigProblem::Unreadable(error.kind())).in_file(&file, None)
        })?;
        self.parse(&file, bytes)
    }

    /// Reads what is in a file already. `file` is its name, for errors.
    ///
    /// # Errors
    ///
    /// As [`Configuration::read`].
    pub fn parse(&self, file: &str, text: impl AsRef<[u8]>) -> Result<Configuration, ConfigError> {
        self.configuration(file, text.as_ref())
            .map_err(|fault| fault.in_file(file, None))
    }

    fn configuration(&self, file: &str, bytes: &[u8]) -> Result<Configuration, Fault> {
        let root = document::parse(bytes)?;
        let root = Field::root(&root, root.at, &self.variables);
        let top = root.object()?;
        let defaults = match top.find(NAMESPACE) {
            Some(field) => Own::for_all(field)?,
            None => Own::default(),
        };
        let mut groups = Vec::new();
        groups.extend(top.find("mcpServers"));
        groups.extend(top.find("servers"));
        // The settings file of VS Code has a section for it.
        let section = top.find("mcp").and_then(|mcp| mcp.object().ok());
        let nested = section.as_ref().and_then(|mcp| mcp.find("servers"));
        groups.extend(nested);
        if groups.is_empty() {
            let near = |(name, _): &(&str, _)| nearest(name, ["mcpServers", "servers"]).is_some();
            let found = top.iter().find(near).map(|_| "mcpServers".to_owned());
            return Err(root.fault(ConfigProblem::NoServers { found }));
        }
        let mut configuration = Configuration {
            file: file.to_owned(),
            servers: BTreeMap::new(),
            warnings: Vec::new(),
        };
        // Whole settings files hold much else, so only what is nearly right is worth a word.
        for (name, field) in top.besides(&TOP) {
            let near = nearest(name, TOP.iter().copied());
            configuration
                .warnings
                .extend(near.map(|near| ConfigWarning {
                    file: file.to_owned(),
                    server: None,
                    field: field.path().to_owned(),
                    position: field.named_at(),
                    oddity: Oddity::Unread {
                        did_you_mean: Some(near.to_owned()),
                    },
                }));
        }
        for group in groups {
            for (name, field) in group.members()? {
                self.server(&mut configuration, name, &field, &defaults);
            }
        }
        Ok(configuration)
    }

    fn server(&self, into: &mut Configuration, name: &str, field: &Field<'_>, defaults: &Own) {
        let server = if into.servers.contains_key(name) {
            let duplicate = field.fault_of_name(ConfigProblem::Duplicate);
            Err(Fault {
                field: None,
                ..duplicate
            })
        } else {
            let root = field.as_root();
            self.parts(name, &root, defaults, into)
        };
        let file = into.file.clone();
        let server = server.map_err(|fault| fault.in_file(&file, Some(name)));
        into.servers.insert(name.to_owned(), server);
    }

    fn parts(
        &self,
        name: &str,
        root: &Field<'_>,
        defaults: &Own,
        into: &mut Configuration,
    ) -> Result<ServerConfig, Fault> {
        let connection: ConnectionName = name
            .parse()
            .map_err(|error| root.fault_of_name(ConfigProblem::Name(error)))?;
        let read = server::read(root, defaults.clone(), &self.variables, self.unit)?;
        let warning = |(field, position, oddity)| ConfigWarning {
            file: into.file.clone(),
            server: Some(name.to_owned()),
            field,
            position,
            oddity,
        };
        let warnings: Vec<_> = read.oddities.into_iter().map(warning).collect();
        into.warnings.extend(warnings);
        Ok(ServerConfig {
            name: connection,
            file: Arc::from(into.file.as_str()),
            spec: read.spec,
            address: read.address,
            #[cfg(feature = "oauth")]
            oauth: read.oauth,
        })
    }
}

/// The members of a file that are read, or that are for the host and its editor.
const TOP: [&str; 6] = [
    "mcpServers",
    "servers",
    "mcp",
    NAMESPACE,
    "inputs",
    "$schema",
];
