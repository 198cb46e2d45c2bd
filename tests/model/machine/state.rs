//! The state: operations with their attempts on the wire, hosts with their connections, the journal,
//! and what only an all-seeing witness knows.

use mcp_supervisor::journal::table;

use super::step::Session;

/// How many hosts there are.
pub const HOSTS: usize = 2;

/// How many requests of one operation can be under way, or in a queue, at the same time.
pub const SENDINGS: usize = 4;

/// The world that the operations live in.
#[derive(Clone, Debug)]
pub struct Setting<const N: usize> {
    /// Whether the connection is caller-owned.
    pub lent: bool,
    /// Whether wire order is the order of hand-over, as on stdio.
    pub ordered: bool,
    /// Where intents are recorded.
    pub journal: Journal,
    /// Whether the server keeps receipts, and so runs an operation once per key.
    pub receipts: bool,
    /// Whether a host can stand still for longer than its lease, and then go on.
    pub stalls: bool,
    /// How many attempts a call, or a resolver, makes at most, and how many look-ups.
    pub max_attempts: u8,
    /// The contract of each operation.
    pub contracts: [Contract; N],
}

/// Where intents are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Journal {
    /// Nowhere.
    Off,
    /// In a file that one host at a time has.
    Alone,
    /// In a database that the hosts share.
    Shared,
}

/// What the client's configuration says about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Contract {
    /// Nothing: it is sent at most once.
    AtMostOnce,
    /// It is no tool call but a read, such as a listing.
    Read,
    /// It is neither, such as a request that only this server knows.
    Request,
    /// It may be repeated.
    Idempotent,
    /// It may be repeated under its key.
    Keyed,
    /// It may be repeated under its key, where no receipt of it is found.
    Receipts,
    /// It can be looked up; an absence is never final.
    Status,
    /// It can be looked up; an absence is final after some time.
    StatusFinal,
}

/// All of it, at one moment. `N` is the number of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize> {
    /// The operations.
    pub ops: [Operation; N],
    /// The hosts.
    pub hosts: [Host; HOSTS],
}

/// One operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Who asked, and whether that is over.
    pub caller: Caller,
    /// The host of that caller.
    pub home: u8,
    /// What each host does about it.
    pub jobs: [Job; HOSTS],
    /// Its requests, oldest first, as long as anything can still come of them.
    pub sendings: [Sending; SENDINGS],
    /// What the journal has of it.
    pub record: Record,
    /// Whether the time is over after which its absence is final.
    pub absence_final: bool,
    /// Witness: how often the server ran it.
    pub effects: u8,
    /// Witness: how often the client's policy allowed it to be sent.
    pub authorised: u8,
    /// Witness: how many outcomes its caller was given.
    pub outcomes: u8,
    /// Witness: its caller was given another operation's answer.
    pub foreign_answer: bool,
}

/// The one who asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Has not asked yet.
    #[default]
    NotYet,
    /// Waits.
    Waits,
    /// Was told this.
    Told(Ending),
    /// Stopped waiting.
    Left,
    /// Went with its host.
    Gone,
}

/// How an operation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With a result.
    Answered,
    /// With an error of the server's; an effect may stand.
    Failed,
    /// The server says that it did not run.
    Rejected,
    /// It provably never left, or its absence is final.
    NotSent,
    /// Nobody knows.
    Unknown,
}

/// What one host does about an operation: the attempt in hand, or what is known after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Job {
    /// Where it stands.
    pub work: Work,
    /// Its place in the mailbox, from 1.
    pub place: u16,
    /// How many attempts this call, or this resolver, made.
    pub attempts: u8,
    /// Whether an attempt before the one in hand may have run.
    pub before: bool,
    /// Whether the session of the last attempt was over when its outcome became unknown.
    pub session_lost: bool,
    /// Whether the policy has nothing left to try.
    pub spent: bool,
    /// Whether it resolves what a call left unknown, so that no caller waits for it.
    pub resolves: bool,
    /// The fencing number under which it writes; 0 is none.
    pub held: u8,
    /// The look-up, if one is made.
    pub look: Look,
    /// How many look-ups were made.
    pub looks: u8,
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Work {
    /// There is none.
    #[default]
    Nothing,
    /// The intent is to be recorded.
    Intended,
    /// The next attempt is to be recorded.
    Due,
    /// The attempt may be put into the mailbox.
    Ready,
    /// In the mailbox, or the queue behind it.
    Waiting,
    /// Handed over to a session: the last of the sendings.
    Handed,
    /// Its caller was told this, and the record is still to say so: the store takes longer than anybody
    /// waits for it.
    Owed(Ending),
    /// The attempts are over, with this.
    Known(Ending),
    /// That is durable, and the caller is to be told.
    Settled(Ending),
}

/// A look-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Look {
    /// None.
    #[default]
    None,
    /// The status tool is asked; `late`: after the absence had become final.
    Asked { late: bool },
    /// The server has looked.
    Served { late: bool, found: bool },
}

/// One hand-over to one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sending {
    /// The dispatch cell.
    pub cell: Cell,
    /// To which session.
    pub session: Session,
    /// The place in the mailbox that it came from.
    pub place: u16,
    /// The request id, which counts the hand-overs of one session.
    pub id: u8,
    /// Where the request is.
    pub request: Passage,
    /// Where the answer is.
    pub answer: Passage,
    /// What the answer says.
    pub reply: Reply,
    /// Whether it carries another key than the operation's.
    pub another_key: bool,
}

/// The dispatch cell, of which a won recall leaves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cell {
    /// There is no request.
    #[default]
    Free,
    /// In a queue of its session.
    Queued,
    /// Writing has begun.
    Writing,
}

/// Where a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Passage {
    /// Not on its way yet.
    #[default]
    Before,
    /// On its way.
    UnderWay,
    /// There.
    There,
    /// Lost.
    Lost,
}

/// What the server does with a request, and says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Reply {
    /// Runs it, and answers with a result.
    #[default]
    Result,
    /// Runs it, and answers with an error.
    Error,
    /// Does not run it, and says so.
    Refusal,
    /// Does not run it, and answers with an error that does not say so.
    Failure,
}

/// What the journal has of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Where it stands; `None`: there is no record.
    pub state: Option<table::State>,
    /// The fencing number.
    pub fence: u8,
    /// The host that has it.
    pub owner: Option<u8>,
    /// Its host is gone, or taken for dead, and nobody has marked that yet.
    pub orphaned: bool,
    /// Its host was found to be gone since the last attempt.
    pub abandoned: bool,
    /// How many attempts were recorded.
    pub attempts: u8,
    /// Witness: at some time it said that nothing was sent.
    pub said_not_sent: bool,
}

/// One host, with its connection to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Whether its process runs.
    pub life: Life,
    /// What its connection does.
    pub phase: Phase,
    /// The newest generation.
    pub generation: u8,
    /// The generations that live, a bit for each.
    pub alive: u64,
    /// Whether the session in force may be dead.
    pub suspect: bool,
    /// The next place in the mailbox.
    pub next_place: u16,
    /// How many requests were handed over to the session in force.
    pub handed: u8,
    /// Witness: the youngest place of which writing began.
    pub begun_up_to: u16,
    /// Witness: something was written after what had asked later.
    pub out_of_order: bool,
    /// Witness: the runtime opened or closed what its caller owns.
    pub touched_lent: bool,
    /// Witness: something was handed over to what its caller owns after its loss.
    pub used_lost_lent: bool,
}

/// Whether a host's process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// It does.
    Up,
    /// It does not; others may still take it to be alive.
    Down,
    /// It does not, and everybody knows.
    Buried,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has no session.
    Idle,
    /// A session is being started.
    Starting,
    /// A session takes operations. A lent connection is so from the first to the last.
    Live,
    /// Its owner closed it.
    Closed,
}

impl Contract {
    /// Whether the journal has it, where there is one: it is a tool call.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        !matches!(self, Self::Read | Self::Request)
    }

    /// Whether something may be sent in order to resolve it.
    #[must_use]
    pub fn resolves(self) -> bool {
        !matches!(self, Self::AtMostOnce | Self::Read | Self::Request)
    }
}

impl<const N: usize> Setting<N> {
    /// Whether an operation may be sent in order to resolve it.
    #[must_use]
    pub fn resends(&self, op: u8) -> bool {
        let contract = self.contracts[usize::from(op)];
        let repeats = matches!(
            contract,
            Contract::Idempotent | Contract::Keyed | Contract::Receipts
        );
        repeats && !self.lent
    }

    /// Whether there is a record of an operation.
    #[must_use]
    pub fn records(&self, op: u8) -> bool {
        self.journal != Journal::Off && self.contracts[usize::from(op)].is_recorded()
    }

    /// The beginning: nobody has asked anything.
    #[must_use]
    pub fn start(&self) -> State<N> {
        let host = Host {
            life: Life::Up,
            phase: if self.lent { Phase::Live } else { Phase::Idle },
            generation: u8::from(self.lent),
            alive: u64::from(self.lent) << 1,
            suspect: false,
            next_place: 1,
            handed: 0,
            begun_up_to: 0,
            out_of_order: false,
            touched_lent: false,
            used_lost_lent: false,
        };
        State {
            ops: [Operation::default(); N],
            hosts: [host; HOSTS],
        }
    }
}

impl<const N: usize> State<N> {
    /// Removes the requests of which nothing can come any more.
    pub fn tidy(&mut self) {
        for op in &mut self.ops {
            let handed: [bool; HOSTS] = std::array::from_fn(|h| op.jobs[h].work == Work::Handed);
            let mut kept = [Sending::default(); SENDINGS];
            let mut count = 0;
            for at in 0..SENDINGS {
                let sending = op.sendings[at];
                let host = sending.session.host;
                let newest = op.last_of(host) == Some(at) && handed[usize::from(host)];
                if sending.can_matter() || newest {
                    kept[count] = sending;
                    count += 1;
                }
            }
            op.sendings = kept;
        }
    }

    pub(super) fn op(&mut self, op: u8) -> &mut Operation {
        &mut self.ops[usize::from(op)]
    }

    pub(super) fn host(&mut self, host: u8) -> &mut Host {
        &mut self.hosts[usize::from(host)]
    }

    pub(super) fn job(&mut self, op: u8, host: u8) -> &mut Job {
        &mut self.op(op).jobs[usize::from(host)]
    }

    /// Whether a session lives.
    #[must_use]
    pub fn lives(&self, session: Session) -> bool {
        let host = &self.hosts[usize::from(session.host)];
        host.alive & (1 << session.generation) != 0
    }

    /// Whether a session is the one that takes operations.
    #[must_use]
    pub fn in_force(&self, session: Session) -> bool {
        let host = &self.hosts[usize::from(session.host)];
        host.phase == Phase::Live && host.generation == session.generation && self.lives(session)
    }
}

impl Operation {
    /// The newest request that a host handed over.
    #[must_use]
    pub fn last_of(&self, host: u8) -> Option<usize> {
        let of_host = |s: &Sending| s.cell != Cell::Free && s.session.host == host;
        self.sendings.iter().rposition(of_host)
    }

    /// The request that a host's job waits for.
    #[must_use]
    pub fn in_hand(&self, host: u8) -> Option<&Sending> {
        let handed = self.jobs[usize::from(host)].work == Work::Handed;
        self.last_of(host)
            .filter(|_| handed)
            .map(|at| &self.sendings[at])
    }

    /// Adds a request.
    pub(super) fn push(&mut self, sending: Sending) -> Result<(), super::Refused> {
        let free = self.sendings.iter_mut().find(|s| s.cell == Cell::Free);
        *free.ok_or(super::Refused("too many requests of one operation"))? = sending;
        Ok(())
    }
}

impl Sending {
    /// Whether it can still be written, arrive, or be answered.
    fn can_matter(&self) -> bool {
        match (self.cell, self.request) {
            (Cell::Free, _) => false,
            (Cell::Queued, _) | (_, Passage::Before | Passage::UnderWay) => true,
            (_, Passage::There) => self.answer == Passage::UnderWay,
            (_, Passage::Lost) => false,
        }
    }
}
