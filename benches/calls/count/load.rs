//! What is done under valgrind.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use super::Load;
use crate::{
    clients::{self, Place},
    floor::Floor,
    servers::Answer,
    side::Side,
    speed::Flavour,
};

/// Does so many of what the words name, and ends the process with all of it still there.
pub(crate) fn carry_out(words: &[String]) -> ! {
    let [load, side, number] = words else {
        panic!("what to do, whose, and how many")
    };
    let load = Load::of(load).expect("something to do");
    let side = Side::of(side).expect("a side");
    let number: usize = number.parse().expect("a number");
    Flavour::Current.runtime().block_on(async {
        match side {
            Side::Floor => at_the_floor(load, number).await,
            Side::Rmcp | Side::Ours => by_a_client(load, side, number).await,
        }
    })
}

fn place(load: Load) -> Place {
    Place::Memory(match load {
        Load::Calls | Load::Idle => Answer::Small,
        Load::Structured => Answer::Structured,
        Load::Abandoned | Load::Dropped => Answer::Never,
    })
}

async fn at_the_floor(load: Load, number: usize) -> ! {
    let mut open = Vec::new();
    match load {
        Load::Calls | Load::Structured => {
            let mut floor = Floor::at(&place(load)).await;
            floor.calls(1, number).await;
            open.push(floor);
        }
        Load::Idle => {
            for _ in 0..number {
                let mut floor = Floor::at(&place(load)).await;
                floor.calls(1, 1).await;
                open.push(floor);
            }
        }
        // Bytes that were sent are gone.
        Load::Abandoned | Load::Dropped => {}
    }
    std::process::exit(0)
}

async fn by_a_client(load: Load, side: Side, number: usize) -> ! {
    let supervisor = clients::supervisor().await;
    let place = place(load);
    let open = async |name: &str| match side {
        Side::Ours => clients::ours(&supervisor, name, &place).await,
        _ => clients::rmcp(&place).await,
    };
    let mut callers = vec![open("bench").await];
    match load {
        Load::Calls => {
            for _ in 0..number {
                callers[0].call().await;
            }
        }
        Load::Structured => {
            let caller = callers.remove(0).who_does_not_look();
            for _ in 0..number {
                caller.call().await;
            }
        }
        Load::Idle => {
            callers[0].call().await;
            for number in 1..number {
                callers.push(open(&format!("bench-{number}")).await);
                callers[number].call().await;
            }
        }
        Load::Abandoned | Load::Dropped => {
            for _ in 0..number {
                match load {
                    Load::Abandoned => abandon(callers[0].request()).await,
                    _ => abandon(callers[0].call()).await,
                }
            }
            // What is still to be told to the server about the last of them.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
    std::process::exit(0)
}

/// Begins to wait for an answer, lets all others have their turns often enough that the call is sent, and
/// stops waiting.
async fn abandon(call: impl Future<Output = ()>) {
    const TURNS: usize = 64;
    let mut call = pin!(call);
    for _ in 0..TURNS {
        let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        assert!(polled.is_pending(), "nobody answers");
        tokio::task::yield_now().await;
    }
}
