//! Who is measured.

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Side {
    /// The bytes alone.
    Floor,
    /// Plain rmcp.
    Rmcp,
    /// This crate.
    Ours,
}

impl Side {
    pub(crate) const ALL: [Self; 3] = [Self::Floor, Self::Rmcp, Self::Ours];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Rmcp => "rmcp",
            Self::Ours => "ours",
        }
    }

    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.word() == word)
    }
}
