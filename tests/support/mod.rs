//! What the tests share: a directory for one fault server, its processes, and its ledger.
//!
//! Each test binary uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod host;
pub mod lane;
pub mod lent;
pub mod logs;
pub mod postgres;
pub mod rig;
pub mod shop;
pub mod store;
pub mod world;

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use mcp_supervisor::{ConnectionSpec, Era, HttpSpec, StdioSpec, spec::Revision};
use serde_json::Value;
use tempfile::TempDir;

/// The outer deadline of a test with real processes.
pub const HARD: Duration = Duration::from_secs(60);

/// Runs a test body within the outer deadline.
pub async fn bounded<T>(body: impl Future<Output = T>) -> T {
    tokio::time::timeout(HARD, body)
        .await
        .expect("the test ran into its outer deadline")
}

/// Waits until `condition` holds, looking every few milliseconds.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

/// A program of this package that `cargo test` builds beside the tests.
pub fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let debug = test
        .parent()
        .and_then(Path::parent)
        .expect("tests are built in target/*/deps");
    let path = debug.join("examples").join(name);
    assert!(
        path.exists(),
        "{} is not built; run plain `cargo test`",
        path.display()
    );
    path
}

/// The fault server as a child process, by its directory and its script.
pub fn fault_server(dir: &Path, script: &str) -> StdioSpec {
    StdioSpec::new(example("fault_server"))
        .arg("stdio")
        .arg("--dir")
        .arg(dir)
        .arg("--script")
        .arg(script)
}

/// Both eras, by name.
pub fn initialize() -> Era {
    Era::Initialize(Revision::V2025_11_25)
}

/// One directory with one script.
pub struct Bed {
    dir: TempDir,
    script: String,
}

/// A line of the ledger: a side effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub generation: u64,
    pub request: String,
    pub tool: String,
    pub arguments: String,
    pub key: String,
}

/// A line of the wire log: a message that the server read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub generation: u64,
    pub method: String,
    pub id: String,
    pub rest: Vec<String>,
}

impl Bed {
    pub fn new(script: Value) -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            script: script.to_string(),
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Creates a file that a step of the script waits for.
    pub fn touch(&self, name: &str) {
        std::fs::write(self.file(name), "").expect("the directory can be written");
    }

    pub async fn until_file(&self, name: &str) {
        let path = self.file(name);
        until(&format!("{name} is there"), || path.exists()).await;
    }

    pub fn script(&self) -> &str {
        &self.script
    }

    /// The messages that the server read, as JSON, where the script says `log_messages`.
    pub fn messages(&self) -> Vec<Value> {
        std::fs::read_to_string(self.file("messages"))
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("a message is JSON"))
            .map(|mut line| line["message"].take())
            .collect()
    }

    /// The server as a child process.
    pub fn stdio(&self) -> StdioSpec {
        fault_server(self.path(), &self.script)
    }

    pub fn stdio_spec(&self, era: Era) -> ConnectionSpec {
        ConnectionSpec::from(self.stdio()).era(era)
    }

    /// The server as a command, for clients that are not ours.
    pub fn command(&self, kind: &str) -> Command {
        let mut command = Command::new(example("fault_server"));
        command
            .arg(kind)
            .arg("--dir")
            .arg(self.path())
            .arg("--script")
            .arg(&self.script);
        command
    }

    /// Starts the server over HTTP and waits until it listens.
    pub async fn http(&self) -> HttpServer {
        self.http_at("127.0.0.1:0").await
    }

    pub async fn http_at(&self, addr: &str) -> HttpServer {
        let _ = std::fs::remove_file(self.file("addr"));
        let mut command = self.command("http");
        command
            .arg("--addr")
            .arg(addr)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // Before the wait, so that it is killed also where nobody waits any more.
        let mut server = HttpServer {
            child: command.spawn().expect("the fault server starts"),
            addr: String::new(),
        };
        self.until_file("addr").await;
        let addr = std::fs::read_to_string(self.file("addr")).expect("addr can be read");
        addr.trim().clone_into(&mut server.addr);
        server
    }

    fn lines(&self, name: &str) -> Vec<Vec<String>> {
        std::fs::read_to_string(self.file(name))
            .unwrap_or_default()
            .lines()
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect()
    }

    pub fn effects(&self) -> Vec<Effect> {
        self.lines("ledger")
            .into_iter()
            .map(|c| Effect {
                generation: c[0].parse().expect("a generation"),
                request: c[1].clone(),
                tool: c[2].clone(),
                arguments: c[3].clone(),
                key: c[4].clone(),
            })
            .collect()
    }

    /// How often a tool ran.
    pub fn ran(&self, tool: &str) -> usize {
        self.effects().iter().filter(|e| e.tool == tool).count()
    }

    pub fn wire(&self) -> Vec<Read> {
        self.lines("wire")
            .into_iter()
            .map(|c| Read {
                generation: c[0].parse().expect("a generation"),
                method: c[1].clone(),
                id: c[2].clone(),
                rest: c[3..].to_vec(),
            })
            .collect()
    }

    /// How often a method was read.
    pub fn read(&self, method: &str) -> usize {
        self.wire().iter().filter(|r| r.method == method).count()
    }

    /// The processes that were started, and what their files say.
    pub fn pids(&self) -> BTreeMap<i32, String> {
        let Ok(entries) = std::fs::read_dir(self.file("pids")) else {
            return BTreeMap::new();
        };
        entries
            .flatten()
            .filter_map(|e| {
                let pid = e.file_name().to_string_lossy().parse().ok()?;
                Some((pid, std::fs::read_to_string(e.path()).unwrap_or_default()))
            })
            .collect()
    }

    /// Those of them that still run.
    pub fn running(&self) -> Vec<i32> {
        self.pids()
            .into_keys()
            .filter(|pid| is_running(*pid))
            .collect()
    }

    pub async fn until_all_gone(&self) {
        until("every process is gone", || self.running().is_empty()).await;
    }
}

/// Whether a process runs; one that is dead and not yet reaped does not.
pub fn is_running(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

pub fn kill(pid: i32) {
    let status = Command::new("kill")
        .arg("-KILL")
        .arg(pid.to_string())
        .status();
    assert!(status.is_ok_and(|s| s.success()), "kill {pid}");
}

/// Kills a process, if it still is one that was started for this directory: a number is given again.
pub fn kill_if_of(pid: i32, directory: &Path) {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    if command.contains(&*directory.to_string_lossy()) {
        // It may be gone meanwhile.
        let mut kill = Command::new("kill");
        let _ = kill
            .args(["-KILL", &pid.to_string()])
            .stderr(Stdio::null())
            .status();
    }
}

/// A fault server over HTTP. Dropped, it is killed.
pub struct HttpServer {
    child: Child,
    pub addr: String,
}

impl HttpServer {
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    pub fn spec(&self, era: Era) -> ConnectionSpec {
        ConnectionSpec::from(HttpSpec::new(self.url())).era(era)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.kill();
    }
}
