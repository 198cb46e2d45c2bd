//! The schedule: what becomes of which call, and of which start of a server, from the seed alone.

/// What a server does with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It does it, and answers.
    Good,
    /// It does it, and answers after a while.
    Slow,
    /// It does it, and answers after its caller was told that nobody knows.
    Late,
    /// It does it, and answers twice.
    Twice,
    /// It refuses it.
    Refuse,
    /// It does it, and answers with an error.
    Fail,
    /// It does nothing, and says nothing.
    StallBefore,
    /// It does it, and says nothing.
    StallAfter,
    /// A child kills itself with SIGKILL before it does it. A socket is reset.
    DieBefore,
    /// The same after it was done.
    DieAfter,
    /// It does it and exits, or closes the socket.
    Exit,
    /// It does it, and answers with what is no message.
    Garbage,
    /// It does it, and goes in the middle of the answer.
    Half,
    /// It does it, closes its stdout and lives on; or forgets the session.
    HangUp,
}

/// How a server begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Well,
    /// It exits at once.
    Exit,
    /// It never answers.
    Hang,
    /// It prints what is no message, and works.
    Noise,
    /// It works, and goes neither at the end of its stdin nor at SIGTERM.
    Stubborn,
}

/// Of a thousand calls. The others are good.
const CALLS: [(u64, Fate); 13] = [
    (40, Fate::Slow),
    (6, Fate::Late),
    (10, Fate::Twice),
    (15, Fate::Refuse),
    (10, Fate::Fail),
    (5, Fate::StallBefore),
    (5, Fate::StallAfter),
    (8, Fate::DieBefore),
    (10, Fate::DieAfter),
    (6, Fate::Exit),
    (6, Fate::Garbage),
    (6, Fate::Half),
    (5, Fate::HangUp),
];

/// Of a thousand starts.
const STARTS: [(u64, Start); 4] = [
    (60, Start::Exit),
    (10, Start::Hang),
    (60, Start::Noise),
    (40, Start::Stubborn),
];

/// Numbers from a number, none of which tells of the others.
fn mixed(of: [u64; 4]) -> u64 {
    of.into_iter().fold(0, |so_far, one| {
        let mut z = (so_far ^ one).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn pick<T: Copy>(table: &[(u64, T)], otherwise: T, number: u64) -> T {
    let mut left = number % 1_000;
    for (share, what) in table {
        if left < *share {
            return *what;
        }
        left -= share;
    }
    otherwise
}

/// A server in one of its starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    /// The server's number.
    pub(crate) server: u64,
    /// How often it was started before.
    pub(crate) start: u64,
}

impl Schedule {
    pub(crate) fn begins(&self) -> Start {
        let number = mixed([self.seed, self.server, self.start, 0]);
        pick(&STARTS, Start::Well, number)
    }

    /// What becomes of the call `number` of this start, from 1 on.
    pub(crate) fn call(&self, number: u64) -> Fate {
        let number = mixed([self.seed, self.server, self.start, number]);
        pick(&CALLS, Fate::Good, number)
    }
}
