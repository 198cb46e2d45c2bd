//! One foreign server on one seat: started, its ledger read, killed, started again, and gone.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::Write as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use mcp_supervisor::{ConnectionSpec, HttpSpec, Limits, OwnedConnection, StdioSpec, Supervisor};
use tempfile::TempDir;

use crate::{
    person::Person,
    rows::{Program, Row, Seat, Wire},
    support::{example, is_running, kill, until},
};

/// How long a server may take until it listens.
const LISTENS: Duration = Duration::from_secs(60);

/// Under `.ci/run foreign` a server that is not there is a failure.
pub fn required() -> bool {
    std::env::var_os("FOREIGN_REQUIRED").is_some()
}

/// Says something past the capturing of a test's output.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn installed_in(variable: &str, below: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(variable)?).join(below);
    path.exists().then_some(path)
}

fn interpreter(program: Program) -> Option<PathBuf> {
    match program {
        Program::Python(environment, _) => {
            installed_in("FOREIGN_PYTHON", &format!("{environment}/bin/python"))
        }
        Program::Node(_) | Program::Everything => {
            installed_in("FOREIGN_NODE", "node_modules/.bin/node")
        }
        Program::Rmcp => Some(example("rmcp_server")),
    }
}

pub fn is_installed(row: &Row) -> bool {
    interpreter(row.program).is_some()
}

/// A foreign server with a connection to it. Dropped, all of it is gone.
pub struct Taken {
    row: &'static Row,
    dir: Arc<TempDir>,
    mark: String,
    port: u16,
    served: Cell<Option<Served>>,
    pub connection: OwnedConnection,
    _supervisor: Supervisor,
}

/// A server over HTTP, which the test starts itself. Dropped, it is killed.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is left of a seat: only its mark in the environment of its processes.
pub struct Left {
    mark: String,
    _dir: Arc<TempDir>,
}

impl Left {
    pub async fn until_gone(&self) {
        until("no process of the server runs", || {
            marked(&self.mark).is_empty()
        })
        .await;
    }
}

/// An interpreter takes its time to start on a busy machine, and is not older for that.
fn patient() -> Limits {
    Limits {
        start: Duration::from_secs(90),
        discover: Duration::from_secs(9),
        ..Limits::default()
    }
}

/// The processes that were started with this mark.
fn marked(mark: &str) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("there is a /proc");
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
            && is_running(*pid)
    })
    .collect()
}

impl Taken {
    pub async fn new(row: &'static Row, seat: Seat) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let name = dir.path().file_name().unwrap().to_string_lossy();
        let mark = format!("FOREIGN_MARK={name}");
        install_scripts(dir.path());
        let port = free_port();
        let served = match seat.wire {
            Wire::Http => Some(serve(row, dir.path(), port).await),
            Wire::Stdio => None,
        };
        let spec = match seat.wire {
            Wire::Http => HttpSpec::new(format!("http://127.0.0.1:{port}/mcp")).into(),
            Wire::Stdio => ConnectionSpec::from(child(row, dir.path())),
        };
        let supervisor = Supervisor::builder().start().await.unwrap();
        let spec = spec.era(seat.era()).limits(patient()).handler(Person);
        let connection = supervisor.open(row.name, spec).await.unwrap();
        Self {
            row,
            dir,
            mark,
            port,
            served: Cell::new(served),
            connection,
            _supervisor: supervisor,
        }
    }

    pub fn left(&self) -> Left {
        Left {
            mark: self.mark.clone(),
            _dir: Arc::clone(&self.dir),
        }
    }

    pub fn generation(&self) -> u64 {
        self.connection.status().generation.unwrap().number()
    }

    /// A call that works.
    pub async fn echo(&self, row: &Row) {
        let (call, says) = row.echo();
        let answer = self.connection.call_tool(call).await.unwrap();
        assert_eq!(answer.text(), says);
        assert!(!answer.is_error());
    }

    pub fn ledger(&self) -> Vec<String> {
        std::fs::read_to_string(ledger(self.dir.path()))
            .unwrap_or_default()
            .lines()
            // without the process id
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    pub fn has_noted(&self, fact: &str) -> bool {
        self.ledger().iter().any(|line| line == fact)
    }

    pub fn count(&self, beginning: &str) -> usize {
        let ledger = self.ledger();
        ledger.iter().filter(|l| l.starts_with(beginning)).count()
    }

    pub async fn until_noted(&self, fact: &str) {
        until(&format!("{} noted {fact}", self.row.name), || {
            self.has_noted(fact)
        })
        .await;
    }

    /// Kills every process of the server with SIGKILL, whoever started it.
    pub fn kill_the_server(&self) {
        let pids = marked(&self.mark);
        assert!(!pids.is_empty(), "it runs");
        for pid in pids {
            kill(pid);
        }
        // A socket listens until the last thread of its process is gone.
        drop(self.served.take());
    }

    /// Starts a server over HTTP on its old port. A child process is the connection's to start.
    pub async fn start_again(&self) {
        if self.connection_is_http() {
            let served = serve(self.row, self.dir.path(), self.port).await;
            self.served.set(Some(served));
        }
    }

    fn connection_is_http(&self) -> bool {
        self.dir.path().join("stderr").exists()
    }
}

fn ledger(dir: &Path) -> PathBuf {
    dir.join("ledger")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// Puts the small servers beside a `node_modules`, which is where Node looks for packages.
fn install_scripts(dir: &Path) {
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/servers");
    for entry in std::fs::read_dir(servers).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
    }
    if let Some(modules) = installed_in("FOREIGN_NODE", "node_modules") {
        std::os::unix::fs::symlink(modules, dir.join("node_modules")).unwrap();
    }
}

/// The program of a row, with its arguments before those for the transport.
fn program(row: &Row, dir: &Path) -> (PathBuf, Vec<OsString>) {
    let interpreter = interpreter(row.program).expect("the row is installed");
    let script = match row.program {
        Program::Python(_, script) | Program::Node(script) => vec![dir.join(script).into()],
        Program::Everything => {
            let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
            vec![dir.join(script).into()]
        }
        Program::Rmcp => Vec::new(),
    };
    (interpreter, script)
}

/// What the environment of a server has beside the usual.
fn environment(dir: &Path) -> BTreeMap<&'static str, OsString> {
    BTreeMap::from([
        ("FOREIGN_MARK", dir.file_name().unwrap().to_owned()),
        ("FOREIGN_LEDGER", ledger(dir).into()),
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
    ])
}

fn child(row: &Row, dir: &Path) -> StdioSpec {
    let (program, arguments) = program(row, dir);
    let mut spec = StdioSpec::new(program).args(arguments).arg("stdio");
    for (name, value) in environment(dir) {
        spec = spec.env(name, value);
    }
    spec
}

/// Starts a server over HTTP and waits until it listens.
async fn serve(row: &Row, dir: &Path, port: u16) -> Served {
    let (program, arguments) = program(row, dir);
    let mut command = Command::new(program);
    command.args(arguments).envs(environment(dir));
    if row.program == Program::Everything {
        command.arg("streamableHttp").env("PORT", port.to_string());
    } else {
        command.arg("http").arg(port.to_string());
    }
    let stderr = File::options()
        .append(true)
        .create(true)
        .open(dir.join("stderr"))
        .unwrap();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let mut served = Served(command.spawn().unwrap());
    let listens = async {
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = served.0.try_wait().unwrap() {
                let said = std::fs::read_to_string(dir.join("stderr")).unwrap_or_default();
                panic!("{} ended with {status}: {said}", row.name);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LISTENS, listens)
        .await
        .unwrap_or_else(|_| panic!("{} does not listen", row.name));
    served
}
