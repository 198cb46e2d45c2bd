//! What the process holds: children, descriptors, memory.

use std::{fmt, fs, time::Duration};

/// The runtime, the guardian of the children and the allocator keep a little for themselves.
const MORE_DESCRIPTORS: usize = 4;

/// How much more memory than after a quarter of the time is a leak, in MB.
const MORE_MEMORY: u64 = 64;

#[derive(Clone, Debug)]
pub(crate) struct Held {
    /// Every process below this one.
    processes: Vec<String>,
    descriptors: usize,
    memory_mb: u64,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} processes below this one, {} descriptors, {} MB",
            self.processes.len(),
            self.descriptors,
            self.memory_mb
        )
    }
}

/// (its parent, its name) of the process `id`.
fn process(id: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name stands in brackets and may hold anything.
    let (head, tail) = stat.rsplit_once(')')?;
    let parent = tail.split_whitespace().nth(1)?.parse().ok()?;
    let name = head.split_once('(')?.1;
    Some((parent, format!("{id} {name}")))
}

impl Held {
    pub(crate) fn now() -> Self {
        let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let all: Vec<(u32, u32, String)> = ids
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|id| process(id).map(|(parent, name)| (id, parent, name)))
            .collect();
        let mut below = vec![std::process::id()];
        let mut processes = Vec::new();
        while let Some(parent) = below.pop() {
            for (id, _, name) in all.iter().filter(|(_, of, _)| *of == parent) {
                below.push(*id);
                processes.push(name.clone());
            }
        }
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kb: Option<u64> = memory.and_then(|m| m.split_whitespace().next()?.parse().ok());
        Self {
            processes,
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            memory_mb: kb.unwrap_or_default() / 1024,
        }
    }

    /// What is left over, beside what there was at the start.
    pub(crate) fn left_over(&self, start: &Self, warm: &Self) -> Vec<String> {
        let mut left = Vec::new();
        // The guardian of the children lives as long as the host does.
        let guardians = 1;
        if self.processes.len() > start.processes.len() + guardians {
            left.push(format!("processes are left: {:?}", self.processes));
        }
        if self.descriptors > start.descriptors + MORE_DESCRIPTORS {
            left.push(format!(
                "{} descriptors are open, and at the start there were {}",
                self.descriptors, start.descriptors
            ));
        }
        if self.memory_mb > warm.memory_mb + MORE_MEMORY {
            left.push(format!(
                "{} MB are in use, and after a quarter of the time it was {}",
                self.memory_mb, warm.memory_mb
            ));
        }
        left
    }
}

/// What is held once everything that was told to end had the time for it.
pub(crate) async fn settled(start: &Held) -> Held {
    let mut held = Held::now();
    for _ in 0..100 {
        if held.left_over(start, &held).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        held = Held::now();
    }
    held
}
