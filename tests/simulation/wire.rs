//! The pipes between a client and a server, with an adversary in between that splits, delays, blocks
//! and cuts.
//!
//! What the client writes is a frame at a time, so the first piece shows the whole frame; how much of
//! it goes through, and when, is the adversary's matter.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    trace::{Frame, What},
    world::{CONNECTIONS, Due, Shared, World},
};

/// How an adversary treats the bytes of a pipe.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    /// They go through as they come.
    Smooth,
    /// In pieces.
    Splitting,
    /// A few at a time, and slowly.
    Dripping,
    /// The pipe is full now and then, for a while.
    Blocking,
}

/// One pipe, both ways.
pub(super) struct Link {
    pub(super) connection: usize,
    /// The session's that it is for, as its host numbers them.
    pub(super) generation: u64,
    /// Of the process that it leads to.
    pub(super) process: u32,
    manner: Manner,
    slowest: u64,
    // To the server.
    /// How many bytes the pipe took, and at how many it breaks.
    taken: u64,
    cut_up: Option<u64>,
    /// The frame that is being written, and how much of it is still to come.
    writing: Option<(Message, usize)>,
    /// Frames that are whole in the pipe, with where they end.
    under_way: VecDeque<(u64, Message)>,
    arrived: u64,
    last_up: u64,
    blocked: bool,
    writer: Option<std::task::Waker>,
    writer_broken: bool,
    // To the client.
    told: u64,
    cut_down: Option<u64>,
    truncated: bool,
    pieces: VecDeque<Vec<u8>>,
    last_down: u64,
    readable: VecDeque<u8>,
    reader: Option<std::task::Waker>,
    /// With an error, and not with an end.
    resets: bool,
    pub(super) broken: bool,
    /// The server answers nothing on it and does not end it.
    pub(super) wedged: bool,
    pub(super) let_go: bool,
    /// Whether the caller who owns it is about to close it.
    pub(super) may_be_closed: bool,
}

impl Link {
    /// Whether it is on its way to its end, whatever else happens.
    pub(super) fn is_cut(&self) -> bool {
        self.let_go || self.writer_broken || self.truncated
    }
}

/// A frame and what it says.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) frame: Frame,
    pub(super) said: Value,
}

impl Message {
    fn of(bytes: &[u8]) -> Self {
        let said: Value = serde_json::from_slice(bytes).expect("the client writes JSON");
        let params = &said["params"];
        let number = |value: &Value| value.as_u64().map(|n| n as usize);
        let tool = params["name"].as_str();
        let arguments = match said["method"].as_str() {
            Some("tools/call") => &params["arguments"],
            _ => params,
        };
        let by_meta = params["_meta"][mcp_supervisor::extension::IDEMPOTENCY_KEY].as_str();
        let frame = Frame {
            method: said["method"].as_str().unwrap_or("answer").to_owned(),
            operation: number(&params["_meta"]["sim/operation"]),
            mark: number(&arguments["mark"]),
            key: arguments["key"].as_str().or(by_meta).map(str::to_owned),
            tool: tool.map(str::to_owned),
            resolves: None,
            id: said["id"].as_i64(),
        };
        Self { frame, said }
    }
}

impl World {
    /// A client opens a pipe.
    pub(super) fn open(&mut self, connection: usize) -> Option<usize> {
        let server = &self.servers[connection];
        let refuses = !self.healed && self.dice.percent(4);
        if !server.up || refuses {
            self.record(What::OpenFailed { connection });
            return None;
        }
        let process = self.servers[connection].process;
        // Which session it is for has been told.
        self.hear();
        let dice = &mut self.dice;
        let calm = self.healed || dice.percent(40);
        let manner = match calm {
            true => Manner::Smooth,
            false => dice.pick(&[Manner::Splitting, Manner::Dripping, Manner::Blocking]),
        };
        // Most of the bytes of a session are in its handshake and its first calls.
        let fate = if self.healed { 0 } else { dice.range(0, 99) };
        let (mut cut_up, mut cut_down) = (None, None);
        match fate {
            60..75 => cut_up = Some(dice.range(0, 2_400)),
            75..90 => cut_down = Some(dice.range(0, 1_600)),
            _ => {}
        }
        let dies_after = (90..97).contains(&fate).then(|| dice.range(1, 3_000));
        let link = self.links.len();
        self.links.push(Link {
            connection,
            generation: self.newest[connection],
            process,
            manner,
            slowest: self.dice.pick(&[2, 10, 60]),
            taken: 0,
            cut_up,
            writing: None,
            under_way: VecDeque::new(),
            arrived: 0,
            last_up: 0,
            blocked: false,
            writer: None,
            writer_broken: false,
            told: 0,
            cut_down,
            truncated: false,
            pieces: VecDeque::new(),
            last_down: 0,
            readable: VecDeque::new(),
            reader: None,
            resets: self.dice.percent(25),
            broken: false,
            wedged: fate >= 97,
            let_go: false,
            may_be_closed: true,
        });
        self.record(What::Opened { link, connection });
        if let Some(after) = dies_after {
            self.schedule(after, Due::Break { link });
        }
        Some(link)
    }

    fn client_writes(
        &mut self,
        link: usize,
        bytes: &[u8],
        context: &Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let now = self.now();
        if self.links[link].writer_broken || self.dying {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // A caller's own client may have put another message behind the one that is half written.
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let bytes = &bytes[..end.map_or(bytes.len(), |end| end + 1)];
        if self.links[link].writing.is_none() {
            let mut message = Message::of(bytes);
            if let Some(key) = &mut message.frame.key {
                *key = self.name_of_key(key);
            }
            if message.frame.operation.is_none() && message.frame.method == "tools/call" {
                let claimed = self.claimed.iter();
                let of_mark = |it: &&usize| self.marks.get(**it).copied() == message.frame.mark;
                message.frame.resolves = claimed.copied().find(|it| of_mark(&it));
            }
            self.record(What::Begun {
                link,
                frame: message.frame.clone(),
            });
            self.before_the_first_byte(link, &message);
            self.links[link].writing = Some((message, bytes.len()));
        }
        let dice = &mut self.dice;
        let pipe = &mut self.links[link];
        if pipe.blocked {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let most = bytes.len() as u64;
        let mut many = match pipe.manner {
            Manner::Smooth => most,
            Manner::Splitting | Manner::Blocking => dice.range(1, most),
            Manner::Dripping => dice.range(most.min(20), most.min(90)),
        };
        let left = pipe.cut_up.map(|at| at.saturating_sub(pipe.taken));
        many = many.min(left.unwrap_or(many));
        if many == 0 {
            pipe.writer_broken = true;
            let after = dice.range(1, 60);
            self.schedule(after, Due::Break { link });
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        pipe.taken += many;
        let upto = pipe.taken;
        let (message, rest) = pipe.writing.as_mut().expect("it was begun");
        *rest -= many as usize;
        if *rest == 0 {
            let message = message.clone();
            pipe.writing = None;
            let frame = message.frame.clone();
            pipe.under_way.push_back((upto, message));
            self.record(What::Written { link, frame });
        }
        let pipe = &mut self.links[link];
        let blocks_for = match pipe.manner {
            Manner::Smooth | Manner::Splitting => None,
            Manner::Dripping => Some(self.dice.range(1, 30)),
            Manner::Blocking => self.dice.percent(40).then(|| self.dice.range(10, 3_000)),
        };
        if let Some(wait) = blocks_for.filter(|_| !self.healed) {
            pipe.blocked = true;
            self.schedule(wait, Due::Unblock { link });
        }
        let slowest = self.links[link].slowest;
        let arrives = (now + self.dice.range(1, slowest)).max(self.links[link].last_up + 1);
        let arrives = self.schedule_at(arrives, Due::Up { link, upto });
        self.links[link].last_up = arrives;
        Poll::Ready(Ok(many as usize))
    }

    /// A key as a trace names it: those that were minted are numbered as they come.
    fn name_of_key(&mut self, key: &str) -> String {
        if key.starts_with("key-") {
            return key.to_owned();
        }
        let number = self.minted.len();
        let number = self.minted.entry(key.to_owned()).or_insert(number);
        format!("minted-{number}")
    }

    /// What has to be true before anything of a request leaves.
    fn before_the_first_byte(&mut self, link: usize, message: &Message) {
        let connection = self.links[link].connection;
        let Some(operation) = message.frame.operation else {
            return;
        };
        if message.frame.method == "tools/call" && self.book.lacks_dispatch(operation) {
            self.break_promise(format_args!(
                "operation {operation} goes out to {} before its record is durable",
                CONNECTIONS[connection]
            ));
        }
    }

    fn client_reads(
        &mut self,
        link: usize,
        into: &mut ReadBuf<'_>,
        context: &Context<'_>,
    ) -> Poll<io::Result<()>> {
        let pipe = &mut self.links[link];
        if pipe.readable.is_empty() {
            if !pipe.broken {
                pipe.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            return match pipe.resets {
                true => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                false => Poll::Ready(Ok(())),
            };
        }
        let many = into.remaining().min(pipe.readable.len());
        for byte in pipe.readable.drain(..many) {
            into.put_slice(&[byte]);
        }
        Poll::Ready(Ok(()))
    }

    /// The client lets go of its writing side, by which a server learns that nothing more comes.
    fn client_lets_go(&mut self, link: usize) {
        if self.dying || self.links[link].let_go {
            return;
        }
        self.links[link].let_go = true;
        self.record(What::Closed { link });
        let pipe = &self.links[link];
        // A client that cannot write lets go of its own pipe.
        if !pipe.may_be_closed && !pipe.broken && !pipe.writer_broken {
            self.break_promise(format_args!(
                "the caller's own pipe {link} was closed by the runtime"
            ));
        }
        let after = self.dice.range(1, 400);
        self.schedule(after, Due::Break { link });
    }

    /// Frames up to this byte are at the server now.
    pub(super) fn arrives(&mut self, link: usize, upto: u64) {
        let pipe = &mut self.links[link];
        pipe.arrived = upto;
        let gone = self.servers[pipe.connection].process != pipe.process;
        while let Some((end, _)) = self.links[link].under_way.front() {
            if *end > upto {
                return;
            }
            let whole = self.links[link].under_way.pop_front();
            if let (Some((_, message)), false) = (whole, gone) {
                self.record(What::Arrived {
                    link,
                    frame: message.frame.clone(),
                });
                self.serve(link, message);
            }
        }
    }

    /// The server writes a line.
    pub(super) fn tell(&mut self, link: usize, line: &str) {
        let pipe = &mut self.links[link];
        if pipe.broken || pipe.truncated {
            return;
        }
        let mut bytes = line.as_bytes();
        let room = pipe
            .cut_down
            .map(|at| at.saturating_sub(pipe.told) as usize);
        let cut = room.is_some_and(|room| room < bytes.len());
        if let Some(room) = room.filter(|_| cut) {
            bytes = &bytes[..room];
        }
        pipe.told += bytes.len() as u64;
        let whole = pipe.manner == Manner::Smooth || pipe.manner == Manner::Blocking;
        let mut at = self.now().max(self.links[link].last_down);
        while !bytes.is_empty() {
            let many = match whole {
                true => bytes.len(),
                false => self.dice.range(1, bytes.len() as u64) as usize,
            };
            let (piece, rest) = bytes.split_at(many);
            bytes = rest;
            self.links[link].pieces.push_back(piece.to_vec());
            let slowest = self.links[link].slowest;
            at += self.dice.range(1, slowest);
            at = self.schedule_at(at, Due::Down { link });
        }
        self.links[link].last_down = at;
        if cut {
            self.links[link].truncated = true;
            self.schedule_at(at + 2, Due::Break { link });
        }
    }

    /// Bytes of the server's are at the client now: the next piece, or all that there are.
    pub(super) fn comes_down(&mut self, link: usize) {
        let together = self.dice.percent(15);
        let pipe = &mut self.links[link];
        let many = if together { pipe.pieces.len() } else { 1 };
        for _ in 0..many {
            if let Some(piece) = pipe.pieces.pop_front() {
                pipe.readable.extend(piece);
            }
        }
        self.wakes.extend(pipe.reader.take());
    }

    pub(super) fn unblock(&mut self, link: usize) {
        self.links[link].blocked = false;
        self.wakes.extend(self.links[link].writer.take());
    }

    /// The pipe breaks. What is on its way to the server is lost, or still arrives.
    pub(super) fn breaks(&mut self, link: usize, why: &'static str) {
        if self.links[link].broken {
            return;
        }
        let lost = self.dice.percent(50);
        let pipe = &mut self.links[link];
        pipe.broken = true;
        if lost {
            pipe.under_way.clear();
        }
        // Half of what was to come is heard still.
        let heard = pipe.pieces.len() / 2;
        let heard: Vec<_> = pipe.pieces.drain(..).take(heard).flatten().collect();
        pipe.readable.extend(heard);
        self.wakes.extend(pipe.reader.take());
        self.record(What::Broken { link, why });
        let after = self.dice.range(1, 40);
        self.schedule(after, Due::BreakWriter { link });
        // A process of its own goes on with what it has begun; a child does not.
        if self.dice.percent(50) {
            self.servers[self.links[link].connection].forget(link);
        }
    }

    pub(super) fn breaks_for_the_writer(&mut self, link: usize) {
        let pipe = &mut self.links[link];
        pipe.writer_broken = true;
        self.wakes.extend(pipe.writer.take());
    }

    /// From now on every pipe that is whole lets everything through.
    pub(super) fn heal_links(&mut self) {
        for link in 0..self.links.len() {
            let pipe = &mut self.links[link];
            if pipe.is_cut() {
                continue;
            }
            pipe.cut_up = None;
            pipe.cut_down = None;
            pipe.wedged = false;
            pipe.manner = Manner::Smooth;
            self.unblock(link);
        }
    }

    /// The host that had the client's ends is gone.
    pub(super) fn all_let_go(&mut self) {
        for link in 0..self.links.len() {
            if !self.links[link].broken {
                self.links[link].let_go = true;
                let after = self.dice.range(1, 60);
                self.schedule(after, Due::Break { link });
            }
        }
    }
}

/// The client's reading end.
pub(super) struct Reading(pub(super) Shared, pub(super) usize);

/// The client's writing end.
pub(super) struct Writing(pub(super) Shared, pub(super) usize);

impl AsyncRead for Reading {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let link = self.1;
        self.0.with(|world| world.client_reads(link, into, context))
    }
}

impl AsyncWrite for Writing {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let link = self.1;
        self.0
            .with(|world| world.client_writes(link, bytes, context))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = self.1;
        self.0.with(|world| world.client_lets_go(link));
        Poll::Ready(Ok(()))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let link = self.1;
        self.0.with(|world| world.client_lets_go(link));
    }
}
