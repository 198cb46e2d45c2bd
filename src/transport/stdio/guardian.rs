//! Kills the servers of a host that was killed.
//!
//! A host that gets SIGKILL runs no code of its own any more. So one small process outside of it, a
//! POSIX shell, holds the reading end of a pipe whose writing end is the host's. It keeps the list
//! of process groups that the host tells it, and when the pipe ends, because the host did, it kills
//! what is on the list.
//!
//! Linux's parent-death signal would need no helper, but it is sent when the *thread* that started
//! the child ends, which in a thread pool is not when the host does, and it reaches the child
//! alone, not what the child has started.

use std::{
    io::Write as _,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::unistd::Pid;
use std::os::unix::process::CommandExt as _;

/// Reads `+ GROUP` and `- GROUP` until the host is gone. Built-ins only, so it needs no PATH.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
groups=
while read -r op group; do
  case $op in
    +) groups="$groups $group" ;;
    -) rest=
       for g in $groups; do [ "$g" = "$group" ] || rest="$rest $g"; done
       groups=$rest ;;
  esac
done
for g in $groups; do kill -KILL "-$g" 2>/dev/null; done
"#;

static GUARDIAN: Mutex<Option<Child>> = Mutex::new(None);

/// One process group on the guardian's list.
pub(super) struct Registration {
    group: Pid,
    withdrawn: AtomicBool,
}

/// Puts `group` on the list, starting the guardian if there is none.
pub(super) fn register(group: Pid) -> Registration {
    let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
    if !tell(&mut guardian, '+', group) {
        *guardian = start();
        if !tell(&mut guardian, '+', group) {
            tracing::warn!(
                "no guardian process could be started: if this host is killed with SIGKILL, its \
                 servers are left to notice the end of their stdin"
            );
        }
    }
    Registration {
        group,
        withdrawn: AtomicBool::new(false),
    }
}

impl Registration {
    /// Takes the group off the list. Only the first call counts.
    pub(super) fn withdraw(&self) {
        if !self.withdrawn.swap(true, Ordering::AcqRel) {
            let mut guardian = GUARDIAN.lock().unwrap_or_else(PoisonError::into_inner);
            tell(&mut guardian, '-', self.group);
        }
    }
}

fn start() -> Option<Child> {
    Command::new("/bin/sh")
        .args(["-c", SCRIPT])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .ok()
}

/// One line to the guardian. A pipe holds thousands of them, and the guardian only reads.
fn tell(guardian: &mut Option<Child>, op: char, group: Pid) -> bool {
    let pipe = guardian.as_mut().and_then(|child| child.stdin.as_mut());
    pipe.is_some_and(|pipe| pipe.write_all(format!("{op} {group}\n").as_bytes()).is_ok())
}
