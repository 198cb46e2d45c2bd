//! What this process holds: processes, descriptors, memory.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use crate::Ending;

#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// The processes below this one, and those of this run that have lost their parent: the identity of
    /// each and its command.
    pub(crate) processes: BTreeMap<u32, String>,
    pub(crate) descriptors: usize,
    pub(crate) tasks: usize,
    /// In KiB.
    pub(crate) memory: u64,
}

/// Its parent, and its command.
fn process(id: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name stands in brackets, and may hold anything.
    let (head, tail) = stat.rsplit_once(')')?;
    let parent = tail.split_whitespace().nth(1)?.parse().ok()?;
    let command = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    let command: Vec<_> = command.split(|byte| *byte == 0).collect();
    let command = String::from_utf8_lossy(&command.join(&b' '))
        .trim()
        .to_owned();
    if command.is_empty() {
        let name = head.rsplit('(').next()?;
        return Some((
            parent,
            format!("{name}, which has ended and is not waited for"),
        ));
    }
    Some((parent, command))
}

/// The processes of a run, without this one.
pub(crate) fn processes(run: &Path) -> BTreeMap<u32, String> {
    let run = run.display().to_string();
    let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: BTreeMap<u32, (u32, String)> = ids
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|id| Some((id, process(id)?)))
        .collect();
    let this = std::process::id();
    let mut of_run: BTreeMap<u32, String> = all
        .iter()
        .filter(|(id, (_, command))| **id != this && command.contains(&run))
        .map(|(id, (_, command))| (*id, command.clone()))
        .collect();
    let mut above = vec![this];
    while let Some(parent) = above.pop() {
        for (id, (_, command)) in all.iter().filter(|(_, (of, _))| *of == parent) {
            above.push(*id);
            of_run.insert(*id, command.clone());
        }
    }
    of_run
}

impl Held {
    pub(crate) fn now(run: &Path) -> Ending<Self> {
        let status = fs::read_to_string("/proc/self/status")
            .map_err(|error| format!("this program needs Linux's /proc: {error}"))?;
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.and_then(|kib| kib.split_whitespace().next()?.parse().ok());
        let runtime = tokio::runtime::Handle::current();
        Ok(Self {
            processes: processes(run),
            // One of them is the directory that is read here.
            descriptors: fs::read_dir("/proc/self/fd")?.count() - 1,
            tasks: runtime.metrics().num_alive_tasks(),
            memory: memory.ok_or("there is no VmRSS")?,
        })
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:5} processes {:6} descriptors {:6} tasks {:8} KiB",
            self.processes.len(),
            self.descriptors,
            self.tasks,
            self.memory
        )
    }
}
