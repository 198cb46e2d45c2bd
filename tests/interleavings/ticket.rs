//! Giving up against handing over, taking back and writing: the real ticket on the real cell.

use std::{future::Future as _, sync::Arc, task::Poll};

use loom::thread;
use rmcp::model::{ClientRequest, PingRequest};

use crate::{
    connection::ticket::{Attempt, GiveUpOnDrop, Handing, Progress, Ticket},
    in_every_order,
    operation::{AttemptId, Generation, OperationId, OperationKind},
    stand_ins::{Along, Pending, Seen, Session, look, wait_for},
    with_two_preemptions,
};

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

fn sessions() -> (Arc<Session>, Arc<Session>) {
    let generation = |number: &str| -> Generation { serde_json::from_str(number).unwrap() };
    (Session::new(generation("1")), Session::new(generation("2")))
}

/// What a connection does around a loss: hand over, take back what was not begun, hand it over again.
fn through_a_loss(ticket: &Ticket, first: &Session, second: &Session) {
    let done = ticket.hand_over(first, |_, moved| assert!(!moved));
    if !matches!(done, Handing::Done) {
        return;
    }
    first.end();
    if ticket.take_back(true) {
        let _ = ticket.hand_over(second, |_, moved| assert!(moved));
    }
}

/// Both writers come once more, after everybody else is done: what is given up stays unwritten.
fn written(before: usize, first: &Session, second: &Session) -> usize {
    before + first.write_all() + second.write_all()
}

#[test]
fn what_is_given_up_is_never_sent_and_what_is_not_is_sent_once() {
    in_every_order("give up beside a loss and a writer", || {
        let ticket = ticket();
        let (first, second) = sessions();
        let connection = {
            let (ticket, first, second) =
                (Arc::clone(&ticket), Arc::clone(&first), Arc::clone(&second));
            thread::spawn(move || through_a_loss(&ticket, &first, &second))
        };
        let writer = {
            let first = Arc::clone(&first);
            thread::spawn(move || first.write_all())
        };
        let given_up = ticket.give_up();
        connection.join().unwrap();
        let written = written(writer.join().unwrap(), &first, &second);
        assert_eq!(written, usize::from(!given_up), "given up: {given_up}");
    });
}

#[test]
fn a_request_in_its_callers_hands_is_sent_once_or_given_up() {
    in_every_order("give up after the hand-over was seen", || {
        let ticket = ticket();
        let (first, second) = sessions();
        let _ = ticket.hand_over(&first, |_, _| ());
        let Some(Progress::Handed(pending)) = look(ticket.progress()) else {
            panic!("it was handed over");
        };
        let connection = {
            let (ticket, second) = (Arc::clone(&ticket), Arc::clone(&second));
            thread::spawn(move || {
                if ticket.take_back(true) {
                    let _ = ticket.hand_over(&second, |_, moved| assert!(moved));
                }
            })
        };
        let writer = {
            let first = Arc::clone(&first);
            thread::spawn(move || first.write_all())
        };
        let given_up = ticket.give_up();
        drop(pending);
        connection.join().unwrap();
        let written = written(writer.join().unwrap(), &first, &second);
        assert_eq!(written, usize::from(!given_up), "given up: {given_up}");
    });
}

#[test]
fn a_dropped_wait_says_perhaps_sent_wherever_it_was_sent() {
    in_every_order("drop beside a loss and a writer", || {
        let ticket = ticket();
        let (first, second) = sessions();
        let connection = {
            let (ticket, first, second) =
                (Arc::clone(&ticket), Arc::clone(&first), Arc::clone(&second));
            thread::spawn(move || through_a_loss(&ticket, &first, &second))
        };
        let writer = {
            let first = Arc::clone(&first);
            thread::spawn(move || first.write_all())
        };
        let mut seen = Seen::default();
        drop(GiveUpOnDrop {
            ticket: &ticket,
            seen: &mut seen,
        });
        connection.join().unwrap();
        let written = written(writer.join().unwrap(), &first, &second);
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
        let ticket = ticket();
        let (first, second) = sessions();
        let connection = {
            let (ticket, first, second) =
                (Arc::clone(&ticket), Arc::clone(&first), Arc::clone(&second));
            thread::spawn(move || {
                through_a_loss(&ticket, &first, &second);
                let written = second.write_all();
                second.answer();
                written
            })
        };
        let writer = {
            // The first session ends without an answer.
            let first = Arc::clone(&first);
            thread::spawn(move || first.write_all())
        };
        let told = wait_as_a_caller_does(&ticket);
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
