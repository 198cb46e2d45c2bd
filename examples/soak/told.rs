//! What callers were told, in a file, so that it takes no memory of this process; and how often.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::Ending;

/// What became of an operation, as far as its caller was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Became {
    Answered,
    NotSent,
    Rejected,
    Failed,
    Unknown,
    /// Its caller stopped waiting.
    GivenUp,
    /// It did not end, long after its deadline.
    Never,
}

impl Became {
    pub(crate) const ALL: [Self; 7] = [
        Self::Answered,
        Self::NotSent,
        Self::Rejected,
        Self::Failed,
        Self::Unknown,
        Self::GivenUp,
        Self::Never,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::NotSent => "not-sent",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::GivenUp => "given-up",
            Self::Never => "never-ended",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|became| became.as_str() == name)
    }
}

/// How many of what ended how.
pub(crate) type Counts = BTreeMap<(&'static str, Became), u64>;

pub(crate) struct Told {
    path: PathBuf,
    book: Mutex<(BufWriter<File>, Counts)>,
}

impl Told {
    pub(crate) fn open(run: &Path) -> Ending<Self> {
        let path = run.join("told");
        let file = BufWriter::new(File::create(&path)?);
        Ok(Self {
            path,
            book: Mutex::new((file, Counts::new())),
        })
    }

    fn book(&self) -> MutexGuard<'_, (BufWriter<File>, Counts)> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of an operation that is known by its mark.
    pub(crate) fn of(&self, over: &'static str, mark: &str, tool: &str, became: Became) {
        let mut book = self.book();
        *book.1.entry((over, became)).or_default() += 1;
        // What could not be written is missed when it is read.
        let _ = writeln!(book.0, "{mark} {tool} {}", became.as_str());
    }

    /// Of anything else.
    pub(crate) fn count(&self, what: &'static str, became: Became) {
        *self.book().1.entry((what, became)).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.book().1.clone()
    }

    /// Gives each line to `read`: a mark, a tool, and what its caller was told.
    pub(crate) fn read(&self, mut read: impl FnMut(&str, &str, Became)) -> Ending {
        self.book().0.flush()?;
        let file = io::BufReader::new(File::open(&self.path)?);
        for line in io::BufRead::lines(file) {
            let line = line?;
            let words: Vec<_> = line.split(' ').collect();
            let [mark, tool, became] = words[..] else {
                return Err(format!("a line of what was told is broken: {line}").into());
            };
            read(mark, tool, Became::named(became).ok_or("an unknown word")?);
        }
        Ok(())
    }
}
