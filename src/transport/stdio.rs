//! Child processes: how a server is started, watched and stopped.
//!
//! Each server leads a process group of its own. Stopping is staged and bounded at every stage:
//! its stdin is closed, then the group gets SIGTERM, then SIGKILL. A [`guardian`] outside of this
//! process kills the group if the host itself is killed.

mod guardian;

use std::{
    io::ErrorKind,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    sync::watch,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{ExitWatch, Tail};
use crate::{error::StartFailure, event::Stopped, spec::StdioSpec};

/// The variables of the host that a child gets without being given them.
const INHERITED: [&str; 5] = ["PATH", "HOME", "LANG", "USER", "TMPDIR"];

/// How often a group is looked at while it is expected to go away. There is no event for the end
/// of a group whose members are not all our children.
const GROUP_POLL: Duration = Duration::from_millis(5);

/// How long the system is given to reap a group that was sent SIGKILL.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// A running server process.
pub(crate) struct ServerProcess {
    group: Group,
    watch: ExitWatch,
    /// Cancelled to close the server's stdin.
    pub(crate) close_stdin: CancellationToken,
}

/// The two pipes that carry the protocol.
pub(crate) struct Pipes {
    pub(crate) stdin: ChildStdin,
    pub(crate) stdout: ChildStdout,
}

impl ServerProcess {
    /// Starts the server.
    pub(crate) fn spawn(
        spec: &StdioSpec,
        stderr_limit: usize,
    ) -> Result<(Self, Pipes), (StartFailure, std::io::Error)> {
        let mut command = Command::new(&spec.command);
        command
            .args(&spec.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true);
        if !spec.inherit_env {
            command.env_clear();
            for name in INHERITED {
                if let Some(value) = std::env::var_os(name) {
                    command.env(name, value);
                }
            }
        }
        command.envs(&spec.env);
        if let Some(dir) = &spec.cwd {
            command.current_dir(dir);
        }
        let mut child = command
            .spawn()
            .map_err(|error| (explain(spec, &error), error))?;
        let missing = || {
            let error = std::io::Error::other("the process has no pipes");
            (StartFailure::NotStarted(ErrorKind::BrokenPipe), error)
        };
        let (Some(stdin), Some(stdout), Some(stderr), Some(pid)) = (
            child.stdin.take(),
            child.stdout.take(),
            child.stderr.take(),
            child.id(),
        ) else {
            return Err(missing());
        };
        let pid = Pid::from_raw(i32::try_from(pid).map_err(|_| missing())?);
        let group = Group::new(pid);
        let tail = Arc::new(Tail::new(stderr_limit));
        let (exit_sender, exit) = watch::channel(None);
        let draining = tokio::spawn(drain(stderr, Arc::clone(&tail)));
        tokio::spawn(reap(child, draining, exit_sender));
        let watch = ExitWatch { exit, stderr: tail };
        let process = Self {
            group,
            watch,
            close_stdin: CancellationToken::new(),
        };
        Ok((process, Pipes { stdin, stdout }))
    }

    pub(crate) fn exit_watch(&self) -> ExitWatch {
        self.watch.clone()
    }

    /// Stops the server and everything in its process group. Bounded by the two graces and a
    /// little, whatever the server does.
    ///
    /// # Cancel safety
    ///
    /// When dropped half way, the group is killed by the drop of the process.
    pub(crate) async fn stop(&self, stdin_grace: Duration, term_grace: Duration) -> Stopped {
        let exited_before = self.watch.status().is_some();
        self.close_stdin.cancel();
        let mut watch = self.watch.clone();
        let leader_left = tokio::time::timeout(stdin_grace, watch.exited())
            .await
            .is_ok();
        if leader_left && self.group.is_gone() {
            self.group.forget();
            return if exited_before {
                Stopped::ByItself
            } else {
                Stopped::StdinClosed
            };
        }
        self.group.signal(Signal::SIGTERM);
        if self.group.gone_within(term_grace).await {
            self.group.forget();
            return Stopped::Terminated;
        }
        self.group.signal(Signal::SIGKILL);
        if self.group.gone_within(AFTER_KILL).await {
            self.group.forget();
        }
        Stopped::Killed
    }
}

fn explain(spec: &StdioSpec, error: &std::io::Error) -> StartFailure {
    let command = spec.shown_command().chars().take(200).collect();
    if spec.cwd.as_ref().is_some_and(|dir| !dir.is_dir()) {
        let dir = spec.shown_cwd().unwrap_or_default();
        let dir = dir.chars().take(200).collect();
        return StartFailure::NoWorkingDirectory { dir };
    }
    match error.kind() {
        ErrorKind::NotFound => StartFailure::CommandNotFound { command },
        ErrorKind::PermissionDenied => StartFailure::NotExecutable { command },
        kind => StartFailure::NotStarted(kind),
    }
}

/// Reads stderr in bounded pieces for as long as anybody writes to it.
async fn drain(mut stderr: ChildStderr, tail: Arc<Tail>) {
    let mut chunk = vec![0; 16 * 1024];
    while let Ok(n @ 1..) = stderr.read(&mut chunk).await {
        tail.push(&chunk[..n]);
    }
}

/// Waits for the process, then tells how it exited, with its stderr read as far as it goes.
async fn reap(
    mut child: Child,
    draining: tokio::task::JoinHandle<()>,
    exit: watch::Sender<Option<String>>,
) {
    let status = match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => format!("exit status unknown: {error}"),
    };
    // A grandchild may hold stderr open; what it writes later is still read, but not waited for.
    let _ = tokio::time::timeout(Duration::from_millis(50), draining).await;
    exit.send_replace(Some(status));
}

/// A process group of ours. Dropped before it is gone, it is killed.
struct Group {
    leader: Pid,
    gone: AtomicBool,
    registration: guardian::Registration,
}

impl Group {
    fn new(leader: Pid) -> Self {
        let registration = guardian::register(leader);
        Self {
            leader,
            gone: AtomicBool::new(false),
            registration,
        }
    }

    fn signal(&self, signal: Signal) {
        // The only failure that can occur is that nobody is left to be signalled.
        let _ = killpg(self.leader, signal);
    }

    fn is_gone(&self) -> bool {
        matches!(killpg(self.leader, None), Err(Errno::ESRCH))
    }

    async fn gone_within(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            if self.is_gone() {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(GROUP_POLL).await;
        }
    }

    /// The group is gone: its number may be used by others from now on.
    fn forget(&self) {
        self.gone.store(true, Ordering::Release);
        self.registration.withdraw();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Acquire) {
            self.signal(Signal::SIGKILL);
            self.registration.withdraw();
        }
    }
}
