//! A [`journal_writer`](writer.rs) and what it said.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use mcp_supervisor::operation::OperationId;

use crate::support::example;

/// A process of its own that writes a journal. It is killed when it is dropped.
pub(super) struct JournalWriter {
    child: Child,
    _stdin: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
    pub(super) said: Said,
}

/// What it has acknowledged.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) open: bool,
    pub(super) accepted: BTreeSet<OperationId>,
    pub(super) settled: BTreeSet<OperationId>,
    /// Those that it settled after it said that there is room.
    pub(super) after_room: usize,
    pub(super) room: bool,
    pub(super) closed: bool,
    pub(super) refused: Vec<String>,
}

impl JournalWriter {
    pub(super) fn start(mode: &str, path: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(example("journal_writer"));
        command.arg(mode).arg(path).args(more);
        Self::of(command)
    }

    /// Through a shell, which runs `before` and then becomes the writer.
    pub(super) fn in_shell(before: &str, mode: &str, path: &Path, more: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{before}; exec \"$0\" \"$@\""))
            .arg(example("journal_writer"))
            .arg(mode)
            .arg(path)
            .args(more);
        Self::of(command)
    }

    pub(super) fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the writer starts");
        Self {
            _stdin: child.stdin.take(),
            out: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
            said: Said::default(),
        }
    }

    /// Reads on until `enough`, or to the end of what it says. Says whether it was enough.
    pub(super) fn listen(&mut self, mut enough: impl FnMut(&Said) -> bool) -> bool {
        let mut line = String::new();
        while !enough(&self.said) {
            line.clear();
            let read = self.out.read_line(&mut line).expect("a pipe is read");
            // The last line of one that was killed may be half of one.
            if read == 0 || !line.ends_with('\n') {
                return false;
            }
            self.said.note(line.trim_end());
        }
        true
    }

    /// SIGKILL, and what it had said until then.
    pub(super) fn kill(mut self) -> Said {
        self.child.kill().expect("it is ours to kill");
        self.finish()
    }

    /// What it says until its end.
    pub(super) fn finish(mut self) -> Said {
        self.listen(|_| false);
        self.child.wait().expect("it ends");
        std::mem::take(&mut self.said)
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    fn note(&mut self, line: &str) {
        let id = |text: &str| text.parse::<OperationId>().expect("an operation id");
        match line.split_once(' ') {
            Some(("accepted", text)) => drop(self.accepted.insert(id(text))),
            Some(("settled", text)) => {
                self.settled.insert(id(text));
                self.after_room += usize::from(self.room);
            }
            Some(("refused", why)) => self.refused.push(why.to_owned()),
            _ => match line {
                "open" => self.open = true,
                "room" => self.room = true,
                "closed" => self.closed = true,
                other => panic!("the writer said {other}"),
            },
        }
    }
}
