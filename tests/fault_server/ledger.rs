//! The files a fault server keeps in its directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The directory of one scripted server, shared by all its generations.
#[derive(Debug)]
pub(crate) struct Dir {
    root: Option<PathBuf>,
    ledger: Option<File>,
    wire: Option<File>,
}

impl Dir {
    /// Opens (and creates) the directory; without one nothing is recorded.
    pub(crate) fn open(root: Option<PathBuf>) -> io::Result<Self> {
        let Some(root) = root else {
            return Ok(Self {
                root: None,
                ledger: None,
                wire: None,
            });
        };
        for sub in ["pids", "generations", "sessions"] {
            fs::create_dir_all(root.join(sub))?;
        }
        let root = root.canonicalize()?;
        Ok(Self {
            ledger: Some(append(&root.join("ledger"))?),
            wire: Some(append(&root.join("wire"))?),
            root: Some(root),
        })
    }

    /// Claims the next number in a sub-directory: unique also among processes that race.
    pub(crate) fn claim(&self, sub: &str, content: &str) -> u64 {
        let Some(root) = &self.root else { return 1 };
        let dir = root.join(sub);
        let mut number = self.claimed(sub) + 1;
        loop {
            let made = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(dir.join(number.to_string()));
            match made {
                Ok(mut file) => {
                    let _ = writeln!(file, "{content}");
                    return number;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    eprintln!("fault_server: cannot claim {sub}/{number}: {error}");
                    return number;
                }
            }
        }
    }

    /// How many numbers of a sub-directory are taken.
    pub(crate) fn claimed(&self, sub: &str) -> u64 {
        self.root
            .as_ref()
            .and_then(|root| fs::read_dir(root.join(sub)).ok())
            .map_or(0, |entries| entries.count() as u64)
    }

    /// Records a process id in `pids/`.
    pub(crate) fn pid(&self, pid: u32, what: &str) {
        self.put(&format!("pids/{pid}"), what);
    }

    /// Writes a whole file by rename, so that a reader never sees half of it.
    pub(crate) fn put(&self, name: &str, content: &str) {
        let Some(root) = &self.root else { return };
        let scratch = root.join(format!(
            ".{}.{}",
            name.replace('/', "."),
            std::process::id()
        ));
        let done =
            fs::write(&scratch, content).and_then(|()| fs::rename(&scratch, root.join(name)));
        if let Err(error) = done {
            eprintln!("fault_server: cannot write {name}: {error}");
        }
    }

    /// A path of a script: relative to the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.root {
            Some(root) => root.join(name),
            None => PathBuf::from(name),
        }
    }

    /// Appends one line to a file that is not written often.
    pub(crate) fn line(&self, name: &str, text: &str) {
        let Some(root) = &self.root else { return };
        match append(&root.join(name)) {
            Ok(file) => one_write(&file, text),
            Err(error) => eprintln!("fault_server: cannot append to {name}: {error}"),
        }
    }

    /// The ledger line of one call, before its effect.
    pub(crate) fn ledger(&self, generation: u64, id: &Value, tool: &str, arguments: &Value) {
        let Some(file) = &self.ledger else { return };
        let key = arguments.get("key").map_or_else(|| "-".to_owned(), word);
        let id = word(id);
        let tool = word(&Value::from(tool));
        one_write(
            file,
            &format!("{generation} {id} {tool} {} {key}", hash(arguments)),
        );
    }

    /// The generation and the request id of the first ledger line of one of `tools` with that key.
    pub(crate) fn find(&self, tools: &[String], key: &Value) -> Option<(u64, String)> {
        let key = word(key);
        let text = fs::read_to_string(self.root.as_ref()?.join("ledger")).ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let generation = fields.next()?.parse().ok()?;
            let id = fields.next()?.to_owned();
            let tool = fields.next()?;
            let found = fields.nth(1)?;
            (found == key && tools.iter().any(|t| t == tool)).then_some((generation, id))
        })
    }

    /// One line of `wire`.
    pub(crate) fn wire(&self, text: &str) {
        if let Some(file) = &self.wire {
            one_write(file, text);
        }
    }

    /// The id of the last request of a method that a generation received, out of `wire`.
    pub(crate) fn last_id(&self, generation: u64, method: &str) -> Option<Value> {
        let text = fs::read_to_string(self.root.as_ref()?.join("wire")).ok()?;
        let head = format!("{generation} {method} ");
        let id = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(&head))?
            .split(' ')
            .next()?
            .to_owned();
        Some(
            id.parse::<i64>()
                .map_or_else(|_| Value::from(id), Value::from),
        )
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

fn one_write(mut file: &File, text: &str) {
    let mut line = String::with_capacity(text.len() + 1);
    line.push_str(text);
    line.push('\n');
    if let Err(error) = file.write_all(line.as_bytes()) {
        eprintln!("fault_server: cannot append: {error}");
    }
}

/// A value as one word of a line: strings bare, all else as compact JSON, no blanks.
pub(crate) fn word(value: &Value) -> String {
    let text = match value {
        Value::Null => return "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.is_empty() {
        return "-".to_owned();
    }
    text.replace(|c: char| c.is_whitespace() || c.is_control(), "_")
}

/// SHA-256 of the arguments as compact JSON with sorted members.
fn hash(arguments: &Value) -> String {
    let mut text = String::new();
    canonical(arguments, &mut text);
    let digest = Sha256::digest(text.as_bytes());
    let mut hex = String::with_capacity(64);
    for byte in digest {
        for nibble in [byte >> 4, byte & 15] {
            hex.push(char::from_digit(u32::from(nibble), 16).unwrap_or('?'));
        }
    }
    hex
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            out.push('{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(name.as_str()).to_string());
                out.push(':');
                canonical(member, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                canonical(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}
