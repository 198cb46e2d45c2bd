//! A real host process with a journal in a file, which a test gives orders, and kills.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use mcp_supervisor::{Era, ToolContract};
use serde_json::{Value, json};

use super::{HARD, example, world::World};

/// A host process. Dropped, it is killed.
pub struct HostProcess {
    child: Child,
    orders: ChildStdin,
    lines: Receiver<Value>,
}

/// What a host is started with.
pub fn options(world: &World, contract: &ToolContract) -> Value {
    let mut options = json!({
        "journal": journal_of(world),
        "era": match world.era { Era::Discover => "discover", _ => "initialize" },
        "contracts": {"charge": contract},
        "keep_arguments": true,
        "max_attempts": 1,
        "tasks": true,
    });
    match &world.http {
        Some(http) => options["url"] = json!(http.url()),
        None => {
            options["server"] = json!([
                example("fault_server"),
                "stdio",
                "--dir",
                world.bed.path(),
                "--script",
                world.bed.script(),
            ]);
        }
    }
    options
}

pub fn journal_of(world: &World) -> PathBuf {
    world.bed.file("journal.sqlite")
}

impl HostProcess {
    /// Starts a host and waits until it has opened its journal and its connections.
    pub fn start(options: &Value) -> Self {
        let mut host = Self::begin(options);
        host.until(|line| line["event"] == "open");
        host
    }

    /// Starts a host.
    pub fn begin(options: &Value) -> Self {
        let mut child = Command::new(example("journal_host"))
            .arg(options.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the host starts");
        let orders = child.stdin.take().expect("a pipe");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        let (told, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("a host tells JSON");
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            orders,
            lines,
        }
    }

    pub fn order(&mut self, order: &Value) {
        writeln!(self.orders, "{order}").expect("the host reads");
    }

    /// The next line for which `wanted` holds.
    pub fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.lines.recv_timeout(HARD) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => assert_ne!(line["did"], "fail", "{line}"),
                Err(RecvTimeoutError::Timeout) => panic!("the host does not tell it"),
                Err(RecvTimeoutError::Disconnected) => panic!("the host ended"),
            }
        }
    }

    /// Gives an order and waits for its answer.
    pub fn ask(&mut self, order: Value) -> Value {
        self.order(&order);
        self.until(|line| line["did"] == order["do"])
    }

    /// What is not settled.
    pub fn listed(&mut self) -> Vec<Value> {
        let mut answer = self.ask(json!({"do": "list"}));
        match answer["operations"].take() {
            Value::Array(records) => records,
            other => panic!("no list: {other}"),
        }
    }

    /// The next line, or none where the host has ended.
    pub fn next(&mut self) -> Option<Value> {
        match self.lines.recv_timeout(HARD) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => panic!("the host tells nothing"),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    /// SIGSTOP: it does nothing more, and does not know.
    ///
    /// Whoever stops a process is not told when its last thread stands still, and until then it goes on.
    pub fn freeze(&self) {
        self.signal("-STOP");
        let threads = format!("/proc/{}/task", self.child.id());
        let until = Instant::now() + Duration::from_secs(10);
        while !stands_still(Path::new(&threads)) {
            assert!(Instant::now() < until, "it does not stand still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// SIGCONT: it goes on as if nothing had been.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.is_ok_and(|s| s.success()), "kill {signal} {pid}");
    }

    /// SIGKILL, and the end is waited for.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Ends it in good order.
    pub fn close(mut self) {
        self.order(&json!({"do": "close"}));
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while self
            .child
            .try_wait()
            .expect("it can be waited for")
            .is_none()
        {
            assert!(
                std::time::Instant::now() < deadline,
                "the host does not end"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether every thread is stopped, where the system tells.
fn stands_still(threads: &Path) -> bool {
    let Ok(threads) = std::fs::read_dir(threads) else {
        return true;
    };
    let stats = threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    // The state stands behind the name, which is in brackets and may hold anything.
    let mut states = stats.map(|stat| {
        let behind = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        behind.trim_start().chars().next()
    });
    states.all(|state| state == Some('T'))
}
