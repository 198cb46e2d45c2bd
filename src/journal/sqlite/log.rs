//! What SQLite does not say of its write-ahead log: that records are missing in the middle of it.
//!
//! It reads the log up to the first frame whose checksum is wrong and takes that for the end: after a
//! crash that is right for what was being written, since nobody was told that it is there. A frame that
//! was damaged later looks the same, and all behind it would be gone without a word. What tells the two
//! apart is what follows: a commit is on the disk before the next one begins. Where whole commits of
//! the same log follow a wrong frame, that frame was right once.
//!
//! Damage to the very last commit cannot be told from a commit that a crash cut short.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use super::{StoreError, place::beside};

const HEADER: usize = 32;
const FRAME: usize = 24;

/// Refuses a log in which records are missing. To be asked before SQLite opens the file.
pub(super) fn examine(path: &Path) -> Result<(), StoreError> {
    let path = beside(path, "-wal");
    let Ok(file) = File::open(&path) else {
        // None is there, or SQLite will say why it cannot be read.
        return Ok(());
    };
    match is_whole(BufReader::with_capacity(1 << 16, file)) {
        true => Ok(()),
        false => Err(StoreError::Corrupt(
            format!(
                "{}: it is damaged before its end, and what was recorded after that would be lost; \
                 put back a copy of the journal's files",
                path.display()
            )
            .into(),
        )),
    }
}

/// The running checksum of a log.
struct Sum {
    little: bool,
    at: (u32, u32),
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        let word = |at: &[u8]| match self.little {
            true => u32::from_le_bytes([at[0], at[1], at[2], at[3]]),
            false => u32::from_be_bytes([at[0], at[1], at[2], at[3]]),
        };
        let (mut one, mut two) = self.at;
        for pair in bytes.chunks_exact(8) {
            one = one.wrapping_add(word(&pair[..4])).wrapping_add(two);
            two = two.wrapping_add(word(&pair[4..])).wrapping_add(one);
        }
        self.at = (one, two);
    }

    fn is(&self, stored: &[u8]) -> bool {
        self.at == (big(&stored[..4]), big(&stored[4..]))
    }
}

fn big(at: &[u8]) -> u32 {
    u32::from_be_bytes([at[0], at[1], at[2], at[3]])
}

fn is_whole(mut log: impl Read) -> bool {
    let mut header = [0; HEADER];
    if log.read_exact(&mut header).is_err() {
        // Too short to hold anything.
        return true;
    }
    let mut sum = Sum {
        little: big(&header[..4]) & 1 == 0,
        at: (0, 0),
    };
    sum.add(&header[..24]);
    if !sum.is(&header[24..]) {
        // It is one sector, written and synced before any frame is. One of zeros was never written.
        return header.iter().all(|byte| *byte == 0);
    }
    let page = big(&header[8..12]) as usize;
    if !page.is_power_of_two() || !(512..=65_536).contains(&page) {
        return false;
    }
    let mut frame = vec![0; FRAME + page];
    let mut is_right = true;
    let mut commits_after = 0;
    while log.read_exact(&mut frame).is_ok() {
        let of_this_log = frame[8..16] == header[16..24];
        if is_right {
            sum.add(&frame[..8]);
            sum.add(&frame[FRAME..]);
            is_right = of_this_log && sum.is(&frame[16..24]);
        }
        let commits = big(&frame[4..8]) != 0;
        if !is_right && of_this_log && commits {
            commits_after += 1;
        }
    }
    // One is that of the frame itself, which a crash may have cut short.
    commits_after < 2
}
