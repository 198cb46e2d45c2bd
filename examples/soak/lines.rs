//! A server that reads and writes lines: on its standard streams, or at a socket.

use std::{sync::Arc, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{TcpStream, tcp::OwnedWriteHalf},
    signal::unix::{SignalKind, signal},
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use crate::{
    Ending,
    fate::{Fate, Start},
    shop::{self, Done, Shop},
};

/// Longer than a caller of these waits for an attempt, and not longer than it waits in all.
pub(crate) const LATE: Duration = Duration::from_millis(2_000);
pub(crate) const SLOW: Duration = Duration::from_millis(250);

/// How serving ends.
enum End {
    /// The other side has gone.
    Closed,
    Die,
    Exit,
    HangUp,
}

type Writing<W> = Arc<Mutex<W>>;

/// Serves to an end, and gives back what it wrote to.
async fn serve<R, W>(read: R, write: W, shop: Arc<Shop>) -> (End, Option<W>)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let write = Arc::new(Mutex::new(write));
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut calls = JoinSet::new();
    let mut lines = BufReader::new(read).lines();
    let end = loop {
        let line = tokio::select! {
            line = lines.next_line() => line,
            Some(end) = told.recv() => break end,
            Some(_) = calls.join_next() => continue,
        };
        let Ok(Some(line)) = line else {
            break End::Closed;
        };
        let Ok(message) = serde_json::from_str::<Value>(&line) else {
            break End::Exit;
        };
        let (shop, write, tell) = (Arc::clone(&shop), Arc::clone(&write), tell.clone());
        if message["method"] == "tools/call" {
            calls.spawn(async move {
                if let Some(end) = call(&message, &shop, &write).await {
                    let _ = tell.send(end);
                }
            });
        } else if let Some(answer) = shop::other(&message) {
            say(&write, format!("{answer}\n").as_bytes()).await;
        }
    };
    calls.shutdown().await;
    (end, Arc::into_inner(write).map(Mutex::into_inner))
}

async fn say<W: AsyncWrite + Unpin>(write: &Writing<W>, bytes: &[u8]) {
    let mut write = write.lock().await;
    // A reader that has gone is noticed where it is read from.
    let _ = write.write_all(bytes).await;
    let _ = write.flush().await;
}

async fn call<W: AsyncWrite + Unpin>(
    message: &Value,
    shop: &Shop,
    write: &Writing<W>,
) -> Option<End> {
    let Ok(Done { fate, answer }) = shop.call(message) else {
        return Some(End::Exit);
    };
    let answer = format!("{answer}\n");
    match fate {
        Fate::StallBefore | Fate::StallAfter => std::future::pending().await,
        Fate::DieBefore | Fate::DieAfter => return Some(End::Die),
        Fate::Exit => return Some(End::Exit),
        Fate::HangUp => return Some(End::HangUp),
        Fate::Garbage => {
            say(
                write,
                b"Segmentation fault (core dumped)\n{\"jsonrpc\": \"2.0\", \"id\"\n",
            )
            .await;
            return None;
        }
        Fate::Half => {
            say(write, &answer.as_bytes()[..answer.len() / 2]).await;
            return Some(End::Exit);
        }
        Fate::Slow => tokio::time::sleep(SLOW).await,
        Fate::Late => tokio::time::sleep(LATE).await,
        Fate::Twice => say(write, answer.as_bytes()).await,
        Fate::Good | Fate::Refuse | Fate::Fail => {}
    }
    say(write, answer.as_bytes()).await;
    None
}

/// The server of a child process.
pub(crate) async fn child(shop: Shop) -> Ending {
    let begins = shop.begins();
    begin(begins).await?;
    let (end, _) = serve(tokio::io::stdin(), tokio::io::stdout(), Arc::new(shop)).await;
    match end {
        End::Closed if begins == Start::Stubborn => std::future::pending().await,
        End::Closed => {}
        End::Exit => std::process::exit(1),
        End::HangUp => {
            nix::unistd::close(1)?;
            std::future::pending().await
        }
        End::Die => die(),
    }
    Ok(())
}

pub(crate) fn die() {
    let _ = kill(Pid::this(), Signal::SIGKILL);
}

/// Begins as the schedule says.
pub(crate) async fn begin(begins: Start) -> Ending {
    match begins {
        Start::Well => {}
        Start::Exit => {
            eprintln!("no configuration found");
            std::process::exit(3);
        }
        Start::Hang => std::future::pending().await,
        Start::Noise => println!("server 1.0 starts"),
        Start::Stubborn => {
            let mut terms = signal(SignalKind::terminate())?;
            tokio::spawn(async move { while terms.recv().await.is_some() {} });
        }
    }
    Ok(())
}

/// The server at one socket.
pub(crate) async fn socket(stream: TcpStream, shop: Arc<Shop>) {
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    if let (End::Die, Some(write)) = serve(read, write, shop).await {
        reset(write);
    }
}

/// Closes a socket with RST.
pub(crate) fn reset(write: OwnedWriteHalf) {
    let _ = write.as_ref().set_zero_linger();
    write.forget();
}
