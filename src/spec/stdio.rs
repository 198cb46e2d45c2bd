//! A server that is a child process.

use std::{borrow::Cow, collections::BTreeMap, ffi::OsString, fmt, path::PathBuf};

use super::SpecError;

/// A server that is a child process and speaks over its stdin and stdout.
///
/// The child gets an environment of its own: `PATH`, `HOME`, `LANG`, `USER` and `TMPDIR` of the
/// host where they are set, and what [`env`](Self::env) adds. It is started in a process group of
/// its own, so a terminal's Ctrl-C does not reach it.
#[derive(Clone)]
pub struct StdioSpec {
    pub(crate) command: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: BTreeMap<OsString, OsString>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) inherit_env: bool,
    /// How a configuration file writes the command, where it holds variables: that is shown, and
    /// not what the variables hold.
    pub(crate) written_command: Option<String>,
    /// The same for the working directory.
    pub(crate) written_cwd: Option<String>,
}

impl StdioSpec {
    /// The program `command`, looked up in `PATH` if it has no slash.
    pub fn new(command: impl Into<OsString>) -> Self {
        Self {
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            inherit_env: false,
            written_command: None,
            written_cwd: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the child's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Gives the child the whole environment of the host, secrets included.
    #[must_use]
    pub fn inherit_env(mut self) -> Self {
        self.inherit_env = true;
        self
    }

    /// The child's working directory.
    #[must_use]
    pub fn cwd(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cwd = Some(dir.into());
        self
    }

    /// The command in errors and `Debug`.
    pub(crate) fn shown_command(&self) -> Cow<'_, str> {
        match &self.written_command {
            Some(written) => Cow::Borrowed(written),
            None => self.command.to_string_lossy(),
        }
    }

    /// The working directory in errors.
    #[cfg(feature = "stdio")]
    pub(crate) fn shown_cwd(&self) -> Option<Cow<'_, str>> {
        match &self.written_cwd {
            Some(written) => Some(Cow::Borrowed(written)),
            None => self.cwd.as_ref().map(|dir| dir.to_string_lossy()),
        }
    }
}

impl fmt::Debug for StdioSpec {
    /// Shows the command alone: arguments and variables hold credentials in the field.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioSpec")
            .field("command", &self.shown_command())
            .finish_non_exhaustive()
    }
}

impl StdioSpec {
    pub(super) fn check(&self) -> Result<(), SpecError> {
        use std::os::unix::ffi::OsStrExt as _;
        if self.command.is_empty() {
            return Err(SpecError::EmptyCommand);
        }
        let pairs = self.env.iter().flat_map(|(name, value)| [name, value]);
        let holds_nul = |text: &OsString| text.as_bytes().contains(&0);
        if holds_nul(&self.command) {
            return Err(SpecError::Nul { what: "command" });
        }
        if self.args.iter().any(holds_nul) {
            return Err(SpecError::Nul { what: "arguments" });
        }
        if pairs.into_iter().any(holds_nul) {
            return Err(SpecError::Nul {
                what: "environment",
            });
        }
        Ok(())
    }
}
