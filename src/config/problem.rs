//! What is wrong with a configuration file, and what is odd about it. Neither ever holds a value:
//! values are where the credentials are.

use std::{fmt, io};

use crate::{operation::NameError, spec::SpecError};

/// A place in a file, counted from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A configuration, or one server of it, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// The file, as it was named to the reader.
    pub file: String,
    /// The server; `None`: the file as a whole.
    pub server: Option<String>,
    /// The field as a JSON pointer, counted from the server's own object (from the root, where there
    /// is no server): `/env/TOKEN`.
    pub field: Option<String>,
    /// Where it stands in the file.
    pub position: Option<Position>,
    /// What is wrong, and what to change.
    pub problem: Box<ConfigProblem>,
}

/// What is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// The file cannot be read.
    #[error("the file cannot be read ({0}); check its path and permissions")]
    Unreadable(io::ErrorKind),
    /// Not text.
    #[error("this is neither UTF-8 nor UTF-16 with a byte order mark; save the file as UTF-8")]
    Encoding,
    /// Not JSON.
    #[error("this is no JSON: {0} (comments and trailing commas are allowed)")]
    Syntax(String),
    /// There is no object with servers.
    #[error(
        "there is no object `mcpServers` or `servers`{}; write an empty one for no servers",
        hint(.found.as_deref())
    )]
    NoServers {
        /// A member with a name that is nearly right.
        found: Option<String>,
    },
    /// The server's name cannot be the name of a connection.
    #[error("the server's name cannot be used: {0}")]
    Name(NameError),
    /// A name that stands twice in one object.
    #[error("this name is there twice; remove one of the two")]
    Duplicate,
    /// Something of another type.
    #[error("this is {found}; write {expected}")]
    WrongType {
        /// What belongs there.
        expected: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// A setting of this crate's that does not exist.
    #[error("there is no such setting{}", hint(.did_you_mean.as_deref()))]
    NoSuchSetting {
        /// One whose name is near.
        did_you_mean: Option<String>,
    },
    /// A setting that belongs to single servers stands among the defaults for all.
    #[error("this is for one server, not for all; move it into the server's own object")]
    OnlyForOneServer,
    /// A field that the server must have.
    #[error("the field is missing; add it")]
    Missing,
    /// Neither a command nor an address.
    #[error("there is neither `command` nor `url`; add the one that the server needs")]
    NoTransport,
    /// Fields that exclude each other.
    #[error("this and `{other}` exclude each other; keep one of them")]
    Conflict {
        /// The other field.
        other: &'static str,
    },
    /// A transport that this crate does not have.
    #[error("the transport `{name}` is not supported; use the server's stdio or streamable HTTP")]
    TransportNotSupported {
        /// Its name.
        name: &'static str,
    },
    /// A setting for the other kind of transport.
    #[error("this is for servers over {only} and this one is not; remove it")]
    OtherTransport {
        /// The kind that it is for.
        only: &'static str,
    },
    /// A file of variables, which is not read.
    #[error("files of variables are not read; put the variables into `env`, as ${{NAME}}")]
    EnvFile,
    /// A variable that is not set.
    #[error(
        "the variable {name} is not set; set it, or give it a default as in ${{{name}:-default}}"
    )]
    VariableNotSet {
        /// Its name.
        name: String,
    },
    /// An input that nobody supplied.
    #[error(
        "nobody supplied the input {id:?}; the host resolves it, or a variable takes its place"
    )]
    InputNotSupplied {
        /// Its id.
        id: String,
    },
    /// The host has not said which folder is the workspace.
    #[error("the host has named no workspace folder; write the path instead")]
    NoWorkspace,
    /// A reference to a variable that cannot be read.
    #[error("a variable is written wrongly: {0} ($${{ stands for a plain ${{)")]
    Reference(&'static str),
    /// No duration.
    #[error("this is no duration; write a number with its unit, such as \"20s\" or \"500ms\"")]
    Duration,
    /// A number that is too large.
    #[error("this number is too large")]
    TooLarge,
    /// A number of which nobody can tell whether it counts seconds or milliseconds.
    #[error(
        "seconds or milliseconds? Hosts differ, and {value} could be either; write \
         \"limits\": {{ \"total\": \"…s\" }} into the server's `mcp-supervisor` object"
    )]
    WhichUnit {
        /// The number.
        value: u64,
    },
    /// Not one of the words that are known.
    #[error("this is none of {allowed}{}", hint(.did_you_mean.as_deref()))]
    NotOneOf {
        /// The words.
        allowed: String,
        /// One that is near.
        did_you_mean: Option<String>,
    },
    /// The settings do not make a connection.
    #[error(transparent)]
    Spec(SpecError),
}

fn hint(name: Option<&str>) -> String {
    name.map(|name| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

/// A server's name in a message: names may be documents by mistake.
fn short(name: &str) -> String {
    const MOST: usize = 80;
    let mut short: String = name.chars().take(MOST).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

fn place(
    f: &mut fmt::Formatter<'_>,
    file: &str,
    position: Option<Position>,
    server: Option<&str>,
    field: Option<&str>,
) -> fmt::Result {
    f.write_str(file)?;
    if let Some(position) = position {
        write!(f, ":{position}")?;
    }
    f.write_str(": ")?;
    if let Some(server) = server {
        write!(f, "server {:?}: ", short(server))?;
    }
    if let Some(field) = field {
        write!(f, "{}: ", short(field))?;
    }
    Ok(())
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, field) = (self.server.as_deref(), self.field.as_deref());
        place(f, &self.file, self.position, server, field)?;
        self.problem.fmt(f)
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &*self.problem {
            ConfigProblem::Spec(error) => Some(error),
            ConfigProblem::Name(error) => Some(error),
            _ => None,
        }
    }
}

/// Something in a configuration that has no effect, or perhaps not the one that was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigWarning {
    /// The file, as it was named to the reader.
    pub file: String,
    /// The server; `None`: the file as a whole.
    pub server: Option<String>,
    /// The field, as in [`ConfigError::field`].
    pub field: String,
    /// Where it stands in the file.
    pub position: Position,
    /// What about it.
    pub oddity: Oddity,
}

/// What is odd about a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Oddity {
    /// Nothing here knows the field.
    #[error("nothing here reads this field{}", hint(.did_you_mean.as_deref()))]
    Unread {
        /// A field whose name is near.
        did_you_mean: Option<String>,
    },
    /// A field of the transport that the server does not use.
    #[error("the server is not reached this way, so this has no effect")]
    OtherTransport,
    /// A value such as `$NAME`, which is not expanded.
    #[error("a variable without braces is not expanded; write ${{NAME}}")]
    NoBraces,
    /// A bare number of time.
    #[error("hosts differ in the unit of this number; it was taken for {0}")]
    Unit(&'static str),
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.server.as_deref();
        place(
            f,
            &self.file,
            Some(self.position),
            server,
            Some(&self.field),
        )?;
        self.oddity.fmt(f)
    }
}

/// A problem at a place, before it is known in whose object it stands.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) field: Option<String>,
    pub(super) position: Option<Position>,
    pub(super) problem: ConfigProblem,
}

impl Fault {
    pub(super) fn in_file(self, file: &str, server: Option<&str>) -> ConfigError {
        ConfigError {
            file: file.to_owned(),
            server: server.map(str::to_owned),
            field: self.field,
            position: self.position,
            problem: Box::new(self.problem),
        }
    }
}

impl From<ConfigProblem> for Fault {
    fn from(problem: ConfigProblem) -> Self {
        Self {
            field: None,
            position: None,
            problem,
        }
    }
}
