//! The one thread that writes. Whatever waits for it goes into one transaction, and is answered when
//! that is on the disk: so concurrent operations share one sync.

use std::{
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{StoreError, book::Book, place::Place};
use crate::journal::store::Stored;

/// How many writes share a transaction at most: the first of them waits for the last.
const GROUP: usize = 1024;

/// How long the thread stays awake for the next order. Who has just been answered often has one after
/// some microseconds, and to wake a thread takes longer than to look.
const AWAKE_FOR: Duration = Duration::from_micros(30);

/// The way to the writing thread.
pub(super) struct Writer {
    orders: Option<Sender<Order>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

enum Order {
    Write(Box<dyn Write>),
    Close(oneshot::Sender<()>),
}

/// One write. It is run again where the first transaction was lost.
trait Write: Send {
    fn run(&mut self, book: &mut Book);
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Asked<T, F> {
    act: F,
    done: Option<Result<T, StoreError>>,
    answer: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Write for Asked<T, F>
where
    T: Send,
    F: FnMut(&mut Book) -> Result<T, StoreError> + Send,
{
    fn run(&mut self, book: &mut Book) {
        self.done = Some((self.act)(book));
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let done = self.done.unwrap_or(Err(StoreError::Closed));
        // Who asked may have stopped waiting. It is written all the same.
        let _ = self.answer.send(committed.and(done));
    }
}

impl Writer {
    /// Starts the thread, which has the files until it ends.
    pub(super) fn start(book: Book, place: Place) -> Result<Self, StoreError> {
        let (orders, waiting) = channel();
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || serve(book, &waiting, place))
            .map_err(|error| StoreError::Unavailable(format!("no thread: {error}").into()))?;
        Ok(Self {
            orders: Some(orders),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Has `act` done in the next group. It is on its way when this returns.
    pub(super) fn write<T>(
        &self,
        act: impl FnMut(&mut Book) -> Result<T, StoreError> + Send + 'static,
    ) -> Stored<'static, T>
    where
        T: Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.order(Order::Write(Box::new(Asked {
            act,
            done: None,
            answer,
        })));
        Box::pin(async { answered.await.unwrap_or(Err(StoreError::Closed)) })
    }

    /// Ends the thread behind all that was ordered.
    pub(super) fn close(&self) -> Stored<'static, ()> {
        let (done, closed) = oneshot::channel();
        self.order(Order::Close(done));
        Box::pin(async {
            // An error: it is closed already.
            let _ = closed.await;
            Ok(())
        })
    }

    /// An order to a thread that has ended is dropped, and with it the sender of its answer.
    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for Writer {
    /// Waits until what was ordered is written and the lock is given up: who opens the journal next
    /// must not find it locked.
    fn drop(&mut self) {
        self.orders = None;
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut book: Book, orders: &Receiver<Order>, place: Place) {
    let mut closing = None;
    while closing.is_none()
        && let Some(order) = next_order(orders)
    {
        let mut group = Vec::new();
        closing = take(order, &mut group);
        if !group.is_empty() {
            let later = write_together(&mut book, group, orders, closing.is_none());
            closing = closing.or(later);
        }
    }
    // The file before its lock, the lock before the answer.
    drop(book);
    drop(place);
    if let Some(done) = closing {
        let _ = done.send(());
    }
}

/// Waits for an order; none comes where all senders are gone.
fn next_order(orders: &Receiver<Order>) -> Option<Order> {
    let began = Instant::now();
    while began.elapsed() < AWAKE_FOR {
        match orders.try_recv() {
            Ok(order) => return Some(order),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    orders.recv().ok()
}

fn take(order: Order, group: &mut Vec<Box<dyn Write>>) -> Option<oneshot::Sender<()>> {
    match order {
        Order::Write(write) => {
            group.push(write);
            None
        }
        Order::Close(done) => Some(done),
    }
}

/// Writes a group, with all that comes while it is written, and answers it.
fn write_together(
    book: &mut Book,
    mut group: Vec<Box<dyn Write>>,
    orders: &Receiver<Order>,
    mut goes_on: bool,
) -> Option<oneshot::Sender<()>> {
    let mut closing = None;
    let mut next = |group: &mut Vec<_>| {
        while goes_on
            && group.len() < GROUP
            && let Ok(order) = orders.try_recv()
        {
            closing = take(order, group);
            goes_on = closing.is_none();
        }
    };
    next(&mut group);
    let begun = book.begin();
    let mut run = 0;
    while begun.is_ok() && run < group.len() && (run == 0 || book.in_transaction()) {
        group[run].run(book);
        run += 1;
        if run == group.len() {
            next(&mut group);
        }
    }
    match begun {
        Err(error) => answer(group, &Err(error)),
        Ok(()) if book.in_transaction() => answer(group, &book.commit()),
        // One statement took the others with it. Alone, each has its own fate.
        Ok(()) => {
            book.roll_back();
            group.into_iter().for_each(|write| write_alone(book, write));
        }
    }
    closing
}

fn write_alone(book: &mut Book, mut write: Box<dyn Write>) {
    if let Err(error) = book.begin() {
        return write.answer(Err(error));
    }
    write.run(book);
    match book.in_transaction() {
        true => write.answer(book.commit()),
        false => {
            book.roll_back();
            // Its own error says why.
            write.answer(Ok(()));
        }
    }
}

fn answer(group: Vec<Box<dyn Write>>, committed: &Result<(), StoreError>) {
    for write in group {
        write.answer(committed.clone());
    }
}
