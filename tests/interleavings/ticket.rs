//! Giving up against handing over, taking back and writing: the real ticket on the real cell.

use std::{future::Future as _, sync::Arc, task::Poll};

use loom::thread::{self, JoinHandle};
use rmcp::model::{ClientRequest, PingRequest};
use tokio::time::Instant;

use crate::{
    connection::ticket::{Attempt, GiveUpOnDrop, Handing, Progress, Ticket},
    in_every_order,
    operation::{AttemptId, Generation, OperationId, OperationKind},
    stand_ins::{Along, Pending, Seen, Session, look, wait_for},
    with_two_preemptions,
};

/// One request, and the two sessions that it may go to.
#[derive(Clone)]
struct Meeting {
    ticket: Arc<Ticket>,
    first: Arc<Session>,
    second: Arc<Session>,
}

fn ticket() -> Arc<Ticket> {
    let attempt = Attempt::first(
        OperationId::mint(),
        OperationKind::ToolCall,
        AttemptId::mint(),
    );
    let request = ClientRequest::PingRequest(PingRequest::default());
    let along = Along { idle: None };
    Arc::new(Ticket::new(attempt, Arc::new(request), None, along))
}

impl Meeting {
    fn new() -> Self {
        let session = |number: &str| {
            let generation: Generation = serde_json::from_str(number).unwrap();
            Session::new(generation)
        };
        Self {
            ticket: ticket(),
            first: session("1"),
            second: session("2"),
        }
    }

    /// Does it in a thread of its own, beside whatever else there is.
    fn beside<T: 'static>(&self, does: impl FnOnce(&Self) -> T + 'static) -> JoinHandle<T> {
        let meeting = self.clone();
        thread::spawn(move || does(&meeting))
    }

    /// What a connection does around a loss: hand over, take back what was not begun, hand it over
    /// again.
    fn goes_through_a_loss(&self) {
        let done = self
            .ticket
            .hand_over(&self.first, Instant::now(), |_, moved| assert!(!moved));
        if !matches!(done, Handing::Done) {
            return;
        }
        self.first.end();
        self.moves();
    }

    fn moves(&self) {
        if self.ticket.take_back(true) {
            let _ = self
                .ticket
                .hand_over(&self.second, Instant::now(), |_, moved| assert!(moved));
        }
    }

    fn first_writes(&self) -> usize {
        self.first.write_all()
    }

    /// How often it was written, after both writers came once more, when everybody else is done: what
    /// is given up stays unwritten.
    fn written(&self, writer: JoinHandle<usize>) -> usize {
        writer.join().unwrap() + self.first.write_all() + self.second.write_all()
    }
}

#[test]
fn what_is_given_up_is_never_sent_and_what_is_not_is_sent_once() {
    in_every_order("give up beside a loss and a writer", || {
        let meeting = Meeting::new();
        let connection = meeting.beside(Meeting::goes_through_a_loss);
        let writer = meeting.beside(Meeting::first_writes);
        let given_up = meeting.ticket.give_up();
        connection.join().unwrap();
        let written = meeting.written(writer);
        assert_eq!(written, usize::from(!given_up), "given up: {given_up}");
    });
}

#[test]
fn a_request_in_its_callers_hands_is_sent_once_or_given_up() {
    in_every_order("give up after the hand-over was seen", || {
        let meeting = Meeting::new();
        let ticket = &meeting.ticket;
        let _ = ticket.hand_over(&meeting.first, Instant::now(), |_, _| ());
        let Some(Progress::Handed(pending)) = look(ticket.progress()) else {
            panic!("it was handed over");
        };
        let connection = meeting.beside(Meeting::moves);
        let writer = meeting.beside(Meeting::first_writes);
        let given_up = ticket.give_up();
        drop(pending);
        connection.join().unwrap();
        let written = meeting.written(writer);
        assert_eq!(written, usize::from(!given_up), "given up: {given_up}");
    });
}

#[test]
fn a_dropped_wait_says_perhaps_sent_wherever_it_was_sent() {
    in_every_order("drop beside a loss and a writer", || {
        let meeting = Meeting::new();
        let connection = meeting.beside(Meeting::goes_through_a_loss);
        let writer = meeting.beside(Meeting::first_writes);
        let mut seen = Seen::default();
        drop(GiveUpOnDrop {
            ticket: &meeting.ticket,
            seen: &mut seen,
        });
        connection.join().unwrap();
        let written = meeting.written(writer);
        assert!(written <= 1);
        assert!(
            seen.perhaps_sent || written == 0,
            "it was sent, and its caller was told that it was not"
        );
    });
}

#[test]
fn a_waiting_caller_learns_of_the_answer_whatever_moves_its_request() {
    with_two_preemptions("wait through a loss", || {
        let meeting = Meeting::new();
        let connection = meeting.beside(|meeting| {
            meeting.goes_through_a_loss();
            let written = meeting.second.write_all();
            meeting.second.answer();
            written
        });
        // The first session ends without an answer.
        let writer = meeting.beside(Meeting::first_writes);
        let told = wait_as_a_caller_does(&meeting.ticket);
        let written = connection.join().unwrap() + writer.join().unwrap();
        drop(told);
        assert_eq!(written, 1, "nobody gave it up");
    });
}

/// Until there is an answer, or the request was begun on a session that is over.
fn wait_as_a_caller_does(ticket: &Ticket) -> Option<Pending> {
    loop {
        // Sleeping through the hand-over is right only if the answer, or the next move, wakes it.
        let progress = wait_for(|context| std::pin::pin!(ticket.progress()).poll(context));
        let mut pending = match progress {
            Progress::Handed(pending) => pending,
            Progress::Lost => return None,
            _ => panic!("a request that nobody refuses"),
        };
        let told = wait_for(|context| {
            let waker = context.waker();
            if !pending.will_wake(waker) || pending.is_over(waker) && pending.was_begun() {
                return Poll::Ready(true);
            }
            if pending.is_over(waker) {
                return Poll::Ready(false);
            }
            std::pin::pin!(ticket.moved()).poll(context).map(|()| false)
        });
        if told {
            return Some(pending);
        }
    }
}
